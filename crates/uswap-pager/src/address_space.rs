//! The interface between a pager and the memory that it manages.
//!
//! A pager evicts pages in two steps. First it *stages* them: they leave their place in the address
//! space and lie, uncompressed, each in a slot beside it. Then it stores them and drops the slots.
//! A page that is touched is installed again. All of this goes through the methods of
//! [`AddressSpace`], so the pager depends neither on processes nor on the kernel: its tests run
//! against a map of pages (the folder `fake`).
//!
//! Slots come in trays of [`TRAY_PAGES`](uswap_abi::layout::TRAY_PAGES). Another party (the agent)
//! executes the orders for a tray while the pager goes on with other work;
//! [`AddressSpace::completed`] tells how far the orders have come. While the *gate* is closed no
//! page moves.

use std::fmt::Debug;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use uswap_abi::layout::TRAY_PAGES;
use uswap_abi::ring::RunResult;
use uswap_sys::io::events::Poller;
use uswap_sys::procfs::pagemap::PresentRun;
use uswap_sys::userfaultfd::Install;

use crate::context::{EngineContext, Mailbox};
use crate::event_loop::{Fault, Pager};
use crate::fault::served::Served;
use crate::reclaim::staging::PageRun;
use crate::runner::Runner;
use crate::space::Space;

/// A change of the mappings.
#[derive(Debug)]
pub enum Change<M> {
    /// A range was unmapped.
    Unmap(Range<u64>),
    /// The pages of a range were dropped; the mapping stays.
    Remove(Range<u64>),
    /// Pages moved with their mapping.
    Remap {
        /// Their old address.
        from: u64,
        /// Their new address.
        to: u64,
        /// Length in bytes.
        length: u64,
        /// The mapping also stays where it was, empty.
        leaves: bool,
    },
    /// A copy of the whole memory was made.
    Fork(Box<M>),
}

/// The outcome of the runs that were ordered into a tray.
#[derive(Clone, Copy, Debug)]
pub struct Filled {
    /// Results, one for each run.
    pub results: [RunResult; TRAY_PAGES as usize],
    /// The error number with which the kernel refused the first run, if it did.
    pub errno: i32,
    /// Slots whose page may lie in either of two places.
    pub stuck: u64,
    /// Slots whose page the kernel may take, because the program had freed it.
    pub clean: u64,
}

/// Reads staged pages from a thread other than the pager's.
pub trait StagedReader: Debug + Send {
    /// Reads the pages at these places one after the other. Returns `false` if not all of them
    /// could be read. With `trust`, for tests, it does not verify that the memory is still the one
    /// that was meant.
    fn read(&self, places: &[u64], bytes: &mut [u8], trust: bool) -> bool;

    /// For tests: lets a read fail, of a slot that no test uses.
    fn read_missing(&self);
}

