//! Pages of real programs: a fair sample of the anonymous memory of a command and its children, for
//! measuring compressors.
//!
//! While the command runs, its process tree is sampled again and again. Each look takes some random
//! pages of all that are present in private writable memory; of all pages that were taken, each has
//! the same chance to be in the final sample (Vitter's algorithm R). Pages that consist of one
//! repeated word are counted and left out: they are no work for a compressor.

use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use uswap_core::{PAGE_SIZE, PageBuf, same_filled};
use uswap_sys::procfs::maps::Maps;
use uswap_sys::procfs::pagemap::{Pagemap, PresentRun};
use uswap_sys::procfs::vmread::{self, RemoteRange};

/// Time between two looks.
const PERIOD: Duration = Duration::from_millis(20);
/// Maximum number of pages taken in one look.
const PER_LOOK: u64 = 400;

/// The pages that were taken, and counts.
#[derive(Default)]
pub struct PageSample {
    /// The pages of the sample.
    pub pages: Vec<PageBuf>,
    /// Number of neighbouring pages that are taken at a time.
    neighbours: usize,
    /// Number of pages looked at that are not one repeated word, and number of those that are.
    pub seen: [u64; 2],
}

/// A xorshift generator: the same random numbers in each run.
struct SampleRandom(u64);

impl SampleRandom {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n.max(1)
    }
}

/// Runs the command and takes at most `most` pages of it and its children, in groups of
/// `neighbours` pages (aligned, no page of one repeated word). The output of the command is
/// discarded.
///
/// # Errors
/// A message for the user: the command cannot be started, or it fails.
pub fn take(command: &[OsString], folder: &Path, most: usize, neighbours: usize) -> Result<PageSample, String> {
    let name = command[0].to_string_lossy();
    let mut child = Command::new(&command[0])
        .args(&command[1..])
        .current_dir(folder)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .map_err(|error| format!("{name}: {error}"))?;
    let (mut sample, mut random) =
        (PageSample { neighbours, ..PageSample::default() }, SampleRandom(0x9E37_79B9_7F4A_7C15));
    loop {
        if let Some(status) = child.try_wait().map_err(|error| format!("{name}: {error}"))? {
            return if status.success() { Ok(sample) } else { Err(format!("{name}: {status}")) };
        }
        let tree = tree_of(child.id());
        let share = PER_LOOK.div_ceil(tree.len() as u64);
        tree.iter().for_each(|pid| look(*pid, share, most, &mut sample, &mut random));
        std::thread::sleep(PERIOD);
    }
}

/// A process and its descendants.
fn tree_of(root: u32) -> Vec<u32> {
    let mut tree = vec![root];
    let mut next = 0;
    while next < tree.len() {
        let text = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", tree[next])).unwrap_or_default();
        tree.extend(text.split_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
        next += 1;
    }
    tree
}

/// Takes pages of one process. A process that ends meanwhile is skipped.
fn look(pid: u32, count: u64, most: usize, sample: &mut PageSample, random: &mut SampleRandom) {
    let Some(runs) = present(pid) else { return };
    let pages = runs.iter().map(|run| (run.end - run.start) / PAGE_SIZE as u64).sum::<u64>();
    for _ in 0..count.min(pages) {
        let mut number = random.below(pages);
        let Some((address, run)) = runs.iter().find_map(|run| {
            let here = (run.end - run.start) / PAGE_SIZE as u64;
            let found = (number < here).then_some((run.start + number * PAGE_SIZE as u64, run));
            number = number.saturating_sub(here);
            found
        }) else {
            return;
        };
        let length = (sample.neighbours * PAGE_SIZE) as u64;
        let start = address / length * length;
        let mut pages = vec![[0; PAGE_SIZE]; sample.neighbours];
        let range = RemoteRange { start, length };
        let whole = run.start <= start && start + length <= run.end;
        if whole && vmread::read(pid, &[range], pages.as_flattened_mut()).is_ok_and(|n| n as u64 == length) {
            sample.add(&pages, most, random);
        }
    }
}

impl PageSample {
    fn add(&mut self, pages: &[PageBuf], most: usize, random: &mut SampleRandom) {
        let count = pages.len();
        if pages.iter().any(|page| same_filled(page).is_some()) {
            self.seen[1] += count as u64;
            return;
        }
        self.seen[0] += count as u64;
        if self.pages.len() + count <= most {
            return self.pages.extend_from_slice(pages);
        }
        let place = random.below(self.seen[0] / count as u64) as usize * count;
        if let Some(places) = self.pages.get_mut(place..place + count) {
            places.copy_from_slice(pages);
        }
    }
}

/// The present pages of private writable anonymous memory.
fn present(pid: u32) -> Option<Vec<PresentRun>> {
    let (maps, pagemap) = (Maps::open(pid).ok()?, Pagemap::open(pid).ok()?);
    let (mut all, mut from) = (Vec::new(), 0);
    let mut runs = [PresentRun::default(); 256];
    while let Some(mapping) = maps.writable_or_next(from).ok()? {
        let mut at = mapping.start;
        while mapping.plain_anonymous && at < mapping.end {
            let (count, next) = pagemap.present(at, mapping.end, &mut runs).ok()?;
            all.extend_from_slice(&runs[..count]);
            at = next;
        }
        from = mapping.end;
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Samples a child that fills memory with known content.
    #[test]
    fn a_sample_holds_pages_of_the_command_and_its_children() {
        let script = "x = bytes(range(256)) * 160000; import time; time.sleep(0.8)";
        let words = ["sh", "-c", "python3 -c \"$0\" & wait", script].map(OsString::from);
        let sample = take(&words, Path::new("/"), 500, 1).expect("python3");
        assert!(sample.pages.len() == 500 && sample.seen[0] >= 500, "{:?}", sample.seen);
        let known = sample
            .pages
            .iter()
            .filter(|page| page[8..].starts_with(&[page[7].wrapping_add(1), page[7].wrapping_add(2)]));
        assert!(known.count() > 250, "most of its memory is that pattern");
        let sample = take(&words, Path::new("/"), 500, 4).expect("python3");
        let ends_where_next_begins = |pair: &[PageBuf]| pair[0][PAGE_SIZE - 1].wrapping_add(1) == pair[1][0];
        let together = sample.pages.chunks(4).filter(|unit| unit.windows(2).all(ends_where_next_begins)).count();
        assert!(sample.pages.len() == 500 && together > 60, "{together} units of neighbours");
        assert!(take(&["/no/such/command".into()], Path::new("/"), 1, 1).is_err());
        assert!(take(&["false".into()], Path::new("/"), 1, 1).is_err());
    }
}
