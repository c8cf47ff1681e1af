//! Traces and simulators for tests.

use std::sync::Arc;

use proptest::prelude::*;
use uswap_lab::numbering::next_uses;
use uswap_lab::policies::Knowledge;
use uswap_lab::{Kind, Policy};

/// A simulator for exactly this trace, of fewer than 64 pages.
pub fn simulator(kind: Kind, pages: &[u32], capacity: usize) -> Box<dyn Policy> {
    let knowledge = Knowledge { distinct: 64, next_uses: Arc::new(next_uses(pages)) };
    kind.simulator(&knowledge, capacity)
}

/// A stretch of a trace: what programs do, since accesses at random show little of a policy.
fn stretch(distinct: u32) -> impl Strategy<Value = Vec<u32>> {
    let page = 0..distinct;
    prop_oneof![
        prop::collection::vec(page.clone(), 1..20),
        (page.clone(), 1..distinct, 1usize..4).prop_map(move |(start, length, rounds)| {
            (0..rounds).flat_map(|_| (start..start + length).map(|page| page % distinct)).collect()
        }),
        (page.clone(), 1usize..4).prop_map(|(page, times)| vec![page; times]),
        (page, 1u32..5, 3usize..25).prop_map(move |(start, width, length)| {
            (0..length).map(|at| (start + at as u32 * at as u32 % width) % distinct).collect()
        }),
    ]
}

/// Traces of pages below `distinct`, at most `longest` accesses: random ones, rounds, repeats,
/// small hot sets.
pub fn trace(distinct: u32, longest: usize) -> impl Strategy<Value = Vec<u32>> {
    prop::collection::vec(stretch(distinct), 1..12).prop_map(move |stretches| {
        let mut pages = stretches.concat();
        pages.truncate(longest);
        pages
    })
}