/// Memory that a pager evicts from and installs into. One thread owns it: the pager's thread.
///
/// Functions without `self` get the pager and the space that the memory belongs to, because they
/// may change both.
pub trait AddressSpace: Debug + Sized + Send + 'static {
    /// State that all threads share for this kind of memory.
    type Shared: Send + Sync;
    /// State that each pager keeps for this kind of memory.
    type PerOwner;
    /// Messages to a pager from the threads that look after this kind of memory.
    type Message: Debug + Send;
    /// The reader of staged pages for other threads.
    type Reader: StagedReader;

    // --- The pager thread -------------------------------------------------------------------------------------------

    /// Makes the state that a pager keeps; called before its thread begins.
    fn per_owner(mailbox: &Arc<Mailbox<Self>>) -> Self::PerOwner;

    /// Called when the pager thread begins.
    fn begin(pager: &mut Pager<Self>);

    /// Receives a message.
    fn receive(pager: &mut Pager<Self>, message: Self::Message);

    /// Called at the end of each round of the event loop.
    fn went_round(pager: &mut Pager<Self>);

    /// Called when something is to be tried again.
    fn retry(pager: &mut Pager<Self>);

    /// Called now and then, for regular work.
    fn sweep(pager: &mut Pager<Self>);

    /// Called when a page is about to be served.
    fn keep_place(pager: &Pager<Self>);

    /// The processor on which the thread that waits for the page is expected to run.
    fn processor(pager: &Pager<Self>) -> Option<u32>;

    /// Whether the thread is in a system call, or cannot be looked at.
    fn is_in_system_call(thread: u32) -> bool;

    /// Whether nothing may be evicted because all memory is being given back for good.
    fn is_leaving(shared: &EngineContext<Self>) -> bool;

    /// Whether the memory of this process may be queried.
    fn is_member(shared: &EngineContext<Self>, pid: u32) -> bool;

    /// Whether both processes use the same memory.
    fn share_memory(one: u32, other: u32) -> bool;

    // --- Identity ---------------------------------------------------------------------------------------------------

    /// The name of the memory in messages: "python3 (process 4711)".
    fn label(&self) -> String;

    /// The process that uses the memory, once it is known: pages are charged to its account.
    fn process(&self) -> Option<u32>;

    /// Whether the memory still exists.
    fn is_alive(&self) -> bool;

    /// Whether the memory has ended and no event will say so.
    fn is_gone(&self) -> bool;

    /// Whether this is a copy of managed memory, made by a fork.
    fn is_copy(&self) -> bool;

    /// First address of the area that the mechanism itself uses; 0: unknown.
    fn own_start(&self) -> u64;

    /// Whether the page belongs to the mechanism and not to the program.
    fn is_own(&self, address: u64) -> bool;

    /// Whether a fault on this page of the mechanism is the question whether the program may fork.
    fn asks_to_fork(&self, address: u64) -> bool;

    /// Registers its faults and changes with the poller, under this token.
    ///
    /// # Errors
    /// ENOMEM, ENOSPC: no more memory can be watched.
    fn watch(&self, poller: &Poller, token: u64) -> io::Result<()>;

    /// Called when another event source of the space is ready. `source` is its number, 2 or 3.
    fn is_ready(pager: &mut Pager<Self>, space: &mut Space<Self>, source: u64);

    /// Regular work on one space, ten times a second.
    fn look_after(pager: &mut Pager<Self>, space: &mut Space<Self>);

    /// Called when the space has been removed.
    fn was_removed(pager: &mut Pager<Self>, space: &Space<Self>);

    /// The threads that run in the memory, for load control.
    fn runner(&self) -> Runner;

    /// The process to be asked whether the fault of this thread may be held. `None`: it may not, or
    /// no process can be asked.
    fn may_hold(&self, thread: u32) -> Option<u32>;

    // --- Changes ----------------------------------------------------------------------------------------------------

    /// Reads faults and changes until none is left. Returns `false` while a change is under way, so
    /// that nothing may be applied yet.
    fn read(pager: &mut Pager<Self>, space: &mut Space<Self>, faults: &mut Vec<Fault>) -> bool;

    /// Whether changes were read that have not been taken yet.
    fn is_changing(&self) -> bool;

    /// Takes the changes that were read, in the order in which they happened, each with the moment
    /// at which it did.
    fn take_changes(pager: &Pager<Self>, space: &mut Space<Self>) -> Vec<(Change<Self>, u64)>;

    /// Applies what is known to have happened up to this moment; the change of that moment is
    /// applied next.
    fn comes_to(space: &mut Space<Self>, moment: u64);

    /// Called after a change was applied.
    fn was_applied(&mut self, change: &Change<Self>);

    /// Ranges that a copy made now does not contain. `last`: no more changes are left to be
    /// applied.
    fn excluded_from_fork(pager: &mut Pager<Self>, space: &mut Space<Self>, last: bool) -> Vec<(u64, u64)>;

    /// Called when `copy` was made of `parent`, after the pager's own state of the copy is
    /// complete.
    fn begin_copy(parent: &Space<Self>, copy: &mut Space<Self>);

    /// Learns what is managed at `address`, where a fault came although nothing is known to be
    /// managed there: of this page alone, or of its whole mapping.
    fn learn(space: &mut Space<Self>, address: u64, page_alone: bool);

    /// Whether all managed memory is known to be managed in every later copy as well; nothing may
    /// be evicted before that.
    fn is_settled(pager: &mut Pager<Self>, space: &mut Space<Self>) -> bool;

    // --- Installing -------------------------------------------------------------------------------------------------

    /// Installs whole pages. Put off while changes wait, since the page table may be out of date
    /// for this address.
    fn copy(&self, address: u64, pages: &[u8]) -> Install;

    /// Installs pages at once and wakes no thread (for tests).
    fn copy_quietly(&self, address: u64, pages: &[u8]);

    /// Installs zero pages; put off like `copy`.
    fn zero(&self, address: u64, length: u64) -> Install;

    /// Makes touches raise SIGBUS from now on; put off like `copy`.
    fn poison(&self, address: u64, length: u64) -> Install;

    /// Wakes the threads that wait for pages of the range.
    fn wake(&self, address: u64, length: u64);

    /// Makes each write to pages of the range raise a fault from now on.
    ///
    /// # Errors
    /// `WouldBlock`: a change is pending. Other errors: the range is no longer managed.
    fn protect(&self, address: u64, length: u64) -> io::Result<()>;

    /// Takes the write protection back and wakes the threads that wait.
    ///
    /// # Errors
    /// As `protect`.
    fn unprotect(&self, address: u64, length: u64) -> io::Result<()>;

    /// Pages that must never be write-protected, in order.
    fn never_protected(&self) -> Vec<u64>;

    /// Serves a fault on a page of the mechanism.
    fn serve_own(pager: &mut Pager<Self>, space: &mut Space<Self>, address: u64) -> Served;

    // --- Contents ---------------------------------------------------------------------------------------------------

    /// Whether the page is present; `None`: unknown.
    fn is_present(&self, address: u64) -> Option<bool>;

    /// Finds the present pages of a range, in order. Returns how many runs were found and where the
    /// walk ended.
    ///
    /// # Errors
    /// The pages cannot be queried.
    fn present(&self, start: u64, end: u64, runs: &mut [PresentRun]) -> io::Result<(usize, u64)>;

    /// Number of present pages, staged ones included.
    fn pages_present(&self) -> Option<i64>;

    /// Whether the page is managed; `None`: unknown now.
    fn is_registered(&self, address: u64) -> Option<bool>;

    /// Whether pages that are shared with other address spaces can be told from others.
    fn knows_sharing(&self) -> bool;

    /// Whether the page is not shared. Also true where that is unknown.
    fn is_exclusive(&mut self, address: u64) -> bool;

    // --- Staging ----------------------------------------------------------------------------------------------------

    /// Whether pages can be staged now.
    fn can_stage(&self) -> bool;

    /// Whether there is an agent that executes orders.
    fn is_served(&self) -> bool;

    /// Whether the agent is stopped, so that orders are not executed for now.
    fn is_stopped(&self) -> bool;

    /// Whether the agent has gone, so that pages may be on no list.
    fn is_orphaned(&self) -> bool;

    /// Closes the gate: no page moves from now on. Returns `false` if a page may still move; the
    /// gate stays closed in that case too.
    fn close_gate(&mut self) -> bool;

    /// Whether the gate is closed.
    fn is_gate_closed(&self) -> bool;

    /// Opens the gate: pages may move again.
    fn open_gate(&mut self);

    /// Orders the runs into a tray. With `drop_first`, pages that the parent left in the tray are
    /// dropped before. Returns the number of orders.
    fn order_fill(&self, tray: u32, runs: &[PageRun], drop_first: bool) -> u32;

    /// Orders the memory of a tray to be given back. With `both`, in both places of its slots.
    fn order_drop(&self, tray: u32, both: bool);

    /// Whether at least this many orders have been completed for the tray, and which of its slots
    /// hold a page.
    fn completed(&self, tray: u32, orders: u32) -> (bool, u64);

    /// Those of these slots that hold a page although the agent could not report it.
    fn found_unseen(&self, tray: u32, ordered: u64) -> u64;

    /// The outcome of the runs of a tray, once its orders are completed.
    fn filled(&self, tray: u32) -> Option<Filled>;

    /// Cancels run `run` of the tray: it is not executed, unless it has begun.
    fn cancel(&self, tray: u32, run: u32);

    /// Counts whether all runs of a tray were refused. Returns `true` when enough trays in a row
    /// were refused for nothing to be ordered for a while.
    fn count_refusal(&mut self, refused: bool, now: Instant) -> bool;

    /// Whether the program may have replaced pages that look managed, so that a refusal does not
    /// prove anything.
    fn is_opaque(&self) -> bool;

    /// Whether neither place of the slot holds a page; `false` also where that is unknown.
    fn is_slot_empty(&self, slot: u32) -> bool;

    /// The address of the page of a slot. With `inherited` it may be in either of the two places of
    /// the slot.
    fn place_of(&self, slot: u32, inherited: bool) -> Option<u64>;

    /// Whether staged pages can be read. `false`: the process that uses the memory was not found
    /// yet, and is searched for.
    fn can_read(pager: &mut Pager<Self>, space: &mut Space<Self>) -> bool;

    /// Whether several staged pages can be read at once.
    fn reads_many(&self) -> bool;

    /// Reads staged pages from their places, like [`StagedReader::read`].
    fn read_staged(&self, places: &[u64], bytes: &mut [u8], trust: bool) -> bool;

    /// A reader of staged pages for another thread; `None`: there is no agent any more.
    fn reader(&self) -> Option<Self::Reader>;
}
