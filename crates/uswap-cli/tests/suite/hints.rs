//! What uswap cannot mend it says: programs that end by a heap limit of their own, and shared
//! memory, of which nothing is evicted.

use crate::common;

use std::process::Command;

use common::victims::victim;
use common::{USWAP, installed, plain, skip, under};

/// Of the summary's and doctor's words on heap limits.
const GUIDE: &str = "docs/guide/heap-limits.md";

#[test]
fn an_abort_while_memory_was_never_short_is_spoken_of() {
    need_userfaultfd!();
    let outcome = under("256M").run(["sh", "-c", "kill -ABRT $$"]);
    outcome.expect(134).complains("it ended by abort though memory was never short").complains(GUIDE);
    for harmless in ["exit 0", "exit 1", "kill -TERM $$"] {
        let outcome = under("256M").run(["sh", "-c", harmless]);
        assert!(!outcome.stderr.contains(GUIDE), "{}", outcome.account());
    }
    let outcome = under("256M").flag("-q").run(["sh", "-c", "kill -ABRT $$"]);
    assert_eq!(outcome.expect(134).stderr, "");
}

/// Faults are not held up for room that cannot come. What can be evicted goes all the same.
#[test]
fn memory_that_cannot_be_evicted_and_is_more_than_the_budget_is_named() {
    need_userfaultfd!();
    let run = |total: &str, kib: &str| {
        let words = ["--memory", "8", "--guards", "1", "--timeout", "60", "--total", total, "--kib", kib];
        let mut all = vec![victim("small_mappings").into_os_string()];
        all.extend(words.map(std::ffi::OsString::from));
        under("40M").deadline(90).run(all)
    };
    let (said, outgrown) = ("cannot be evicted", run("56", "32"));
    outgrown.expect(0).paged().complains(said);
    assert_eq!(outgrown.stderr.matches(said).count(), 1, "{}", outgrown.account());
    let fits = run("20", "32");
    assert!(!fits.expect(0).stderr.contains(said), "{}", fits.account());
}

/// It aborts with a part of its memory evicted: the budget was short, whatever else was.
#[test]
fn an_abort_while_memory_was_short_is_not() {
    need_userfaultfd!();
    let script = "b = bytearray(b'x') * (96 << 20)\nimport os\nos.abort()";
    let outcome = under("48M").run(["python3", "-c", script]);
    assert!(!outcome.expect(134).paged().stderr.contains(GUIDE), "{}", outcome.account());
}

/// The case itself: a heap limit that Node.js derives from what it finds. It is set by hand here,
/// as no cgroup is at hand.
#[test]
fn a_heap_limit_of_nodes_own_is_named() {
    need_userfaultfd!();
    if !installed("node") {
        return skip("node is not installed");
    }
    let objects = "const a = []; for (let i = 0; i < 4000000; i++) a.push({ i, s: 'x' + i });";
    let outcome = under("1G").deadline(90).run(["node", "--max-old-space-size=64", "-e", objects]);
    let gave_up = [133, 134].contains(&outcome.code());
    assert!(gave_up && outcome.stderr.contains("node --max-old-space-size=MIB"), "{}", outcome.account());
    let waits = "setTimeout(() => {}, 2500)";
    let told = under("1G").waits().flag("-v").run(["sh", "-c", "node -e \"$0\" & node -e \"$0\"; wait", waits]);
    assert_eq!(
        told.expect(0).stderr.matches("limits its heap by the memory it finds").count(),
        1,
        "{}",
        told.account()
    );
    let set = under("1G").waits().flag("-v").env("NODE_OPTIONS", "--max-old-space-size=256").run(["node", "-e", waits]);
    assert!(!set.expect(0).stderr.contains("limits its heap"), "{}", set.account());
}

#[test]
fn doctor_speaks_of_heap_limits() {
    let output = Command::new(USWAP).arg("doctor").output().expect("uswap runs");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("heap limits") && text.contains("--max-old-space-size") && text.contains(GUIDE), "{text}");
}

/// Fills so many MiB of a new mapping, by its flags or by those of a file, and stays until it has
/// been told to end.
const FILLS: &str = "import mmap, sys, time
size = int(sys.argv[2]) << 20
if sys.argv[1] == 'file':
    with open('mapped', 'w+b') as file:
        file.truncate(size)
        memory = mmap.mmap(file.fileno(), size)
else:
    memory = mmap.mmap(-1, size, flags=getattr(mmap, sys.argv[1]))
for at in range(0, size, 4096): memory[at] = 120
print('filled', flush=True)
time.sleep(float(sys.argv[3]))";

#[test]
fn shared_memory_that_fills_the_budget_is_spoken_of_once_and_while_there_is_time() {
    need_userfaultfd!();
    let run = under("64M").waits().start(["python3", "-c", FILLS, "MAP_SHARED", "48", "30"]);
    run.says("filled");
    run.until("a sentence", || run.stderr().contains("of shared memory, of which uswap evicts nothing").then_some(()));
    run.signal(15);
    let outcome = run.wait();
    outcome.expect(143).complains("python3 (process").complains("of shared memory, never evicted");
    assert_eq!(outcome.stderr.matches("uswap evicts nothing").count(), 1, "{}", outcome.account());
    assert!(outcome.stat("shared_memory_bytes") >= 32 << 20, "{}", outcome.account());
}

/// Neither private memory nor a mapped file is shared memory, and a little of it is no trouble.
#[test]
fn other_memory_is_not_taken_for_shared_memory() {
    need_userfaultfd!();
    for (kind, mib) in [("MAP_PRIVATE", "48"), ("file", "48"), ("MAP_SHARED", "8")] {
        let outcome = under("64M").run(["python3", "-c", FILLS, kind, mib, "0.7"]);
        let is_silent = !outcome.expect(0).stderr.contains("shared memory");
        assert!(is_silent && outcome.stat("shared_memory_bytes") == 0, "{kind}: {}", outcome.account());
    }
    let outcome =
        plain().run([USWAP, "run", "-q", "--ram", "64M", "--", "python3", "-c", FILLS, "MAP_SHARED", "48", "0.7"]);
    assert_eq!(outcome.expect(0).stderr, "");
}
