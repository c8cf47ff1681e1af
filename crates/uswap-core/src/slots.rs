//! Swap slots of one device, in clusters of 512.
//!
//! A cluster hangs in one of three lists: **clean** (all slots free, no room taken on the device: never written, or
//! trimmed), **dirty** (all free, but written before: a discard would give the room back) and **partial**. One cluster
//! is the *current* one, from which slots are handed out in order. When it is exhausted the next comes from dirty,
//! then clean, then partial: space already taken on a sparse file is used again before new space.
//!
//! Slots handed out together are contiguous when a current, dirty or clean cluster can give them; only a device
//! without empty clusters yields scattered runs.
//!
//! When a device turns out to have less room than it announced (a sparse file on a full disk), the slots that could
//! not be written are set aside by [`Slots::no_room`] and no clean cluster is opened, so that only slots which own
//! their room are handed out. The state ends when half of the use has gone, or by
//! [`Slots::thaw`].

/// Slots in a cluster.
pub const CLUSTER_SLOTS: u32 = 512;

const NONE: u32 = u32::MAX;
/// Partial clusters looked at for a run of the wanted length before scattered slots are taken.
const PARTIAL_LOOKS: usize = 8;

/// `count` contiguous slots from `first`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run {
    /// Lowest slot.
    pub first: u32,
    /// Number of slots.
    pub count: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
enum List {
    Clean,
    Dirty,
    Partial,
    /// Full, current, or out for a trim.
    Unlisted,
}

#[derive(Clone, Copy)]
struct Cluster {
    prev: u32,
    next: u32,
    free: u16,
    list: List,
    /// Handed out at least once since it was new or trimmed.
    written: bool,
}

/// Which slots of a device are in use.
pub struct Slots {
    /// One bit a slot, set = taken.
    taken: Vec<u64>,
    clusters: Vec<Cluster>,
    heads: [u32; 3],
    current: u32,
    /// Where in the current cluster the search begins (next fit).
    hint: u32,
    total: u32,
    used: u32,
    dirty_clusters: u32,
    /// Slots that the device had no room for.
    set_aside: Vec<Run>,
    /// `Some(use)` while no clean cluster may be opened; ends when the use falls to this.
    frozen_until: Option<u32>,
}

impl Slots {
    /// All `total` slots free and clean. A last cluster that is not whole is left out.
    pub fn new(total: u32) -> Self {
        let clusters = total / CLUSTER_SLOTS;
        let total = clusters * CLUSTER_SLOTS;
        let mut slots = Self {
            taken: vec![0; (total / 64) as usize],
            clusters: vec![
                Cluster {
                    prev: NONE,
                    next: NONE,
                    free: CLUSTER_SLOTS as u16,
                    list: List::Unlisted,
                    written: false
                };
                clusters as usize
            ],
            heads: [NONE; 3],
            current: NONE,
            hint: 0,
            total,
            used: 0,
            dirty_clusters: 0,
            set_aside: Vec::new(),
            frozen_until: None,
        };
        (0..clusters).rev().for_each(|c| slots.link(c, List::Clean));
        slots
    }

    /// Slots there are.
    pub fn total(&self) -> u32 {
        self.total
    }

    /// Slots handed out and not freed.
    pub fn used(&self) -> u32 {
        self.used
    }

    /// Whether the device ran out of room before it ran out of slots.
    pub fn is_frozen(&self) -> bool {
        self.frozen_until.is_some()
    }

    /// Whether a slot can be had now.
    pub fn has_room(&self) -> bool {
        let current = self.current != NONE && self.clusters[self.current as usize].free > 0;
        current || self.heads[List::Partial as usize] != NONE || self.has_empty_cluster()
    }

    /// Hands out up to `count` slots as runs appended to `runs`; returns how many. Fewer than asked only when no
    /// more can be had.
    pub fn allocate(&mut self, count: u32, runs: &mut Vec<Run>) -> u32 {
        let mut got = 0;
        while got < count {
            let Some(run) = self.next_run((count - got).min(CLUSTER_SLOTS)) else { break };
            self.mark(run);
            match runs.last_mut() {
                Some(last) if got > 0 && last.first + last.count == run.first => last.count += run.count,
                _ => runs.push(run),
            }
            got += run.count;
        }
        self.used += got;
        got
    }

