//! The pages of all cached files: which are resident, which lie in the store, and which leave.
//!
//! The policy is `uswap_core::reclaim::recency`, which the lab has as `uswap-mount`; each group of
//! files has one of its own ([`groups`](crate::cache::groups)).
//!
//! A page that leaves goes to the store if it has been used more than once: it was active, or it
//! had come back before. All others, and so all pages of a stream, are dropped. Either way its word
//! keeps the *shadow*, which tells the refault distance when the page returns. Shadows of dropped
//! pages are bounded: the *history* has as many of them as pages may be resident, twice as many
//! where there is a store, and the oldest goes first.
//!
//! Nothing here waits or locks: the owner holds a lock around it.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use uswap_core::PAGE;
use uswap_core::page::table::PageTable;
use uswap_core::page::word::{PageState, PageWord};
use uswap_store::ObjectId;
use uswap_sys::alloc::frames::{Frame, Frames};

use crate::cache::groups::{CacheGroups, GroupId};
use crate::cache::keys::{KeyRange, KeySpace};

/// The object of a page that lies nowhere: its word is kept for its shadow.
const NO_OBJECT: u32 = u32::MAX;
/// Least length of the history.
const LEAST_HISTORY: u64 = 1024;
/// A new page displaces no other while one part in this number of the limit is free. (Less than
/// that is free now and then because of pages in flight.)
const ROOM_SHARE: u64 = 8;

/// Where a page is.
#[derive(Debug)]
pub enum CachedPage {
    /// In memory.
    Resident(Frame),
    /// In the pool or on a device.
    Stored(ObjectId),
    /// Nowhere.
    Absent,
}

/// A page that leaves memory and is worth being stored.
#[derive(Debug)]
pub struct Leaving {
    /// Its key.
    pub key: u64,
    /// Its bytes.
    pub frame: Frame,
    /// The word that it has now: if it has changed, the page has come back or was forgotten.
    word: PageWord,
    regrouped: u64,
}

/// Counts of what happened. All amounts are pages.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct CacheCounts {
    /// Pages that came back after they had left.
    pub refaults: u64,
    /// Refaults that made the page active at once.
    pub activations: u64,
    /// Pages that left memory.
    pub evictions: u64,
}

/// All pages.
#[derive(Debug)]
pub struct CachePages {
    table: PageTable,
    keys: KeySpace,
    groups: CacheGroups,
    frames: Arc<Frames>,
    /// How often files have changed their groups.
    regrouped: u64,
    limit: u64,
    stores: bool,
    counts: CacheCounts,
}

impl CachePages {
    /// No pages. At most `limit` will be resident; `stores`: there is a store for pages that leave.
    pub fn new(frames: Arc<Frames>, limit: u64, stores: bool) -> Self {
        Self {
            table: PageTable::default(),
            keys: KeySpace::default(),
            groups: CacheGroups::new(limit),
            frames,
            regrouped: 0,
            limit,
            stores,
            counts: CacheCounts::default(),
        }
    }

    /// The groups of files.
    pub fn groups(&self) -> &CacheGroups {
        &self.groups
    }

    /// The groups, to be changed; [`shrink`](Self::shrink) is to be called afterwards.
    pub fn groups_mut(&mut self) -> &mut CacheGroups {
        &mut self.groups
    }

    /// Keys for a file of that many pages and that group; `None`: it is too large.
    pub fn take_range(&mut self, pages: u64, group: GroupId) -> Option<KeyRange> {
        self.keys.take(pages, group)
    }

    /// Takes keys back, and forgets their pages.
    pub fn give_range_back(&mut self, range: KeyRange, released: &mut Vec<ObjectId>) {
        self.forget(range.keys(), released);
        self.keys.give_back(range);
    }

    /// Looks a page up. `is_access`: it is used now.
    pub fn get(&mut self, key: u64, is_access: bool) -> CachedPage {
        let word = self.table.get(key);
        match word.state() {
            PageState::Resident => {
                if is_access {
                    let group = self.groups.get_mut(self.keys.group(key));
                    group.policy.touch(&mut self.table, key, word);
                }
                CachedPage::Resident(self.frames.kept(word.frame().expect("a resident page has a frame")))
            }
            PageState::Stored(object) if object != NO_OBJECT => CachedPage::Stored(ObjectId::from_bits(object)),
            _ => CachedPage::Absent,
        }
    }

    /// Whether the page is resident or stored.
    pub fn has(&self, key: u64) -> bool {
        match self.table.get(key).state() {
            PageState::Resident => true,
            PageState::Stored(object) => object != NO_OBJECT,
            _ => false,
        }
    }

