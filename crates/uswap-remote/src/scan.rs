//! Scanning a space's mappings: which of them become managed, and which of their pages are present
//! already.
//!
//! Some memory is never managed: all that is not plain private anonymous memory, mappings below 256
//! KiB (64 KiB while there is no room), the main stack, thread stacks (`stacks.rs`), and the
//! agent's own memory.

use std::time::Instant;

use uswap_abi::layout::{AREA_BYTES, NOTICE, PAGE, SA, SB, SLOTS};
use uswap_core::page::word::PageState;
use uswap_core::util::growth::{Growth, during};
use uswap_sys::procfs::maps::{Mapping, Maps};
use uswap_sys::procfs::pagemap::PresentRun;

use crate::Pager;
use crate::Space;
use crate::agent::handshake::HandshakePager;
use crate::events::hook_notes::HookNotesPager;
use crate::settle::SettlePager;
use crate::stacks::{StackLook, spared_part};
use uswap_pager::address_space::AddressSpace;

/// Mappings smaller than this are left alone.
const MIN_MAPPING: u64 = 256 << 10;
/// The same while there is no room left: a program can have most of its memory in small mappings
/// (the shadow memory of ThreadSanitizer is mapped anew piece by piece).
const MIN_WHEN_SHORT: u64 = 64 << 10;

/// Size of the blocks in which the pages of a mapping join the lists, one block after the other.
const AGE_BLOCK: u64 = 2 << 20;

/// A range that was registered in a scan.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewRange {
    start: u64,
    end: u64,
    heap: bool,
}

/// Methods that this file adds to [`Pager`].
pub(crate) trait ScanPager {
    /// Reads all mappings, registers those that are to be managed, and finds which of their pages
    /// are present.
    fn scan(&mut self, space: &mut Space);
    /// Registers the staging halves, once.
    fn activate(&mut self, space: &mut Space) -> bool;
    fn is_manageable(&self, space: &Space, maps: &Maps, mapping: &Mapping, look: &mut StackLook) -> bool;
    /// Whether the mapping may be managed, whatever its size.
    fn is_ours_to_manage(&self, space: &Space, maps: &Maps, mapping: &Mapping, look: &mut StackLook) -> bool;
    /// Registers the parts of the mapping that are not registered yet, and adds them to `new`.
    /// Returns whether there were any.
    fn manage(&mut self, space: &mut Space, maps: &Maps, mapping: &Mapping, new: &mut Vec<NewRange>) -> bool;
    /// Registers the neighbours that continue a mapping. The mapping can have been replaced by a
    /// larger one after it was read; registering the range that it had been cuts the new one in
    /// two, and mremap fails on it (EFAULT). With its neighbours registered too it is one mapping
    /// again.
    ///
    /// The neighbour can lie in a former hole of a range that an earlier scan registered
    /// (`settle.rs`): the pager takes it for registered, which it is not. Such a range is not
    /// settled, so nothing was evicted from it, and it may be registered once more.
    fn heal(
        &mut self,
        space: &mut Space,
        maps: &Maps,
        mapping: &Mapping,
        look: &mut StackLook,
        new: &mut Vec<NewRange>,
    );
    /// Adds the pages that are present in newly registered ranges to the lists, the oldest first as
    /// far as addresses show: a heap grows upwards, and the kernel places each new mapping below
    /// the earlier ones (and may merge it with them).
    fn take_by_age(&mut self, space: &mut Space, new: &[NewRange]);
    /// Adds the pages that are present to the lists, in the order of their addresses.
    fn take_present(&mut self, space: &mut Space, start: u64, end: u64);
}

impl ScanPager for Pager {
    fn scan(&mut self, space: &mut Space) {
        let leaving = self.shared.of_memory.leaving.is_under_way();
        if leaving || space.memory.pid.is_none() || space.memory.agent.is_none() || !self.activate(space) {
            return;
        }
        space.memory.scans.are_needed = !space.memory.changes.window.is_empty();
        if space.memory.scans.are_needed {
            return;
        }
        space.memory.scans.last = Instant::now();
        let Some(maps) = space.memory.proc.maps.take() else { return };
        let mut look = space.memory.scans.suspects.begin(!self.shared.budget.has_room(0));
        let (mut at, mut new) = (0, Vec::new());
        while let Ok(Some(mapping)) = maps.writable_or_next(at) {
            at = mapping.end;
            if self.is_manageable(space, &maps, &mapping, &mut look) && self.manage(space, &maps, &mapping, &mut new) {
                self.heal(space, &maps, &mapping, &mut look, &mut new);
            }
        }
        space.memory.scans.suspects.end(look);
        space.memory.scans.cut_off.clear();
        self.take_by_age(space, &new);
        space.memory.proc.maps = Some(maps);
        if space.memory.changes.window.is_empty() {
            self.settle_notes(space, false);
        }
        // Settles the ranges of earlier scans first: mostly no event is pending, and the list stays
        // short.
        self.is_settled(space);
        self.expect_copies(space);
    }

