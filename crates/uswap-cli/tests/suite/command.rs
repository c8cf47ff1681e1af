//! `uswap run` from the outside: statuses, refusals, pipes, signals, what the command inherits,
//! what is left over.

use crate::common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::Duration;

use common::victims::victim;
use common::{Launch, Outcome, Scratch, USWAP, is_root, not_here, plain, procs, skip, under};

const REFUSED: i32 = 125;

fn shell(script: &str) -> Outcome {
    under("64M").deadline(30).run(["bash", "-c", script])
}

#[test]
fn status_is_passed_through() {
    need_userfaultfd!();
    for status in [0, 1, 42, 125, 255] {
        shell(&format!("exit {status}")).expect(status);
    }
}

#[test]
fn death_by_signal_is_128_and_its_number() {
    need_userfaultfd!();
    for signal in [1, 2, 6, 9, 11, 15] {
        shell(&format!("ulimit -c 0; kill -{signal} $$")).expect(128 + signal);
    }
}

#[test]
fn commands_that_cannot_start() {
    need_userfaultfd!();
    let scratch = Scratch::new();
    let script = scratch.path("script");
    fs::write(&script, "#!/bin/sh\nexit 0\n").expect("script");
    under("64M").run([script.as_os_str()]).expect(126).complains("permission denied");
    under("64M").run(["/"]).expect(126);
    under("64M").run(["no-such-command-anywhere"]).expect(127).complains("no-such-command-anywhere");
    under("64M").run(["/no/such/file"]).expect(127).complains("not found");
    under("64M").run([""]).expect(127);
    let mut permissions = script.metadata().expect("script").permissions();
    permissions.set_mode(0o755);
    fs::set_permissions(&script, permissions).expect("permissions");
    under("64M").run([script.as_os_str()]).expect(0);
    fs::write(&script, "#!/no/such/interpreter\n").expect("script");
    let status = under("64M").run([script.as_os_str()]).code();
    assert!(status == 126 || status == 127, "{status}");
}

/// Each is refused before anything is started, with a sentence that holds this text.
#[test]
fn bad_options_are_refused() {
    need_userfaultfd!();
    let refused = |options: &[&str], text: &str| {
        let words = [USWAP, "run"].iter().chain(options).chain(&["--", "echo", "started"]);
        let outcome = plain().run(words);
        outcome.expect(REFUSED).complains(text);
        assert_eq!(outcome.stdout, "", "{}", outcome.account());
        assert!(outcome.stderr.lines().count() < 12, "{}", outcome.account());
    };
    for size in ["12Q", "", "M", "1.2.3M", "150%", "ten"] {
        refused(&["--ram", size], "is not a size");
    }
    for size in ["0", "1", "4096", "8M", "0%", "0.0001%"] {
        refused(&["--ram", size], "the least that works is");
    }
    refused(&["--ram", "50"], "50% is a share of the machine's memory, 50M a size");
    refused(&["-m", "512"], "512M would be MiB");
    refused(&["--memory", "-5"], "\"-5\" is not a size");
    refused(&["--ram", "64M", "--pool", "-1"], "between 0 and 90 percent");
    refused(&["--ram", "64M", "--pool", "auto:95"], "between 0 and 90 percent");
    refused(&["--ram", "900000T"], "more than this machine");
    refused(&["--ram", "64M", "--pool", "95"], "--pool");
    refused(&["--ram", "64M", "--pool", "nan"], "--pool");
    refused(&["--ram", "64M", "--no-such-option"], "--no-such-option");
    refused(&["--ram", "64M", "--ram"], "--ram");
    refused(&["--ram", "64M", "--swap", ""], "--swap");
    refused(&["--ram", "64M", "--swap", "x,prio=high"], "prio=high");
    refused(&["--ram", "64M", "--swap", "x,size=huge"], "is not a size");
    refused(&["--ram", "64M", "--swap", "x,colour=red"], "colour");
    refused(&["--ram", "64M", "--swap", "1G"], "a place comes first: PATH,size=1G");
    refused(&["--ram", "64M", "--swap", "ram,size=0"], "room for less than 2.0 MiB");
}

#[test]
fn a_command_is_needed() {
    plain().run([USWAP, "run"]).expect(REFUSED);
    plain().run([USWAP, "run", "--ram", "64M", "--"]).expect(REFUSED);
    plain().run([USWAP, "no-such-subcommand"]).expect(REFUSED);
}

