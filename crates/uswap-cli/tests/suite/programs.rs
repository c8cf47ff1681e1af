//! Programs that nobody adapted, in less memory than they need: each must give the answer that it
//! gives without us.
//!
//! `make install-deps` installs them; a test whose program is missing says so.

use crate::common;

use std::fs;
use std::path::Path;

use common::victims::compile_text;
use common::{Launch, Outcome, Scratch, installed, not_here, plain, skip, under};

macro_rules! need {
    ($($program:literal),+) => {
        need_userfaultfd!();
        $(if !installed($program) {
            return skip(concat!($program, " is not installed (make install-deps)"));
        })+
    };
}

/// Runs it both ways: same status, same output, and pages were evicted.
fn same_answer(launch: Launch, words: &[&str]) -> Outcome {
    let without = plain().deadline(100).run(words);
    without.expect(0);
    let outcome = launch.deadline(100).run(words);
    outcome.expect(0).paged();
    assert!(outcome.stdout == without.stdout, "another answer than without uswap: {}", outcome.account());
    assert_eq!(outcome.stat("poisoned_pages"), 0, "{}", outcome.account());
    outcome
}

fn python(ram: &str, script: &str) {
    need!("python3");
    same_answer(under(ram).swap_file("1G"), &["python3", "-c", script]);
}

#[test]
fn python_dictionaries() {
    python(
        "64M",
        "d = {}\n\
         for i in range(500000): d['key %d' % (i * 7919 % 500009)] = i\n\
         for i in range(0, 500000, 3): d.pop('key %d' % i, None)\n\
         print(len(d), sum(v * len(k) for k, v in d.items()) % 1000003, hash(tuple(sorted(d.values())[:1000])))",
    );
}

#[test]
fn python_forks() {
    python(
        "96M",
        "import multiprocessing as m, os\n\
         m.set_start_method('fork')\n\
         data = [os.urandom(0) + bytes([i % 251]) * 900 for i in range(70000)]\n\
         def work(n): return sum(data[i][i % 900] * (i + 1) for i in range(n, len(data), 8)) % 1000003\n\
         if __name__ == '__main__':\n\
         \x20   with m.Pool(3) as pool: print(pool.map(work, range(8)))\n\
         \x20   print(work(3))",
    );
}

#[test]
fn python_threads_and_big_numbers() {
    python(
        "64M",
        "import threading, hashlib\n\
         parts = [None] * 4\n\
         def work(n): parts[n] = bytearray(hashlib.sha256(b'%d' % n).digest() * (1 << 20))\n\
         threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]\n\
         [t.start() for t in threads]; [t.join() for t in threads]\n\
         for n in range(4): parts[n][n::4096] = parts[3 - n][n::4096]\n\
         print([hashlib.md5(p).hexdigest() for p in parts])",
    );
}

/// Sorting with a buffer of its own larger than the budget.
#[test]
fn gnu_sort() {
    need!("sort");
    let script =
        "seq 1 1500000 | awk '{ print ($1 * 7919) % 1500007 \" line \" $1 }' | sort -S 160M --parallel=2 | md5sum";
    same_answer(under("64M").env("LC_ALL", "C"), &["bash", "-c", script]);
}

/// A tree of C files whose compilation needs some memory each.
fn source_tree(folder: &Path) {
    let mut makefile = String::from("all: program\n");
    let objects: Vec<String> = (0..6).map(|n| format!("part{n}.o")).collect();
    makefile += &format!("program: {0}\n\t$(CC) -o $@ {0}\n", objects.join(" "));
    makefile += "%.o: %.c\n\t$(CC) -O1 -g0 -c $< -o $@\nclean:\n\trm -f *.o program\n";
    fs::write(folder.join("Makefile"), makefile).expect("Makefile");
    for part in 0..6u32 {
        let mut text = String::from("#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n");
        for function in 0..400u32 {
            text += &format!(
                "long f{part}_{function}(long a, long b) {{ long t[8] = {{a, b, {function}}}; for (int i = 2; i < 8; i++) \
                 t[i] = t[i - 1] * {part} + t[i - 2] % ({function} + 1); return t[7] ^ a; }}\n"
            );
        }
        text += &format!("long part{part}(long x) {{ long s = x;\n");
        for function in 0..400u32 {
            text += &format!("s += f{part}_{function}(s, {function});\n");
        }
        text += "return s; }\n";
        if part == 0 {
            text += "long part1(long); long part2(long); long part3(long); long part4(long); long part5(long);\n\
                     int main(void) { printf(\"%ld\\n\", part5(part4(part3(part2(part1(part0(1))))))); return 0; }\n";
        }
        fs::write(folder.join(format!("part{part}.c")), text).expect("source");
    }
}

