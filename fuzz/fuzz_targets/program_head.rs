//! The head of any file is an ELF program of some kind or none.
#![no_main]

use libfuzzer_sys::fuzz_target;
use uswap_run::reason::kind_of_program;

fuzz_target!(|head: &[u8]| {
    let kind = kind_of_program(head);
    assert!(kind.is_none() || head.starts_with(b"\x7fELF"));
});
