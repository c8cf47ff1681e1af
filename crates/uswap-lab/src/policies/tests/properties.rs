//! Properties of policies on any trace: of those of the registry, those of the engine, and one that
//! exists only in tests.

// The integration tests beside `src` use the same traces.
#[path = "../../../tests/common/mod.rs"]
mod common;

use common::{simulator, trace};
use proptest::prelude::*;

use crate::{AccessOutcome, Kind};

/// Number of misses of a policy on a trace.
fn misses(kind: Kind, pages: &[u32], capacity: usize) -> usize {
    let mut simulator = simulator(kind, pages, capacity);
    pages.iter().filter(|page| simulator.access(**page) == AccessOutcome::Miss).count()
}

/// The smallest possible number of misses, found by trying every choice of evicted pages.
fn fewest_misses(pages: &[u32], capacity: usize, held: &mut Vec<u32>) -> usize {
    let Some((page, rest)) = pages.split_first() else { return 0 };
    if held.contains(page) {
        return fewest_misses(rest, capacity, held);
    }
    if held.len() < capacity {
        held.push(*page);
        let fewest = fewest_misses(rest, capacity, held);
        held.pop();
        return 1 + fewest;
    }
    let with_victim = |victim: usize| {
        let mut held = held.clone();
        held[victim] = *page;
        fewest_misses(rest, capacity, &mut held)
    };
    1 + (0..capacity).map(with_victim).min().expect("a capacity")
}

/// Number of misses of LRU, from the distance of each access to the previous one of the same page
/// (Mattson et al. 1970).
fn misses_by_stack_distance(pages: &[u32], capacity: usize) -> usize {
    let is_miss = |at: &usize| {
        let before = &pages[..*at];
        let Some(last) = before.iter().rposition(|page| *page == pages[*at]) else { return true };
        let mut between = before[last..].to_vec();
        between.sort_unstable();
        between.dedup();
        between.len() > capacity
    };
    (0..pages.len()).filter(is_miss).count()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn memory_is_never_overdrawn_and_the_books_fit(pages in trace(30, 300), capacity in 1usize..40) {
        for kind in Kind::ALL {
            let mut simulator = simulator(kind, &pages, capacity);
            for page in &pages {
                let held = simulator.holds(*page);
                let outcome = simulator.access(*page);
                prop_assert_eq!(held, outcome != AccessOutcome::Miss, "{}: a miss is a page that was not held", kind);
                prop_assert!(simulator.holds(*page), "{}: what was touched is held", kind);
                let count = (0..30).filter(|page| simulator.holds(*page)).count();
                prop_assert_eq!(count, simulator.held(), "{}: the count of held pages", kind);
                prop_assert!(count <= capacity, "{}: {} of {} pages", kind, count, capacity);
            }
        }
    }

    #[test]
    fn with_room_for_all_each_page_is_missed_once(pages in trace(30, 200)) {
        let mut distinct = pages.clone();
        distinct.sort_unstable();
        distinct.dedup();
        for kind in Kind::ALL {
            prop_assert_eq!(misses(kind, &pages, distinct.len()), distinct.len(), "{}", kind);
        }
    }

    #[test]
    fn no_policy_misses_less_than_opt(pages in trace(30, 300), capacity in 1usize..32) {
        let least = misses(Kind::Opt, &pages, capacity);
        for kind in Kind::ALL {
            prop_assert!(misses(kind, &pages, capacity) >= least, "{}", kind);
        }
    }

    #[test]
    fn opt_misses_as_little_as_can_be(pages in trace(6, 12), capacity in 1usize..4) {
        prop_assert_eq!(misses(Kind::Opt, &pages, capacity), fewest_misses(&pages, capacity, &mut Vec::new()));
    }

    /// Compares the engine's code with the lab's.
    #[test]
    fn the_engines_fifo_is_fifo(pages in trace(30, 300), capacity in 1usize..32) {
        let engines = "uswap-fifo".parse().expect("a policy of the engine");
        let [mut own, mut engines] = [Kind::Fifo, engines].map(|kind| simulator(kind, &pages, capacity));
        for page in &pages {
            prop_assert_eq!(own.access(*page), engines.access(*page));
            prop_assert!((0..30).all(|page| own.holds(page) == engines.holds(page)));
        }
    }

    #[test]
    fn more_memory_holds_what_less_memory_holds_under_lru(pages in trace(30, 200), capacity in 1usize..31) {
        let [mut small, mut large] = [capacity, capacity + 1].map(|size| simulator(Kind::Lru, &pages, size));
        for page in &pages {
            small.access(*page);
            large.access(*page);
            prop_assert!((0..30).all(|page| large.holds(page) || !small.holds(page)));
        }
    }

    #[test]
    fn lru_misses_what_its_stack_distance_says(pages in trace(20, 150), capacity in 1usize..22) {
        prop_assert_eq!(misses(Kind::Lru, &pages, capacity), misses_by_stack_distance(&pages, capacity));
    }

    /// The hand evicts a page that was not accessed, as a FIFO does.
    #[test]
    fn clock_is_fifo_as_long_as_nothing_is_hit(pages in trace(30, 300), capacity in 1usize..10) {
        let [mut fifo, mut clock] = [Kind::Fifo, Kind::Clock].map(|kind| simulator(kind, &pages, capacity));
        for page in &pages {
            if fifo.holds(*page) {
                continue;
            }
            prop_assert_eq!(clock.access(*page), fifo.access(*page));
            prop_assert!((0..30).all(|page| clock.holds(page) == fifo.holds(page)));
        }
    }

    /// Cycles over one page more than fit in memory defeat these policies, whatever accesses come
    /// before.
    #[test]
    fn a_cycle_of_one_page_too_many_is_never_hit(capacity in 1usize..60) {
        let pages: Vec<u32> = (0..8).flat_map(|_| 0..=capacity as u32).collect();
        for kind in [Kind::Lru, Kind::Fifo, Kind::Clock, Kind::KernelLists] {
            prop_assert_eq!(misses(kind, &pages, capacity), pages.len(), "{}", kind);
        }
        prop_assert!(capacity == 1 || misses(Kind::Opt, &pages, capacity) < pages.len());
    }

    #[test]
    fn one_page_of_memory_hits_repeats_only(pages in trace(5, 100)) {
        let repeats = pages.windows(2).filter(|pair| pair[0] == pair[1]).count();
        for kind in Kind::ALL {
            prop_assert_eq!(misses(kind, &pages, 1), pages.len() - repeats, "{}", kind);
        }
    }
}

/// Belady's anomaly: on Belady's own trace, FIFO has more misses with more memory.
#[test]
fn fifo_has_beladys_anomaly() {
    let pages = [1, 2, 3, 4, 1, 2, 5, 1, 2, 3, 4, 5];
    assert_eq!((misses(Kind::Fifo, &pages, 3), misses(Kind::Fifo, &pages, 4)), (9, 10));
}

#[test]
fn every_policy_has_a_name_of_its_own() {
    for kind in Kind::ALL {
        assert_eq!(kind.name().parse(), Ok(kind));
        assert!(!kind.about().is_empty());
    }
    let names = Kind::ALL.map(Kind::name).join(" ");
    assert!(names.ends_with("kernel two-list uswap uswap-bits uswap-mount random uswap-fifo"), "{names}");
}
