//! The layout of a core file (elf(5), x86-64): header, program headers, notes, and the segments of
//! memory, each at a multiple of a page.

use super::mappings::CoreMapping;
use uswap_core::PAGE;

const HEADER: u64 = 64;
const PROGRAM_HEADER: u64 = 56;
const SECTION_HEADER: u64 = 64;
const PT_LOAD: u32 = 1;
const PT_NOTE: u32 = 4;
const ET_CORE: u16 = 4;
const EM_X86_64: u16 = 62;
/// Stands for a number of program headers that does not fit in the header; a section header then
/// holds the number.
const PN_XNUM: u64 = 0xffff;

/// The offsets of all parts. Segments are added in the order of their addresses.
pub struct CoreLayout {
    headers: u64,
    program_headers: Vec<u8>,
    next: u64,
}

impl CoreLayout {
    /// A layout for this many segments, and this many bytes of notes.
    pub fn new(segments: usize, notes: usize) -> Self {
        let (headers, notes) = (segments as u64 + 1, notes as u64);
        let at = HEADER + headers * PROGRAM_HEADER;
        let program_headers = program_header(PT_NOTE, 4, at, 0, notes, 0, 4);
        Self { headers, program_headers, next: (at + notes).next_multiple_of(PAGE) }
    }

    /// Offset of the notes.
    pub fn notes_at(&self) -> u64 {
        HEADER + self.headers * PROGRAM_HEADER
    }

    /// Offset of the next segment.
    pub fn next_segment(&self) -> u64 {
        self.next
    }

    /// Adds this mapping as the next segment, with `bytes` bytes in the file.
    pub fn add(&mut self, mapping: &CoreMapping, bytes: u64) {
        let flags = u32::from(mapping.executable) | u32::from(mapping.writable) << 1 | u32::from(mapping.readable) << 2;
        let memory = mapping.end - mapping.start;
        self.program_headers.extend(program_header(PT_LOAD, flags, self.next, mapping.start, bytes, memory, PAGE));
        self.next += bytes.next_multiple_of(PAGE);
    }

    /// Length of the whole file in bytes.
    pub fn end(&self) -> u64 {
        self.next + if self.is_long() { SECTION_HEADER } else { 0 }
    }

    fn is_long(&self) -> bool {
        self.headers >= PN_XNUM
    }

    /// The bytes at the beginning of the file.
    pub fn headers(&self) -> Vec<u8> {
        let mut bytes = b"\x7fELF\x02\x01\x01".to_vec();
        bytes.resize(16, 0);
        let (sections, at) = if self.is_long() { (1u16, self.next) } else { (0, 0) };
        bytes.extend([ET_CORE, EM_X86_64].into_iter().flat_map(u16::to_le_bytes));
        bytes.extend(1u32.to_le_bytes());
        bytes.extend([0, HEADER, at].into_iter().flat_map(u64::to_le_bytes));
        bytes.extend(0u32.to_le_bytes());
        let counts = [HEADER, PROGRAM_HEADER, self.headers.min(PN_XNUM), SECTION_HEADER].map(|n| n as u16);
        bytes.extend(counts.into_iter().chain([sections, 0]).flat_map(u16::to_le_bytes));
        bytes.extend(&self.program_headers);
        bytes
    }

    /// The section header that holds the number of program headers where the file's header cannot,
    /// and its offset.
    pub fn section(&self) -> Option<(u64, Vec<u8>)> {
        self.is_long().then(|| {
            let mut bytes = vec![0; SECTION_HEADER as usize];
            // sh_size: the number of sections; sh_info: that of program headers.
            bytes[32..40].copy_from_slice(&1u64.to_le_bytes());
            bytes[44..48].copy_from_slice(&(self.headers as u32).to_le_bytes());
            (self.next, bytes)
        })
    }
}

fn program_header(kind: u32, flags: u32, at: u64, address: u64, bytes: u64, memory: u64, align: u64) -> Vec<u8> {
    let mut header: Vec<u8> = [kind, flags].into_iter().flat_map(u32::to_le_bytes).collect();
    header.extend([at, address, 0, bytes, memory, align].into_iter().flat_map(u64::to_le_bytes));
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(bytes: &[u8], at: usize, length: usize) -> u64 {
        bytes[at..at + length].iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
    }

    #[test]
    fn segments_lie_behind_one_another_at_multiples_of_a_page() {
        let mut layout = CoreLayout::new(2, 1000);
        let mapping = |start: u64| {
            let mut mapping = CoreMapping::default();
            (mapping.start, mapping.end, mapping.writable) = (start, start + 0x3000, true);
            mapping
        };
        assert_eq!(layout.next_segment(), 4096);
        layout.add(&mapping(0x10000), 0x3000);
        layout.add(&mapping(0x20000), 0);
        assert_eq!(layout.end(), 4096 + 0x3000);
        let headers = layout.headers();
        assert_eq!(headers.len() as u64, layout.notes_at());
        assert_eq!((number(&headers, 16, 2), number(&headers, 56, 2)), (4, 3));
        let second = 64 + 2 * 56;
        assert_eq!((number(&headers, second, 4), number(&headers, second + 4, 4)), (1, 2));
        assert_eq!((number(&headers, second + 16, 8), number(&headers, second + 40, 8)), (0x20000, 0x3000));
        assert!(layout.section().is_none());
    }

    #[test]
    fn more_segments_than_the_header_counts_are_counted_by_a_section() {
        let layout = CoreLayout::new(70_000, 0);
        let headers = layout.headers();
        assert_eq!((number(&headers, 56, 2), number(&headers, 60, 2)), (0xffff, 1));
        let (at, section) = layout.section().expect("a section");
        assert_eq!((number(&headers, 40, 8), number(&section, 44, 4)), (at, 70_001));
        assert_eq!(layout.end(), at + 64);
    }
}