    /// Takes back a run that [`allocate`](Self::allocate) handed out, or a part of one.
    ///
    /// # Panics
    /// When a slot of it is free already.
    pub fn free(&mut self, run: Run) {
        self.used -= run.count;
        self.unmark(run);
        if self.frozen_until.is_some_and(|level| self.used <= level) {
            self.thaw();
        }
    }

    /// The device had no room for `run` (as handed out): sets it aside with the rest of the current cluster, and
    /// opens no new room until half of the use has gone.
    pub fn no_room(&mut self, run: Run) {
        self.used -= run.count;
        self.set_aside.push(run);
        if self.current != NONE {
            while let Some(rest) = self.find_in(self.current, 0, CLUSTER_SLOTS) {
                self.mark(rest);
                self.set_aside.push(rest);
            }
            self.leave_current();
        }
        self.frozen_until = Some(self.used / 2);
    }

    /// Takes one empty cluster whose room on the device can be given back, as long as more than `keep` are there.
    /// The caller discards it and hands it to [`trimmed`](Self::trimmed).
    pub fn take_trimmable(&mut self, keep: u32) -> Option<Run> {
        if self.is_frozen() || self.dirty_clusters <= keep {
            return None;
        }
        let cluster = self.heads[List::Dirty as usize];
        self.unlink(cluster);
        Some(Run { first: cluster * CLUSTER_SLOTS, count: CLUSTER_SLOTS })
    }

    /// Takes back a cluster of [`take_trimmable`](Self::take_trimmable).
    pub fn trimmed(&mut self, run: Run) {
        let cluster = run.first / CLUSTER_SLOTS;
        self.clusters[cluster as usize].written = false;
        self.link(cluster, List::Clean);
    }

    /// Lets clean clusters be opened again and returns what was set aside: there may be room now.
    pub fn thaw(&mut self) {
        self.frozen_until = None;
        for run in std::mem::take(&mut self.set_aside) {
            self.unmark(run);
        }
    }

    /// The next run of at most `want` free slots, not yet marked.
    fn next_run(&mut self, want: u32) -> Option<Run> {
        if self.current != NONE {
            if let Some(run) = self.find_in(self.current, self.hint, want)
                && (run.count == want || !self.has_empty_cluster())
            {
                return Some(run);
            }
            self.leave_current();
        }
        self.open_cluster(want)?;
        self.find_in(self.current, 0, want)
    }

    fn has_empty_cluster(&self) -> bool {
        self.heads[List::Dirty as usize] != NONE || (self.heads[List::Clean as usize] != NONE && !self.is_frozen())
    }

    fn open_cluster(&mut self, want: u32) -> Option<()> {
        let [clean, dirty, partial] = self.heads;
        self.current = match (dirty, clean) {
            (NONE, NONE) => self.fitting_partial(partial, want),
            (NONE, _) if self.is_frozen() => self.fitting_partial(partial, want),
            (NONE, clean) => clean,
            (dirty, _) => dirty,
        };
        if self.current == NONE {
            return None;
        }
        self.unlink(self.current);
        self.clusters[self.current as usize].written = true;
        self.hint = 0;
        Some(())
    }

    /// A partial cluster that holds a run of `want`, or the first one.
    fn fitting_partial(&self, head: u32, want: u32) -> u32 {
        let next = |&c: &u32| Some(self.clusters[c as usize].next).filter(|&n| n != NONE);
        let mut looked = std::iter::successors(Some(head).filter(|&c| c != NONE), next).take(PARTIAL_LOOKS);
        looked.find(|&c| self.find_in(c, 0, want).is_some_and(|run| run.count == want)).unwrap_or(head)
    }

    /// Puts the current cluster where its free slots say it belongs.
    fn leave_current(&mut self) {
        let cluster = std::mem::replace(&mut self.current, NONE);
        self.relist(cluster);
    }

