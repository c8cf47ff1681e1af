//! Each rule that keeps pages whole can be switched off by a fault point. With the rule on the
//! victim passes; with the rule off the same victim must be seen to fail, with wrong data or by
//! hanging, in one of a few tries. So no test of a rule can pass because the case never happens.

use crate::common;

use std::ffi::OsString;
use std::time::Duration;

use common::victims::{ALL_AT_ONCE, victim};
use common::{Launch, Outcome, alone, installed, not_here, notice, plain, under};

/// A rule and what shows it.
struct Rule {
    /// The fault point that switches the rule off.
    off: &'static str,
    /// Fault points in both runs: delays that widen the window.
    always: &'static str,
    victim: &'static str,
    arguments: &'static str,
    /// How long the victim waits before it calls itself hung, in seconds. With the rule off at most
    /// that.
    timeout: u64,
    /// How often the run with the rule off may pass by chance.
    tries: u32,
}

impl Rule {
    fn run(&self, faults: &str) -> Outcome {
        self.launch(self.timeout).faults(faults).run(self.words(self.timeout))
    }

    fn words(&self, timeout: u64) -> Vec<OsString> {
        let mut words: Vec<OsString> = vec![victim(self.victim).into()];
        words.extend(self.arguments.split_whitespace().map(OsString::from));
        words.extend(["--timeout".into(), timeout.to_string().into()]);
        words
    }

    fn launch(&self, timeout: u64) -> Launch {
        // Turns have tests of their own; here they would only add seconds beside other load
        // (`crowd` has them all the same).
        under("44M").swap_file("1G").option("--load-control", "off").deadline(timeout + 15)
    }

    /// The rule on: right. The rule off: wrong, at least once.
    fn is_needed(&self) {
        let outcome = self.run(self.always);
        outcome.expect(0).paged();
        assert!(
            self.fails_when_off(outcome.elapsed),
            "{} passed every time with the rule off: {}",
            self.victim,
            self.off
        );
    }

    /// Whoever takes five times as long as with the rule on (`took`), and some seconds, hangs:
    /// nobody need wait for more. After twice that time already it is taken to hang, and its place
    /// goes to another test.
    fn fails_when_off(&self, took: Duration) -> bool {
        let busy = 2 * took + Duration::from_secs(1);
        let timeout = self.timeout.min(3 + 5 * took.as_secs_f64().ceil() as u64);
        (1..=self.tries).any(|attempt| {
            let launch = self.launch(timeout).busy_for(busy).faults(&format!("{},{}", self.off, self.always));
            let outcome = launch.run(self.words(timeout));
            let fails = outcome.hung.is_some() || outcome.code() != 0;
            if fails {
                let what = outcome.stderr.lines().next().unwrap_or("it hung").to_string();
                notice(&format!("{} seen at try {attempt}: status {}, {what}", self.off, outcome.code()));
            }
            fails
        })
    }
}

/// Shown by memory that is filled beyond the budget and read back.
fn filled_twice(off: &'static str, always: &'static str) -> Rule {
    Rule { off, always, victim: "fill_twice", arguments: "88 half-random --reads 1", timeout: 40, tries: 8 }
}

/// Without the gate pages are taken from a mapping that took the place of the one that was meant.
/// The moment is that between the agent's last look whether its order still holds and the move,
/// some microseconds. So the agent waits there, and the pager before it cancels the orders that an
/// event touches: it was seen in 5 of 8 runs then.
#[test]
fn gate() {
    need_userfaultfd!();
    Rule {
        // What waits for pending events before it evicts from fresh mappings would hide it mostly.
        off: "no-gate,trust-fresh",
        always: "delay-move=1000,delay-apply=2000,no-placement",
        victim: "remap_same_address",
        arguments: "--memory 66 --seconds 4 --next-to-go 1",
        timeout: 30,
        tries: 150,
    }
    .is_needed();
}

