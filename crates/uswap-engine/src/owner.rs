//! The owner: one thread that owns the userfaultfds and the page tables of its spaces.
//!
//! It alone reads the events and issues the installing ioctls of a space, so nothing it has decided can be overtaken
//! by an event that somebody else read. It waits on nobody: what blocks (device reads, reading trays, compressing) is
//! done by others, who answer into its mailbox.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use uswap_core::PAGE_SIZE;
use uswap_sys::AlignedBuf;
use uswap_sys::events::{Poller, Ready};
use uswap_sys::userfaultfd::Event;

use crate::charge::URGENT;
use crate::placement::Placement;
use crate::procfs;
use crate::shared::{Mailbox, Message, ReadDone, Shared, Verdict};
use crate::space::{Space, SpaceId};

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
    pub faults: Vec<(u64, bool)>,
    mailbox: Arc<Mailbox>,
    poller: Poller,
    next_space: SpaceId,
    /// When something is to be tried again.
    pub retry_at: Option<Instant>,
    last_sweep: Instant,
    /// Where it runs.
    pub placement: Placement,
    next_victim: SpaceId,
    /// Groups that are short of memory and for which nothing is under way here.
    pub idle_groups: Vec<usize>,
    /// When pages were taken for groups last.
    pub groups_balanced: Instant,
}

const BELL: u64 = 0;

fn events_token(space: SpaceId) -> u64 {
    u64::from(space) << 1 | 1
}

