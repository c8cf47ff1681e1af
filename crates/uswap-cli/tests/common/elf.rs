//! A reader of core files, for the tests of the writer: written from elf(5), without any code of
//! uswap.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// A segment of memory.
#[derive(Clone, Copy, Debug)]
pub struct Segment {
    pub address: u64,
    pub memory: u64,
    at: u64,
    pub bytes: u64,
}

/// A core file.
pub struct Core {
    file: File,
    pub segments: Vec<Segment>,
    /// Types of the notes, in the order of the file.
    pub notes: Vec<u32>,
}

fn number(bytes: &[u8], at: usize, length: usize) -> u64 {
    bytes[at..at + length].iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

impl Core {
    pub fn open(path: &Path) -> Self {
        let file = File::open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let read = |at: u64, length: usize| {
            let mut bytes = vec![0; length];
            file.read_exact_at(&mut bytes, at).expect("inside the file");
            bytes
        };
        let header = read(0, 64);
        assert_eq!(header[..7], *b"\x7fELF\x02\x01\x01");
        assert_eq!((number(&header, 16, 2), number(&header, 18, 2)), (4, 62), "a core file of x86-64");
        let (at, count) = (number(&header, 32, 8), number(&header, 56, 2));
        let (mut segments, mut notes) = (Vec::new(), Vec::new());
        for header in (0..count).map(|n| read(at + n * 56, 56)) {
            let field = |n: usize| number(&header, 8 * n, 8);
            let segment = Segment { at: field(1), address: field(2), bytes: field(4), memory: field(5) };
            match number(&header, 0, 4) {
                1 => segments.push(segment),
                4 => notes = note_types(&read(segment.at, segment.bytes as usize)),
                other => panic!("a program header of type {other}"),
            }
        }
        let length = file.metadata().expect("a file").len();
        assert!(segments.iter().all(|segment| segment.at + segment.bytes <= length), "a segment outside of the file");
        Self { file, segments, notes }
    }

    /// Memory at this address, from the file; `None` if the file does not have it.
    pub fn read(&self, address: u64, length: usize) -> Option<Vec<u8>> {
        let is_in = |s: &&Segment| s.address <= address && address + length as u64 <= s.address + s.bytes;
        let segment = self.segments.iter().find(is_in)?;
        let mut bytes = vec![0; length];
        self.file.read_exact_at(&mut bytes, segment.at + address - segment.address).expect("inside the file");
        Some(bytes)
    }

    /// Number of notes of this type.
    pub fn count(&self, kind: u32) -> usize {
        self.notes.iter().filter(|found| **found == kind).count()
    }
}

fn note_types(mut notes: &[u8]) -> Vec<u32> {
    let mut types = Vec::new();
    while !notes.is_empty() {
        let up = |length: u64| length.next_multiple_of(4) as usize;
        types.push(number(notes, 8, 4) as u32);
        notes = &notes[12 + up(number(notes, 0, 4)) + up(number(notes, 4, 4))..];
    }
    types
}