    fn relist(&mut self, index: u32) {
        let cluster = self.clusters[index as usize];
        let list = match cluster.free as u32 {
            0 => List::Unlisted,
            CLUSTER_SLOTS if cluster.written => List::Dirty,
            CLUSTER_SLOTS => List::Clean,
            _ => List::Partial,
        };
        if list != cluster.list && index != self.current {
            self.unlink(index);
            self.link(index, list);
        }
    }

    /// The first run of `want` free slots at or above `from` in `cluster`, else the longest one there.
    fn find_in(&self, cluster: u32, from: u32, want: u32) -> Option<Run> {
        let base = cluster * CLUSTER_SLOTS;
        let mut best: Option<Run> = None;
        let mut at = from;
        while at < CLUSTER_SLOTS {
            let free_at = self.next_with(base, at, false);
            let end = self.next_with(base, free_at, true).min(free_at + want);
            if end > free_at && best.is_none_or(|b| b.count < end - free_at) {
                best = Some(Run { first: base + free_at, count: end - free_at });
                if end - free_at == want {
                    break;
                }
            }
            at = end.max(free_at + 1);
        }
        best
    }

    /// The first slot at or above `from` of the cluster at `base` that is taken (or free), or the cluster's end.
    fn next_with(&self, base: u32, from: u32, taken: bool) -> u32 {
        let mut at = from;
        while at < CLUSTER_SLOTS {
            let word = self.taken[((base + at) / 64) as usize] ^ if taken { 0 } else { u64::MAX };
            let rest = word >> (at % 64);
            if rest != 0 {
                return at + rest.trailing_zeros();
            }
            at = (at / 64 + 1) * 64;
        }
        CLUSTER_SLOTS
    }

    fn mark(&mut self, run: Run) {
        let cluster = run.first / CLUSTER_SLOTS;
        (run.first..run.first + run.count).for_each(|s| self.taken[(s / 64) as usize] |= 1 << (s % 64));
        self.clusters[cluster as usize].free -= run.count as u16;
        self.hint = run.first % CLUSTER_SLOTS + run.count;
    }

    /// Clears the bits of a run, which may cross clusters.
    fn unmark(&mut self, run: Run) {
        for slot in run.first..run.first + run.count {
            let bit = 1 << (slot % 64);
            let word = &mut self.taken[(slot / 64) as usize];
            assert!(*word & bit != 0, "slot {slot} is free already");
            *word &= !bit;
            let cluster = slot / CLUSTER_SLOTS;
            self.clusters[cluster as usize].free += 1;
            self.relist(cluster);
        }
    }

    fn link(&mut self, index: u32, list: List) {
        self.clusters[index as usize].list = list;
        if list == List::Unlisted {
            return;
        }
        let head = std::mem::replace(&mut self.heads[list as usize], index);
        let cluster = &mut self.clusters[index as usize];
        (cluster.prev, cluster.next) = (NONE, head);
        if head != NONE {
            self.clusters[head as usize].prev = index;
        }
        self.dirty_clusters += (list == List::Dirty) as u32;
    }

