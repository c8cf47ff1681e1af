//! Whatever a caller of the control socket sends is a request or an error that can be told, and a
//! request is the same after it was sent once more.
#![no_main]

use libfuzzer_sys::fuzz_target;
use uswap_run::control::protocol::Request;

fuzz_target!(|line: &[u8]| match Request::decode(line) {
    Ok(request) => assert_eq!(Request::decode(request.encode().as_bytes()), Ok(request)),
    Err(error) => assert!(!error.is_empty()),
});
