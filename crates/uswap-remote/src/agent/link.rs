//! The connection to a living agent, and the agent's greeting.

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
    /// Wakes the agent, and tells of its end by a hang-up.
    pub socket: MessageSocket,
    /// Orders and results.
    pub ring: SharedValue<Ring>,
    /// Content of the nonce page of this image.
    pub nonce: [u64; 2],
    /// Kills the program when engine and keeper have ended, also while the agent waits in the
    /// kernel. The agent has a descriptor of it too.
    pub leash: KillOnClose,
    /// The same for the agent, which may be a separate process.
    pub own_leash: KillOnClose,
    /// The agent as a separate process; `None`: it is a thread of the program.
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

    /// The engine holds no memory of the program any more: the program may outlive it.
    pub fn let_go(&self) {
        self.ring.active.store(0, SeqCst);
        self.leash.loosen();
        self.own_leash.loosen();
    }

    /// Wakes the agent.
    pub fn ring_doorbell(&self) {
        // If the socket is full the agent is awake already. A dead agent is noticed by the hang-up.
        let _ = self.socket.send(&[1], &[]);
    }
}

/// The greeting of an agent.
#[derive(Debug)]
pub struct AgentHello {
    /// The process that the agent serves.
    pub pid: u32,
    /// The agent: a thread of that process, or a separate process.
    pub thread: u32,
    /// Address of the agent's area in the program's memory.
    pub area: u64,
    /// Content of the identity page (0: not a fork child of a managed process).
    pub identity: u64,
    /// Socket, ring and nonce.
    pub link: AgentLink,
    /// The event userfaultfd (absent in a fork child).
    pub events: Option<Userfaultfd>,
    /// The staging userfaultfd.
    pub staging: Userfaultfd,
    /// The agent cannot open its own files in /proc.
    pub blind: bool,
    /// The program is a fork child, whether its parent was managed or not.
    pub inherited: bool,
    /// Set if the agent was injected into a program that had none.
    pub attached: Option<Attached>,
}

impl AgentHello {
    /// Whether the agent still has the memory of its program, which may have executed another
    /// program.
    pub fn is_current(&self) -> bool {
        if self.link.process.is_some() {
            return processes::speaks_for(self.thread, self.pid);
        }
        uswap_sys::procfs::process_of_thread(self.thread) == Some(self.pid)
    }
}