    fn activate(&mut self, space: &mut Space) -> bool {
        if space.active {
            return true;
        }
        if let Err(error) = uswap_pager::io::reader::threads::prepare(&self.shared) {
            let text = format!("nothing to read pages with: {error}");
            self.shared.condemn(uswap_pager::context::Verdict::Broken(text));
            return false;
        }
        let Some(staging) = &space.memory.staging else { return false };
        let sa = space.memory.events.register(space.memory.area + SA, NOTICE - SA + PAGE);
        let sb = staging.register(space.memory.area + SB, u64::from(SLOTS) * PAGE);
        if let Err(error) = sa.and(sb) {
            if space.memory.is_alive() {
                let whose = space.memory.label();
                self.shared.notice(format!("{whose} stays unmanaged: staging cannot be registered: {error}"));
            }
            return false;
        }
        // The program of a dismissed agent has executed another image, which must not end with this
        // agent.
        let is_dismissed = space.memory.agent_state.dismissed.is_some() && !self.shared.faults.bind_dismissed;
        if let Some(agent) = space.memory.agent.as_ref().filter(|_| !is_dismissed) {
            agent.bind();
        }
        space.active = true;
        // Reads the notes that were written before: no event told of them.
        self.read_notes(space, 0);
        self.shared.counters.managed_processes.add(1);
        self.publish_again(space);
        self.shared.faults.pause(self.shared.faults.delay_scan);
        true
    }

    fn is_manageable(&self, space: &Space, maps: &Maps, mapping: &Mapping, look: &mut StackLook) -> bool {
        let least = if self.shared.budget.has_room(0) { MIN_MAPPING } else { MIN_WHEN_SHORT };
        let is_cut_off = !self.shared.faults.leave_cut && space.memory.scans.is_cut_off(mapping);
        let is_worth_it = mapping.end - mapping.start >= least || is_cut_off;
        is_worth_it && self.is_ours_to_manage(space, maps, mapping, look)
    }

    fn is_ours_to_manage(&self, space: &Space, maps: &Maps, mapping: &Mapping, look: &mut StackLook) -> bool {
        let area = space.memory.area..space.memory.area + AREA_BYTES;
        let kind =
            mapping.plain_anonymous && (mapping.name.is_empty() || mapping.name == "[heap]" || is_named(mapping));
        kind && !(mapping.start < area.end && area.start < mapping.end)
            && !may_hold_thread_words(space, mapping)
            && (self.shared.faults.manage_stacks
                || space.memory.attached.is_some_and(|attached| attached.free_stacks)
                || !look.is_stack(space, maps, mapping))
    }

    fn manage(&mut self, space: &mut Space, maps: &Maps, mapping: &Mapping, new: &mut Vec<NewRange>) -> bool {
        let missing = space.unregistered_parts(mapping.start, mapping.end);
        if missing.is_empty() {
            return false;
        }
        for (start, end) in &missing {
            // No page can be evicted in a range that was not registered (a fault there would have
            // shown the pager its error): the page words there are left from an earlier mapping.
            if self.shared.faults.audit {
                self.audit_unknown(space, *start, *end);
            }
            self.release_pages(space, *start, *end);
        }
        self.shared.faults.pause(self.shared.faults.delay_register);
        if !space.memory.register(mapping.start, mapping.end, space.lineage.copies.may_be_watched()) {
            return false;
        }
        self.shared.faults.pause(self.shared.faults.delay_register);
        self.shared.counters.registrations.add(1);
        space.add_registered(mapping.start, mapping.end);
        let spares = !self.shared.faults.evict_stack_tops && !self.shared.faults.manage_stacks;
        if let Some((start, end)) = spared_part(space, maps, mapping).filter(|_| spares) {
            during(Growth::AddressSpaces, || space.coverage.spared.extend((start..end).step_by(PAGE as usize)));
        }
        missing.iter().for_each(|(start, end)| space.lineage.copies.watch_also(&space.memory, *start, *end));
        // Only these parts become unsettled: pages of the rest of the mapping may have been
        // evicted.
        space.coverage.unsettled.add(&missing);
        new.extend(missing.into_iter().map(|(start, end)| NewRange { start, end, heap: mapping.name == "[heap]" }));
        true
    }

