//! The two-thread protocols under every interleaving that the memory model allows:
//! `RUSTFLAGS="--cfg loom" cargo test -p uswap-abi --release`.
//!
//! All shared data besides the protocol's own words is accessed with relaxed ordering on purpose:
//! the result is right only if the protocol orders these accesses.

use loom::sync::atomic::{AtomicU32, Ordering::Relaxed};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

use crate::gate::Gate;
use crate::hand_over::HandOver;
use crate::queue::Queue;

/// Pages that the modelled order moves; the agent enters the gate once for each.
const PAGES: u32 = 2;

/// How often the modelled agent tries to enter the gate before it leaves the rest for later (a
/// model must end).
const KNOCKS: u32 = 3;

/// The state that the gate protects: the program's pages, the results, the cancellation.
struct World {
    gate: Gate,
    /// The agent is inside MOVE.
    moving: AtomicU32,
    /// The pager thread reads and applies events.
    reading: AtomicU32,
    /// Set by the pager thread when an event touches the order's range.
    cancelled: AtomicU32,
    /// Pages that the agent reports as moved so far; stands for the results in the ring.
    moved: AtomicU32,
    /// The mapping's generation: each event puts new pages at the same address.
    mapping: AtomicU32,
}

impl World {
    fn new() -> Self {
        let zero = || AtomicU32::new(0);
        Self { gate: Gate::new(), moving: zero(), reading: zero(), cancelled: zero(), moved: zero(), mapping: zero() }
    }

    /// The agent: an order decided when the mapping was of generation 0.
    fn execute(&self) {
        for _ in 0..KNOCKS {
            if self.moved.load(Relaxed) == PAGES {
                return;
            }
            if !self.gate.enter() {
                thread::yield_now();
                continue;
            }
            if self.cancelled.load(Relaxed) == 1 {
                return self.gate.leave();
            }
            self.moving.store(1, Relaxed);
            assert_eq!(self.reading.load(Relaxed), 0, "MOVE while events are read");
            assert_eq!(self.mapping.load(Relaxed), 0, "MOVE out of a mapping that the order does not mean");
            self.moved.store(self.moved.load(Relaxed) + 1, Relaxed);
            self.moving.store(0, Relaxed);
            self.gate.leave();
        }
    }

    /// The pager thread: reads one event that touches the range. Returns the results that it has
    /// absorbed.
    fn read_event(&self) -> u32 {
        self.gate.close();
        while !self.gate.is_quiet() {
            thread::yield_now();
        }
        assert_eq!(self.moving.load(Relaxed), 0, "events are read during a MOVE");
        self.reading.store(1, Relaxed);
        let absorbed = self.moved.load(Relaxed);
        self.mapping.store(self.mapping.load(Relaxed) + 1, Relaxed);
        self.cancelled.store(1, Relaxed);
        self.reading.store(0, Relaxed);
        self.gate.open();
        absorbed
    }
}

#[test]
fn every_move_is_before_or_after_an_event_and_absorbed_or_cancelled() {
    loom::model(|| {
        let world = Arc::new(World::new());
        let agent = {
            let world = world.clone();
            thread::spawn(move || world.execute())
        };
        let absorbed = world.read_event();
        agent.join().expect("agent");
        assert_eq!(world.moved.load(Relaxed), absorbed, "a page moved that the owner does not know of");
    });
}

#[test]
fn two_events_in_a_row_keep_the_gate_sound() {
    loom::model(|| {
        let world = Arc::new(World::new());
        let agent = {
            let world = world.clone();
            thread::spawn(move || world.execute())
        };
        let first = world.read_event();
        let second = world.read_event();
        agent.join().expect("agent");
        assert_eq!((first, second), (second, world.moved.load(Relaxed)), "an order went on after it was cancelled");
    });
}

