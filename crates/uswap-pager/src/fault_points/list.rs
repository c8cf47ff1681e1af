//! The list of fault points: documentation and one line of code for each. `USWAP_FAULT_POINTS`
//! names a point by its field, with dashes: the field `delay_install` is set by
//! `delay-install=200`.

use super::fault_points;

fault_points! {
    /// Microseconds between deciding on a page and installing it.
    delay_install: u64,
    /// Microseconds between reading events and opening the gate.
    delay_gate: u64,
    /// Microseconds between reading an event and applying it.
    delay_apply: u64,
    /// Microseconds between forking the command and looking after it.
    delay_command: u64,
    /// Rule off: the forked command also holds the end of the pipe that it waits at.
    keep_go: bool,
    /// Microseconds between activating a space and registering its memory.
    delay_scan: u64,
    /// Microseconds before and after a mapping that a scan has found is registered.
    delay_register: u64,
    /// Rule off: what a scan registered is taken for registered as a whole.
    trust_scan: bool,
    /// Rule off: what a scan cut off a mapping stays cut off.
    leave_cut: bool,
    /// Microseconds an agent waits before it executes an order, or ends.
    delay_order: u64,
    /// Rule off: programs are bound to agents that were dismissed already.
    bind_dismissed: bool,
    /// Microseconds an agent stays inside the gate before it moves pages.
    delay_move: u64,
    /// Microseconds an agent waits between moving pages into their slots and writing to them.
    delay_dirty: u64,
    /// Rule off: agents do not write to what they have moved.
    keep_clean: bool,
    /// Rule off: a page that was gone from its slot before the agent could write to it counts as
    /// lost.
    mourn_freed: bool,
    /// One in N moves of an agent reports EEXIST though it moved everything, as the kernel does now
    /// and then.
    move_lies: u64,
    /// Rule off: agents believe what a move that failed reports: that nothing was moved.
    trust_move: bool,
    /// Agents may not look which of their slots hold a page, as under a seccomp filter.
    blind_agent: bool,
    /// Rule off: where the agent may not look, its owner does not look either.
    no_second_look: bool,
    /// Rule off: agents go on with trays whose memory the kernel did not take back.
    forget_leftovers: bool,
    /// There is no place for a file that everybody may read.
    no_image_file: bool,
    /// Rule off: agents that are the last thread of their process stay.
    stay_last: bool,
    /// Rule off: agents whose engine and keeper are gone let their program go on.
    careless_agents: bool,
    /// Agents are threads of their programs.
    agent_threads: bool,
    /// Rule off: hooks announce nothing of calls that send no event.
    silent_hooks: bool,
    /// Rule off: a fork child's table is cloned before it is known what has just been staged.
    no_absorb: bool,
    /// Microseconds between two looks of an owner at what agents have published, but for those
    /// under the gate.
    delay_absorb: u64,
    /// One in N first touches finds that its page is there already, and nobody was woken.
    found_there: u64,
    /// Rule off: who waits for a page that was there already is not woken.
    no_wake: bool,
    /// Rule off: a fault on a page that is believed resident is not served.
    no_stray: bool,
    /// One in N trays is read after a slot in which no page lies.
    read_missing: u64,
    /// Rule off: staging slots without a page do not answer at once.
    sleeping_reads: bool,
    /// Rule off: load control holds faults in system calls like others.
    hold_in_calls: bool,
    /// Rule off: load control holds a fault as long as its process waits for its turn.
    long_hold: bool,
    /// Rule off: who has a turn and sleeps keeps others waiting.
    idle_turns: bool,
    /// Milliseconds that a turn lasts under `crowd`.
    turn: u64,
    /// Microseconds a worker waits before it reads a tray.
    delay_store: u64,
    /// Microseconds between two steps of a swapoff.
    delay_drain: u64,
    /// Microseconds between two steps of an owner that brings pages in for a swapoff, at least.
    delay_bring: u64,
    /// Microseconds before each answer to who writes a core file.
    delay_pages: u64,
    /// Microseconds that writeback waits before and after each write to a device.
    delay_writeback: u64,
    /// One in N installations is treated as if the kernel had answered EAGAIN.
    again: u64,
    /// One in N trays finds the store full.
    store_full: u64,
    /// One in N looks after a space, ten times a second, finds what must not happen.
    broken: u64,
    /// Rule off: who writes a core file is told of no evicted page.
    forget_evicted: bool,
    /// Rule off: the gate is not closed while events are read.
    no_gate: bool,
    /// Rule off: a fork child's table is not cloned (its evicted pages read as zeros).
    no_fork_clone: bool,
    /// Rule off: writes that copy what a fork left shared are not watched.
    unwatched_copies: bool,
    /// Rule off: a fork child is taken to have registered what its parent has, and fresh
    /// registrations may be evicted.
    trust_fresh: bool,
    /// Rule off: REMOVE events are ignored.
    ignore_remove: bool,
    /// Rule off: after a REMOVE nothing is looked for in its range: its pages are taken to be gone.
    trust_remove: bool,
    /// Rule off: REMAP events are ignored.
    ignore_remap: bool,
    /// Rule off: changes are applied in the order in which they were read, each at once.
    order_as_read: bool,
    /// Rule off: mappings that look like stacks are managed too.
    manage_stacks: bool,
    /// Rule off: the upper ends of mappings that may be stacks are evicted like other pages.
    evict_stack_tops: bool,
    /// Rule off: WIPEONFORK notes are ignored.
    ignore_notes: bool,
    /// Rule off: agents do not ask threads for the pages they need in order to die.
    forget_threads: bool,
    /// Rule off: the nonce is not compared.
    no_nonce: bool,
    /// Rule off: an agent whose space is not found at once is sent away.
    hasty_greeting: bool,
    /// Rule off: programs do not wait for their agents.
    hasty_programs: bool,
    /// Rule off: a process is proven by one page, which its children inherit.
    one_proof: bool,
    /// Rule off: what is moved onto memory just registered counts as just registered.
    lasting_fresh: bool,
    /// Microseconds before memory just registered counts as registered in all fork children to
    /// come.
    delay_settle: u64,
    /// Not a rule: the books of every space are checked ten times a second.
    audit: bool,
    /// Not a rule: writeback goes on until the pool is empty.
    eager_writeback: bool,
    /// Not a rule: what lies packed on a device is moved again and again.
    eager_repack: bool,
    /// Rule off: pages are refused as soon as no slot is left, whatever is lost in packs.
    no_squeeze: bool,
    /// Not a rule: writeback gives each object a slot of its own, for comparison.
    no_packing: bool,
    /// Devices read whole pages only, whatever they say of sectors.
    whole_pages: bool,
    /// Rule off: packed objects may touch two slots also on devices that read whole pages only.
    crossing: bool,
    /// Not a rule: threads that serve pages end the engine when they allocate what has no name (1),
    /// or tell of it and go on (2).
    no_alloc: u64,
    /// Rule off: workers allocate for each tray, under no name.
    allocate: bool,
    /// Microseconds that each read of a device takes longer.
    delay_read: u64,
    /// Microseconds that each write to a device takes longer.
    delay_write: u64,
    /// Not a rule: nothing is read ahead, for comparison.
    no_prefetch: bool,
    /// What a process lacks in its turn comes by faults alone.
    no_prepaging: bool,
    /// One in N reads that an owner asked for itself fails.
    queue_fail: u64,
    /// Not a rule: owners ask no device themselves, for comparison.
    no_read_queue: bool,
    /// Not a rule: one read is in flight for each device, for comparison.
    one_read: bool,
    /// Not a rule: owners and agents are left where the kernel puts them, for comparison.
    no_placement: bool,
    /// One in N pages is damaged when it is stored in the pool.
    flip_pool: u64,
    /// The compression of one in N pages fails.
    compress_fail: u64,
    /// The allocator of the pool has no memory for one in N objects.
    alloc_fail: u64,
    /// The table of the store has no entry for one in N objects.
    entry_fail: u64,
    /// Microseconds between choosing the objects of a thin slab and moving them.
    delay_compact: u64,
    /// Not a rule: load control lets a single process run at a time, in short turns, whether memory
    /// is short or not.
    crowd: bool,
    /// Microseconds before each step of bringing an agent.
    delay_attach: u64,
    /// The process is killed at this step of bringing an agent to it.
    attach_kill: u64,
    /// This step of bringing an agent fails.
    attach_fail: u64,
    /// The engine is killed at this step of bringing an agent.
    attach_die: u64,
    /// Every other thread that is to stop for an agent is asked to only after so many microseconds.
    attach_late: u64,
    /// Microseconds between the last page that came back at a detach and the end of the
    /// registration.
    delay_detach: u64,
    /// Rule off: a kept copy is taken for the page that is evicted again, whatever that holds.
    trust_copy: bool,
    /// Rule off: no room is kept for memory that grows unseen.
    no_slack: bool,
    /// Rule off: what readers bring counts though the page is not in that state any more.
    believe_late_answers: bool,
    /// Rule off: what workers have stored counts though the page is not staged there any more.
    believe_late_workers: bool,
    /// Rule off: the engine has a table of descriptors of its own, whose descriptors are closed
    /// when it dies.
    own_table: bool,
    /// Rule off: what the kernel puts off (EAGAIN) is not tried again.
    no_retry: bool,
    /// Rule off: fork children do not inherit the staging slots.
    bare_staging: bool,
    /// Rule off: agents share the folder and root of their program (CLONE_FS).
    shared_folder: bool,
    /// One in N pages is not moved by its agent, which reports EBUSY.
    busy: u64,
    /// One in N writes to a device fails.
    write_fail: u64,
}
