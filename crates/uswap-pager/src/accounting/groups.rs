//! The groups as the engine's threads see them.
//!
//! The owners charge and ask for room, the governor measures and meets new processes, the control
//! thread changes the tree. Charging needs the tree only to stay as it is, so it takes the lock for
//! reading; all sums are atomic. The lock is written by governor and control thread alone, which
//! try until nobody reads: they never stand in line, so that an owner that was lowered inside the
//! lock ([`crate::idle_priority`]) holds up nobody who could raise it.
//!
//! A run in which no group was ever made pays one load of a flag.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError};
use std::time::Duration;

use crate::accounting::group::{Account, GroupTree, Limit, NO_LIMIT, ROOT};
use crate::idle_priority::IdlePriority;

/// Between two attempts to write.
const PAUSE: Duration = Duration::from_micros(50);

/// A group that wants pages evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Short {
    /// Its number, as long as the tree is not changed.
    pub group: usize,
    /// Pages.
    pub wanted: i64,
}

/// What is told of a group. Pages of 4 KiB.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Figures {
    /// Its path; the root is `/`.
    pub path: String,
    /// Its own limit.
    pub limit: Option<i64>,
    /// In use, with the groups below it.
    pub used: i64,
    /// The most that was measured.
    pub peak: i64,
    /// The processes in the group itself.
    pub processes: Vec<u32>,
}

/// Shared by all threads.
#[derive(Debug)]
pub struct Groups {
    in_use: AtomicBool,
    tree: RwLock<GroupTree>,
    /// Held by whoever measures: two readings of a process at once would be charged twice.
    measuring: Mutex<()>,
    threads: i64,
    owners: Vec<Arc<IdlePriority>>,
}

impl Groups {
    /// The root alone, on a machine with so many processors.
    pub fn new(processors: usize, owners: Vec<Arc<IdlePriority>>) -> Self {
        let tree = RwLock::new(GroupTree::default());
        let (in_use, measuring) = (AtomicBool::new(false), Mutex::new(()));
        Self { in_use, tree, measuring, threads: processors as i64, owners }
    }

    /// Whether a group was ever made in this run.
    pub fn in_use(&self) -> bool {
        self.in_use.load(Relaxed)
    }

