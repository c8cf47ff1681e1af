//! Bringing pages in from a device that is being emptied.

use super::*;

use crate::address_space::AddressSpace;
use crate::event_loop::{MAX_INSTALL, Pager};
use crate::fault::install::{installed_bytes, shorten};
use crate::io::reader::{Purpose, ReadBuffer};
use crate::space::Space;
use uswap_core::page::word::PageState;
use uswap_core::util::growth::{Growth, during};
use uswap_store::{ObjectId, PageLoad};
use uswap_sys::userfaultfd::Install;

impl<M: AddressSpace> Pager<M> {
    /// Receives the order of a swapoff that has begun.
    pub fn receive_bring_in(&mut self, order: Arc<BringIn>) {
        self.bringing = Bringing { order: Some(order), next_step: Instant::now() };
        self.spaces.values_mut().for_each(|space| space.search = UnuseSearch::default());
    }

    fn order_to_bring_in(&self) -> Option<&Arc<BringIn>> {
        self.bringing.order.as_ref().filter(|order| !order.is_over())
    }

    /// Whether a page that has come back keeps its copy in the store: never on a device that is
    /// being emptied, and not in the pool if the page came alone.
    pub fn keeps_copy(&self, id: ObjectId, lonely: bool) -> bool {
        let emptied = self.order_to_bring_in().map(|order| order.device);
        if !lonely && emptied.is_none() {
            return true;
        }
        self.shared.store.spot_of(id).map_or(!lonely, |spot| Some(spot.device()) != emptied)
    }

    /// Takes one step of the order, when one is due.
    pub fn bring_in(&mut self) {
        if self.bringing.order.is_none() {
            return;
        }
        let Some(order) = self.order_to_bring_in().cloned() else {
            self.bringing.order = None;
            return;
        };
        if !order.wanted.load(SeqCst) {
            return;
        }
        let (begun, mut looks) = (Instant::now(), LOOKS);
        if begun >= self.bringing.next_step {
            self.for_each_id(|owner, id| {
                owner.with_space(id, |owner, space| owner.bring_some(space, &order, begun, &mut looks));
            });
            // No page word was looked at: all spaces rest.
            let pause = if looks == LOOKS { REST } else { PAUSE.max(2 * begun.elapsed()) };
            let delay = Duration::from_micros(self.shared.faults.delay_bring);
            self.bringing.next_step = Instant::now() + pause.max(delay);
        }
        self.retry_by(self.bringing.next_step);
    }

    /// Asks for the next pages of a space, as far as there are room and buffers.
    fn bring_some(&mut self, space: &mut Space<M>, order: &BringIn, now: Instant, looks: &mut usize) {
        while *looks > 0 && !space.search.rests(now) && !space.memory.is_changing() {
            let from = space.search.next;
            let sizes = [MAX_INSTALL as u32, 8];
            let most = sizes.into_iter().find(|pages| self.has_free_room(space, i64::from(*pages))).unwrap_or(1);
            let Some(mut buffer) = self.lend_buffer(space, from, most, Need::Ahead) else {
                // This counts as a look, so that the pager does not rest: buffers become free soon.
                return *looks -= 1;
            };
            self.choose_to_bring(space, order.device, most as usize, looks, &mut buffer);
            if buffer.pages.is_empty() {
                continue;
            }
            if !self.has_free_room(space, buffer.pages.len() as i64) {
                order.short.store(true, Relaxed);
                return space.search.rest_at(from, REST);
            }
            if self.send_read(space, buffer, Instant::now(), Purpose::BringIn).is_none() {
                return;
            }
        }
    }

    /// Puts the next pages that lie on the device into the buffer, at most `most`.
    fn choose_to_bring(
        &self,
        space: &mut Space<M>,
        device: u8,
        most: usize,
        looks: &mut usize,
        buffer: &mut ReadBuffer,
    ) {
        let (most, mut stopped) = (most.min(buffer.capacity()), None);
        for (page, word) in space.table.iter_from(space.search.next) {
            if *looks == 0 || buffer.pages.len() == most {
                stopped = Some(page);
                break;
            }
            *looks -= 1;
            let PageState::Stored(object) = word.state() else { continue };
            let object = ObjectId::from_bits(object);
            let lies_there = || self.shared.store.spot_of(object).is_some_and(|spot| spot.device() == device);
            if !word.in_flight() && lies_there() {
                buffer.pages.push(PageLoad::new(page, object));
            }
        }
        match stopped {
            Some(page) => space.search.next = page,
            None => space.search.rest_at(0, REST),
        }
    }

    /// Installs pages that were read to be brought in. Pages that the kernel puts off are found
    /// again by a later search.
    pub fn install_brought(&mut self, space: &mut Space<M>, start: u64, bytes: &[u8]) {
        let (result, length) =
            shorten(bytes.len() as u64, |length| space.memory.copy(start, &bytes[..length as usize]));
        self.finish_install(space, start, length, result);
        if result == Install::Gone {
            space.search.rest_at(0, LONG_REST);
        }
        let done = installed_bytes(result, length) / PAGE;
        self.shared.counters.brought_in.add(done);
        let ample = self.is_ample(space);
        for page in (start..start + done * PAGE).step_by(PAGE_SIZE) {
            // A mapping that grew becomes known by its faults, but this page has had none.
            during(Growth::AddressSpaces, || M::learn(space, page, true));
            self.was_brought(space, page, ample);
        }
    }

    /// Book-keeping of a page that was brought in: it returns to the list on which it was, unless a
    /// fault has come for it meanwhile.
    fn was_brought(&mut self, space: &mut Space<M>, page: u64, ample: bool) {
        let word = space.table.get(page);
        if !matches!(word.state(), PageState::Stored(_)) {
            return;
        }
        let active = if space.waiting.waiters.contains(page) {
            space.waiting.waiters.remove(page);
            self.shared.touched(space.id, page);
            self.is_welcome(space, page, ample)
        } else {
            word.workingset()
        };
        self.keep_copy(space, page, false, active);
    }

    /// Notes that a page that was to be brought in cannot be read. A fault that waits for it reads
    /// it anew and handles the error.
    pub fn could_not_bring(&self) {
        self.order_to_bring_in().into_iter().for_each(|order| order.unreadable.store(true, Relaxed));
    }
}
