//! The agent's loop, which executes the engine's orders: it MOVEs pages out of the program inside
//! the gate, moves them from SA to SB, and drops trays.

use crate::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use crate::layout::{PAGE, SA, SB, TRAY_PAGES};
use crate::link::ProcFds;
use crate::ring::{Operation, OrderRun, OrderTray, Ring, RunResult};
use crate::syscall::{self, call};
use crate::threads::ThreadPages;

const UFFDIO_MOVE: usize = 0xc028_aa05;
const UFFDIO_WRITEPROTECT: usize = 0xc018_aa06;
const ALLOW_SRC_HOLES: u64 = 2;
const PAGEMAP_SCAN: usize = 0xc060_6610;
const PAGE_IS_PRESENT: u64 = 8;
const PAGE_IS_SWAPPED: u64 = 16;
const MADV_DONTNEED: usize = 4;
const MADV_POPULATE_WRITE: usize = 23;

/// How often the agent tries a run that answers EAGAIN before it gives the run back to the engine.
const MAX_TRIES: u32 = 16;
/// How often the agent yields the processor while the pager thread reads events, and how long it
/// sleeps each time after that (µs).
const MAX_YIELDS: u32 = 1000;
const GATE_NAP: u32 = 200;
/// How often the agent tries to move a page from SA to SB.
const MAX_TRANSFERS: u32 = 10_000;

#[repr(C)]
struct Move {
    destination: u64,
    source: u64,
    length: u64,
    mode: u64,
    moved: i64,
}

#[repr(C)]
struct ProtectOrder {
    start: u64,
    length: u64,
    mode: u64,
}

#[repr(C)]
#[derive(Default)]
struct StagedRegion {
    start: u64,
    end: u64,
    categories: u64,
}

#[repr(C)]
#[derive(Default)]
struct ScanArgument {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vector: u64,
    vector_length: u64,
    most_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_any_of: u64,
    return_mask: u64,
}

/// The agent after its handshake with the engine.
pub struct Agent {
    area: u64,
    ring: &'static Ring,
    socket: i32,
    completion: i32,
    events: i32,
    staging: i32,
    pagemap: i32,
    /// A pidfd of the program, where the agent is a process of its own.
    program: Option<i32>,
    thread_pages: ThreadPages,
    /// Successful moves, counted for tests.
    moves: core::cell::Cell<u32>,
}

impl Agent {
    /// Makes an agent, which takes ownership of the fds (all in this thread's own table): socket,
    /// eventfd, event and staging userfaultfd.
    pub fn new(area: u64, ring: &'static Ring, fds: [i32; 4], eyes: ProcFds, program: Option<i32>) -> Self {
        let [socket, completion, events, staging] = fds;
        let thread_pages = ThreadPages::new(eyes.tasks, area);
        Self {
            area,
            ring,
            socket,
            completion,
            events,
            staging,
            pagemap: eyes.pagemap,
            program,
            thread_pages,
            moves: core::cell::Cell::new(0),
        }
    }

    /// Executes orders until the process, the engine or all other threads of the process are gone.
    pub fn run(&mut self) -> ! {
        loop {
            self.drain_queue();
            if self.ring.prepare_sleep() {
                self.sleep();
                self.ring.awake();
            }
        }
    }

    fn drain_queue(&mut self) {
        while let Some((operation, number)) = self.ring.pop() {
            syscall::sleep(self.ring.order_delay.load(Relaxed));
            if operation == Operation::Fill && self.ring.forget_threads.load(Relaxed) == 0 {
                self.thread_pages.collect(&self.ring.threads);
            }
            let tray = &self.ring.trays[number as usize];
            match operation {
                Operation::Fill => self.fill(tray, number),
                Operation::Drop => self.drop_tray(tray, number, false),
                Operation::DropInherited => self.drop_tray(tray, number, true),
            }
            tray.hand_over.complete();
            self.notify();
        }
    }

    /// Waits for the doorbell. The end of the socket means that engine and keeper are both gone: a
    /// program whose memory they held must not go on.
    fn sleep(&mut self) {
        match syscall::read(self.socket, &mut [0; 64]) {
            0 if self.ring.careless.load(Relaxed) != 0 => syscall::sleep(GATE_NAP),
            0 => self.end(),
            n if n < 0 && n != -syscall::EINTR => self.leave_if_last(),
            _ => {}
        }
    }