    /// Takes a page in, unless it is resident already. Pages that must leave for it are handed to
    /// `leaving`, and objects that are not needed any more to `released`. `ahead`: it is not used
    /// yet.
    pub fn insert(&mut self, key: u64, frame: &Frame, ahead: bool, out: &mut Displaced) {
        let word = self.table.get(key);
        let object = match word.state() {
            PageState::Resident => return,
            PageState::Stored(object) => Some(object),
            _ => None,
        };
        let id = self.keys.group(key);
        if let Some(object) = object.filter(|object| *object != NO_OBJECT) {
            self.groups.get_mut(id).stored -= 1;
            out.released.push(ObjectId::from_bits(object));
        }
        let room = self.groups.has_room(id, ROOM_SHARE);
        let returns = object.is_some();
        let is_near = returns && self.groups.is_near(id, u64::from(word.refault_distance(self.clock(id))));
        let new = word.in_frame(frame.keep(), returns).set_ahead(ahead);
        let policy = &mut self.groups.get_mut(id).policy;
        let active = policy.join(&mut self.table, key, new, returns.then_some(word), room);
        self.groups.page_came(id);
        self.counts.refaults += u64::from(returns);
        self.counts.activations += u64::from(returns && active);
        while let Some(over) = self.groups.over_limit(id)
            && self.evict_within(over, (!is_near).then_some(id), false, out)
        {}
    }

    /// Evicts pages until no group has more than its limit.
    pub fn shrink(&mut self, out: &mut Displaced) {
        while let Some(over) = self.groups.any_over_limit()
            && self.evict_within(over, None, false, out)
        {}
    }

    /// Evicts some pages, whatever the limit, because memory is short for a moment.
    pub fn evict_some(&mut self, count: usize, out: &mut Displaced) {
        for _ in 0..count {
            if !self.evict_within(GroupId::ROOT, None, true, out) {
                return;
            }
        }
    }

    /// Evicts one page of a group or of those below it; `false`: there is none. `newcomer`: the
    /// group of the page that needs the room, if it is a new one. `passing`: memory is short for a
    /// moment only.
    fn evict_within(&mut self, above: GroupId, newcomer: Option<GroupId>, passing: bool, out: &mut Displaced) -> bool {
        let Some(giver) = self.groups.giver(above, newcomer) else { return false };
        let policy = &mut self.groups.get_mut(giver).policy;
        let Some(key) = policy.next_victim(&mut self.table, passing) else { return false };
        let word = self.table.get(key);
        self.evict(key, self.stores && (word.active() || word.has_returned()), out);
        true
    }

    /// Evicts some pages to the store, whatever is known of them, active ones first.
    pub fn store_some(&mut self, count: usize, out: &mut Displaced) {
        for _ in 0..count {
            let Some(id) = self.groups.giver(GroupId::ROOT, None) else { return };
            let Some(key) = self.groups.get_mut(id).policy.take_any(&mut self.table) else { return };
            self.evict(key, true, out);
        }
    }

    fn evict(&mut self, key: u64, stored: bool, out: &mut Displaced) {
        let id = self.keys.group(key);
        let word = self.table.get(key);
        self.groups.page_left(id);
        self.counts.evictions += 1;
        let clock = self.groups.get_mut(id).policy.evict();
        let shadow = word.stored(NO_OBJECT, clock);
        self.table.set(key, shadow);
        let number = word.frame().expect("a resident page has a frame");
        if stored {
            let regrouped = self.regrouped;
            out.leaving.push(Leaving { key, frame: self.frames.kept(number), word: shadow, regrouped });
        }
        self.frames.let_go(number);
        self.remember(key);
    }

    /// Evictions of a group so far, modulo the range of a shadow.
    fn clock(&self, group: GroupId) -> u32 {
        self.groups.get(group).policy.pages().evictions() as u32
    }

    /// The clock at which a page left, by its shadow.
    fn left_at(&self, key: u64, shadow: PageWord) -> u32 {
        let now = self.clock(self.keys.group(key));
        now.wrapping_sub(shadow.refault_distance(now))
    }

    /// Adds a page that left to the history of its group, and forgets the shadows that are too old
    /// for all histories together.
    fn remember(&mut self, key: u64) {
        self.groups.get_mut(self.keys.group(key)).history.push_back(key);
        let most = if self.stores { self.limit * 2 } else { self.limit };
        while self.groups.history() > most.max(LEAST_HISTORY) {
            let longest = self.groups.longest_history();
            let history = &mut self.groups.get_mut(longest).history;
            let age = history.len() as u32;
            let Some(oldest) = history.pop_front() else { return };
            let word = self.table.get(oldest);
            // If it left once more since, or for another group, a later entry names it.
            if word.state() == PageState::Stored(NO_OBJECT)
                && self.keys.group(oldest) == longest
                && word.refault_distance(self.clock(longest)) + 1 >= age
            {
                self.table.take_range(oldest, oldest + PAGE, |_, _| {});
            }
        }
    }