#[test]
fn parallel_make() {
    need!("make", "gcc");
    let scratch = Scratch::new();
    let folder = scratch.path("tree");
    fs::create_dir(&folder).expect("folder");
    source_tree(&folder);
    let script = "make -s clean && make -s -j4 CC=gcc && ./program && md5sum *.o";
    let without = plain().folder(&folder).deadline(100).run(["bash", "-c", script]);
    let outcome = under("48M").swap_file("1G").folder(&folder).deadline(100).run(["bash", "-c", script]);
    outcome.expect(0).paged();
    assert_eq!(outcome.stdout, without.expect(0).stdout);
}

/// A server that forks to save its data while it is being written to.
#[test]
fn redis_saves_under_load() {
    need!("redis-server", "redis-cli", "redis-benchmark");
    let scratch = Scratch::new();
    let folder = scratch.path("redis");
    fs::create_dir(&folder).expect("folder");
    let script = r#"
set -e
redis-server --port 0 --unixsocket "$PWD/socket" --save '' --appendonly no --daemonize no --logfile log &
server=$!
ask() { redis-cli -s "$PWD/socket" "$@"; }
for i in $(seq 200); do ask ping 2>/dev/null | grep -q PONG && break; sleep 0.05; done
ask debug jmap >/dev/null 2>&1 || true
ask eval 'for i = 1, 90000 do redis.call("set", "fixed:" .. i, string.rep(tostring(i), 150)) end' 0 >/dev/null
redis-benchmark -s "$PWD/socket" -q -n 60000 -r 20000 -d 700 -t set,get,lpush >/dev/null &
load=$!
ask bgsave >/dev/null
wait $load
for i in $(seq 600); do ask info persistence | grep -q 'rdb_bgsave_in_progress:0' && break; sleep 0.05; done
ask info persistence | grep rdb_last_bgsave_status | tr -d '\r'
ask eval 'local bad = 0; for i = 1, 90000 do if redis.call("get", "fixed:" .. i) ~= string.rep(tostring(i), 150) then bad = bad + 1 end end; return bad' 0
kill $server
wait $server || true
redis-check-rdb dump.rdb | grep -c 'RDB looks OK'
"#;
    let outcome = under("80M").swap_file("1G").folder(&folder).deadline(120).run(["bash", "-c", script]);
    outcome.expect(0).paged();
    assert_eq!(outcome.stdout, "rdb_last_bgsave_status:ok\n0\n1\n", "{}", outcome.account());
}

#[test]
fn sqlite_in_memory() {
    need!("sqlite3");
    let script = "create table t(id integer primary key, word text, n int);\n\
        with recursive c(i) as (select 1 union all select i + 1 from c where i < 600000) \
        insert into t select i, printf('word %d and %d', i * 7919 % 600011, i), i % 1013 from c;\n\
        create index by_word on t(word);\n\
        update t set n = n + 1 where id % 3 = 0;\n\
        delete from t where n % 17 = 5;\n\
        select count(*), sum(n), min(word), max(word), sum(length(word)) from t;\n\
        select n, count(*) from t group by n order by 2 desc, 1 limit 5;\n\
        pragma integrity_check;\n";
    same_answer(under("48M").swap_file("1G"), &["sqlite3", ":memory:", script]);
}

#[test]
fn node() {
    need!("node");
    let script = "const m = new Map(); for (let i = 0; i < 600000; i++) m.set('k' + (i * 7919 % 600011), { i, a: [i, i + 1] });\
        let s = 0; for (const [k, v] of m) s = (s * 31 + v.i + v.a[1] + k.length) % 1000003;\
        const b = Buffer.alloc(60 << 20, 'uswap'); let h = require('crypto').createHash('md5').update(b).digest('hex');\
        console.log(m.size, s, h);";
    same_answer(under("112M").swap_file("1G"), &["node", "-e", script]);
}