    fn heal(
        &mut self,
        space: &mut Space,
        maps: &Maps,
        mapping: &Mapping,
        look: &mut StackLook,
        new: &mut Vec<NewRange>,
    ) {
        if self.shared.faults.leave_cut {
            return;
        }
        for at in [mapping.start - PAGE, mapping.end] {
            let found = maps.covering_or_next(at).ok().flatten();
            let continues = |other: &Mapping| other.start <= at && other.name == mapping.name;
            if let Some(other) = found.filter(continues)
                && self.is_ours_to_manage(space, maps, &other, look)
            {
                if other.start == mapping.end || other.end == mapping.start {
                    space.forget_unsettled(other.start, other.end);
                }
                self.manage(space, maps, &other, new);
            }
        }
    }

    fn take_by_age(&mut self, space: &mut Space, new: &[NewRange]) {
        for range in new.iter().filter(|range| range.heap) {
            self.take_present(space, range.start, range.end);
        }
        for range in new.iter().filter(|range| !range.heap).rev() {
            for start in space.blocks_with_pages(range.start, range.end).into_iter().rev() {
                self.take_present(space, start.max(range.start), (start + AGE_BLOCK).min(range.end));
            }
        }
    }

    fn take_present(&mut self, space: &mut Space, start: u64, end: u64) {
        let mut runs = [PresentRun::default(); 256];
        let ample = self.is_ample(space);
        let mut at = start;
        while at < end {
            let Some(pagemap) = &space.memory.proc.pagemap else { return };
            let Ok((count, walked)) = pagemap.present(at, end, &mut runs) else { return };
            for run in &runs[..count] {
                for page in (run.start..run.end).step_by(PAGE as usize) {
                    let word = space.table.get(page);
                    if matches!(word.state(), PageState::Untouched) {
                        let active = self.is_welcome(space, page, ample);
                        self.become_resident(space, page, word.resident().set_active(active));
                    }
                }
            }
            if walked <= at {
                return;
            }
            at = walked;
        }
    }
}

/// Whether the mapping may hold words that the kernel clears when threads end. If their place is
/// unknown they may lie in the program's static data, as with musl (a forked child gives no hint):
/// that data is not managed.
fn may_hold_thread_words(space: &Space, mapping: &Mapping) -> bool {
    let wordless = space.memory.attached.is_some_and(|attached| attached.wordless);
    if !wordless || mapping.name == "[heap]" {
        return false;
    }
    let statics = space.memory.pid.and_then(uswap_sys::procfs::static_data);
    statics.is_none_or(|(start, end)| mapping.start < end && start < mapping.end)
}

/// Whether the mapping has a name set by prctl(PR_SET_VMA_ANON_NAME).
fn is_named(mapping: &Mapping) -> bool {
    mapping.name.starts_with("[anon:")
}

/// Methods that this file adds to [`Space`].
pub(crate) trait ScanSpace {
    fn unregistered_parts(&self, start: u64, end: u64) -> Vec<(u64, u64)>;
    /// The addresses of the blocks of a range that have a page. The kernel skips memory that was
    /// never touched at once, however large it is.
    fn blocks_with_pages(&self, start: u64, end: u64) -> Vec<u64>;
    /// Treats the unsettled parts of a range as not registered.
    fn forget_unsettled(&mut self, start: u64, end: u64);
    /// Handles a fault in a range that the pager does not know as registered: a registered mapping
    /// has grown (mremap sends no event for that). Registration applies to whole mappings, so all
    /// of this one is registered, and its page words are valid. That holds for the mapping that
    /// lies there now only if no event is pending; otherwise only for the page.
    fn learn_registered(&mut self, address: u64);
    /// Marks a page as registered because installing it succeeded. Every child to come has it
    /// registered too, since no fork was under way. Nothing follows for its neighbours.
    fn learn_page(&mut self, address: u64);
    fn add_registered(&mut self, start: u64, end: u64);
}

impl ScanSpace for Space {
    fn unregistered_parts(&self, start: u64, end: u64) -> Vec<(u64, u64)> {
        let mut parts = Vec::new();
        let mut at = start;
        for (s, e) in self.coverage.registered.range(..end).filter(|(_, e)| **e > start) {
            if *s > at {
                parts.push((at, *s));
            }
            at = at.max(*e);
        }
        if at < end {
            parts.push((at, end));
        }
        parts
    }

