//! The owner: one thread that owns the userfaultfds and the page tables of its spaces.
//!
//! It alone reads the events and issues the installing ioctls of a space, so nothing it has decided can be overtaken
//! by an event that somebody else read. It waits on nobody: what blocks (device reads, reading trays, compressing) is
//! done by others, who answer into its mailbox.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use uswap_abi::layout::TRAY_PAGES;
use uswap_core::PAGE_SIZE;
use uswap_core::growth::{Growth, during};
use uswap_sys::AlignedBuf;
use uswap_sys::events::{Poller, Ready};
use uswap_sys::userfaultfd::Event;

use crate::pager::accounting::charge::URGENT;
use crate::pager::context::{Greeting, Mailbox, Message, Shared, Verdict};
use crate::pager::io::direct_reads::{self, Queues};
use crate::pager::io::reader::Read;
use crate::pager::io::unuse::Bringing;
use crate::pager::load_control::Record;
use crate::pager::space::{Space, SpaceId};
use crate::remote::agent::admission::Lobby;
use crate::remote::sched::affinity::Placement;
use uswap_sys::procfs;

/// Most pages in one installation.
pub const MOST_INSTALL: usize = 64;

/// State of one owner thread.
pub struct Owner {
    /// Its number.
    pub number: usize,
    /// What all threads share.
    pub shared: Arc<Shared>,
    /// Its spaces.
    pub spaces: HashMap<SpaceId, Box<Space>>,
    /// Pages on their way in.
    pub buffer: AlignedBuf,
    /// Zeros.
    pub zeros: AlignedBuf,
    /// Kept for their room: events just read, and the faults among them.
    pub events: Vec<Event>,
    /// See `events`.
    pub faults: Vec<Fault>,
    mailbox: Arc<Mailbox>,
    /// What it waits for.
    pub poller: Poller,
    /// Reads that it asks devices for itself.
    pub queues: Queues,
    next_space: SpaceId,
    /// When something is to be tried again.
    pub retry_at: Option<Instant>,
    last_sweep: Instant,
    /// When results of orders were looked for last.
    absorbed: Instant,
    /// Where it runs.
    pub placement: Placement,
    next_victim: SpaceId,
    /// Kept for their room.
    spare_ids: Vec<Vec<SpaceId>>,
    candidates: Vec<(SpaceId, u64)>,
    /// Groups that are short of memory and for which nothing is under way here.
    pub idle_groups: Vec<usize>,
    /// When load control was told of the spaces last.
    pub told_load: Instant,
    /// When reclaim was last shared out over the spaces, and how long that took.
    balanced: (Instant, Duration),
    /// When pages were taken for groups last.
    pub groups_balanced: Instant,
    /// New programs that wait for room.
    pub lobby: Lobby,
    /// What a swapoff has it bring in.
    pub bringing: Bringing,
    /// Agents of fork children whose space is not found yet, and since when they wait.
    pub late_children: Vec<(Instant, Box<Greeting>)>,
}

/// A fault message.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    /// Its page.
    pub address: u64,
    /// The access was a write.
    pub write: bool,
    /// The page is there, and was write-protected.
    pub protected: bool,
    /// Who waits, as its pid namespace counts.
    pub thread: u32,
}

const BELL: u64 = 0;
/// Among more than a few spaces reclaim is shared out so rarely that it takes one part in so many of the time, while memory is not urgently short.
const BALANCE_COST: u32 = 5;
const FEW: usize = 8;

fn events_token(space: SpaceId) -> u64 {
    u64::from(space) << 2 | 1
}

fn socket_token(space: SpaceId) -> u64 {
    u64::from(space) << 2 | 2
}

fn program_token(space: SpaceId) -> u64 {
    u64::from(space) << 2 | 3
}

impl Owner {
    /// An owner without spaces.
    ///
    /// # Errors
    /// EMFILE.
    pub fn new(number: usize, shared: Arc<Shared>) -> std::io::Result<Self> {
        let mailbox = shared.mailboxes[number].clone();
        let poller = Poller::new()?;
        poller.add(&mailbox.bell, BELL)?;
        Ok(Self {
            placement: Placement::of_this_thread(false, mailbox.clone()),
            number,
            shared,
            spaces: HashMap::new(),
            buffer: AlignedBuf::zeroed(MOST_INSTALL * PAGE_SIZE),
            zeros: AlignedBuf::zeroed(MOST_INSTALL * PAGE_SIZE),
            events: Vec::with_capacity(256),
            faults: Vec::with_capacity(256),
            mailbox,
            poller,
            queues: Queues::default(),
            next_space: 1,
            retry_at: None,
            last_sweep: Instant::now(),
            absorbed: Instant::now(),
            next_victim: 0,
            spare_ids: Vec::new(),
            candidates: Vec::with_capacity(64),
            idle_groups: Vec::new(),
            told_load: Instant::now(),
            balanced: (Instant::now(), Duration::ZERO),
            groups_balanced: Instant::now(),
            lobby: Lobby::default(),
            bringing: Bringing::default(),
            late_children: Vec::new(),
        })
    }