fn socket_token(space: SpaceId) -> u64 {
    (u64::from(space) << 1) + 2
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
            events: Vec::new(),
            faults: Vec::new(),
            mailbox,
            poller,
            next_space: 1,
            retry_at: None,
            last_sweep: Instant::now(),
            next_victim: 0,
            idle_groups: Vec::new(),
            groups_balanced: Instant::now(),
        })
    }

    /// Serves until told to stop.
    pub fn run(&mut self) {
        self.placement = Placement::of_this_thread(!self.shared.faults.no_placement, self.mailbox.clone());
        let mut ready = Vec::new();
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
            self.balance();
            self.placement.keep();
        }
    }

    fn timeout(&self) -> i32 {
        let Some(at) = self.retry_at else { return 100 };
        at.saturating_duration_since(Instant::now()).as_millis() as i32 + 1
    }

    /// Asks for a round of retries soon.
    pub fn retry_soon(&mut self) {
        let at = Instant::now() + Duration::from_micros(300);
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
        let space = ((event.token - 1) >> 1) as SpaceId;
        if event.token & 1 == 1 {
            self.with_space(space, |owner, space| owner.serve(space));
        } else {
            self.with_space(space, |owner, space| owner.agent_hung_up(space));
        }
        false
    }

    /// Takes the space out of the map for the time of `action`, so that owner and space can both be changed.
    pub fn with_space(&mut self, id: SpaceId, action: impl FnOnce(&mut Self, &mut Space)) {
        if let Some(mut space) = self.spaces.remove(&id) {
            action(self, &mut space);
            self.spaces.insert(id, space);
        }
    }

    /// The numbers of all spaces.
    pub fn ids(&self) -> Vec<SpaceId> {
        self.spaces.keys().copied().collect()
    }

    fn receive(&mut self, message: Message) {
        match message {
            Message::Hello(greeting) => self.greet(*greeting),
            Message::Evicted(done) => self.with_space_or_release(done),
            Message::Read(done) => self.receive_read(done),
            Message::Matched { space, found } => self.with_space(space, |owner, space| owner.matched(space, found)),
            Message::Scan(id) => self.with_space(id, |owner, space| owner.scan(space)),
            Message::Balance | Message::Stop => {}
        }
    }

    /// What was charged when the read was ordered is charged anew for each page that is installed.
    fn receive_read(&mut self, done: ReadDone) {
        if self.spaces.contains_key(&done.space) {
            self.with_space(done.space, |owner, space| {
                owner.charge(space, -(done.pages.len() as i64));
                owner.install_read(space, done);
            });
        } else {
            self.shared.budget.charge(-(done.pages.len() as i64));
            done.pages.iter().for_each(|(_, object, _)| self.shared.store.release(*object));
        }
    }

    /// Results of orders may have come with the bell.
    fn absorb_all(&mut self) {
        for id in self.ids() {
            let busy =
                self.spaces.get(&id).is_some_and(|s| !s.trays.filling.is_empty() || !s.trays.dropping.is_empty());
            if busy {
                self.with_space(id, |owner, space| {
                    owner.absorb(space);
                    owner.serve_waiters(space);
                });
            }
        }
    }

    fn retry(&mut self) {
        let due = self.retry_at.is_some_and(|at| at <= Instant::now());
        if due {
            self.retry_at = None;
        }
        for id in self.ids() {
            let space = &self.spaces[&id];
            let stalled = !space.stalled.is_empty();
            let pending = space.gate_pending || !space.window.is_empty() || !space.waiters.is_empty();
            if stalled || (due && pending) {
                self.with_space(id, |owner, space| {
                    if due {
                        owner.serve(space);
                        owner.serve_waiters(space);
                    }
                    owner.serve_stalled(space);
                });
            }
        }
    }

    /// Now and then: spaces whose process is gone without an agent to tell, and lists full of stale entries.
    fn sweep(&mut self) {
        if self.last_sweep.elapsed() < Duration::from_millis(100) {
            return;
        }
        self.last_sweep = Instant::now();
        self.placement.sweep();
        for id in self.ids() {
            let space = &self.spaces[&id];
            if space.agent.is_none() && !space.is_alive() {
                self.bury(id);
            } else {
                self.with_space(id, |owner, space| {
                    owner.bind_account(space);
                    space.working_set.purge(&space.table);
                    owner.look_whether_stopped(space);
                    if space.orphaned.is_some() {
                        owner.find_process(space, None);
                    }
                    owner.publish(space);
                    if owner.shared.faults.hits(owner.shared.faults.broken) {
                        owner.shared.condemn(Verdict::Broken("a fault point says so".into()));
                    }
                    if owner.shared.faults.audit {
                        owner.audit(space);
                    }
                });
            }
        }
    }

    /// What a stopped agent was ordered to do is not under way: others must not wait for the room it would make.
    fn look_whether_stopped(&mut self, space: &mut Space) {
        let pending = !space.trays.filling.is_empty() || !space.trays.dropping.is_empty();
        space.stopped = space.agent.is_some() && (pending || space.stopped) && procfs::is_stopped(space.reader);
        if space.stopped {
            let charged = space.trays.forgo_drops();
            self.under_way(space, -i64::from(charged));
        }
    }

    /// Reclaims when a group or the budget wants it.
    fn balance(&mut self) {
        let asked = self.balance_groups();
        let wanted = self.shared.budget.wanted();
        if wanted <= 0 {
            return self.set_helpless(false);
        }
        let all = self.ids();
        let weight = |space: &Space| if space.can_evict() { space.weight() as i64 } else { 0 };
        let manageable = self.spaces.values().map(|space| weight(space)).sum();
        self.shared.manageable[self.number].store(manageable, std::sync::atomic::Ordering::Relaxed);
        let left = (wanted as u64).saturating_sub(asked.values().sum());
        self.reclaim_from(&all, left);
        let filling = |owner: &Self| owner.spaces.values().any(|space| space.is_filling());
        if !filling(self) && self.shared.budget.under_way() <= 0 && !self.shared.budget.has_room(URGENT) {
            self.press(&all, wanted as usize);
        }
        self.set_helpless(!filling(self));
    }

    /// Takes `wanted` pages from these spaces, from each by what it has, in turn. Returns what was asked of whom.
    pub fn reclaim_from(&mut self, spaces: &[SpaceId], wanted: u64) -> Vec<(SpaceId, u64)> {
        let spaces = spaces.iter().map(|id| &self.spaces[id]);
        let mut candidates: Vec<(SpaceId, u64)> =
            spaces.filter(|space| space.can_evict()).map(|space| (space.id, space.weight())).collect();
        candidates.sort_by_key(|(id, _)| (*id <= self.next_victim, *id));
        let total: u64 = candidates.iter().map(|(_, resident)| resident).sum();
        let (mut left, mut asked) = (wanted, Vec::new());
        if total > 0 && wanted > 0 {
            self.retry_soon();
        }
        for (id, resident) in candidates {
            let share = (wanted * resident).div_ceil(total.max(1)).min(left);
            if share > 0 {
                self.with_space(id, |owner, space| owner.reclaim(space, share));
                left -= share;
                self.next_victim = id;
                asked.push((id, share));
            }
        }
        asked
    }

    /// Tells all owners whether this one has evictions under way.
    fn set_helpless(&mut self, helpless: bool) {
        self.shared.idle[self.number].store(helpless, std::sync::atomic::Ordering::Relaxed);
    }

    /// Nothing but pages that relatives by fork share is left in these spaces: they go in the same order everywhere.
    pub fn press(&mut self, spaces: &[SpaceId], wanted: usize) {
        let spaces = spaces.iter().map(|id| &self.spaces[id]);
        let sharing: Vec<SpaceId> =
            spaces.filter(|s| s.can_evict() && !s.shared_parked.is_empty()).map(|s| s.id).collect();
        let share = wanted.div_ceil(sharing.len().max(1));
        for id in sharing {
            self.with_space(id, |owner, space| {
                let pressed = owner.press_shared(space, share);
                owner.reclaim(space, pressed as u64);
            });
        }
    }

    /// Takes a new space over.
    pub fn adopt(&mut self, space: Space) -> bool {
        if self.poller.add(&space.events, events_token(space.id)).is_err() {
            return false;
        }
        self.spaces.insert(space.id, Box::new(space));
        true
    }

    /// A number for a new space.
    pub fn new_id(&mut self) -> SpaceId {
        self.next_space += 1;
        self.next_space
    }

    /// Watches the socket of a space's agent.
    pub fn watch_agent(&self, space: &Space) -> bool {
        space.agent.as_ref().is_some_and(|agent| self.poller.add(&agent.socket, socket_token(space.id)).is_ok())
    }

    /// The agent's socket has input: only its end is possible.
    fn agent_hung_up(&mut self, space: &mut Space) {
        let Some(agent) = space.agent.as_ref() else { return };
        let mut byte = [0u8; 64];
        match agent.socket.receive(&mut byte) {
            Ok((n, _)) if n > 0 => return,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return,
            _ => {}
        }
        self.poller.remove(&agent.socket);
        self.forget_agent(space);
        self.retry_soon();
    }

    /// Takes a dead space apart.
    pub fn bury(&mut self, id: SpaceId) {
        let Some(mut space) = self.spaces.remove(&id) else { return };
        self.poller.remove(&space.events);
        if let Some(agent) = &space.agent {
            self.poller.remove(&agent.socket);
        }
        self.release_range(&mut space, 0, u64::MAX);
        if let Some(pid) = space.pid {
            let mut managed = self.shared.managed.lock().expect("managed");
            if managed.get(&pid).is_some_and(|m| m.space == id && m.owner == self.number) {
                managed.remove(&pid);
            }
        }
        let under_way = space.trays.pages_under_way();
        self.under_way(&mut space, -(under_way as i64));
    }
}
