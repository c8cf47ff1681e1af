//! Whatever a server says in the handshake is understood or refused; an export that is accepted
//! suits pages.
#![no_main]

use libfuzzer_sys::fuzz_target;
use uswap_device::nbd::{ExportTold, parse_greeting, parse_option_reply};

fuzz_target!(|input: (&[u8], u32, Vec<Vec<u8>>)| {
    let (bytes, option, replies) = input;
    if let Some(greeting) = bytes.first_chunk() {
        let _ = parse_greeting(greeting);
    }
    if let Some(head) = bytes.first_chunk() {
        let _ = parse_option_reply(head, option);
    }
    let mut told = ExportTold::default();
    if replies.iter().try_for_each(|data| told.add(data)).is_ok() {
        if let Ok(export) = told.export(true) {
            assert!(export.sector >= 512 && export.sector <= 4096 && export.sector >= export.smallest);
            assert!(export.smallest <= 4096 && export.largest >= 4096 && export.largest % 4096 == 0);
        }
    }
});
