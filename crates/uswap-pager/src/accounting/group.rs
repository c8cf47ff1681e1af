//! The tree of groups of a run: names, limits, members, and the pages that are charged to each.
//!
//! Each process has one *account*, and each account belongs to exactly one group. Pages are charged
//! to the account of the process that has them, never to the process that caused the work (a
//! swapoff, a neighbour's fault); the sums of a group are those of the accounts in it and below it.
//! All changes of a sum are differences, added to the account and to every group on the way up:
//!
//! ```text
//! charge(account, n):  account += n;  n goes to its group, the group above it, ... the root
//! move(account, to):   what the account holds leaves its old way up and joins the new one
//! remove(group):       its accounts join the group above it, whose sums hold them already
//! ```
//!
//! So nothing can stay charged to a group after its process has left it, or after the group was
//! removed: a group has no charge of its own. The kernel had such a leak: a page was swapped out in
//! one cgroup, which was removed, and was brought in by a swapoff that ran in another one; it was
//! charged to the cgroup of the swapoff, because the swap entry recorded whom to charge.
//!
//! The root has the budget of the run, including pool and engine, which belong to no group;
//! [`crate::accounting::budget`] keeps it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering::Relaxed};

use uswap_core::util::size::{Size, human};

use crate::accounting::budget::Marks;

/// Number of the root.
pub const ROOT: usize = 0;
/// Name of the root.
pub const ROOT_NAME: &str = "/";
/// Limit, in pages, of a group without a limit.
pub const NO_LIMIT: i64 = i64::MAX / 4096;
/// Smallest limit of a group in bytes: small mappings and stacks cannot be evicted, and a working
/// set must make progress.
pub const MIN_LIMIT: u64 = 8 << 20;
/// Maximum number of groups in a run, of levels below the root, and of bytes in one name.
const MAX_GROUPS: usize = 256;
const MAX_LEVELS: usize = 8;
const LONGEST_NAME: usize = 64;
/// Ended processes whose groups are remembered, for children that are found only later.
const MAX_ENDED: usize = 4096;
/// Group number of an account whose process has ended.
const NOBODY: usize = usize::MAX;

/// The account that a process is charged to. Its group changes only while no thread charges.
#[derive(Debug)]
pub struct Account {
    /// The process.
    pub pid: u32,
    group: AtomicUsize,
    used: AtomicI64,
    under_way: AtomicI64,
    measured: AtomicBool,
}

impl Account {
    /// Pages charged now, as far as is known.
    pub fn used(&self) -> i64 {
        self.used.load(Relaxed)
    }

    /// The number of its group.
    pub fn group_number(&self) -> usize {
        self.group.load(Relaxed)
    }

    /// Whether its process has ended: nothing more is charged to it.
    pub fn has_ended(&self) -> bool {
        self.group.load(Relaxed) == NOBODY
    }

    /// Whether it was ever measured.
    pub fn is_measured(&self) -> bool {
        self.measured.load(Relaxed)
    }
}

/// A limit as users write it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Limit {
    /// A size, or a percentage of the limit above it.
    Size(Size),
    /// No limit.
    Max,
}

impl std::str::FromStr for Limit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.trim() {
            "max" => Ok(Self::Max),
            size => size.parse().map(Self::Size).map_err(|_| {
                format!("{text:?} is not a limit: write it like 512M, 50% (of the limit above it) or max (none)")
            }),
        }
    }
}

/// One group. All amounts are pages of 4 KiB.
#[derive(Debug)]
pub struct Group {
    name: String,
    above: usize,
    limit: i64,
    used: AtomicI64,
    under_way: AtomicI64,
    peak: AtomicI64,
    slack: AtomicI64,
    /// Growth found by this round of measurements that was not charged before.
    unseen: AtomicI64,
    processes: AtomicI64,
    /// One bit for each pager: the group is short of memory and the pager has nothing under way
    /// that would make room.
    idle: AtomicU64,
}

