//! Fault points: places where a test can make the engine slow, or refuse, or break one of its own rules.
//!
//! Set by the environment variable `USWAP_FAULT_POINTS`, a list like `delay-install=200,again=5,no-gate`. Numbers are
//! microseconds for delays, milliseconds for `turn` and "one in N" for refusals. Without the variable each check is one load of a constant
//! word. They exist so that every test of an integrity rule can be seen to fail when its rule is switched off.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use uswap_core::reclaim::PolicyKind;
use uswap_core::util::growth;
use uswap_store::StoreFaults;

/// A turn under `crowd` where `turn` says nothing else.
const FORCED_TURN: Duration = Duration::from_millis(200);

/// All fault points, zero when off.
#[derive(Default, Debug)]
pub struct FaultPoints {
    /// Microseconds between deciding on a page and installing it.
    pub delay_install: u64,
    /// Microseconds between reading events and opening the gate.
    pub delay_gate: u64,
    /// Microseconds between reading an event and applying it.
    pub delay_apply: u64,
    /// Microseconds between forking the command and looking after it.
    pub delay_command: u64,
    /// Rule off: the forked command also holds the end of the pipe that it waits at.
    pub keep_go: bool,
    /// Microseconds between activating a space and registering its memory.
    pub delay_scan: u64,
    /// Microseconds before and after a mapping that a scan has found is registered.
    pub delay_register: u64,
    /// Rule off: what a scan registered is taken for registered as a whole.
    pub trust_scan: bool,
    /// What a scan cut off a mapping stays cut off.
    pub leave_cut: bool,
    /// Microseconds an agent waits before it executes an order.
    pub delay_order: u64,
    /// Microseconds an agent stays inside the gate before it moves pages.
    pub delay_move: u64,
    /// Microseconds an agent waits between moving pages into their slots and writing to them.
    pub delay_dirty: u64,
    /// Rule off: agents do not write to what they have moved.
    pub keep_clean: bool,
    /// Rule off: a page that was gone from its slot before the agent could write to it counts as lost.
    pub mourn_freed: bool,
    /// One in N moves of an agent reports EEXIST though it moved everything, as the kernel does now and then.
    pub move_lies: u64,
    /// Rule off: agents believe what a move that failed reports: that nothing was moved.
    pub trust_move: bool,
    /// Agents may not look which of their slots hold a page, as under a seccomp filter.
    pub blind_agent: bool,
    /// Rule off: where the agent may not look, its owner does not look either.
    pub no_second_look: bool,
    /// Rule off: agents go on with trays whose memory the kernel did not take back.
    pub forget_leftovers: bool,
    /// There is no place for a file that everybody may read.
    pub no_image_file: bool,
    /// Rule off: agents that are the last thread of their process stay.
    pub stay_last: bool,
    /// Rule off: agents whose engine and keeper are gone let their program go on.
    pub careless_agents: bool,
    /// Agents are threads of their programs.
    pub agent_threads: bool,
    /// Rule off: hooks announce nothing of calls that send no event.
    pub silent_hooks: bool,
    /// Rule off: a fork child's table is cloned before it is known what has just been staged.
    pub no_absorb: bool,
    /// Microseconds between two looks of an owner at what agents have published, but for those under the gate.
    pub delay_absorb: u64,
    /// One in N first touches finds that its page is there already, and nobody was woken.
    pub found_there: u64,
    /// Rule off: who waits for a page that was there already is not woken.
    pub no_wake: bool,
    /// Rule off: a fault on a page that is believed resident is not served.
    pub no_stray: bool,
    /// One in N trays is read after a slot in which no page lies.
    pub read_missing: u64,
    /// Rule off: staging slots without a page do not answer at once.
    pub sleeping_reads: bool,
    /// Rule off: load control holds faults in system calls like others.
    pub hold_in_calls: bool,
    /// Rule off: load control holds a fault as long as its process waits for its turn.
    pub long_hold: bool,
    /// Rule off: who has a turn and sleeps keeps others waiting.
    pub idle_turns: bool,
    /// Milliseconds that a turn lasts under `crowd`.
    pub turn: u64,
    /// Microseconds a worker waits before it reads a tray.
    pub delay_store: u64,
    /// Microseconds between two steps of a swapoff.
    pub delay_drain: u64,
    /// Microseconds between two steps of an owner that brings pages in for a swapoff, at least.
    pub delay_bring: u64,
    /// Microseconds before each answer to who writes a core file.
    pub delay_pages: u64,
    /// Microseconds that writeback waits before and after each write to a device.
    pub delay_writeback: u64,
    /// One in N installations is treated as if the kernel had answered EAGAIN.
    pub again: u64,
    /// One in N trays finds the store full.
    pub store_full: u64,
    /// One in N looks after a space, ten times a second, finds what must not happen.
    pub broken: u64,
    /// Rule off: who writes a core file is told of no evicted page.
    pub forget_evicted: bool,
    /// Rule off: the gate is not closed while events are read.
    pub no_gate: bool,
    /// Rule off: a fork child's table is not cloned (its evicted pages read as zeros).
    pub no_fork_clone: bool,
    /// Rule off: writes that copy what a fork left shared are not watched.
    pub unwatched_copies: bool,
    /// Rule off: a fork child is taken to have registered what its parent has, and fresh registrations may be evicted.
    pub trust_fresh: bool,
    /// Rule off: REMOVE events are ignored.
    pub ignore_remove: bool,
    /// Rule off: after a REMOVE nothing is looked for in its range: its pages are taken to be gone.
    pub trust_remove: bool,
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
    /// Rule off: an agent whose space is not found at once is sent away.
    pub hasty_greeting: bool,
    /// Rule off: programs do not wait for their agents.
    pub hasty_programs: bool,
    /// Rule off: a process is proven by one page, which its children inherit.
    pub one_proof: bool,
    /// Rule off: what is moved onto memory just registered counts as just registered.
    pub lasting_fresh: bool,
    /// Microseconds before memory just registered counts as registered in all fork children to come.
    pub delay_settle: u64,
    /// Not a rule: the books of every space are checked ten times a second.
    pub audit: bool,
    /// Not a rule: writeback goes on until the pool is empty.
    pub eager_writeback: bool,
    /// Not a rule: what lies packed on a device is moved again and again.
    pub eager_repack: bool,
    /// Rule off: pages are refused as soon as no slot is left, whatever is lost in packs.
    pub no_squeeze: bool,
    /// Not a rule: writeback gives each object a slot of its own, for comparison.
    pub no_packing: bool,
    /// Devices read whole pages only, whatever they say of sectors.
    pub whole_pages: bool,
    /// Rule off: packed objects may touch two slots also on devices that read whole pages only.
    pub crossing: bool,
    /// Not a rule: threads that serve pages end the engine when they allocate what has no name (1), or tell of it and go on
    /// (2).
    pub no_alloc: u64,
    /// Rule off: workers allocate for each tray, under no name.
    pub allocate: bool,
    /// Microseconds that each read of a device takes longer.
    pub delay_read: u64,
    /// Microseconds that each write to a device takes longer.
    pub delay_write: u64,
    /// Not a rule: the eviction policy, for comparison. The name of any policy is a fault point.
    pub policy: PolicyKind,
    /// Not a rule: nothing is read ahead, for comparison.
    pub no_prefetch: bool,
    /// What a process lacks in its turn comes by faults alone.
    pub no_prepaging: bool,
    /// One in N reads that an owner asked for itself fails.
    pub queue_fail: u64,
    /// Not a rule: owners ask no device themselves, for comparison.
    pub no_read_queue: bool,
    /// Not a rule: one read is in flight for each device, for comparison.
    pub one_read: bool,
    /// Not a rule: owners and agents are left where the kernel puts them, for comparison.
    pub no_placement: bool,
    /// One in N pages is damaged when it is stored in the pool; its compression fails; the allocator has no memory for it;
    /// the table has no entry for it. See [`StoreFaults`].
    pub store: [u64; 4],
    /// Microseconds between choosing the objects of a thin slab and moving them.
    pub delay_compact: u64,
    /// Not a rule: load control lets a single process run at a time, in short turns, whether memory is short or not.
    pub crowd: bool,
    /// Microseconds before each step of bringing an agent.
    pub delay_attach: u64,
    /// The process is killed at this step of bringing an agent to it.
    pub attach_kill: u64,
    /// This step of bringing an agent fails.
    pub attach_fail: u64,
    /// The engine is killed at this step of bringing an agent.
    pub attach_die: u64,
    /// Every other thread that is to stop for an agent is asked to only after so many microseconds.
    pub attach_late: u64,
    /// Microseconds between the last page that came back at a detach and the end of the registration.
    pub delay_detach: u64,
    /// Rule off: a kept copy is taken for the page that is evicted again, whatever that holds.
    pub trust_copy: bool,
    /// Rule off: no room is kept for memory that grows unseen.
    pub no_slack: bool,
    /// Rule off: what readers bring counts though the page is not in that state any more.
    pub late_answers: bool,
    /// Rule off: what workers have stored counts though the page is not staged there any more.
    pub late_workers: bool,
    /// Rule off: the engine has a table of descriptors of its own, whose descriptors are closed when it dies.
    pub own_table: bool,
    /// Rule off: what the kernel puts off (EAGAIN) is not tried again.
    pub no_retry: bool,
    /// Rule off: fork children do not inherit the staging slots.
    pub bare_staging: bool,
    /// Rule off: agents share the folder and root of their program (CLONE_FS).
    pub shared_folder: bool,
    /// One in N pages is not moved by its agent, which reports EBUSY.
    pub busy: u64,
    /// One in N writes to a device fails.
    pub write_fail: u64,
    draws: AtomicU64,
    steps: AtomicU64,
}

