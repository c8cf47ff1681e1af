//! The ring: orders from the engine, results from the agent.
//!
//! A *tray* is 64 consecutive staging slots and the order that concerns them. The engine fills in a
//! tray's runs and pushes its number with an operation; the agent executes the order and publishes
//! the results run by run (so that the pager thread can absorb what happened before an event) and
//! at last the tray as a whole. One producer (the pager thread that owns the space), one consumer
//! (the agent).

use crate::atomic::{AtomicU32, AtomicU64};
use crate::gate::Gate;
use crate::hand_over::HandOver;
use crate::layout::{TRAY_PAGES, TRAYS};
use crate::queue::Queue;
use crate::thread_list::ThreadList;

/// Places in the queue of orders: each tray is in it at most twice (to be filled, then to be
/// dropped).
pub const QUEUE: usize = 2 * TRAYS as usize;

/// The operation that the agent is to carry out on a tray.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Operation {
    /// Move the runs out of the program into the tray (under the gate), then from SA to SB.
    Fill = 1,
    /// Give the memory of the tray in SB back to the system.
    Drop = 2,
    /// The same for a tray inherited by a fork child, whose pages can lie in either half.
    DropInherited = 3,
}

impl Operation {
    /// The operation with this number.
    pub fn from_bits(bits: u32) -> Option<Self> {
        match bits {
            1 => Some(Self::Fill),
            2 => Some(Self::Drop),
            3 => Some(Self::DropInherited),
            _ => None,
        }
    }
}

/// The errno stands in the bits above the number of a [`RunResult`].
const ERRNO_SHIFT: u32 = 8;

/// The errno of a packed result; 0: there is none.
#[must_use]
pub fn errno_of(bits: u32) -> i32 {
    (bits >> ERRNO_SHIFT) as i32
}

/// Why a run did not go (wholly) into its tray. Only [`HandOver`] tells which of its pages did go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum RunResult {
    /// Not executed yet.
    Pending = 0,
    /// Everything moved.
    Moved = 1,
    /// The pager thread cancelled it: an event concerned the range.
    Cancelled = 2,
    /// A thread's control block or a robust futex lies in it: left alone.
    ThreadPage = 3,
    /// The kernel refused: shared by a fork, or pinned (EBUSY).
    Busy = 4,
    /// The kernel refused the range: border of a mapping, protection, mlock (EINVAL), a guard
    /// (EFAULT), or nothing there (ENOENT).
    Refused = 5,
    /// An event is pending (EAGAIN) for longer than the agent waits.
    Again = 6,
    /// The address space is gone (ESRCH), or the kernel returned an unexpected errno.
    Gone = 7,
}

impl RunResult {
    /// The number of this result, with the kernel's answer (a negative errno) if that is worth
    /// knowing.
    #[must_use]
    pub fn with_answer(self, answer: i32) -> u32 {
        self as u32 | answer.unsigned_abs() << ERRNO_SHIFT
    }

    /// The result with this number; an unknown one is [`RunResult::Gone`].
    pub fn from_bits(bits: u32) -> Self {
        match bits & ((1 << ERRNO_SHIFT) - 1) {
            0 => Self::Pending,
            1 => Self::Moved,
            2 => Self::Cancelled,
            3 => Self::ThreadPage,
            4 => Self::Busy,
            5 => Self::Refused,
            6 => Self::Again,
            _ => Self::Gone,
        }
    }
}

/// Set in [`OrderRun::what`]: break fork sharing first (MADV_POPULATE_WRITE).
pub const UNSHARE: u64 = 1 << 11;

/// Pages that are neighbours in the program and go to neighbouring slots.
#[repr(C)]
#[derive(Debug)]
pub struct OrderRun {
    /// Address (page aligned) | [`UNSHARE`] | pages (1 to 64, low bits).
    pub what: AtomicU64,
    /// First slot within the tray.
    pub slot: AtomicU32,
    /// [`RunResult::with_answer`].
    pub result: AtomicU32,
}

impl OrderRun {
    /// Packs address, page count and flag.
    pub fn pack(address: u64, pages: u32, unshare: bool) -> u64 {
        address | u64::from(pages) | if unshare { UNSHARE } else { 0 }
    }

    /// Address and page count (clamped to a tray) of a packed word.
    pub fn unpack(what: u64) -> (u64, u32, bool) {
        ((what & !0xfff), ((what & 0xff) as u32).clamp(1, TRAY_PAGES), what & UNSHARE != 0)
    }
}

