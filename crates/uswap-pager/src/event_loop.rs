//! The pager: one thread that owns the userfaultfds and the page tables of its spaces.
//!
//! Only this thread reads the events of a space and issues the ioctls that install pages, so
//! nothing that it has decided can be overtaken by an event that another thread read. It never
//! blocks: work that blocks (reading devices, reading trays, compressing) is done by other threads,
//! which answer into its mailbox.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use uswap_core::PAGE_SIZE;
use uswap_core::reclaim::policy::ReclaimPolicy;
use uswap_core::util::growth::{Growth, during};
use uswap_sys::AlignedBuf;
use uswap_sys::io::events::{Poller, Ready};

use crate::accounting::budget::URGENT;
use crate::address_space::AddressSpace;
use crate::balance_state::BalanceState;
use crate::context::{EngineContext, Mailbox, Message, Verdict};
use crate::io::direct_reads::{self, DirectReads};
use crate::io::reader::Read;
use crate::io::unuse::Bringing;
use crate::load_control::LoadRecord;
use crate::space::Space;
use crate::space::id::SpaceId;

/// Maximum number of pages in one installation.
pub const MAX_INSTALL: usize = 64;

/// State of one pager thread.
pub struct Pager<M: AddressSpace> {
    /// The number of this pager.
    pub number: usize,
    /// The state that all threads share.
    pub shared: Arc<EngineContext<M>>,
    /// The spaces that this pager owns.
    pub spaces: HashMap<SpaceId, Box<Space<M>>>,
    /// Buffer for pages that are being installed.
    pub buffer: AlignedBuf,
    /// A buffer of zeros.
    pub zeros: AlignedBuf,
    /// Faults that were just read; kept to reuse its memory.
    pub faults: Vec<Fault>,
    mailbox: Arc<Mailbox<M>>,
    /// The event sources that the thread waits for.
    pub poller: Poller,
    /// Reads that this pager asks devices for itself.
    pub queues: DirectReads,
    next_space: SpaceId,
    /// When the next round of retries is due.
    pub retry_at: Option<Instant>,
    last_sweep: Instant,
    /// When results of orders were last looked for.
    absorbed: Instant,
    /// State for this kind of memory.
    pub of_memory: M::PerOwner,
    /// Lists of ids; kept to reuse their memory.
    spare_ids: Vec<Vec<SpaceId>>,
    /// When the spaces were last reported to load control.
    pub told_load: Instant,
    /// This pager's part of a swapoff.
    pub bringing: Bringing,
    /// How reclaim is shared out over its spaces.
    pub balance: BalanceState,
}

/// A fault message.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    /// The page.
    pub address: u64,
    /// Whether the access was a write.
    pub write: bool,
    /// Whether the page is present, but write-protected.
    pub protected: bool,
    /// The thread that faulted, by its number in its own pid namespace.
    pub thread: u32,
}

const BELL: u64 = 0;
/// While memory is not urgently short, sharing reclaim out over more than `FEW` spaces takes at
/// most one part in `BALANCE_COST` of the time.
const BALANCE_COST: u32 = 5;
const FEW: usize = 8;

/// The token by which the poller reports an event source of a space: 1 is its faults and changes; 2
/// and 3 belong to its memory.
pub fn token(space: SpaceId, source: u64) -> u64 {
    u64::from(space) << 2 | source
}

impl<M: AddressSpace> Pager<M> {
    /// A pager without spaces.
    ///
    /// # Errors
    /// EMFILE.
    pub fn new(number: usize, shared: Arc<EngineContext<M>>) -> std::io::Result<Self> {
        let mailbox = shared.mailboxes[number].clone();
        let poller = Poller::new()?;
        poller.add(&mailbox.bell, BELL)?;
        Ok(Self {
            of_memory: M::per_owner(&mailbox),
            number,
            shared,
            spaces: HashMap::new(),
            buffer: AlignedBuf::zeroed(MAX_INSTALL * PAGE_SIZE),
            zeros: AlignedBuf::zeroed(MAX_INSTALL * PAGE_SIZE),
            faults: Vec::with_capacity(256),
            mailbox,
            poller,
            queues: DirectReads::default(),
            next_space: 1,
            retry_at: None,
            last_sweep: Instant::now(),
            absorbed: Instant::now(),
            spare_ids: Vec::new(),
            told_load: Instant::now(),
            balance: BalanceState {
                next_victim: 0,
                candidates: Vec::with_capacity(64),
                idle_groups: Vec::new(),
                rounds_seen: 0,
                last: (Instant::now(), Duration::ZERO),
                last_of_groups: Instant::now(),
            },
            bringing: Bringing::default(),
        })
    }

