//! Where an owner runs: beside the one thread that faults, or wherever the kernel likes.
//!
//! A thread that faults sleeps until its page is there, so it and its owner never want the processor at the same time.
//! The kernel does not know that: it wakes each of them on an idle processor, which costs an interrupt to a sleeping
//! processor twice a fault (tens of µs on a virtual machine). On one processor both are plain context switches. The same
//! holds for the agent: each page it moves out is flushed from the address translation of every processor the program
//! runs on, by interrupts, unless that is the agent's own.
//!
//! While all faults an owner sees come from one thread there are three ways ([`Way`]), and which is best depends on the
//! machine and on what else runs: so it is measured. A window of faults in one way gives a cost, the time it took for
//! each fault; most windows go the way that was cheapest, and now and then a short one tries another. A wrong choice
//! costs what it would cost without all this, until the next trial. With a second thread faulting, or with no faults for a
//! while, everything is left to the kernel: then it is better to serve on another processor than to wait for one.
//!
//! In the third way the thread may run only here for the moment of its wake-up, and its own set of processors is put
//! back before it can run. It sleeps in its fault meanwhile; nobody but another thread that changes this one's set
//! at this very moment could notice, and then the change stands.

use std::time::{Duration, Instant};

use uswap_sys::affinity::Processors;

use crate::procfs;

/// Faults in a window, and in one that tries another way.
const WINDOW: u32 = 256;
const TRIAL: u32 = 64;
/// One window in so many is a trial.
const TRIAL_EVERY: u32 = 24;
/// Without faults for this long nobody is kept anywhere.
const STALE: Duration = Duration::from_millis(100);

/// What is done about one faulting thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Nothing.
    Free,
    /// Owner and agent are confined to the processor on which the thread was seen.
    Beside,
    /// The same, and the thread is held there while it is woken.
    Held,
}

const WAYS: [Way; 3] = [Way::Free, Way::Beside, Way::Held];

/// The placement of one owner thread.
#[derive(Debug)]
pub struct Placement {
    /// Where the owner may run at all; `None` switches the whole off.
    home: Option<Processors>,
    thread: u32,
    /// The thread that was seen to be one of the program's when the window began. A program in a pid namespace of its own
    /// tells other numbers, which may be those of strangers here.
    known: Option<u32>,
    several: bool,
    faults: u32,
    begun: Instant,
    way: Way,
    /// Nanoseconds a fault by way, of late; 0: not tried.
    costs: [f64; WAYS.len()],
    windows: u32,
    confined: Option<u32>,
    /// The agent that is confined along, and where it ran before.
    agent: Option<(u32, Processors)>,
}

/// A thread that wakes up here.
#[derive(Debug)]
pub struct Held {
    thread: u32,
    here: Processors,
    before: Processors,
}

impl Placement {
    /// For the calling thread. On a single processor there is nothing to choose.
    pub fn of_this_thread(enabled: bool) -> Self {
        Self {
            home: Processors::of(0).ok().filter(|home| enabled && home.count() > 1),
            thread: 0,
            known: None,
            several: false,
            faults: 0,
            begun: Instant::now(),
            way: Way::Free,
            costs: [0.0; WAYS.len()],
            windows: 0,
            confined: None,
            agent: None,
        }
    }

    /// `thread` of process `pid` has faulted, whose agent is the thread `agent` (0: none).
    pub fn fault(&mut self, thread: u32, pid: u32, agent: u32) {
        if self.home.is_none() {
            return;
        }
        self.several |= self.faults > 0 && thread != self.thread;
        (self.thread, self.faults) = (thread, self.faults + 1);
        if self.faults >= if self.is_trial() { TRIAL } else { WINDOW } {
            self.end_window(pid, agent);
        }
    }

    fn is_trial(&self) -> bool {
        self.windows.is_multiple_of(TRIAL_EVERY)
    }

    fn end_window(&mut self, pid: u32, agent: u32) {
        if !self.several {
            let cost = self.begun.elapsed().as_nanos() as f64 / f64::from(self.faults);
            let known = &mut self.costs[self.way as usize];
            *known = if *known == 0.0 { cost } else { (*known + cost) / 2.0 };
        }
        self.windows = self.windows.wrapping_add(1);
        self.way = if self.several { Way::Free } else { self.next_way() };
        let processor = procfs::processor_of(pid, self.thread);
        self.known = processor.map(|_| self.thread);
        match processor {
            Some(processor) if self.way != Way::Free => self.confine(processor, agent),
            _ => {
                self.way = Way::Free;
                self.let_go();
            }
        }
        (self.faults, self.several, self.begun) = (0, false, Instant::now());
    }

    /// What was never tried comes first, then the cheapest, and in a trial one of the others.
    fn next_way(&self) -> Way {
        if let Some(untried) = self.costs.iter().position(|cost| *cost == 0.0) {
            return WAYS[untried];
        }
        let cheapest = WAYS.into_iter().min_by(|a, b| self.costs[*a as usize].total_cmp(&self.costs[*b as usize]));
        let cheapest = cheapest.unwrap_or(Way::Free);
        let step = if self.is_trial() { 1 + (self.windows / TRIAL_EVERY) as usize % (WAYS.len() - 1) } else { 0 };
        WAYS[(cheapest as usize + step) % WAYS.len()]
    }

