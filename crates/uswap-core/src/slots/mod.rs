//! The swap slots of one device, in clusters of 512 with a lock each, and caches of slots for the
//! threads that use them.
//!
//! A cluster with free slots is in one of three lists: **clean** (all slots free, no room taken on
//! the device: never written, or trimmed), **dirty** (all free, but written before: a discard would
//! give the room back) and **partial**. A thread takes slots through a *lane*. A lane owns one
//! *current* cluster, from which slots are handed out in order. When it is exhausted the next one
//! comes from dirty, then clean, then partial, so that space already taken in a sparse file is used
//! again before new space.
//!
//! ```text
//! worker ── lane: ready 64 ── current cluster     a small request takes from `ready`, a large one from the cluster;
//!            └── freed 64 ── any clusters         freed slots go back when 64 have come together (swap_slots.c, 2017)
//! ```
//! Slots handed out together are contiguous when a current, dirty or clean cluster can give them,
//! and batches of one lane follow one another; only a device without empty clusters yields
//! scattered runs.
//!
//! **Caches never make a device look full.** Slots in a cache count as free. When fewer slots are
//! left than would fill all caches twice, or a request falls short, caching ends: all lanes are
//! emptied, and all threads take slots from lane 0, down to the last slot. Caching begins again
//! when twice as many are free. A thread that wants to put slots into a lane first sets the lane's
//! bit in `holding`, then checks that caching is still on; the thread that ends caching first
//! clears `caching`, then reads the bits. Both have a fence between the two steps, so at least one
//! of them sees the other (`models.rs` tries every interleaving).
//!
//! When a device turns out to have less room than it announced (a sparse file on a full disk), the
//! slots that could not be written are set aside by [`Slots::no_room`] together with the slots that
//! were ready in lanes, and no clean cluster is opened, so that only slots which already have room
//! on the device are handed out. This state ends when half of the used slots were freed, or by
//! [`Slots::thaw`].
//!
//! Locks, in the order in which they are taken: lane, lists, cluster ([`crate::ranks`]).

pub(crate) mod blocks;
mod cluster;
mod lists;
pub(crate) mod living;

pub use cluster::CLUSTER_SLOTS;
use cluster::{Cluster, ClusterList, Home};
use lists::ClusterLists;

use crate::ranks;
use crate::slots::blocks::Blocks;
use crate::util::rank::{RankedGuard, RankedMutex};
use crate::util::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst, fence};

/// Slots that a cache takes and gives back at a time; requests for this many or more bypass the
/// caches.
pub const BATCH_SLOTS: u32 = 64;

const NONE: u32 = u32::MAX;
/// Partial clusters looked at for a run of the wanted length before scattered slots are taken.
const PARTIAL_LOOKS: usize = 8;
/// The most lanes of a device (each has a bit in `holding`).
const MAX_LANES: u32 = 64;
/// A device has one lane for this many batches of slots, so that all caches together never hold
/// more than an eighth of it.
const BATCHES_PER_LANE: u32 = 16;

/// `count` contiguous slots from `first`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SlotRun {
    /// Lowest slot.
    pub first: u32,
    /// Number of slots.
    pub count: u32,
}

/// How the slots of a device are guarded. [`Caches`](Self::Caches) is used; the others exist for
/// comparison.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Locking {
    /// One lock around everything.
    Whole,
    /// A lock for each cluster, and one lane for all workers.
    Clusters,
    /// The same, and a lane with caches for each worker.
    #[default]
    Caches,
}

/// A small number of the calling thread, for [`Slots::allocate`] and [`Slots::free`]: threads that
/// live at the same time mostly have different ones.
pub fn worker_number() -> usize {
    use std::sync::atomic::{AtomicUsize, Ordering};
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static MINE: usize = NEXT.fetch_add(1, Ordering::Relaxed));
    MINE.with(|mine| *mine)
}

/// The slots of a lane.
struct Hand {
    /// The cluster that it owns, or `NONE`.
    current: u32,
    /// Where in the current cluster the search begins (next fit).
    hint: u32,
    /// Slots taken and not handed out yet.
    ready: SlotRun,
    /// Slots freed and not given back yet.
    freed: Vec<u32>,
}

struct SlotLane {
    hand: RankedMutex<Hand>,
    /// Slots that are ready or freed; written under the lock.
    held: AtomicU32,
}

