//! Checks that every kind of the registry must pass. A new kind is checked as soon as it has its
//! line in the registry.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use uswap_core::PAGE_SIZE;
use uswap_sys::AlignedBuf;

use super::*;
use crate::device::{Errno, ReadRequest};
use crate::spec::{SwapPlace, SwapSpec, absolute};

/// Size in bytes for places without a size of their own.
const USUAL: u64 = 4 << 20;

/// A folder on a disk that is removed on drop.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("uswap-kinds-test-{}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed));
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir(&folder).expect("a folder");
        Self(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn read(text: &str) -> SwapSpec {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn open(text: &str) -> Box<dyn Device> {
    read(text).open(USUAL).unwrap_or_else(|error| panic!("{text}: {error}"))
}

#[test]
fn each_file_of_the_folder_is_in_the_registry() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/kinds");
    let files = std::fs::read_dir(folder).expect("the folder of kinds").map(|file| file.expect("a file").path());
    let is_kind = |path: &PathBuf| {
        path.file_stem().is_some_and(|name| !["mod", "help", "checks"].map(Some).contains(&name.to_str()))
    };
    assert_eq!(files.filter(is_kind).count(), KINDS.len());
}

#[test]
fn a_text_means_one_kind() {
    for (at, kind) in KINDS.iter().enumerate() {
        let example = kind.example;
        let those = KINDS.iter().enumerate().skip(1).filter(|(_, other)| (other.recognises)(example));
        let others: Vec<_> = those.map(|(number, _)| number).filter(|number| *number != at).collect();
        assert_eq!(others, [], "{example} means other kinds too");
        assert!(std::ptr::eq(of(example), kind), "{example} does not mean its kind");
        let place: SwapPlace = example.parse().expect(example);
        assert_eq!((place.to_string().as_str(), place.is_memory()), (example, kind.is_memory));
        assert_eq!(place, example.parse().expect(example));
    }
}

#[test]
fn each_kind_is_described() {
    let (written, things, manual) =
        (help::written_places(), help::places_as_things(), help::manual_entries("as usual"));
    for kind in KINDS {
        assert!(!kind.forms.is_empty() && kind.forms.iter().any(|form| form.short.is_some()), "{}", kind.example);
        assert_eq!(kind.options.is_empty(), kind.options_are_for.is_empty(), "{}", kind.example);
        for form in kind.forms {
            assert!(form.about.ends_with('.') && manual.iter().any(|(syntax, _)| syntax == form.syntax), "{form:?}");
            let is_named = |short: ShortForm| written.contains(short.written) && things.contains(short.noun);
            assert!(form.short.is_none_or(is_named), "{form:?}");
        }
        for option in kind.options {
            let term = format!(",{}={}", option.name, option.value);
            assert!(option.about.ends_with('.') && manual.iter().any(|(name, _)| *name == term), "{option:?}");
            assert!(help::options_in_one_line().contains(&format!("[{term}]")), "{option:?}");
            assert!(help::known_options().contains(&term[1..]), "{option:?}");
            assert!(!["prio", "size", "mirror"].contains(&option.name) && !term[1..].contains(','), "{option:?}");
        }
    }
    let mut terms: Vec<_> = manual.into_iter().map(|(term, _)| term).collect();
    terms.sort_unstable();
    let all = terms.len();
    terms.dedup();
    assert_eq!(terms.len(), all, "a term of the man page is there twice: {terms:?}");
}

#[test]
fn options_are_taken_by_their_kinds_and_refused_by_others() {
    for (kind, option) in KINDS.iter().flat_map(|kind| KINDS.iter().flat_map(|k| k.options).map(move |o| (kind, o))) {
        let (name, [least, most]) = (option.name, [option.range.start(), option.range.end()]);
        let parse = |value: &str| format!("{},{name}={value}", kind.example).parse::<SwapSpec>();
        for good in [least, most] {
            let parsed = parse(&good.to_string());
            let owner = KINDS.iter().find(|kind| kind.takes(name)).expect("a kind");
            let refusal =
                format!("= {} for {}", ["are", "is"][usize::from(owner.options.len() == 1)], owner.options_are_for);
            match kind.takes(name) {
                true => assert!(parsed.is_ok_and(|spec| spec != read(kind.example)), "{name} of {}", kind.example),
                false => assert!(parsed.is_err_and(|error| error.ends_with(&refusal)), "{name} of {}", kind.example),
            }
        }
        for bad in ["", "x", "-1", &(most + 1).to_string()] {
            let refusal = format!("{name}={bad}: between {least} and {most}{}", option.unit);
            assert_eq!(parse(bad).expect_err(bad), refusal);
        }
    }
}

#[test]
fn a_place_is_the_same_from_elsewhere() {
    for kind in KINDS {
        let [here, elsewhere] = ["/here", "/elsewhere"].map(Path::new);
        let text = absolute(kind.example, here);
        assert!(std::ptr::eq(of(&text), kind), "{text}");
        assert_eq!(absolute(&text, elsewhere), text);
        assert_eq!(
            absolute(&format!("{0},prio=1,mirror={0}", kind.example), here),
            format!("{text},prio=1,mirror={text}")
        );
    }
}

#[test]
fn each_kind_opens_and_holds_pages() {
    for kind in KINDS {
        let folder = Folder::new();
        let text = (kind.for_tests)(&folder.0);
        let device = open(&text);
        assert!(device.slots() >= 512, "{text}");
        if kind.is_memory {
            assert_eq!(device.name(), text, "the governor asks for it by this name");
        }
        exercise(&*device, &text);
    }
}

#[test]
fn a_size_bounds_each_kind() {
    for kind in KINDS {
        let folder = Folder::new();
        let text = format!("{},size=2M", (kind.for_tests)(&folder.0));
        assert_eq!(open(&text).slots(), 512, "{text}");
    }
}

#[test]
fn each_kind_mirrors_each_other() {
    for first in KINDS {
        for second in KINDS.iter().filter(|second| !std::ptr::eq(first, *second)) {
            let (one, other) = (Folder::new(), Folder::new());
            // Both halves have the same size: a write beyond the end of only one half would put
            // that half out.
            let text = format!("{},size=2M,mirror={}", (first.for_tests)(&one.0), (second.for_tests)(&other.0));
            let device = open(&text);
            exercise(&*device, &text);
            assert_eq!((device.note(), device.news()), (None, None), "{text}: a half is out");
        }
    }
}

/// Checks that written pages are read back by every read method, and that nothing lies beyond the
/// last slot.
fn exercise(device: &dyn Device, text: &str) {
    let mut out = AlignedBuf::zeroed(8 * PAGE_SIZE);
    out.iter_mut().enumerate().for_each(|(at, byte)| *byte = (at / 509) as u8);
    let (first, mut back) = (device.slots() - 8, AlignedBuf::zeroed(8 * PAGE_SIZE));
    device.write(first, &out).expect(text);
    device.read(first, &mut back).expect(text);
    assert!(*back == *out, "{text}: read");
    back.fill(1);
    let pages = back.chunks_mut(PAGE_SIZE).enumerate();
    let mut requests: Vec<_> = pages.map(|(at, page)| ReadRequest::new(first + at as u32, page)).collect();
    device.read_many(&mut requests);
    assert!(requests.iter().all(|request| request.result.is_ok()) && *back == *out, "{text}: read_many");
    let sector = device.sector();
    assert!(sector.is_power_of_two() && sector <= PAGE_SIZE, "{text}: sectors of {sector} bytes");
    let mut part = AlignedBuf::zeroed(PAGE_SIZE);
    let (last, range) = (PAGE_SIZE - sector, 4 * PAGE_SIZE - sector..4 * PAGE_SIZE);
    for read in [Device::read_part, Device::read_again] {
        part.fill(1);
        read(device, first + 3, last, &mut part[..sector]).expect(text);
        assert!(part[..sector] == out[range.clone()], "{text}: a sector");
    }
    device.discard(first, 4).expect(text);
    device.read(first + 4, &mut back[..4 * PAGE_SIZE]).expect(text);
    assert!(back[..4 * PAGE_SIZE] == out[4 * PAGE_SIZE..], "{text}: what was not discarded");
    assert_eq!(device.write(first + 1, &out), Err(Errno::INVALID), "{text}");
    assert_eq!(device.read(first + 1, &mut back), Err(Errno::INVALID), "{text}");
    device.write(0, &out[..PAGE_SIZE]).expect(text);
}