    /// Notes that a page which left now lies in the store. `false`: it is not wanted any more, and
    /// the caller keeps the object.
    pub fn note_stored(&mut self, page: &Leaving, object: ObjectId) -> bool {
        // Clocks of groups differ, so another page that left for another group may have the word.
        let is_same = self.table.get(page.key) == page.word && page.regrouped == self.regrouped;
        if is_same {
            let clock = self.left_at(page.key, page.word);
            let word = page.word.set_active(page.word.workingset()).stored(object.to_bits(), clock);
            self.table.set(page.key, word);
            self.groups.get_mut(self.keys.group(page.key)).stored += 1;
        }
        is_same
    }

    /// Notes a page that lies in the store from before this mount.
    pub fn note_kept(&mut self, key: u64, object: ObjectId) {
        let id = self.keys.group(key);
        self.table.set(key, PageWord::UNTOUCHED.stored(object.to_bits(), self.clock(id)));
        self.groups.get_mut(id).stored += 1;
    }

    /// All pages of these keys of which something is known, and the objects of those that are
    /// stored.
    pub fn words_in(&self, keys: Range<u64>) -> impl Iterator<Item = (u64, Option<ObjectId>)> + '_ {
        let words = self.table.iter_from(keys.start).take_while(move |(key, _)| *key < keys.end);
        words.map(|(key, word)| match word.state() {
            PageState::Stored(object) if object != NO_OBJECT => (key, Some(ObjectId::from_bits(object))),
            _ => (key, None),
        })
    }

    /// Whether the page is stored as that object.
    pub fn is_stored_as(&self, key: u64, object: ObjectId) -> bool {
        self.table.get(key).state() == PageState::Stored(object.to_bits()) && object.to_bits() != NO_OBJECT
    }

    /// A stored page is dropped, if it is still that object; its shadow stays.
    pub fn drop_stored(&mut self, key: u64, object: ObjectId) -> bool {
        let word = self.table.get(key);
        let is_same = self.is_stored_as(key, object);
        if is_same {
            let clock = self.left_at(key, word);
            self.table.set(key, word.set_active(word.workingset()).stored(NO_OBJECT, clock));
            self.groups.get_mut(self.keys.group(key)).stored -= 1;
            self.remember(key);
        }
        is_same
    }

    /// Forgets the pages of these keys of one file, shadows included: their content is not valid
    /// any more.
    pub fn forget(&mut self, keys: Range<u64>, released: &mut Vec<ObjectId>) {
        let id = self.keys.group(keys.start);
        let (groups, frames) = (&mut self.groups, &self.frames);
        self.table.take_range(keys.start, keys.end, |_, word| match word.state() {
            PageState::Resident => {
                groups.get_mut(id).policy.forget(word);
                groups.page_left(id);
                frames.let_go(word.frame().expect("a resident page has a frame"));
            }
            PageState::Stored(object) if object != NO_OBJECT => {
                groups.get_mut(id).stored -= 1;
                released.push(ObjectId::from_bits(object));
            }
            _ => {}
        });
    }

    /// Whether any word of these keys is left.
    pub fn has_any(&self, keys: Range<u64>) -> bool {
        self.table.iter_from(keys.start).next().is_some_and(|(key, _)| key < keys.end)
    }

    /// Changes the limit; [`shrink`](Self::shrink) is to be called afterwards.
    pub fn set_limit(&mut self, pages: u64) {
        self.limit = pages;
        self.groups.set_limit(GroupId::ROOT, Some(pages));
    }

    /// Puts files into other groups, with their pages. A page that is in memory counts as used now,
    /// and shadows are forgotten: each group has its own time.
    pub fn change_groups(&mut self, moves: &[(KeyRange, GroupId)]) {
        self.regrouped += 1;
        let mut moved = Vec::new();
        let mut givers = BTreeSet::new();
        for (range, to) in moves {
            let from = self.keys.group(range.keys().start);
            if from == *to {
                continue;
            }
            givers.insert(from);
            self.take_off(range.keys(), from, *to, &mut moved);
            self.keys.set_group(*range, *to);
        }
        // No entry of such a page may be left: it would count for the lists of two groups.
        givers.iter().for_each(|from| self.groups.get_mut(*from).policy.drop_stale(&mut self.table));
        for (key, word) in moved {
            let to = self.keys.group(key);
            self.groups.get_mut(to).policy.adopt(&mut self.table, key, word);
            self.groups.page_came(to);
        }
    }

    /// Takes the pages of a file off the lists of its group; those in memory are added to `moved`.
    fn take_off(&mut self, keys: Range<u64>, from: GroupId, to: GroupId, moved: &mut Vec<(u64, PageWord)>) {
        let words = self.table.iter_from(keys.start).take_while(|(key, _)| *key < keys.end);
        let words: Vec<(u64, PageWord)> = words.collect();
        let clock = self.clock(to);
        for (key, word) in words {
            match word.state() {
                PageState::Resident => {
                    self.groups.get_mut(from).policy.forget(word);
                    self.groups.page_left(from);
                    self.table.set(key, word.set_queued(false));
                    moved.push((key, word.set_queued(false)));
                }
                PageState::Stored(object) if object != NO_OBJECT => {
                    self.table.set(key, word.set_active(word.workingset()).stored(object, clock));
                    self.groups.get_mut(from).stored -= 1;
                    self.groups.get_mut(to).stored += 1;
                }
                _ => self.table.take_range(key, key + PAGE, |_, _| {}),
            }
        }
    }

    /// Drops a group without pages; keys that no file has go to the group `to`.
    pub fn drop_group(&mut self, id: GroupId, to: GroupId) {
        self.groups.get_mut(id).policy.drop_stale(&mut self.table);
        self.keys.hand_on(id, to);
        self.groups.drop_empty(id);
    }

    /// Maximum number of resident pages.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Number of resident pages.
    pub fn resident(&self) -> u64 {
        self.groups.get(GroupId::ROOT).used()
    }

    /// Number of active pages among them.
    pub fn active(&self) -> u64 {
        self.groups.iter().map(|(_, group)| group.policy.pages().count(true)).sum()
    }

    /// Number of stored pages.
    pub fn stored(&self) -> u64 {
        self.groups.iter().map(|(_, group)| group.stored).sum()
    }

    /// Counts of what happened so far.
    pub fn counts(&self) -> CacheCounts {
        self.counts
    }

    /// Number of remembered shadows, at most.
    pub fn history(&self) -> u64 {
        self.groups.history()
    }

    /// Memory of the tables in bytes, without the pages.
    pub fn table_bytes(&self) -> u64 {
        let queues = self.groups.iter().map(|(_, group)| {
            let history = group.history.capacity() * size_of::<u64>();
            history + group.policy.pages().bytes()
        });
        let frames = self.resident() as usize * 2 * size_of::<u32>();
        (self.table.bytes() + queues.sum::<usize>() + frames) as u64
    }

    /// Panics if a group's figures are not those of its pages, or if a page is on no list of its
    /// group.
    #[cfg(test)]
    pub(super) fn check(&self) {
        let mut found = std::collections::HashMap::<GroupId, (u64, u64, u64)>::new();
        for (key, word) in self.table.iter_from(0) {
            let (resident, stored, queued) = found.entry(self.keys.group(key)).or_default();
            match word.state() {
                PageState::Resident => {
                    *resident += 1;
                    *queued += u64::from(word.queued());
                }
                PageState::Stored(object) if object != NO_OBJECT => *stored += 1,
                _ => {}
            }
        }
        for (id, group) in self.groups.iter() {
            let lists = group.policy.pages();
            let told = (group.resident(), group.stored, lists.count(true) + lists.count(false));
            assert_eq!(told, found.remove(&id).unwrap_or_default(), "{id:?}");
        }
        assert!(found.is_empty(), "pages of groups that do not exist: {found:?}");
        assert!(self.resident() <= self.limit);
    }

    /// Regular work.
    pub fn tidy(&mut self) {
        let Self { groups, table, .. } = self;
        groups.iter_mut().for_each(|group| group.policy.tidy(table));
    }
}

