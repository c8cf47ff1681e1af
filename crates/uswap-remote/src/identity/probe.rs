//! Proof of identity: whose memory is behind a userfaultfd?
//!
//! A fork event carries a userfaultfd and no name. Marks in memory do not tell whose it is: a child
//! inherits those of its parent. So a page that is missing in the suspect's memory is installed
//! through the userfaultfd. If it is there afterwards, both are one: nobody else installs anything
//! at that place, and one proof is made at a time.
//!
//! Of the suspect's memory only is asked what is present, so no answer waits for a fault. A page
//! once installed tells later suspects that miss it apart for nothing; only descendants, who have
//! inherited it, cost another.

use std::sync::{Mutex, MutexGuard};

use uswap_abi::layout::{PAGE, PROOF_PAGES, PROOFS};
use uswap_sys::procfs::pagemap::Pagemap;
use uswap_sys::userfaultfd::{Install, Userfaultfd};

/// What came out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProbeAnswer {
    /// It is its memory: the page at this address is there since the proof.
    Same(u64),
    /// It is not.
    Other,
    /// The kernel installs nothing now (the memory behind the userfaultfd is being changed), or no
    /// page is left.
    Unsure,
}

/// Makes proofs, one at a time.
#[derive(Debug)]
pub struct Prover {
    turn: Mutex<()>,
    pages: u64,
}

impl Prover {
    /// `single`: with one page only (a rule switched off).
    pub fn new(single: bool) -> Self {
        Self { turn: Mutex::default(), pages: if single { 1 } else { PROOF_PAGES } }
    }

    /// While this is held no proof is made: for pages that appear at such a place for another
    /// reason.
    pub fn pause(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().expect("the turn of proofs")
    }

    /// Whether the memory behind `events`, with the agent's area at `area`, is what `suspect` tells
    /// of.
    pub fn ask(&self, events: &Userfaultfd, area: u64, suspect: &Pagemap) -> ProbeAnswer {
        let _turn = self.pause();
        let mut places = (0..self.pages).map(|number| area + PROOFS + number * PAGE);
        let Some(page) = places.find(|page| suspect.is_present(*page).is_ok_and(|present| !present)) else {
            return ProbeAnswer::Unsure;
        };
        match events.zero(page, PAGE) {
            Install::Done if suspect.is_present(page).unwrap_or(false) => ProbeAnswer::Same(page),
            Install::Done | Install::Exists(_) | Install::Gone => ProbeAnswer::Other,
            _ => ProbeAnswer::Unsure,
        }
    }
}

/// Whether a page of the agent's area is one of the proofs.
pub fn is_proof(area: u64, address: u64) -> bool {
    (area + PROOFS..area + PROOFS + PROOF_PAGES * PAGE).contains(&address)
}

#[cfg(test)]
mod tests {
    use super::*;
    use uswap_sys::Reservation;

    /// An area whose proofs are registered in this process, its userfaultfd, and our own pagemap.
    fn area() -> Option<(Reservation, Userfaultfd, Pagemap)> {
        let events = Userfaultfd::for_this_process().ok()?;
        events.handshake(0).expect("handshake");
        let area = Reservation::new((PROOFS + PROOF_PAGES * PAGE) as usize).expect("address space");
        let start = area.bytes().as_ptr() as u64;
        events.register(start + PROOFS, PROOF_PAGES * PAGE).expect("register");
        Some((area, events, Pagemap::open(std::process::id()).expect("pagemap")))
    }

    #[test]
    fn our_own_memory_is_proven_as_often_as_there_are_pages() {
        let Some((area, events, own)) = area() else { return };
        let (prover, start) = (Prover::new(false), area.bytes().as_ptr() as u64);
        for number in 0..PROOF_PAGES {
            assert_eq!(prover.ask(&events, start, &own), ProbeAnswer::Same(start + PROOFS + number * PAGE));
        }
        assert_eq!(prover.ask(&events, start, &own), ProbeAnswer::Unsure);
    }

    #[test]
    fn another_process_is_told_apart_and_costs_one_page() {
        let Some((area, events, own)) = area() else { return };
        let (prover, start) = (Prover::new(false), area.bytes().as_ptr() as u64);
        let mut other = std::process::Command::new("sleep").arg("60").spawn().expect("sleep");
        let others = Pagemap::open(other.id()).expect("its pagemap");
        for _ in 0..2 * PROOF_PAGES {
            assert_eq!(prover.ask(&events, start, &others), ProbeAnswer::Other);
        }
        assert_eq!(prover.ask(&events, start, &own), ProbeAnswer::Same(start + PROOFS + PAGE));
        other.kill().and_then(|()| other.wait()).expect("sleep ends");
    }

    #[test]
    fn what_cannot_be_installed_proves_nothing() {
        let Some((area, events, own)) = area() else { return };
        let start = area.bytes().as_ptr() as u64;
        events.unregister(start + PROOFS, PROOF_PAGES * PAGE).expect("unregister");
        assert_eq!(Prover::new(false).ask(&events, start, &own), ProbeAnswer::Unsure);
    }
}
