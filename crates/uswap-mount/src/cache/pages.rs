//! The pages of all cached files: which are resident, which lie in the store, and which leave.
//!
//! The policy is `uswap_core::reclaim::recency`, which the lab has as `uswap-mount`.
//!
//! A page that leaves goes to the store if it has been used more than once: it was active, or it
//! had come back before. All others, and so all pages of a stream, are dropped. Either way its word
//! keeps the *shadow*, which tells the refault distance when the page returns. Shadows of dropped
//! pages are bounded: the *history* has as many of them as pages may be resident, twice as many
//! where there is a store, and the oldest goes first.
//!
//! Nothing here waits or locks: the owner holds a lock around it.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use uswap_core::PAGE;
use uswap_core::page::table::PageTable;
use uswap_core::page::word::{PageState, PageWord};
use uswap_core::reclaim::recency::Recency;
use uswap_store::ObjectId;
use uswap_sys::alloc::frames::{Frame, Frames};

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
    policy: Recency,
    frames: Arc<Frames>,
    /// Keys of the pages that left, in the order in which they did.
    history: VecDeque<u64>,
    resident: u64,
    stored: u64,
    limit: u64,
    stores: bool,
    counts: CacheCounts,
}

impl CachePages {
    /// No pages. At most `limit` will be resident; `stores`: there is a store for pages that leave.
    pub fn new(frames: Arc<Frames>, limit: u64, stores: bool) -> Self {
        Self {
            table: PageTable::default(),
            policy: Recency::default(),
            frames,
            history: VecDeque::new(),
            resident: 0,
            stored: 0,
            limit,
            stores,
            counts: CacheCounts::default(),
        }
    }

