//! Measures how much memory the engine's own tables take per page: page words and list entries for
//! a resident page, page word and object for a stored page; after pages came in order, and after
//! they came and went in random order.
//!
//! The tables are those of the engine (`uswap-core`, `uswap-store`), used as the engine uses them,
//! without a program. The results are the bytes that the tables ask for, and beside them the bytes
//! that the C library's allocator has handed out for them. Neither depends on time or on the
//! machine. Stored pages consist of one repeated word; such pages have an object like others, but
//! no data.

use std::fmt::Write;
use uswap_core::PAGE;

use uswap_core::page::table::PageTable;
use uswap_core::page::word::PageState;
use uswap_core::reclaim::policy::ReclaimPolicy;
use uswap_core::reclaim::working_set::WorkingSet;
use uswap_core::{PAGE_SIZE, PageHasher};
use uswap_store::{Concurrency, ObjectId, Scratch, Store, StoreConfig, Tier};
use uswap_sys::alloc::heap;

/// Number of pages that come or go at a time.
const RUN: u64 = 64;

/// The measured bytes per page.
#[derive(Clone, Debug)]
pub struct Row {
    /// Number of pages measured.
    pub pages: u64,
    /// Description of what was done with the pages.
    pub what: &'static str,
    /// Bytes of page words and of the tables that lead to them.
    pub words: f64,
    /// Bytes of list entries, or of objects.
    pub beside: f64,
    /// Bytes of both by the allocator's count; `None` where it does not report them.
    pub heap: Option<f64>,
}

impl Row {
    /// Bytes of all tables.
    pub fn both(&self) -> f64 {
        self.words + self.beside
    }
}

/// A small random generator.
struct TouchRandom(u64);

impl TouchRandom {
    fn below(&mut self, most: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % most
    }
}

/// A space without a process.
#[derive(Default)]
struct MeasuredSpace {
    table: PageTable,
    set: WorkingSet,
    stored: u64,
    /// Bytes that the allocator had handed out before.
    before: Option<u64>,
}

impl MeasuredSpace {
    fn new() -> Self {
        Self { before: heap::in_use(), ..Self::default() }
    }

    fn resident(&self) -> u64 {
        self.set.pages().count(false) + self.set.pages().count(true)
    }

    fn touch(&mut self, page: u64) {
        let word = self.table.get(page * PAGE);
        if word.state() != PageState::Resident {
            self.stored -= u64::from(matches!(word.state(), PageState::Stored(_)));
            self.set.join(&mut self.table, page * PAGE, word.resident());
        }
    }

    fn evict(&mut self) {
        let Some(page) = self.set.next_victim(&mut self.table) else { return };
        let word = self.table.get(page);
        let clock = self.set.evict(word);
        self.table.set(page, word.stored(1, clock));
        self.stored += 1;
    }

    fn unmap(&mut self, first: u64, pages: u64) {
        let (set, stored) = (&mut self.set, &mut self.stored);
        self.table.take_range(first * PAGE, (first + pages) * PAGE, |_, word| {
            set.forget(word);
            *stored -= u64::from(matches!(word.state(), PageState::Stored(_)));
        });
    }

    /// Bytes per resident page; page words are shared with stored pages.
    fn row(&self, what: &'static str) -> Row {
        let pages = self.resident();
        let words = self.table.bytes() as f64 / (pages + self.stored) as f64;
        let heap = heap::in_use().zip(self.before).filter(|_| self.stored == 0);
        let heap = heap.map(|(now, before)| now.saturating_sub(before) as f64 / pages as f64);
        Row { pages, what, words, beside: self.set.pages().bytes() as f64 / pages as f64, heap }
    }
}

/// Measures this many resident pages.
pub fn resident(pages: u64) -> Vec<Row> {
    let mut rows = Vec::new();
    let mut space = MeasuredSpace::new();
    (0..pages).for_each(|page| space.touch(page));
    rows.push(space.row("touched in order"));
    space.unmap(0, pages * 15 / 16);
    space.set.tidy(&mut space.table);
    space.set.tidy(&mut space.table);
    rows.push(space.row("the rest after 15 of 16 were unmapped"));
    drop(space);
    rows.push(churned(pages));
    let mut space = MeasuredSpace::new();
    (0..pages / RUN).for_each(|place| space.touch(place * 256));
    rows.push(space.row("one in each MiB"));
    rows
}