    fn confine(&mut self, processor: u32, agent: u32) {
        let Some(only) = Processors::only(processor) else { return };
        // A held thread is where we are: only the first look counts.
        if self.confined.is_none() || self.way == Way::Beside && self.confined != Some(processor) {
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

    /// Before the faulting thread is woken: has it wake up here. To be followed by [`Self::release`].
    pub fn hold(&self) -> Option<Held> {
        let held = self.way == Way::Held && !self.several && self.known == Some(self.thread);
        let here = self.confined.filter(|_| held).and_then(Processors::only)?;
        let before = Processors::of(self.thread).ok()?;
        // On a single processor by its own choice: there it stays.
        let refused = before.count() == 1 || here.confine(self.thread).is_err();
        (!refused).then_some(Held { thread: self.thread, here, before })
    }

    /// After the wake-up: the thread may run where it could before. A set that was the whole of what cpusets allow is
    /// given back as "all", so that the thread follows when its cpuset grows.
    pub fn release(&self, held: Held) {
        let unconfined = Some(held.before) == self.home;
        if Processors::of(held.thread).is_ok_and(|now| now == held.here) {
            // Refused only when the thread is gone.
            let _ = if unconfined { Processors::ALL } else { held.before }.confine(held.thread);
        }
    }

    /// Now and then: nobody is kept where nobody faults.
    pub fn sweep(&mut self) {
        if self.confined.is_some() && self.begun.elapsed() > STALE {
            self.let_go();
            self.way = Way::Free;
            (self.faults, self.several, self.begun) = (0, false, Instant::now());
        }
    }

    fn let_go(&mut self) {
        self.let_agent_go();
        if let (Some(_), Some(home)) = (self.confined.take(), &self.home) {
            // Refused only if the owner's cpuset changed; then the kernel has moved it already.
            let _ = home.confine(0);
        }
    }

    fn let_agent_go(&mut self) {
        if let Some((agent, before)) = self.agent.take() {
            // An agent that has ended meanwhile needs nothing.
            let _ = before.confine(agent);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placement() -> Option<Placement> {
        Some(Placement::of_this_thread(true)).filter(|placement| placement.home.is_some())
    }

    fn window(placement: &mut Placement, thread: u32) {
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
        let me = procfs::this_thread();
        placement.costs = [3.0e9, 1.0, 3.0e9];
        window(&mut placement, me);
        assert!(is_confined());
        placement.fault(me, std::process::id(), 0);
        placement.fault(me + 1, std::process::id(), 0);
        window(&mut placement, me);
        assert!(!is_confined());
    }

    #[test]
    fn every_way_is_tried_and_the_cheapest_is_gone() {
        let Some(mut placement) = placement() else { return };
        let me = procfs::this_thread();
        let mut counts = [0; 3];
        for _ in 0..400 {
            placement.begun = Instant::now() - Duration::from_millis(if placement.way == Way::Held { 1 } else { 40 });
            window(&mut placement, me);
            counts[placement.way as usize] += 1;
        }
        assert!(counts[2] > 350 && counts[0] > 3 && counts[1] > 3, "{counts:?}");
        placement.let_go();
    }

    #[test]
    fn a_held_thread_gets_its_own_set_back() {
        let Some(mut placement) = placement() else { return };
        let before = Processors::of(0).expect("affinity");
        placement.costs = [3.0e9, 3.0e9, 1.0];
        let (tell, told) = std::sync::mpsc::channel();
        let (stop, wait) = std::sync::mpsc::channel::<()>();
        let other = std::thread::spawn(move || {
            tell.send(procfs::this_thread()).expect("main thread");
            let _ = wait.recv();
        });
        let thread = told.recv().expect("thread");
        window(&mut placement, thread);
        placement.fault(thread, std::process::id(), 0);
        let held = placement.hold().expect("held");
        assert_eq!(Processors::of(thread).expect("affinity").count(), 1);
        placement.release(held);
        assert_eq!(Processors::of(thread).expect("affinity"), before);
        placement.let_go();
        drop(stop);
        other.join().expect("thread");
    }

    #[test]
    fn numbers_of_strangers_move_nobody() {
        let Some(mut placement) = placement() else { return };
        placement.costs = [3.0e9, 3.0e9, 1.0];
        window(&mut placement, 1);
        assert!(!is_confined());
        placement.fault(1, std::process::id(), 0);
        assert!(placement.hold().is_none());
    }

    #[test]
    fn without_faults_it_lets_go() {
        let Some(mut placement) = placement() else { return };
        placement.costs = [3.0e9, 1.0, 3.0e9];
        window(&mut placement, procfs::this_thread());
        assert!(is_confined());
        placement.begun -= 2 * STALE;
        placement.sweep();
        assert!(!is_confined());
    }
}
