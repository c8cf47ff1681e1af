//! The figures of whole runs: what they are after a known run, and how they belong together
//! (docs/design/pool.md).

use crate::common;

use common::victims::victim;
use common::{Outcome, Running, Scratch, figures, under};

/// The same thing under two names, and what one figure says of another.
fn fits_together(outcome: &Outcome) {
    let stat = |name: &str| outcome.stat(name);
    let zram = |name: &str| outcome.stats.as_ref().expect("figures")["mm_stat"][name].as_u64().expect(name);
    for (one, other) in [
        (stat("zswpwb"), stat("written_back_pages")),
        (stat("pool_total_size"), stat("pool_bytes")),
        (stat("pool_pages") << 12, stat("pool_bytes")),
        (zram("mem_used_total"), stat("pool_bytes")),
        (zram("mem_limit"), stat("pool_limit_bytes")),
        (zram("orig_data_size"), stat("stored_pages") << 12),
        (zram("compr_data_size"), stat("pool_stored_bytes")),
        (zram("same_pages"), stat("same_filled_pages")),
        (zram("huge_pages"), stat("stored_incompressible_pages")),
        (zram("huge_pages_since"), stat("reject_compress_poor")),
        (stat("duplicate_entry"), 0),
    ] {
        assert_eq!(one, other, "{}", outcome.account());
    }
    assert!(stat("pool_stored_bytes") <= stat("pool_bytes"), "{}", outcome.account());
    assert!(zram("mem_used_max") >= stat("pool_bytes"), "{}", outcome.account());
    assert!(stat("swpin_zero") <= stat("zero_fills") && stat("same_filled_pages") <= stat("stored_pages"));
}

/// 128 MiB that compress by half in 48, of which the pool may take a fifth: it is stored, written
/// back and read.
#[test]
fn pages_that_are_written_back_are_counted() {
    need_userfaultfd!();
    let launch = under("48M").option("--pool", "20").swap_file("1G");
    let outcome = launch.run([victim("fill_twice").as_os_str(), "128".as_ref(), "half".as_ref()]);
    outcome.expect(0).paged();
    fits_together(&outcome);
    for name in ["zswpout", "zswpin", "zswpwb", "pswpout", "pswpin"] {
        assert!(outcome.stat(name) > 1000, "{name}: {}", outcome.account());
    }
    assert!(outcome.stat("pswpout") >= outcome.stat("zswpwb"), "{}", outcome.account());
    // The program has no page of zeros. Pages that came ahead of their first touch are zeros when a
    // busy machine has them evicted before it: each comes back as such, and there are few.
    assert_eq!(outcome.stat("swpout_zero"), outcome.stat("swpin_zero"), "{}", outcome.account());
    assert!(outcome.stat("swpout_zero") <= 256, "{}", outcome.account());
    assert_eq!(outcome.stat("reject_compress_poor"), 0, "{}", outcome.account());
}

#[test]
fn pages_that_do_not_compress_are_counted() {
    need_userfaultfd!();
    let launch = under("48M").swap_file("1G");
    let outcome = launch.run([victim("fill_twice").as_os_str(), "96".as_ref(), "incompressible".as_ref()]);
    outcome.expect(0).paged();
    fits_together(&outcome);
    assert!(outcome.stat("reject_compress_poor") > 10_000, "{}", outcome.account());
    assert_eq!((outcome.stat("swpout_zero"), outcome.stat("zswpwb")), (0, 0), "{}", outcome.account());
}

/// Fills 96 MiB with zeros, goes on when files of the next numbers appear: gives birth to a child
/// that does nothing, lets it end, reads all, gives half back, and the rest.
const ZEROS: &str = "import mmap, os, sys, time\n\
    def step(n):\n\
    \x20   print('step', n, flush=True)\n\
    \x20   while not os.path.exists(sys.argv[1] + str(n)): time.sleep(0.01)\n\
    size = 96 << 20\n\
    memory = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)\n\
    zeros = bytes(4096)\n\
    for at in range(0, size, 4096): memory[at:at + 4096] = zeros\n\
    step(1)\n\
    r, w = os.pipe()\n\
    child = os.fork()\n\
    if child == 0:\n\
    \x20   os.close(w); os.read(r, 1); os._exit(0)\n\
    step(2)\n\
    os.close(w); os.waitpid(child, 0)\n\
    step(3)\n\
    assert sum(memory[at] for at in range(0, size, 4096)) == 0\n\
    memory.madvise(mmap.MADV_DONTNEED, 0, size // 2)\n\
    step(4)\n\
    memory.close()\n\
    step(5)\n";

/// The program is at the step; returns the figures for which `holds`, which are those of the
/// moment.
fn at_step(running: &Running, name: &str, step: u32, holds: impl Fn(u64) -> bool) -> u64 {
    running.says(&format!("step {step}"));
    running.until(&format!("the zeros of step {step}"), || {
        let figures = figures(name);
        let filled = figures["same_filled_pages"].as_u64()?;
        (holds(filled) && figures["mm_stat"]["same_pages"] == filled).then_some(filled)
    })
}

