//! Every program of tests/programs under a budget it does not fit in ends as when it is run plain.
//!
//! The programs check each of their pages themselves (tests/programs/README.md). A test here adds
//! that pages were really evicted, because a run that never pages proves nothing; that nothing was
//! killed or left behind; and that the engine saw no fault it could not explain away as its own
//! doing.

use crate::common;

use std::ffi::OsString;

use common::victims::victim;
use common::{Launch, Outcome, installed, not_here, plain, skip, under};

/// Swap for a tree of forks needs (children + 1) times the memory of one.
const SWAP: &str = "3G";
/// Only what hangs takes as long, whatever else the machine does.
const PATIENCE: u64 = 135;

fn launch(ram: &str) -> Launch {
    under(ram).deadline(PATIENCE).swap_file(SWAP)
}

fn words(name: &str, arguments: &str) -> Vec<OsString> {
    let mut all = vec![victim(name).into_os_string()];
    all.extend(arguments.split_whitespace().map(OsString::from));
    all.extend(["--timeout".into(), "120".into()]);
    all
}

/// Runs a victim under 28 MiB; it must find nothing wrong, and pages must have gone out and come
/// back.
fn passes(name: &str, arguments: &str) -> Outcome {
    let outcome = launch("28M").run(words(name, arguments));
    outcome.expect(0).paged();
    assert!(outcome.stdout.contains("ok: "), "{}", outcome.account());
    // The program's standard error is its own: the engine says what it has to say by its name.
    let speaks = |line: &str| line.starts_with("uswap: ") || line.split(['[', ':']).next() == Some(name);
    assert!(outcome.stderr.lines().all(speaks), "{}", outcome.account());
    assert_eq!(outcome.stat("checksum_errors"), 0, "{}", outcome.account());
    assert_eq!(outcome.stat("poisoned_pages"), 0, "{}", outcome.account());
    outcome
}

/// One test for each line: name of the test, victim, arguments.
macro_rules! victims {
    ($($test:ident: $name:literal, $arguments:literal;)*) => {
        $(#[test]
        fn $test() {
            need_userfaultfd!();
            passes($name, $arguments);
        })*
    };
}

// Silent corruption.
victims! {
    remap_same_address: "remap_same_address", "--memory 38 --seconds 3";
    dontneed_stale: "dontneed_stale", "--memory 38 --rounds 4";
    drop_beside_touch: "drop_beside_touch", "--memory 41 --rounds 4";
    free_and_rewrite: "free_and_rewrite", "--memory 36 --fork 1";
    madv_free: "madv_free", "--memory 38 --rounds 2";
    fork_cow_both_write: "fork_cow", "--memory 34 --scene both_write";
    fork_cow_from_a_thread: "fork_cow", "--memory 34 --scene from_a_thread";
    fork_cow_fork_of_fork: "fork_cow", "--memory 34 --scene fork_of_fork";
    fork_cow_parent_exits_first: "fork_cow", "--memory 34 --scene parent_exits_first";
    fork_cow_parent_execs: "fork_cow", "--memory 34 --scene parent_execs";
    fork_cow_daemon: "fork_cow", "--memory 34 --scene daemon";
    copying_forks: "copying_forks", "--memory 19 --children 5";
    fork_at_start: "fork_at_start", "--memory 34";
    busy_child: "busy_child", "--memory 36 --rounds 2";
    fork_after_move: "fork_after_move", "--memory 34 --rounds 5";
    raw_forks: "raw_forks", "--memory 34 --rounds 2";
    wipeonfork: "wipeonfork", "--memory 38";
    wipe_and_move: "wipe_and_move", "--memory 38 --rounds 8";
    wipe_and_grow: "wipe_and_grow", "--memory 38 --rounds 4";
    dontfork_and_unmap: "dontfork_and_unmap", "--memory 38 --rounds 4";
    guard_pages: "guard_pages", "--memory 38";
    shmat_remap: "shmat_remap", "--memory 38";
    strides: "strides", "--memory 38";
    holes: "holes", "--memory 31 --seconds 3";
    holes_beside_forks: "holes", "--memory 31 --seconds 3 --forks 1";
    partly_moved: "partly_moved", "--memory 31";
    replaced_and_moved: "replaced_and_moved", "--memory 31 --seconds 3";
    late_maps: "late_maps", "--memory 34 --seconds 3";
    sparse_blocks: "sparse_blocks", "--memory 34";
    guarded_heap: "guarded_heap", "--memory 48 --fork 1";
    guarded_heap_in_small_pieces: "guarded_heap", "--memory 40 --piece 256";
    small_mappings: "small_mappings", "--memory 16 --total 64 --kib 96";
    mremap_cases: "mremap_cases", "--memory 38 --rounds 1";
    hugepage_advice: "hugepage_advice", "--memory 38 --rounds 2";
    brk_heap: "brk_heap", "--memory 38 --rounds 2";
    mprotect_cases: "mprotect_cases", "--memory 38 --rounds 1";
    write_barrier: "write_barrier", "--memory 38 --rounds 2";
    shared_memory: "shared_memory", "--memory 38";
    foreign_reads: "foreign_reads", "--memory 38";
}