#[test]
fn help_and_version() {
    for words in [["--help"].as_slice(), &["run", "--help"], &["--version"]] {
        let outcome = plain().run([USWAP].iter().chain(words));
        outcome.expect(0);
        assert!(outcome.stdout.contains("uswap"), "{}", outcome.account());
    }
    // `run` has a grammar of its own, which knows none of this.
    let help = plain().run([USWAP, "run", "--help"]);
    assert!(help.stdout.starts_with("Run a command and all its children"), "{}", help.account());
}

#[test]
fn bad_swap_places_are_refused() {
    need_userfaultfd!();
    let scratch = Scratch::new();
    let refused = |place: &str, text: &str| {
        let outcome = under("64M").option("--swap", place).run(["echo", "started"]);
        outcome.expect(REFUSED).complains(text);
        assert_eq!(outcome.stdout, "", "{}", outcome.account());
    };
    refused(&scratch.path("").to_string_lossy(), "is a directory");
    refused("/dev/shm/uswap-test-swap", "tmpfs");
    refused("/dev/null", "neither a regular file nor a block device");
    refused("/no/such/folder/swap", "/no/such/folder");
    let precious = scratch.path("precious");
    fs::write(&precious, "somebody's thesis\n").expect("file");
    refused(&precious.to_string_lossy(), "holds data");
    assert_eq!(fs::read_to_string(&precious).expect("file"), "somebody's thesis\n");
}

#[test]
fn read_only_swap_is_refused() {
    need_userfaultfd!();
    let scratch = Scratch::new();
    let file = scratch.path("fixed");
    fs::write(&file, "").expect("file");
    let chattr =
        |mode: &str| Command::new("chattr").arg(mode).arg(&file).output().is_ok_and(|out| out.status.success());
    if !chattr("+i") {
        return not_here("a file cannot be made immutable here");
    }
    let outcome = under("64M").option("--swap", &file).run(["echo", "started"]);
    chattr("-i");
    outcome.expect(REFUSED).complains("cannot be written");
}

#[test]
fn swap_in_use_is_refused() {
    need_userfaultfd!();
    let scratch = Scratch::new();
    let place = format!("{},size=64M", scratch.path("swap").display());
    let first = under("64M").waits().option("--swap", &place).start(["bash", "-c", "echo ready; exec sleep 20"]);
    first.says("ready");
    under("64M").option("--swap", &place).run(["true"]).expect(REFUSED).complains("in use");
    first.signal(15);
    first.wait().expect(128 + 15);
    under("64M").option("--swap", &place).run(["true"]).expect(0);
}

#[test]
fn a_run_inside_a_run_is_refused() {
    need_userfaultfd!();
    let words = [USWAP, "run", "--ram", "64M", "--", "true"];
    under("64M").option("--name", "outer").run(words).expect(REFUSED).complains("outer");
}

#[test]
fn input_and_output_go_through_pipes() {
    need_userfaultfd!();
    let text: String = (0..500_000u64).map(|line| format!("{}\n", line * 7919 % 500_000)).collect();
    let outcome = under("64M").stdin(text.clone()).run(["sort", "-n"]);
    outcome.expect(0);
    assert!(outcome.stdout.lines().map(|line| line.parse::<u32>().expect("number")).eq(0..500_000));
    let script = format!("'{USWAP}' run -q --ram 64M -- cat | '{USWAP}' run -q --ram 64M -- wc -c");
    let outcome = plain().stdin(text.clone()).run(["bash", "-c", &script]);
    assert_eq!(outcome.expect(0).stdout.trim(), text.len().to_string());
}

/// The reader goes away: the writer gets SIGPIPE as without us.
#[test]
fn broken_pipe() {
    need_userfaultfd!();
    let script = format!("'{USWAP}' run -q --ram 64M -- yes | head -n1; exit ${{PIPESTATUS[0]}}");
    let outcome = plain().run(["bash", "-c", &script]);
    assert_eq!(outcome.expect(128 + 13).stdout, "y\n");
}

/// With stdin, stdout or stderr closed none of our descriptors may take their place: they stay
/// closed or are the null device, and nothing else is open.
#[test]
fn closed_standard_descriptors() {
    need_userfaultfd!();
    for (closed, numbers) in [("<&-", "0"), (">&-", "1"), ("2>&-", "2"), ("<&- >&- 2>&-", "0 1 2")] {
        let scratch = Scratch::new();
        let seen = scratch.path("seen");
        let look = format!("for n in {numbers}; do readlink /proc/$$/fd/$n; done >\"$OUT\"; exit 9");
        let script = format!("'{USWAP}' run -q --ram 64M -- bash -c '{look}' {closed}");
        plain().env("OUT", &seen).run(["bash", "-c", &script]).expect(9);
        let open: Vec<String> = fs::read_to_string(&seen).unwrap_or_default().lines().map(str::to_string).collect();
        let harmless = |place: &String| place == "/dev/null" || place.ends_with("/seen");
        assert!(open.iter().all(harmless), "with {closed}: {open:?}");
    }
}