    /// Serves events until it is told to stop.
    pub fn run(&mut self) {
        M::begin(self);
        let mut ready = Vec::with_capacity(64);
        self.shared.faults.serve_without_growth();
        loop {
            ready.clear();
            if let Err(error) = self.poller.wait(self.timeout(), &mut ready) {
                let text = format!("an owner cannot wait for events: {error}");
                return self.shared.condemn(Verdict::Broken(text));
            }
            if self.go_round(&ready) {
                return;
            }
        }
    }

    /// One round: serves the events that are ready, and does all other regular work. Returns `true`
    /// if the thread must stop.
    pub fn go_round(&mut self, ready: &[Ready]) -> bool {
        for event in ready {
            if self.handle(*event) {
                return true;
            }
        }
        self.retry();
        self.sweep();
        self.tell_load(false);
        self.balance();
        M::went_round(self);
        self.bring_in();
        M::keep_place(self);
        false
    }

    fn timeout(&self) -> i32 {
        let Some(at) = self.retry_at else { return 100 };
        at.saturating_duration_since(Instant::now()).as_millis() as i32 + 1
    }

    /// Asks for a round of retries soon.
    pub fn retry_soon(&mut self) {
        self.retry_by(Instant::now() + Duration::from_micros(300));
    }

    /// Asks for a round of retries at this time or sooner.
    pub fn retry_by(&mut self, at: Instant) {
        self.retry_at = Some(self.retry_at.map_or(at, |known| known.min(at)));
    }

    /// Serves one event. Returns `true` if the thread must stop.
    fn handle(&mut self, event: Ready) -> bool {
        if event.token == BELL {
            self.mailbox.bell.clear();
            while let Some(message) = self.mailbox.take() {
                if matches!(message, Message::Stop) {
                    return true;
                }
                self.receive(message);
            }
            self.absorb_all();
            return false;
        }
        if let Some(device) = direct_reads::device_of(event.token) {
            self.look_at_queue(device);
            return false;
        }
        let space = (event.token >> 2) as SpaceId;
        self.with_space(space, |owner, space| match event.token & 3 {
            1 => owner.serve(space),
            source => M::is_ready(owner, space, source),
        });
        false
    }

    /// Takes the space out of the map while `action` runs, so that both pager and space can be
    /// changed.
    pub fn with_space(&mut self, id: SpaceId, action: impl FnOnce(&mut Self, &mut Space<M>)) {
        if let Some(mut space) = self.spaces.remove(&id) {
            action(self, &mut space);
            // Its place in the map is usually still there, so this rarely allocates.
            during(Growth::AddressSpaces, || self.spaces.insert(id, space));
        }
    }

    /// Calls `action` for each space. Only `action` itself adds or removes spaces meanwhile.
    pub fn for_each_id(&mut self, mut action: impl FnMut(&mut Self, SpaceId)) {
        let mut ids = self.spare_ids.pop().unwrap_or_default();
        ids.clear();
        during(Growth::AddressSpaces, || ids.extend(self.spaces.keys().copied()));
        for id in &ids {
            action(self, *id);
        }
        during(Growth::AddressSpaces, || self.spare_ids.push(ids));
    }

    fn receive(&mut self, message: Message<M>) {
        match message {
            Message::OfMemory(message) => during(Growth::AddressSpaces, || M::receive(self, message)),
            Message::Evicted(done) => self.with_space_or_release(done),
            Message::Read(done) => self.receive_read(done),
            Message::Queue { device, queue } => self.receive_queue(device, queue),
            Message::DeviceGone(device) => self.drop_queue(device),
            Message::BringIn(order) => self.receive_bring_in(order),
            Message::ServeAtOnce { space, address } => {
                self.with_space(space, |owner, space| owner.serve_at_once(space, address));
            }
            Message::Pages(query) => self.receive_page_query(*query),
            Message::Balance | Message::Stop => {}
        }
    }

