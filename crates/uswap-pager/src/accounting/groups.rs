//! The groups, as the threads of the engine use them.
//!
//! The pagers charge and ask for room, the governor measures and finds new processes, and the
//! control thread changes the tree. Charging only needs the tree not to change, so it takes the
//! lock for reading; all sums are atomic. Only the governor and the control thread lock for
//! writing. They retry until no thread reads and never queue for the lock, so that a pager thread
//! that was lowered while it holds the lock ([`crate::idle_priority`]) does not block the threads
//! that could raise it.
//!
//! In a run without groups each check costs one load of a flag.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError};
use std::time::Duration;

use crate::accounting::group::{Account, GroupTree, Limit, NO_LIMIT, ROOT};
use crate::idle_priority::IdlePriority;

/// Pause between two attempts to lock for writing.
const PAUSE: Duration = Duration::from_micros(50);

/// A group that needs pages to be evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Short {
    /// Its number, valid as long as the tree does not change.
    pub group: usize,
    /// Number of pages to be evicted.
    pub wanted: i64,
}

/// Figures of a group for reports. All amounts are pages of 4 KiB.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Figures {
    /// Its path; the root is `/`.
    pub path: String,
    /// Its own limit.
    pub limit: Option<i64>,
    /// Pages in use, including those of the groups below it.
    pub used: i64,
    /// The highest usage that was measured.
    pub peak: i64,
    /// The processes in the group itself.
    pub processes: Vec<u32>,
}

/// The groups of a run, shared by all threads.
#[derive(Debug)]
pub struct Groups {
    in_use: AtomicBool,
    tree: RwLock<GroupTree>,
    /// Held during a round of measurements: growth that two threads measure at the same time would
    /// be charged twice.
    measuring: Mutex<()>,
    threads: i64,
    owners: Vec<Arc<IdlePriority>>,
}

impl Groups {
    /// The root alone, on a machine with this many processors.
    pub fn new(processors: usize, owners: Vec<Arc<IdlePriority>>) -> Self {
        let tree = RwLock::new(GroupTree::default());
        let (in_use, measuring) = (AtomicBool::new(false), Mutex::new(()));
        Self { in_use, tree, measuring, threads: processors as i64, owners }
    }

    /// Whether a group was ever created in this run.
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

    /// Creates a group. `budget`: that of the run, in pages.
    ///
    /// # Errors
    /// For the user; then nothing is changed.
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

    /// Changes the limit of a group. `pinned` tells how many pages of these processes cannot be
    /// evicted.
    ///
    /// # Errors
    /// For the user; then nothing is changed.
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
    /// For the user; then nothing is changed.
    pub fn remove(&self, path: &str) -> Result<usize, String> {
        self.write().remove(path)
    }

    /// Moves a process, which must have an account.
    ///
    /// # Errors
    /// For the user; then nothing is changed.
    pub fn move_process(&self, pid: u32, to: &str) -> Result<(), String> {
        self.write().move_process(pid, to)
    }

    /// Moves a group below another one; returns its new path.
    ///
    /// # Errors
    /// For the user; then nothing is changed.
    pub fn move_group(&self, path: &str, to: &str) -> Result<String, String> {
        self.write().move_group(path, to)
    }

    // --- processes --------------------------------------------------------------------------------------------------

    /// The account of a process, if there is one.
    pub fn known(&self, pid: u32) -> Option<Arc<Account>> {
        self.read().account(pid).cloned()
    }

    /// The account of a process. A new one begins in the group of the nearest known relative
    /// (`kin`). Only for the governor and the control thread.
    pub fn meet(&self, pid: u32, kin: impl FnOnce() -> Vec<u32>) -> Arc<Account> {
        match self.known(pid) {
            Some(known) => known,
            None => {
                let kin = kin();
                self.write().admit(pid, &kin)
            }
        }
    }

    /// Removes the accounts of processes that are not alive. Only for the governor.
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

    /// Counts pages of a process that began (or, negative, ended) their eviction.
    pub fn under_way(&self, account: &Account, pages: i64) {
        self.read().charge(account, 0, pages);
    }

    /// Begins a round of measurements. The guard must be held from the first reading of a process
    /// to the last correction that follows from it.
    pub fn begin_round(&self) -> MutexGuard<'_, ()> {
        self.measuring.lock().expect("measuring")
    }

    /// Notes that the governor has measured `pages` of a process; `begun` pages were charged when
    /// it began.
    pub fn measure(&self, account: &Account, begun: i64, pages: i64) {
        self.read().measure(account, begun, pages);
    }

    /// Ends a round: every process has been measured.
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

    /// Whether any limit other than that of the run applies to the account.
    pub fn is_limited(&self, account: &Account) -> bool {
        self.read().above_account(account).any(|group| group.limit().is_some())
    }

    /// Whether all groups of a process have room for `pages` more pages.
    pub fn has_room(&self, account: &Account, pages: i64) -> bool {
        self.read().above_account(account).all(|group| group.has_room(pages, self.threads))
    }

    /// Whether `pages` more pages may be installed in the process without any page being evicted
    /// for them.
    pub fn has_free_room(&self, account: &Account, pages: i64) -> bool {
        self.read().above_account(account).all(|group| group.has_free_room(pages, self.threads))
    }

    /// Whether a group that has no room for the process also has nothing under way, with any of the
    /// `owners` pagers, that would make some.
    pub fn is_helpless(&self, account: &Account, owners: usize) -> bool {
        let tree = self.read();
        tree.above_account(account).any(|group| !group.has_room(1, self.threads) && group.is_helpless(owners))
    }

    /// If a group of the process is near its own limit: the size in pages from which a process of
    /// the group must be managed. `None`: all groups have room.
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

    /// Whether a group that is near its own limit has memory that grows unseen.
    pub fn grows_unseen(&self) -> bool {
        let tree = self.read();
        tree.deepest_first().iter().any(|number| tree.group(*number).grows_unseen(self.threads))
    }

    /// The groups that need pages to be evicted, the deepest first.
    pub fn short(&self) -> Vec<Short> {
        let tree = self.read();
        let wants = |number: usize| Short { group: number, wanted: tree.group(number).wanted(self.threads) };
        tree.deepest_first().into_iter().map(wants).filter(|short| short.wanted > 0).collect()
    }

    /// Whether any group has no room for one more page: faults of its processes wait, or it exceeds
    /// its limit.
    pub fn lack_room(&self) -> bool {
        let tree = self.read();
        tree.deepest_first().iter().any(|number| !tree.group(*number).has_room(1, self.threads))
    }

    /// Whether the process is charged to the group.
    pub fn is_within(&self, account: &Account, group: usize) -> bool {
        self.read().is_within(account, group)
    }

    /// Notes for which of the groups that are short this pager has nothing under way that would
    /// make room.
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

    /// Figures of all groups, each after the one above it.
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
