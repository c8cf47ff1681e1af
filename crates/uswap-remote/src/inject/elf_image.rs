//! The agent's image as a loader sees it: the segments to map, and the words to write.
//!
//! In a program without a dynamic loader the engine takes the loader's place. The image needs
//! little: segments, relative relocations, and zeros for the functions of a C library that it can
//! do without (elf(5), System V ABI for x86-64).

use uswap_core::PAGE;
use uswap_sys::procfs::maps::Maps;
use uswap_sys::procfs::vmread::{self, RemoteRange};

use crate::agent::image::IMAGE;
use crate::agent::image_file::PREFIX;

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const RELATIVE: u32 = 8;
const DT_RELA: u64 = 7;
const DT_RELASZ: u64 = 8;
const WRITABLE: u32 = 2;
/// The memfd's name in the maps of a process that has it mapped.
const NAME: &str = "/memfd:uswap-agent.so";
const AREA_MARKER: &[u8] = b"uswap:area:uswap";

/// One segment of the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Its offset from the image's base; page-aligned, as are its length and its offset in the
    /// file.
    pub address: u64,
    /// Bytes.
    pub length: u64,
    /// Its offset in the file.
    pub offset: u64,
    /// Its bytes in the file; the rest of the segment is zeros.
    pub stored: u64,
    /// PROT_* bits.
    pub protection: u64,
}

/// The segments to map, and the words to write.
#[derive(Debug)]
pub struct ImageLayout {
    /// The segments.
    pub segments: Vec<Segment>,
    /// Bytes of address space in all.
    pub span: u64,
    /// Entry point of the agent's thread, as an offset from the base.
    pub entry: u64,
    /// Place and value of each word that holds an address, both as offsets from the base.
    relative: Vec<(u64, u64)>,
    /// Offset of the word that holds the address of the agent's area.
    area_word: u64,
}

impl ImageLayout {
    /// The layout of the image that is embedded in the binary.
    ///
    /// # Panics
    /// When the image is not what the build script makes.
    pub fn of_agent() -> Self {
        Self::of(IMAGE)
    }

    fn of(image: &[u8]) -> Self {
        let word = |at: usize| u64::from_le_bytes(image[at..at + 8].try_into().expect("eight bytes"));
        let half = |at: usize| u32::from_le_bytes(image[at..at + 4].try_into().expect("four bytes"));
        let count = usize::from(u16::from_le_bytes([image[56], image[57]]));
        let headers: Vec<usize> = (0..count).map(|i| word(32) as usize + 56 * i).collect();
        let mut segments = Vec::new();
        let (mut dynamic, mut file_to_memory) = (0, Vec::new());
        for at in headers {
            let (kind, flags, offset, address) = (half(at), half(at + 4), word(at + 8), word(at + 16));
            if kind == PT_DYNAMIC {
                dynamic = offset as usize;
            }
            if kind == PT_LOAD {
                // PF_X, PF_W, PF_R to PROT_READ, PROT_WRITE, PROT_EXEC.
                let protection = u64::from(flags >> 2 & 1 | flags & WRITABLE | (flags & 1) << 2);
                let (cut, stored) = (address % PAGE, word(at + 32));
                let length = (word(at + 40) + cut).next_multiple_of(PAGE);
                file_to_memory.push((offset, stored, address));
                let (address, offset, stored) = (address - cut, offset - cut, stored + cut);
                segments.push(Segment { address, length, offset, stored, protection });
            }
        }
        let entries = || (dynamic..).step_by(16).map(|at| (word(at), word(at + 8))).take_while(|(tag, _)| *tag != 0);
        let find = |wanted: u64| entries().find(|(tag, _)| *tag == wanted).map_or(0, |(_, value)| value as usize);
        // The relocations lie in the first segment, where file and memory are the same.
        let relocations = (find(DT_RELA)..find(DT_RELA) + find(DT_RELASZ)).step_by(24);
        let relative = relocations.filter(|at| word(at + 8) as u32 == RELATIVE).map(|at| (word(at), word(at + 16)));
        let marker = image.windows(AREA_MARKER.len()).position(|w| w == AREA_MARKER).expect("a marker") as u64;
        let in_memory = |(offset, length, address): &(u64, u64, u64)| {
            (*offset..offset + length).contains(&marker).then(|| marker - offset + address)
        };
        let area_word = file_to_memory.iter().find_map(in_memory).expect("a segment") + AREA_MARKER.len() as u64;
        let span = segments.iter().map(|s| s.address + s.length).max().expect("segments");
        Self { span, entry: word(24), relative: relative.collect(), area_word, segments }
    }

    /// Length that a file must have for all segments to be mapped from it: pages behind its end
    /// cannot be touched.
    #[cfg(test)]
    pub fn file_span(&self) -> u64 {
        self.segments.iter().map(|segment| segment.offset + segment.length).max().expect("segments")
    }

    /// Content of a writable segment when the image lies at `base`.
    pub fn content(&self, segment: &Segment, base: u64) -> Vec<u8> {
        let mut bytes = vec![0; segment.length as usize];
        let (from, stored) = (segment.offset as usize, segment.stored as usize);
        bytes[..stored].copy_from_slice(&IMAGE[from..from + stored]);
        for (place, value) in &self.relative {
            if let Some(at) = place.checked_sub(segment.address).filter(|at| at + 8 <= segment.length) {
                bytes[at as usize..at as usize + 8].copy_from_slice(&(base + value).to_le_bytes());
            }
        }
        bytes
    }

