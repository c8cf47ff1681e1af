//! The figures that have a requirement, each as a ratio or a difference measured in one run, in
//! pairs.

use std::ffi::OsString;
use std::fs;
use std::time::Duration;

use serde_json::Value;

use crate::matrix::cell::{Bench, MatrixCell};
use crate::measure::cgroup::{BenchCgroup, Limits};
use crate::measure::launch::{Launch, StoppedGroup, run};
use crate::measure::statistics::{Ratio, Summary};
use crate::report::results::{CellOutcome, Figure};
use crate::system::System;
use crate::workload::{Prepared, WorkFolder};

/// Why a figure has no value.
enum Missing {
    Because(String),
    Interrupted(i32),
}

impl From<String> for Missing {
    fn from(why: String) -> Self {
        Self::Because(why)
    }
}

/// A value, with a description of its measurements.
type Measured = Result<(f64, String), Missing>;

const RUN_TIMEOUT: Duration = Duration::from_secs(120);
/// Number of short processes in the loop that measures the cost of each.
const PROCESSES: u32 = 300;
/// The budget of the program that allocates fast, in bytes.
const BUDGET: u64 = 128 << 20;
/// The hard limit of the program that fills twice as much, in bytes.
const LIMIT: u64 = 256 << 20;

struct Meter<'a> {
    bench: &'a Bench,
    place: &'a WorkFolder,
}

/// Approximate time to measure all figures.
pub const TAKES: Duration = Duration::from_secs(120);

