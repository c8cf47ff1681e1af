//! The scan for unmanaged programs: programs of the tree that use memory and have no agent.
//!
//! Their memory counts against the budget like that of all others, but cannot be evicted, so the
//! user is told their names. The agent of a program has a second to send its greeting, and programs
//! below 8 MiB are not named.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::{Duration, Instant};

use crate::shared::RunShared;
use uswap_pager::context::ManagedProcess;
use uswap_remote::EngineContext;
use uswap_remote::inject::reason::{UnmanagedReason, why};
use uswap_sys::procfs;

/// Anonymous memory (pages: 8 MiB) from which on a program without an agent is noted.
const WORTH_A_WORD: i64 = 2048;
/// How long an agent may take to send its greeting.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum of programs that are remembered; ended ones are dropped first.
const MAX_NOTED: usize = 256;

/// A program that ran, or runs, unmanaged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unmanaged {
    /// Its process.
    pub pid: u32,
    /// Command name.
    pub name: String,
    /// Why it has no agent.
    pub why: UnmanagedReason,
    /// Anonymous pages when it was looked at last.
    pub pages: i64,
    /// The most anonymous pages at any look.
    pub peak_pages: i64,
    /// It still runs.
    pub running: bool,
}

/// The programs that were seen without an agent.
#[derive(Debug, Default)]
pub struct UnmanagedScan {
    since: HashMap<u32, Instant>,
}

impl UnmanagedScan {
    /// Checks all processes of the tree. Their anonymous pages are given.
    pub fn look(
        &mut self,
        shared: &EngineContext,
        managed: &BTreeMap<u32, ManagedProcess>,
        tree: impl Iterator<Item = (u32, i64)>,
    ) {
        let large = tree.filter(|(pid, pages)| *pages >= WORTH_A_WORD && !managed.contains_key(pid));
        let large: HashMap<u32, i64> = large.collect();
        self.since.retain(|pid, _| large.contains_key(pid));
        for pid in large.keys() {
            self.since.entry(*pid).or_insert_with(Instant::now);
        }
        let late: HashSet<u32> =
            self.since.iter().filter(|(_, at)| at.elapsed() > HANDSHAKE_TIMEOUT).map(|(p, _)| *p).collect();
        let mut noted = RunShared::of(shared).unmanaged.lock().expect("unmanaged");
        for known in noted.iter_mut().filter(|known| known.running) {
            known.running = late.contains(&known.pid);
        }
        for pid in late {
            let refused = shared.of_memory.refused.lock().expect("refused").get(&pid).copied();
            note(&mut noted, pid, large[&pid], refused);
        }
    }
}

fn note(noted: &mut Vec<Unmanaged>, pid: u32, pages: i64, refused: Option<UnmanagedReason>) {
    if let Some(known) = noted.iter_mut().find(|known| known.running && known.pid == pid) {
        known.pages = pages;
        known.peak_pages = known.peak_pages.max(pages);
        known.why = refused.unwrap_or(known.why);
        return;
    }
    let Some(name) = procfs::name(pid) else { return };
    if noted.len() >= MAX_NOTED {
        let Some(ended) = noted.iter().position(|known| !known.running) else { return };
        noted.remove(ended);
    }
    noted.push(Unmanaged {
        pid,
        name,
        why: refused.unwrap_or_else(|| why(pid)),
        pages,
        peak_pages: pages,
        running: true,
    });
}

/// A list for the summary, such as `gofmt (static, 80 MiB)`, the largest program first. `None` if
/// there are none.
pub fn in_words(noted: &[Unmanaged]) -> Option<String> {
    const MAX_NAMED: usize = 4;
    let mut largest: BTreeMap<(&str, String), i64> = BTreeMap::new();
    for program in noted {
        let peak = largest.entry((&program.name, program.why.to_string())).or_default();
        *peak = program.peak_pages.max(*peak);
    }
    let mut programs: Vec<_> = largest.into_iter().collect();
    programs.sort_by_key(|(_, peak)| std::cmp::Reverse(*peak));
    let named = programs
        .iter()
        .take(MAX_NAMED)
        .map(|((name, why), peak)| format!("{name} ({why}, {})", uswap_core::util::size::human((*peak as u64) << 12)));
    let mut words: Vec<String> = named.collect();
    if programs.len() > MAX_NAMED {
        words.push(format!("{} more", programs.len() - MAX_NAMED));
    }
    (!words.is_empty()).then(|| words.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(name: &str, peak_pages: i64, running: bool) -> Unmanaged {
        Unmanaged { pid: 1, name: name.into(), why: UnmanagedReason::Static, pages: 0, peak_pages, running }
    }

    #[test]
    fn the_words_name_each_program_once_and_the_largest_first() {
        assert_eq!(in_words(&[]), None);
        let noted = [program("a", 2048, false), program("b", 25600, true), program("a", 5120, true)];
        assert_eq!(in_words(&noted).as_deref(), Some("b (static, 100 MiB), a (static, 20.0 MiB)"));
        let many: Vec<Unmanaged> = (0..6).map(|i| program(&format!("p{i}"), 2048 * (9 - i), true)).collect();
        assert!(in_words(&many).is_some_and(|words| words.ends_with("p3 (static, 48.0 MiB), 2 more")));
    }

    #[test]
    fn what_is_remembered_is_bounded_and_the_ended_go_first() {
        let me = std::process::id();
        let mut noted: Vec<Unmanaged> = (0..MAX_NOTED).map(|i| program(&i.to_string(), 1, i != 7)).collect();
        note(&mut noted, me, 5000, None);
        assert_eq!(noted.len(), MAX_NOTED);
        assert!(noted.iter().all(|known| known.name != "7"));
        note(&mut noted, me, 4000, None);
        let last = noted.last().expect("noted");
        assert_eq!((last.pid, last.pages, last.peak_pages), (me, 4000, 5000));
    }
}