    fn blocks_with_pages(&self, start: u64, end: u64) -> Vec<u64> {
        let mut blocks = Vec::new();
        let mut runs = [PresentRun::default(); 256];
        let mut at = start;
        while let Some(pagemap) = self.memory.proc.pagemap.as_ref().filter(|_| at < end) {
            let Ok((count, walked)) = pagemap.present(at, end, &mut runs) else { break };
            for run in &runs[..count] {
                let known = blocks.last().map_or(0, |last| last + AGE_BLOCK);
                blocks.extend(((run.start & !(AGE_BLOCK - 1)).max(known)..run.end).step_by(AGE_BLOCK as usize));
            }
            if walked <= at {
                break;
            }
            at = walked;
        }
        blocks
    }

    fn forget_unsettled(&mut self, start: u64, end: u64) {
        for (from, to) in self.coverage.unsettled.within(start, end) {
            self.unregister_range(from, to);
            self.coverage.unsettled.cut(from, to);
        }
    }

    fn learn_registered(&mut self, address: u64) {
        let mapping = self.memory.proc.maps.as_ref().and_then(|maps| maps.covering_or_next(address).ok().flatten());
        let found = mapping.filter(|mapping| mapping.start <= address);
        let proven = found.filter(|mapping| self.memory.events.is_registered(mapping.start) == Some(true));
        let (start, end) = proven.map_or((address, address + PAGE), |mapping| (mapping.start, mapping.end));
        self.add_registered(start, end);
    }

    fn learn_page(&mut self, address: u64) {
        if !self.is_registered(address) {
            self.add_registered(address, address + PAGE);
        }
    }

    fn add_registered(&mut self, start: u64, end: u64) {
        for (start, end) in self.unregistered_parts(start, end) {
            self.memory.changes.notes.registered(start, end);
        }
        let (mut start, mut end) = (start, end);
        let touching: Vec<(u64, u64)> =
            self.coverage.registered.range(..=end).filter(|(_, e)| **e >= start).map(|(s, e)| (*s, *e)).collect();
        for (s, e) in touching {
            self.coverage.registered.remove(&s);
            (start, end) = (start.min(s), end.max(e));
        }
        self.coverage.registered.insert(start, end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::address_space::Remote;
    use uswap_sys::userfaultfd::Userfaultfd;

    #[test]
    fn what_was_never_touched_is_passed_over() {
        let Ok(events) = Userfaultfd::for_this_process() else { return };
        let mut space = Space::new(1, Remote::new(events));
        space.memory.proc.pagemap = uswap_sys::procfs::pagemap::Pagemap::open(std::process::id()).ok();
        let mut sparse = uswap_sys::Reservation::new(64 << 30).expect("address space");
        let touched = [0, 5 << 30, (5 << 30) + (1 << 20), 63 << 30];
        touched.iter().for_each(|at| sparse.bytes_mut()[*at] = 1);
        let start = sparse.bytes().as_ptr() as u64;
        let block = |at: usize| (start + at as u64) & !(AGE_BLOCK - 1);
        let mut expected = touched.map(block).to_vec();
        expected.dedup();
        let found = space.blocks_with_pages(start, start + (64 << 30));
        assert_eq!(found, expected);
        let (from, to) = (start + (5 << 30), start + (6 << 30));
        assert_eq!(space.blocks_with_pages(from, to), expected[1..expected.len() - 1]);
    }

    #[test]
    fn registered_ranges_merge_and_are_cut() {
        let Ok(events) = Userfaultfd::for_this_process() else { return };
        let mut space = Space::new(1, Remote::new(events));
        space.add_registered(0x1000, 0x3000);
        space.add_registered(0x5000, 0x6000);
        assert_eq!(space.unregistered_parts(0, 0x8000), [(0, 0x1000), (0x3000, 0x5000), (0x6000, 0x8000)]);
        space.add_registered(0x3000, 0x5000);
        assert_eq!(space.coverage.registered.iter().collect::<Vec<_>>(), [(&0x1000, &0x6000)]);
        space.learn_page(0x2000);
        assert_eq!(space.coverage.registered.len(), 1);
        space.learn_page(0x8000);
        assert_eq!(space.unregistered_parts(0x1000, 0xa000), [(0x6000, 0x8000), (0x9000, 0xa000)]);
        space.unregister_range(0x2000, 0x4000);
        assert_eq!(space.unregistered_parts(0x1000, 0x6000), [(0x2000, 0x4000)]);
    }
}
