//! Replays a trace into one simulator for each policy and size, all in one reading.

use std::path::{Path, PathBuf};

use crate::numbering::Numbering;
use crate::policies::Kind;
use crate::policy::{Counts, Policy};
use crate::size::Ram;
use crate::trace::TraceError;

/// A policy with an amount of memory, and what came of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Cell {
    /// The policy.
    pub policy: Kind,
    /// Memory as it was asked for.
    pub ram: Ram,
    /// The same in pages.
    pub pages: usize,
    /// What came of it.
    pub counts: Counts,
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
    pub cells: Vec<Cell>,
}

/// Replays the trace under each policy with each amount of memory.
///
/// # Errors
/// The trace cannot be read.
pub fn replay(path: &Path, policies: &[Kind], sizes: &[Ram]) -> Result<Replayed, TraceError> {
    let numbering = Numbering::read(path, policies.contains(&Kind::Opt))?;
    let (accesses, distinct) = (numbering.accesses(), numbering.distinct());
    let cell = |policy: Kind, ram: Ram| Cell { policy, ram, pages: ram.of(distinct), counts: Counts::default() };
    let mut cells: Vec<Cell> = policies.iter().flat_map(|policy| sizes.iter().map(|ram| cell(*policy, *ram))).collect();
    let knowledge = numbering.knowledge();
    let mut simulators: Vec<Box<dyn Policy + Send>> =
        cells.iter().map(|cell| cell.policy.simulator(&knowledge, cell.pages)).collect();
    numbering.replay(|block| {
        for (simulator, cell) in simulators.iter_mut().zip(&mut cells) {
            simulator.replay(block, &mut cell.counts);
        }
    })?;
    Ok(Replayed { path: path.into(), accesses, distinct, cells })
}