    /// Looks a page up. `is_access`: it is used now.
    pub fn get(&mut self, key: u64, is_access: bool) -> CachedPage {
        let word = self.table.get(key);
        match word.state() {
            PageState::Resident => {
                if is_access {
                    self.policy.touch(&mut self.table, key, word);
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
        if let Some(object) = object.filter(|object| *object != NO_OBJECT) {
            self.stored -= 1;
            out.released.push(ObjectId::from_bits(object));
        }
        let room = self.resident + self.limit / ROOM_SHARE < self.limit;
        let returns = object.is_some();
        let new = word.in_frame(frame.keep(), returns).set_ahead(ahead);
        let active = self.policy.join(&mut self.table, key, new, returns.then_some(word), room);
        self.resident += 1;
        self.counts.refaults += u64::from(returns);
        self.counts.activations += u64::from(returns && active);
        self.shrink(out);
    }

    /// Evicts pages until no more than the limit are resident.
    pub fn shrink(&mut self, out: &mut Displaced) {
        while self.resident > self.limit && self.evict_one(false, out) {}
    }

    /// Evicts some pages, whatever the limit, because memory is short for a moment.
    pub fn evict_some(&mut self, count: usize, out: &mut Displaced) {
        for _ in 0..count {
            if !self.evict_one(true, out) {
                return;
            }
        }
    }

    /// Evicts one page; `false`: there is none. `passing`: memory is short for a moment only.
    fn evict_one(&mut self, passing: bool, out: &mut Displaced) -> bool {
        let Some(key) = self.policy.next_victim(&mut self.table, passing) else { return false };
        let word = self.table.get(key);
        self.evict(key, self.stores && (word.active() || word.has_returned()), out);
        true
    }

    /// Evicts some pages to the store, whatever is known of them, active ones first.
    pub fn store_some(&mut self, count: usize, out: &mut Displaced) {
        for _ in 0..count {
            let Some(key) = self.policy.take_any(&mut self.table) else { return };
            self.evict(key, true, out);
        }
    }

    fn evict(&mut self, key: u64, stored: bool, out: &mut Displaced) {
        let word = self.table.get(key);
        self.resident -= 1;
        self.counts.evictions += 1;
        let clock = self.policy.evict();
        let shadow = word.stored(NO_OBJECT, clock);
        self.table.set(key, shadow);
        let number = word.frame().expect("a resident page has a frame");
        if stored {
            out.leaving.push(Leaving { key, frame: self.frames.kept(number), word: shadow });
        }
        self.frames.let_go(number);
        self.remember(key);
    }

    /// Evictions so far, modulo the range of a shadow.
    fn clock(&self) -> u32 {
        self.policy.pages().evictions() as u32
    }

    /// Adds a page that left to the history, and forgets the shadows that are too old for it.
    fn remember(&mut self, key: u64) {
        self.history.push_back(key);
        let most = if self.stores { self.limit * 2 } else { self.limit };
        while self.history.len() as u64 > most.max(LEAST_HISTORY) {
            let age = self.history.len() as u32;
            let Some(oldest) = self.history.pop_front() else { return };
            let word = self.table.get(oldest);
            // If it left once more since, a later entry names it.
            if word.state() == PageState::Stored(NO_OBJECT) && word.refault_distance(self.clock()) + 1 >= age {
                self.table.take_range(oldest, oldest + PAGE, |_, _| {});
            }
        }
    }

    /// Notes that a page which left now lies in the store. `false`: it is not wanted any more, and
    /// the caller keeps the object.
    pub fn note_stored(&mut self, page: &Leaving, object: ObjectId) -> bool {
        let is_same = self.table.get(page.key) == page.word;
        if is_same {
            let clock = self.clock().wrapping_sub(page.word.refault_distance(self.clock()));
            let word = page.word.set_active(page.word.workingset()).stored(object.to_bits(), clock);
            self.table.set(page.key, word);
            self.stored += 1;
        }
        is_same
    }

    /// Notes a page that lies in the store from before this mount.
    pub fn note_kept(&mut self, key: u64, object: ObjectId) {
        self.table.set(key, PageWord::UNTOUCHED.stored(object.to_bits(), self.clock()));
        self.stored += 1;
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
            let clock = self.clock().wrapping_sub(word.refault_distance(self.clock()));
            self.table.set(key, word.set_active(word.workingset()).stored(NO_OBJECT, clock));
            self.stored -= 1;
            self.remember(key);
        }
        is_same
    }

    /// Forgets the pages of these keys, shadows included: their content is not valid any more.
    pub fn forget(&mut self, keys: Range<u64>, released: &mut Vec<ObjectId>) {
        let (policy, frames) = (&mut self.policy, &self.frames);
        let (resident, stored) = (&mut self.resident, &mut self.stored);
        self.table.take_range(keys.start, keys.end, |_, word| match word.state() {
            PageState::Resident => {
                policy.forget(word);
                *resident -= 1;
                frames.let_go(word.frame().expect("a resident page has a frame"));
            }
            PageState::Stored(object) if object != NO_OBJECT => {
                *stored -= 1;
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
    }

    /// Maximum number of resident pages.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Number of resident pages.
    pub fn resident(&self) -> u64 {
        self.resident
    }

    /// Number of active pages among them.
    pub fn active(&self) -> u64 {
        self.policy.pages().count(true)
    }

    /// Number of stored pages.
    pub fn stored(&self) -> u64 {
        self.stored
    }

    /// Counts of what happened so far.
    pub fn counts(&self) -> CacheCounts {
        self.counts
    }

    /// Number of remembered shadows, at most.
    pub fn history(&self) -> u64 {
        self.history.len() as u64
    }

    /// Memory of the tables in bytes, without the pages.
    pub fn table_bytes(&self) -> u64 {
        let queues = self.history.capacity() * size_of::<u64>();
        let frames = self.resident as usize * 2 * size_of::<u32>();
        (self.table.bytes() + self.policy.pages().bytes() + queues + frames) as u64
    }

    /// Regular work.
    pub fn tidy(&mut self) {
        self.policy.tidy(&mut self.table);
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