    /// Serves until told to stop.
    pub fn run(&mut self) {
        self.placement = Placement::of_this_thread(!self.shared.faults.no_placement, self.mailbox.clone());
        let mut ready = Vec::with_capacity(64);
        self.shared.faults.serve_without_growth();
        loop {
            ready.clear();
            if let Err(error) = self.poller.wait(self.timeout(), &mut ready) {
                let text = format!("an owner cannot wait for events: {error}");
                return self.shared.condemn(Verdict::Broken(text));
            }
            for event in &ready {
                if self.handle(*event) {
                    return;
                }
            }
            self.retry();
            self.sweep();
            self.tell_load(false);
            self.balance();
            self.leave();
            self.bring_in();
            self.placement.keep();
        }
    }

    fn timeout(&self) -> i32 {
        let Some(at) = self.retry_at else { return 100 };
        at.saturating_duration_since(Instant::now()).as_millis() as i32 + 1
    }

    /// Asks for a round of retries soon.
    pub fn retry_soon(&mut self) {
        self.retry_by(Instant::now() + Duration::from_micros(300));
    }

    /// Asks for a round of retries at that time, or sooner.
    pub fn retry_by(&mut self, at: Instant) {
        self.retry_at = Some(self.retry_at.map_or(at, |known| known.min(at)));
    }

