//! The connection to a living agent, and what it says first.

use std::sync::atomic::Ordering::SeqCst;

use uswap_abi::ring::Ring;
use uswap_sys::alloc::shared::SharedValue;
use uswap_sys::io::socket::MessageSocket;
use uswap_sys::process::kill_on_close::KillOnClose;
use uswap_sys::userfaultfd::Userfaultfd;

use crate::agent::processes::{self, AgentProcess};
use crate::shared::Attached;

/// The connection to a living agent.
#[derive(Debug)]
pub struct AgentLink {
    /// Doorbell, and the sign of death.
    pub socket: MessageSocket,
    /// Orders and results.
    pub ring: SharedValue<Ring>,
    /// What the nonce page of this image holds.
    pub nonce: [u64; 2],
    /// The agent has it too. It ends the program with engine and keeper, also while the agent waits
    /// in the kernel.
    pub leash: KillOnClose,
    /// The same for the agent, which may be a process of its own.
    pub own_leash: KillOnClose,
    /// The agent as a process of its own; `None`: it is a thread of the program.
    pub process: Option<AgentProcess>,
}

impl AgentLink {
    /// From now on the program must not outlive engine and keeper.
    pub fn bind(&self) {
        self.ring.active.store(1, SeqCst);
        if self.ring.careless.load(SeqCst) == 0 {
            self.leash.fasten();
            self.own_leash.fasten();
        }
    }

    /// Nothing of the program's memory is with us any more.
    pub fn let_go(&self) {
        self.ring.active.store(0, SeqCst);
        self.leash.loosen();
        self.own_leash.loosen();
    }

    /// Wakes the agent.
    pub fn ring_doorbell(&self) {
        // A full socket has woken it; a dead agent is noticed by the hang-up.
        let _ = self.socket.send(&[1], &[]);
    }
}

/// An agent that has said hello.
#[derive(Debug)]
pub struct AgentHello {
    /// Its process.
    pub pid: u32,
    /// Its agent: a thread of it, or a process of its own.
    pub thread: u32,
    /// The area in its memory.
    pub area: u64,
    /// What its identity page holds (0: not a fork child of a managed process).
    pub identity: u64,
    /// Socket, ring and nonce.
    pub link: AgentLink,
    /// The event userfaultfd (absent in a fork child).
    pub events: Option<Userfaultfd>,
    /// The staging userfaultfd.
    pub staging: Userfaultfd,
    /// The agent cannot see its own files in /proc.
    pub blind: bool,
    /// It is a fork child's, whether the parent was managed or not.
    pub inherited: bool,
    /// It was brought to a program that had none.
    pub attached: Option<Attached>,
}

impl AgentHello {
    /// Whether the agent still has the memory of its program, which may have executed another one.
    pub fn is_current(&self) -> bool {
        if self.link.process.is_some() {
            return processes::speaks_for(self.thread, self.pid);
        }
        uswap_sys::procfs::process_of_thread(self.thread) == Some(self.pid)
    }
}
