//! The socket of the agents. Each agent that connects gets a ring, sends its greeting, and is
//! handed over to a pager thread.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use uswap_abi::message::{
    AgentMessage as Words, HELLO_AREA_AT, HELLO_BLIND_AT, HELLO_ERRNO_AT, HELLO_FORKED_AT, HELLO_IDENTITY_AT,
    HELLO_PROCESS_AT, HELLO_TID_AT, MAGIC, WELCOME_NONCE_HI_AT, WELCOME_NONCE_LO_AT, WORDS,
};
use uswap_sys::alloc::shared::SharedValue;
use uswap_sys::io::socket::{Listener, MessageSocket};
use uswap_sys::io::spares::is_shortage;
use uswap_sys::process::{pidfd, random_word};
use uswap_sys::userfaultfd::{Userfaultfd, open_device};

use crate::agent::link::AgentHello;
use crate::agent::link::AgentLink;
use crate::agent::processes::{self, AgentProcess};
use crate::shared::Attached;
use crate::shared::Fetched;
use crate::shared::RemoteMessage;
use crate::{EngineContext, Message};
use uswap_sys::procfs;

/// How long an agent may take to send its greeting.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Agents that have connected and have not sent their greeting yet.
pub struct AgentListener {
    shared: Arc<EngineContext>,
    listener: Listener,
    device: Option<OwnedFd>,
    visitors: HashMap<u64, PendingAgent>,
    next_visitor: u64,
    next_owner: usize,
}

struct PendingAgent {
    pid: u32,
    attached: Option<Attached>,
    link: AgentLink,
    since: Instant,
}

impl AgentListener {
    /// Takes agents from a listening socket.
    pub fn new(shared: Arc<EngineContext>, listener: Listener) -> Self {
        Self { shared, listener, device: open_device().ok(), visitors: HashMap::new(), next_visitor: 1, next_owner: 0 }
    }

    /// Accepts every agent that has connected or whose socket was fetched. Calls `poll` with the
    /// number and the socket of each, to be polled for its greeting.
    pub fn welcome(&mut self, mut poll: impl FnMut(u64, &MessageSocket)) {
        self.visitors.retain(|_, visitor| visitor.since.elapsed() < HANDSHAKE_TIMEOUT);
        let mut arrived = std::mem::take(&mut *self.shared.of_memory.fetched.lock().expect("fetched"));
        self.accept(&mut arrived);
        for Fetched { socket, pid, attached } in arrived {
            if !self.shared.of_memory.descriptors.has_room_for(&socket) {
                self.shared.of_memory.descriptors.tell(&self.shared);
                continue;
            }
            let Some(link) = self.prepare(socket, pid) else { continue };
            let number = self.next_visitor;
            self.next_visitor += 1;
            poll(number, &link.socket);
            self.visitors.insert(number, PendingAgent { pid, attached, link, since: Instant::now() });
        }
    }

    /// Accepts connections. Where descriptors are short a spare one is used to accept the agent and
    /// then refuse it, since it waits for an answer.
    fn accept(&self, arrived: &mut Vec<Fetched>) {
        loop {
            match self.listener.accept() {
                Ok(Some((socket, pid))) => arrived.push(Fetched { socket, pid, attached: None }),
                Err(error) if is_shortage(&error) && self.shared.of_memory.descriptors.give_up_one() => {}
                Ok(None) | Err(_) => return,
            }
        }
    }

    fn prepare(&mut self, socket: MessageSocket, pid: u32) -> Option<AgentLink> {
        let leash = self.shared.of_memory.descriptors.post.leash(pid).ok()?;
        let mut ring: SharedValue<uswap_abi::ring::Ring> = SharedValue::new(c"uswap-ring").ok()?;
        ring.protects.store((!self.shared.faults.unwatched_copies).into(), Relaxed);
        ring.order_delay.store(self.shared.faults.delay_order as u32, Relaxed);
        ring.move_delay.store(self.shared.faults.delay_move as u32, Relaxed);
        ring.move_lies.store(self.shared.faults.move_lies as u32, Relaxed);
        ring.trust_move.store(self.shared.faults.trust_move.into(), Relaxed);
        ring.blind.store(self.shared.faults.blind_agent.into(), Relaxed);
        ring.forget_leftovers.store(self.shared.faults.forget_leftovers.into(), Relaxed);
        ring.stay_last.store(self.shared.faults.stay_last.into(), Relaxed);
        ring.careless.store(self.shared.faults.careless_agents.into(), Relaxed);
        ring.bare_staging.store(self.shared.faults.bare_staging.into(), Relaxed);
        ring.dirty_delay.store(self.shared.faults.delay_dirty as u32, Relaxed);
        ring.keep_clean.store(self.shared.faults.keep_clean.into(), Relaxed);
        ring.busy.store(self.shared.faults.busy as u32, Relaxed);
        ring.silent_hooks.store(self.shared.faults.silent_hooks.into(), Relaxed);
        ring.forget_threads.store(self.shared.faults.forget_threads.into(), Relaxed);
        let nonce = [random_word().ok()?, random_word().ok()?];
        let mut welcome: Words = [0; WORDS];
        (welcome[0], welcome[WELCOME_NONCE_LO_AT], welcome[WELCOME_NONCE_HI_AT]) = (MAGIC, nonce[0], nonce[1]);
        let own_leash = self.shared.of_memory.descriptors.post.leash(pid).ok()?;
        let mut fds = vec![ring.file()?.as_fd(), leash.as_fd(), own_leash.as_fd()];
        fds.extend(self.device.as_ref().map(AsFd::as_fd));
        crate::agent::handshake::send(&socket, &welcome, &fds)?;
        ring.close_file();
        Some(AgentLink { socket, ring, nonce, leash, own_leash, process: None })
    }