/// A guard that nobody announced leaves the old page where it was evicted to.
#[test]
fn guards_are_announced() {
    need_userfaultfd!();
    let rule = Rule {
        off: "silent-hooks",
        always: "",
        victim: "guard_pages",
        arguments: "--memory 52",
        timeout: 30,
        tries: 8,
    };
    if rule.run("").stdout.contains("not supported") {
        return not_here("this kernel has no guard pages (they came with 6.13)");
    }
    rule.is_needed();
}

/// So does a segment of shared memory that replaces evicted pages.
#[test]
fn attached_segments_are_announced() {
    need_userfaultfd!();
    Rule { off: "silent-hooks", always: "", victim: "shmat_remap", arguments: "--memory 52", timeout: 30, tries: 8 }
        .is_needed();
}

/// Without its own page table a child reads zeros where its parent's pages were evicted.
#[test]
fn fork_clone() {
    need_userfaultfd!();
    Rule {
        off: "no-fork-clone",
        always: "",
        victim: "fork_cow",
        arguments: "--memory 66 --scene both_write",
        timeout: 60,
        tries: 8,
    }
    .is_needed();
}

/// Sent away at once, the agent of a child that changes its mappings without a pause leaves its
/// memory unmanaged. (Its pages are served all the same.) With patience each child has an agent,
/// whose identity page the kernel refuses as long as the child goes on.
#[test]
fn patient_greeting() {
    need_userfaultfd!();
    let rule = Rule {
        off: "hasty-greeting",
        // A child that waits for its agent changes nothing until it is known.
        always: "hasty-programs",
        victim: "busy_child",
        arguments: "--memory 50 --rounds 4 --micros 50000",
        timeout: 30,
        tries: 8,
    };
    let patient = rule.run(rule.always);
    patient.expect(0).paged();
    assert_eq!(patient.stat("agents"), 5, "each of the children has one: {}", patient.account());
    let sends_away = |_| {
        let hasty = rule.run(&format!("{},{}", rule.off, rule.always));
        hasty.expect(0).paged();
        hasty.stderr.contains("waits for its agent")
    };
    assert!(!patient.stderr.contains("waits for its agent"), "an agent was sent away");
    assert!((0..rule.tries).any(sends_away), "no agent was sent away with the rule off");
}

/// Known by what its parent was known by, a child without an agent waits for its staged pages for
/// ever.
#[test]
fn many_proofs() {
    need_userfaultfd!();
    Rule {
        off: "one-proof",
        always: "",
        victim: "raw_forks",
        arguments: "--memory 55 --rounds 1",
        timeout: 40,
        tries: 8,
    }
    .is_needed();
}

/// A child forked while its parent's memory is being registered does not have it registered.
#[test]
fn fresh_registrations() {
    need_userfaultfd!();
    Rule {
        off: "trust-fresh",
        // A fork that waits for room comes when the memory is managed.
        always: "delay-scan=60000,hasty-programs",
        victim: "fork_at_start",
        arguments: "--memory 66",
        timeout: 90,
        tries: 8,
    }
    .is_needed();
}

/// What a scan registers can be a hole by then, and what is mapped there later is not registered.
#[test]
fn scans_are_proven() {
    need_userfaultfd!();
    Rule {
        off: "trust-scan",
        always: "delay-register=2000",
        victim: "late_maps",
        arguments: "--memory 62 --seconds 3",
        timeout: 30,
        tries: 8,
    }
    .is_needed();
}

/// A scan cuts what took the place of a smaller mapping, and mremap is refused until the rest is
/// registered too.
#[test]
fn cut_mappings_are_joined() {
    need_userfaultfd!();
    Rule {
        off: "leave-cut",
        always: "delay-register=500",
        victim: "replaced_and_moved",
        arguments: "--memory 62 --seconds 3",
        timeout: 30,
        tries: 8,
    }
    .is_needed();
}