// Hangs. PI mutexes in evicted memory are a documented limit (FUTEX_LOCK_PI answers EFAULT), hence
// `--pi 0`.
victims! {
    thread_storm: "thread_storm", "--memory 38 --threads 2000";
    cold_exit: "cold_exit", "--memory 38 --stacks own";
    cold_exit_of_kept_stacks: "cold_exit", "--memory 38 --stacks kept --young 1";
    cold_exit_of_heap_stacks: "cold_exit", "--memory 38 --stacks heap";
    robust_mutex: "robust_mutex", "--memory 38 --rounds 2 --pi 0";
    syscall_read_write: "syscall_buffers", "--memory 38 --call read_write";
    syscall_direct: "syscall_buffers", "--memory 38 --call direct";
    syscall_vectors: "syscall_buffers", "--memory 38 --call vectors";
    syscall_sockets: "syscall_buffers", "--memory 38 --call sockets";
    syscall_pipe: "syscall_buffers", "--memory 38 --call pipe";
    syscall_vmsplice: "syscall_buffers", "--memory 38 --call vmsplice";
    syscall_getdents: "syscall_buffers", "--memory 38 --call getdents";
    syscall_poll: "syscall_buffers", "--memory 38 --call poll";
    syscall_other_process: "syscall_buffers", "--memory 38 --call other_process";
    io_uring_buffers: "io_uring_buffers", "--memory 38 --rounds 1";
    shared_log: "shared_log", "--memory 38 --rounds 1";
    signals: "signals", "--memory 38 --seconds 2";
    last_thread_exits: "last_thread_exits", "--memory 38";
    last_thread_exits_in_child: "last_thread_exits", "--memory 38 --in-child-only";
    fork_storm: "fork_storm", "--memory 36 --processes 20 --waves 2";
}

// The agent in the program.
victims! {
    exec_from_thread: "exec_from_thread", "--generations 3";
    shared_vm_parent_exits: "shared_vm", "--memory 36 --scene parent_exits";
    shared_vm_parent_execs: "shared_vm", "--memory 36 --scene parent_execs";
    vfork_spawn: "vfork_spawn", "--memory 38 --rounds 2";
    close_all_fds: "close_all_fds", "--memory 38";
    env_clear: "env_clear", "--memory 38";
    privileges: "privileges", "--memory 32 --evicted 1";
    privileges_given_up_while_small: "privileges", "--memory 32 --evicted 1 --small-parent 1";
    scheduling: "scheduling", "--memory 38 --rounds 4";
    scheduling_beside_hogs: "scheduling", "--memory 34 --rounds 1 --hogs 4";
    mlock_left_alone: "mlock_left_alone", "--memory 38";
    deep_stack: "deep_stack", "--memory 38";
}

// Endings, budget, speed.
victims! {
    core_dump: "core_dump", "--memory 34";
    reads_null_deref: "reads_null_deref", "--memory 38";
    sigbus_report: "sigbus_report", "--memory 38";
    reserve_terabytes: "reserve_terabytes", "--memory 38";
    alloc_fast_mmap: "alloc_fast", "--memory 122 --how mmap";
    alloc_fast_malloc: "alloc_fast", "--memory 122 --how malloc";
    alloc_fast_brk: "alloc_fast", "--memory 122 --how brk";
}