const JAVA: &str = r#"
import java.util.*;
public class Heap {
    public static void main(String[] arguments) throws Exception {
        List<byte[]> blocks = new ArrayList<>();
        Map<Integer, long[]> map = new HashMap<>();
        for (int i = 0; i < 120000; i++) {
            byte[] block = new byte[700];
            Arrays.fill(block, (byte) i);
            blocks.add(block);
            map.put(i * 7919 % 120011, new long[] { i, i * 3L });
        }
        long[] sums = new long[4];
        Thread[] threads = new Thread[4];
        for (int t = 0; t < 4; t++) {
            int mine = t;
            threads[t] = new Thread(() -> {
                for (int i = mine; i < blocks.size(); i += 4) sums[mine] += blocks.get(i)[i % 700] * (long) i;
            });
            threads[t].start();
        }
        for (Thread thread : threads) thread.join();
        long all = 0;
        for (long[] pair : map.values()) all = (all * 31 + pair[0] + pair[1]) % 1000003;
        System.out.println(Arrays.toString(sums) + " " + all + " " + map.size());
    }
}
"#;

#[test]
fn java() {
    need!("java", "javac");
    let scratch = Scratch::new();
    fs::write(scratch.path("Heap.java"), JAVA).expect("source");
    let folder = scratch.path("").to_string_lossy().into_owned();
    plain().deadline(60).run(["javac", "-d", &folder, &format!("{folder}/Heap.java")]).expect(0);
    let options = ["-Xmx256m", "-Xms256m", "-XX:+UseSerialGC", "-XX:+AlwaysPreTouch"];
    let words: Vec<&str> = ["java"].into_iter().chain(options).chain(["-cp", &folder, "Heap"]).collect();
    same_answer(under("128M").swap_file("1G"), &words);
}

/// Stressors check what they write (`--verify`); their output has times in it, so only the status
/// is compared.
fn stress(ram: &str, options: &str) -> Outcome {
    let words = ["stress-ng", "--oom-avoid", "--verify", "--timeout", "6"];
    let launch = under(ram).swap_file("2G").deadline(90);
    let outcome = launch.run(words.into_iter().chain(options.split_whitespace()));
    outcome.expect(0);
    // When its time is over in the middle of a round, the stressor `pthread` (0.15) does not wait
    // for the thread that it made last, and destroys the mutex that this thread unlocks.
    let is_late = |line: &str| line.contains("pthread: pthread_mutex_unlock failed") && line.contains("errno=22");
    let failed = outcome.stderr.lines().filter(|line| line.contains("fail:") && !is_late(line)).count();
    let late = outcome.stderr.lines().filter(|line| is_late(line)).count();
    assert!(failed == 0 && late <= 2, "{}", outcome.account());
    outcome
}

macro_rules! stressors {
    ($($test:ident: $options:literal;)*) => {
        $(#[test]
        fn $test() {
            need!("stress-ng");
            stress("64M", $options).paged();
        })*
    };
}

stressors! {
    stress_vm: "--vm 2 --vm-bytes 100M --vm-method all";
    stress_vm_keep: "--vm 1 --vm-bytes 128M --vm-keep --vm-method walk-1d";
    stress_mremap: "--mremap 2 --mremap-bytes 96M";
    stress_brk: "--brk 1 --brk-ops 40000 --vm 1 --vm-bytes 128M --vm-keep";
    stress_madvise: "--madvise 2 --vm 1 --vm-bytes 96M";
    stress_fork: "--fork 2 --vm 1 --vm-bytes 128M --vm-keep";
    stress_malloc: "--malloc 2 --malloc-bytes 160M --malloc-max 4096";
    stress_stack_and_pthread: "--pthread 2 --pthread-max 200 --vm 1 --vm-bytes 128M --vm-keep";
}

/// A statically linked program that is small has no agent: it runs, unmanaged.
#[test]
fn static_program_runs_unmanaged() {
    need_userfaultfd!();
    let source = "#include <stdio.h>\nint main(void) { puts(\"static\"); return 4; }\n";
    let program = compile_text("static_program", source);
    let built = plain().run(["cc", "-static", "-o"].map(String::from).into_iter().chain([
        format!("{}.static", program.display()),
        program.with_file_name("../static_program.c").display().to_string(),
    ]));
    if built.code() != 0 {
        return not_here("no static C library");
    }
    let outcome = under("64M").run([format!("{}.static", program.display())]);
    assert_eq!(outcome.expect(4).stdout, "static\n");
}
