//! Tells the stacks of threads, which are never managed, from heaps that look like them.
//!
//! When a thread ends the kernel clears the thread's tid word and walks its robust list, both in
//! its *control block*, and passes over a page that is missing; whoever joins the thread then waits
//! for ever. The C library puts the control block at the upper end of the stack, and a guard (a
//! small mapping without access) below the stack. Some allocators have guards below each piece of
//! their heaps too: PartitionAlloc and V8 in Chromium, hardened allocators, coroutines. If all that
//! counted as stacks, most of such a program would never be managed.
//!
//! So a mapping with a guard is a *suspect*. It is left alone while the control block of a thread
//! lies in it, and it becomes managed when it was seen without one at [`LOOKS`] looks in a row, or
//! at the first while there is no room: a heap that grows in such pieces would pass the budget. A
//! look costs some microseconds for each thread, so there is one each [`PAUSE`] at most.
//!
//! A suspect without a thread can still be a stack: one that is just being made, or that the C
//! library keeps for the next thread. Therefore the last [`TOP`] bytes of each suspect are never
//! evicted ([`Coverage::spared`]). There the C library puts the control block, whenever a thread
//! begins on that stack. Control blocks elsewhere are left out page by page by the agent.
//!
//! If a thread has no robust list, or does not tell where it is, its stack is unknown, and all
//! suspects are left alone.
//!
//! Sources: get_robust_list(2), clone(2) on CLONE_CHILD_CLEARTID, nptl/allocatestack.c of glibc.
//!
//! [`Coverage::spared`]: uswap_pager::space::parts::Coverage::spared

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use uswap_abi::layout::{CONTROL_BLOCK, PAGE};
use uswap_core::util::growth::{Growth, during};
use uswap_sys::procfs::maps::{Mapping, Maps};

use crate::Space;
use crate::agent::processes::thread_list_heads;

/// Least time between two looks at the threads of a process.
const PAUSE: Duration = Duration::from_millis(40);
/// A look takes at most one part in this many of the time.
const COST: u32 = 100;
/// A suspect that was seen without a thread in this many looks in a row is managed; while there is
/// no room, at the first.
const LOOKS: u32 = 2;
/// The part of a suspect that is spared, at its upper end: the control block, and alignment.
const TOP: u64 = 2 * PAGE;
/// Heaps of the C library's arenas start at multiples of this, so one can begin directly behind the
/// reserved part of another, which looks like a guard.
const ARENA: u64 = 64 << 20;
const MAX_GUARD: u64 = 1 << 20;
const MAX_STACK: u64 = 1 << 30;

/// The suspects of a process that were seen without a thread, by their start: in how many looks in
/// a row.
#[derive(Debug, Default)]
pub struct StackSuspects {
    threadless: BTreeMap<u64, u32>,
    next_look: Option<Instant>,
}

/// One scan's view of the suspects.
#[derive(Debug)]
pub struct StackLook {
    /// The result of the looks before, and whether this scan looks again.
    before: BTreeMap<u64, u32>,
    looks: bool,
    /// The number of looks in a row in which a suspect must be seen without a thread.
    enough: u32,
    /// The suspects that this scan found without a thread.
    found: BTreeMap<u64, u32>,
    heads: Option<ListHeads>,
    /// How long it took to ask for them.
    took: Duration,
}

/// The addresses of all threads' robust list heads, sorted; `None` if some are unknown.
type ListHeads = Option<Vec<u64>>;

impl StackSuspects {
    /// Begins a scan. `is_short`: there is no room.
    pub fn begin(&mut self, is_short: bool) -> StackLook {
        let looks = self.next_look.is_none_or(|at| Instant::now() >= at);
        StackLook {
            before: std::mem::take(&mut self.threadless),
            looks,
            enough: if is_short { 1 } else { LOOKS },
            found: BTreeMap::new(),
            heads: None,
            took: Duration::ZERO,
        }
    }

    /// Ends a scan. A suspect that the scan did not find threadless is forgotten.
    pub fn end(&mut self, look: StackLook) {
        if look.looks {
            self.threadless = look.found;
            self.next_look = Some(Instant::now() + PAUSE.max(look.took * COST));
        } else {
            self.threadless = look.before;
        }
    }
}