impl Group {
    fn new(name: &str, above: usize) -> Self {
        let zero = || AtomicI64::new(0);
        Self {
            name: name.into(),
            above,
            limit: NO_LIMIT,
            used: zero(),
            under_way: zero(),
            peak: zero(),
            slack: zero(),
            unseen: zero(),
            processes: zero(),
            idle: AtomicU64::new(0),
        }
    }

    /// Pages charged to it and to the groups below it.
    pub fn used(&self) -> i64 {
        self.used.load(Relaxed)
    }

    /// The highest usage that was measured.
    pub fn peak(&self) -> i64 {
        self.peak.load(Relaxed)
    }

    /// Its own limit.
    pub fn limit(&self) -> Option<i64> {
        (self.limit != NO_LIMIT).then_some(self.limit)
    }

    fn marks(&self, threads: i64) -> Marks {
        Marks { limit: self.limit, slack: self.slack.load(Relaxed), threads }
    }

    /// Pages to be ordered for eviction now.
    pub fn wanted(&self, threads: i64) -> i64 {
        self.marks(threads).wanted(self.used() - self.under_way.load(Relaxed))
    }

    /// Whether `pages` more pages may be installed now.
    pub fn has_room(&self, pages: i64, threads: i64) -> bool {
        self.used() + pages <= self.marks(threads).hard()
    }

    /// Whether `pages` more pages may be installed without any page being evicted for them.
    pub fn has_free_room(&self, pages: i64, threads: i64) -> bool {
        self.used() + pages <= self.marks(threads).high()
    }

    /// Usage above which the memory of the group gets registered.
    pub fn activation(&self, threads: i64) -> i64 {
        self.marks(threads).activation(self.processes.load(Relaxed))
    }

    /// Whether its memory is near its limit and grows unseen.
    pub fn grows_unseen(&self, threads: i64) -> bool {
        self.used() > self.activation(threads) && self.marks(threads).grows_unseen()
    }

    /// The limit divided by the number of processes, in pages.
    pub fn share(&self) -> i64 {
        self.limit / self.processes.load(Relaxed).max(1)
    }

    /// Notes whether a pager has nothing under way for this group.
    pub fn set_idle(&self, owner: usize, idle: bool) {
        if idle {
            self.idle.fetch_or(1 << owner, Relaxed);
        } else if self.idle.load(Relaxed) & 1 << owner != 0 {
            self.idle.fetch_and(!(1 << owner), Relaxed);
        }
    }

    /// Whether none of the `owners` pagers has anything under way that would make room.
    pub fn is_helpless(&self, owners: usize) -> bool {
        self.under_way.load(Relaxed) <= 0 && self.idle.load(Relaxed).count_ones() as usize >= owners
    }

    /// Ends a round of measurements.
    pub fn end_round(&self, threads: i64, processes: i64) {
        let unseen = self.unseen.swap(0, Relaxed);
        self.slack.store(self.marks(threads).next_slack(unseen), Relaxed);
        self.processes.store(processes, Relaxed);
        self.peak.fetch_max(self.used(), Relaxed);
    }
}

/// All groups and accounts of a run.
#[derive(Debug)]
pub struct GroupTree {
    groups: Vec<Option<Group>>,
    accounts: BTreeMap<u32, Arc<Account>>,
    ended: VecDeque<(u32, usize)>,
}

impl Default for GroupTree {
    fn default() -> Self {
        Self { groups: vec![Some(Group::new(ROOT_NAME, ROOT))], accounts: BTreeMap::new(), ended: VecDeque::new() }
    }
}

/// Whether a group may have this path.
fn check_path(path: &str) -> Result<(), String> {
    let refuse = |why: &str| Err(format!("{path:?} cannot be a group: {why}"));
    for (level, name) in path.split('/').enumerate() {
        let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.:+@".contains(c);
        if name.is_empty() || name.len() > LONGEST_NAME || matches!(name, "." | "..") || !name.chars().all(allowed) {
            return refuse("each name on its path has 1 to 64 letters, digits and - _ . : + @");
        }
        if level == 0 && name.bytes().all(|byte| byte.is_ascii_digit()) {
            return refuse("a number names a process");
        }
        if level == MAX_LEVELS {
            return refuse("its path has more than 8 names");
        }
    }
    Ok(())
}