    /// Reads the greeting of a pending agent, or the end of its socket.
    pub fn hear(&mut self, number: u64, forget: impl FnOnce(&MessageSocket)) {
        let Some(visitor) = self.visitors.remove(&number) else { return };
        forget(&visitor.link.socket);
        let mut bytes = [0u8; WORDS * 8];
        let Ok((length, fds)) = visitor.link.socket.receive(&mut bytes) else { return };
        let words: Vec<u64> = bytes.as_chunks::<8>().0.iter().map(|b| u64::from_ne_bytes(*b)).collect();
        if length != bytes.len() || words[0] != MAGIC {
            return;
        }
        self.introduce(visitor, &words, fds);
    }

    fn introduce(&mut self, mut visitor: PendingAgent, hello: &[u64], mut fds: Vec<OwnedFd>) {
        let thread = if hello[HELLO_PROCESS_AT] == 0 {
            procfs::agent_thread(visitor.pid, hello[HELLO_TID_AT] as u32)
        } else {
            // A program that has ended, or executes another one by now, needs no agent: this agent
            // ends when its socket is closed.
            let Some(program) = fds.pop().and_then(|program| pair(&mut visitor, program)) else { return };
            processes::replace(&self.shared, program, visitor.pid);
            std::mem::replace(&mut visitor.pid, program)
        };
        let identity = hello[HELLO_IDENTITY_AT];
        let mut fds = fds.into_iter().map(Userfaultfd::from);
        let events = if identity == 0 { fds.next() } else { None };
        let staging = fds.next();
        let (Some(staging), true) = (staging, identity != 0 || events.is_some()) else {
            return self.turn_away(&visitor, hello[HELLO_ERRNO_AT] as i32);
        };
        let owner = self.owner_of(identity);
        let greeting = AgentHello {
            pid: visitor.pid,
            thread,
            area: hello[HELLO_AREA_AT],
            identity,
            link: visitor.link,
            events,
            staging,
            blind: hello[HELLO_BLIND_AT] != 0,
            inherited: hello[HELLO_FORKED_AT] != 0,
            attached: visitor.attached,
        };
        self.shared.mailboxes[owner].post(Message::OfMemory(RemoteMessage::Hello(Box::new(greeting))));
    }

    /// The pager thread that gets the agent. A fork child goes to its parent's, which has written
    /// its own number into the identity.
    fn owner_of(&mut self, identity: u64) -> usize {
        let owners = self.shared.mailboxes.len();
        if identity != 0 {
            return (identity & 0xff) as usize % owners;
        }
        self.next_owner += 1;
        self.next_owner % owners
    }

    /// Refuses an agent. The user is not told of a process that has ended meanwhile. (An agent
    /// whose message has no error number did send descriptors: the engine had no room for them.)
    fn turn_away(&self, visitor: &PendingAgent, errno: i32) {
        if errno == 0 {
            return self.shared.of_memory.descriptors.tell(&self.shared);
        }
        let Some(name) = procfs::name(visitor.pid).filter(|_| procfs::start_time(visitor.pid).is_some()) else {
            return;
        };
        let error = std::io::Error::from_raw_os_error(errno);
        self.shared.notice(format!("{name} (process {}) stays unmanaged: no userfaultfd: {error}", visitor.pid));
    }
}

/// Pairs an agent that is a separate process with its program. Returns the program's process id.
fn pair(visitor: &mut PendingAgent, program: OwnedFd) -> Option<u32> {
    let pid = procfs::process_of(&program)?;
    let agent = pidfd(visitor.pid).ok()?;
    if !processes::speaks_for(visitor.pid, pid) {
        return None;
    }
    visitor.link.leash.belong_to(pid).ok()?;
    visitor.link.process = Some(AgentProcess { agent, program });
    Some(pid)
}
