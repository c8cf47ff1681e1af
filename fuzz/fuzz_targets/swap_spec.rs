//! A swap specification is read or refused; a place that is read is never empty, and places that
//! are completed once are complete.
#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use uswap_device::SwapSpec;
use uswap_device::spec::absolute;

fuzz_target!(|text: &str| {
    if let Ok(spec) = text.parse::<SwapSpec>() {
        assert!(spec.places().all(|place| !place.to_string().is_empty()));
    }
    let complete = absolute(text, Path::new("/here"));
    assert_eq!(absolute(&complete, Path::new("/elsewhere")), complete);
});
