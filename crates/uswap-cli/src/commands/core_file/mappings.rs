//! The mappings of a process, and the parts of them that belong into a core file (core(5): the
//! process's own `coredump_filter`).

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use uswap_run::page_answer::AREA_BYTES;

/// Bits of `coredump_filter`.
const PRIVATE: u32 = 1 << 0;
const SHARED: u32 = 1 << 1;
const PRIVATE_FILES: u32 = 1 << 2;
const SHARED_FILES: u32 = 1 << 3;
const ELF_HEADERS: u32 = 1 << 4;
const PRIVATE_HUGE: u32 = 1 << 5;
const SHARED_HUGE: u32 = 1 << 6;
/// The filter where the process's own cannot be read: the kernel's default.
const USUAL_FILTER: u32 = PRIVATE | SHARED | ELF_HEADERS | PRIVATE_HUGE;
/// Name of the memory with the agent's requests.
const RING: &[u8] = b"/memfd:uswap-ring";
/// First address of the kernel's half, which contains [vsyscall].
const KERNEL: u64 = 1 << 63;

/// One mapping, from its entry in smaps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CoreMapping {
    /// Address of the first byte.
    pub start: u64,
    /// Address behind the last byte.
    pub end: u64,
    /// Access rights of the program.
    pub readable: bool,
    pub writable: bool,
    pub executable: bool,
    /// Offset of the mapping in its file.
    pub offset: u64,
    /// Its file; `None`: it has none.
    pub file: Option<OsString>,
    /// The kernel's name, a path, or empty.
    name: Vec<u8>,
    is_shared: bool,
    /// Whether the mapping has pages of its own, in memory or in the kernel's swap.
    is_changed: bool,
    is_huge: bool,
    /// Whether the mapping is marked with MADV_DONTDUMP or belongs to a device.
    is_left_out: bool,
    /// Whether the mapping is registered with a userfaultfd for missing pages.
    pub is_registered: bool,
}

/// The part of a mapping that is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Nothing.
    Nothing,
    /// Its first page, if that is the beginning of an ELF file.
    Header,
    /// The pages that are present or evicted; the others read as zeros and are not touched.
    Own,
    /// Every page, by reading it.
    Whole,
}

impl CoreMapping {
    /// Whether the mapping belongs to the agent: its area, or the ring.
    pub fn is_agents(&self, area: u64) -> bool {
        let in_area = area != 0 && self.start < area + AREA_BYTES && area < self.end;
        in_area || self.name.starts_with(RING)
    }

    /// The part of the mapping that is written under this filter.
    pub fn content(&self, filter: u32) -> Content {
        let when = |bit: u32, content: Content| if filter & bit != 0 { content } else { Content::Nothing };
        if self.name == b"[vdso]" {
            return Content::Whole;
        }
        match (self.is_left_out, self.is_huge, self.is_shared, &self.file) {
            (true, ..) => Content::Nothing,
            (_, true, shared, _) => when(if shared { SHARED_HUGE } else { PRIVATE_HUGE }, Content::Whole),
            (_, _, true, _) if self.name.ends_with(b" (deleted)") => when(SHARED, Content::Whole),
            (_, _, true, _) => when(SHARED_FILES, Content::Whole),
            (.., None) => when(PRIVATE, Content::Own),
            _ if self.is_changed && filter & PRIVATE != 0 => Content::Whole,
            _ if filter & PRIVATE_FILES != 0 => Content::Whole,
            _ if self.offset == 0 && self.readable => when(ELF_HEADERS, Content::Header),
            _ => Content::Nothing,
        }
    }

    /// Whether the program has no read access.
    pub fn is_reserved(&self) -> bool {
        !(self.readable || self.writable || self.executable)
    }
}

/// The mappings of a thread's process.
///
/// # Errors
/// A message for the user: the mappings cannot be read.
pub fn of(thread: u32) -> Result<Vec<CoreMapping>, String> {
    let text =
        std::fs::read(format!("/proc/{thread}/smaps")).map_err(|error| format!("/proc/{thread}/smaps: {error}"))?;
    Ok(read(&text))
}

/// The filter of the process of a thread.
pub fn filter(thread: u32) -> u32 {
    let text = std::fs::read_to_string(format!("/proc/{thread}/coredump_filter")).unwrap_or_default();
    u32::from_str_radix(text.trim(), 16).unwrap_or(USUAL_FILTER)
}