    /// Looks up which parts of the agent a process has already.
    pub fn find_in(&self, pid: u32) -> Found {
        let Some(base) = base_in(pid) else { return Found::Nothing };
        let mut bytes = [0u8; 16];
        let range = RemoteRange { start: base + self.area_word, length: 16 };
        if !vmread::read(pid, &[range], &mut bytes).is_ok_and(|n| n == 16) {
            return Found::Preloaded;
        }
        let [area, brought] =
            [&bytes[..8], &bytes[8..]].map(|b| u64::from_le_bytes(b.try_into().expect("eight bytes")));
        if area > PAGE && brought == area { Found::Inherited { base, area } } else { Found::Preloaded }
    }
}

/// The parts of the agent that a process has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// Nothing.
    Nothing,
    /// The image, loaded by the program's own loader; it starts an agent in the process and in its
    /// fork children.
    Preloaded,
    /// The image and the area, injected into this process or into its parent: only the attacher
    /// starts an agent here.
    Inherited {
        /// Address of the image.
        base: u64,
        /// Address of the area.
        area: u64,
    },
}

/// Address of the image in a process that has it.
fn base_in(pid: u32) -> Option<u64> {
    let maps = Maps::open(pid).ok()?;
    let mut at = 0;
    while let Ok(Some(mapping)) = maps.covering_or_next(at) {
        if is_image(&mapping.name) {
            return Some(mapping.start);
        }
        at = mapping.end;
    }
    None
}

/// Whether the name of a mapping is that of the memfd or of the image file.
fn is_image(name: &str) -> bool {
    name.starts_with(NAME) || name.rsplit('/').next().is_some_and(|name| name.starts_with(PREFIX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_image_is_known_by_its_names_wherever_it_lies() {
        let names = [
            "/memfd:uswap-agent.so (deleted)",
            "/run/uswap-agent-0123456789abcdef.so",
            "/run/uswap-agent-0.so (deleted)",
        ];
        assert!(names.iter().all(|name| is_image(name)));
        for other in
            ["", "[heap]", "/memfd:uswap-ring (deleted)", "/srv/uswap/target/uswap", "/srv/uswap-agent-x/program"]
        {
            assert!(!is_image(other), "{other}");
        }
    }

    #[test]
    fn the_image_is_mapped_without_gaps_and_never_writable_and_executable() {
        let layout = ImageLayout::of_agent();
        assert!(layout.segments.iter().all(|s| s.address.is_multiple_of(PAGE) && s.offset.is_multiple_of(PAGE)));
        assert!(layout.segments.iter().all(|s| s.protection & 6 != 6 && s.protection & 1 == 1));
        let code = layout.segments.iter().find(|s| s.protection & 4 != 0).expect("code");
        assert!((code.address..code.address + code.length).contains(&layout.entry));
        let ends = layout.segments.iter().map(|s| s.address + s.length);
        assert!(ends.zip(layout.segments.iter().skip(1)).all(|(end, next)| end <= next.address));
    }

    /// Some linkers store no zeros (.bss): bytes of the file behind the stored part of a segment do
    /// not belong to it.
    #[test]
    fn what_a_segment_does_not_have_in_the_file_is_zeros() {
        let mut image = IMAGE.to_vec();
        let writable = |at: &usize| image[*at] == PT_LOAD as u8 && u32::from(image[at + 4]) & WRITABLE != 0;
        let at = (0..usize::from(image[56])).map(|i| image[32] as usize + 56 * i).find(writable).expect("data");
        let stored = u64::from_le_bytes(image[at + 32..at + 40].try_into().expect("eight bytes"));
        image[at + 40..at + 48].copy_from_slice(&(stored + 2 * PAGE).to_le_bytes());
        let layout = ImageLayout::of(&image);
        let data = layout.segments.iter().find(|s| s.protection & 2 != 0).expect("data");
        assert!(data.length >= stored + 2 * PAGE && layout.file_span() >= data.offset + data.length);
        let bytes = layout.content(data, 0x10000);
        assert!(
            bytes[data.stored as usize..].iter().all(|byte| *byte == 0),
            "something of the file lies behind its data"
        );
        assert!(bytes[..data.stored as usize].iter().any(|byte| *byte != 0));
    }

    #[test]
    fn every_address_lies_in_the_image_and_every_word_in_a_writable_segment() {
        let layout = ImageLayout::of_agent();
        let writable = |at: u64| {
            layout.segments.iter().any(|s| s.protection & 2 != 0 && (s.address..s.address + s.length - 7).contains(&at))
        };
        assert!(!layout.relative.is_empty() && writable(layout.area_word));
        assert!(layout.relative.iter().all(|(place, value)| writable(*place) && *value < layout.span));
        let data = layout.segments.iter().find(|s| s.protection & 2 != 0).expect("data");
        let bytes = layout.content(data, 0x10000);
        let (place, value) = layout.relative[0];
        let at = (place - data.address) as usize;
        assert_eq!(u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight")), 0x10000 + value);
    }

    #[test]
    fn a_process_without_the_image_has_none() {
        assert_eq!(ImageLayout::of_agent().find_in(std::process::id()), Found::Nothing);
    }
}
