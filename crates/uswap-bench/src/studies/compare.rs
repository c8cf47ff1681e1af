//! Compares two builds of uswap in pairs of runs, for developers who changed something.
//!
//! In a pair, both builds run right after each other, in alternating order, so a disturbance of the
//! machine that lasts longer than a pair cancels out in the ratio.

use std::path::Path;
use std::time::Duration;

use crate::matrix::cell::{Bench, MatrixCell};
use crate::measure::statistics::{Ratio, Summary};
use crate::report::results::{CellOutcome, CellSample};
use crate::report::{head, table};
use crate::system::System;
use crate::workload::{Prepared, WorkFolder, Workload};

/// The parameters of a comparison.
#[derive(Debug)]
pub struct ComparePlan<'a> {
    /// The build that is compared with.
    pub base: &'a Path,
    /// The build to be judged.
    pub new: &'a Path,
    /// The workloads.
    pub workloads: &'a [Workload],
    /// The limit in percent of each workload's peak.
    pub fraction: u32,
    /// Number of pairs.
    pub pairs: u32,
    /// Folders and sizes of the workloads.
    pub place: &'a WorkFolder,
}

/// The result for one workload.
#[derive(Clone, Debug, PartialEq)]
pub enum ComparedVerdict {
    /// The times of the pairs: base and new, in seconds.
    Pairs(Vec<(f64, f64)>),
    /// There is no comparison; the reason.
    None(String),
}

/// Runs the comparison; returns the workloads' names with the verdicts.
///
/// # Errors
/// The signal that asked this tool to end.
pub fn run(bench: &Bench, plan: &ComparePlan<'_>) -> Result<Vec<(String, ComparedVerdict)>, i32> {
    let system = |path: &Path| System::parse(&format!("uswap@{}", path.display())).map(|mut all| all.remove(0));
    let systems = match (system(plan.base), system(plan.new)) {
        (Ok(base), Ok(new)) => [base, new],
        (Err(why), _) | (_, Err(why)) => return Ok(vec![("systems".into(), ComparedVerdict::None(why))]),
    };
    let mut verdicts = Vec::new();
    for workload in plan.workloads {
        let verdict = match workload.prepare(plan.place) {
            Ok(prepared) => one(bench, plan, workload, &prepared, &systems)?,
            Err(why) => ComparedVerdict::None(CellOutcome::Skipped(why).in_words()),
        };
        verdicts.push((workload.name.clone(), verdict));
    }
    Ok(verdicts)
}

fn one(
    bench: &Bench,
    plan: &ComparePlan<'_>,
    workload: &Workload,
    prepared: &Prepared,
    systems: &[System; 2],
) -> Result<ComparedVerdict, i32> {
    let none = System::none();
    let mut cell = MatrixCell {
        workload: &workload.name,
        prepared,
        answer: prepared.answer.as_deref(),
        system: &none,
        fraction: plan.fraction,
        peak: 0,
        repetition: 0,
        timeout: Duration::from_secs(120),
    };
    let look = bench.run(&cell)?;
    if look.outcome != CellOutcome::Ok {
        return Ok(ComparedVerdict::None(look.outcome.in_words()));
    }
    cell.peak = look.working_set_bytes;
    cell.answer = look.told["answer"].as_str();
    let mut pairs = Vec::new();
    // The first pair warms up and does not count.
    for turn in 0..=plan.pairs {
        cell.repetition = turn;
        match pair(bench, &mut cell, systems)? {
            Ok(seconds) => pairs.extend((turn > 0).then_some(seconds)),
            Err(why) => return Ok(ComparedVerdict::None(why)),
        }
    }
    Ok(ComparedVerdict::Pairs(pairs))
}

/// Runs both builds once; returns the seconds of base and new, or which build failed and how.
fn pair<'a>(
    bench: &Bench,
    cell: &mut MatrixCell<'a>,
    systems: &'a [System; 2],
) -> Result<Result<(f64, f64), String>, i32> {
    let mut seconds = [0.0; 2];
    let order = if cell.repetition.is_multiple_of(2) { [0, 1] } else { [1, 0] };
    for which in order {
        cell.system = &systems[which];
        match bench.run(cell)? {
            CellSample { outcome: CellOutcome::Ok, seconds: took, .. } => seconds[which] = took,
            sample => return Ok(Err(format!("{}: {}", ["base", "new"][which], sample.outcome.in_words()))),
        }
    }
    eprintln!("{}: base {:.2} s, new {:.2} s", cell.workload, seconds[0], seconds[1]);
    Ok(Ok((seconds[0], seconds[1])))
}

/// The comparison as a table.
pub fn in_words(verdicts: &[(String, ComparedVerdict)]) -> String {
    let row = |(name, verdict): &(String, ComparedVerdict)| match verdict {
        ComparedVerdict::None(why) => vec![name.clone(), "-".into(), "-".into(), "-".into(), "-".into(), why.clone()],
        ComparedVerdict::Pairs(pairs) => {
            let median = |part: fn(&(f64, f64)) -> f64| {
                let values: Vec<f64> = pairs.iter().map(part).collect();
                Summary::of(&values).map_or("-".into(), |summary| format!("{:.2} s", summary.median))
            };
            let (base, new) = (median(|pair| pair.0), median(|pair| pair.1));
            match Ratio::of_pairs(pairs) {
                Some(ratio) => {
                    let interval = format!("{:.3}..{:.3}", ratio.low, ratio.high);
                    vec![name.clone(), base, new, format!("{:.3}", ratio.ratio), interval, ratio.verdict().into()]
                }
                None => vec![name.clone(), base, new, "-".into(), "-".into(), "no pairs".into()],
            }
        }
    };
    let mut text = String::new();
    let rows: Vec<Vec<String>> = verdicts.iter().map(row).collect();
    table(&mut text, &head(&["workload", "base", "new", "new / base", "95 % interval", "verdict"]), &rows);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_tells_ratio_interval_and_reason() {
        let verdicts = [
            ("seq".to_string(), ComparedVerdict::Pairs(vec![(1.0, 2.0), (2.0, 4.0), (3.0, 6.0)])),
            ("zero".to_string(), ComparedVerdict::None("new: failed: x".into())),
        ];
        let text = in_words(&verdicts);
        assert!(text.contains("| seq | 2.00 s | 4.00 s | 2.000 | 2.000..2.000 | slower |"), "{text}");
        assert!(text.contains("| zero | - | - | - | - | new: failed: x |"), "{text}");
    }
}