impl FaultPoints {
    /// The calling thread serves pages: from now on it allocates nothing that has no name, where that is tested.
    pub fn serve_without_growth(&self) {
        if self.no_alloc > 0 {
            growth::set_lenient(self.no_alloc > 1);
            growth::forbid();
        }
    }

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
                "delay-command" => points.delay_command = number,
                "keep-go" => points.keep_go = true,
                "delay-scan" => points.delay_scan = number,
                "delay-register" => points.delay_register = number,
                "trust-scan" => points.trust_scan = true,
                "leave-cut" => points.leave_cut = true,
                "delay-order" => points.delay_order = number,
                "delay-move" => points.delay_move = number,
                "delay-dirty" => points.delay_dirty = number,
                "keep-clean" => points.keep_clean = true,
                "mourn-freed" => points.mourn_freed = true,
                "move-lies" => points.move_lies = number,
                "trust-move" => points.trust_move = true,
                "blind-agent" => points.blind_agent = true,
                "no-second-look" => points.no_second_look = true,
                "forget-leftovers" => points.forget_leftovers = true,
                "no-image-file" => points.no_image_file = true,
                "stay-last" => points.stay_last = true,
                "agent-threads" => points.agent_threads = true,
                "careless-agents" => points.careless_agents = true,
                "silent-hooks" => points.silent_hooks = true,
                "no-absorb" => points.no_absorb = true,
                "delay-absorb" => points.delay_absorb = number,
                "found-there" => points.found_there = number,
                "no-wake" => points.no_wake = true,
                "no-stray" => points.no_stray = true,
                "read-missing" => points.read_missing = number,
                "sleeping-reads" => points.sleeping_reads = true,
                "hold-in-calls" => points.hold_in_calls = true,
                "long-hold" => points.long_hold = true,
                "idle-turns" => points.idle_turns = true,
                "turn" => points.turn = number,
                "delay-store" => points.delay_store = number,
                "delay-drain" => points.delay_drain = number,
                "delay-bring" => points.delay_bring = number,
                "delay-pages" => points.delay_pages = number,
                "delay-writeback" => points.delay_writeback = number,
                "delay-read" => points.delay_read = number,
                "delay-write" => points.delay_write = number,
                "no-prefetch" => points.no_prefetch = true,
                "no-prepaging" => points.no_prepaging = true,
                "allocate" => points.allocate = true,
                "no-alloc" => points.no_alloc = number,
                "queue-fail" => points.queue_fail = number,
                "no-read-queue" => points.no_read_queue = true,
                "one-read" => points.one_read = true,
                "delay-attach" => points.delay_attach = number,
                "delay-detach" => points.delay_detach = number,
                "attach-kill" => points.attach_kill = number,
                "attach-fail" => points.attach_fail = number,
                "attach-late" => points.attach_late = number,
                "attach-die" => points.attach_die = number,
                "again" => points.again = number,
                "store-full" => points.store_full = number,
                "flip-pool" => points.store[0] = number,
                "compress-fail" => points.store[1] = number,
                "alloc-fail" => points.store[2] = number,
                "entry-fail" => points.store[3] = number,
                "delay-compact" => points.delay_compact = number,
                "broken" => points.broken = number,
                "forget-evicted" => points.forget_evicted = true,
                "no-gate" => points.no_gate = true,
                "no-fork-clone" => points.no_fork_clone = true,
                "unwatched-copies" => points.unwatched_copies = true,
                "trust-fresh" => points.trust_fresh = true,
                "ignore-remove" => points.ignore_remove = true,
                "trust-remove" => points.trust_remove = true,
                "ignore-remap" => points.ignore_remap = true,
                "order-as-read" => points.order_as_read = true,
                "manage-stacks" => points.manage_stacks = true,
                "ignore-notes" => points.ignore_notes = true,
                "audit" => points.audit = true,
                "eager-writeback" => points.eager_writeback = true,
                "eager-repack" => points.eager_repack = true,
                "no-squeeze" => points.no_squeeze = true,
                "no-packing" => points.no_packing = true,
                "whole-pages" => points.whole_pages = true,
                "crossing" => points.crossing = true,
                "crowd" => points.crowd = true,
                "no-placement" => points.no_placement = true,
                "forget-threads" => points.forget_threads = true,
                "no-nonce" => points.no_nonce = true,
                "hasty-greeting" => points.hasty_greeting = true,
                "hasty-programs" => points.hasty_programs = true,
                "one-proof" => points.one_proof = true,
                "lasting-fresh" => points.lasting_fresh = true,
                "delay-settle" => points.delay_settle = number,
                "trust-copy" => points.trust_copy = true,
                "no-slack" => points.no_slack = true,
                "believe-late-answers" => points.late_answers = true,
                "believe-late-workers" => points.late_workers = true,
                "own-table" => points.own_table = true,
                "no-retry" => points.no_retry = true,
                "bare-staging" => points.bare_staging = true,
                "shared-folder" => points.shared_folder = true,
                "busy" => points.busy = number,
                "write-fail" => points.write_fail = number,
                _ => points.policy = PolicyKind::named(name).ok_or(entry)?,
            }
        }
        Ok(points)
    }

    /// How load control is to behave.
    pub fn turns(&self) -> uswap_core::load_control::Tuning {
        let length = if self.turn == 0 { FORCED_TURN } else { Duration::from_millis(self.turn) };
        uswap_core::load_control::Tuning { forced: self.crowd.then_some(length), idle_turns: self.idle_turns }
    }

    /// How the store is to behave.
    pub fn tuning(&self) -> uswap_store::Tuning {
        uswap_store::Tuning {
            no_packing: self.no_packing,
            whole_pages: self.whole_pages,
            crossing: self.crossing,
            eager_writeback: self.eager_writeback,
            eager_repack: self.eager_repack,
            no_squeeze: self.no_squeeze,
            delay: Duration::from_micros(self.delay_writeback),
        }
    }

    /// Passes on those that are the store's.
    pub fn set_in(&self, store: &StoreFaults) {
        let points = [&store.flip, &store.compress, &store.memory, &store.entry];
        points.iter().zip(self.store).for_each(|(point, n)| point.set(n));
        store.delay_compact.store(self.delay_compact, Relaxed);
        store.trust_copy.store(self.trust_copy, Relaxed);
    }

    /// Whether this one in `n` is hit (never for 0).
    pub fn hits(&self, n: u64) -> bool {
        n != 0 && self.draws.fetch_add(1, Relaxed) % n == n - 1
    }

    /// A step of bringing an agent to a process; `true`: it shall fail.
    pub fn step(&self, pid: u32) -> bool {
        self.pause(self.delay_attach);
        let number = self.steps.fetch_add(1, Relaxed) + 1;
        if number == self.attach_kill {
            // It may have ended by itself.
            let _ = uswap_sys::process::kill(pid, 9);
        }
        if number == self.attach_die {
            let _ = uswap_sys::process::kill(std::process::id(), 9);
        }
        number == self.attach_fail
    }

    /// Whether a thread that is asked to stop shall be late.
    pub fn is_late(&self) -> bool {
        self.attach_late != 0 && self.draws.fetch_add(1, Relaxed).is_multiple_of(2)
    }

    /// Waits, if a delay is set.
    pub fn pause(&self, microseconds: u64) {
        if microseconds != 0 {
            std::thread::sleep(Duration::from_micros(microseconds));
        }
    }
}
