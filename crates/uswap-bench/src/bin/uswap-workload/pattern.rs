//! The order in which pages are visited.

use clap::ValueEnum;

use crate::sequence::{SequenceRandom, ZipfSequence, scatter};

/// The order in which a thread visits its pages.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum TouchPattern {
    /// One page after the other, again and again
    Seq,
    /// Every 16th page, then the same from the next page on
    Stride,
    /// Each page as likely as any other
    Random,
    /// Zipf with exponent 0.5: a broad middle
    #[value(name = "zipf-0.5")]
    ZipfHalf,
    /// Zipf with exponent 1.2: a small hot set
    #[value(name = "zipf-1.2")]
    ZipfHot,
    /// Each page holds the number of the next: no visit can begin before the one before it has
    /// ended
    Chase,
}

const STRIDE: u64 = 16;

/// The state of a pattern over `pages` pages.
#[derive(Debug)]
pub struct Walk {
    pattern: TouchPattern,
    pages: u64,
    step: u64,
    zipf: Option<ZipfSequence>,
    /// The next page of the chain.
    pub link: u64,
}

impl Walk {
    /// The beginning of a walk.
    pub fn new(pattern: TouchPattern, pages: u64) -> Self {
        let zipf = match pattern {
            TouchPattern::ZipfHalf => Some(ZipfSequence::new(pages, 0.5)),
            TouchPattern::ZipfHot => Some(ZipfSequence::new(pages, 1.2)),
            _ => None,
        };
        Self { pattern, pages, step: 0, zipf, link: 0 }
    }

    /// The next page to visit.
    pub fn next(&mut self, random: &mut SequenceRandom) -> u64 {
        let n = self.step;
        self.step += 1;
        match (self.pattern, &self.zipf) {
            (TouchPattern::Seq, _) => n % self.pages,
            (TouchPattern::Stride, _) => strided(n % self.pages, self.pages),
            (TouchPattern::Chase, _) => self.link,
            (_, Some(zipf)) => scatter(zipf.sample(random) - 1, self.pages),
            (_, None) => random.below(self.pages),
        }
    }
}

/// The n-th page when the columns of a table with rows of 16 pages are read one after the other.
fn strided(n: u64, pages: u64) -> u64 {
    let rows = pages.div_ceil(STRIDE);
    // The last row may be short: the columns beyond it have one page less.
    let long = match pages % STRIDE {
        0 => STRIDE,
        rest => rest,
    };
    if n < long * rows {
        n % rows * STRIDE + n / rows
    } else {
        let n = n - long * rows;
        n % (rows - 1) * STRIDE + long + n / (rows - 1)
    }
}

/// One cycle through all pages in random order (Sattolo): `links[p]` follows page `p`.
pub fn cycle(pages: usize, random: &mut SequenceRandom) -> Vec<u32> {
    let mut links: Vec<u32> = (0..pages as u32).collect();
    for i in (1..pages).rev() {
        links.swap(i, random.below(i as u64) as usize);
    }
    links
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strides_visit_every_page_once() {
        for pages in [1, 15, 16, 17, 160, 1003] {
            let mut seen: Vec<u64> = (0..pages).map(|n| strided(n, pages)).collect();
            seen.sort_unstable();
            assert!(seen.iter().copied().eq(0..pages), "{pages}");
        }
    }

    #[test]
    fn the_chain_passes_every_page_before_it_returns() {
        let links = cycle(1000, &mut SequenceRandom::new(3));
        let (mut at, mut steps) = (links[0], 1);
        while at != 0 {
            at = links[at as usize];
            steps += 1;
        }
        assert_eq!(steps, 1000);
    }
}