#[test]
fn signals_reach_the_command() {
    need_userfaultfd!();
    for (name, signal) in [("HUP", 1), ("INT", 2), ("QUIT", 3), ("USR1", 10), ("USR2", 12), ("TERM", 15)] {
        let script = format!("trap 'echo caught {name}; exit 7' {name}; echo ready; while :; do sleep 0.02; done");
        let run = under("64M").waits().deadline(30).start(["bash", "-c", &script]);
        run.says("ready");
        run.signal(signal);
        let outcome = run.wait();
        outcome.expect(7);
        assert_eq!(outcome.stdout.matches("caught").count(), 1, "{}", outcome.account());
    }
}

#[test]
fn term_ends_a_command_that_does_not_catch_it() {
    need_userfaultfd!();
    let run = under("64M").waits().deadline(30).start(["bash", "-c", "echo ready; exec sleep 30"]);
    run.says("ready");
    run.signal(15);
    run.wait().expect(128 + 15);
}

/// What the command left behind is waited for, and its status is kept.
#[test]
fn waits_for_what_the_command_left_behind() {
    need_userfaultfd!();
    let launch = || under("64M").waits().deadline(30);
    let outcome = launch().run(["bash", "-c", "(sleep 1.5; echo late) & echo early; exit 3"]);
    outcome.expect(3);
    assert_eq!(outcome.stdout, "early\nlate\n");
    assert!(outcome.elapsed >= Duration::from_millis(1400), "{}", outcome.account());
    let run = launch().start(["bash", "-c", "setsid sleep 100 & echo ready; exit 4"]);
    run.says("ready");
    std::thread::sleep(Duration::from_millis(500));
    run.signal(15);
    run.wait().expect(4);
}

/// What a process can see of its surroundings is the same as without us.
#[test]
fn surroundings_are_inherited() {
    need_userfaultfd!();
    let script = "pwd; umask; nice; ulimit -a; cat /proc/self/oom_score_adj; tr '\\0' ' ' </proc/self/cmdline; \
                  grep -E 'Sig(Blk|Ign)|Cap|NoNewPrivs|Seccomp:|Groups|Cpus_allowed:|CoreDumping' /proc/self/status; \
                  echo $0 $#; ls -1 /proc/self/fd; readlink /proc/self/exe; cat /proc/self/coredump_filter";
    let words = ["bash", "-c", script, "the name", "an argument", ""];
    let folder = Scratch::new();
    let here = folder.path("");
    let (ours, without) = (under("64M").folder(&here).run(words), plain().folder(&here).run(words));
    assert_eq!(ours.expect(0).stdout, without.expect(0).stdout);
}

#[test]
fn argument_zero_is_kept() {
    need_userfaultfd!();
    let words = ["sh", "-c", "tr '\\0' '\\n' </proc/$$/cmdline", "a b", "", "$x", "*"];
    let (ours, without) = (under("64M").run(words), plain().run(words));
    assert_eq!(ours.expect(0).stdout, without.expect(0).stdout);
}

#[test]
fn environment_gains_three_names() {
    need_userfaultfd!();
    let environment = |outcome: Outcome| -> Vec<String> {
        let names = outcome.expect(0).stdout.split('\0').map(str::to_string).collect::<Vec<_>>();
        names.into_iter().filter(|entry| !entry.is_empty() && !entry.starts_with("USWAP_TEST_TAG=")).collect()
    };
    let without = environment(plain().env("ODD", "a\nb = ü").run(["env", "-0"]));
    let ours = environment(under("64M").option("--name", "my run").env("ODD", "a\nb = ü").run(["env", "-0"]));
    let (added, kept): (Vec<_>, Vec<_>) = ours.into_iter().partition(|entry| !without.contains(entry));
    assert_eq!(kept.len(), without.len());
    let names: Vec<&str> = added.iter().filter_map(|entry| entry.split('=').next()).collect();
    assert_eq!(names, ["LD_PRELOAD", "ASAN_OPTIONS", "USWAP_NAME"], "{added:?}");
    assert!(added.contains(&"USWAP_NAME=my run".to_string()), "{added:?}");
}