    fn read(&self) -> RwLockReadGuard<'_, GroupTree> {
        self.tree.read().expect("groups")
    }

    fn write(&self) -> RwLockWriteGuard<'_, GroupTree> {
        loop {
            match self.tree.try_write() {
                Ok(tree) => return tree,
                Err(TryLockError::Poisoned(_)) => panic!("groups"),
                Err(TryLockError::WouldBlock) => {}
            }
            for owner in &self.owners {
                owner.raise();
            }
            std::thread::sleep(PAUSE);
        }
    }

    // --- orders -----------------------------------------------------------------------------------------------------

    /// A new group. `budget`: the run's, in pages.
    ///
    /// # Errors
    /// For the user; nothing is changed then.
    pub fn create(&self, path: &str, limit: Limit, budget: i64) -> Result<Option<i64>, String> {
        let mut tree = self.write();
        let number = tree.create(path)?;
        match tree.pages_of(limit, number, budget) {
            Ok(pages) => {
                tree.set_limit(number, pages, self.threads);
                self.in_use.store(true, SeqCst);
                Ok(tree.group(number).limit())
            }
            Err(error) => {
                tree.remove(path)?;
                Err(error)
            }
        }
    }

    /// Another limit. `pinned` tells how many pages of these processes cannot be evicted.
    ///
    /// # Errors
    /// For the user; nothing is changed then.
    pub fn limit(
        &self,
        path: &str,
        limit: Limit,
        budget: i64,
        pinned: impl Fn(&[u32]) -> i64,
    ) -> Result<Option<i64>, String> {
        let (pages, processes) = {
            let tree = self.read();
            let (number, above) = tree.limited(path)?;
            let within = tree.accounts().filter(|account| tree.is_within(account, number)).map(|account| account.pid);
            (tree.pages_of(limit, above, budget)?, within.collect::<Vec<u32>>())
        };
        let fixed = if pages == NO_LIMIT { 0 } else { pinned(&processes) };
        if fixed > pages {
            let [fixed, pages] = [fixed, pages].map(|pages| uswap_core::util::size::human((pages as u64) << 12));
            return Err(format!(
                "{fixed} in the group cannot be evicted (locked memory, programs without an agent): {pages} is too little"
            ));
        }
        let mut tree = self.write();
        let (number, _) = tree.limited(path)?;
        tree.set_limit(number, pages, self.threads);
        Ok(tree.group(number).limit())
    }

    /// Removes a group; returns how many processes went to the group above it.
    ///
    /// # Errors
    /// For the user; nothing is changed then.
    pub fn remove(&self, path: &str) -> Result<usize, String> {
        self.write().remove(path)
    }

    /// Moves a process. It must have been met.
    ///
    /// # Errors
    /// For the user; nothing is changed then.
    pub fn move_process(&self, pid: u32, to: &str) -> Result<(), String> {
        self.write().move_process(pid, to)
    }

    /// Moves a group below another one; returns its new path.
    ///
    /// # Errors
    /// For the user; nothing is changed then.
    pub fn move_group(&self, path: &str, to: &str) -> Result<String, String> {
        self.write().move_group(path, to)
    }

    // --- processes --------------------------------------------------------------------------------------------------

    /// The account of a process, if it was met.
    pub fn known(&self, pid: u32) -> Option<Arc<Account>> {
        self.read().account(pid).cloned()
    }

    /// The account of a process; of one that is new, in the group of the nearest of its kin.
    /// Governor and control thread only.
    pub fn meet(&self, pid: u32, kin: impl FnOnce() -> Vec<u32>) -> Arc<Account> {
        match self.known(pid) {
            Some(known) => known,
            None => {
                let kin = kin();
                self.write().admit(pid, &kin)
            }
        }
    }

    /// Forgets processes that are not among the living. Governor only.
    pub fn dismiss_all_but(&self, is_alive: impl Fn(u32) -> bool) {
        let pids: Vec<u32> = self.read().accounts().map(|account| account.pid).collect();
        for pid in pids.into_iter().filter(|pid| !is_alive(*pid)) {
            self.write().dismiss(pid);
        }
    }

    // --- charges ----------------------------------------------------------------------------------------------------

    /// Pages were installed in a process (or, negative, dropped).
    pub fn charge(&self, account: &Account, pages: i64) {
        self.read().charge(account, pages, 0);
    }

    /// Pages of a process entered (or, negative, left) the way from order to drop.
    pub fn under_way(&self, account: &Account, pages: i64) {
        self.read().charge(account, 0, pages);
    }

    /// To be held from the first reading of a process to the last measurement that comes of it.
    pub fn begin_round(&self) -> MutexGuard<'_, ()> {
        self.measuring.lock().expect("measuring")
    }

    /// The governor has read how much a process holds; `begun` was charged when it began to read.
    pub fn measure(&self, account: &Account, begun: i64, pages: i64) {
        self.read().measure(account, begun, pages);
    }

    /// Every process has been measured.
    pub fn end_round(&self) {
        let tree = self.read();
        let mut processes: HashMap<usize, i64> = HashMap::new();
        for group in tree.accounts().filter_map(|account| tree.group_of(account)) {
            tree.way_up(group).for_each(|number| *processes.entry(number).or_default() += 1);
        }
        for number in tree.deepest_first() {
            tree.group(number).end_round(self.threads, processes.get(&number).copied().unwrap_or(0));
        }
    }

    // --- questions --------------------------------------------------------------------------------------------------

    /// Whether a limit other than the run's holds for the account.
    pub fn is_limited(&self, account: &Account) -> bool {
        self.read().above_account(account).any(|group| group.limit().is_some())
    }

    /// Whether the groups of a process let it have so many pages more.
    pub fn has_room(&self, account: &Account, pages: i64) -> bool {
        self.read().above_account(account).all(|group| group.has_room(pages, self.threads))
    }

    /// Whether so many may come to the process without any being evicted for them.
    pub fn has_free_room(&self, account: &Account, pages: i64) -> bool {
        self.read().above_account(account).all(|group| group.has_free_room(pages, self.threads))
    }

    /// Whether a group that has no room for the process has nothing under way, with any of so many
    /// owners, that would make some.
    pub fn is_helpless(&self, account: &Account, owners: usize) -> bool {
        let tree = self.read();
        tree.above_account(account).any(|group| !group.has_room(1, self.threads) && group.is_helpless(owners))
    }

    /// Near its own limit: the memory that a process of the group must have to be managed, in
    /// pages; `None`: all have room.
    pub fn near(&self, account: &Account) -> Option<i64> {
        let tree = self.read();
        let near = tree.above_account(account).filter(|group| group.used() > group.activation(self.threads));
        near.map(crate::accounting::group::Group::share).min()
    }

    /// Whether a group is near its own limit.
    pub fn is_any_near(&self) -> bool {
        let tree = self.read();
        let is_near = |number: &usize| tree.group(*number).used() > tree.group(*number).activation(self.threads);
        tree.deepest_first().iter().any(is_near)
    }

    /// Whether memory of a group that is near its own limit grows unseen.
    pub fn grows_unseen(&self) -> bool {
        let tree = self.read();
        tree.deepest_first().iter().any(|number| tree.group(*number).grows_unseen(self.threads))
    }

    /// The groups that want pages evicted, the deepest first.
    pub fn short(&self) -> Vec<Short> {
        let tree = self.read();
        let wants = |number: usize| Short { group: number, wanted: tree.group(number).wanted(self.threads) };
        tree.deepest_first().into_iter().map(wants).filter(|short| short.wanted > 0).collect()
    }

    /// Whether a group has no room for a page more: those who want one wait, or it outgrows its
    /// limit.
    pub fn lack_room(&self) -> bool {
        let tree = self.read();
        tree.deepest_first().iter().any(|number| !tree.group(*number).has_room(1, self.threads))
    }

    /// Whether the process is charged to the group.
    pub fn is_within(&self, account: &Account, group: usize) -> bool {
        self.read().is_within(account, group)
    }

    /// An owner tells for which groups that are short it has nothing under way that would make
    /// room.
    pub fn set_idle(&self, owner: usize, idle: &[usize]) {
        let tree = self.read();
        for number in tree.deepest_first() {
            tree.group(number).set_idle(owner, idle.contains(&number));
        }
    }

    /// How long the governor may sleep.
    pub fn poll_interval(&self) -> Duration {
        let tree = self.read();
        let interval = |number: usize| {
            let group = tree.group(number);
            let marks = crate::accounting::budget::Marks { limit: NO_LIMIT, slack: 0, threads: self.threads };
            marks.poll_interval(group.activation(self.threads) - group.used())
        };
        let limited = tree.deepest_first().into_iter().filter(|number| tree.group(*number).limit().is_some());
        limited.map(interval).min().unwrap_or(Duration::MAX)
    }

    /// All groups, each after the one above it.
    pub fn figures(&self) -> Vec<Figures> {
        let tree = self.read();
        let mut numbers = tree.deepest_first();
        numbers.push(ROOT);
        let mut all: Vec<Figures> = numbers
            .into_iter()
            .map(|number| {
                let group = tree.group(number);
                let own = tree.accounts().filter(|account| tree.group_of(account) == Some(number));
                let processes = own.map(|account| account.pid).collect();
                let path = tree.path(number);
                Figures { path, limit: group.limit(), used: group.used(), peak: group.peak(), processes }
            })
            .collect();
        all.sort_by(|a, b| a.path.split('/').cmp(b.path.split('/')));
        all
    }
}