impl SlotLane {
    fn new() -> Self {
        let hand = Hand {
            current: NONE,
            hint: 0,
            ready: SlotRun { first: 0, count: 0 },
            freed: Vec::with_capacity(BATCH_SLOTS as usize + 1),
        };
        Self { hand: RankedMutex::new(ranks::LANE, hand), held: AtomicU32::new(0) }
    }

    fn count_held(&self, hand: &Hand) {
        self.held.store(hand.ready.count + hand.freed.len() as u32, Relaxed);
    }
}

/// Which slots of a device are in use. Shared by all threads.
pub struct Slots {
    total: u32,
    /// Slots in a cache's batch; 0 without caches.
    batch: u32,
    clusters: Blocks<RankedMutex<Cluster>>,
    lists: RankedMutex<ClusterLists>,
    lanes: Box<[SlotLane]>,
    whole: Option<RankedMutex<()>>,
    /// Slots marked as taken in clusters, including those in caches, without those set aside.
    taken: AtomicU32,
    /// Bit n: lane n may hold something. Set and cleared under the lock of the lane.
    holding: AtomicU64,
    /// Whether lanes may hold slots. Changed under the lock of the lists.
    caching: AtomicBool,
    /// Requests that fell short and now search everywhere: caching does not begin meanwhile.
    searching: AtomicU32,
    /// No slots are handed out (swapoff).
    stopped: AtomicBool,
    /// 0, or 1 + the number of used slots at which clean clusters may be opened again. Changed
    /// under the lock of the lists.
    frozen: AtomicU32,
    #[cfg(all(test, loom))]
    mistake: SlotMistake,
}

/// A mistake in the protocol that the models must find.
#[cfg(all(test, loom))]
#[derive(Clone, Copy, PartialEq, Eq)]
enum SlotMistake {
    None,
    /// The thread checks whether caching is on before it sets the lane's bit.
    LooksBeforeItSays,
}

impl Slots {
    /// Slots that are all free and clean; `total` of them, less a last cluster that is not whole.
    pub fn new(total: u32, locking: Locking) -> Self {
        let (batch, lanes) = match locking {
            Locking::Caches => (BATCH_SLOTS, (total / (BATCHES_PER_LANE * BATCH_SLOTS)).clamp(1, MAX_LANES)),
            _ => (0, 1),
        };
        let whole = (locking == Locking::Whole).then(|| RankedMutex::new(ranks::SLOTS, ()));
        Self { whole, ..Self::with_lanes(total, lanes, batch) }
    }

    fn with_lanes(total: u32, lanes: u32, batch: u32) -> Self {
        let clusters = total / CLUSTER_SLOTS;
        let total = clusters * CLUSTER_SLOTS;
        let slots = Self {
            total,
            batch,
            clusters: Blocks::new(clusters as usize, || RankedMutex::new(ranks::CLUSTER, Cluster::new())),
            lists: RankedMutex::new(ranks::LISTS, ClusterLists::new(clusters)),
            lanes: (0..lanes).map(|_| SlotLane::new()).collect(),
            whole: None,
            taken: AtomicU32::new(0),
            holding: AtomicU64::new(0),
            caching: AtomicBool::new(false),
            searching: AtomicU32::new(0),
            stopped: AtomicBool::new(false),
            frozen: AtomicU32::new(0),
            #[cfg(all(test, loom))]
            mistake: SlotMistake::None,
        };
        slots.begin_caching();
        slots
    }

    /// The number of slots.
    pub fn total(&self) -> u32 {
        self.total
    }

    /// Slots handed out and not freed. Exact while no other thread is at work.
    pub fn used(&self) -> u32 {
        let held: u32 = self.lanes.iter().map(|lane| lane.held.load(Relaxed)).sum();
        self.taken.load(Relaxed).saturating_sub(held)
    }

    /// Whether the device ran out of room before it ran out of slots.
    pub fn is_frozen(&self) -> bool {
        self.frozen.load(Relaxed) != 0
    }

    /// Whether a slot can be handed out now.
    pub fn has_room(&self) -> bool {
        let _whole = self.lock_whole();
        if !self.is_frozen() {
            return self.used() < self.total;
        }
        let hand = self.lanes[0].hand.lock();
        let current = hand.current != NONE && self.cluster(hand.current).has_free();
        let lists = self.lists.lock();
        current || lists.head(ClusterList::Partial).is_some() || lists.head(ClusterList::Dirty).is_some()
    }

