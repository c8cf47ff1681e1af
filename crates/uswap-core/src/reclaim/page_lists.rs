//! The resident pages of a space that can be evicted, on two lists: joins the lists with the page
//! words that say which of their entries count.
//!
//! Every policy keeps its pages here. Policies differ in which page they take: the one at the head
//! of a list, at its tail, or anywhere. The invariant is the same for all: a page whose word says
//! *queued* has one entry that counts, on the list that its word names, and so reclaim finds it,
//! and chooses it once.

use crate::page::table::{PageIndex, PageTable};
use crate::page::word::{PageState, PageWord};
use crate::reclaim::lists::Lists;

/// An inactive and an active list of pages. A policy that needs only one list leaves the active one
/// empty.
#[derive(Clone, Debug, Default)]
pub struct PageLists {
    lists: Lists,
    /// Evictions so far: the clock of the shadows.
    evictions: u64,
}

impl PageLists {
    /// Puts a resident page at the tail of the list that its word names, and writes the word.
    pub fn join(&mut self, table: &mut PageTable, page: u64, word: PageWord) {
        self.enter(table, page, word, Lists::push);
    }

    /// Puts a resident page at the head of the inactive list, and writes the word.
    pub fn rejoin(&mut self, table: &mut PageTable, page: u64, word: PageWord) {
        self.enter(table, page, word.set_active(false), Lists::push_first);
    }

    /// If the table is so large that it has no names left, the page is on no list, and stays where
    /// it is.
    fn enter(&mut self, table: &mut PageTable, page: u64, word: PageWord, push: fn(&mut Lists, PageIndex, bool)) {
        let Some(index) = table.name(page) else { return table.set(page, word.set_queued(false)) };
        push(&mut self.lists, index, word.active());
        table.set_word(index, word.set_queued(true));
        if self.lists.is_stale() {
            self.purge(table);
        }
    }

    /// Must be called before the word of a page is overwritten.
    pub fn forget(&mut self, word: PageWord) {
        if word.state() == PageState::Resident && word.queued() {
            self.lists.leave(word.active());
        }
    }

    /// Takes the page at the head of a list: it is on no list any more.
    pub fn take_first(&mut self, table: &mut PageTable, active: bool) -> Option<u64> {
        loop {
            let entry = self.lists.pop(active)?;
            if let Some(page) = self.settle(table, entry, active, active) {
                return Some(page);
            }
        }
    }

    /// Takes the page at the tail of a list.
    pub fn take_last(&mut self, table: &mut PageTable, active: bool) -> Option<u64> {
        loop {
            let entry = self.lists.pop_last(active)?;
            if let Some(page) = self.settle(table, entry, active, active) {
                return Some(page);
            }
        }
    }

    /// Takes the entry at the head of a list, which may be stale; call [`settle`](Self::settle)
    /// with it.
    pub fn pop(&mut self, active: bool) -> Option<PageIndex> {
        self.lists.pop(active)
    }

    /// Takes the entry at `index` of the active list; the entry at the head takes its place. Call
    /// [`settle`](Self::settle) with it.
    pub fn pop_at(&mut self, index: usize) -> Option<PageIndex> {
        self.lists.pop_at(index)
    }

    /// The page of an entry that was taken from a list, or `None` if the entry is stale. The page
    /// is on no list any more; `stays_active` says whether its word still marks it active.
    pub fn settle(&mut self, table: &mut PageTable, entry: PageIndex, active: bool, stays_active: bool) -> Option<u64> {
        let (page, word) = (table.address(entry), table.word(entry));
        let chosen = counts(word, active);
        if chosen {
            self.lists.leave(active);
            table.set_word(entry, word.set_queued(false).set_active(stays_active));
        }
        table.unname(entry);
        chosen.then_some(page)
    }

    /// Moves the page at the tail of the active list to the head of the inactive one; `false` if
    /// there is none.
    pub fn demote_last(&mut self, table: &mut PageTable) -> bool {
        while let Some(entry) = self.lists.pop_last(true) {
            let word = table.word(entry);
            if counts(word, true) {
                self.lists.leave(true);
                table.set_word(entry, word.set_active(false));
                self.lists.push_first(entry, false);
                return true;
            }
            table.unname(entry);
        }
        false
    }

    /// Counts an eviction. Returns the evictions so far, this one included.
    pub fn count_eviction(&mut self) -> u64 {
        self.evictions += 1;
        self.evictions
    }

    /// Evictions so far.
    pub fn evictions(&self) -> u64 {
        self.evictions
    }

    /// Pages on a list.
    pub fn count(&self, active: bool) -> u64 {
        self.lists.count(active)
    }

    /// Bytes of the lists, stale entries included.
    pub fn bytes(&self) -> usize {
        self.lists.bytes()
    }

    /// Entries of a list, stale ones included.
    pub fn entries(&self, active: bool) -> usize {
        self.lists.entries(active)
    }

    /// The lists, for code that checks their consistency.
    pub fn lists(&self) -> &Lists {
        &self.lists
    }

    /// Drops stale entries if they are many, and gives back memory that the lists do not need any
    /// more.
    pub fn tidy(&mut self, table: &mut PageTable) {
        if self.lists.is_stale() {
            self.purge(table);
        }
        self.lists.trim();
    }

    /// Drops all stale entries. In a first pass the first entry of a page clears the mark in the
    /// page's word, so that further entries of the same page show as stale; a second pass restores
    /// the marks.
    pub fn purge(&mut self, table: &mut PageTable) {
        self.lists.purge(|entry, active| {
            let word = table.word(entry);
            let wanted = counts(word, active);
            match wanted {
                true => table.set_word(entry, word.set_queued(false)),
                false => table.unname(entry),
            }
            wanted
        });
        self.lists.iter().for_each(|(entry, _)| table.set_word(entry, table.word(entry).set_queued(true)));
    }
}

/// Whether an entry of that list counts, by the page's word.
fn counts(word: PageWord, active: bool) -> bool {
    word.state() == PageState::Resident && word.queued() && word.active() == active
}
