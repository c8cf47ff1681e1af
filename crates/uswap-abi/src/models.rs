//! The two-thread protocols under every interleaving that the memory model allows:
//! `RUSTFLAGS="--cfg loom" cargo test -p uswap-abi --release`.
//!
//! What is shared besides the protocol's own words is accessed with relaxed ordering on purpose: it is right only if
//! the protocol orders it.

use loom::sync::atomic::{AtomicU32, Ordering::Relaxed};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

use crate::gate::Gate;
use crate::queue::Queue;

/// Pages that the modelled order moves, one gate passage each.
const PAGES: u32 = 2;

/// How often the modelled agent knocks before it leaves the rest for later (a model must end).
const KNOCKS: u32 = 3;

/// What the gate protects: the program's pages, the results, the cancellation.
struct World {
    gate: Gate,
    /// The agent is inside MOVE.
    moving: AtomicU32,
    /// The owner reads and applies events.
    reading: AtomicU32,
    /// Set by the owner when an event touches the order's range.
    cancelled: AtomicU32,
    /// Pages moved so far, by the agent's account: the ring's results.
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

    /// The owner: reads one event that touches the range. Returns the results it has absorbed.
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