impl StackLook {
    /// Whether the mapping must be taken for a thread's stack.
    pub fn is_stack(&mut self, space: &Space, maps: &Maps, mapping: &Mapping) -> bool {
        if !is_suspect(space, maps, mapping) || is_managed(space, mapping) {
            return false;
        }
        let before = self.before.get(&mapping.start).copied().unwrap_or(0);
        let looks = match self.found.get(&mapping.start).copied() {
            _ if !self.looks => before,
            Some(looks) => looks,
            None if self.holds_thread(space, mapping) => 0,
            None => before + 1,
        };
        if self.looks && looks > 0 {
            during(Growth::AddressSpaces, || self.found.insert(mapping.start, looks));
        }
        looks < self.enough
    }

    fn holds_thread(&mut self, space: &Space, mapping: &Mapping) -> bool {
        let heads = self.heads.get_or_insert_with(|| {
            let begun = Instant::now();
            let heads = space.memory.pid.and_then(|pid| thread_list_heads(pid, space.memory.reader));
            self.took = begun.elapsed();
            heads
        });
        heads.as_ref().is_none_or(|heads| lies_in(heads, mapping.start, mapping.end))
    }
}

/// Whether a control block lies in a range, in whole or in part.
fn lies_in(heads: &[u64], start: u64, end: u64) -> bool {
    let at = heads.partition_point(|head| head.saturating_add(CONTROL_BLOCK.1) < start);
    heads.get(at).is_some_and(|head| head.saturating_sub(CONTROL_BLOCK.0) < end)
}

/// The part of a mapping that is spared if it is a suspect.
pub fn spared_part(space: &Space, maps: &Maps, mapping: &Mapping) -> Option<(u64, u64)> {
    let top = mapping.end.saturating_sub(TOP).max(mapping.start);
    is_suspect(space, maps, mapping).then_some((top, mapping.end))
}

/// Whether the mapping has a guard, as stacks have. (The agent's own guard does not count: it can
/// lie directly below any mapping.)
fn is_suspect(space: &Space, maps: &Maps, mapping: &Mapping) -> bool {
    if mapping.start.is_multiple_of(ARENA) || mapping.end - mapping.start > MAX_STACK {
        return false;
    }
    match maps.covering_or_next(mapping.start - 1) {
        Ok(Some(below)) => {
            !space.memory.in_area(below.start)
                && below.end == mapping.start
                && below.no_access
                && below.end - below.start <= MAX_GUARD
        }
        _ => false,
    }
}

/// Whether the mapping is managed already: it was no stack when it was registered, and the kernel
/// says that it is still that mapping.
fn is_managed(space: &Space, mapping: &Mapping) -> bool {
    space.is_registered(mapping.start) && space.memory.events.is_registered(mapping.start) == Some(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_control_block_lies_where_a_part_of_it_lies() {
        let heads = [0x10_8000, 0x20_8000];
        assert!(lies_in(&heads, 0x10_0000, 0x10_9000));
        assert!(lies_in(&heads, 0x20_8000 + CONTROL_BLOCK.1, 0x21_0000), "the end of one");
        assert!(!lies_in(&heads, 0x20_8000 + CONTROL_BLOCK.1 + 1, 0x21_0000));
        assert!(lies_in(&heads, 0x20_0000, 0x20_8000 - CONTROL_BLOCK.0 + 1), "the beginning of one");
        assert!(!lies_in(&heads, 0x11_0000, 0x20_8000 - CONTROL_BLOCK.0));
        assert!(!lies_in(&[], 0, u64::MAX));
    }

    #[test]
    fn what_a_look_does_not_find_threadless_begins_anew() {
        let mut suspects = StackSuspects::default();
        let mut look = suspects.begin(false);
        assert!(look.looks && look.enough == LOOKS);
        look.found.insert(0x1000, 1);
        suspects.end(look);
        let look = suspects.begin(true);
        assert!(!look.looks && look.enough == 1, "a scan right after a look only knows what it found");
        assert_eq!(look.before.get(&0x1000), Some(&1));
        suspects.end(look);
        suspects.next_look = None;
        let look = suspects.begin(false);
        suspects.end(look);
        assert!(suspects.threadless.is_empty());
    }

    #[test]
    fn the_heads_of_all_threads_are_known() {
        // A thread that has just begun has none yet.
        let heads = (0..1000).find_map(|_| {
            std::thread::sleep(Duration::from_millis(1));
            thread_list_heads(std::process::id(), 0)
        });
        let heads = heads.expect("all threads have lists");
        assert!(!heads.is_empty() && heads.is_sorted());
    }
}