#[test]
fn an_event_elsewhere_lets_the_order_finish() {
    loom::model(|| {
        let world = Arc::new(World::new());
        let agent = {
            let world = world.clone();
            thread::spawn(move || world.execute())
        };
        world.gate.close();
        while !world.gate.is_quiet() {
            thread::yield_now();
        }
        let absorbed = world.moved.load(Relaxed);
        assert!(absorbed <= PAGES);
        world.gate.open();
        agent.join().expect("agent");
        world.execute();
        assert_eq!(world.moved.load(Relaxed), PAGES);
    });
}

/// The state of a page by the pager's page word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Word {
    InFlight,
    Resident,
    Staged,
}

/// The bytes of a page; 0 is a missing page, or an empty slot.
const BYTES: u32 = 7;

/// A mistake in the protocol that the model must find.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mistake {
    None,
    /// The agent publishes an arrival only after it has left the gate.
    TellsOutside,
    /// The pager thread reads the arrivals before it reads whether the order is completed.
    LooksInWrongOrder,
}

/// A tray of two pages, each a run of its own, on its way from the program to the staging slots.
struct Transfer {
    gate: Gate,
    hand_over: HandOver,
    /// Where the pages were when the order was decided.
    before: [AtomicU32; PAGES as usize],
    /// Where mremap takes them.
    after: [AtomicU32; PAGES as usize],
    slots: [AtomicU32; PAGES as usize],
}

impl Transfer {
    fn new() -> Self {
        let cells = |bytes| std::array::from_fn(|_| AtomicU32::new(bytes));
        Self { gate: Gate::new(), hand_over: HandOver::new(), before: cells(BYTES), after: cells(0), slots: cells(0) }
    }

    fn execute(&self, pages: u32, mistake: Mistake) {
        (0..pages).for_each(|page| self.execute_run(page, mistake));
        self.hand_over.complete();
    }

    /// The agent's part; pages that do not get through the gate in time are given back.
    fn execute_run(&self, page: u32, mistake: Mistake) {
        for _ in 0..KNOCKS {
            if !self.gate.enter() {
                thread::yield_now();
                continue;
            }
            if self.hand_over.is_cancelled(page) {
                return self.gate.leave();
            }
            let bytes = self.before[page as usize].load(Relaxed);
            self.before[page as usize].store(0, Relaxed);
            self.slots[page as usize].store(bytes, Relaxed);
            if mistake == Mistake::TellsOutside {
                self.gate.leave();
                self.hand_over.arrived(1 << page);
                return;
            }
            self.hand_over.arrived(1 << page);
            return self.gate.leave();
        }
    }
}

/// The pager thread that owns this tray.
struct Pages<'a> {
    transfer: &'a Transfer,
    mistake: Mistake,
    words: [Word; PAGES as usize],
    ordered: u64,
    remapped: bool,
}

impl<'a> Pages<'a> {
    fn new(transfer: &'a Transfer, count: u32, mistake: Mistake) -> Self {
        let words = [Word::InFlight; PAGES as usize];
        Self { transfer, mistake, words, ordered: (1 << count) - 1, remapped: false }
    }

    fn absorb(&mut self) {
        let hand_over = &self.transfer.hand_over;
        let (completed, filled) = if self.mistake == Mistake::LooksInWrongOrder {
            let filled = hand_over.look(1).1;
            (hand_over.look(1).0, filled)
        } else {
            hand_over.look(1)
        };
        let new = filled & self.ordered;
        self.ordered &= !new;
        self.set(new, Word::Staged);
        if completed {
            let stayed = std::mem::take(&mut self.ordered);
            self.set(stayed, Word::Resident);
        }
    }

    fn set(&mut self, pages: u64, word: Word) {
        (0..PAGES as usize).filter(|page| pages & 1 << page != 0).for_each(|page| self.words[page] = word);
    }

    /// mremap of the first page: with the gate closed the pager thread absorbs the ring and cancels
    /// the order, and the page word moves along.
    fn remap(&mut self) {
        let transfer = self.transfer;
        transfer.gate.close();
        while !transfer.gate.is_quiet() {
            thread::yield_now();
        }
        self.absorb();
        transfer.hand_over.cancel(0);
        if self.ordered & 1 != 0 {
            self.ordered &= !1;
            self.words[0] = Word::Resident;
        }
        transfer.after[0].store(transfer.before[0].load(Relaxed), Relaxed);
        transfer.before[0].store(0, Relaxed);
        self.remapped = true;
        transfer.gate.open();
    }

