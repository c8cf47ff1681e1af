//! Traces made by rule, the same for the same seed on every machine.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;

use crate::compact;

/// What the accesses follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TracePattern {
    /// Independent draws; the page of rank `r` is drawn with a weight of `r` to the power of minus
    /// the exponent.
    Zipf,
    /// All pages in order, round and round.
    Loop,
    /// Zipf over the first tenth of the pages; now and then the rest is read in order, once
    /// through, as by a backup: it takes half of the accesses.
    Scan,
    /// Zipf over an eighth of the pages; ten times over the whole length it is another eighth.
    Phases,
    /// Each page names the next, in one random cycle through all of them.
    Chase,
}

impl TracePattern {
    /// All of them with their names and what they are.
    pub const ALL: [(Self, &'static str, &'static str); 5] = [
        (Self::Zipf, "zipf", "independent draws, few pages often and many seldom"),
        (Self::Loop, "loop", "all pages in order, round and round"),
        (Self::Scan, "scan", "zipf over a tenth of the pages, with scans of the others in between"),
        (Self::Phases, "phases", "zipf over an eighth of the pages, which changes ten times"),
        (Self::Chase, "chase", "each page names the next, in one random cycle"),
    ];
}

/// What is to be made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TraceRecipe {
    /// What the accesses follow.
    pub pattern: TracePattern,
    /// Pages at most, numbered from 0.
    pub pages: u32,
    /// Accesses.
    pub length: u64,
    /// Of the generator of random numbers.
    pub seed: u64,
    /// Of the zipf distribution; 0 is uniform.
    pub exponent: f64,
}

impl TraceRecipe {
    /// Hands over one page after the other.
    ///
    /// # Errors
    /// The recipe has no pages or an exponent that is no number from 0 to 10, or an error of
    /// `take`.
    pub fn generate(&self, mut take: impl FnMut(u64) -> io::Result<()>) -> io::Result<()> {
        let unsound = |reason: String| Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
        if self.pages == 0 {
            return unsound("a trace needs at least one page".into());
        }
        if !(0.0..=10.0).contains(&self.exponent) {
            return unsound(format!("an exponent of {} is not between 0 and 10", self.exponent));
        }
        let mut next = self.next_page();
        (0..self.length).try_for_each(|at| take(u64::from(next(at))))
    }

    /// The page of the access with a given index; to be asked for in order.
    fn next_page(&self) -> Box<dyn FnMut(u64) -> u32> {
        let mut random = TraceRandom(self.seed);
        match self.pattern {
            TracePattern::Loop => {
                let pages = u64::from(self.pages);
                Box::new(move |at| (at % pages) as u32)
            }
            TracePattern::Zipf => {
                let zipf = Zipf::new(self.pages, self.exponent, &mut random);
                Box::new(move |_| zipf.draw(&mut random))
            }
            TracePattern::Scan => self.scans(random),
            TracePattern::Phases => self.phases(random),
            TracePattern::Chase => {
                let successors = cycle(self.pages, &mut random);
                let mut page = 0;
                Box::new(move |_| {
                    let now = page;
                    page = successors[page as usize];
                    now
                })
            }
        }
    }

    /// As many draws as the scan has pages, then the scan, and again.
    fn scans(&self, mut random: TraceRandom) -> Box<dyn FnMut(u64) -> u32> {
        let hot = (self.pages / 10).max(1);
        let scanned = u64::from(self.pages - hot);
        let zipf = Zipf::new(hot, self.exponent, &mut random);
        Box::new(move |at| {
            let place = if scanned == 0 { 0 } else { at % (2 * scanned) };
            if place < scanned.max(1) { zipf.draw(&mut random) } else { hot + (place - scanned) as u32 }
        })
    }

    fn phases(&self, mut random: TraceRandom) -> Box<dyn FnMut(u64) -> u32> {
        let (pages, length) = (self.pages, self.length);
        let set = (pages / 8).max(1);
        let zipf = Zipf::new(set, self.exponent, &mut random);
        Box::new(move |at| {
            let phase = u128::from(at) * 10 / u128::from(length);
            let first = phase * u128::from(set) % u128::from(pages);
            ((first + u128::from(zipf.draw(&mut random))) % u128::from(pages)) as u32
        })
    }
}

/// SplitMix64 (Steele, Lea and Flood, Fast splittable pseudorandom number generators, OOPSLA 2014).
#[derive(Clone, Debug)]
struct TraceRandom(u64);