/// A gauge: evicted zeros rise with evictions and fork children, and fall when they come back, are
/// given back or unmapped, and when a process ends. The audit compares what each space counts with
/// its page table.
#[test]
fn evicted_zeros_are_counted_as_long_as_they_are_evicted() {
    need_userfaultfd!();
    let (scratch, name) = (Scratch::new(), format!("zeros-{}", std::process::id()));
    let steps = scratch.path("step");
    let launch = under("48M").option("--name", &name).flag("-q").faults("audit").deadline(40);
    let words = ["python3".as_ref(), "-c".as_ref(), ZEROS.as_ref(), steps.as_os_str()];
    let running = launch.start(words);
    let go = |step: u32| std::fs::write(scratch.path(&format!("step{step}")), "").expect("file");
    let evicted = at_step(&running, &name, 1, |filled| filled > 10_000);
    go(1);
    at_step(&running, &name, 2, |filled| filled > evicted + evicted / 2);
    go(2);
    at_step(&running, &name, 3, |filled| filled < evicted + evicted / 4 && filled > 10_000);
    go(3);
    at_step(&running, &name, 4, |filled| filled < 12_288 + 1000);
    go(4);
    at_step(&running, &name, 5, |filled| filled < 1000);
    go(5);
    let outcome = running.wait();
    outcome.expect(0).paged();
    fits_together(&outcome);
    assert!(outcome.stat("swpout_zero") > 10_000 && outcome.stat("swpin_zero") > 10_000, "{}", outcome.account());
    assert!(outcome.stat("zero_fills") >= outcome.stat("swpin_zero") + 10_000, "{}", outcome.account());
    assert!(outcome.stat("stored_pages") < 1000, "{}", outcome.account());
}

/// Fills 256 MiB with zeros, four times, and reads them in between.
const ZEROS_IN_ORDER: &str = "import mmap\n\
    size = 256 << 20\n\
    memory = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)\n\
    zeros = bytes(4096)\n\
    for turn in range(4):\n\
    \x20   for at in range(0, size, 4096): memory[at:at + 4096] = zeros\n\
    \x20   assert sum(memory[at] for at in range(0, size, 4096)) == 0\n";

/// Zeros that come back to a reader and are written then do not grow unseen.
#[test]
fn zeros_that_are_read_and_written_keep_to_the_budget() {
    need_userfaultfd!();
    let outcome = under("128M").flag("-q").deadline(60).run(["python3", "-c", ZEROS_IN_ORDER]);
    outcome.expect(0).paged();
    let peak = outcome.stat("ram_peak_bytes") as f64 / f64::from(128 << 20);
    assert!(peak < 1.03, "{peak}: {}", outcome.account());
}

/// What is read at random and does not fit wants another share than the one it begins with; the
/// user's limit holds.
#[test]
fn a_share_with_a_limit_moves_below_it() {
    need_userfaultfd!();
    let name = format!("share-{}", std::process::id());
    let launch = under("48M").option("--name", &name).option("--pool", "auto:75").flag("-q").swap_file("1G");
    let words =
        [victim("fill_twice").into_os_string(), "192".into(), "half-random".into(), "--reads".into(), "99".into()];
    let running = launch.deadline(60).start(words);
    let mut limits = Vec::new();
    running.until("another share", || {
        let told = Some(figures(&name)).filter(|told| told["pswpin"].as_u64() > Some(0))?;
        let share = told["pool_share_percent"].as_f64().expect("a share");
        assert!((20.0..=75.0).contains(&share), "{share} %");
        assert_eq!(told["pool_share"], "auto:75");
        limits.push(told["pool_limit_bytes"].as_u64().expect("a limit"));
        let (least, most) = (limits.iter().min()?, limits.iter().max()?);
        assert!(*most <= (48 << 20) * 75 / 100, "{limits:?}");
        (share != 65.0 && least + (512 << 10) < *most).then_some(())
    });
    running.signal(15);
    running.wait().expect(128 + 15);
}

/// Has 24 MiB that a child shares for a while; then a child that executes a program which fills 96
/// MiB twice.
const FORKS_AND_EXECUTES: &str = "import os, sys\n\
    memory = bytearray(os.urandom(4096)) * (24 << 8)\n\
    child = os.fork()\n\
    if child == 0: os._exit(memory[5] - memory[4096 * 999 + 5])\n\
    assert os.waitpid(child, 0)[1] == 0\n\
    child = os.fork()\n\
    if child == 0: os.execv(sys.argv[1], sys.argv[1:])\n\
    assert os.waitpid(child, 0)[1] == 0\n";

/// What is shared costs a walk of page tables to know: who has executed another program, and who
/// has no child any more, shares nothing.
#[test]
fn who_has_no_kin_is_not_asked_what_it_shares() {
    need_userfaultfd!();
    let fill = victim("fill_twice");
    let words = ["python3".as_ref(), "-c".as_ref(), FORKS_AND_EXECUTES.as_ref(), fill.as_os_str()];
    // While they have kin each is asked fifty times a second. Beside other load the moments in
    // which they do last longer, and the rest of the run does too.
    let is_hardly_asked = |_| {
        let launch = under("32M").swap_file("1G").deadline(60);
        let outcome = launch.run(words.into_iter().chain(["96".as_ref(), "half".as_ref()]));
        outcome.expect(0).paged();
        assert!(outcome.stat("fork_events") >= 1, "{}", outcome.account());
        let (asked, most) = (outcome.stat("shares_asked"), outcome.elapsed.as_millis() as u64 / 20);
        println!("asked {asked} times of {most}");
        asked < 20.max(most / 5)
    };
    assert!((0..5).any(is_hardly_asked), "it was asked for most of the time");
}