/// Reduces a path as users may write it to its plain form: `/a/b` and `a/b/` are `a/b`; the root is
/// empty.
fn trimmed(path: &str) -> &str {
    let path = path.strip_prefix('/').unwrap_or(path);
    path.strip_suffix('/').unwrap_or(path)
}

impl GroupTree {
    /// A group by its number.
    ///
    /// # Panics
    /// There is no such group: numbers are kept only where the group cannot have been removed
    /// meanwhile.
    pub fn group(&self, number: usize) -> &Group {
        self.groups[number].as_ref().expect("a group")
    }

    fn group_mut(&mut self, number: usize) -> &mut Group {
        self.groups[number].as_mut().expect("a group")
    }

    /// The group and all above it, the root last.
    pub fn way_up(&self, number: usize) -> impl Iterator<Item = usize> + '_ {
        std::iter::successors(Some(number), |at| (*at != ROOT).then(|| self.group(*at).above))
    }

    /// The groups that can limit an account: its own and those above it, without the root.
    pub fn above_account(&self, account: &Account) -> impl Iterator<Item = &Group> {
        let own = account.group.load(Relaxed);
        let first = if own == NOBODY { ROOT } else { own };
        self.way_up(first).filter(|number| *number != ROOT).map(|number| self.group(number))
    }

    /// Whether the account is charged to the group.
    pub fn is_within(&self, account: &Account, group: usize) -> bool {
        let own = account.group.load(Relaxed);
        own != NOBODY && self.way_up(own).any(|number| number == group)
    }

    /// Numbers of all groups but the root, the deepest first.
    pub fn deepest_first(&self) -> Vec<usize> {
        let mut all: Vec<usize> = (1..self.groups.len()).filter(|number| self.groups[*number].is_some()).collect();
        all.sort_by_key(|number| std::cmp::Reverse(self.way_up(*number).count()));
        all
    }

    /// The group's path; the root is `/`.
    pub fn path(&self, number: usize) -> String {
        let mut names: Vec<&str> = self.way_up(number).map(|at| self.group(at).name.as_str()).collect();
        if names.len() > 1 {
            names.pop();
        }
        names.reverse();
        names.join("/")
    }

    fn below(&self, number: usize) -> impl Iterator<Item = usize> + '_ {
        let is_below = move |at: &usize| *at != ROOT && self.groups[*at].as_ref().is_some_and(|g| g.above == number);
        (0..self.groups.len()).filter(is_below)
    }

    fn named(&self, above: usize, name: &str) -> Option<usize> {
        self.below(above).find(|number| self.group(*number).name == name)
    }

    /// The group of this path.
    ///
    /// # Errors
    /// For the user: there is no such group.
    pub fn find(&self, path: &str) -> Result<usize, String> {
        let names = trimmed(path).split('/').filter(|_| !trimmed(path).is_empty());
        let found = names.into_iter().try_fold(ROOT, |above, name| self.named(above, name));
        found.ok_or_else(|| format!("there is no group {:?}", trimmed(path)))
    }

    fn find_other_than_root(&self, path: &str, what: &str) -> Result<usize, String> {
        match self.find(path)? {
            ROOT => Err(format!("the root cannot be {what}: it is the run itself (uswap limit changes its budget)")),
            number => Ok(number),
        }
    }

    /// Creates a group.
    ///
    /// # Errors
    /// For the user: the path is not valid or is taken, the group above it does not exist, or there
    /// are too many groups.
    pub fn create(&mut self, path: &str) -> Result<usize, String> {
        let path = trimmed(path);
        check_path(path)?;
        let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
        let above = self.find(above).map_err(|error| format!("{error} to make {path:?} in; create it first"))?;
        if self.named(above, name).is_some() {
            return Err(format!("there is a group {path:?} already"));
        }
        let free = (1..self.groups.len()).find(|number| self.groups[*number].is_none());
        let number = free.unwrap_or(self.groups.len());
        if number >= MAX_GROUPS {
            return Err(format!("a run has {MAX_GROUPS} groups at most"));
        }
        let group = Some(Group::new(name, above));
        if number == self.groups.len() {
            self.groups.push(group)
        } else {
            self.groups[number] = group
        }
        Ok(number)
    }

    /// Converts a limit for this group into pages. `budget`: that of the run.
    ///
    /// # Errors
    /// For the user: the limit is smaller than [`MIN_LIMIT`].
    pub fn pages_of(&self, limit: Limit, above: usize, budget: i64) -> Result<i64, String> {
        let Limit::Size(size) = limit else { return Ok(NO_LIMIT) };
        let nearest = self.way_up(above).find_map(|number| self.group(number).limit()).unwrap_or(budget);
        let bytes = size.of((nearest as u64) << 12);
        if bytes < MIN_LIMIT {
            let least = human(MIN_LIMIT);
            return Err(format!("{} is too little for a group: the least is {least}", human(bytes)));
        }
        Ok(((bytes >> 12) as i64).min(NO_LIMIT - 1))
    }

    /// The number of a group whose limit may be set, and of the one above it.
    ///
    /// # Errors
    /// For the user: there is no such group, or it is the root.
    pub fn limited(&self, path: &str) -> Result<(usize, usize), String> {
        let number = self.find_other_than_root(path, "limited as a group")?;
        Ok((number, self.group(number).above))
    }

    /// Gives a group a limit in pages.
    pub fn set_limit(&mut self, number: usize, pages: i64, threads: i64) {
        let group = self.group_mut(number);
        group.limit = pages;
        // The members of a group that has just got a limit may be growing: it begins with the
        // largest slack, as a run does.
        *group.slack.get_mut() = group.marks(threads).most_slack();
    }

    /// Removes a group; its processes, with all they hold, join the group above it.
    ///
    /// # Errors
    /// For the user: the group is the root, does not exist, or has groups below it.
    pub fn remove(&mut self, path: &str) -> Result<usize, String> {
        let number = self.find_other_than_root(path, "removed")?;
        let below: Vec<String> = self.below(number).map(|below| self.path(below)).collect();
        if !below.is_empty() {
            return Err(format!("{} has groups below it: {}; remove them first", self.path(number), below.join(", ")));
        }
        let above = self.group(number).above;
        let mut moved = 0;
        for account in self.accounts.values().filter(|account| account.group.load(Relaxed) == number) {
            account.group.store(above, Relaxed);
            moved += 1;
        }
        for (_, group) in self.ended.iter_mut().filter(|(_, group)| *group == number) {
            *group = above;
        }
        self.groups[number] = None;
        Ok(moved)
    }

    /// Moves a process, with all it holds. Its children stay where they are.
    ///
    /// # Errors
    /// For the user: there is no such process or group.
    pub fn move_process(&mut self, pid: u32, to: &str) -> Result<(), String> {
        let to = self.find(to)?;
        let account = self.accounts.get(&pid).cloned().ok_or_else(|| format!("{pid} is no process of this run"))?;
        self.settle(&account, to);
        Ok(())
    }

    /// Moves a group, with all that is in it and below it, to another place in the tree. Returns
    /// its new path.
    ///
    /// # Errors
    /// For the user: one of the two does not exist, or the new place is within the group itself, is
    /// taken, or is too deep.
    pub fn move_group(&mut self, path: &str, to: &str) -> Result<String, String> {
        let (number, to) = (self.find_other_than_root(path, "moved")?, self.find(to)?);
        if self.way_up(to).any(|at| at == number) {
            return Err(format!("{} cannot be moved into itself or below itself", self.path(number)));
        }
        let name = self.group(number).name.clone();
        let target = if to == ROOT { name.clone() } else { format!("{}/{name}", self.path(to)) };
        if self.named(to, &name).is_some() {
            return Err(format!("there is a group {target:?} already"));
        }
        check_path(&target)?;
        if self.way_up(to).count() + self.height(number) > MAX_LEVELS + 1 {
            return Err(format!("a group lies {MAX_LEVELS} levels deep at most"));
        }
        let group = self.group(number);
        let (above, used, under_way) = (group.above, group.used(), group.under_way.load(Relaxed));
        self.post(above, -used, -under_way);
        self.group_mut(number).above = to;
        self.post(to, used, under_way);
        Ok(target)
    }

    /// Levels of the group and those below it.
    fn height(&self, number: usize) -> usize {
        1 + self.below(number).map(|below| self.height(below)).max().unwrap_or(0)
    }

    /// Adds to the sums of a group and of all groups above it.
    fn post(&self, number: usize, used: i64, under_way: i64) {
        for at in self.way_up(number) {
            let group = self.group(at);
            group.used.fetch_add(used, Relaxed);
            if under_way != 0 {
                group.under_way.fetch_add(under_way, Relaxed);
            }
        }
    }

    /// Charges an account with pages (or, negative, takes them off), and with pages that are being
    /// evicted.
    pub fn charge(&self, account: &Account, used: i64, under_way: i64) {
        let group = account.group.load(Relaxed);
        if group != NOBODY {
            account.used.fetch_add(used, Relaxed);
            account.under_way.fetch_add(under_way, Relaxed);
            self.post(group, used, under_way);
        }
    }

    /// Corrects an account by a measurement: the process holds `pages`, and `begun` were charged
    /// when it was measured. Pages that were charged since then are added.
    pub fn measure(&self, account: &Account, begun: i64, pages: i64) {
        let grown = pages - begun;
        self.charge(account, grown, 0);
        // The first measurement is no growth: the memory was there before.
        if account.measured.swap(true, Relaxed) {
            self.above_account(account).for_each(|group| {
                group.unseen.fetch_add(grown, Relaxed);
            });
        }
    }

    /// The account of a process.
    pub fn account(&self, pid: u32) -> Option<&Arc<Account>> {
        self.accounts.get(&pid)
    }

    /// All accounts, by process.
    pub fn accounts(&self) -> impl Iterator<Item = &Arc<Account>> {
        self.accounts.values()
    }

    /// The group of an account whose process has not ended.
    pub fn group_of(&self, account: &Account) -> Option<usize> {
        Some(account.group.load(Relaxed)).filter(|group| *group != NOBODY)
    }

    fn group_of_process(&self, pid: u32) -> Option<usize> {
        let living = self.accounts.get(&pid).and_then(|account| self.group_of(account));
        living.or_else(|| self.ended.iter().rev().find(|(ended, _)| *ended == pid).map(|(_, group)| *group))
    }

    /// The account of a process. A new account begins in the group of the first known process among
    /// `kin` (the parent, the parent's parent, the leaders of its process group and session), or
    /// else in the root.
    pub fn admit(&mut self, pid: u32, kin: &[u32]) -> Arc<Account> {
        if let Some(known) = self.accounts.get(&pid) {
            return known.clone();
        }
        let group = kin.iter().find_map(|relative| self.group_of_process(*relative)).unwrap_or(ROOT);
        let account = Arc::new(Account {
            pid,
            group: AtomicUsize::new(group),
            used: AtomicI64::new(0),
            under_way: AtomicI64::new(0),
            measured: AtomicBool::new(false),
        });
        self.accounts.insert(pid, account.clone());
        account
    }

    /// Removes the account of a process that has ended: its pages are charged to no group any more.
    pub fn dismiss(&mut self, pid: u32) {
        let Some(account) = self.accounts.remove(&pid) else { return };
        let group = account.group.load(Relaxed);
        self.settle(&account, NOBODY);
        self.ended.retain(|(ended, _)| *ended != pid);
        if group != ROOT {
            self.ended.push_back((pid, group));
        }
        if self.ended.len() > MAX_ENDED {
            self.ended.pop_front();
        }
    }

    /// Moves the sums of the account from its old group, and those above, to the new one.
    fn settle(&self, account: &Account, to: usize) {
        let (used, under_way) = (account.used(), account.under_way.load(Relaxed));
        self.post(account.group.load(Relaxed), -used, -under_way);
        account.group.store(to, Relaxed);
        if to != NOBODY {
            self.post(to, used, under_way);
        }
    }
}

#[cfg(test)]
#[path = "group_tests.rs"]
mod tests;