    fn unlink(&mut self, index: u32) {
        let Cluster { prev, next, list, .. } = self.clusters[index as usize];
        if list == List::Unlisted {
            return;
        }
        match prev {
            NONE => self.heads[list as usize] = next,
            prev => self.clusters[prev as usize].next = next,
        }
        if next != NONE {
            self.clusters[next as usize].prev = prev;
        }
        self.dirty_clusters -= (list == List::Dirty) as u32;
        self.clusters[index as usize].list = List::Unlisted;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn take(slots: &mut Slots, count: u32) -> Vec<Run> {
        let mut runs = Vec::new();
        slots.allocate(count, &mut runs);
        runs
    }

    #[test]
    fn batches_are_contiguous_and_the_device_fills_to_the_last_slot() {
        let mut slots = Slots::new(2000);
        assert_eq!(slots.total(), 1536);
        for i in 0..12 {
            assert_eq!(take(&mut slots, 128), [Run { first: i * 128, count: 128 }]);
        }
        assert_eq!(slots.used(), 1536);
        assert!(take(&mut slots, 1).is_empty());
    }

    #[test]
    fn a_batch_leaves_a_remnant_rather_than_split_and_the_remnant_is_used_last() {
        let mut slots = Slots::new(1024);
        take(&mut slots, 500);
        assert_eq!(take(&mut slots, 100), [Run { first: 512, count: 100 }]);
        take(&mut slots, 412);
        assert_eq!(take(&mut slots, 100), [Run { first: 500, count: 12 }]);
    }

    #[test]
    fn freed_clusters_are_trimmed_and_come_back_clean() {
        let mut slots = Slots::new(1024);
        let run = take(&mut slots, 512)[0];
        take(&mut slots, 1);
        slots.free(run);
        assert_eq!(slots.take_trimmable(1), None);
        let trim = slots.take_trimmable(0).unwrap();
        assert_eq!(trim, run);
        assert_eq!(slots.take_trimmable(0), None);
        assert_eq!(
            take(&mut slots, 512).iter().map(|r| r.count).sum::<u32>(),
            511,
            "a cluster out for trim is not given"
        );
        slots.trimmed(trim);
        assert_eq!(take(&mut slots, 512), [run]);
    }

    #[test]
    fn no_room_hands_out_only_slots_that_own_room() {
        let mut slots = Slots::new(4096);
        let good = take(&mut slots, 512)[0];
        let bad = take(&mut slots, 64)[0];
        slots.no_room(bad);
        assert_eq!(slots.used(), 512);
        assert!(!slots.has_room() && take(&mut slots, 1).is_empty());
        slots.free(Run { first: good.first, count: 10 });
        assert!(slots.has_room());
        assert_eq!(take(&mut slots, 64), [Run { first: good.first, count: 10 }]);
        slots.free(Run { first: good.first, count: 256 });
        assert!(!slots.is_frozen());
        assert_eq!(take(&mut slots, 4096).iter().map(|r| r.count).sum::<u32>(), 4096 - 256);
    }

    #[test]
    #[should_panic(expected = "free already")]
    fn double_free_panics() {
        let mut slots = Slots::new(512);
        let run = take(&mut slots, 2)[0];
        slots.free(Run { first: run.first, count: 1 });
        slots.free(Run { first: run.first, count: 1 });
    }

    #[derive(Clone, Debug)]
    enum Op {
        Take(u32),
        Free(usize, u32),
        Trim,
        NoRoom(u32),
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            6 => prop_oneof![1u32..4, 1u32..700].prop_map(Op::Take),
            6 => (any::<usize>(), 1u32..300).prop_map(|(at, n)| Op::Free(at, n)),
            1 => Just(Op::Trim),
            1 => (1u32..128).prop_map(Op::NoRoom),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn behaves_as_a_set(ops in prop::collection::vec(op(), 1..150)) {
            let mut slots = Slots::new(8 * CLUSTER_SLOTS);
            let mut model = BTreeSet::new();
            for op in ops {
                match op {
                    Op::Take(n) => for run in take(&mut slots, n) {
                        for slot in run.first..run.first + run.count {
                            prop_assert!(slot < slots.total() && model.insert(slot));
                        }
                    },
                    Op::Free(at, n) if !model.is_empty() => {
                        let first = *model.iter().nth(at % model.len()).unwrap();
                        let count = (first..first + n).take_while(|s| model.remove(s)).count() as u32;
                        slots.free(Run { first, count });
                    }
                    Op::Free(..) => {}
                    Op::Trim => if let Some(run) = slots.take_trimmable(0) {
                        prop_assert!((run.first..run.first + run.count).all(|s| !model.contains(&s)));
                        slots.trimmed(run);
                    },
                    Op::NoRoom(n) => take(&mut slots, n).into_iter().for_each(|run| slots.no_room(run)),
                }
                prop_assert_eq!(slots.used() as usize, model.len());
                if !slots.is_frozen() {
                    prop_assert_eq!(slots.has_room(), slots.used() < slots.total());
                }
            }
            if !slots.is_frozen() {
                let rest = take(&mut slots, u32::MAX).iter().map(|r| r.count).sum::<u32>();
                prop_assert_eq!(rest as usize + model.len(), slots.total() as usize, "every free slot can be had");
            }
        }
    }
}