/// The work that changes of the table leave, once its lock is free.
#[derive(Debug, Default)]
pub struct Displaced {
    /// Pages that are worth being stored.
    pub leaving: Vec<Leaving>,
    /// Objects that no page names any more.
    pub released: Vec<ObjectId>,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Stored on the word alone, the content of before would be given for what the file has now.
    #[test]
    fn a_page_on_its_way_to_the_store_does_not_count_for_another_that_left_for_another_group() {
        let frames = Frames::new(16).expect("frames");
        let mut pages = CachePages::new(Arc::clone(&frames), 8, true);
        let group = pages.groups_mut().add(GroupId::ROOT).expect("a group");
        let range = pages.take_range(1, GroupId::ROOT).expect("a range");
        let mut out = Displaced::default();
        let mut passes = |pages: &mut CachePages| {
            pages.insert(range.keys().start, &frames.take().expect("a frame").share(), false, &mut out);
            pages.store_some(1, &mut out);
        };
        passes(&mut pages);
        pages.change_groups(&[(range, group)]);
        passes(&mut pages);
        let [before, now] = &out.leaving[..] else { panic!("it left twice") };
        assert_eq!(before.word, now.word, "two clocks tell the same");
        assert!(!pages.note_stored(before, ObjectId::from_bits(1)));
        assert!(pages.note_stored(now, ObjectId::from_bits(2)));
    }
}