    /// Ends the agent when engine and keeper are gone, and the program too if the engine held
    /// memory of it.
    fn end(&self) -> ! {
        syscall::sleep(self.ring.order_delay.load(Relaxed));
        match self.program {
            _ if self.ring.active.load(SeqCst) == 0 => syscall::exit_thread(),
            Some(program) => syscall::kill_program(program),
            None => syscall::kill_process(),
        }
    }

    /// Ends the agent if it is the last thread of its process: a process ends with its last thread,
    /// and the agent must not keep it alive.
    fn leave_if_last(&self) {
        if self.program.is_none()
            && self.thread_pages.census() == Some((2, true))
            && self.ring.stay_last.load(Relaxed) == 0
        {
            syscall::exit_thread();
        }
    }

    fn notify(&self) {
        let one = 1u64;
        // SAFETY: eight bytes to an eventfd.
        unsafe { call(syscall::WRITE, [self.completion as usize, &raw const one as usize, 8, 0, 0, 0]) };
    }

    fn fill(&mut self, tray: &OrderTray, number: u32) {
        let runs = tray.run_count.load(Acquire).min(TRAY_PAGES);
        if tray.leftovers.load(Relaxed) != 0 {
            self.drop_tray(tray, number, true);
        }
        let errno = tray.leftovers.load(Relaxed) as isize;
        if errno != 0 && self.ring.forget_leftovers.load(Relaxed) == 0 {
            return (0..runs as usize).for_each(|index| publish_answer(tray, index, RunResult::Gone, -errno));
        }
        for (index, run) in tray.runs.iter().enumerate().take(runs as usize) {
            let (address, pages, unshare) = OrderRun::unpack(run.what.load(Relaxed));
            let slot = run.slot.load(Relaxed).min(TRAY_PAGES - pages);
            if self.thread_pages.overlap(address, pages) {
                publish(tray, index, RunResult::ThreadPage);
                continue;
            }
            if unshare && !tray.hand_over.is_cancelled(index as u32) && self.unprotect(address, pages) {
                self.populate_write(address, pages);
            }
            self.move_run(tray, number, index, (address, slot, pages, unshare));
        }
        self.transfer(tray, number);
        self.make_dirty(tray, number);
    }

    /// Has the kernel do what a write to these pages would do, without changing them: it breaks the
    /// sharing that a fork left behind, and marks the pages dirty. Returns whether the kernel did
    /// so for all of them. Not inside the gate: the call can fault, and the pager thread that
    /// serves the fault would wait for the gate.
    fn populate_write(&self, address: u64, pages: u32) -> bool {
        let length = u64::from(pages) * PAGE;
        // SAFETY: writes nothing into the pages; on a range that is no longer what it was the worst
        // is a page made present.
        unsafe { call(syscall::MADVISE, [address as usize, length as usize, MADV_POPULATE_WRITE, 0, 0, 0]) == 0 }
    }

    /// Removes the write protection of these pages: a write by the agent would wait for memory that
    /// only the agent can free. `false`: an event is pending.
    fn unprotect(&self, address: u64, pages: u32) -> bool {
        if self.ring.protects.load(Relaxed) == 0 {
            return true;
        }
        let mut argument = ProtectOrder { start: address, length: u64::from(pages) * PAGE, mode: 0 };
        // SAFETY: struct uffdio_writeprotect; changes no page.
        unsafe { syscall::ioctl(self.events, UFFDIO_WRITEPROTECT, &mut argument) != -syscall::EAGAIN }
    }

