//! A swap place is read or refused; a place that is read is never empty.
#![no_main]

use libfuzzer_sys::fuzz_target;
use uswap_engine::config::{SwapPlace, SwapSpec};

fuzz_target!(|text: &str| {
    if let Ok(SwapSpec { place: SwapPlace::Path(path), .. }) = text.parse() {
        assert!(!path.as_os_str().is_empty());
    }
});
