//! Placement of a pager thread: on the processor of the one thread that faults, or wherever the
//! kernel likes.
//!
//! A thread that faults sleeps until its page is installed, so it and its pager thread never need
//! the processor at the same time. The kernel does not know that: it wakes each of them on an idle
//! processor, which costs an interrupt to a sleeping processor twice for each fault (tens of µs on
//! a virtual machine). On one processor both are plain context switches. The same holds for the
//! agent: each page that it moves out is flushed from the TLB of every processor that the program
//! runs on, by interrupts, unless that is the agent's own processor.
//!
//! While all faults of a pager thread come from one thread there are three modes
//! ([`AffinityMode`]). Which is the best depends on the machine and on its other load, so it is
//! measured. A window of faults in one mode gives a cost, the time for each fault; most windows use
//! the cheapest mode, and now and then a short one tries another. A wrong choice costs no more than
//! the kernel's own placement would, until the next trial. When a second thread faults, or when
//! there are no faults for a while, everything is left to the kernel: then it is better to serve on
//! another processor than to wait for one.
//!
//! The thread stays beside a pager thread of lowered priority (see `idle_priority.rs`) by itself,
//! until something else runs on that processor when it wakes. Then faults take longer, and the
//! pager thread looks where the thread went and follows. On two busy processors a lowered pager
//! thread may have to wait until the governor raises it: such a window is broken off.
//!
//! The program's own thread is never confined, not even while it sleeps: it could wake before it is
//! set free again, see the wrong affinity, and pass it on to its children.

use std::sync::Arc;
use std::time::{Duration, Instant};

use uswap_sys::process::affinity::Processors;

use crate::Mailbox;
use uswap_sys::procfs::WhereThread;

/// Faults in a window, and in one that tries another mode.
const WINDOW: u32 = 256;
const TRIAL: u32 = 64;
/// One window in this many is a trial.
const TRIAL_EVERY: u32 = 48;
/// After this long without faults no thread stays confined.
const STALE: Duration = Duration::from_millis(100);
/// In the lowered mode the pager thread times every two faults. If they took more than `SLOW` times
/// their usual best time it looks where the faulting thread is.
const LOOK_EVERY: u32 = 2;
const SLOW: f64 = 1.5;
/// In the lowered mode a window is broken off if it takes this much longer than eight times the
/// time of the best other mode.
const MAX_LATE: Duration = Duration::from_millis(2);

/// The placement while one thread faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AffinityMode {
    /// The kernel decides.
    Free,
    /// Pager thread and agent are confined to the processor on which the thread was seen.
    Beside,
    /// The same, and the pager thread has a lowered priority.
    Lowered,
}

const WAYS: [AffinityMode; 3] = [AffinityMode::Free, AffinityMode::Beside, AffinityMode::Lowered];

/// The placement of one pager thread.
#[derive(Debug)]
pub struct AffinityPolicy {
    /// The processors on which the pager thread may run at all; `None` switches all of this off.
    home: Option<Processors>,
    mailbox: Arc<Mailbox>,
    /// How many of the modes can be used: the last one needs a permission.
    ways: usize,
    thread: u32,
    /// Finds the processor of that thread.
    seen: Option<WhereThread>,
    several: bool,
    faults: u32,
    begun: Instant,
    /// In the lowered mode: when the thread was looked for last, and the best time of two faults in
    /// this window, and in those before.
    looked: Instant,
    quickest: Duration,
    usual: Duration,
    way: AffinityMode,
    /// Recent nanoseconds for each fault, by mode; 0: not tried.
    costs: [f64; WAYS.len()],
    windows: u32,
    confined: Option<u32>,
    /// The agent that is confined too, and the processors on which it could run before.
    agent: Option<(u32, Processors)>,
}

impl AffinityPolicy {
    /// The placement of the calling thread. On a single processor there is nothing to choose.
    pub fn of_this_thread(enabled: bool, mailbox: Arc<Mailbox>) -> Self {
        let home = Processors::of(0).ok().filter(|home| enabled && home.count() > 1);
        let ways = if home.is_some() && mailbox.lowered.adopt() { WAYS.len() } else { WAYS.len() - 1 };
        Self {
            home,
            mailbox,
            ways,
            thread: 0,
            seen: None,
            several: false,
            faults: 0,
            begun: Instant::now(),
            looked: Instant::now(),
            quickest: Duration::MAX,
            usual: Duration::ZERO,
            way: AffinityMode::Free,
            costs: [0.0; WAYS.len()],
            windows: 0,
            confined: None,
            agent: None,
        }
    }

    /// Counts a fault of `thread` of process `pid`. `agent`: the thread id of its agent (0: none).
    pub fn fault(&mut self, thread: u32, pid: u32, agent: u32) {
        if self.home.is_none() {
            return;
        }
        self.several |= self.faults > 0 && thread != self.thread;
        (self.thread, self.faults) = (thread, self.faults + 1);
        if self.way == AffinityMode::Lowered && self.faults.is_multiple_of(LOOK_EVERY) {
            self.follow(pid, agent);
        }
        let is_over = self.faults >= if self.is_trial() { TRIAL } else { WINDOW };
        if is_over || self.several && self.way != AffinityMode::Free {
            self.end_window(pid, agent);
        }
    }