/// A preload of the user's own is kept.
#[test]
fn preloads_are_kept() {
    need_userfaultfd!();
    let outcome = under("64M").env("LD_PRELOAD", "libm.so.6").run(["sh", "-c", "echo $LD_PRELOAD"]);
    assert!(outcome.expect(0).stdout.trim().ends_with(":libm.so.6"), "{}", outcome.account());
}

/// Children of another user run, and hear nothing of the agent. (In other root directories and
/// mount namespaces the dynamic loader says one line: docs/guide/limits.md.)
#[test]
fn strangers_in_the_tree_are_not_disturbed() {
    need_userfaultfd!();
    if !is_root() {
        return skip("needs root to become another user");
    }
    let outcome = under("64M").flag("-q").run(["setpriv", "--reuid=65534", "--clear-groups", "echo", "hello"]);
    assert_eq!(outcome.expect(0).stdout, "hello\n");
    assert_eq!(outcome.stderr, "", "{}", outcome.account());
}

#[test]
fn empty_environments_are_not_disturbed() {
    need_userfaultfd!();
    let outcome = under("64M").flag("-q").run(["env", "-i", "/bin/echo", "hello"]);
    assert_eq!((outcome.expect(0).stdout.as_str(), outcome.stderr.as_str()), ("hello\n", ""));
}

/// `--` may be left out where the command does not look like an option.
#[test]
fn options_of_the_command_are_its_own() {
    need_userfaultfd!();
    let words = [USWAP, "run", "-q", "--ram", "64M", "bash", "-c", "echo $#: $*", "x", "--ram", "-q", "--", "-v"];
    assert_eq!(plain().run(words).expect(0).stdout, "4: --ram -q -- -v\n");
}

#[test]
fn quiet_and_summary() {
    need_userfaultfd!();
    let outcome = under("64M").flag("-q").run(["true"]);
    assert_eq!(outcome.expect(0).stderr, "");
    let outcome = under("64M").run([victim("fill_twice").as_os_str(), "96".as_ref()]);
    outcome.expect(0).complains("uswap: peak ").complains("evicted");
    assert_eq!(outcome.stderr.lines().count(), 1, "{}", outcome.account());
}

/// What the budget is, and the place for pages; how it goes on, once memory is short.
#[test]
fn verbose_runs_say_budget_place_and_when_memory_is_managed() {
    need_userfaultfd!();
    let outcome = under("64M").flag("-v").run([victim("fill_twice").as_os_str(), "96".as_ref()]);
    outcome.expect(0).complains("uswap: the budget is 64.0 MiB (--ram 64M)").complains("uswap: swap on /");
    outcome.complains("GiB, priority 0").complains("memory is managed from now on, of fill_twice (process ");
    assert!(outcome.stderr.lines().all(|line| line.starts_with("uswap: ")), "{}", outcome.account());
    assert!(!outcome.stderr.contains("a second"), "{}", outcome.account());
    let outcome = plain().run([USWAP, "run", "-v", "-m", "25%", "--", "true"]);
    outcome.expect(0).complains("(--ram 25% of the machine's ");
    let outcome = under("64M").waits().flag("-vv").run(["sleep", "1.3"]);
    outcome.expect(0).complains("64.0 MiB in use, pool ").complains("pages a second: 0 evicted");
}

/// Programs that stay unmanaged, each once and with the reason; nobody is told of them unasked
/// before the end.
#[test]
fn verbose_runs_name_programs_that_stay_unmanaged() {
    need_userfaultfd!();
    let hungry = |verbose: &[&str]| {
        let mut launch = under("256M").flag("--no-attach");
        for flag in verbose {
            launch = launch.flag(flag);
        }
        let program = victim("watchful");
        let words = ["env".into(), "-u".into(), "LD_PRELOAD".into(), program.into_os_string()];
        launch.run(words.into_iter().chain(["24", "2500", "1", "0"].map(std::ffi::OsString::from)))
    };
    let told = |outcome: &Outcome| outcome.expect(0).stderr.matches(" stays unmanaged: ").count();
    let outcome = hungry(&["-v"]);
    outcome.complains("uswap: watchful (process ").complains(") stays unmanaged: environment without LD_PRELOAD");
    assert_eq!(told(&outcome), 1, "{}", outcome.account());
    assert_eq!(told(&hungry(&[])), 0);
}

