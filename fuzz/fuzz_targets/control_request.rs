//! Whatever a caller of the control socket sends is a request or an error that can be told.
#![no_main]

use libfuzzer_sys::fuzz_target;
use uswap_engine::control::parse_request;

fuzz_target!(|line: &[u8]| {
    if let Err(error) = parse_request(line) {
        assert!(!error.is_empty());
    }
});