    /// Hands out up to `count` slots as runs appended to `runs`; returns their number, which is
    /// smaller than `count` only if there are no more. `worker`: [`worker_number`] of the calling
    /// thread; any number will do.
    pub fn allocate(&self, worker: usize, count: u32, runs: &mut Vec<SlotRun>) -> u32 {
        let _whole = self.lock_whole();
        let mut out = Out { runs, got: 0 };
        if self.allocate_some(worker, count, &mut out) || out.got == count {
            return out.got;
        }
        self.searching.fetch_add(1, Relaxed);
        loop {
            self.end_caching();
            if self.allocate_some(worker, count, &mut out) || out.got == count {
                break;
            }
        }
        self.searching.fetch_sub(1, Relaxed);
        out.got
    }

    /// Takes back a run that [`allocate`](Self::allocate) handed out, or a part of one.
    ///
    /// # Panics
    /// When a slot of it is free already; of single slots this may be found out only later.
    pub fn free(&self, worker: usize, run: SlotRun) {
        let _whole = self.lock_whole();
        let cached = run.count == 1 && self.caching.load(Relaxed) && self.free_later(worker, run.first);
        if !cached {
            self.give_back(run);
            self.look_after_free();
        }
    }

    /// Takes a slot that holds something from before these slots were made. For the time before the
    /// first slot is handed out. `false`: it is taken already, or the device has no such slot.
    pub fn claim(&self, slot: u32) -> bool {
        let index = slot / CLUSTER_SLOTS;
        if slot >= self.total {
            return false;
        }
        let mut lists = self.lists.lock();
        lists.link_up_to(index);
        let mut cluster = self.cluster(index);
        if cluster.home == Home::Owned || cluster.is_taken(slot % CLUSTER_SLOTS) {
            return false;
        }
        cluster.mark(slot % CLUSTER_SLOTS, 1);
        cluster.written = true;
        drop(cluster);
        self.taken.fetch_add(1, Relaxed);
        self.settle(&mut lists, index, false);
        true
    }

    /// Whether a slot is taken, by an object or a cache.
    pub fn is_taken(&self, slot: u32) -> bool {
        self.cluster(slot / CLUSTER_SLOTS).is_taken(slot % CLUSTER_SLOTS)
    }

    /// The device had no room for `run` (as handed out): sets it aside with the slots that are
    /// ready in lanes and the rest of the current clusters, and opens no clean cluster until half
    /// of the used slots were freed.
    pub fn no_room(&self, run: SlotRun) {
        let _whole = self.lock_whole();
        self.taken.fetch_sub(run.count, Relaxed);
        let mut lists = self.lists.lock();
        lists.set_aside.push(run);
        let first = !self.is_frozen();
        self.stop_filling();
        self.frozen.store(self.used() / 2 + 1, Relaxed);
        drop(lists);
        if first {
            self.lanes.iter().enumerate().for_each(|(number, _)| self.set_lane_aside(number));
        }
    }

    /// Takes one empty cluster whose room on the device can be given back, if there are more than
    /// `keep` of them. The caller discards it and hands it to [`trimmed`](Self::trimmed).
    pub fn take_trimmable(&self, keep: u32) -> Option<SlotRun> {
        let _whole = self.lock_whole();
        let mut lists = self.lists.lock();
        if self.is_frozen() || lists.dirty <= keep {
            return None;
        }
        let index = lists.head(ClusterList::Dirty)?;
        self.own(&mut lists, index);
        Some(SlotRun { first: index * CLUSTER_SLOTS, count: CLUSTER_SLOTS })
    }

    /// Takes back a cluster of [`take_trimmable`](Self::take_trimmable).
    pub fn trimmed(&self, run: SlotRun) {
        let _whole = self.lock_whole();
        let index = run.first / CLUSTER_SLOTS;
        let mut lists = self.lists.lock();
        self.cluster(index).written = false;
        self.settle(&mut lists, index, true);
    }