/// A limit that was ordered is told within some seconds, with the one before; without `-v` only to
/// who has ordered it.
#[test]
fn verbose_runs_tell_of_new_limits() {
    need_userfaultfd!();
    let limited = |launch: Launch| {
        let script = format!("'{USWAP}' limit \"$USWAP_NAME\" 48M >/dev/null && sleep 2.5");
        launch.run(["sh", "-c", script.as_str()])
    };
    let outcome = limited(under("64M").flag("-v"));
    outcome.expect(0).complains("uswap: the budget is 48.0 MiB now, 64.0 MiB before\n");
    assert_eq!(outcome.stderr.matches(" now, ").count(), 1, "{}", outcome.account());
    let outcome = limited(under("64M"));
    assert!(!outcome.expect(0).stderr.contains(" now, "), "{}", outcome.account());
}

/// Nobody listens to what is said any more: that is no reason to end anything.
#[test]
fn who_does_not_listen_loses_nothing() {
    need_userfaultfd!();
    let script = format!("'{USWAP}' run -vv --ram 64M -- bash -c 'sleep 1.3; exit 7' 2> >(exec true)");
    plain().waits().run(["bash", "-c", &script]).expect(7);
}

/// The keeper says why it killed a tree. If nobody hears it, it has killed it all the same, and
/// ends with the status that says so.
#[test]
fn a_keeper_to_whom_nobody_listens_does_its_work() {
    need_userfaultfd!();
    for nowhere in ["> >(exec true)", ">&-", ">/dev/full"] {
        let script = format!("exec '{USWAP}' run --ram 64M -- sleep 30 2{nowhere}");
        let run = plain().start(["bash", "-c", &script]);
        run.command();
        procs::kill(run.engine(), 9);
        run.wait().expect(70);
    }
}

/// A TMPDIR in memory is no place for the swap file, and who has set it is told; quiet runs say
/// nothing.
#[test]
fn an_unusable_tmpdir_is_named_with_the_reason() {
    need_userfaultfd!();
    for (place, why) in [("/dev/shm", "tmpfs"), ("/no/such/folder", "/no/such/folder")] {
        let outcome = under("64M").env("TMPDIR", place).run(["true"]);
        outcome.expect(0).complains("uswap: no swap file in $TMPDIR").complains(why).complains("it is in /var/tmp");
        assert_eq!(under("64M").env("TMPDIR", place).flag("-q").run(["true"]).expect(0).stderr, "");
    }
    let outcome = under("64M").env("TMPDIR", "").run(["true"]);
    assert!(!outcome.expect(0).stderr.contains("TMPDIR"), "{}", outcome.account());
}

/// Where the figures cannot be written nothing is started; where the run is refused nothing is
/// written or left.
#[test]
fn figures_that_cannot_be_written_refuse_the_run() {
    need_userfaultfd!();
    let scratch = Scratch::new();
    let (folder, file, new) = (scratch.path("folder"), scratch.path("file"), scratch.path("new"));
    fs::create_dir(&folder).expect("folder");
    fs::write(&file, "kept\n").expect("file");
    let run = |stats: &std::path::Path, swap: &str| {
        let mut words: Vec<std::ffi::OsString> = [USWAP, "run", "--ram", "64M", "--stats"].map(Into::into).into();
        words.push(stats.into());
        words.extend(["--swap", swap, "--", "echo", "started"].map(Into::into));
        plain().run(words)
    };
    for bad in [folder.as_path(), "/no/such/folder/stats".as_ref(), "/proc/self/stats".as_ref()] {
        let outcome = run(bad, "ram");
        outcome.expect(REFUSED).complains(&format!("--stats {}", bad.display()));
        assert_eq!(outcome.stdout, "", "{}", outcome.account());
    }
    for place in [&file, &new] {
        run(place, "/dev/null").expect(REFUSED);
    }
    assert_eq!(fs::read_to_string(&file).expect("file"), "kept\n");
    assert!(!new.exists(), "a refused run left a file");
}

/// What was printed in part is no answer; who has read enough is no error.
#[test]
fn output_that_cannot_be_written_is_an_error() {
    for words in ["doctor", "doctor --json", "man", "completions bash"] {
        let outcome = plain().run(["bash", "-c", &format!("'{USWAP}' {words} >/dev/full")]);
        outcome.expect(REFUSED).complains("uswap: standard output: No space left");
    }
    let script = format!(
        "'{USWAP}' man > >(exec true); sleep 0.1; '{USWAP}' man | head -n 1 >/dev/null; echo ${{PIPESTATUS[0]}}"
    );
    let outcome = plain().run(["bash", "-c", &script]);
    assert_eq!((outcome.expect(0).stdout.as_str(), outcome.stderr.as_str()), ("0\n", ""));
}

