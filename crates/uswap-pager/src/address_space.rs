//! What a pager asks of the memory that it manages.
//!
//! A pager evicts pages in two steps. It *stages* them: they leave their place and lie, as they
//! are, in a slot beside it. Then it stores them and drops the slots. A page that is touched comes
//! back by an installation. All this goes by the methods of [`AddressSpace`], so the pager knows
//! neither a process nor the kernel: its tests run against a vector of pages (the folder `fake`).
//!
//! Slots come in trays of [`TRAY_PAGES`](uswap_abi::layout::TRAY_PAGES). Orders for a tray are
//! executed by another party while the pager goes on; [`AddressSpace::completed`] tells how far
//! they have come. While the *gate* is closed no page moves.

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

/// Something that happened to the mappings.
#[derive(Debug)]
pub enum Change<M> {
    /// A range was unmapped.
    Unmap(Range<u64>),
    /// The pages of a range were dropped; the mapping stays.
    Remove(Range<u64>),
    /// Pages moved with their mapping.
    Remap {
        /// Where they were.
        from: u64,
        /// Where they are.
        to: u64,
        /// Bytes.
        length: u64,
        /// The mapping also stays where it was, empty.
        leaves: bool,
    },
    /// A copy of all the memory was made.
    Fork(Box<M>),
}

/// What became of the runs of a tray that were ordered.
#[derive(Clone, Copy, Debug)]
pub struct Filled {
    /// By run.
    pub results: [RunResult; TRAY_PAGES as usize],
    /// What the kernel said of the first run, if it refused it.
    pub errno: i32,
    /// Slots whose page may lie in either of two places.
    pub stuck: u64,
    /// Slots whose page the kernel may take: the program had freed it.
    pub clean: u64,
}

/// Reads staged pages from another thread than the pager's.
pub trait StagedReader: Debug + Send {
    /// Reads the pages at these places one after the other. `trust`: that it still is the memory
    /// that was meant is not looked at (for tests). `false`: they could not all be read.
    fn read(&self, places: &[u64], bytes: &mut [u8], trust: bool) -> bool;

    /// For tests: has a read fail, of a slot that no test reaches.
    fn read_missing(&self);
}

