//! The connection to a living agent.

use std::sync::atomic::Ordering::SeqCst;

use uswap_abi::ring::Ring;
use uswap_sys::leash::Leash;
use uswap_sys::shared::SharedValue;
use uswap_sys::socket::MessageSocket;

use crate::remote::agent::processes::AgentProcess;

/// The connection to a living agent.
#[derive(Debug)]
pub struct AgentLink {
    /// Doorbell, and the sign of death.
    pub socket: MessageSocket,
    /// Orders and results.
    pub ring: SharedValue<Ring>,
    /// What the nonce page of this image holds.
    pub nonce: [u64; 2],
    /// The agent has it too. It ends the program with engine and keeper, also while the agent waits in the kernel.
    pub leash: Leash,
    /// The same for the agent, which may be a process of its own.
    pub own_leash: Leash,
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
