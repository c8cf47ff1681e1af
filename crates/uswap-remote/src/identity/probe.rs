//! Proof of identity: tests whether a userfaultfd belongs to the memory of a given process.
//!
//! A fork event carries a userfaultfd and no name. Marks in memory do not identify its process: a
//! child inherits those of its parent. So the prover picks a page that is missing in the
//! candidate's memory and installs it through the userfaultfd. If the page is present in the
//! candidate's memory afterwards, both are the same memory: nothing else installs a page at that
//! place, and one proof is made at a time.
//!
//! The prover only asks which pages are present in the candidate's memory, so no answer waits for a
//! fault. A page that was installed once also rules out later candidates in which it is missing;
//! only descendants, which have inherited it, need another page.

use std::sync::{Mutex, MutexGuard};

use uswap_abi::layout::{PAGE, PROOF_PAGES, PROOFS};
use uswap_sys::procfs::pagemap::Pagemap;
use uswap_sys::userfaultfd::{Install, Userfaultfd};

/// The result of a proof.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProbeAnswer {
    /// The userfaultfd belongs to the candidate's memory: the page at this address is present since
    /// the proof.
    Same(u64),
    /// The userfaultfd belongs to other memory.
    Other,
    /// The kernel installs nothing now (the mappings behind the userfaultfd are being changed), or
    /// no proof page is left.
    Unsure,
}

/// Makes proofs, one at a time.
#[derive(Debug)]
pub struct Prover {
    turn: Mutex<()>,
    pages: u64,
}

impl Prover {
    /// A prover. `single`: it has one proof page only (a rule switched off).
    pub fn new(single: bool) -> Self {
        Self { turn: Mutex::default(), pages: if single { 1 } else { PROOF_PAGES } }
    }

    /// No proof is made while the guard is held: for installing proof pages for another reason.
    pub fn pause(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().expect("the turn of proofs")
    }

    /// Whether `suspect` is a pagemap of the memory behind `events`, which has its agent's area at
    /// `area`.
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

/// Whether a page of the agent's area is a proof page.
pub fn is_proof(area: u64, address: u64) -> bool {
    (area + PROOFS..area + PROOFS + PROOF_PAGES * PAGE).contains(&address)
}

#[cfg(test)]
mod tests {
    use super::*;
    use uswap_sys::Reservation;

    /// An area whose proof pages are registered in this process, its userfaultfd, and the pagemap
    /// of this process.
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