/// Memory that a pager evicts from and installs into. One thread owns it: the pager's.
///
/// Functions without `self` are given the pager and the space whose memory it is: they may change
/// both.
pub trait AddressSpace: Debug + Sized + Send + 'static {
    /// What all threads share because of this kind of memory.
    type Shared: Send + Sync;
    /// What each pager keeps for this kind of memory.
    type PerOwner;
    /// What a pager is told by whoever looks after such memory.
    type Message: Debug + Send;
    /// Reads staged pages.
    type Reader: StagedReader;

    // --- The pager's thread -----------------------------------------------------------------------------------------

    /// What a pager keeps, before its thread begins.
    fn per_owner(mailbox: &Arc<Mailbox<Self>>) -> Self::PerOwner;

    /// The pager's thread begins.
    fn begin(pager: &mut Pager<Self>);

    /// A message came.
    fn receive(pager: &mut Pager<Self>, message: Self::Message);

    /// The pager has been once round.
    fn went_round(pager: &mut Pager<Self>);

    /// Something is to be tried again.
    fn retry(pager: &mut Pager<Self>);

    /// Some time has passed.
    fn sweep(pager: &mut Pager<Self>);

    /// A page is about to be served.
    fn keep_place(pager: &Pager<Self>);

    /// The processor on which whoever waits for the page is expected.
    fn processor(pager: &Pager<Self>) -> Option<u32>;

    /// Whether the thread is in a system call, or cannot be looked at.
    fn is_in_system_call(thread: u32) -> bool;

    /// Whether nothing is to be evicted: all memory is being given back for good.
    fn is_leaving(shared: &EngineContext<Self>) -> bool;

    /// Whether this is a process whose memory may be asked about.
    fn is_member(shared: &EngineContext<Self>, pid: u32) -> bool;

    /// Whether both processes have the same memory.
    fn share_memory(one: u32, other: u32) -> bool;

    // --- Whose it is ------------------------------------------------------------------------------------------------

    /// Whose it is, for messages: "python3 (process 4711)".
    fn label(&self) -> String;

    /// The process whose memory it is, once known: its account is charged.
    fn process(&self) -> Option<u32>;

    /// Whether it still exists.
    fn is_alive(&self) -> bool;

    /// Whether it has ended and nobody will say so.
    fn is_gone(&self) -> bool;

    /// Whether it is a copy that was made of managed memory.
    fn is_copy(&self) -> bool;

    /// First address of what is the mechanism's own; 0: unknown.
    fn own_start(&self) -> u64;

    /// Whether the page is none of the program's: the mechanism's own.
    fn is_own(&self, address: u64) -> bool;

    /// Has the poller tell of its faults and changes by this token.
    ///
    /// # Errors
    /// ENOMEM, ENOSPC: no more can be watched.
    fn watch(&self, poller: &Poller, token: u64) -> io::Result<()>;

    /// Another source of news, by its number (2 or 3), has something to say.
    fn is_ready(pager: &mut Pager<Self>, space: &mut Space<Self>, source: u64);

    /// It is looked after, ten times a second.
    fn look_after(pager: &mut Pager<Self>, space: &mut Space<Self>);

    /// The space is taken apart.
    fn was_removed(pager: &mut Pager<Self>, space: &Space<Self>);

    /// Who runs in it, for load control.
    fn runner(&self) -> Runner;

    /// The process to be asked whether this thread of it may be held up; `None`: it may not, or
    /// nobody can be asked.
    fn may_hold(&self, thread: u32) -> Option<u32>;

    // --- Changes ----------------------------------------------------------------------------------------------------

    /// Reads faults and changes until none is left. `false`: a change is under way, and nothing may
    /// be applied yet.
    fn read(pager: &mut Pager<Self>, space: &mut Space<Self>, faults: &mut Vec<Fault>) -> bool;

    /// Whether changes were read that have not been taken.
    fn is_changing(&self) -> bool;

    /// Takes the changes that were read, in the order in which they happened, each with its moment.
    fn take_changes(pager: &Pager<Self>, space: &mut Space<Self>) -> Vec<(Change<Self>, u64)>;

    /// What happened up to this moment is in place from now on; the change of that moment is about
    /// to be applied.
    fn comes_to(space: &mut Space<Self>, moment: u64);

    /// A change was applied.
    fn was_applied(&mut self, change: &Change<Self>);

    /// Ranges that a copy made now does not have. `last`: no change is left to be applied.
    fn excluded_from_fork(pager: &mut Pager<Self>, space: &mut Space<Self>, last: bool) -> Vec<(u64, u64)>;

    /// `copy` was made of `parent`; all that the pager knows of it is in place.
    fn begin_copy(parent: &Space<Self>, copy: &mut Space<Self>);

    /// A fault came where nothing is known to be managed: learns what is, of the page alone or of
    /// all its mapping.
    fn learn(space: &mut Space<Self>, address: u64, page_alone: bool);

    /// Whether all that is managed is known to be so in every copy to come: nothing may be evicted
    /// before.
    fn is_settled(pager: &mut Pager<Self>, space: &mut Space<Self>) -> bool;

    // --- Installing -------------------------------------------------------------------------------------------------

    /// Installs whole pages; put off while changes wait, since what is known of the address can be
    /// old.
    fn copy(&self, address: u64, pages: &[u8]) -> Install;

    /// The same at once, and nobody is woken (for tests).
    fn copy_quietly(&self, address: u64, pages: &[u8]);

    /// Installs zero pages, as `copy`.
    fn zero(&self, address: u64, length: u64) -> Install;

    /// From now on a touch raises SIGBUS; as `copy`.
    fn poison(&self, address: u64, length: u64) -> Install;

    /// Wakes who waits for pages of the range.
    fn wake(&self, address: u64, length: u64);

    /// A write to pages of the range raises a fault from now on.
    ///
    /// # Errors
    /// `WouldBlock`: a change is pending. Others: the range is not managed any more.
    fn protect(&self, address: u64, length: u64) -> io::Result<()>;

    /// Takes the protection back, and wakes who waits.
    ///
    /// # Errors
    /// As `protect`.
    fn unprotect(&self, address: u64, length: u64) -> io::Result<()>;

    /// Pages that must never be protected, in order.
    fn never_protected(&self) -> Vec<u64>;

    /// A fault on a page of the mechanism's own.
    fn serve_own(pager: &mut Pager<Self>, space: &mut Space<Self>, address: u64) -> Served;

    // --- What is where ----------------------------------------------------------------------------------------------

    /// Whether the page is there; `None`: that cannot be told.
    fn is_present(&self, address: u64) -> Option<bool>;

    /// The pages of a range that are there, in order. Returns how many runs were found and where
    /// the walk ended.
    ///
    /// # Errors
    /// It cannot be told.
    fn present(&self, start: u64, end: u64, runs: &mut [PresentRun]) -> io::Result<(usize, u64)>;

    /// Pages that are there in all, staged ones included.
    fn pages_present(&self) -> Option<i64>;

    /// Whether the page is managed; `None`: that cannot be told now.
    fn is_registered(&self, address: u64) -> Option<bool>;

    /// Whether it can be told which pages other address spaces share.
    fn knows_sharing(&self) -> bool;

    /// Whether nobody shares the page. True also where that cannot be told.
    fn is_exclusive(&mut self, address: u64) -> bool;

    // --- Staging ----------------------------------------------------------------------------------------------------

    /// Whether pages can be staged now.
    fn can_stage(&self) -> bool;

    /// Whether somebody executes orders.
    fn is_served(&self) -> bool;

    /// Whether who executes orders is stopped: nothing will come of them for now.
    fn is_stopped(&self) -> bool;

    /// Whether who executed orders has gone, so that pages may be on no list.
    fn is_orphaned(&self) -> bool;

    /// No page moves from now on; `false`: one still may. The gate stays closed.
    fn close_gate(&mut self) -> bool;

    /// Whether the gate was closed and is still.
    fn is_gate_closed(&self) -> bool;

    /// Pages may move again.
    fn open_gate(&mut self);

    /// Orders the runs into a tray. `drop_first`: what a parent left in it is dropped before. How
    /// many orders that makes.
    fn order_fill(&self, tray: u32, runs: &[PageRun], drop_first: bool) -> u32;

    /// Orders the memory of a tray to be given back. `both`: in either of the two places of its
    /// slots.
    fn order_drop(&self, tray: u32, both: bool);

    /// Whether as many orders as this have been completed for the tray, and which of its slots hold
    /// a page.
    fn completed(&self, tray: u32, orders: u32) -> (bool, u64);

    /// Of these slots those that hold a page though that could not be said.
    fn found_unseen(&self, tray: u32, ordered: u64) -> u64;

    /// What became of the runs of a tray, once its orders are completed.
    fn filled(&self, tray: u32) -> Option<Filled>;

    /// Run `run` of the tray is not executed, unless it has been begun.
    fn cancel(&self, tray: u32, run: u32);

    /// All runs of a tray were refused, or not. True: for so many in a row that nothing is ordered
    /// for a while.
    fn count_refusal(&mut self, refused: bool, now: Instant) -> bool;

    /// Whether the program may hold what looks like memory of ours and is none, so that a refusal
    /// says nothing.
    fn is_opaque(&self) -> bool;

    /// Whether no page lies in either place of the slot; `false` also where that cannot be known.
    fn is_slot_empty(&self, slot: u32) -> bool;

    /// Where the page of a slot lies. `inherited`: in either of its two places.
    fn place_of(&self, slot: u32, inherited: bool) -> Option<u64>;

    /// Whether staged pages can be read; `false`: whose memory it is was not found yet, and is
    /// looked for.
    fn can_read(pager: &mut Pager<Self>, space: &mut Space<Self>) -> bool;

    /// Whether staged pages can be read several at a time.
    fn reads_many(&self) -> bool;

    /// Reads staged pages from their places, as [`StagedReader::read`].
    fn read_staged(&self, places: &[u64], bytes: &mut [u8], trust: bool) -> bool;

    /// Who reads staged pages for another thread; `None`: nobody executes orders any more.
    fn reader(&self) -> Option<Self::Reader>;
}
