//! Counters of one run, by the kernel's names where the kernel has one. The comment of each counter
//! says exactly when it grows.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use serde::{Deserialize, Serialize};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// All counters; each may be bumped from any thread.
        #[derive(Default, Debug)]
        pub struct Counters { $($(#[$doc])* pub $name: Count),* }

        /// The values of all counters at one time, as they are told to users.
        #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(default)]
        pub struct CounterValues { $($(#[$doc])* pub $name: u64),* }

        impl Counters {
            /// The value of each.
            pub fn snapshot(&self) -> CounterValues {
                CounterValues { $($name: self.$name.get()),* }
            }
        }
    };
}

/// A value that rises and falls.
#[derive(Default, Debug)]
pub struct Gauge(AtomicU64);

impl Gauge {
    /// Adds to the value.
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Relaxed);
    }

    /// Subtracts from the value.
    pub fn sub(&self, n: u64) {
        self.0.fetch_sub(n, Relaxed);
    }

    /// The value.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// One counter.
#[derive(Default, Debug)]
pub struct Count(AtomicU64);

impl Count {
    /// Adds.
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Relaxed);
    }

    /// The value.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

counters! {
    /// A fault message was read from a userfaultfd.
    pgfault,
    /// A fault was answered with a page from the pool or a device.
    pgmajfault,
    /// Of `pgmajfault`: the page was read from a device.
    pgmajfault_device,
    /// Of `pgmajfault_device`: the page lay there as it is, because it does not compress.
    pgmajfault_incompressible,
    /// Of `pgmajfault_incompressible`: with an eighth more memory the page would have stayed.
    pgnear_incompressible,
    /// An owner asked a device for pages itself, without a reader.
    queued_reads,
    /// A fault found its page staged and got it back.
    soft_faults,
    /// A staged page was mapped again together with one before it that was touched.
    staged_ra,
    /// A fault on a page believed resident with nothing under way: answered with zeros.
    stray_faults,
    /// A page was found where the program had said that it drops it (MADV_FREE), and is known
    /// again.
    left_pages,
    /// The kernel took a page that the program had freed (MADV_FREE) out of its staging slot: it is
    /// zeros from then on.
    freed_in_staging,
    /// A write to a page that a fork may have left shared waited for leave to copy it.
    copy_faults,
    /// Of `pgfault`'s pages: one that relatives share was given free to be copied by a write.
    pages_copied,
    /// A page was installed as zeros (first touch, or evicted zeros).
    zero_fills,
    /// A page of zeros was evicted: it is stored nowhere.
    swpout_zero,
    /// Of `zero_fills`: the page was evicted as zeros before, and came back.
    swpin_zero,
    /// A page was installed by readahead, beside the one that faulted.
    swap_ra,
    /// A page was brought back when its process's turn began, before anybody touched it.
    prepaged,
    /// A page was brought back because its device was being emptied and nobody else had room for
    /// it.
    brought_in,
    /// A fault found its page read ahead: the buffer in which it lay was installed.
    swap_ra_hit,
    /// A buffer of pages that were read ahead was dropped, because no fault came for it in a
    /// second.
    swap_ra_miss,
    /// A page was ordered for eviction.
    pgscan,
    /// A page left RAM: its staging slot was dropped.
    pgsteal,
    /// A page went from the active to the inactive list.
    pgdeactivate,
    /// A page whose shadow was still there came back (pool, device or zeros).
    workingset_refault_anon,
    /// A refault joined the active list at once.
    workingset_activate_anon,
    /// A refaulted page had been active when it was evicted.
    workingset_restore_anon,
    /// A page came back from a device and its bytes were not those that went.
    checksum_errors,
    /// A page was poisoned: its bytes could not be had.
    poisoned_pages,
    /// An evicted page had a copy in the store that was still true.
    swap_cache_reused,
    /// Pages stored that were stored together with the three others of their 16 KiB.
    stored_in_quads,
    /// An evicted page of a forked process was in the store already, evicted from a relative.
    fork_twins,
    /// The kernel answered EAGAIN to an installation.
    install_again,
    /// The kernel answered EEXIST to an installation.
    install_exists,
    /// MOVE was refused because the page is shared or pinned (EBUSY).
    move_busy,
    /// MOVE was refused for the range (EINVAL).
    move_refused,
    /// A page was left alone because a thread needs it to die.
    thread_pages,
    /// An order was cancelled by an event.
    orders_cancelled,
    /// A fault waited for room, or for a buffer of the reserve.
    throttled,
    /// Microseconds of such waits that are over.
    throttled_us,
    /// A fault waited for room for too long and was let through above the limit.
    over_limit,
    /// Memory began to grow unseen near a limit: engine and agents run before others until it does
    /// not any more.
    hurries,
    /// A fault was put aside because its process waits for its turn.
    held_faults,
    /// Of these: served at once, because its thread was in a system call or could not be looked at.
    held_in_calls,
    /// Of these: served after the longest time that a fault is held, though its process had no turn
    /// yet.
    held_to_the_end,
    /// A process was asked for what it shares with relatives by fork (smaps_rollup).
    shares_asked,
    /// An event was read, by kind.
    fork_events,
    /// See `fork_events`.
    unmap_events,
    /// See `fork_events`.
    remove_events,
    /// See `fork_events`.
    remap_events,
    /// A change was read before one that had happened earlier.
    misordered_events,
    /// The owner found the agent inside the gate for longer than it waits at a stretch.
    gate_deferred,
    /// A mapping was registered.
    registrations,
    /// Parts of what was registered proved not to be: the program had mapped something else there
    /// meanwhile (see `settle.rs`).
    unfounded_registrations,
    /// A process's agent arrived.
    agents,
    /// An agent was brought to a process that had not loaded it.
    attached,
    /// A process became managed (its memory registered or inherited so).
    managed_processes,
}