/// What is moved onto memory that was registered a moment ago may be evicted: a child has it all
/// the same.
#[test]
fn fresh_is_not_what_was_moved_there() {
    need_userfaultfd!();
    Rule {
        off: "lasting-fresh",
        always: "delay-settle=100000",
        victim: "fork_after_move",
        arguments: "--memory 66 --rounds 5",
        timeout: 40,
        tries: 8,
    }
    .is_needed();
}

/// Applied in the order of their events, "moved there" comes before "there is nothing any more" of
/// another thread.
#[test]
fn order_of_changes() {
    need_userfaultfd!();
    Rule {
        off: "order-as-read",
        always: "",
        victim: "holes",
        arguments: "--memory 44 --seconds 4",
        timeout: 60,
        tries: 5,
    }
    .is_needed();
}

/// After MADV_DONTNEED an evicted page must not come back.
#[test]
fn remove_events() {
    need_userfaultfd!();
    Rule {
        off: "ignore-remove",
        always: "",
        victim: "dontneed_stale",
        arguments: "--memory 88 --rounds 3",
        timeout: 60,
        tries: 8,
    }
    .is_needed();
}

/// Evicted pages follow mremap.
#[test]
fn remap_events() {
    need_userfaultfd!();
    Rule {
        off: "ignore-remap",
        always: "",
        victim: "mremap_cases",
        arguments: "--memory 77 --rounds 1",
        timeout: 60,
        tries: 8,
    }
    .is_needed();
}

/// WIPEONFORK memory is zero in the child, evicted or not.
#[test]
fn wipe_on_fork_notes() {
    need_userfaultfd!();
    Rule { off: "ignore-notes", always: "", victim: "wipeonfork", arguments: "--memory 77", timeout: 60, tries: 8 }
        .is_needed();
}

/// A thread whose control block is evicted when it exits is never joined. Behind this rule stands
/// the agent, which leaves alone the pages of living threads' control blocks; here it does not.
#[test]
fn stacks_stay() {
    need_userfaultfd!();
    Rule {
        off: "manage-stacks",
        always: "forget-threads",
        victim: "cold_exit",
        arguments: "--memory 66 --stacks own --young 1",
        timeout: 40,
        tries: 8,
    }
    .is_needed();
}

/// A stack that is kept for the next thread looks like a piece of a heap, and is managed. Its upper
/// end, where the control block of that thread will be, stays.
#[test]
fn ends_of_stacks_stay() {
    need_userfaultfd!();
    Rule {
        off: "evict-stack-tops",
        always: "forget-threads",
        victim: "cold_exit",
        arguments: "--memory 66 --stacks kept --young 1",
        timeout: 40,
        tries: 8,
    }
    .is_needed();
}

/// The same for stacks that nobody can tell from other memory: there the agent alone knows.
#[test]
fn control_blocks_stay() {
    need_userfaultfd!();
    Rule {
        off: "forget-threads",
        always: "",
        victim: "cold_exit",
        arguments: "--memory 66 --stacks heap --young 1",
        timeout: 40,
        tries: 8,
    }
    .is_needed();
}

/// The same pid and address can be another program's: the nonce tells. Here memory lives on after
/// its first process has become another program, and is looked for in the tree.
#[test]
fn nonce() {
    need_userfaultfd!();
    Rule {
        off: "no-nonce",
        always: "",
        victim: "shared_vm",
        arguments: "--memory 55 --scene parent_execs",
        timeout: 30,
        tries: 8,
    }
    .is_needed();
}

/// A move may report that it found something in its way though it moved pages: where they are the
/// page table says. Who believes the report leaves them where nobody looks for them.
#[test]
fn page_table_is_the_truth() {
    need_userfaultfd!();
    filled_twice("trust-move", "move-lies=20").is_needed();
}