    /// `true`: stop.
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
            2 => owner.agent_hung_up(space),
            _ => owner.dismiss(space),
        });
        false
    }

    /// Takes the space out of the map for the time of `action`, so that owner and space can both be changed.
    pub fn with_space(&mut self, id: SpaceId, action: impl FnOnce(&mut Self, &mut Space)) {
        if let Some(mut space) = self.spaces.remove(&id) {
            action(self, &mut space);
            // Its place in the map is still there, mostly.
            during(Growth::AddressSpaces, || self.spaces.insert(id, space));
        }
    }

    /// Does something with each space in turn. None comes or goes meanwhile but by `action`.
    pub fn for_each_id(&mut self, mut action: impl FnMut(&mut Self, SpaceId)) {
        let mut ids = self.spare_ids.pop().unwrap_or_default();
        ids.clear();
        during(Growth::AddressSpaces, || ids.extend(self.spaces.keys().copied()));
        for id in &ids {
            action(self, *id);
        }
        during(Growth::AddressSpaces, || self.spare_ids.push(ids));
    }

    fn receive(&mut self, message: Message) {
        match message {
            Message::Hello(greeting) => during(Growth::AddressSpaces, || self.receive_hello(greeting)),
            Message::Evicted(done) => self.with_space_or_release(done),
            Message::Read(done) => self.receive_read(done),
            Message::Queue { device, queue } => self.receive_queue(device, queue),
            Message::DeviceGone(device) => self.drop_queue(device),
            Message::BringIn(order) => self.receive_bring_in(order),
            Message::Matched { space, found } => {
                during(Growth::AddressSpaces, || self.with_space(space, |owner, space| owner.matched(space, found)));
            }
            Message::Scan(id) => {
                during(Growth::AddressSpaces, || self.with_space(id, |owner, space| owner.scan(space)));
            }
            Message::Dismiss { space, agent } => self.with_space(space, |owner, space| {
                if space.memory.reader == agent {
                    owner.dismiss(space);
                }
            }),
            Message::ServeAtOnce { space, address } => {
                self.with_space(space, |owner, space| owner.serve_at_once(space, address));
            }
            Message::Pages(query) => self.receive_page_query(*query),
            Message::Balance | Message::Stop => {}
        }
    }

    /// What was charged when the read was ordered is charged anew for each page that is installed.
    pub fn receive_read(&mut self, read: Read) {
        if self.spaces.contains_key(&read.space) {
            self.with_space(read.space, |owner, space| owner.arrived(space, read));
        } else {
            self.shared.budget.arriving(-(read.buffer.pages.len() as i64));
            read.buffer.pages.iter().for_each(|load| self.shared.store.release(load.id));
        }
    }

    /// Results of orders may have come with the bell.
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
            during(Growth::AddressSpaces, || {
                self.open_lobby();
                self.greet_late_children();
            });
            if self.shared.faults.delay_absorb > 0 {
                self.absorb_all();
            }
        }
        self.for_each_id(|owner, id| {
            let space = &owner.spaces[&id];
            let stalled = !space.stalled.is_empty();
            let pending = space.memory.gate_pending || !space.memory.window.is_empty() || !space.waiters.is_empty();
            let held = !space.held.is_empty();
            let copies = space.copies.waiting() > 0 || due && space.copies.is_wanted();
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

    /// Now and then: spaces whose process is gone without an agent to tell, and lists full of stale entries.
    fn sweep(&mut self) {
        if self.last_sweep.elapsed() < Duration::from_millis(100) {
            return;
        }
        self.last_sweep = Instant::now();
        self.sweep_queues();
        during(Growth::Telling, || {
            self.tell_load(true);
            self.placement.sweep();
        });
        self.for_each_id(|owner, id| during(Growth::Telling, || owner.sweep_space(id)));
    }

    fn sweep_space(&mut self, id: SpaceId) {
        let space = &self.spaces[&id];
        if space.memory.agent.is_none() && !space.memory.is_alive() {
            self.bury(id);
        } else {
            self.with_space(id, |owner, space| {
                owner.bind_account(space);
                owner.see_off(space);
                space.working_set.tidy(&mut space.table);
                owner.look_whether_stopped(space);
                if space.memory.orphaned.is_some() {
                    owner.find_process(space, None);
                }
                owner.publish(space);
                owner.drop_untouched(space);
                let waiters = &space.waiters;
                space.throttle.forget(|page| waiters.contains(page));
                if owner.shared.faults.hits(owner.shared.faults.broken) {
                    owner.shared.condemn(Verdict::Broken("a fault point says so".into()));
                }
                if owner.shared.faults.audit {
                    owner.audit(space);
                }
            });
        }
    }

    /// What a stopped agent was ordered to do is not under way: others must not wait for the room it would make.
    fn look_whether_stopped(&mut self, space: &mut Space) {
        let pending = !space.trays.filling.is_empty() || !space.trays.dropping.is_empty();
        space.memory.stopped = space.memory.agent.is_some()
            && (pending || space.memory.stopped)
            && procfs::is_stopped(space.memory.reader);
        if space.memory.stopped {
            let charged = space.trays.forgo_drops();
            self.under_way(space, -i64::from(charged));
        }
    }

    /// Reclaims when a group or the budget wants it.
    fn balance(&mut self) {
        if self.shared.leaving.is_under_way() {
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
        let (last, took) = self.balanced;
        let next = last + took * BALANCE_COST;
        if self.spaces.len() > FEW && begun < next && asked.is_empty() && self.shared.budget.has_room(URGENT) {
            return self.retry_by(next);
        }
        self.share_out(wanted, &asked);
        self.balanced = (begun, begun.elapsed());
    }

    /// Has spaces evict `wanted` pages together, those of held processes before others. Groups were `asked` for so many already.
    fn share_out(&mut self, wanted: i64, asked: &HashMap<SpaceId, u64>) {
        let manageable =
            self.spaces.values().filter(|space| space.can_evict()).map(|space| space.can_go() as i64).sum();
        self.shared.manageable[self.number].store(manageable, std::sync::atomic::Ordering::Relaxed);
        let left = (wanted as u64).saturating_sub(asked.values().sum());
        let (suspended, theirs) = self.suspended(left);
        let from_suspended = left.min(theirs);
        if from_suspended > 0 {
            self.reclaim_from(|space| suspended.contains(&space.id), from_suspended, |_, _| {});
        }
        // What is about to be too late is taken from whoever has it.
        let left = if self.shared.budget.has_room(0) { left - from_suspended } else { left };
        if left > 0 && !self.others_give(left) {
            self.reclaim_from(|space| !suspended.contains(&space.id), left, |_, _| {});
        }
        let filling = |owner: &Self| owner.spaces.values().any(|space| space.is_filling());
        if !filling(self) && self.shared.budget.under_way() <= 0 && !self.shared.budget.has_room(URGENT) {
            self.press(|_| true, wanted as usize);
        }
        self.set_helpless(!filling(self));
    }

    /// Takes `wanted` pages from spaces, from each by what it has, in turn. Tells what was asked of whom.
    pub fn reclaim_from(&mut self, is_one: impl Fn(&Space) -> bool, wanted: u64, mut asked: impl FnMut(SpaceId, u64)) {
        self.search_left(&is_one);
        let mut candidates = std::mem::take(&mut self.candidates);
        candidates.clear();
        let spaces = self.spaces.values().filter(|space| space.can_evict() && is_one(space));
        during(Growth::AddressSpaces, || candidates.extend(spaces.map(|space| (space.id, space.weight()))));
        candidates.sort_unstable_by_key(|(id, _)| (*id <= self.next_victim, *id));
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
                self.next_victim = id;
                asked(id, share);
            }
        }
        self.candidates = candidates;
    }

    /// Tells all owners whether this one has evictions under way.
    fn set_helpless(&mut self, helpless: bool) {
        self.shared.idle[self.number].store(helpless, std::sync::atomic::Ordering::Relaxed);
    }

    /// Nothing but pages that relatives by fork share is left in these spaces: they go in the same order everywhere.
    pub fn press(&mut self, is_one: impl Fn(&Space) -> bool, wanted: usize) {
        let shares = |space: &Space| space.can_evict() && !space.shared_parked.is_empty() && is_one(space);
        let sharing = self.spaces.values().filter(|space| shares(space)).count();
        if sharing == 0 {
            return;
        }
        // Each is copied before it goes, and frees nothing until all relatives have given it up: none lies staged meanwhile.
        let share = wanted.div_ceil(sharing).min(TRAY_PAGES as usize);
        self.for_each_id(|owner, id| {
            if shares(&owner.spaces[&id]) {
                owner.with_space(id, |owner, space| {
                    owner.store_staged(space, wanted as u64, 0);
                    let pressed = owner.press_shared(space, share);
                    owner.reclaim(space, pressed as u64);
                });
            }
        });
    }

    /// Takes a new space over.
    pub fn adopt(&mut self, space: Space) -> bool {
        if self.poller.add(&space.memory.events, events_token(space.id)).is_err() {
            return false;
        }
        let mut space = space;
        space.record = Arc::new(Record::new(self.number, space.id));
        self.shared.load.begin(&space.record);
        self.spaces.insert(space.id, Box::new(space));
        true
    }

    /// A number for a new space.
    pub fn new_id(&mut self) -> SpaceId {
        self.next_space += 1;
        self.next_space
    }

    /// Watches the socket of a space's agent, and the program where that is another process.
    pub fn watch_agent(&self, space: &Space) -> bool {
        let Some(agent) = &space.memory.agent else { return false };
        let program = agent.process.as_ref().map_or(Ok(()), |it| self.poller.add(&it.program, program_token(space.id)));
        program.is_ok() && self.poller.add(&agent.socket, socket_token(space.id)).is_ok()
    }

    /// Watches the end of the program no more.
    pub fn unwatch_program(&self, space: &Space) {
        if let Some(process) = space.memory.agent.as_ref().and_then(|agent| agent.process.as_ref()) {
            self.poller.remove(&process.program);
        }
    }

    /// Watches it no more.
    pub fn unwatch(&self, agent: &crate::remote::agent::link::AgentLink) {
        self.poller.remove(&agent.socket);
    }

    /// The agent's socket has input: only its end is possible.
    fn agent_hung_up(&mut self, space: &mut Space) {
        during(Growth::AddressSpaces, || self.look_after_hang_up(space));
    }

    fn look_after_hang_up(&mut self, space: &mut Space) {
        let Some(agent) = space.memory.agent.as_ref() else { return };
        let mut byte = [0u8; 64];
        match agent.socket.receive(&mut byte) {
            Ok((n, _)) if n > 0 => return,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return,
            _ => {}
        }
        self.poller.remove(&agent.socket);
        self.unwatch_program(space);
        self.forget_agent(space);
        self.retry_soon();
    }

    /// Takes a dead space apart.
    pub fn bury(&mut self, id: SpaceId) {
        let Some(mut space) = self.spaces.remove(&id) else { return };
        self.shared.load.end(&space.record);
        self.poller.remove(&space.memory.events);
        if let Some(agent) = &space.memory.agent {
            self.poller.remove(&agent.socket);
        }
        self.unwatch_program(&space);
        self.drop_ahead(&mut space);
        self.release_range(&mut space, 0, u64::MAX);
        if let Some(pid) = space.memory.pid {
            self.shared.managed.remove(pid, id, self.number);
        }
        let under_way = space.trays.pages_under_way();
        self.under_way(&mut space, -(under_way as i64));
    }
}
