//! The format of the file that says what the devices of a mount hold (`--keep FILE`).
//!
//! ```text
//! "uswap kept pages\n"  seed 8  source: length 2, bytes  devices: number 1, each: length 2, name
//! part   number of pages 2, inode 8, size 8, modified 8 4, changed 8 4, pages: number 8, object 16
//! ...
//! end    0 2, checksum 8 (of all before it)
//! ```
//! All numbers are little endian. A part has pages of one file, and the stamp of the file when
//! they were right. The file is written anew as a whole, and read twice: what it says counts only
//! if all of it is there.

use std::io::{self, Read, Write};

use uswap_store::KeptObject;
use xxhash_rust::xxh3::Xxh3;

const MAGIC: &[u8; 17] = b"uswap kept pages\n";
/// The most pages of a part.
pub const MOST_PAGES: usize = 512;
/// The longest name of a device or of the source, in bytes.
const LONGEST_NAME: usize = 4096;

/// The part that holds for all pages.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeptHead {
    /// The seed of the checksums of pages.
    pub seed: u64,
    /// The folder whose files are cached.
    pub source: Vec<u8>,
    /// The devices; an object names one by its place here.
    pub devices: Vec<String>,
}

/// Pages of a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeptPart {
    /// The number of the file.
    pub inode: u64,
    /// Its size in bytes.
    pub size: u64,
    /// Its times of modification and of change: seconds, nanoseconds.
    pub times: [(i64, u32); 2],
    /// Number of each page in the file, and where it is.
    pub pages: Vec<(u64, KeptObject)>,
}

/// Writes the file.
pub struct IndexWriter<W> {
    to: W,
    sum: Xxh3,
}

impl<W: Write> IndexWriter<W> {
    /// Begins with the head.
    ///
    /// # Errors
    /// Of the writer; a name that is too long, too many devices.
    pub fn new(to: W, head: &KeptHead) -> io::Result<Self> {
        let mut writer = Self { to, sum: Xxh3::new() };
        writer.put(MAGIC)?;
        writer.put(&head.seed.to_le_bytes())?;
        writer.put_name(&head.source)?;
        let count = u8::try_from(head.devices.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        writer.put(&[count])?;
        head.devices.iter().try_for_each(|name| writer.put_name(name.as_bytes()))?;
        Ok(writer)
    }

    /// Writes a part, which has pages.
    ///
    /// # Errors
    /// Of the writer; too many pages.
    pub fn part(&mut self, part: &KeptPart) -> io::Result<()> {
        let count = part.pages.len();
        if count == 0 || count > MOST_PAGES {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut bytes = Vec::with_capacity(64 + count * 24);
        bytes.extend((count as u16).to_le_bytes());
        bytes.extend(part.inode.to_le_bytes());
        bytes.extend(part.size.to_le_bytes());
        for (seconds, nanoseconds) in part.times {
            bytes.extend(seconds.to_le_bytes());
            bytes.extend(nanoseconds.to_le_bytes());
        }
        for (page, object) in &part.pages {
            bytes.extend(page.to_le_bytes());
            object.to_words().iter().for_each(|word| bytes.extend(word.to_le_bytes()));
        }
        self.put(&bytes)
    }

    /// Writes the end.
    ///
    /// # Errors
    /// Of the writer.
    pub fn finish(mut self) -> io::Result<W> {
        self.put(&0u16.to_le_bytes())?;
        let sum = self.sum.digest();
        self.to.write_all(&sum.to_le_bytes())?;
        self.to.flush()?;
        Ok(self.to)
    }

    fn put_name(&mut self, name: &[u8]) -> io::Result<()> {
        if name.len() > LONGEST_NAME {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a name is too long"));
        }
        self.put(&(name.len() as u16).to_le_bytes())?;
        self.put(name)
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.sum.update(bytes);
        self.to.write_all(bytes)
    }
}

/// Reads such a file: hands each part to `each`, with the head.
///
/// # Errors
/// Of the reader; `UnexpectedEof` or `InvalidData`: it is not whole, and the parts that were handed
/// over may be wrong. `Unsupported`: it is a file of another kind.
pub fn read(from: impl Read, mut each: impl FnMut(&KeptHead, KeptPart)) -> io::Result<KeptHead> {
    let mut reader = IndexReader { from, sum: Xxh3::new() };
    let head = reader.head()?;
    while let Some(part) = reader.part()? {
        each(&head, part);
    }
    let sum = reader.sum.digest();
    let mut told = [0; 8];
    reader.from.read_exact(&mut told)?;
    if u64::from_le_bytes(told) != sum {
        return Err(broken("its checksum is wrong"));
    }
    Ok(head)
}

fn broken(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

struct IndexReader<R> {
    from: R,
    sum: Xxh3,
}

impl<R: Read> IndexReader<R> {
    fn take<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.from.read_exact(&mut bytes)?;
        self.sum.update(&bytes);
        Ok(bytes)
    }

    fn number(&mut self) -> io::Result<u64> {
        self.take().map(u64::from_le_bytes)
    }

    fn name(&mut self) -> io::Result<Vec<u8>> {
        let length = usize::from(u16::from_le_bytes(self.take()?));
        if length > LONGEST_NAME {
            return Err(broken("a name is too long"));
        }
        let mut bytes = vec![0; length];
        self.from.read_exact(&mut bytes)?;
        self.sum.update(&bytes);
        Ok(bytes)
    }

    fn head(&mut self) -> io::Result<KeptHead> {
        let is_ours = self.take().is_ok_and(|magic| magic == *MAGIC);
        if !is_ours {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "it holds something else"));
        }
        let (seed, source) = (self.number()?, self.name()?);
        let [count] = self.take()?;
        let device = |_| String::from_utf8(self.name()?).map_err(|_| broken("the name of a device is no text"));
        let devices = (0..count).map(device).collect::<io::Result<_>>()?;
        Ok(KeptHead { seed, source, devices })
    }

