//! A size is read or refused, and what is read stays within what the engine can count.
#![no_main]

use libfuzzer_sys::fuzz_target;
use uswap_core::util::size::{Size, human};

fuzz_target!(|text: &str| {
    if let Ok(size) = text.parse::<Size>() {
        let bytes = size.of(1 << 40);
        assert!(bytes < u64::MAX / 4);
        assert!(!human(bytes).is_empty());
    }
});