fn read(text: &[u8]) -> Vec<CoreMapping> {
    let mut mappings: Vec<CoreMapping> = Vec::new();
    for line in text.split(|byte| *byte == b'\n') {
        match (read_first_line(line), mappings.last_mut()) {
            (Some(mapping), _) => mappings.push(mapping),
            (None, Some(mapping)) => read_detail(mapping, &String::from_utf8_lossy(line)),
            (None, None) => {}
        }
    }
    mappings.retain(|mapping| mapping.start < KERNEL);
    mappings
}

/// Parses `START-END PERMISSIONS OFFSET DEVICE INODE   NAME`.
fn read_first_line(line: &[u8]) -> Option<CoreMapping> {
    let mut rest = line;
    let mut words = [""; 5];
    for word in &mut words {
        let end = rest.iter().position(|byte| *byte == b' ')?;
        *word = std::str::from_utf8(&rest[..end]).ok()?;
        rest = rest[end..].trim_ascii_start();
    }
    let (start, end) = words[0].split_once('-')?;
    let hexadecimal = |text| u64::from_str_radix(text, 16).ok();
    let may = |letter: char| words[1].contains(letter);
    let has_file = words[4] != "0";
    let name = unescape(rest);
    Some(CoreMapping {
        start: hexadecimal(start)?,
        end: hexadecimal(end)?,
        readable: may('r'),
        writable: may('w'),
        executable: may('x'),
        is_shared: may('s'),
        offset: hexadecimal(words[2])?,
        file: has_file.then(|| OsString::from_vec(name.clone())),
        name,
        ..CoreMapping::default()
    })
}

/// Decodes a name, in which the kernel writes a line break as \012.
fn unescape(name: &[u8]) -> Vec<u8> {
    let mut name = name.to_vec();
    while let Some(at) = name.windows(4).position(|four| four == b"\\012") {
        name.splice(at..at + 4, [b'\n']);
    }
    name
}

fn read_detail(mapping: &mut CoreMapping, line: &str) {
    let Some((what, value)) = line.split_once(':') else { return };
    match what {
        "Anonymous" | "Swap" => mapping.is_changed |= value.trim() != "0 kB",
        "VmFlags" => {
            let has = |flag: &str| value.split_whitespace().any(|found| found == flag);
            mapping.is_left_out = has("dd") || has("io") || has("pf");
            mapping.is_huge = has("ht");
            mapping.is_registered = has("um");
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "55d0c000-55d0e000 r--p 00000000 fe:00 247026     /usr/bin/a b\n\
        Anonymous:             0 kB\nVmFlags: rd mr mw me \n\
        55d0e000-55d10000 rw-p 00002000 fe:00 247026     /usr/bin/a b\n\
        Anonymous:             8 kB\nSwap:                  0 kB\nVmFlags: rd wr mr mw me ac \n\
        7f000000-7f100000 rw-p 00000000 00:00 0 \n\
        VmFlags: rd wr mr mw me um \n\
        7f200000-7f300000 rw-s 00000000 00:01 7     /memfd:uswap-ring (deleted)\n\
        VmFlags: rd wr sh mr mw me \n\
        7f400000-7f500000 rw-p 00000000 00:00 0     [anon:glibc: malloc]\nVmFlags: rd wr dd \n\
        7f600000-7f601000 r-xp 00000000 00:00 0     [vdso]\nVmFlags: rd ex dd \n\
        ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0     [vsyscall]\n";

    #[test]
    fn what_smaps_tells_is_understood() {
        let mappings = read(TEXT.as_bytes());
        assert_eq!(mappings.len(), 6, "but for that of the kernel's half");
        assert_eq!((mappings[1].start, mappings[1].end, mappings[1].offset), (0x55d0_e000, 0x55d1_0000, 0x2000));
        assert_eq!(mappings[0].file.as_deref(), Some("/usr/bin/a b".as_ref()));
        assert!(mappings[2].file.is_none() && mappings[2].is_registered && !mappings[0].is_registered);
        assert!(mappings[3].is_agents(0) && mappings[2].is_agents(0x7f00_0000) && !mappings[4].is_agents(0));
        assert_eq!(unescape(b"/a\\012b"), b"/a\nb");
    }

    #[test]
    fn the_filter_chooses_what_is_written() {
        let contents: Vec<Content> = read(TEXT.as_bytes()).iter().map(|mapping| mapping.content(0x33)).collect();
        let (nothing, whole) = (Content::Nothing, Content::Whole);
        assert_eq!(contents, [Content::Header, whole, Content::Own, whole, nothing, whole]);
        let own = |filter| read(TEXT.as_bytes())[2].content(filter);
        assert_eq!((own(0), own(1)), (nothing, Content::Own));
        assert_eq!(read(TEXT.as_bytes())[0].content(4), whole);
    }
}
