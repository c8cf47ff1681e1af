//! A policy that exists only in tests: the page that came last is evicted first. It shows how much
//! code a new policy needs, and passes the tests that every policy must pass.

use crate::page::table::PageTable;
use crate::reclaim::page_lists::PageLists;
use crate::reclaim::policy::ReclaimPolicy;

/// Last in, first out.
#[derive(Clone, Debug, Default)]
pub struct NewestFirst {
    pages: PageLists,
}

impl ReclaimPolicy for NewestFirst {
    fn pages(&self) -> &PageLists {
        &self.pages
    }

    fn pages_mut(&mut self) -> &mut PageLists {
        &mut self.pages
    }

    /// Active pages are not protected here: they go after the inactive ones.
    fn next_victim(&mut self, table: &mut PageTable) -> Option<u64> {
        self.pages.take_last(table, false).or_else(|| self.pages.take_last(table, true))
    }
}

#[cfg(not(loom))]
#[test]
fn who_came_last_goes_first() {
    use crate::page::word::PageWord;
    let (mut table, mut policy) = (PageTable::default(), NewestFirst::default());
    for page in 1..=5 {
        policy.join(&mut table, page * 4096, PageWord::default().resident());
    }
    let gone: Vec<u64> = std::iter::from_fn(|| policy.next_victim(&mut table)).collect();
    assert_eq!(gone, [5, 4, 3, 2, 1].map(|page| page * 4096));
}
