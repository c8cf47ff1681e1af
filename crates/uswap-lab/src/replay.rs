//! Replays a trace into one simulator for each policy and size, all in one reading.

use std::path::{Path, PathBuf};

use crate::numbering::Numbering;
use crate::policies::Kind;
use crate::policy::{Policy, PolicyCounts};
use crate::size::MemoryShareOf;
use crate::trace::TraceError;

/// A policy with an amount of memory, and what came of it.
#[derive(Clone, Debug, PartialEq)]
pub struct ReplayCell {
    /// The policy.
    pub policy: Kind,
    /// Memory as it was asked for.
    pub ram: MemoryShareOf,
    /// The same in pages.
    pub pages: usize,
    /// What came of it.
    pub counts: PolicyCounts,
}

/// A trace and all that came of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Replayed {
    /// The file.
    pub path: PathBuf,
    /// Touches.
    pub accesses: u64,
    /// Pages that it touches.
    pub distinct: usize,
    /// By policy, then by size, as they were asked for.
    pub cells: Vec<ReplayCell>,
}

/// Replays the trace under each policy with each amount of memory, on all processors.
///
/// # Errors
/// The trace cannot be read.
pub fn replay(path: &Path, policies: &[Kind], sizes: &[MemoryShareOf]) -> Result<Replayed, TraceError> {
    let numbering = Numbering::read(path, policies.contains(&Kind::Opt))?;
    let (accesses, distinct) = (numbering.accesses(), numbering.distinct());
    let cell = |policy: Kind, ram: MemoryShareOf| ReplayCell {
        policy,
        ram,
        pages: ram.of(distinct),
        counts: PolicyCounts::default(),
    };
    let mut cells: Vec<ReplayCell> =
        policies.iter().flat_map(|policy| sizes.iter().map(|ram| cell(*policy, *ram))).collect();
    let threads = std::thread::available_parallelism().map_or(1, usize::from).clamp(1, cells.len().max(1));
    // Dealt out like cards, since policies that lie side by side take about as long.
    let mut hands: Vec<Vec<&mut ReplayCell>> = (0..threads).map(|_| Vec::new()).collect();
    for (index, cell) in cells.iter_mut().enumerate() {
        hands[index % threads].push(cell);
    }
    std::thread::scope(|scope| {
        let spawn = |hand| scope.spawn(|| replay_into(&numbering, hand));
        let threads: Vec<_> = hands.into_iter().map(spawn).collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })?;
    Ok(Replayed { path: path.into(), accesses, distinct, cells })
}

/// Reads the trace once for all these cells.
fn replay_into(numbering: &Numbering, mut cells: Vec<&mut ReplayCell>) -> Result<(), TraceError> {
    let knowledge = numbering.knowledge();
    let mut simulators: Vec<Box<dyn Policy>> =
        cells.iter().map(|cell| cell.policy.simulator(&knowledge, cell.pages)).collect();
    numbering.replay(|block| {
        for (simulator, cell) in simulators.iter_mut().zip(&mut cells) {
            simulator.replay(block, &mut cell.counts);
        }
    })
}
