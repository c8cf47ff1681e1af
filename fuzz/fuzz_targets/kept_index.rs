//! Any bytes are a file of kept pages or an error; a file that is read is written back as it was.
#![no_main]

use std::io::ErrorKind;

use libfuzzer_sys::fuzz_target;
use uswap_mount::cache::kept_index::{IndexWriter, read};

fuzz_target!(|bytes: &[u8]| {
    // Nobody guesses the first line.
    let bytes = [b"uswap kept pages\n", bytes].concat();
    let mut parts = Vec::new();
    let mut rest = &bytes[..];
    match read(&mut rest, |_, part| parts.push(part)) {
        Ok(head) => {
            let mut writer = IndexWriter::new(Vec::new(), &head).unwrap();
            parts.iter().for_each(|part| writer.part(part).unwrap());
            assert_eq!(writer.finish().unwrap(), bytes[..bytes.len() - rest.len()]);
        }
        Err(error) => assert!(matches!(
            error.kind(),
            ErrorKind::Unsupported | ErrorKind::InvalidData | ErrorKind::UnexpectedEof
        )),
    }
});
