//! The queue of orders, and the protocol by which its consumer goes to sleep without losing a
//! wake-up.
//!
//! One producer (the engine), one consumer (the agent). Producer and consumer each write a word of
//! their own and then read the other's, with a sequentially consistent fence in between, so at
//! least one of them sees the other:
//!
//! ```text
//! producer                         consumer
//! tail += 1                        sleeping = 1
//! fence                            fence
//! sleeping == 1 ? ring the bell    head == tail ? sleep : sleeping = 0
//! ```
//!
//! If the bell is rung although the queue is empty, the consumer wakes up once too often, which
//! does no harm.

use crate::atomic::{
    AtomicU32,
    Ordering::{Acquire, Relaxed, Release, SeqCst},
    fence,
};

/// A queue of at most `LENGTH` words, a power of two. All zero is an empty queue whose consumer is
/// awake.
#[repr(C)]
#[derive(Debug)]
pub struct Queue<const LENGTH: usize> {
    /// 1 while the consumer sleeps, or is about to: a push must ring the bell.
    sleeping: AtomicU32,
    /// Words taken since the start. Written by the consumer only.
    head: AtomicU32,
    /// Words pushed since the start. Written by the producer only.
    tail: AtomicU32,
    words: [AtomicU32; LENGTH],
}

impl<const LENGTH: usize> Queue<LENGTH> {
    const POWER_OF_TWO: () = assert!(LENGTH.is_power_of_two(), "the counters wrap around at 2^32");

    /// An empty queue.
    pub fn new() -> Self {
        let () = Self::POWER_OF_TWO;
        let zero = || AtomicU32::new(0);
        Self { sleeping: zero(), head: zero(), tail: zero(), words: core::array::from_fn(|_| zero()) }
    }

    /// Producer: pushes a word. Returns whether the bell must be rung. The caller knows that there
    /// is room.
    #[must_use]
    pub fn push(&self, word: u32) -> bool {
        let () = Self::POWER_OF_TWO;
        let tail = self.tail.load(Relaxed);
        self.words[tail as usize % LENGTH].store(word, Relaxed);
        self.tail.store(tail.wrapping_add(1), Release);
        fence(SeqCst);
        self.sleeping.load(Relaxed) == 1
    }

    /// Consumer: takes the oldest word.
    pub fn pop(&self) -> Option<u32> {
        let head = self.head.load(Relaxed);
        if head == self.tail.load(Acquire) {
            return None;
        }
        let word = self.words[head as usize % LENGTH].load(Relaxed);
        self.head.store(head.wrapping_add(1), Release);
        Some(word)
    }

    /// Consumer: announces that it is about to sleep. `false`: a word arrived meanwhile, do not
    /// sleep.
    #[must_use]
    pub fn prepare_sleep(&self) -> bool {
        self.sleeping.store(1, Relaxed);
        fence(SeqCst);
        if self.head.load(Relaxed) == self.tail.load(Relaxed) {
            return true;
        }
        self.awake();
        false
    }

    /// Consumer: announces that it is awake.
    pub fn awake(&self) {
        self.sleeping.store(0, Relaxed);
    }
}

impl<const LENGTH: usize> Default for Queue<LENGTH> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn words_come_out_in_order_also_when_the_counters_wrap_around() {
        let queue = Queue::<4>::new();
        for counter in [&queue.head, &queue.tail] {
            counter.store(u32::MAX - 5, Relaxed);
        }
        for round in 0..20 {
            for word in 0..4 {
                assert!(!queue.push(round * 4 + word));
            }
            for word in 0..4 {
                assert_eq!(queue.pop(), Some(round * 4 + word));
            }
            assert_eq!(queue.pop(), None);
        }
    }

    #[test]
    fn a_sleeper_asks_for_the_bell_and_does_not_sleep_on_a_full_queue() {
        let queue = Queue::<2>::new();
        assert!(queue.prepare_sleep());
        assert!(queue.push(1));
        queue.awake();
        assert!(!queue.push(2));
        assert!(!queue.prepare_sleep());
    }
}