    /// Follows the thread to its processor if it seems to run elsewhere; leaves the lowered mode if
    /// faults take far too long.
    fn follow(&mut self, pid: u32, agent: u32) {
        let took = self.looked.elapsed();
        self.quickest = self.quickest.min(took);
        if took > self.usual.mul_f64(SLOW) {
            if let Some(processor) = self.processor_of_thread(pid) {
                self.confine(processor, agent);
            }
            let others = self.costs[..AffinityMode::Lowered as usize].iter().copied().fold(f64::INFINITY, f64::min);
            let most = Duration::from_nanos((8.0 * others * f64::from(self.faults)) as u64) + MAX_LATE;
            if self.begun.elapsed() > most {
                self.end_window(pid, agent);
            }
        }
        self.looked = Instant::now();
    }

    /// Learns the best time of two faults from a window.
    fn learn_usual(&mut self) {
        if self.quickest < Duration::MAX {
            self.usual = (self.usual * 3 + self.quickest) / 4;
        }
        self.quickest = Duration::MAX;
    }

    /// Called before threads are woken and after each turn of the pager thread: lowers its priority
    /// again, if it was raised meanwhile.
    pub fn keep(&self) {
        if self.way == AffinityMode::Lowered {
            self.mailbox.lowered.keep();
        }
    }

    /// The processor of the one thread that faults, if the pager thread is confined to it.
    pub fn processor(&self) -> Option<u32> {
        self.confined
    }

    fn is_trial(&self) -> bool {
        self.windows.is_multiple_of(TRIAL_EVERY)
    }

    fn end_window(&mut self, pid: u32, agent: u32) {
        if !self.several {
            let cost = self.begun.elapsed().as_nanos() as f64 / f64::from(self.faults);
            let known = &mut self.costs[self.way as usize];
            // A window in which faults waited for room is no measure of the mode. So a better
            // window replaces the cost at once; with an average the mode would stay unused for the
            // five trials until the bad window has no weight.
            *known = if *known == 0.0 || cost < *known { cost } else { (*known + cost) / 2.0 };
        }
        self.learn_usual();
        self.windows = self.windows.wrapping_add(1);
        self.way = if self.several { AffinityMode::Free } else { self.next_way() };
        let processor = self.processor_of_thread(pid);
        match processor {
            Some(processor) if self.way != AffinityMode::Free => self.confine(processor, agent),
            _ => {
                self.way = AffinityMode::Free;
                self.let_go();
            }
        }
        if self.way == AffinityMode::Lowered {
            self.mailbox.lowered.lower()
        } else {
            self.mailbox.lowered.end()
        }
        (self.faults, self.several, self.begun) = (0, false, Instant::now());
        self.looked = self.begun;
    }

    /// The processor on which the faulting thread ran last.
    fn processor_of_thread(&mut self, pid: u32) -> Option<u32> {
        if self.seen.as_ref().is_none_or(|seen| seen.thread() != self.thread) {
            self.seen = WhereThread::open(pid, self.thread);
        }
        let processor = self.seen.as_ref()?.processor();
        if processor.is_none() {
            // The thread has ended, and its id may belong to another thread.
            self.seen = None;
        }
        processor
    }

    /// The next mode: one that was never tried, else the cheapest, and in a trial one of the
    /// others.
    fn next_way(&self) -> AffinityMode {
        let ways = &WAYS[..self.ways];
        if let Some(untried) = ways.iter().find(|way| self.costs[**way as usize] == 0.0) {
            return *untried;
        }
        let cheapest = ways.iter().copied().min_by(|a, b| self.costs[*a as usize].total_cmp(&self.costs[*b as usize]));
        let cheapest = cheapest.unwrap_or(AffinityMode::Free);
        let step = if self.is_trial() { 1 + (self.windows / TRIAL_EVERY) as usize % (ways.len() - 1) } else { 0 };
        ways[(cheapest as usize + step) % ways.len()]
    }

    fn confine(&mut self, processor: u32, agent: u32) {
        let Some(only) = Processors::only(processor) else { return };
        if self.confined != Some(processor) {
            if only.confine(0).is_err() {
                return;
            }
            self.confined = Some(processor);
            self.let_agent_go();
        }
        if self.agent.is_none_or(|(known, _)| known != agent) {
            self.let_agent_go();
            let here = self.confined.and_then(Processors::only).unwrap_or(only);
            if agent != 0
                && let Ok(before) = Processors::of(agent)
                && here.confine(agent).is_ok()
            {
                self.agent = Some((agent, before));
            }
        }
    }