/// Measures all figures; see [`TAKES`].
///
/// # Errors
/// The signal that asked this tool to end.
pub fn measure(bench: &Bench, place: &WorkFolder) -> Result<Vec<Figure>, i32> {
    let meter = Meter { bench, place };
    type Part = fn(&Meter<'_>) -> Measured;
    let parts: [(&str, &str, f64, Part); 6] = [
        ("memory not short: time with uswap / without", "ratio", 1.01, |m| m.below_the_watermark()),
        ("start of `uswap run -- true`, more than `true`", "ms", 5.0, |m| m.start()),
        ("each exec'd short process, more than without", "ms", 0.5, |m| m.short_process()),
        ("peak of a fast allocator / budget of 128 MiB", "ratio", 1.02, |m| m.fast_allocator()),
        ("fill twice the limit, read in order: uswap / zram lz4", "ratio", 1.0, |m| m.fill_twice("seq")),
        ("fill twice the limit, read at random: uswap / zram lz4", "ratio", 2.0, |m| m.fill_twice("random")),
    ];
    let mut figures = Vec::new();
    for (name, unit, at_most, part) in parts {
        let (value, detail) = match part(&meter) {
            Ok((value, detail)) => (Some(value), detail),
            Err(Missing::Because(why)) => (None, why),
            Err(Missing::Interrupted(signal)) => return Err(signal),
        };
        eprintln!("{name}: {} {unit}, at most {at_most} ({detail})", value.map_or("-".into(), |v| format!("{v:.3}")));
        figures.push(Figure { name: name.into(), value, unit: unit.into(), at_most, detail });
    }
    Ok(figures)
}

impl Meter<'_> {
    /// Seconds that the command takes without a limit, and the statistics of the engine.
    fn time(&self, options: Option<&[&str]>, words: &[&str]) -> Result<(f64, Value), Missing> {
        let folder = self.place.folder.join("figure");
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        let stats = folder.join("stats.json");
        let mut all: Vec<OsString> = Vec::new();
        if let Some(options) = options {
            let binary = self.bench.uswap.clone().map_err(Missing::Because)?;
            all.extend([binary.into_os_string(), "run".into(), "--quiet".into()]);
            all.extend(options.iter().map(OsString::from));
            all.extend(["--stats".into(), stats.clone().into_os_string(), "--".into()]);
        }
        all.extend(words.iter().map(OsString::from));
        let environment = vec![("TMPDIR".into(), folder.clone().into_os_string())];
        let unlimited = Limits { ram: None, kernel_swap: false };
        let group =
            self.bench.hierarchy.as_ref().ok().map(|hierarchy| BenchCgroup::new(hierarchy, unlimited)).transpose()?;
        let launch = Launch { words: all, environment, folder: &folder, group: group.as_ref(), timeout: RUN_TIMEOUT };
        let ended = run(&launch, || ()).map_err(|stopped| match stopped {
            StoppedGroup::Interrupted(signal) => Missing::Interrupted(signal),
            StoppedGroup::Unstartable(why) => Missing::Because(why),
        })?;
        if ended.code() != 0 || ended.timed_out {
            return Err(Missing::Because(format!("{}: {}", words[0], ended.in_words())));
        }
        let stats = serde_json::from_str(&fs::read_to_string(stats).unwrap_or_default()).unwrap_or(Value::Null);
        Ok((ended.elapsed.as_secs_f64(), stats))
    }

    /// Times without and with uswap, taking turns in which comes first, after one run of each that
    /// does not count.
    fn pairs(&self, n: u32, words: &[&str]) -> Result<Vec<(f64, f64)>, Missing> {
        let with = Some(["--ram", "2G"].as_slice());
        self.time(None, words)?;
        self.time(with, words)?;
        let pair = |turn: u32| {
            if turn.is_multiple_of(2) {
                Ok((self.time(None, words)?.0, self.time(with, words)?.0))
            } else {
                let new = self.time(with, words)?.0;
                Ok((self.time(None, words)?.0, new))
            }
        };
        (0..n).map(pair).collect()
    }

    fn own(&self) -> String {
        self.place.workloads.display().to_string()
    }

    fn below_the_watermark(&self) -> Measured {
        let own = self.own();
        let words = [&own, "memory", "--mib", "96", "--pattern", "zipf-1.2", "--writes", "50", "--seconds", "60"];
        let words = [words.as_slice(), &["--operations", "12000000"]].concat();
        let pairs = self.pairs(5, &words)?;
        let ratio = Ratio::of_pairs(&pairs).ok_or_else(|| "no pairs".to_string())?;
        let base = Summary::of(&pairs.iter().map(|pair| pair.0).collect::<Vec<_>>()).map_or(0.0, |s| s.median);
        Ok((ratio.ratio, format!("{} pairs of {base:.1} s; 95 %: {:.3}..{:.3}", pairs.len(), ratio.low, ratio.high)))
    }

    fn start(&self) -> Measured {
        let pairs = self.pairs(21, &["true"])?;
        let ms = |part: fn(&(f64, f64)) -> f64| {
            Summary::of(&pairs.iter().map(part).collect::<Vec<_>>()).map_or(0.0, |s| s.median * 1e3)
        };
        let (plain, ours) = (ms(|pair| pair.0), ms(|pair| pair.1));
        Ok((ours - plain, format!("medians of {}: {ours:.2} ms and {plain:.2} ms", pairs.len())))
    }

    fn short_process(&self) -> Measured {
        let script = format!("i=0; while [ $i -lt {PROCESSES} ]; do /bin/true; i=$((i+1)); done");
        let pairs = self.pairs(5, &["sh", "-c", &script])?;
        let (start, _) = self.start()?;
        let each: Vec<f64> =
            pairs.iter().map(|(plain, ours)| ((ours - plain) * 1e3 - start) / f64::from(PROCESSES)).collect();
        let each = Summary::of(&each).ok_or_else(|| "no pairs".to_string())?;
        let plain = Summary::of(&pairs.iter().map(|pair| pair.0).collect::<Vec<_>>()).map_or(0.0, |s| s.median);
        let plain = plain * 1e3 / f64::from(PROCESSES);
        Ok((each.median, format!("{PROCESSES} x /bin/true from sh, {:.2} ms each without", plain)))
    }

    fn fast_allocator(&self) -> Measured {
        let (own, ram) = (self.own(), BUDGET.to_string());
        let mut ratios = Vec::new();
        for _ in 0..3 {
            let words = [&own, "pft", "--threads", "2", "--mib", "384", "--rounds", "1"];
            let (_, stats) = self.time(Some(&["--ram", &ram]), &words)?;
            let peak = stats["ram_peak_bytes"].as_f64().ok_or_else(|| "no ram_peak_bytes".to_string())?;
            ratios.push(peak / BUDGET as f64);
        }
        let all = Summary::of(&ratios).ok_or_else(|| "no runs".to_string())?;
        Ok((all.most, format!("the worst of {}; the best {:.3}", all.count, all.least)))
    }

    /// Seconds to fill the memory and read it back once, with the hard limit.
    fn filled(&self, system: &str, pattern: &str) -> Result<f64, Missing> {
        let mib = ((2 * LIMIT) >> 20).to_string();
        let pages = ((2 * LIMIT) >> 12).to_string();
        let own = self.own();
        let words = [&own, "memory", "--mib", &mib, "--pattern", pattern, "--operations", &pages, "--seconds", "60"];
        let prepared = Prepared::command(words);
        let system = System::parse(system)?.remove(0);
        let cell = MatrixCell {
            workload: "fill-twice",
            prepared: &prepared,
            answer: None,
            system: &system,
            fraction: 50,
            peak: 2 * LIMIT,
            repetition: 1,
            timeout: RUN_TIMEOUT,
        };
        let sample = self.bench.run(&cell).map_err(Missing::Interrupted)?;
        match sample.outcome {
            CellOutcome::Ok => Ok(sample.seconds),
            outcome => Err(Missing::Because(format!("{}: {}", system.name, outcome.in_words()))),
        }
    }

    fn fill_twice(&self, pattern: &str) -> Measured {
        let mut pairs = Vec::new();
        for turn in 0..3 {
            let (first, second) =
                if turn % 2 == 0 { ("kernel-zram:lz4", "uswap") } else { ("uswap", "kernel-zram:lz4") };
            let (a, b) = (self.filled(first, pattern)?, self.filled(second, pattern)?);
            pairs.push(if turn % 2 == 0 { (a, b) } else { (b, a) });
        }
        let ratio = Ratio::of_pairs(&pairs).ok_or_else(|| "no pairs".to_string())?;
        let told: Vec<String> = pairs.iter().map(|(zram, ours)| format!("{ours:.2}/{zram:.2}")).collect();
        let limit = LIMIT >> 20;
        Ok((ratio.ratio, format!("fill and read, s, uswap/zram: {}; limit {limit} MiB", told.join(" "))))
    }
}