impl TraceRandom {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut bits = self.0;
        bits = (bits ^ bits >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        bits = (bits ^ bits >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        bits ^ bits >> 31
    }

    /// Below `end`, each number as likely as the others but for one part in 2^32.
    fn below(&mut self, end: u32) -> u32 {
        ((u128::from(self.next()) * u128::from(end)) >> 64) as u32
    }

    /// From 0 up to but not 1.
    fn fraction(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    fn shuffle(&mut self, list: &mut [u32]) {
        for last in (1..list.len()).rev() {
            list.swap(last, self.below(last as u32 + 1) as usize);
        }
    }
}

/// Draws pages by their rank; which page has which rank is random.
struct Zipf {
    /// Sums of the weights up to each rank.
    sums: Vec<f64>,
    by_rank: Vec<u32>,
}

impl Zipf {
    fn new(pages: u32, exponent: f64, random: &mut TraceRandom) -> Self {
        let mut sum = 0.0;
        let weigh = |rank: u32| {
            sum += f64::from(rank).powf(-exponent);
            sum
        };
        let sums = (1..=pages).map(weigh).collect();
        let mut by_rank: Vec<u32> = (0..pages).collect();
        random.shuffle(&mut by_rank);
        Self { sums, by_rank }
    }

    fn draw(&self, random: &mut TraceRandom) -> u32 {
        let point = random.fraction() * self.sums.last().expect("a page");
        let rank = self.sums.partition_point(|sum| *sum <= point).min(self.sums.len() - 1);
        self.by_rank[rank]
    }
}

/// Of each page the next one, in a single cycle.
fn cycle(pages: u32, random: &mut TraceRandom) -> Vec<u32> {
    let mut order: Vec<u32> = (0..pages).collect();
    random.shuffle(&mut order);
    let mut successors = vec![0; pages as usize];
    for (at, page) in order.iter().enumerate() {
        successors[*page as usize] = order[(at + 1) % order.len()];
    }
    successors
}

/// How a trace is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceFormat {
    /// A page a line.
    Text,
    /// See `compact.rs`.
    Compact,
}

/// Writes the trace to a new file, which is gzip if its name ends in `.gz`. An incomplete file is
/// removed.
///
/// # Errors
/// The recipe is unsound, the file is there already, or cannot be written.
pub fn write_file(recipe: &TraceRecipe, format: TraceFormat, path: &Path) -> io::Result<()> {
    let file = File::create_new(path)?;
    let written = if path.extension().is_some_and(|extension| extension == "gz") {
        write(recipe, format, GzEncoder::new(file, Compression::default())).and_then(GzEncoder::finish)
    } else {
        write(recipe, format, file)
    };
    written.map(drop).inspect_err(|_| {
        // What is wrong is told already.
        let _ = std::fs::remove_file(path);
    })
}

/// Writes the trace, and gives the output back.
///
/// # Errors
/// The recipe is unsound, or the output fails.
pub fn write<W: Write>(recipe: &TraceRecipe, format: TraceFormat, output: W) -> io::Result<W> {
    let mut output = BufWriter::with_capacity(1 << 16, output);
    if format == TraceFormat::Compact {
        let mut writer = compact::Writer::new(output)?;
        recipe.generate(|page| writer.push(page))?;
        output = writer.into_inner();
    } else {
        recipe.generate(|page| writeln!(output, "{page}"))?;
    }
    output.into_inner().map_err(io::IntoInnerError::into_error)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(recipe: TraceRecipe) -> Vec<u64> {
        let mut pages = Vec::new();
        recipe
            .generate(|page| {
                pages.push(page);
                Ok(())
            })
            .expect("a sound recipe");
        pages
    }

    fn recipe(pattern: TracePattern) -> TraceRecipe {
        TraceRecipe { pattern, pages: 200, length: 20_000, seed: 1, exponent: 1.0 }
    }

    fn counts(pages: &[u64]) -> Vec<usize> {
        let mut counts = vec![0; 200];
        pages.iter().for_each(|page| counts[*page as usize] += 1);
        counts
    }

    #[test]
    fn a_seed_gives_one_trace_and_another_seed_another() {
        for (pattern, name, _) in TracePattern::ALL {
            let once = pages(recipe(pattern));
            assert_eq!(once.len(), 20_000, "{name}");
            assert_eq!(once, pages(recipe(pattern)), "{name}");
            let other = pages(TraceRecipe { seed: 2, ..recipe(pattern) });
            assert_eq!(once == other, pattern == TracePattern::Loop, "{name}");
        }
    }

    #[test]
    fn every_size_and_length_is_served() {
        for (pattern, ..) in TracePattern::ALL {
            for (size, length) in [(1, 0), (1, 5), (2, 9), (7, 1), (11, 40), (13, 100)] {
                let made = pages(TraceRecipe { pages: size, length, ..recipe(pattern) });
                assert!(made.len() as u64 == length && made.iter().all(|page| *page < u64::from(size)));
            }
        }
    }

    #[test]
    fn zipf_draws_by_rank() {
        let mut counts = counts(&pages(recipe(TracePattern::Zipf)));
        counts.sort_unstable();
        counts.reverse();
        // The sum of the weights of 200 ranks is 5.878: the first is drawn 3402 times, the tenth
        // 340 times.
        assert!((3100..3700).contains(&counts[0]) && (280..400).contains(&counts[9]), "{counts:?}");
        let uniform = self::counts(&pages(TraceRecipe { exponent: 0.0, ..recipe(TracePattern::Zipf) }));
        assert!(uniform.iter().all(|count| (50..160).contains(count)), "{uniform:?}");
    }

    #[test]
    fn a_chase_visits_each_page_once_a_round() {
        let made = pages(recipe(TracePattern::Chase));
        let round = counts(&made[..200]);
        assert!(round.iter().all(|count| *count == 1) && made[..200] == made[200..400]);
        assert!(made.windows(2).filter(|pair| pair[0] + 1 == pair[1]).count() < 1000);
    }

    #[test]
    fn scans_take_half_and_phases_change() {
        let made = pages(recipe(TracePattern::Scan));
        let scanned = made.iter().filter(|page| **page >= 20).count();
        assert!((9_500..10_500).contains(&scanned), "{scanned}");
        assert_eq!(made[180..360], (20..200).collect::<Vec<_>>());
        let made = pages(recipe(TracePattern::Phases));
        assert!(made[..2000].iter().all(|page| *page < 25));
        assert!(made[2000..4000].iter().all(|page| (25..50).contains(page)));
    }

    #[test]
    fn unsound_recipes_are_refused() {
        for unsound in [
            TraceRecipe { pages: 0, ..recipe(TracePattern::Loop) },
            TraceRecipe { exponent: f64::NAN, ..recipe(TracePattern::Zipf) },
        ] {
            assert!(unsound.generate(|_| panic!("an access")).is_err());
        }
    }
}