/// Touches, evicts, unmaps and touches again runs of twice as many pages as may be resident;
/// returns the worst figures on the way.
fn churned(pages: u64) -> Row {
    let (mut space, mut random) = (MeasuredSpace::new(), TouchRandom(7));
    let mut worst: Option<Row> = None;
    for step in 0..8 * pages / RUN {
        let first = random.below(2 * pages / RUN) * RUN;
        if random.below(3) == 0 {
            space.unmap(first, 1 + random.below(RUN));
        }
        (first..first + RUN).for_each(|page| space.touch(page));
        while space.resident() > pages {
            space.evict();
        }
        // Before that, too few pages are resident for a figure per page.
        if step >= 2 * pages / RUN {
            let row = space.row("touched, evicted and unmapped at random, at worst");
            worst = worst.filter(|worst| worst.both() >= row.both()).or(Some(row));
        }
    }
    worst.expect("some steps")
}

/// A store in which every page is one repeated word.
struct StoredPages {
    store: Store,
    scratch: Scratch,
    hasher: PageHasher,
    held: Vec<ObjectId>,
    count: u64,
}

impl StoredPages {
    fn new(most: u64) -> Self {
        let hasher = PageHasher::new(1);
        let config = StoreConfig {
            pool_limit_bytes: 1 << 20,
            pool_reserve_bytes: 1 << 20,
            hasher: PageHasher::new(1),
            devices: Vec::new(),
            concurrency: Concurrency::default(),
            tier: Tier::default(),
        };
        let store = Store::new(config).expect("address space");
        Self { store, scratch: Scratch::new(), hasher, held: Vec::with_capacity(most as usize), count: 0 }
    }

    fn put(&mut self, pages: u64) {
        for _ in 0..pages {
            self.count += 1;
            let page = [self.count as u8 | 1; PAGE_SIZE];
            let id = self.store.put(&page, self.hasher.hash(&page), &mut self.scratch);
            self.held.push(id.expect("a word repeated needs no room"));
        }
    }

    fn row(&self, what: &'static str, words: f64) -> Row {
        let pages = self.held.len() as u64;
        Row { pages, what, words, beside: self.store.stats().table_bytes as f64 / pages as f64, heap: None }
    }
}

/// Measures this many stored pages.
pub fn stored(pages: u64) -> Vec<Row> {
    let mut all = StoredPages::new(4 * pages);
    let before = heap::in_use();
    let mut space = MeasuredSpace::new();
    (0..pages).for_each(|page| space.table.set(page * PAGE, uswap_core::page::word::PageWord::UNTOUCHED.stored(1, 1)));
    let words = space.table.bytes() as f64 / pages as f64;
    all.put(pages);
    let heap = heap::in_use().zip(before).map(|(now, before)| now.saturating_sub(before) as f64 / pages as f64);
    let mut rows = vec![Row { heap, ..all.row("stored in order", words) }];
    let mut random = TouchRandom(9);
    for _ in 0..8 {
        for _ in 0..pages / 2 {
            let id = all.held.swap_remove(random.below(all.held.len() as u64) as usize);
            all.store.release(id);
        }
        all.put(pages / 2);
    }
    rows.push(all.row("half of them replaced at random, eight times", words));
    all.put(3 * pages);
    all.held.drain(..3 * pages as usize).for_each(|id| all.store.release(id));
    all.store.trim_table();
    rows.push(all.row("the last quarter of a peak", words));
    all.put(3 * pages);
    while all.held.len() as u64 > pages {
        let id = all.held.swap_remove(random.below(all.held.len() as u64) as usize);
        all.store.release(id);
    }
    all.store.trim_table();
    rows.push(all.row("a quarter of a peak, left over at random", words));
    rows
}

/// The tables for several numbers of pages, in Markdown.
pub fn tables(sizes: &[u64]) -> String {
    let mut text = String::new();
    for (title, beside, rows) in [("Resident", "lists", resident as fn(u64) -> Vec<Row>), ("Stored", "objects", stored)]
    {
        let _ = writeln!(
            text,
            "## {title}: bytes a page\n| pages | | page words | {beside} | both | as the allocator counts |\n|---|---|---|---|---|---|"
        );
        for row in sizes.iter().flat_map(|pages| rows(*pages)) {
            let heap = row.heap.map_or("-".into(), |heap| format!("{heap:.2}"));
            let _ = writeln!(
                text,
                "| {} | {} | {:.2} | {:.2} | {:.2} | {heap} |",
                row.pages,
                row.what,
                row.words,
                row.beside,
                row.both()
            );
        }
        text.push('\n');
    }
    text
}