/// A seccomp filter may come between a move and the look at what it moved. Then the owner looks, or
/// the pages would stay where nobody looks for them.
#[test]
fn the_owner_looks_where_the_agent_may_not() {
    need_userfaultfd!();
    filled_twice("no-second-look", "blind-agent,move-lies=20").is_needed();
}

/// Where the agent, a thread under the program's filter, may move pages but not give their memory
/// back, the next pages in a tray would be taken for the old ones.
#[test]
fn leftovers_are_remembered() {
    need_userfaultfd!();
    Rule {
        off: "forget-leftovers",
        always: "agent-threads",
        victim: "seccomp_filter",
        arguments: "--memory 66 --calls madvise",
        timeout: 40,
        tries: 8,
    }
    .is_needed();
}

/// A page that the kernel finds in place wakes nobody: who waits for it would sleep on.
#[test]
fn who_waits_for_a_page_that_is_there_is_woken() {
    need_userfaultfd!();
    Rule {
        off: "no-wake",
        always: "found-there=50",
        victim: "fill_twice",
        arguments: "96 half-random --reads 1",
        timeout: 40,
        tries: 8,
    }
    .is_needed();
}

/// A page that is served while its range is being dropped goes with it, and nobody is told.
#[test]
fn a_fault_on_a_resident_page_is_served() {
    need_userfaultfd!();
    let rule = Rule {
        off: "no-stray",
        always: "",
        victim: "drop_beside_touch",
        arguments: "--memory 44 --rounds 8",
        timeout: 40,
        tries: 8,
    };
    let outcome = rule.run(rule.always);
    outcome.expect(0).paged();
    notice(&format!("{} pages vanished unseen", outcome.stat("stray_faults")));
    assert!(rule.fails_when_off(outcome.elapsed), "no page vanished unseen in {} runs", rule.tries);
}

/// Who reads a staging slot in which no page lies is told so at once. It would wait for somebody to
/// bring the page.
#[test]
fn slots_without_a_page_answer_at_once() {
    need_userfaultfd!();
    Rule { tries: 8, ..filled_twice("sleeping-reads", "read-missing=4") }.is_needed();
}

/// A fault in a system call holds that call's locks: held for as long as others, it would keep all
/// who write to the same log from it.
#[test]
fn faults_in_system_calls_are_not_held() {
    need_userfaultfd!();
    Rule {
        off: "hold-in-calls",
        always: "crowd",
        victim: "shared_log",
        arguments: "--memory 138 --rounds 2 --in-calls 1",
        // Several times as long as with the rule, in which it takes 7 s, and 25 beside other load.
        timeout: 60,
        tries: 8,
    }
    .is_needed();
}

/// What was staged a moment before a fork is missing in the child: its table must say so.
#[test]
fn what_was_just_staged_is_known_before_a_fork() {
    need_userfaultfd!();
    Rule {
        off: "no-absorb",
        // Between two looks of the owner the agent stages trays: without a look at the fork the
        // child never learns of them.
        always: "delay-absorb=20000",
        victim: "fork_staged",
        arguments: "--memory 55 --rounds 5",
        timeout: 60,
        tries: 8,
    }
    .is_needed();
}

/// A process ends when its last thread does; an agent that is one of them and stayed would keep it.
#[test]
fn agents_are_not_the_last_to_stay() {
    need_userfaultfd!();
    Rule {
        off: "stay-last",
        always: "agent-threads",
        victim: "last_thread_exits",
        arguments: "--memory 55",
        timeout: 40,
        tries: 8,
    }
    .is_needed();
}

/// How many of the pages that were freed with MADV_FREE and written again stayed in memory, by
/// parent and child.
fn stayed(outcome: &Outcome) -> Vec<u64> {
    let told = outcome.stdout.lines().filter_map(|line| line.split_once(" of ")?.0.rsplit_once(' ')?.1.parse().ok());
    told.collect()
}

