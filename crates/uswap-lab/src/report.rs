//! Results of replays for other programs: CSV, JSON, and means over traces.

use std::fmt::Write;
use std::path::Path;

use serde_json::{Value, json};

use crate::policies::Kind;
use crate::replay::Replayed;
use crate::size::MemoryShareOf;

/// Replays of one or more traces under the same policies and sizes.
#[derive(Clone, Debug)]
pub struct Report {
    /// The policies, in the order of the command line.
    pub policies: Vec<Kind>,
    /// The sizes, in the order of the command line.
    pub sizes: Vec<MemoryShareOf>,
    /// The results of each trace.
    pub traces: Vec<Replayed>,
}

impl Report {
    /// The mean miss ratio over the traces, each of which has the same weight, however long it is;
    /// for one size, or over all sizes.
    pub fn mean(&self, policy: Kind, ram: Option<MemoryShareOf>) -> f64 {
        let cells = self.traces.iter().flat_map(|trace| &trace.cells);
        let ratios = cells
            .filter(|cell| cell.policy == policy && ram.is_none_or(|ram| cell.ram == ram))
            .map(|cell| cell.counts.miss_ratio());
        let (sum, number) = ratios.fold((0.0, 0), |(sum, number), ratio| (sum + ratio, number + 1));
        if number == 0 { 0.0 } else { sum / f64::from(number) }
    }

    /// Policy and size of each mean; no size for the mean over all sizes.
    fn means(&self) -> impl Iterator<Item = (Kind, Option<MemoryShareOf>)> + '_ {
        let sizes = || self.sizes.iter().map(|ram| Some(*ram)).chain([None]);
        self.policies.iter().flat_map(move |policy| sizes().map(|ram| (*policy, ram)))
    }

    /// One line for each trace, policy and size, then the means, whose trace is `mean` and whose
    /// size may be `all`.
    pub fn csv(&self) -> String {
        let mut text = String::from("trace,policy,ram,pages,accesses,misses,soft_faults,activations,miss_ratio\n");
        for trace in &self.traces {
            let name = csv_field(&trace.path);
            for cell in &trace.cells {
                let counts = &cell.counts;
                let (policy, ram, pages, ratio) = (cell.policy, cell.ram, cell.pages, counts.miss_ratio());
                let (accesses, misses) = (counts.accesses, counts.misses);
                let (soft, activations) = (counts.soft_faults, counts.activations);
                // Writing to a string cannot fail.
                let _ =
                    writeln!(text, "{name},{policy},{ram},{pages},{accesses},{misses},{soft},{activations},{ratio:.6}");
            }
        }
        for (policy, ram) in self.means() {
            let _ = writeln!(text, "mean,{policy},{},,,,,,{:.6}", size_name(ram), self.mean(policy, ram));
        }
        text
    }

    /// The same as JSON.
    pub fn json(&self) -> Value {
        let traces = self.traces.iter().map(|trace| {
            let cells = trace.cells.iter().map(|cell| {
                json!({
                    "policy": cell.policy.name(),
                    "ram": cell.ram.to_string(),
                    "pages": cell.pages,
                    "misses": cell.counts.misses,
                    "soft_faults": cell.counts.soft_faults,
                    "activations": cell.counts.activations,
                    "miss_ratio": cell.counts.miss_ratio(),
                })
            });
            json!({
                "trace": trace.path.display().to_string(),
                "accesses": trace.accesses,
                "distinct_pages": trace.distinct,
                "results": cells.collect::<Vec<_>>(),
            })
        });
        let means = self.means().map(|(policy, ram)| {
            json!({ "policy": policy.name(), "ram": size_name(ram), "miss_ratio": self.mean(policy, ram) })
        });
        json!({ "traces": traces.collect::<Vec<_>>(), "mean": means.collect::<Vec<_>>() })
    }
}

fn size_name(ram: Option<MemoryShareOf>) -> String {
    ram.map_or_else(|| "all".into(), |ram| ram.to_string())
}

/// The path, in quotes where CSV needs them (RFC 4180).
fn csv_field(path: &Path) -> String {
    let text = path.display().to_string();
    if text.contains([',', '"', '\n', '\r']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::PolicyCounts;
    use crate::replay::ReplayCell;

    fn report() -> Report {
        let sizes = vec![MemoryShareOf::Percent(10.0), MemoryShareOf::Pages(7)];
        let trace = |path: &str, misses: [u64; 2]| {
            let cells = sizes.iter().zip(misses).map(|(ram, misses)| {
                let counts = PolicyCounts { accesses: 10, misses, soft_faults: 1, activations: 2 };
                ReplayCell { policy: Kind::Lru, ram: *ram, pages: 7, counts }
            });
            Replayed { path: path.into(), accesses: 10, distinct: 70, cells: cells.collect() }
        };
        let traces = vec![trace("a", [10, 5]), trace("b,\"c\"", [8, 1])];
        Report { policies: vec![Kind::Lru], sizes: sizes.clone(), traces }
    }

    #[test]
    fn csv_has_a_line_for_each_cell_and_the_means() {
        let expected = "trace,policy,ram,pages,accesses,misses,soft_faults,activations,miss_ratio\n\
            a,lru,10%,7,10,10,1,2,1.000000\n\
            a,lru,7,7,10,5,1,2,0.500000\n\
            \"b,\"\"c\"\"\",lru,10%,7,10,8,1,2,0.800000\n\
            \"b,\"\"c\"\"\",lru,7,7,10,1,1,2,0.100000\n\
            mean,lru,10%,,,,,,0.900000\n\
            mean,lru,7,,,,,,0.300000\n\
            mean,lru,all,,,,,,0.600000\n";
        assert_eq!(report().csv(), expected);
    }

    #[test]
    fn json_tells_the_same() {
        let told = report().json();
        assert_eq!(told["traces"][1]["trace"], "b,\"c\"");
        assert_eq!(told["traces"][1]["distinct_pages"], 70);
        let cell = &told["traces"][0]["results"][1];
        assert_eq!((&cell["policy"], &cell["ram"]), (&json!("lru"), &json!("7")));
        assert_eq!((&cell["misses"], &cell["miss_ratio"]), (&json!(5), &json!(0.5)));
        assert_eq!(told["mean"][2], json!({ "policy": "lru", "ram": "all", "miss_ratio": 0.6 }));
    }
}