/// 64 staging slots and the order that concerns them.
#[repr(C)]
#[derive(Debug)]
pub struct OrderTray {
    /// Runs in this order.
    pub run_count: AtomicU32,
    /// Runs whose result is published; the pager thread reads results below this number.
    pub runs_done: AtomicU32,
    /// Runs that are cancelled, slots that hold a page, and orders that are completed.
    pub hand_over: HandOver,
    /// Bit s: the agent could not move the page of slot s from SA to SB.
    pub stuck: AtomicU64,
    /// Bit s: slot s may hold a page, but the agent was not allowed to look; the pager thread looks
    /// instead.
    pub unseen: AtomicU64,
    /// Bit s: the kernel may take the page of slot s at any time, because the program had freed it
    /// (MADV_FREE) and the agent could not write to it.
    pub clean: AtomicU64,
    /// The errno of a drop that the kernel refused, so that the tray holds old pages. 0: it was not
    /// refused.
    pub leftovers: AtomicU32,
    padding: AtomicU32,
    /// The runs.
    pub runs: [OrderRun; TRAY_PAGES as usize],
}

/// The memory shared by one agent and the pager thread that owns its space.
#[repr(C)]
#[derive(Debug)]
pub struct Ring {
    /// Excludes the agent's MOVE and the pager thread's reading of events from each other.
    pub gate: Gate,
    /// 1 once the space has registered memory: from then on the program must not outlive its
    /// engine.
    pub active: AtomicU32,
    /// 1 where the program's pages may be write-protected.
    pub protects: AtomicU32,
    /// Fault point of tests: microseconds that the agent waits before it executes an order.
    pub order_delay: AtomicU32,
    /// Fault point of tests: microseconds that the agent stays inside the gate before a MOVE.
    pub move_delay: AtomicU32,
    /// Fault point of tests: 1 when the agent is to move threads' control blocks like other pages.
    pub forget_threads: AtomicU32,
    /// For tests: the agent takes one in this many successful moves for one that reported EEXIST
    /// after it moved (0: none).
    pub move_lies: AtomicU32,
    /// For tests: the agent believes what a move reports.
    pub trust_move: AtomicU32,
    /// For tests: the agent may not look which slots hold a page, as under a seccomp filter.
    pub blind: AtomicU32,
    /// For tests: the agent forgets memory that a tray could not drop.
    pub forget_leftovers: AtomicU32,
    /// For tests: an agent that is the last thread of its process stays.
    pub stay_last: AtomicU32,
    /// For tests: an agent whose engine and keeper are gone lets the program go on.
    pub careless: AtomicU32,
    /// For tests: hooks announce nothing.
    pub silent_hooks: AtomicU32,
    /// For tests: fork children do not inherit the staging slots.
    pub bare_staging: AtomicU32,
    /// Fault point of tests: microseconds that the agent waits before it writes to the pages that
    /// it has moved.
    pub dirty_delay: AtomicU32,
    /// For tests: the agent does not write to the pages that it has moved.
    pub keep_clean: AtomicU32,
    /// For tests: the agent does not make one in this many moves and reports EBUSY for it (0:
    /// none).
    pub busy: AtomicU32,
    /// The robust lists of the program's threads, where the agent may not ask the kernel for them.
    pub threads: ThreadList,
    /// Orders; while there are none the agent sleeps in a read of its socket.
    orders: Queue<QUEUE>,
    /// The trays.
    pub trays: [OrderTray; TRAYS as usize],
}

impl Ring {
    /// Engine: pushes an order. Returns whether the doorbell must be rung. The engine never has
    /// more than two orders per tray under way, so the queue cannot overflow.
    #[must_use]
    pub fn push(&self, operation: Operation, tray: u32) -> bool {
        self.orders.push((operation as u32) << 16 | tray)
    }

    /// Agent: takes the next order.
    pub fn pop(&self) -> Option<(Operation, u32)> {
        let order = self.orders.pop()?;
        Some((Operation::from_bits(order >> 16)?, (order & 0xffff).min(TRAYS - 1)))
    }

    /// Agent: announces that it is about to sleep. `false`: an order arrived meanwhile, do not
    /// sleep.
    #[must_use]
    pub fn prepare_sleep(&self) -> bool {
        self.orders.prepare_sleep()
    }

    /// Agent: announces that it is awake.
    pub fn awake(&self) {
        self.orders.awake();
    }
}