/// MADV_FREE leaves its pages where they are, and what is written to them comes without a fault:
/// they are looked for, or nobody could ever evict them.
#[test]
fn what_was_freed_and_written_again_is_found() {
    need_userfaultfd!();
    let rule = Rule {
        off: "trust-remove",
        always: "audit",
        victim: "free_and_rewrite",
        arguments: "--memory 52 --pages 8192",
        timeout: 30,
        tries: 8,
    };
    let outcome = rule.run(rule.always);
    outcome.expect(0).paged();
    assert!(outcome.stat("left_pages") > 7000 && stayed(&outcome)[0] < 1024, "{}", outcome.account());
    let outcome = rule.run(rule.off);
    outcome.expect(0).paged();
    assert!(stayed(&outcome)[0] > 4096, "most were evicted with the rule off: {}", outcome.account());
}

/// What a program has freed with MADV_FREE the kernel takes also out of a staging slot. So it is
/// written to there first.
#[test]
fn what_was_freed_is_written_to_before_it_counts_as_staged() {
    need_userfaultfd!();
    freed("keep-clean", "audit", "--memory 52 --reclaim 1 --rounds 2").is_needed();
}

/// What the kernel takes before that is zeros, in a fork child as well; it is not a page that was
/// lost.
#[test]
fn what_the_kernel_takes_from_staging_is_zeros() {
    need_userfaultfd!();
    let rule = freed("mourn-freed", "audit,delay-dirty=2000", "--memory 52 --reclaim 1 --rounds 1 --fork 1");
    let outcome = rule.run(rule.always);
    outcome.expect(0).paged();
    assert!(outcome.stat("freed_in_staging") > 0, "{}", outcome.account());
    assert_eq!(outcome.stat("poisoned_pages"), 0, "{}", outcome.account());
    assert!(rule.fails_when_off(outcome.elapsed), "no page was taken from its slot");
}

fn freed(off: &'static str, always: &'static str, arguments: &'static str) -> Rule {
    Rule { off, always, victim: "madv_free", arguments, timeout: 100, tries: 8 }
}

/// A page that came back and was written again is not what its kept copy holds: its hash tells.
#[test]
fn a_kept_copy_is_compared() {
    need_userfaultfd!();
    Rule {
        off: "trust-copy",
        always: "",
        victim: "torture",
        arguments: "--seed 5 --seconds 1 --memory 60 --ops-mask write,verify,rewrite_same,poke",
        timeout: 40,
        tries: 8,
    }
    .is_needed();
}

/// What the kernel puts off because of an event is tried again by the clock: no other event would
/// wake us.
#[test]
fn what_is_put_off_is_tried_again() {
    need_userfaultfd!();
    Rule {
        off: "no-retry",
        always: "",
        victim: "torture",
        arguments: "--seed 1 --seconds 1 --memory 52",
        timeout: 40,
        tries: 8,
    }
    .is_needed();
}

/// What lies staged at a fork lies staged in the child, in its own memory.
#[test]
fn staging_slots_are_inherited() {
    need_userfaultfd!();
    Rule {
        off: "bare-staging",
        always: "",
        victim: "raw_forks",
        arguments: "--memory 50 --rounds 1",
        timeout: 40,
        tries: 8,
    }
    .is_needed();
}

/// With an agent that shares folder and root of its program the kernel refuses it another mount
/// namespace.
#[test]
fn agents_have_a_folder_of_their_own() {
    need_userfaultfd!();
    let enters = ["nsenter", "--mount=/proc/self/ns/mnt", "true"];
    if !installed("nsenter") || plain().run(enters).code() != 0 {
        return not_here("no namespace can be entered");
    }
    under("64M").run(enters).expect(0);
    let outcome = under("64M").faults("shared-folder").run(enters);
    outcome.complains("Invalid argument");
}

