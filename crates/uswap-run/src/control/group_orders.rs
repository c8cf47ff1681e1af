//! The orders of `uswap group`: groups are made, limited, moved and removed while the tree runs.

use uswap_sys::procfs::{self, Statm};

use crate::control::protocol::answer::{GroupLimited, GroupMoved, GroupRemoved};
use crate::control::protocol::status::GroupFigures;
use crate::shared::RunShared;
use uswap_pager::accounting::group::{Limit, ROOT_NAME};
use uswap_pager::accounting::groups::Figures;
use uswap_remote::{EngineContext, Message};

/// Makes a group. `limit`: the text of its limit.
///
/// # Errors
/// For the user; nothing is changed then.
pub fn create(shared: &EngineContext, path: &str, limit: Option<&str>) -> Result<GroupLimited, String> {
    let pages = shared.groups.create(path, wanted(limit)?, shared.budget.limit())?;
    meet_everybody(shared);
    balance(shared);
    Ok(limited(path, pages))
}

/// Changes the limit of a group. `limit`: the text of the new limit.
///
/// # Errors
/// For the user; nothing is changed then.
pub fn limit(shared: &EngineContext, path: &str, limit: &str) -> Result<GroupLimited, String> {
    let pinned = |processes: &[u32]| pinned(shared, processes);
    let pages = shared.groups.limit(path, limit.parse()?, shared.budget.limit(), pinned)?;
    balance(shared);
    Ok(limited(path, pages))
}

/// Moves a process, if `what` is a number, or a group.
///
/// # Errors
/// For the user; nothing is changed then.
pub fn change_place(shared: &EngineContext, what: &str, to: &str) -> Result<GroupMoved, String> {
    let moved = match what.parse() {
        Ok(pid) => {
            // Children that the governor has not measured yet get an account in their parent's old
            // group first.
            if !meet_everybody(shared).contains(&pid) {
                return Err(format!("{pid} is no process of this run"));
            }
            shared.groups.move_process(pid, to)?;
            GroupMoved { process: Some(pid), group: to.to_owned() }
        }
        Err(_) => GroupMoved { process: None, group: shared.groups.move_group(what, to)? },
    };
    balance(shared);
    Ok(moved)
}

/// Removes a group.
///
/// # Errors
/// For the user; nothing is changed then.
pub fn remove(shared: &EngineContext, path: &str) -> Result<GroupRemoved, String> {
    let processes = shared.groups.remove(path)? as u64;
    balance(shared);
    Ok(GroupRemoved { group: path.to_owned(), processes, files: None })
}

/// Parses the text of a limit; without a text there is no limit.
fn wanted(limit: Option<&str>) -> Result<Limit, String> {
    limit.map_or(Ok(Limit::Max), str::parse)
}

fn limited(path: &str, limit: Option<i64>) -> GroupLimited {
    GroupLimited { group: path.to_owned(), limit_bytes: limit.map(bytes) }
}

/// Makes the pager threads apply the change.
fn balance(shared: &EngineContext) {
    for mailbox in &shared.mailboxes {
        mailbox.post(Message::Balance);
    }
}

/// Gives every process of the run an account, and charges those that the governor has not measured
/// yet. Returns them.
fn meet_everybody(shared: &EngineContext) -> Vec<u32> {
    let engine = std::process::id();
    let tree = uswap_remote::agent::processes::programs(shared);
    let groups = &shared.groups;
    for pid in tree.iter().filter(|_| groups.in_use()) {
        let account = groups.meet(*pid, || procfs::kin(*pid, engine));
        let _round = groups.begin_round();
        if !account.is_measured()
            && let Ok(memory) = Statm::open(*pid).and_then(|statm| statm.read())
        {
            groups.measure(&account, account.used(), memory.anonymous);
        }
    }
    tree
}

/// Pages of these processes that cannot be evicted: locked ones, and all pages of programs without
/// an agent.
fn pinned(shared: &EngineContext, processes: &[u32]) -> i64 {
    let unmanaged = RunShared::of(shared).unmanaged.lock().expect("unmanaged").clone();
    let pages = processes.iter().map(|pid| match unmanaged.iter().find(|known| known.running && known.pid == *pid) {
        Some(known) => known.pages,
        None => procfs::locked_pages(*pid).unwrap_or(0),
    });
    pages.sum()
}

fn bytes(pages: i64) -> u64 {
    (pages.max(0) as u64) << 12
}

/// The figures of all groups, the root first.
pub fn figures(shared: &EngineContext) -> Vec<GroupFigures> {
    let managed = shared.managed.all();
    let groups = shared.groups.figures();
    let stored = |figures: &Figures| -> u64 {
        figures.processes.iter().filter_map(|pid| managed.get(pid)).map(|process| process.stored).sum()
    };
    let tell = |figures: &Figures| {
        let is_root = figures.path == ROOT_NAME;
        let below = |other: &&Figures| is_root || is_below(&other.path, &figures.path);
        let swapped: u64 = groups.iter().filter(below).map(stored).sum();
        let (used, peak, limit, processes) = if is_root {
            // The root is the run itself, with pool and engine. Processes without an account are in
            // no other group.
            let others = |pid: &&u32| !groups[1..].iter().any(|group| group.processes.contains(pid));
            let own = managed.keys().chain(figures.processes.iter().filter(|pid| !managed.contains_key(pid)));
            let processes: Vec<u32> = own.filter(others).copied().collect();
            (shared.budget.usage(), shared.budget.peak(), Some(shared.budget.limit()), processes)
        } else {
            (figures.used, figures.peak, figures.limit, figures.processes.clone())
        };
        GroupFigures {
            name: figures.path.clone(),
            ram_bytes: bytes(used),
            ram_peak_bytes: bytes(peak),
            ram_limit_bytes: limit.map(bytes),
            swapped_bytes: swapped << 12,
            processes,
            files: None,
        }
    };
    groups.iter().map(tell).collect()
}

/// Whether `path` is `above` or lies below it.
pub fn is_below(path: &str, above: &str) -> bool {
    path.strip_prefix(above).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use uswap_core::util::size::Size;

    #[test]
    fn limits_are_read_and_what_is_none_is_named() {
        assert_eq!(wanted(None), Ok(Limit::Max));
        assert_eq!(wanted(Some("max")), Ok(Limit::Max));
        assert_eq!(wanted(Some("50%")), Ok(Limit::Size("50%".parse::<Size>().expect("a size"))));
        assert!(wanted(Some("much")).is_err_and(|error| error.contains("much")));
    }

    #[test]
    fn below_means_below_in_the_tree() {
        assert!(is_below("a/b", "a") && is_below("a", "a") && is_below("a/b/c", "a/b"));
        assert!(!is_below("ab", "a") && !is_below("a", "a/b"));
    }
}