    /// Receives a read. The pages that were charged when the read was ordered are charged anew when
    /// they are installed.
    pub fn receive_read(&mut self, read: Read) {
        if self.spaces.contains_key(&read.space) {
            self.with_space(read.space, |owner, space| owner.arrived(space, read));
        } else {
            self.shared.budget.arriving(-(read.buffer.pages.len() as i64));
            read.buffer.pages.iter().for_each(|load| self.shared.store.release(load.id));
        }
    }

    /// Looks for results of orders, which may have come with the bell.
    fn absorb_all(&mut self) {
        let delay = self.shared.faults.delay_absorb;
        if delay > 0 && self.absorbed.elapsed() < Duration::from_micros(delay) {
            return self.retry_soon();
        }
        self.absorbed = Instant::now();
        self.for_each_id(|owner, id| {
            let trays = owner.spaces.get(&id).map(|space| &space.trays);
            if trays.is_some_and(|trays| !trays.filling.is_empty() || !trays.dropping.is_empty()) {
                owner.with_space(id, |owner, space| {
                    owner.absorb(space);
                    owner.serve_waiters(space);
                });
            }
        });
    }

    fn retry(&mut self) {
        let due = self.retry_at.is_some_and(|at| at <= Instant::now());
        if due {
            self.retry_at = None;
            during(Growth::AddressSpaces, || M::retry(self));
            if self.shared.faults.delay_absorb > 0 {
                self.absorb_all();
            }
        }
        self.for_each_id(|owner, id| {
            let space = &owner.spaces[&id];
            let stalled = !space.waiting.stalled.is_empty();
            let pending =
                space.memory.is_gate_closed() || space.memory.is_changing() || !space.waiting.waiters.is_empty();
            let held = !space.waiting.held.is_empty();
            let copies = space.lineage.copies.waiting() > 0 || due && space.lineage.copies.is_wanted();
            let turn = space.returning.is_due(space.record.is_held());
            if stalled || held || turn || copies || (due && pending) {
                owner.with_space(id, |owner, space| {
                    if due {
                        owner.serve(space);
                        owner.serve_waiters(space);
                    }
                    owner.serve_stalled(space);
                    owner.serve_copies(space);
                    owner.serve_held(space);
                    if turn {
                        owner.go_on_with_turn(space);
                    }
                });
            }
        });
    }

    /// Regular work, every 100 ms: removes spaces whose process has ended without an agent to
    /// report it, and tidies lists that are full of stale entries.
    fn sweep(&mut self) {
        if self.last_sweep.elapsed() < Duration::from_millis(100) {
            return;
        }
        self.last_sweep = Instant::now();
        self.sweep_queues();
        during(Growth::Telling, || {
            self.tell_load(true);
            M::sweep(self);
        });
        self.for_each_id(|owner, id| during(Growth::Telling, || owner.sweep_space(id)));
    }

    fn sweep_space(&mut self, id: SpaceId) {
        let space = &self.spaces[&id];
        if space.memory.is_gone() {
            self.remove_space(id);
        } else {
            self.with_space(id, |owner, space| {
                owner.bind_account(space);
                space.policy.tidy(&mut space.table);
                M::look_after(owner, space);
                owner.drop_untouched(space);
                owner.give_fork_room_back(space, false);
                let waiters = &space.waiting.waiters;
                space.waiting.throttle.forget(|page| waiters.contains(page));
                if owner.shared.faults.hits(owner.shared.faults.broken) {
                    owner.shared.condemn(Verdict::Broken("a fault point says so".into()));
                }
                if owner.shared.faults.audit {
                    owner.audit(space);
                }
            });
        }
    }

    /// Reclaims if a group or the budget needs it.
    fn balance(&mut self) {
        if M::is_leaving(&self.shared) {
            return self.set_helpless(true);
        }
        let asked = self.balance_groups();
        let wanted = self.shared.budget.wanted();
        if wanted > 0 || !asked.is_empty() {
            self.watch_relatives();
        }
        if wanted <= 0 {
            return self.set_helpless(false);
        }
        let begun = Instant::now();
        let (last, took) = self.balance.last;
        let next = last + took * BALANCE_COST;
        if self.spaces.len() > FEW && begun < next && asked.is_empty() && self.shared.budget.has_room(URGENT) {
            return self.retry_by(next);
        }
        self.share_out(wanted, &asked);
        self.balance.last = (begun, begun.elapsed());
    }