    /// Lets clean clusters be opened again and gives back the slots that were set aside: the device
    /// may have room now.
    pub fn thaw(&self) {
        let mut lists = self.lists.lock();
        self.frozen.store(0, Relaxed);
        let runs = std::mem::take(&mut lists.set_aside);
        drop(lists);
        runs.into_iter().for_each(|run| self.unmark(run));
        self.begin_caching();
    }

    /// Stops handing out slots and empties the caches. When this returns no request is under way,
    /// and [`used`](Self::used) only falls.
    pub fn stop(&self) {
        let lists = self.lists.lock();
        self.stopped.store(true, Relaxed);
        self.stop_filling();
        drop(lists);
        self.lanes.iter().enumerate().for_each(|(number, _)| self.empty_lane(number));
    }

    /// Hands out slots again.
    pub fn resume(&self) {
        let lists = self.lists.lock();
        self.stopped.store(false, Relaxed);
        drop(lists);
        self.begin_caching();
    }

    fn cluster(&self, index: u32) -> RankedGuard<'_, Cluster> {
        self.clusters.get(index as usize).lock()
    }

    fn lock_whole(&self) -> Option<RankedGuard<'_, ()>> {
        self.whole.as_ref().map(RankedMutex::lock)
    }

    /// Slots in no object and no cache.
    fn left(&self) -> u32 {
        self.total.saturating_sub(self.taken.load(Relaxed))
    }

    /// Fewer slots left than this: no caching.
    fn scarce(&self) -> u32 {
        2 * self.batch * self.lanes.len() as u32
    }
}

/// The lanes: caching begins, is used, and ends.
impl Slots {
    /// One try; returns true if no more slots were left, not even in caches.
    fn allocate_some(&self, worker: usize, count: u32, out: &mut Out<'_>) -> bool {
        let number = if self.caching.load(Relaxed) { worker % self.lanes.len() } else { 0 };
        let lane = &self.lanes[number];
        let mut hand = lane.hand.lock();
        if self.stopped.load(Relaxed) {
            return true;
        }
        if self.caching.load(Relaxed) && self.left() >= self.scarce() && self.may_fill(number) {
            self.take_cached(lane, &mut hand, count, out);
            return false;
        }
        if number != 0 || self.caching.load(Relaxed) {
            return false;
        }
        fence(SeqCst);
        let nothing_hidden = self.holding.load(Relaxed) == 0;
        self.take(&mut hand, count, out);
        nothing_hidden
    }

    /// Whether slots may be put into the lane, whose lock the caller holds.
    fn may_fill(&self, number: usize) -> bool {
        let bit = 1 << number;
        #[cfg(all(test, loom))]
        if self.mistake == SlotMistake::LooksBeforeItSays {
            let may = self.caching.load(Relaxed);
            self.holding.fetch_or(bit, Relaxed);
            return may;
        }
        if self.holding.load(Relaxed) & bit == 0 {
            self.holding.fetch_or(bit, Relaxed);
            fence(SeqCst);
        }
        self.caching.load(Relaxed)
    }

    /// From now on no thread puts slots into a lane, except a thread that already holds the lock of
    /// one. The caller holds the lock of the lists.
    fn stop_filling(&self) {
        self.caching.store(false, Relaxed);
        fence(SeqCst);
    }

    fn end_caching(&self) {
        let lists = self.lists.lock();
        self.stop_filling();
        drop(lists);
        let holding = self.holding.load(Relaxed);
        (0..self.lanes.len()).filter(|number| holding & 1 << number != 0).for_each(|number| self.empty_lane(number));
    }

    /// Begins caching if there are slots enough.
    fn begin_caching(&self) {
        if self.batch > 0 && self.left() >= 2 * self.scarce() && !self.stopped.load(Relaxed) {
            let _lists = self.lists.lock();
            if !self.stopped.load(Relaxed) && !self.is_frozen() && self.searching.load(Relaxed) == 0 {
                self.caching.store(true, Relaxed);
            }
        }
    }

    fn take_cached(&self, lane: &SlotLane, hand: &mut Hand, count: u32, out: &mut Out<'_>) {
        if count - out.got >= self.batch {
            return self.take(hand, count, out);
        }
        while out.got < count {
            if hand.ready.count == 0 {
                let Some(run) = self.next_run(hand, self.batch) else { break };
                hand.ready = run;
            }
            let part = hand.ready.count.min(count - out.got);
            out.push(SlotRun { first: hand.ready.first, count: part });
            hand.ready = SlotRun { first: hand.ready.first + part, count: hand.ready.count - part };
        }
        lane.count_held(hand);
    }

