//! Traces survive being written and read, in each format; files that are no traces are refused.

use std::io::{Cursor, Write};
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use uswap_lab::compact::{MAGIC, VERSION, Writer};
use uswap_lab::generate::{TraceFormat, TracePattern, TraceRecipe, write_file};
use uswap_lab::numbering::{Numbering, next_uses};
use uswap_lab::policies::NEVER;
use uswap_lab::replay::replay;
use uswap_lab::trace::{Trace, TraceError};
use uswap_lab::{Kind, MemoryShareOf};

fn read(bytes: Vec<u8>) -> Result<Vec<u64>, TraceError> {
    let mut trace = Trace::new(Path::new("trace"), Cursor::new(bytes))?;
    std::iter::from_fn(|| trace.next_page().transpose()).collect()
}

fn compact(pages: &[u64]) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new()).expect("memory");
    pages.iter().for_each(|page| writer.push(*page).expect("memory"));
    writer.into_inner()
}

/// A folder that goes with its owner.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("uswap-lab-{name}-{}", std::process::id()));
        std::fs::create_dir(&path).expect("a folder");
        Self(path)
    }

    fn file(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, bytes).expect("a file");
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Pages far from each other and near, and the ends of the range.
fn page() -> impl Strategy<Value = u64> {
    prop_oneof![any::<u64>(), 0u64..300, (0u32..64).prop_map(|bit| 1 << bit), Just(u64::MAX)]
}

proptest! {
    #[test]
    fn compact_traces_are_read_as_written(pages in prop::collection::vec(page(), 0..200)) {
        prop_assert_eq!(read(compact(&pages)), Ok(pages));
    }

    #[test]
    fn a_torn_compact_trace_is_a_beginning_or_an_error(pages in prop::collection::vec(page(), 1..50), cut in any::<prop::sample::Index>()) {
        let bytes = compact(&pages);
        let cut = 10 + cut.index(bytes.len() - 10);
        match read(bytes[..cut].to_vec()) {
            Ok(part) => {
                prop_assert!(pages.starts_with(&part));
                prop_assert_eq!(compact(&part), &bytes[..cut]);
            }
            Err(error) => prop_assert!(error.to_string().contains("in the middle"), "{}", error),
        }
    }

    /// What is read is written back as it was: no two files are the same trace.
    #[test]
    fn any_bytes_are_a_trace_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
        let file = [MAGIC.as_slice(), &[VERSION, 0], &bytes].concat();
        match read(file.clone()) {
            Ok(pages) => prop_assert_eq!(compact(&pages), file),
            Err(error) => prop_assert!(error.to_string().starts_with("trace: access "), "{}", error),
        }
    }

    #[test]
    fn text_is_read_as_written(pages in prop::collection::vec(page(), 0..100), hexadecimal in any::<bool>()) {
        let line = |page: &u64| if hexadecimal { format!("{page:#x}\n") } else { format!("{page}\n") };
        prop_assert_eq!(read(pages.iter().map(line).collect::<String>().into_bytes()), Ok(pages));
    }
}

#[test]
fn near_accesses_take_a_byte_each() {
    let pages: Vec<u64> = (1000..2000).chain((1000..2000).rev()).collect();
    assert!(compact(&pages).len() < 2020);
}

#[test]
fn heads_that_are_not_known_are_refused() {
    let head = |rest: &[u8]| read([MAGIC.as_slice(), rest].concat()).unwrap_err().to_string();
    assert!(head(&[]).contains("ends in its head"));
    assert!(head(&[VERSION]).contains("ends in its head"));
    assert!(head(&[VERSION + 1, 0]).contains("version 2"));
    assert!(head(&[VERSION, 4]).contains("0x04"));
    let through_text = [b"\x89USWTRC\r\n".as_slice(), &[VERSION, 0]].concat();
    assert!(read(through_text).is_err());
}

#[test]
fn generated_files_replay_alike_in_all_formats() {
    let scratch = Scratch::new("formats");
    let recipe = TraceRecipe { pattern: TracePattern::Zipf, pages: 500, length: 20_000, seed: 7, exponent: 0.9 };
    let sizes = [MemoryShareOf::Percent(25.0), MemoryShareOf::Pages(50)];
    let mut all = Vec::new();
    for (name, format) in [
        ("a.txt", TraceFormat::Text),
        ("a.txt.gz", TraceFormat::Text),
        ("a.trace", TraceFormat::Compact),
        ("a.trace.gz", TraceFormat::Compact),
    ] {
        let path = scratch.0.join(name);
        write_file(&recipe, format, &path).expect("a trace");
        let is_gzip = std::fs::read(&path).expect("a file").starts_with(&[0x1f, 0x8b]);
        assert_eq!(is_gzip, name.ends_with(".gz"), "{name}");
        let replayed = replay(&path, &Kind::ALL, &sizes).expect("a replay");
        assert_eq!(replayed.accesses, 20_000);
        all.push(replayed.cells);
        assert!(
            write_file(&recipe, format, &path).unwrap_err().to_string().contains("exists"),
            "nothing is overwritten"
        );
    }
    assert!(all.windows(2).all(|pair| pair[0] == pair[1]));
}

#[test]
fn what_cannot_be_replayed_is_named() {
    let scratch = Scratch::new("refused");
    let refused = |path: &Path| replay(path, &[Kind::Lru], &[MemoryShareOf::Pages(1)]).unwrap_err().to_string();
    assert!(refused(&scratch.0.join("missing")).contains("missing"));
    assert!(refused(&scratch.0).contains("not a regular file"));
    assert!(refused(&scratch.file("empty", b"")).contains("no page number"));
    assert!(refused(&scratch.file("comments", b"# nothing\n*\n")).contains("no page number"));
    assert!(refused(&scratch.file("bad", b"1\n2\nx\n")).ends_with("bad: line 3: \"x\" is not a page number"));
    let mut file = std::fs::File::create(scratch.0.join("zeros")).expect("a file");
    file.write_all(&[0; 4096]).expect("written");
    assert!(refused(&scratch.0.join("zeros")).contains("line 1"));
}

#[test]
fn a_trace_that_changes_between_its_two_readings_is_refused() {
    let scratch = Scratch::new("changed");
    for changed in ["1\n2\n3\n", "1\n", "1\n2\n2\n", ""] {
        let path = scratch.file("trace", b"1\n2\n");
        let numbering = Numbering::read(&path, false).expect("a trace");
        scratch.file("trace", changed.as_bytes());
        let error = numbering.replay(|_| {}).unwrap_err().to_string();
        assert!(error.ends_with("trace: changed while it was read"), "{error}");
    }
}

#[test]
fn pages_are_numbered_by_their_first_touch() {
    let scratch = Scratch::new("numbers");
    let path = scratch.file("trace", b"900\n7\n900\n18446744073709551615\n7\n7\n");
    let numbering = Numbering::read(&path, true).expect("a trace");
    assert_eq!((numbering.distinct(), numbering.accesses()), (3, 6));
    let mut numbers = Vec::new();
    numbering.replay(|block| numbers.extend_from_slice(block)).expect("the same trace");
    assert_eq!(numbers, [0, 1, 0, 2, 1, 1]);
    assert_eq!(*numbering.knowledge().next_uses, [2, 4, NEVER, NEVER, 5, NEVER]);
    assert_eq!(next_uses(&numbers), *numbering.knowledge().next_uses);
}