    /// Moves one run into its slots and publishes the result, all of it inside the gate.
    fn move_run(&self, tray: &OrderTray, number: u32, index: usize, run: (u64, u32, u32, bool)) {
        let (address, slot, pages, unshared) = run;
        let base = self.area + SA + u64::from(number * TRAY_PAGES) * PAGE;
        let (mut next, mut tries, mut worst) = (0, 0, RunResult::Moved);
        while next < pages {
            self.enter_gate();
            if tray.hand_over.is_cancelled(index as u32) {
                publish(tray, index, RunResult::Cancelled);
                return self.ring.gate.leave();
            }
            syscall::sleep(self.ring.move_delay.load(Relaxed));
            let left = pages - next;
            let source = address + u64::from(next) * PAGE;
            let destination = base + u64::from(slot + next) * PAGE;
            let result = if self.is_drawn_busy() {
                -syscall::EBUSY
            } else {
                self.draw_lie(move_pages(self.events, destination, source, u64::from(left) * PAGE, 0))
            };
            let seen = match result {
                0 => Some(mask(slot + next, left)),
                _ if self.ring.trust_move.load(Relaxed) != 0 => Some(0),
                _ => self.look(destination, slot + next, left),
            };
            if seen.is_none() {
                tray.unseen.fetch_or(mask(slot + next, left), SeqCst);
            }
            let filled = tray.hand_over.arrived(seen.unwrap_or(0));
            next += leading_ones(filled >> (slot + next)).min(left);
            match result {
                0 => next = pages,
                _ if next == pages => {}
                _ if seen.is_none() => (worst, next) = (RunResult::Gone, pages),
                r if r == -syscall::EAGAIN || r == -syscall::EEXIST => {
                    tries += 1;
                    if tries == MAX_TRIES {
                        worst = RunResult::Again;
                        next = pages;
                    }
                }
                // Pages that a fork shares are mostly neighbours: the engine orders the rest again,
                // to be unshared first.
                r if r == -syscall::EBUSY => {
                    (worst, next) = (RunResult::Busy, if unshared { next + 1 } else { pages });
                }
                r if r == -syscall::ENOENT => next += 1,
                r if r == -syscall::EINVAL || r == -syscall::EFAULT => (worst, next) = (RunResult::Refused, pages),
                _ => (worst, next) = (RunResult::Gone, pages),
            }
            if next >= pages {
                publish_answer(tray, index, worst, if worst == RunResult::Gone { result } else { 0 });
            }
            self.ring.gate.leave();
        }
    }

    /// For tests: whether the agent pretends that the kernel refused the move because the page is
    /// pinned.
    fn is_drawn_busy(&self) -> bool {
        let one_in = self.ring.busy.load(Relaxed);
        one_in != 0 && {
            self.moves.set(self.moves.get() + 1);
            self.moves.get().is_multiple_of(one_in)
        }
    }

    /// For tests: returns what the kernel reported, or sometimes EEXIST for a success.
    fn draw_lie(&self, result: isize) -> isize {
        let one_in = self.ring.move_lies.load(Relaxed);
        if result != 0 || one_in == 0 {
            return result;
        }
        let drawn = self.moves.get() + 1;
        self.moves.set(drawn);
        if drawn.is_multiple_of(one_in) { -syscall::EEXIST } else { result }
    }

    /// Waits until the pager thread has read its events. An engine that was killed meanwhile never
    /// opens the gate again. (This takes doorbells out of the socket, which loses nothing: the
    /// agent looks at the queue again before it sleeps.)
    fn enter_gate(&self) {
        let mut tries = 0u32;
        while !self.ring.gate.enter() {
            tries += 1;
            if tries < MAX_YIELDS {
                syscall::yield_now();
            } else {
                syscall::sleep(GATE_NAP);
                if syscall::is_hung_up(self.socket) {
                    self.end();
                }
            }
        }
    }

    /// Which of `pages` slots from `first` hold a page: bits in the tray's mask. The kernel's own
    /// answer to a MOVE that was not a complete success cannot be trusted (it reports EEXIST after
    /// it moved). `None`: the agent may not look (a seccomp filter came between the two calls).
    fn look(&self, address: u64, first: u32, pages: u32) -> Option<u64> {
        if self.ring.blind.load(Relaxed) != 0 {
            return None;
        }
        let mut regions: [StagedRegion; TRAY_PAGES as usize] = core::array::from_fn(|_| StagedRegion::default());
        let mut scan = ScanArgument {
            size: size_of::<ScanArgument>() as u64,
            start: address,
            end: address + u64::from(pages) * PAGE,
            vector: regions.as_mut_ptr() as u64,
            vector_length: u64::from(TRAY_PAGES),
            category_any_of: PAGE_IS_PRESENT | PAGE_IS_SWAPPED,
            return_mask: PAGE_IS_PRESENT | PAGE_IS_SWAPPED,
            ..ScanArgument::default()
        };
        // SAFETY: the structure is the kernel's pm_scan_arg and the vector is as long as said.
        let n = unsafe { syscall::ioctl(self.pagemap, PAGEMAP_SCAN, &mut scan) };
        let found = regions.iter().take(usize::try_from(n).ok()?);
        Some(found.fold(0, |bits, region| {
            let from = ((region.start - address) / PAGE) as u32;
            bits | mask(first + from, ((region.end - region.start) / PAGE) as u32)
        }))
    }