/// One test for each line, as above, with load control forced on: one process at a time, in turns
/// of 200 ms. Those whose waits stand in others too are for `make soak`.
macro_rules! in_turns {
    ($($(#[$attribute:meta])* $test:ident: $name:literal, $arguments:literal;)*) => {
        $($(#[$attribute])*
        #[test]
        fn $test() {
            need_userfaultfd!();
            let outcome = launch("28M").faults("crowd").run(words($name, $arguments));
            outcome.expect(0).paged();
            assert!(outcome.stdout.contains("ok: "), "{}", outcome.account());
            assert!(outcome.stat("checksum_errors") + outcome.stat("poisoned_pages") == 0, "{}", outcome.account());
        })*
    };
}

in_turns! {
    sigstop_tree_in_turns: "sigstop_tree", "--memory 39 --processes 2";
    shared_log_in_turns: "shared_log", "--memory 127 --rounds 1";
    #[ignore = "make soak"]
    robust_mutex_in_turns: "robust_mutex", "--memory 39 --rounds 1 --pi 0";
    signals_in_turns: "signals", "--memory 39 --seconds 2";
    #[ignore = "make soak"]
    vfork_spawn_in_turns: "vfork_spawn", "--memory 39 --rounds 1";
    #[ignore = "make soak"]
    shared_vm_in_turns: "shared_vm", "--memory 36 --scene parent_exits";
    fork_cow_in_turns: "fork_cow", "--memory 36 --scene both_write";
    #[ignore = "make soak"]
    fork_storm_in_turns: "fork_storm", "--memory 32 --processes 4 --waves 1";
}

/// Pipes, futexes in shared memory, wait4 and kill among processes that take turns. Faults must
/// have been held, and some of them in system calls, which are served at once.
#[test]
fn processes_that_take_turns_wait_for_one_another() {
    need_userfaultfd!();
    let outcome = launch("28M").faults("crowd").run(words("taking_turns", "--memory 45 --rounds 3"));
    outcome.expect(0).paged();
    assert!(outcome.stdout.contains("ok: "), "{}", outcome.account());
    assert!(outcome.stat("held_faults") > 0, "nobody was held: {}", outcome.account());
    let load = outcome.stats.as_ref().map(|stats| stats["load_control"].clone()).unwrap_or_default();
    assert!(load["turns"].as_u64() > Some(2) && load["waited_ms"].as_u64() > Some(0), "{load}");
}

/// Workers of a server are never held: somebody waits for their answers.
#[test]
fn who_listens_for_connections_takes_no_turns() {
    need_userfaultfd!();
    let outcome = launch("28M").faults("crowd").run(words("taking_turns", "--memory 45 --rounds 3 --listen 1"));
    outcome.expect(0).paged();
    assert_eq!(outcome.stat("held_faults"), 0, "{}", outcome.account());
}

/// Without a need nobody is held, and switched off nobody is whatever the need.
#[test]
fn without_a_need_or_switched_off_nobody_takes_turns() {
    need_userfaultfd!();
    let alone = launch("28M").option("--load-control", "on").run(words("mremap_cases", "--memory 38 --rounds 1"));
    for outcome in [alone, sigstop_tree("", "--memory 38")] {
        assert_eq!(outcome.expect(0).paged().stat("held_faults"), 0, "{}", outcome.account());
    }
}

/// Without turns: the parent thrashes without end, and beside other load each child would wait some
/// seconds for it.
#[test]
fn fork_staged() {
    need_userfaultfd!();
    let outcome = launch("28M").option("--load-control", "off").run(words("fork_staged", "--memory 61 --rounds 12"));
    outcome.expect(0).paged();
    assert!(outcome.stdout.contains("ok: "), "{}", outcome.account());
    assert_eq!(outcome.stat("checksum_errors") + outcome.stat("poisoned_pages"), 0, "{}", outcome.account());
}

/// Four processes, each of which must get on while others are stopped. They do not fit together; in
/// turns each would wait some seconds for the others (sigstop_tree_in_turns).
fn sigstop_tree(faults: &str, arguments: &str) -> Outcome {
    launch("28M").option("--load-control", "off").faults(faults).run(words("sigstop_tree", arguments))
}

/// The agents spend most of their time inside the gate, so that stops find them there: their owner
/// must look after the others meanwhile.
#[test]
fn sigstop_inside_the_gate() {
    need_userfaultfd!();
    let outcome = sigstop_tree("delay-move=500", "--memory 36");
    outcome.expect(0).paged();
    assert!(outcome.stat("gate_deferred") > 0, "nobody was inside: {}", outcome.account());
}

/// A tracer that follows all threads sees and holds up the agent too.
#[test]
fn traced_by_strace() {
    need_userfaultfd!();
    traced("strace", &["-f", "-qq", "-o", "/dev/null"]);
}

#[test]
fn traced_by_gdb() {
    need_userfaultfd!();
    traced("gdb", &["-q", "-batch", "-ex", "run", "-ex", "quit $_exitcode", "--args"]);
}

fn traced(tracer: &str, options: &[&str]) {
    if !installed(tracer) {
        return skip(&format!("{tracer} is not installed"));
    }
    let tracer = std::iter::once(tracer).chain(options.iter().copied()).map(OsString::from);
    let outcome = launch("28M").run(tracer.chain(words("fork_cow", "--memory 34 --scene both_write")));
    outcome.expect(0).paged();
    assert!(outcome.stdout.contains("ok: "), "{}", outcome.account());
}

/// In a pid namespace of its own with the /proc of another, threads have two numbers; the agent
/// must ask by its own.
#[test]
fn cold_exit_in_a_pid_namespace() {
    need_userfaultfd!();
    if !plain().run(["unshare", "-p", "-f", "true"]).status.success() {
        return not_here("pid namespaces are not permitted here");
    }
    let namespace = ["unshare", "-p", "-f"].map(OsString::from).into_iter();
    let outcome = launch("28M").run(namespace.chain(words("cold_exit", "--memory 38 --stacks heap")));
    outcome.expect(0).paged();
}

/// What mlockall locks must fit; what lay beside it was evicted before.
#[test]
fn lock_all() {
    need_userfaultfd!();
    launch("96M").run(words("lock_all", "--memory 64")).expect(0).paged();
}

#[test]
fn fill_twice() {
    need_userfaultfd!();
    let program = victim("fill_twice");
    for pattern in ["seq", "random", "zero", "incompressible", "half-random"] {
        let outcome = launch("28M").run([program.as_os_str(), "48".as_ref(), pattern.as_ref()]);
        outcome.expect(0).paged();
    }
}

/// What a process that shares the program's memory could spoil.
#[test]
fn the_agent_is_unseen() {
    need_userfaultfd!();
    for scene in ["threads", "filter", "privileges", "reaper"] {
        passes("agent_unseen", &format!("--memory 38 --scene {scene}"));
    }
    // While memory may soon be short, fork waits for the agent of the child.
    launch("64M").run(words("agent_unseen", "--memory 1 --scene sleep_of_children")).expect(0);
}

/// The same for the first process of a namespace, whose children all orphans of it become.
#[test]
fn the_agent_is_unseen_in_a_pid_namespace() {
    need_userfaultfd!();
    if !plain().run(["unshare", "-p", "-f", "true"]).status.success() {
        return not_here("pid namespaces are not permitted here");
    }
    for scene in ["reaper", "everybody"] {
        let namespace = ["unshare", "-p", "-f"].map(OsString::from).into_iter();
        let scene = words("agent_unseen", &format!("--memory 38 --scene {scene}"));
        launch("28M").run(namespace.chain(scene)).expect(0).paged();
    }
}

/// A filter that answers an agent's calls with EPERM, where that is a thread, must not make the
/// program wrong, nor hang it.
#[test]
fn seccomp_filter() {
    need_userfaultfd!();
    for calls in ["all", "madvise"] {
        let words = words("seccomp_filter", &format!("--memory 38 --calls {calls}"));
        launch("28M").faults("agent-threads").run(words).expect(0);
    }
    // The child inherits the filter and goes without an agent: all of its memory stays.
    launch("64M").run(words("seccomp_filter", "--memory 60")).expect(0);
}

/// Programs this small are never managed, and none is lost.
#[test]
fn small_processes() {
    need_userfaultfd!();
    for how in ["fork", "spawn"] {
        let outcome = launch("28M").run(words("small_processes", &format!("--count 100 --how {how}")));
        outcome.expect(0);
    }
}

/// Death by a signal of a program with evicted memory is told as the shell tells it.
#[test]
fn bare_endings() {
    need_userfaultfd!();
    launch("28M").run(words("core_dump", "--memory 34 --bare")).expect(128 + 6).paged();
    launch("28M").run(words("reads_null_deref", "--memory 38 --bare")).expect(128 + 11).paged();
}

/// Shared memory stays as it is, whoever uses it, and beside private memory that is evicted.
#[test]
fn shared_torture_is_right() {
    need_userfaultfd!();
    plain().run(words("shared_torture", "--memory 16 --ops 2000")).expect(0);
    launch("28M").run(words("shared_torture", "--memory 16 --ops 2000 --seed 2")).expect(0);
}

/// Memory has one userfaultfd: a program that brings its own gets EBUSY for ours, a documented
/// limit. It either passes or is told so by its own call.
#[test]
fn own_userfaultfd_is_a_documented_limit() {
    need_userfaultfd!();
    let outcome = launch("28M").run(words("own_userfaultfd", "--memory 38"));
    assert!(outcome.hung.is_none(), "{}", outcome.account());
    if outcome.code() != 0 {
        outcome.expect(1).complains("Device or resource busy");
    }
}

/// FUTEX_LOCK_PI on an evicted word: EFAULT, a documented limit. What must hold even then: no hang
/// and no wrong page; the program either passes or names EFAULT ("Bad address").
#[test]
fn pi_mutexes_are_a_documented_limit() {
    need_userfaultfd!();
    let outcome = launch("28M").run(words("robust_mutex", "--memory 38 --rounds 1 --pi 1"));
    assert!(outcome.hung.is_none(), "{}", outcome.account());
    if outcome.code() != 0 {
        outcome.expect(1).complains("Bad address");
    }
}
