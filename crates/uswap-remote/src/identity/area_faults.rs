//! Faults in the agent's area.

use uswap_abi::layout::PAGE;

use crate::agent::handshake::HandshakePager;
use crate::identity::probe::is_proof;
use crate::{Pager, Space};
use uswap_pager::address_space::AddressSpace;
use uswap_pager::fault::served::Served;

/// Methods that this file adds to [`Pager`].
pub(crate) trait AreaFaultsPager {
    /// Serves a fault in the agent's area: on the identity page of a fork child, or on any page by
    /// mlockall, which touches everything.
    fn serve_area(&mut self, space: &mut Space, address: u64) -> Served;
}

impl AreaFaultsPager for Pager {
    fn serve_area(&mut self, space: &mut Space, address: u64) -> Served {
        if address == space.memory.identity_page() && space.memory.identity != 0 {
            // The kernel refuses this while the child changes its mappings. Its agent waits in this
            // fault, and is not known as an agent before the fault is served.
            let result = space.memory.install_identity();
            return self.finish_install(space, address, PAGE, result);
        }
        let is_proof = is_proof(space.memory.area, address);
        if is_proof && space.memory.pid.is_none() {
            // Once the proof pages are present they cannot prove any more to which process the
            // space belongs.
            self.find_process(space, None);
            self.retry_soon();
            return Served::Wait;
        }
        let turn = is_proof.then(|| self.shared.of_memory.prover.pause());
        let result = space.memory.zero(address, PAGE);
        drop(turn);
        self.finish_install(space, address, PAGE, result)
    }
}
