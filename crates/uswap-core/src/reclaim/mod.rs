//! The eviction policies, which decide which page is evicted next. [`policy`] is the trait that the
//! pager calls, and the list below names all policies: a policy is a file of this folder and a line
//! here. The engine's own policy (`working_set.rs`) has two lists, the refault distance, and the
//! test of age.

#[macro_use]
mod registry;

pub mod age_test;
pub mod lists;
pub mod page_lists;
pub mod policy;
#[cfg(all(test, not(loom)))]
mod policy_tests;
pub mod recency;
pub mod staging;
pub mod thrash_guard;

use crate::page::table::PageTable;
use crate::page::word::PageWord;
use age_test::Cost;
use page_lists::PageLists;
use policy::{ReclaimPolicy, Refault};

reclaim_policies! {
    working_set::WorkingSet = "working-set", "two lists with staged pages, refault distance and a thrash guard";
    fifo::Fifo = "fifo", "first in, first out, whatever the age of a page";
    #[cfg(test)] newest_first::NewestFirst = "newest-first", "last in, first out";
}

impl PolicyKind {
    /// The policy of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|kind| kind.name() == name)
    }

    /// Whether it is the engine's own.
    pub fn is_default(self) -> bool {
        self == Self::default()
    }
}

impl Default for PolicyKind {
    fn default() -> Self {
        Self::ALL[0]
    }
}

impl Default for AnyPolicy {
    fn default() -> Self {
        PolicyKind::default().build()
    }
}
