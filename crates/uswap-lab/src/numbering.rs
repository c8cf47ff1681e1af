//! The first reading of a trace: it numbers the pages from zero in the order of their first access,
//! so that policies can index arrays by page.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::policies::{Knowledge, NEVER};
use crate::trace::{Trace, TraceError};

/// Longest trace whose next uses are kept for `opt`: 4 bytes of memory per access, 1 GiB in all.
pub const LONGEST_FOR_OPT: usize = 1 << 28;
/// Number of accesses that the simulators get at a time: 64 KiB, which stay in the cache while one
/// simulator after the other reads them.
const BLOCK: usize = 1 << 14;

/// A hasher that multiplies by an odd constant; page numbers are not chosen by an attacker.
#[derive(Clone, Copy, Debug, Default)]
struct PageNumberHasher(u64);

impl Hasher for PageNumberHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u64(&mut self, number: u64) {
        let product = (self.0 ^ number).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.0 = product ^ product >> 32;
    }
}

/// The result of the first reading.
#[derive(Clone, Debug)]
pub struct Numbering {
    path: PathBuf,
    numbers: HashMap<u64, u32, BuildHasherDefault<PageNumberHasher>>,
    accesses: u64,
    next_uses: Arc<Vec<u32>>,
}

impl Numbering {
    /// Reads the whole trace; keeps the next uses if `with_next_uses`.
    ///
    /// # Errors
    /// The trace cannot be read, is empty, or is too long for the next uses.
    pub fn read(path: &Path, with_next_uses: bool) -> Result<Self, TraceError> {
        let mut numbering =
            Self { path: path.into(), numbers: HashMap::default(), accesses: 0, next_uses: Arc::default() };
        let mut next_uses = Vec::new();
        let mut last_uses: Vec<u32> = Vec::new();
        let mut trace = Trace::open(path)?;
        while let Some(page) = trace.next_page()? {
            let number = numbering.number(page)?;
            if with_next_uses {
                note_use(&mut next_uses, &mut last_uses, number).map_err(|text| TraceError::of_file(path, text))?;
            }
            numbering.accesses += 1;
        }
        if numbering.accesses == 0 {
            return Err(TraceError::of_file(path, "there is no page number in it"));
        }
        numbering.next_uses = Arc::new(next_uses);
        Ok(numbering)
    }

    fn number(&mut self, page: u64) -> Result<u32, TraceError> {
        let next = self.numbers.len();
        if next == NEVER as usize {
            return Err(TraceError::of_file(&self.path, "has more than 4294967295 distinct pages"));
        }
        Ok(*self.numbers.entry(page).or_insert(next as u32))
    }

    /// Number of distinct pages.
    pub fn distinct(&self) -> usize {
        self.numbers.len()
    }

    /// Number of accesses.
    pub fn accesses(&self) -> u64 {
        self.accesses
    }

    /// The properties of the trace that a policy gets beforehand.
    pub fn knowledge(&self) -> Knowledge {
        Knowledge { distinct: self.distinct(), next_uses: Arc::clone(&self.next_uses) }
    }

    /// The second reading: passes the trace to `take` in blocks of page numbers.
    ///
    /// # Errors
    /// The trace cannot be read, or has changed since the first reading.
    pub fn replay(&self, mut take: impl FnMut(&[u32])) -> Result<(), TraceError> {
        let changed = || TraceError::of_file(&self.path, "changed while it was read");
        let mut trace = Trace::open(&self.path)?;
        let mut block = Vec::with_capacity(BLOCK);
        let mut left = self.accesses;
        while let Some(page) = trace.next_page()? {
            block.push(*self.numbers.get(&page).ok_or_else(changed)?);
            left = left.checked_sub(1).ok_or_else(changed)?;
            if block.len() == BLOCK {
                take(&block);
                block.clear();
            }
        }
        take(&block);
        if left == 0 { Ok(()) } else { Err(changed()) }
    }
}

/// Access number `next_uses.len()` is to the page `number`; stores it as the next use of the page's
/// previous access.
fn note_use(next_uses: &mut Vec<u32>, last_uses: &mut Vec<u32>, number: u32) -> Result<(), String> {
    let now = next_uses.len();
    if now == LONGEST_FOR_OPT {
        return Err(format!(
            "has more than {LONGEST_FOR_OPT} accesses, of which opt would need 4 bytes each in memory: leave opt out"
        ));
    }
    if number as usize == last_uses.len() {
        last_uses.push(NEVER);
    }
    let last = std::mem::replace(&mut last_uses[number as usize], now as u32);
    if last != NEVER {
        next_uses[last as usize] = now as u32;
    }
    next_uses.push(NEVER);
    Ok(())
}

/// The next use of each access of a trace in memory.
pub fn next_uses(pages: &[u32]) -> Vec<u32> {
    let mut next_uses = vec![NEVER; pages.len()];
    let mut seen = HashMap::new();
    for (index, page) in pages.iter().enumerate() {
        if let Some(last) = seen.insert(page, index) {
            next_uses[last] = index as u32;
        }
    }
    next_uses
}
