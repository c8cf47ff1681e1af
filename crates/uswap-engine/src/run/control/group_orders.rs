//! What `uswap group` orders: groups are made, limited, moved and removed while the tree runs.

use serde_json::{Value, json};

use crate::pager::accounting::group::Limit;
use crate::pager::accounting::groups::Figures;
use crate::remote::{Message, Shared};
use uswap_sys::procfs::{self, Statm};

/// An order about groups; paths as the user wrote them.
#[derive(Clone, Debug, PartialEq)]
pub enum GroupOrder {
    /// `{"request":"group-create","group":"a/b","limit":"64M"}`; without a limit there is none.
    Create(String, Limit),
    /// `{"request":"group-limit","group":"a/b","limit":"50%"}`
    Limit(String, Limit),
    /// `{"request":"group-move","what":"1234","group":"a/b"}`: a process or a group.
    Move(String, String),
    /// `{"request":"group-remove","group":"a/b"}`
    Remove(String),
}

impl GroupOrder {
    /// Reads the order `verb` (`create`, `limit`, ...).
    ///
    /// # Errors
    /// What is wrong with it, for the caller.
    pub fn parse(verb: &str, value: &Value) -> Result<Self, String> {
        let text = |name: &str| {
            let found = value.get(name).and_then(Value::as_str).map(str::to_owned);
            found.ok_or_else(|| format!("not a request: {name:?} is missing"))
        };
        match verb {
            "create" if value.get("limit").is_none_or(Value::is_null) => Ok(Self::Create(text("group")?, Limit::Max)),
            "create" => Ok(Self::Create(text("group")?, text("limit")?.parse()?)),
            "limit" => Ok(Self::Limit(text("group")?, text("limit")?.parse()?)),
            "move" => Ok(Self::Move(text("what")?, text("group")?)),
            "remove" => Ok(Self::Remove(text("group")?)),
            other => Err(format!("unknown request \"group-{other}\"")),
        }
    }
}

/// Carries an order out. Answers with what is so now.
///
/// # Errors
/// For the user; nothing is changed then.
pub fn obey(shared: &Shared, order: &GroupOrder) -> Result<Value, String> {
    let (groups, budget) = (&shared.groups, shared.budget.limit());
    let answer = match order {
        GroupOrder::Create(path, limit) => {
            let limit = groups.create(path, *limit, budget)?;
            meet_everybody(shared);
            json!({ "group": path, "limit_bytes": limit.map(bytes) })
        }
        GroupOrder::Limit(path, limit) => {
            let limit = groups.limit(path, *limit, budget, |processes| pinned(shared, processes))?;
            json!({ "group": path, "limit_bytes": limit.map(bytes) })
        }
        GroupOrder::Move(what, to) => match what.parse() {
            Ok(pid) => {
                // Children that nobody has met yet belong where their parent was.
                if !meet_everybody(shared).contains(&pid) {
                    return Err(format!("{pid} is no process of this run"));
                }
                groups.move_process(pid, to)?;
                json!({ "process": pid, "group": to })
            }
            Err(_) => json!({ "group": groups.move_group(what, to)? }),
        },
        GroupOrder::Remove(path) => json!({ "group": path, "processes": groups.remove(path)? }),
    };
    for mailbox in &shared.mailboxes {
        mailbox.post(Message::Balance);
    }
    Ok(answer)
}

/// Gives every process of the run an account, and charges those that the governor has not measured yet. Returns them.
fn meet_everybody(shared: &Shared) -> Vec<u32> {
    let engine = std::process::id();
    let tree = crate::remote::agent::processes::programs(shared);
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

/// Pages of these processes that cannot be evicted: locked, or of programs that no agent speaks for.
fn pinned(shared: &Shared, processes: &[u32]) -> i64 {
    let unmanaged = shared.of_memory.run.unmanaged.lock().expect("unmanaged").clone();
    let pages = processes.iter().map(|pid| match unmanaged.iter().find(|known| known.running && known.pid == *pid) {
        Some(known) => known.pages,
        None => procfs::locked_pages(*pid).unwrap_or(0),
    });
    pages.sum()
}

fn bytes(pages: i64) -> u64 {
    (pages.max(0) as u64) << 12
}

/// The groups with what they hold, the root first, for the figures.
pub fn figures(shared: &Shared) -> Value {
    let managed = shared.managed.all();
    let groups = shared.groups.figures();
    let stored = |figures: &Figures| -> u64 {
        figures.processes.iter().filter_map(|pid| managed.get(pid)).map(|process| process.stored).sum()
    };
    let tell = |figures: &Figures| {
        let is_root = figures.path == crate::pager::accounting::group::ROOT_NAME;
        let below = |other: &&Figures| is_root || is_below(&other.path, &figures.path);
        let swapped: u64 = groups.iter().filter(below).map(stored).sum();
        let (used, peak, limit, processes) = if is_root {
            // The run itself, with pool and engine; processes that were never met are in no other group.
            let others = |pid: &&u32| !groups[1..].iter().any(|group| group.processes.contains(pid));
            let own = managed.keys().chain(figures.processes.iter().filter(|pid| !managed.contains_key(pid)));
            let processes: Vec<u32> = own.filter(others).copied().collect();
            (shared.budget.usage(), shared.budget.peak(), Some(shared.budget.limit()), processes)
        } else {
            (figures.used, figures.peak, figures.limit, figures.processes.clone())
        };
        json!({ "name": figures.path, "ram_bytes": bytes(used), "ram_peak_bytes": bytes(peak),
            "ram_limit_bytes": limit.map(bytes), "swapped_bytes": swapped << 12, "processes": processes })
    };
    groups.iter().map(tell).collect()
}

/// Whether the path is the other one or lies below it.
fn is_below(path: &str, above: &str) -> bool {
    path.strip_prefix(above).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use uswap_core::util::size::Size;

    #[test]
    fn orders_are_read_and_what_is_missing_is_named() {
        let read = |verb: &str, text: &str| GroupOrder::parse(verb, &serde_json::from_str(text).expect("JSON"));
        let size = |text: &str| Limit::Size(text.parse::<Size>().expect("a size"));
        assert_eq!(read("create", r#"{"group":"a"}"#), Ok(GroupOrder::Create("a".into(), Limit::Max)));
        let created = read("create", r#"{"group":"a","limit":"50%"}"#);
        assert_eq!(created, Ok(GroupOrder::Create("a".into(), size("50%"))));
        let limited = read("limit", r#"{"group":"a","limit":"max"}"#);
        assert_eq!(limited, Ok(GroupOrder::Limit("a".into(), Limit::Max)));
        let moved = read("move", r#"{"what":"12","group":"a/b"}"#);
        assert_eq!(moved, Ok(GroupOrder::Move("12".into(), "a/b".into())));
        for (verb, bad) in [("create", "{}"), ("limit", r#"{"group":"a"}"#), ("move", r#"{"group":"a"}"#), ("x", "{}")]
        {
            assert!(read(verb, bad).is_err(), "{verb} {bad}");
        }
        assert!(read("limit", r#"{"group":"a","limit":"much"}"#).is_err_and(|error| error.contains("much")));
    }

    #[test]
    fn below_means_below_in_the_tree() {
        assert!(is_below("a/b", "a") && is_below("a", "a") && is_below("a/b/c", "a/b"));
        assert!(!is_below("ab", "a") && !is_below("a", "a/b"));
    }
}
