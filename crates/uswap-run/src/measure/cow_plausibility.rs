//! Decides when to believe the answers about the pages that a fork family shares.
//!
//! Of a page that N relatives map each relative shows a part of 1/N (Pss), so the parts make a
//! whole only if all relatives were read. While another child is being forked its part is missing:
//! a family that forks seems to need half of its real memory. A fork is known when its event was
//! read, which can be tens of milliseconds after the kernel began it. So an answer that makes
//! memory seem *less* short is believed only if no fork was reported for a while ([`SETTLED`])
//! after the reading, and is dropped if one was. An answer that makes memory seem shorter is
//! believed at once. A family that forks all the time is believed all the same after [`LONGEST`].

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::measure::cow_accounting::CopiesAsked;
use uswap_pager::context::ManagedProcess;

/// How long it mostly takes until a fork is reported: at least, and for each shared page.
const SETTLED: (Duration, Duration) = (Duration::from_millis(2), Duration::from_nanos(700));

/// The longest time for which answers of a family are not believed.
const LONGEST: Duration = Duration::from_secs(1);

/// An answer for a family: shared pages, one entry for each process.
struct CopiesTold {
    at: Instant,
    shares: Vec<(CopiesAsked, i64)>,
}

impl CopiesTold {
    fn is_settled(&self) -> bool {
        let pages = self.shares.iter().map(|(_, pages)| *pages).max().unwrap_or(0);
        self.at.elapsed() >= SETTLED.0 + SETTLED.1 * pages.clamp(0, i64::from(u32::MAX)) as u32
    }
}

/// Answers that are not believed yet.
#[derive(Default)]
pub struct ToldShares {
    waiting: Vec<CopiesTold>,
    /// Families with dropped answers, and since when.
    doubted: BTreeMap<usize, Instant>,
}

impl ToldShares {
    /// Adds the answers for processes that were asked for together. The processes of a family
    /// follow each other.
    pub fn hear(&mut self, answers: &[(CopiesAsked, i64)]) {
        let at = Instant::now();
        let families = answers.chunk_by(|(one, _), (other, _)| one.family == other.family);
        self.waiting.extend(families.map(|shares| CopiesTold { at, shares: shares.to_vec() }));
    }

    /// Takes the answers that are believed now. `counted`: the pages that a process is assumed to
    /// share so far.
    pub fn believed(
        &mut self,
        managed: &BTreeMap<u32, ManagedProcess>,
        counted: impl Fn(u32) -> i64,
    ) -> Vec<(CopiesAsked, i64)> {
        let is_old = |(asked, _): &(CopiesAsked, i64)| {
            managed.get(&asked.pid).is_some_and(|process| process.kin.births() != asked.births)
        };
        let doubted = &mut self.doubted;
        doubted.retain(|_, since| since.elapsed() < 2 * LONGEST);
        self.waiting.retain(|told| {
            let old = told.shares.iter().find(|share| is_old(share));
            old.is_none_or(|(asked, _)| doubted.entry(asked.family).or_insert(told.at).elapsed() > LONGEST)
        });
        let is_due = |told: &mut CopiesTold| {
            let (new, known): (i64, i64) = told
                .shares
                .iter()
                .fold((0, 0), |(new, known), (asked, pages)| (new + pages, known + counted(asked.pid)));
            new <= known || told.is_settled()
        };
        let believed: Vec<_> = self.waiting.extract_if(.., is_due).flat_map(|told| told.shares).collect();
        self.doubted.retain(|family, _| believed.iter().all(|(asked, _)| asked.family != *family));
        believed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uswap_pager::space::fork_family::ForkFamily;

    fn asked(pid: u32, kin: &ForkFamily) -> CopiesAsked {
        let seen = kin.seen();
        CopiesAsked { pid, thread: pid, family: seen.image(), births: seen.births(), copied: 0 }
    }

    #[test]
    fn what_a_family_shares_is_believed_at_once_if_it_is_less_and_never_if_one_was_born() {
        let parent = ForkFamily::default();
        let child = parent.child();
        let managed: BTreeMap<u32, ManagedProcess> = [(1, &parent), (2, &child)]
            .map(|(pid, kin)| (pid, ManagedProcess { kin: kin.seen(), ..Default::default() }))
            .into();
        let mut told = ToldShares::default();
        let answers = || vec![(asked(1, &parent), 50), (asked(2, &child), 50)];
        told.hear(&answers());
        assert_eq!(told.believed(&managed, |_| 60).len(), 2, "they share less than was known");
        told.hear(&answers());
        assert_eq!(told.believed(&managed, |_| 40).len(), 0, "more is not believed at once");
        let grandchild = child.child();
        std::thread::sleep(2 * SETTLED.0);
        assert_eq!(told.believed(&managed, |_| 40).len(), 0, "its part was told by nobody");
        told.hear(&answers());
        std::thread::sleep(2 * SETTLED.0);
        assert_eq!(told.believed(&managed, |_| 40).len(), 2, "nobody was born since");
        drop(grandchild);
    }
}
