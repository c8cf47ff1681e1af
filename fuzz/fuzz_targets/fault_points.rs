//! A list of fault points is read or refused; the entry that is refused is one of the list.
#![no_main]

use libfuzzer_sys::fuzz_target;
use uswap_run::fault_points::FaultPoints;

fuzz_target!(|text: &str| {
    if let Err(entry) = FaultPoints::parse(text) {
        assert!(text.split(',').any(|known| known == entry));
    }
});