    /// Notes a freed slot in the lane of the worker; false if caching is off.
    fn free_later(&self, worker: usize, slot: u32) -> bool {
        let number = worker % self.lanes.len();
        let lane = &self.lanes[number];
        let mut hand = lane.hand.lock();
        if !self.may_fill(number) {
            return false;
        }
        hand.freed.push(slot);
        if hand.freed.len() as u32 >= self.batch {
            lane.held.store(hand.ready.count, Relaxed);
            self.give_back_freed(&mut hand);
            self.look_after_free();
        }
        lane.count_held(&hand);
        true
    }

    fn empty_lane(&self, number: usize) {
        let lane = &self.lanes[number];
        let mut hand = lane.hand.lock();
        lane.held.store(0, Relaxed);
        let ready = std::mem::replace(&mut hand.ready, SlotRun { first: 0, count: 0 });
        self.give_back(ready);
        self.give_back_freed(&mut hand);
        self.leave_current(&mut hand);
        self.holding.fetch_and(!(1 << number), Relaxed);
    }

    /// Sets aside the slots that the lane has taken and that were never written, and gives back the
    /// slots that were freed.
    fn set_lane_aside(&self, number: usize) {
        let lane = &self.lanes[number];
        let mut hand = lane.hand.lock();
        lane.held.store(0, Relaxed);
        let mut aside = vec![std::mem::replace(&mut hand.ready, SlotRun { first: 0, count: 0 })];
        hand.hint = 0;
        while hand.current != NONE
            && let Some(rest) = self.take_in_current(&mut hand, CLUSTER_SLOTS, false)
        {
            hand.hint = 0;
            aside.push(rest);
        }
        self.taken.fetch_sub(aside.iter().map(|run| run.count).sum(), Relaxed);
        self.lists.lock().set_aside.extend(aside.into_iter().filter(|run| run.count > 0));
        self.give_back_freed(&mut hand);
        self.leave_current(&mut hand);
        self.holding.fetch_and(!(1 << number), Relaxed);
    }
}

/// The clusters: taking and giving back.
impl Slots {
    fn take(&self, hand: &mut Hand, count: u32, out: &mut Out<'_>) {
        while out.got < count
            && let Some(run) = self.next_run(hand, (count - out.got).min(CLUSTER_SLOTS))
        {
            out.push(run);
        }
    }

    /// The next run of at most `want` free slots.
    fn next_run(&self, hand: &mut Hand, want: u32) -> Option<SlotRun> {
        if hand.current != NONE {
            if let Some(run) = self.take_in_current(hand, want, true) {
                return Some(run);
            }
            if !self.has_empty_cluster(&self.lists.lock())
                && let Some(run) = self.take_in_current(hand, want, false)
            {
                return Some(run);
            }
            self.leave_current(hand);
        }
        hand.current = self.open_cluster(want)?;
        hand.hint = 0;
        self.take_in_current(hand, want, false)
    }

    /// A run of `want` free slots of the current cluster, or its longest run of free slots if the
    /// run need not be `whole`.
    fn take_in_current(&self, hand: &mut Hand, want: u32, whole: bool) -> Option<SlotRun> {
        let mut cluster = self.cluster(hand.current);
        let (first, count) = cluster.find(hand.hint, want).filter(|(_, count)| !whole || *count == want)?;
        cluster.mark(first, count);
        self.taken.fetch_add(count, Relaxed);
        hand.hint = first + count;
        Some(SlotRun { first: hand.current * CLUSTER_SLOTS + first, count })
    }

    fn has_empty_cluster(&self, lists: &ClusterLists) -> bool {
        lists.head(ClusterList::Dirty).is_some() || (lists.head(ClusterList::Clean).is_some() && !self.is_frozen())
    }

    fn open_cluster(&self, want: u32) -> Option<u32> {
        let mut lists = self.lists.lock();
        let clean = lists.head(ClusterList::Clean).filter(|_| !self.is_frozen());
        let index = lists.head(ClusterList::Dirty).or(clean).or_else(|| self.fitting_partial(&lists, want))?;
        self.own(&mut lists, index).written = true;
        Some(index)
    }