    /// Makes the spaces evict `wanted` pages in all, those of held processes first. The pages in
    /// `asked` were already asked for on behalf of groups.
    fn share_out(&mut self, wanted: i64, asked: &HashMap<SpaceId, u64>) {
        let manageable =
            self.spaces.values().filter(|space| space.can_evict()).map(|space| space.can_go() as i64).sum();
        self.shared.gauges.manageable[self.number].store(manageable, std::sync::atomic::Ordering::Relaxed);
        let left = (wanted as u64).saturating_sub(asked.values().sum());
        let (suspended, theirs) = self.suspended(left);
        let from_suspended = left.min(theirs);
        if from_suspended > 0 {
            self.reclaim_from(|space| suspended.contains(&space.id), from_suspended, |_, _| {});
        }
        // When memory is about to exceed the limit, pages are taken from any process.
        let left = if self.shared.budget.has_room(0) { left - from_suspended } else { left };
        if left > 0 && !self.others_give(left) {
            self.reclaim_from(|space| !suspended.contains(&space.id), left, |_, _| {});
        }
        let filling = |owner: &Self| owner.spaces.values().any(|space| space.is_filling());
        let is_quiet = |owner: &Self| owner.shared.budget.under_way() <= 0 || owner.has_round_to_join();
        if !filling(self) && !self.shared.budget.has_room(URGENT) && is_quiet(self) {
            self.press(|_| true, wanted as usize);
        }
        self.set_helpless(!filling(self) && !self.has_cow_shared(|_| true));
    }

    /// Takes `wanted` pages from the spaces that satisfy `is_one`, from each in proportion to its
    /// size, in turn. `asked` gets the number of pages that each space was asked for.
    pub fn reclaim_from(
        &mut self,
        is_one: impl Fn(&Space<M>) -> bool,
        wanted: u64,
        mut asked: impl FnMut(SpaceId, u64),
    ) {
        self.search_left(&is_one);
        let mut candidates = std::mem::take(&mut self.balance.candidates);
        candidates.clear();
        let spaces = self.spaces.values().filter(|space| space.can_evict() && is_one(space));
        during(Growth::AddressSpaces, || candidates.extend(spaces.map(|space| (space.id, space.weight()))));
        candidates.sort_unstable_by_key(|(id, _)| (*id <= self.balance.next_victim, *id));
        let total: u64 = candidates.iter().map(|(_, resident)| resident).sum();
        let mut left = wanted;
        if total > 0 && wanted > 0 {
            self.retry_soon();
        }
        for &(id, resident) in &candidates {
            let share = (wanted * resident).div_ceil(total.max(1)).min(left);
            if share > 0 {
                self.with_space(id, |owner, space| owner.reclaim(space, share));
                left -= share;
                self.balance.next_victim = id;
                asked(id, share);
            }
        }
        self.balance.candidates = candidates;
    }

    /// Publishes whether this pager has no evictions under way.
    fn set_helpless(&mut self, helpless: bool) {
        self.shared.gauges.idle[self.number].store(helpless, std::sync::atomic::Ordering::Relaxed);
    }

    /// Adds a new space. Returns `false` if its memory cannot be watched.
    pub fn add_space(&mut self, space: Space<M>) -> bool {
        if space.memory.watch(&self.poller, token(space.id, 1)).is_err() {
            return false;
        }
        let mut space = space;
        space.record = Arc::new(LoadRecord::new(self.number, space.id));
        self.shared.load.begin(&space.record);
        self.spaces.insert(space.id, Box::new(space));
        true
    }

    /// A number for a new space.
    pub fn new_id(&mut self) -> SpaceId {
        self.next_space += 1;
        self.next_space
    }

    /// Removes a space that has ended.
    pub fn remove_space(&mut self, id: SpaceId) {
        let Some(mut space) = self.spaces.remove(&id) else { return };
        self.drop_ahead(&mut space);
        self.give_fork_room_back(&mut space, true);
        self.release_range(&mut space, 0, u64::MAX);
        M::was_removed(self, &space);
        let under_way = space.trays.pages_under_way();
        self.under_way(&mut space, -(under_way as i64));
        // The last step: who waits for the ends of spaces looks at the records.
        self.shared.load.end(&space.record);
    }
}