/// Memory that is not registered grows unseen between two looks: without room for it the budget is
/// passed.
#[test]
fn what_grows_unseen_has_room() {
    need_userfaultfd!();
    let _alone = alone();
    let budget = 44 << 20;
    let rule = Rule {
        off: "no-slack",
        always: "",
        victim: "alloc_fast",
        arguments: "--memory 176 --threads 2 --how mmap",
        timeout: 40,
        tries: 30,
    };
    let peak = |faults| {
        let outcome = rule.run(faults);
        outcome.expect(0).paged();
        outcome.stat("ram_peak_bytes")
    };
    let lowest = (0..3).map(|_| peak("")).min();
    assert!(lowest <= Some(budget), "{lowest:?} with room");
    assert!((0..rule.tries).any(|_| peak(rule.off) > budget + budget / 50), "it was never passed with the rule off");
}

/// What a reader brings counts only for a page that still is where it was asked for: one that was
/// dropped meanwhile stays zero.
#[test]
fn late_answers_do_not_count() {
    need_userfaultfd!();
    let run = |faults: &str| {
        let arguments = "--memory 60 --rounds 1 --nap 2000 --timeout 30".split(' ').map(OsString::from);
        let words = std::iter::once(victim("dontneed_stale").into_os_string()).chain(arguments);
        under("64M").option("--pool", "1").swap_file("1G").deadline(45).faults(faults).run(words)
    };
    run("delay-read=1000").expect(0).paged();
    let fails = |_| run("delay-read=1000,believe-late-answers").code() == 1;
    assert!((0..6).any(fails), "no page was stale with the rule off");
}

/// The same of what a worker has stored: a page that was dropped meanwhile would come back with
/// what it held before.
#[test]
fn late_answers_of_workers_do_not_count() {
    need_userfaultfd!();
    Rule {
        off: "believe-late-workers",
        always: "delay-store=2000",
        victim: "torture",
        arguments: "--seed 1 --seconds 2 --memory 52 --threads 3 --ops-mask write,verify,dontneed",
        timeout: 30,
        tries: 20,
    }
    .is_needed();
}

/// A shell's agent goes on for a moment after the shell has executed another program. Bound to that
/// program by a scan in this moment, it would take the program with it.
#[test]
fn who_executes_another_program_is_not_bound_to_its_old_agent() {
    need_userfaultfd!();
    let program = victim("alloc_fast").display().to_string();
    let run = |faults: &str| {
        let launch = under("44M").swap_file("2G").option("--load-control", "off").deadline(60).faults(faults);
        launch.run(["bash", "-c", ALL_AT_ONCE, program.as_str(), "32", "12"])
    };
    // Any four of them at a time are more than the budget, however far apart they start.
    run("delay-order=20000").expect(0).paged();
    let is_killed = |_| run("bind-dismissed,delay-order=20000").code() == 3;
    assert!((0..30).any(is_killed), "no program was killed with the rule off");
}

/// The kernel's part in paging shared memory; nothing of uswap runs. A page is read after it has
/// left all processes: no increment is lost. If it is read before, some are.
#[test]
fn shared_pages_are_read_after_they_have_left_all_processes() {
    need_userfaultfd!();
    let run = |words: &[&str]| {
        let mut all = vec![victim("shared_paging").into_os_string()];
        all.extend(words.iter().chain(&["--timeout", "50"]).map(OsString::from));
        plain().run(all)
    };
    let outcome = run(&["--rounds", "4000"]);
    outcome.expect(0);
    if outcome.stdout.contains("cannot be paged") {
        return not_here("the object behind shared memory cannot be opened (CAP_CHECKPOINT_RESTORE)");
    }
    let loses = || run(&["--rounds", "1000", "--without", "held"]).code() != 0;
    assert!((0..8).any(|_| loses()), "no increment was lost with the rule off");
}

/// What a pager of shared memory has to understand.
#[test]
fn messages_about_shared_memory_are_as_expected() {
    need_userfaultfd!();
    plain().run([victim("shared_events")]).expect(0);
}
