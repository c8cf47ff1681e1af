//! Pressing: pages that relatives by fork share are given up by all of them together.
//!
//! fork(2) leaves the pages of a program shared. Such a page is copied before it can be moved, and
//! the original frees no memory until all relatives have given it up. So when there is nothing else
//! to take, a pager chooses a round of pages from the space that has most of them, and all spaces
//! that have these pages give them up. Relatives may belong to different pagers, since a child that
//! was forked before its parent was managed goes to any of them: a round is published
//! ([`SharedRounds`]), and each pager takes part in the rounds of the others before it chooses one
//! of its own.
//!
//! **If a pager comes too late.** Only the last [`KEPT`] rounds are known. Pages of a forgotten
//! round stay in memory, with the relatives of that pager, until it chooses them itself.

use uswap_abi::layout::TRAY_PAGES;
use uswap_core::reclaim::policy::ReclaimPolicy;
use uswap_core::util::growth::{Growth, during};
use uswap_core::{RankedMutex, ranks};

use crate::address_space::AddressSpace;
use crate::event_loop::Pager;
use crate::space::Space;

/// Rounds that are remembered.
const KEPT: usize = 16;
/// Pages of a round at most.
const MOST: usize = TRAY_PAGES as usize;

/// The pages of one round; 0: none.
type Round = [u64; MOST];

/// The last rounds of pages that relatives give up.
#[derive(Debug)]
pub struct SharedRounds(RankedMutex<Rounds>);

#[derive(Debug)]
struct Rounds {
    /// Number of rounds so far. Round `n` lies at `n % KEPT`.
    count: u64,
    last: [Round; KEPT],
}

impl Default for SharedRounds {
    fn default() -> Self {
        Self(RankedMutex::new(ranks::ROUNDS, Rounds { count: 0, last: [[0; MOST]; KEPT] }))
    }
}

impl SharedRounds {
    /// Publishes a round. Returns the number of rounds up to it.
    pub fn publish(&self, pages: &[u64]) -> u64 {
        let mut rounds = self.0.lock();
        let place = rounds.count as usize % KEPT;
        rounds.last[place] = [0; MOST];
        rounds.last[place][..pages.len()].copy_from_slice(pages);
        rounds.count += 1;
        rounds.count
    }

    /// The first round that is known of those after the first `seen`, with the number of rounds up
    /// to it.
    fn after(&self, seen: u64) -> Option<(u64, Round)> {
        let rounds = self.0.lock();
        let number = seen.max(rounds.count.saturating_sub(KEPT as u64));
        (number < rounds.count).then(|| (number + 1, rounds.last[number as usize % KEPT]))
    }
}

impl<M: AddressSpace> Pager<M> {
    /// Reclaims pages that relatives by fork share, `wanted` at most from each, from the spaces
    /// that satisfy `is_one`. No page lies staged meanwhile, since copies take memory.
    pub fn press(&mut self, is_one: impl Fn(&Space<M>) -> bool, wanted: usize) {
        let shares = |space: &Space<M>| space.has_cow_shared() && is_one(space);
        let sharing = self.spaces.values().filter(|space| shares(space));
        let most = sharing.max_by_key(|space| space.set_aside.shared_parked.len());
        let Some(most) = most.map(|space| space.id) else { return };
        while let Some((number, round)) = self.shared.relatives.rounds.after(self.balance.rounds_seen) {
            self.balance.rounds_seen = number;
            if self.give_up(&round, &shares) > 0 {
                return;
            }
        }
        let mut round = [0; MOST];
        self.with_space(most, |_, space| space.next_cow_shared(&mut round[..wanted.min(MOST)]));
        self.balance.rounds_seen = self.shared.relatives.rounds.publish(&round);
        self.give_up(&round, &shares);
    }

    /// Whether there is a round that this pager has not taken part in yet. The pages that others
    /// give up free no memory as long as this pager keeps them.
    pub fn has_round_to_join(&self) -> bool {
        self.shared.relatives.rounds.after(self.balance.rounds_seen).is_some()
    }

    /// Evicts the pages of a round. Returns how many there are.
    fn give_up(&mut self, round: &Round, shares: &impl Fn(&Space<M>) -> bool) -> usize {
        let mut all = 0;
        self.for_each_id(|owner, id| {
            if !shares(&owner.spaces[&id]) {
                return;
            }
            owner.with_space(id, |owner, space| {
                owner.store_staged(space, MOST as u64, 0);
                let pages = || round.iter().copied().filter(|page| *page != 0);
                during(Growth::Lists, || pages().for_each(|page| space.set_aside.shared_parked.remove(page)));
                let taken = pages().filter(|page| space.take_cow_shared(*page)).count();
                owner.reclaim(space, taken as u64);
                all += taken;
            });
        });
        all
    }

    /// Takes at most `most` pages that relatives share from one space, in the order in which they
    /// were found. Returns how many were taken.
    pub fn reclaim_cow_shared(&mut self, space: &mut Space<M>, most: usize) -> usize {
        let mut taken = 0;
        while taken < most {
            let Some(address) = space.set_aside.shared_parked.pop_front() else { break };
            taken += usize::from(space.take_cow_shared(address));
        }
        taken
    }

    /// Whether a space that satisfies `is_one` has pages that relatives share: these can still go.
    pub fn has_cow_shared(&self, is_one: impl Fn(&Space<M>) -> bool) -> bool {
        self.spaces.values().any(|space| space.has_cow_shared() && is_one(space))
    }
}

impl<M: AddressSpace> Space<M> {
    /// Whether pages can be evicted that relatives by fork share.
    fn has_cow_shared(&self) -> bool {
        self.can_evict() && !self.set_aside.shared_parked.is_empty()
    }

    /// Fills `round` with the next pages that relatives by fork share, in the order in which they
    /// were found. They stay set aside.
    fn next_cow_shared(&mut self, round: &mut [u64]) {
        while let Some(address) = self.set_aside.shared_parked.first()
            && !self.is_on_no_list(address)
        {
            self.set_aside.shared_parked.pop_front();
        }
        let known = self.set_aside.shared_parked.iter().filter(|address| self.is_on_no_list(*address));
        round.iter_mut().zip(known).for_each(|(place, address)| *place = address);
    }

    /// Takes a page that relatives by fork share, to be evicted next. Returns `false` if it is not
    /// set aside any more.
    fn take_cow_shared(&mut self, address: u64) -> bool {
        let is_taken = self.is_on_no_list(address);
        if is_taken {
            let word = self.table.get(address);
            during(Growth::Lists, || self.set_aside.shared_pages.insert(address));
            self.policy.rejoin(&mut self.table, address, word);
        }
        is_taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_pager_takes_part_in_the_rounds_that_are_still_known() {
        let rounds = SharedRounds::default();
        assert_eq!(rounds.after(0), None);
        assert_eq!(rounds.publish(&[0x1000, 0x2000]), 1);
        let (seen, round) = rounds.after(0).expect("a round");
        assert_eq!((seen, &round[..3]), (1, &[0x1000, 0x2000, 0][..]));
        assert_eq!(rounds.after(seen), None);
        (0..KEPT as u64 + 4).for_each(|number| assert_eq!(rounds.publish(&[number << 12]), number + 2));
        let (mut seen, mut found) = (seen, Vec::new());
        while let Some((number, round)) = rounds.after(seen) {
            found.push(round[0] >> 12);
            seen = number;
        }
        assert!(found.iter().copied().eq(4..KEPT as u64 + 4), "{found:?}");
    }
}