    /// Called now and then: ends the confinement if there were no faults for a while.
    pub fn sweep(&mut self) {
        if self.confined.is_some() && self.begun.elapsed() > STALE {
            self.let_go();
            self.seen = None;
            self.mailbox.lowered.end();
            self.way = AffinityMode::Free;
            (self.faults, self.several, self.begun) = (0, false, Instant::now());
        }
    }

    fn let_go(&mut self) {
        self.let_agent_go();
        if let (Some(_), Some(home)) = (self.confined.take(), &self.home) {
            // This fails only if the pager thread's cpuset changed; then the kernel has moved the
            // thread already.
            let _ = home.confine(0);
        }
    }

    fn let_agent_go(&mut self) {
        if let Some((agent, before)) = self.agent.take() {
            // An error means that the agent has ended.
            let _ = before.confine(agent);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uswap_sys::process::this_thread;

    fn placement() -> Option<AffinityPolicy> {
        let mailbox = Arc::new(Mailbox::new().expect("mailbox"));
        Some(AffinityPolicy::of_this_thread(true, mailbox)).filter(|placement| placement.home.is_some())
    }

    fn window(placement: &mut AffinityPolicy, thread: u32) {
        let windows = placement.windows;
        while placement.windows == windows {
            placement.fault(thread, std::process::id(), 0);
        }
    }

    fn is_confined() -> bool {
        Processors::of(0).expect("affinity").count() == 1
    }

    #[test]
    fn one_faulting_thread_confines_and_a_second_one_frees() {
        let Some(mut placement) = placement() else { return };
        let me = this_thread();
        placement.costs = [3.0e9, 1.0, 3.0e9];
        window(&mut placement, me);
        assert!(is_confined());
        placement.fault(me, std::process::id(), 0);
        placement.fault(me + 1, std::process::id(), 0);
        assert!(!is_confined());
    }

    #[test]
    fn every_way_is_tried_and_the_cheapest_is_gone() {
        let Some(mut placement) = placement() else { return };
        let me = this_thread();
        let mut counts = [0; WAYS.len()];
        for _ in 0..400 {
            let beside = placement.way == AffinityMode::Beside;
            placement.begun = Instant::now() - Duration::from_millis(if beside { 1 } else { 40 });
            window(&mut placement, me);
            counts[placement.way as usize] += 1;
        }
        let others = if placement.ways == WAYS.len() { [0, 2].as_slice() } else { &[0] };
        assert!(counts[1] > 350 && others.iter().all(|way| counts[*way] > 3), "{counts:?}");
        placement.let_go();
    }

    #[test]
    fn an_owner_is_lowered_while_that_pays_and_follows_the_thread() {
        let Some(mut placement) = placement().filter(|placement| placement.ways == WAYS.len()) else { return };
        placement.costs = [3.0e9, 3.0e9, 1.0];
        window(&mut placement, this_thread());
        assert!(placement.way == AffinityMode::Lowered && placement.mailbox.lowered.is_lowered());
        let here = placement.confined.expect("confined");
        placement.confined = Some(here + 1);
        (placement.usual, placement.looked) = (Duration::from_nanos(1), Instant::now() - Duration::from_millis(1));
        placement.follow(std::process::id(), 0);
        assert_eq!(placement.confined, Some(here), "found again");
        placement.begun -= Duration::from_secs(3600);
        (placement.usual, placement.faults) = (Duration::from_nanos(1), 2);
        placement.follow(std::process::id(), 0);
        assert!(placement.costs[AffinityMode::Lowered as usize] > 1.0e11, "broken off: {:?}", placement.costs);
        placement.mailbox.lowered.end();
        placement.let_go();
    }

    #[test]
    fn a_way_that_was_tried_at_a_bad_moment_is_found_again() {
        let Some(mut placement) = placement() else { return };
        let me = this_thread();
        placement.costs = [40_000.0, 9.0e8, 8.0e8];
        let taken = |placement: &mut AffinityPolicy| {
            placement.begun =
                Instant::now() - if placement.way == AffinityMode::Free { SLOW_WINDOW } else { Duration::ZERO };
            window(placement, me);
            placement.way
        };
        let found =
            (0..2 * TRIAL_EVERY).position(|_| taken(&mut placement) != AffinityMode::Free && !placement.is_trial());
        assert!(found.is_some(), "{:?}", placement.costs);
        assert!((0..8).all(|_| taken(&mut placement) != AffinityMode::Free), "{:?}", placement.costs);
        placement.mailbox.lowered.end();
        placement.let_go();
    }

    /// Time of a window in the mode `Free`: longer than one of the other modes takes in which busy
    /// processes have the processors for some turns of the scheduler.
    const SLOW_WINDOW: Duration = Duration::from_secs(10);

    #[test]
    fn without_faults_it_lets_go() {
        let Some(mut placement) = placement() else { return };
        placement.costs = [3.0e9, 1.0, 3.0e9];
        window(&mut placement, this_thread());
        assert!(is_confined());
        placement.begun -= 2 * STALE;
        placement.sweep();
        assert!(!is_confined());
    }
}