/// Names that users' scripts may rely on.
const FIGURES: [&str; 65] = [
    "pgfault",
    "pgmajfault",
    "soft_faults",
    "staged_ra",
    "stray_faults",
    "zero_fills",
    "swpout_zero",
    "swpin_zero",
    "swap_ra",
    "prepaged",
    "brought_in",
    "pgscan",
    "pgsteal",
    "pgdeactivate",
    "workingset_refault_anon",
    "workingset_activate_anon",
    "workingset_restore_anon",
    "checksum_errors",
    "poisoned_pages",
    "swap_cache_reused",
    "stored_in_quads",
    "install_again",
    "install_exists",
    "move_busy",
    "move_refused",
    "orders_cancelled",
    "throttled",
    "over_limit",
    "fork_events",
    "unmap_events",
    "remove_events",
    "remap_events",
    "registrations",
    "unfounded_registrations",
    "agents",
    "managed_processes",
    "ram_bytes",
    "ram_peak_bytes",
    "ram_limit_bytes",
    "pool_bytes",
    "pool_limit_bytes",
    "pool_stored_bytes",
    "stored_pages",
    "same_filled_pages",
    "stored_incompressible_pages",
    "pool_total_size",
    "pool_pages",
    "duplicate_entry",
    "pool_hole_bytes",
    "reject_compress_poor",
    "reject_compress_fail",
    "reject_alloc_fail",
    "reject_kmemcache_fail",
    "decompress_fail",
    "pool_limit_hit",
    "written_back_pages",
    "spilled_pages",
    "repacked_pages",
    "reject_reclaim_fail",
    "put_full",
    "zswpin",
    "zswpout",
    "zswpwb",
    "pswpin",
    "pswpout",
];

#[test]
fn stats_hold_the_documented_figures() {
    need_userfaultfd!();
    let outcome = under("64M").run([victim("fill_twice").as_os_str(), "96".as_ref(), "incompressible".as_ref()]);
    outcome.expect(0).paged();
    for name in FIGURES {
        outcome.stat(name);
    }
    assert_eq!(outcome.stat("ram_limit_bytes"), 64 << 20);
    let stats = outcome.stats.as_ref().expect("figures");
    for tier in ["zero", "staged", "pool", "device"] {
        for figure in ["count", "mean_ns", "p50_ns", "p99_ns", "p999_ns", "max_ns"] {
            assert!(stats["fault_latency"][tier][figure].is_u64(), "{tier} {figure}: {stats:#}");
        }
    }
    for figure in ["name", "used_bytes", "size_bytes", "latched_off", "read_errors", "write_errors"] {
        assert!(!stats["devices"][0][figure].is_null(), "{figure}: {stats:#}");
    }
    for figure in ["orig_data_size", "compr_data_size", "mem_used_total", "mem_limit", "mem_used_max", "same_pages"] {
        assert!(stats["mm_stat"][figure].is_u64(), "{figure}: {stats:#}");
    }
    for figure in ["pages_compacted", "huge_pages", "huge_pages_since"] {
        assert!(stats["mm_stat"][figure].is_u64(), "{figure}: {stats:#}");
    }
    assert!(stats["processes"].is_array(), "{stats:#}");
}

/// Nothing stays in TMPDIR, neither after a good end nor when everything is killed.
#[test]
fn no_files_are_left() {
    need_userfaultfd!();
    let scratch = Scratch::new();
    let temporary = scratch.path("temporary");
    fs::create_dir(&temporary).expect("folder");
    let files = || fs::read_dir(&temporary).expect("folder").count();
    let words = [victim("fill_twice").into_os_string(), "128".into(), "incompressible".into()];
    under("64M").env("TMPDIR", &temporary).run(&words).expect(0).paged();
    assert_eq!(files(), 0, "after a good end");
    let run =
        under("64M").env("TMPDIR", &temporary).start(words.iter().cloned().chain(["--reads".into(), "99".into()]));
    let engine = run.engine();
    std::thread::sleep(Duration::from_millis(1500));
    procs::kill(engine, 9);
    run.wait().expect(70);
    assert_eq!(files(), 0, "after the engine was killed");
}
