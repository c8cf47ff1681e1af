//! Fault points: places where a test can make the engine slow, or refuse, or break one of its own rules.
//!
//! Set by the environment variable `USWAP_FAULT_POINTS`, a list like `delay-install=200,again=5,no-gate`. Numbers are
//! microseconds for delays and "one in N" for refusals. Without the variable each check is one load of a constant
//! word. They exist so that every test of an integrity rule can be seen to fail when its rule is switched off.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// All fault points, zero when off.
#[derive(Default, Debug)]
pub struct FaultPoints {
    /// Microseconds between deciding on a page and installing it.
    pub delay_install: u64,
    /// Microseconds between reading events and opening the gate.
    pub delay_gate: u64,
    /// Microseconds between reading an event and applying it.
    pub delay_apply: u64,
    /// Microseconds between activating a space and registering its memory.
    pub delay_scan: u64,
    /// Microseconds an agent waits before it executes an order.
    pub delay_order: u64,
    /// Microseconds an agent stays inside the gate before it moves pages.
    pub delay_move: u64,
    /// Microseconds a worker waits before it reads a tray.
    pub delay_store: u64,
    /// Microseconds between two steps of a swapoff.
    pub delay_drain: u64,
    /// One in N installations is treated as if the kernel had answered EAGAIN.
    pub again: u64,
    /// One in N trays finds the store full.
    pub store_full: u64,
    /// One in N looks after a space, ten times a second, finds what must not happen.
    pub broken: u64,
    /// Rule off: the gate is not closed while events are read.
    pub no_gate: bool,
    /// Rule off: a fork child's table is not cloned (its evicted pages read as zeros).
    pub no_fork_clone: bool,
    /// Rule off: a fork child is taken to have registered what its parent has, and fresh registrations may be evicted.
    pub trust_fresh: bool,
    /// Rule off: REMOVE events are ignored.
    pub ignore_remove: bool,
    /// Rule off: REMAP events are ignored.
    pub ignore_remap: bool,
    /// Rule off: changes are applied in the order in which they were read, each at once.
    pub order_as_read: bool,
    /// Rule off: mappings that look like stacks are managed too.
    pub manage_stacks: bool,
    /// Rule off: WIPEONFORK notes are ignored.
    pub ignore_notes: bool,
    /// Rule off: agents do not ask threads for the pages they need in order to die.
    pub forget_threads: bool,
    /// Rule off: the nonce is not compared.
    pub no_nonce: bool,
    /// Not a rule: the books of every space are checked ten times a second.
    pub audit: bool,
    /// Not a rule: owners and agents are left where the kernel puts them, for comparison.
    pub no_placement: bool,
    draws: AtomicU64,
}

impl FaultPoints {
    /// Reads the list.
    ///
    /// # Errors
    /// The entry that is unknown.
    pub fn parse(list: &str) -> Result<Self, String> {
        let mut points = Self::default();
        for entry in list.split(',').filter(|entry| !entry.is_empty()) {
            let (name, value) = entry.split_once('=').unwrap_or((entry, "1"));
            let number: u64 = value.parse().map_err(|_| entry.to_string())?;
            match name {
                "delay-install" => points.delay_install = number,
                "delay-gate" => points.delay_gate = number,
                "delay-apply" => points.delay_apply = number,
                "delay-scan" => points.delay_scan = number,
                "delay-order" => points.delay_order = number,
                "delay-move" => points.delay_move = number,
                "delay-store" => points.delay_store = number,
                "delay-drain" => points.delay_drain = number,
                "again" => points.again = number,
                "store-full" => points.store_full = number,
                "broken" => points.broken = number,
                "no-gate" => points.no_gate = true,
                "no-fork-clone" => points.no_fork_clone = true,
                "trust-fresh" => points.trust_fresh = true,
                "ignore-remove" => points.ignore_remove = true,
                "ignore-remap" => points.ignore_remap = true,
                "order-as-read" => points.order_as_read = true,
                "manage-stacks" => points.manage_stacks = true,
                "ignore-notes" => points.ignore_notes = true,
                "audit" => points.audit = true,
                "no-placement" => points.no_placement = true,
                "forget-threads" => points.forget_threads = true,
                "no-nonce" => points.no_nonce = true,
                _ => return Err(entry.to_string()),
            }
        }
        Ok(points)
    }

    /// Whether this one in `n` is hit (never for 0).
    pub fn hits(&self, n: u64) -> bool {
        n != 0 && self.draws.fetch_add(1, Relaxed) % n == n - 1
    }

    /// Waits, if a delay is set.
    pub fn pause(&self, microseconds: u64) {
        if microseconds != 0 {
            std::thread::sleep(Duration::from_micros(microseconds));
        }
    }
}