    /// `None`: the end, behind which the checksum stands.
    fn part(&mut self) -> io::Result<Option<KeptPart>> {
        let count = usize::from(u16::from_le_bytes(self.take()?));
        if count > MOST_PAGES {
            return Err(broken("a part has too many pages"));
        }
        if count == 0 {
            return Ok(None);
        }
        let (inode, size) = (self.number()?, self.number()?);
        let mut times = [(0, 0); 2];
        for time in &mut times {
            *time = (i64::from_le_bytes(self.take()?), u32::from_le_bytes(self.take()?));
        }
        let mut pages = Vec::with_capacity(count);
        for _ in 0..count {
            let (page, words) = (self.number()?, [self.number()?, self.number()?]);
            pages.push((page, KeptObject::from_words(words).ok_or_else(|| broken("no object lies like that"))?));
        }
        Ok(Some(KeptPart { inode, size, times, pages }))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn part() -> impl Strategy<Value = KeptPart> {
        let page = (0u64..1 << 34, any::<u64>(), 0u64..1 << 40, 1u64..64);
        let times = [any::<(i64, u32)>(), any::<(i64, u32)>()];
        (any::<[u64; 2]>(), times, prop::collection::vec(page, 1..20)).prop_map(|([inode, size], times, pages)| {
            let object = |check, place: u64, units| KeptObject::from_words([check, place << 24 >> 1 << 9 | units]);
            let pages =
                pages.into_iter().filter_map(|(page, check, place, units)| Some((page, object(check, place, units)?)));
            KeptPart { inode, size, times, pages: pages.collect() }
        })
    }

    fn written(head: &KeptHead, parts: &[KeptPart]) -> Vec<u8> {
        let mut writer = IndexWriter::new(Vec::new(), head).expect("a head");
        parts.iter().for_each(|part| writer.part(part).expect("a part"));
        writer.finish().expect("an end")
    }

    fn parts_of(bytes: &[u8]) -> io::Result<(KeptHead, Vec<KeptPart>)> {
        let mut parts = Vec::new();
        read(bytes, |_, part| parts.push(part)).map(|head| (head, parts))
    }

    fn head() -> KeptHead {
        KeptHead { seed: 7, source: b"/mnt/a\xFFb".to_vec(), devices: vec!["/var/swap".into(), "nbd://x/y".into()] }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(parts in prop::collection::vec(part(), 0..20)) {
            let parts: Vec<KeptPart> = parts.into_iter().filter(|part| !part.pages.is_empty()).collect();
            prop_assert_eq!(parts_of(&written(&head(), &parts)).expect("whole"), (head(), parts));
        }

        /// A file that was cut off, or of which any byte is another one, is refused.
        #[test]
        fn what_is_damaged_is_refused(parts in prop::collection::vec(part(), 1..4), at: prop::sample::Index, by in 1u8..) {
            let parts: Vec<KeptPart> = parts.into_iter().filter(|part| !part.pages.is_empty()).collect();
            let whole = written(&head(), &parts);
            let at = at.index(whole.len());
            prop_assert!(parts_of(&whole[..at]).is_err());
            let mut damaged = whole;
            damaged[at] ^= by;
            prop_assert!(parts_of(&damaged).is_err());
        }
    }

    #[test]
    fn other_files_are_told_from_broken_ones() {
        let kind = |bytes: &[u8]| parts_of(bytes).expect_err("no such file").kind();
        assert_eq!(kind(b"#!/bin/sh\necho nothing of ours\n"), io::ErrorKind::Unsupported);
        assert_eq!(kind(b""), io::ErrorKind::Unsupported);
        let whole = written(&head(), &[]);
        assert_eq!(kind(&whole[..whole.len() - 1]), io::ErrorKind::UnexpectedEof);
    }
}
