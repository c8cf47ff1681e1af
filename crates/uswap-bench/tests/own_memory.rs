//! The bounds of the engine's own tables. A process of its own: the allocator counts for all
//! threads.

use uswap_bench::studies::own_memory::{Row, resident, stored, tables};

/// Blocks that are begun, and the stale entries that a short list may have.
const OF_A_SPACE: f64 = 24.0 * 1024.0;
/// The chunk of objects that is begun in each of a worker's eight shards.
const OF_A_WORKER: f64 = 8.0 * 1088.0;

fn row<'a>(rows: &'a [Row], what: &str) -> &'a Row {
    rows.iter().find(|row| row.what.contains(what)).unwrap_or_else(|| panic!("no row {what:?} in {rows:?}"))
}

#[test]
fn a_resident_page_costs_16_bytes_and_a_stored_one_26() {
    for pages in [16 << 10, 160 << 10] {
        let rows = resident(pages);
        let (fresh, left, churned) = (row(&rows, "in order"), row(&rows, "rest"), row(&rows, "random"));
        assert!(fresh.both() <= 13.0 && fresh.heap.is_none_or(|heap| heap <= 13.2), "{fresh:?}");
        for kept in [fresh, churned, left] {
            let bytes = kept.both() * kept.pages as f64;
            assert!(bytes <= 16.0 * kept.pages as f64 + OF_A_SPACE, "{kept:?}");
        }
        assert!(churned.pages > pages / 2 && churned.both() <= 15.5, "{churned:?}");
        assert!(row(&rows, "MiB").both() < 280.0, "{rows:?}");

        let rows = stored(pages);
        let (fresh, replaced, last) = (row(&rows, "in order"), row(&rows, "replaced"), row(&rows, "last quarter"));
        for kept in [fresh, replaced] {
            let bytes = kept.beside * kept.pages as f64;
            assert!(kept.beside > 16.0 && bytes <= 17.5 * kept.pages as f64 + OF_A_WORKER, "{kept:?}");
            assert!(kept.words <= 8.6, "{kept:?}");
        }
        assert!(fresh.heap.is_none_or(|heap| heap <= 26.5), "{fresh:?}");
        // A chunk to each eight in use is kept, and pointers to those that went.
        let bytes = last.beside * last.pages as f64;
        assert!(bytes <= 20.5 * last.pages as f64 + OF_A_WORKER, "{last:?}");
    }
    let text = tables(&[1024]);
    assert_eq!(text.lines().count(), 2 * (3 + 4 + 1), "{text}");
}