    /// A partial cluster that holds a run of `want`, or the first one.
    fn fitting_partial(&self, lists: &ClusterLists, want: u32) -> Option<u32> {
        let fits = |index: &u32| self.cluster(*index).find(0, want).is_some_and(|(_, n)| n == want);
        lists.iter(ClusterList::Partial).take(PARTIAL_LOOKS).find(fits).or(lists.head(ClusterList::Partial))
    }

    /// Takes a cluster out of its list.
    fn own(&self, lists: &mut ClusterLists, index: u32) -> RankedGuard<'_, Cluster> {
        let mut cluster = self.cluster(index);
        if let Home::Listed(list) = std::mem::replace(&mut cluster.home, Home::Owned) {
            lists.unlink(index, list);
        }
        cluster
    }

    fn leave_current(&self, hand: &mut Hand) {
        let index = std::mem::replace(&mut hand.current, NONE);
        if index != NONE {
            self.settle(&mut self.lists.lock(), index, true);
        }
    }

    /// Puts a cluster into the list where it belongs by its free slots. Only its owner moves a
    /// cluster that is owned.
    fn settle(&self, lists: &mut ClusterLists, index: u32, owner: bool) {
        let mut cluster = self.cluster(index);
        let home = cluster.proper_home();
        if home == cluster.home || (cluster.home == Home::Owned && !owner) {
            return;
        }
        if let Home::Listed(list) = cluster.home {
            lists.unlink(index, list);
        }
        if let Home::Listed(list) = home {
            lists.link(index, list);
        }
        cluster.home = home;
    }

    fn give_back(&self, run: SlotRun) {
        self.unmark(run);
        self.taken.fetch_sub(run.count, Relaxed);
    }

    fn give_back_freed(&self, hand: &mut Hand) {
        hand.freed.sort_unstable();
        for slots in hand.freed.chunk_by(|a, b| a / CLUSTER_SLOTS == b / CLUSTER_SLOTS) {
            let runs = slots.chunk_by(|a, b| a + 1 == *b);
            self.unmark_in(slots[0] / CLUSTER_SLOTS, runs.map(|run| (run[0], run.len() as u32)));
        }
        self.taken.fetch_sub(hand.freed.len() as u32, Relaxed);
        hand.freed.clear();
    }

    /// After slots were freed: thaws, or begins caching, if that is due.
    fn look_after_free(&self) {
        let thaw_at = self.frozen.load(Relaxed);
        if thaw_at != 0 && self.used() < thaw_at {
            self.thaw();
        } else if !self.caching.load(Relaxed) && thaw_at == 0 {
            self.begin_caching();
        }
    }

    /// Clears the bits of a run, which may cross clusters.
    fn unmark(&self, run: SlotRun) {
        let (mut first, end) = (run.first, run.first + run.count);
        while first < end {
            let stop = end.min((first / CLUSTER_SLOTS + 1) * CLUSTER_SLOTS);
            self.unmark_in(first / CLUSTER_SLOTS, std::iter::once((first, stop - first)));
            first = stop;
        }
    }

    /// Clears the bits of runs (first slot, count) of one cluster.
    fn unmark_in(&self, index: u32, runs: impl Iterator<Item = (u32, u32)>) {
        let mut cluster = self.cluster(index);
        for (first, count) in runs {
            let all_taken = cluster.unmark(first % CLUSTER_SLOTS, count);
            assert!(all_taken, "of {count} slots from {first} on one is free already");
        }
        let moves = cluster.home != Home::Owned && cluster.home != cluster.proper_home();
        drop(cluster);
        if moves {
            self.settle(&mut self.lists.lock(), index, false);
        }
    }
}

/// The destination of runs that are handed out.
struct Out<'a> {
    runs: &'a mut Vec<SlotRun>,
    got: u32,
}

impl Out<'_> {
    /// Adds a run; joins it with the last one if they are neighbours.
    fn push(&mut self, run: SlotRun) {
        match self.runs.last_mut() {
            Some(last) if self.got > 0 && last.first + last.count == run.first => last.count += run.count,
            _ => self.runs.push(run),
        }
        self.got += run.count;
    }
}

#[cfg(all(test, loom))]
mod models;
#[cfg(all(test, not(loom)))]
mod tests;
