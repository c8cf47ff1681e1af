//! When what a family shares is believed.
//!
//! Of a page that N relatives map each of them tells a part of 1/N (Pss), so the parts make a whole
//! only where all of them were read. While one more is being born its part is told by nobody: a
//! family that forks seems to need half of what it does. A fork is known when its event was read,
//! and it takes the kernel tens of milliseconds before. So what makes memory seem *less* short is
//! believed only when no birth was told for a while ([`SETTLED`]) after it was read, and not at all
//! if one was; what makes it seem shorter is believed at once. A family that forks all the time is
//! believed all the same after [`LONGEST`].

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::measure::cow_accounting::CopiesAsked;
use uswap_pager::context::ManagedProcess;

/// How long a fork takes to be told, mostly: at least, and for each page that is shared.
const SETTLED: (Duration, Duration) = (Duration::from_millis(2), Duration::from_nanos(700));

/// How long a family is not believed.
const LONGEST: Duration = Duration::from_secs(1);

/// What a family told, one for each process, in pages.
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

/// What is not believed yet.
#[derive(Default)]
pub struct ToldShares {
    waiting: Vec<CopiesTold>,
    /// Families that were not believed lately, and since when.
    doubted: BTreeMap<usize, Instant>,
}

impl ToldShares {
    /// Those that were asked for together have answered: families, one after the other.
    pub fn hear(&mut self, answers: &[(CopiesAsked, i64)]) {
        let at = Instant::now();
        let families = answers.chunk_by(|(one, _), (other, _)| one.family == other.family);
        self.waiting.extend(families.map(|shares| CopiesTold { at, shares: shares.to_vec() }));
    }

    /// What is believed now. `counted`: what a process is taken to share.
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
