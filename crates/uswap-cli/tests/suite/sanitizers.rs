//! Programs that were built with a sanitizer run as without us: same answers, and what they are to
//! find is found.

use crate::common;

use std::ffi::OsString;

use common::victims::compile_sanitized;
use common::{Outcome, not_here, under};

/// 3000 blocks of 64 KiB, of which one is leaked if an argument is given.
const BLOCKS: &str = "#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n\
    int main(int c, char **v) { (void)v; char **p = malloc(24000); long s = 0;\n\
    for (int i = 0; i < 3000; i++) memset(p[i] = malloc(65536), i & 255, 65536);\n\
    for (int i = 0; i < 3000; i++) s += p[i][i] & 255;\n\
    printf(\"sum %ld\\n\", s); if (c > 1) p[7] = 0;\n\
    for (int i = 0; i < 3000; i++) free(p[i]);\n free(p); return 0; }\n";

fn run(sanitizer: &str, ram: &str, more: &[&str]) -> Option<Outcome> {
    let program = compile_sanitized("blocks", BLOCKS, sanitizer)?;
    let words = std::iter::once(program.into_os_string()).chain(more.iter().map(OsString::from));
    Some(under(ram).swap_file("4G").deadline(180).run(words))
}

#[test]
fn address_sanitizer_finds_nothing_where_there_is_nothing() {
    need_userfaultfd!();
    let Some(outcome) = run("address", "100M", &[]) else { return not_here("no -fsanitize=address") };
    outcome.expect(0).paged();
    assert!(outcome.stdout.contains("sum 375876"), "{}", outcome.account());
}

/// LeakSanitizer stops all threads of the program and reads its memory, evicted pages too.
#[test]
fn leak_sanitizer_finds_the_leak_and_no_other() {
    need_userfaultfd!();
    let Some(outcome) = run("address", "100M", &["leak"]) else { return not_here("no -fsanitize=address") };
    outcome.expect(1).paged();
    outcome.complains("SUMMARY: AddressSanitizer: 65536 byte(s) leaked in 1 allocation(s)");
}

/// Its shadow is mapped anew piece by piece: most of the program's memory lies in mappings of 128
/// KiB.
#[test]
fn thread_sanitizer_keeps_to_the_budget() {
    need_userfaultfd!();
    for ram in ["100M", "300M"] {
        let Some(outcome) = run("thread", ram, &[]) else { return not_here("no -fsanitize=thread") };
        outcome.expect(0).paged();
        assert!(outcome.stdout.contains("sum 375876"), "{}", outcome.account());
        let (peak, limit) = (outcome.stat("ram_peak_bytes"), outcome.stat("ram_limit_bytes"));
        assert!(peak < limit + limit / 16, "{}", outcome.account());
    }
}
