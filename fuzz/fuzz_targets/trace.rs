//! Any bytes are a trace or an error that can be told; a compact trace that is read is written back
//! as it was.
#![no_main]

use std::io::Cursor;
use std::path::Path;

use libfuzzer_sys::fuzz_target;
use uswap_lab::compact::{MAGIC, Writer};
use uswap_lab::trace::{Trace, TraceError};

fn read(bytes: &[u8]) -> Result<Vec<u64>, TraceError> {
    let mut trace = Trace::new(Path::new("trace"), Cursor::new(bytes.to_vec()))?;
    std::iter::from_fn(|| trace.next_page().transpose()).collect()
}

fuzz_target!(|bytes: &[u8]| {
    match read(bytes) {
        Ok(pages) if bytes.starts_with(&MAGIC) => {
            let mut writer = Writer::new(Vec::new()).unwrap();
            pages.iter().for_each(|page| writer.push(*page).unwrap());
            assert_eq!(writer.into_inner(), bytes);
        }
        Ok(_) => {}
        Err(error) => assert!(error.to_string().starts_with("trace: ")),
    }
});
