//! Replays a trace into one simulator for each policy and size, all in one reading.

use std::path::{Path, PathBuf};

use crate::numbering::Numbering;
use crate::policies::Kind;
use crate::policy::{Policy, PolicyCounts};
use crate::size::MemoryShareOf;
use crate::trace::TraceError;

/// A policy with an amount of memory, and the counts of its replay.
#[derive(Clone, Debug, PartialEq)]
pub struct ReplayCell {
    /// The policy.
    pub policy: Kind,
    /// The amount of memory as the user gave it.
    pub ram: MemoryShareOf,
    /// The amount of memory in pages.
    pub pages: usize,
    /// The counts of the replay.
    pub counts: PolicyCounts,
}

/// A trace and the results of all its replays.
#[derive(Clone, Debug, PartialEq)]
pub struct Replayed {
    /// The file of the trace.
    pub path: PathBuf,
    /// Number of accesses.
    pub accesses: u64,
    /// Number of distinct pages.
    pub distinct: usize,
    /// Results by policy, then by size, in the user's order.
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
    // Distributed in turn, since neighbouring policies take about the same time.
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

/// Reads the trace once for all these simulators.
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
