//! A policy for comparison: pages are evicted in the order in which they came. No page is active,
//! and no age is tested.

use crate::page::table::PageTable;
use crate::page::word::PageWord;
use crate::reclaim::page_lists::PageLists;
use crate::reclaim::policy::ReclaimPolicy;

/// First in, first out.
#[derive(Clone, Debug, Default)]
pub struct Fifo {
    pages: PageLists,
}

impl ReclaimPolicy for Fifo {
    fn pages(&self) -> &PageLists {
        &self.pages
    }

    fn pages_mut(&mut self) -> &mut PageLists {
        &mut self.pages
    }

    fn join(&mut self, table: &mut PageTable, page: u64, word: PageWord) {
        self.pages.join(table, page, word.set_active(false));
    }

    fn next_victim(&mut self, table: &mut PageTable) -> Option<u64> {
        self.pages.take_first(table, false)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const PAGE: u64 = 4096;

    /// This also holds for a page that comes back at once, and for one that was to be active.
    #[test]
    fn without_a_policy_who_came_first_goes_first() {
        let (mut table, mut policy) = (PageTable::default(), Fifo::default());
        assert!(!policy.has_room(true) && policy.staging_target(1000).is_none());
        for page in 0..20 {
            policy.join(&mut table, page * PAGE, PageWord::default().resident().set_active(page % 3 == 0));
        }
        for page in 0..40 {
            assert_eq!(policy.next_victim(&mut table), Some(page % 20 * PAGE));
            let word = table.get(page % 20 * PAGE);
            let evicted = word.zero(policy.evict(word));
            assert!(!policy.refault(evicted).activate, "page {page}");
            policy.join(&mut table, page % 20 * PAGE, evicted.resident().set_active(true));
        }
    }
}