    /// Moves a tray's pages from SA to SB. A fork in between leaves the pages shared with the
    /// child: the agent writes to them once, then they can move. It reports pages that may have
    /// stayed in SA as stuck: the engine looks where such a page lies.
    fn transfer(&self, tray: &OrderTray, number: u32) {
        let offset = u64::from(number * TRAY_PAGES) * PAGE;
        let (from, to) = (self.area + SA + offset, self.area + SB + offset);
        let mut left = tray.hand_over.filled();
        for _ in 0..MAX_TRANSFERS {
            if left == 0 {
                break;
            }
            let first = left.trailing_zeros();
            let pages = TRAY_PAGES - first - left.leading_zeros();
            let start = u64::from(first) * PAGE;
            let length = u64::from(pages) * PAGE;
            let result = move_pages(self.staging, to + start, from + start, length, ALLOW_SRC_HOLES);
            if result == 0 {
                left = 0;
                break;
            }
            let Some(seen) = self.look(from, 0, TRAY_PAGES) else { break };
            left = seen;
            if result == -syscall::EBUSY {
                self.unshare_slots(from, left);
            }
        }
        tray.stuck.store(left | tray.unseen.load(Relaxed), SeqCst);
    }

    fn unshare_slots(&self, base: u64, slots: u64) {
        for_each_run(slots, |first, pages| {
            self.populate_write(base + u64::from(first) * PAGE, pages);
        });
    }

    /// Writes to each page of the tray. A page that the program had freed (MADV_FREE) and not
    /// written again is clean, MOVE leaves it clean, and the kernel may take it at any time. So the
    /// agent writes to each page in SB, where a page that the kernel has already taken raises an
    /// error and no fault, and reports which pages these are.
    fn make_dirty(&self, tray: &OrderTray, number: u32) {
        syscall::sleep(self.ring.dirty_delay.load(Relaxed));
        let base = self.area + SB + u64::from(number * TRAY_PAGES) * PAGE;
        let stuck = tray.stuck.load(Relaxed);
        let mut clean = stuck;
        if self.ring.keep_clean.load(Relaxed) == 0 {
            for_each_run(tray.hand_over.filled() & !stuck, |first, pages| {
                if !self.populate_write(base + u64::from(first) * PAGE, pages) {
                    let is_clean = |slot: &u32| !self.populate_write(base + u64::from(*slot) * PAGE, 1);
                    clean |= (first..first + pages).filter(is_clean).fold(0, |bits, slot| bits | mask(slot, 1));
                }
            });
        }
        tray.clean.store(clean, SeqCst);
    }

    /// Drops a tray's pages. If the kernel refuses the call, the memory stays; the tray remembers
    /// that, because its next pages could be mistaken for the old ones.
    fn drop_tray(&self, tray: &OrderTray, number: u32, inherited: bool) {
        let offset = u64::from(number * TRAY_PAGES) * PAGE;
        let length = u64::from(TRAY_PAGES) * PAGE;
        let halves = [self.area + SB + offset, self.area + SA + offset];
        let mut answer = 0;
        for half in &halves[..if inherited { 2 } else { 1 }] {
            // SAFETY: staging slots whose pages the engine has taken.
            answer = answer
                .min(unsafe { call(syscall::MADVISE, [*half as usize, length as usize, MADV_DONTNEED, 0, 0, 0]) });
        }
        tray.leftovers.store(answer.unsigned_abs() as u32, Relaxed);
    }
}

fn publish(tray: &OrderTray, index: usize, result: RunResult) {
    publish_answer(tray, index, result, 0);
}

fn publish_answer(tray: &OrderTray, index: usize, result: RunResult, answer: isize) {
    tray.runs[index].result.store(result.with_answer(answer as i32), Relaxed);
    tray.runs_done.store(index as u32 + 1, Release);
}

/// Calls `act` with the first slot and the length of each run of set bits.
fn for_each_run(slots: u64, mut act: impl FnMut(u32, u32)) {
    let mut left = slots;
    while left != 0 {
        let first = left.trailing_zeros();
        let pages = leading_ones(left >> first);
        act(first, pages);
        left &= !mask(first, pages);
    }
}

/// Bits `first .. first + pages`.
fn mask(first: u32, pages: u32) -> u64 {
    let ones = if pages >= 64 { u64::MAX } else { (1 << pages) - 1 };
    ones << first
}

fn leading_ones(bits: u64) -> u32 {
    (!bits).trailing_zeros()
}

fn move_pages(fd: i32, destination: u64, source: u64, length: u64, mode: u64) -> isize {
    let mut argument = Move { destination, source, length, mode, moved: 0 };
    // SAFETY: struct uffdio_move; the destination is a staging slot of ours. The gate decides which
    // source is allowed.
    unsafe { syscall::ioctl(fd, UFFDIO_MOVE, &mut argument) }
}