    /// The program touches a page; where it is missing the word decides.
    fn touch(&mut self, page: usize) {
        let moved = self.remapped && page == 0;
        let cell = if moved { &self.transfer.after[page] } else { &self.transfer.before[page] };
        match (cell.load(Relaxed), self.words[page]) {
            // An order is under way: the fault waits for its outcome.
            (0, Word::InFlight) => {}
            (0, Word::Staged) => {
                cell.store(self.transfer.slots[page].load(Relaxed), Relaxed);
                self.words[page] = Word::Resident;
                assert_eq!(cell.load(Relaxed), BYTES, "page {page} comes back with other bytes");
            }
            (0, Word::Resident) => panic!("page {page} reads as zeros"),
            (bytes, word) => {
                assert_eq!(bytes, BYTES, "page {page} has other bytes");
                assert_ne!(word, Word::Staged, "page {page} is in two places");
            }
        }
    }
}

/// With an event one page is enough, and two would take minutes.
fn hand_over(mistake: Mistake, events: bool) {
    let count = if events { 1 } else { PAGES };
    loom::model(move || {
        let transfer = Arc::new(Transfer::new());
        let agent = {
            let transfer = transfer.clone();
            thread::spawn(move || transfer.execute(count, mistake))
        };
        let mut pages = Pages::new(&transfer, count, mistake);
        if events {
            pages.remap();
        } else {
            // The agent has notified: looking does not need the gate.
            pages.absorb();
        }
        agent.join().expect("agent");
        pages.absorb();
        let words = &pages.words[..count as usize];
        assert!(!words.contains(&Word::InFlight), "the fate of a page is never told");
        (0..count as usize).for_each(|page| pages.touch(page));
    });
}

#[test]
fn every_page_is_where_its_word_says() {
    hand_over(Mistake::None, false);
}

#[test]
fn every_page_is_where_its_word_says_after_a_remap() {
    hand_over(Mistake::None, true);
}

#[test]
#[should_panic(expected = "reads as zeros")]
fn an_arrival_that_is_told_outside_the_gate_is_found() {
    hand_over(Mistake::TellsOutside, true);
}

#[test]
#[should_panic(expected = "reads as zeros")]
fn looking_in_the_wrong_order_is_found() {
    hand_over(Mistake::LooksInWrongOrder, false);
}

/// Orders that are pushed; the queue is just as long, so that all may lie in it.
const ORDERS: u32 = 2;

/// The socket that the agent sleeps in: bytes that wait to be read.
#[derive(Default)]
struct Bell {
    bytes: Mutex<u32>,
    rung: Condvar,
}

impl Bell {
    fn ring(&self) {
        *self.bytes.lock().expect("bytes") += 1;
        self.rung.notify_one();
    }

    fn sleep(&self) {
        let mut bytes = self.bytes.lock().expect("bytes");
        while *bytes == 0 {
            bytes = self.rung.wait(bytes).expect("bytes");
        }
        *bytes = 0;
    }
}

#[test]
fn no_order_is_lost_or_changed_and_no_wake_up_is_missed() {
    loom::model(|| {
        let shared = Arc::new((Queue::<{ ORDERS as usize }>::new(), Bell::default()));
        let agent = {
            let shared = shared.clone();
            thread::spawn(move || {
                let (queue, bell) = &*shared;
                let mut taken = 0;
                while taken < ORDERS {
                    if let Some(word) = queue.pop() {
                        assert_eq!(word, 100 + taken);
                        taken += 1;
                    } else if queue.prepare_sleep() {
                        // A wake-up that was missed is a deadlock, which loom reports.
                        bell.sleep();
                        queue.awake();
                    }
                }
            })
        };
        for order in 0..ORDERS {
            if shared.0.push(100 + order) {
                shared.1.ring();
            }
        }
        agent.join().expect("agent");
    });
}
