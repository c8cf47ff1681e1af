//! Groups of files in the cache: who makes room for whom.
//!
//! Each group has lists, a history of evictions and, if it was given one, a limit of its own. A
//! page belongs to the group of its file. Groups lie below each other as folders do, and a limit
//! holds for a group with all that is below it; the root has all pages, and the limit of the cache.
//!
//! ```text
//! a page comes for the first time ──────────────> a page of its own group goes
//! it comes back, and had not left, if its group
//! had the memory of the others as well ─────────> a page of any group goes, of each as often
//!                                                 as its share of the memory is large
//! ```
//!
//! - A stream displaces pages of its own group only, whatever the group's size.
//! - A group whose pages are not used any more loses memory to groups whose pages come back. A
//!   group that lost pages which it still uses gets as many back in the same way. So memory goes
//!   where pages come back, and groups age at one rate, as cgroups do whose lists are scanned by
//!   their size (linux `mm/vmscan.c`); the test of the distance is that of the refault distance
//!   (linux `mm/workingset.c`) for a group among others.
//! - A group with less than a [`LEAST_SHARE`]th of the limit does not pay for its own new pages:
//!   one that begins while the cache is full could not begin otherwise.
//! - The group that is above its limit, or the deepest of them, goes first.

use std::collections::VecDeque;

use uswap_core::reclaim::recency::Recency;

/// The part of the limit above which a group makes room for its own new pages.
const LEAST_SHARE: u64 = 64;
/// The golden section of 2^64: multiples of it, modulo 2^64, are spread evenly.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// The number of a group.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct GroupId(u8);

impl GroupId {
    /// The group of all files that are in no other.
    pub const ROOT: Self = Self(0);

    /// The group of that number.
    pub const fn new(number: u8) -> Self {
        Self(number)
    }

    /// Its number.
    pub fn number(self) -> u8 {
        self.0
    }
}

/// A group. Amounts are pages.
#[derive(Debug, Default)]
pub struct CacheGroup {
    /// Which of its pages goes next.
    pub policy: Recency,
    /// Keys of its pages that left, in the order in which they did.
    pub history: VecDeque<u64>,
    /// Its pages in the store.
    pub stored: u64,
    /// Its limit, with the groups below it; `None`: it has none of its own.
    limit: Option<u64>,
    above: GroupId,
    /// Its pages in memory.
    resident: u64,
    /// The same with those of the groups below it, now and at most.
    used: u64,
    peak: u64,
}

impl CacheGroup {
    /// Its pages in memory.
    pub fn resident(&self) -> u64 {
        self.resident
    }

    /// Pages in memory, with those of the groups below it.
    pub fn used(&self) -> u64 {
        self.used
    }

    /// The most that they were.
    pub fn peak(&self) -> u64 {
        self.peak
    }

    /// Its limit, if it has one of its own.
    pub fn limit(&self) -> Option<u64> {
        self.limit
    }

    fn is_over(&self) -> bool {
        self.limit.is_some_and(|limit| self.used > limit)
    }
}

/// All groups of a cache.
#[derive(Debug)]
pub struct CacheGroups {
    /// By their numbers.
    groups: Vec<Option<CacheGroup>>,
    /// Pages that were taken from a group by its size so far.
    turn: u64,
}

impl CacheGroups {
    /// The root alone, with the limit of the cache.
    pub fn new(limit: u64) -> Self {
        let root = CacheGroup { limit: Some(limit), ..CacheGroup::default() };
        Self { groups: vec![Some(root)], turn: 0 }
    }

    /// A group.
    ///
    /// # Panics
    /// There is none of that number.
    pub fn get(&self, id: GroupId) -> &CacheGroup {
        self.groups[usize::from(id.0)].as_ref().expect("a group")
    }

    /// A group, to be changed.
    ///
    /// # Panics
    /// There is none of that number.
    pub fn get_mut(&mut self, id: GroupId) -> &mut CacheGroup {
        self.groups[usize::from(id.0)].as_mut().expect("a group")
    }

    /// Whether there is a group of that number.
    pub fn has(&self, id: GroupId) -> bool {
        self.groups.get(usize::from(id.0)).is_some_and(Option::is_some)
    }

    /// All groups, the root first.
    pub fn iter(&self) -> impl Iterator<Item = (GroupId, &CacheGroup)> {
        let ids = (0..=u8::MAX).map(GroupId);
        ids.zip(&self.groups).filter_map(|(id, group)| Some((id, group.as_ref()?)))
    }

    /// All groups, to be changed.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut CacheGroup> {
        self.groups.iter_mut().flatten()
    }

    /// Makes a group below another one; `None`: there are as many as there can be.
    pub fn add(&mut self, above: GroupId) -> Option<GroupId> {
        let free = self.groups.iter().position(Option::is_none).unwrap_or(self.groups.len());
        let id = GroupId(u8::try_from(free).ok()?);
        let group = Some(CacheGroup { above, ..CacheGroup::default() });
        match self.groups.get_mut(free) {
            Some(place) => *place = group,
            None => self.groups.push(group),
        }
        Some(id)
    }

    /// Drops a group that has no pages. Those below it are below the one above it from now on.
    pub fn drop_empty(&mut self, id: GroupId) {
        let above = self.get(id).above;
        self.groups[usize::from(id.0)] = None;
        self.groups.iter_mut().flatten().filter(|group| group.above == id).for_each(|group| group.above = above);
        self.add_up();
    }

    /// Puts a group below another one.
    pub fn set_above(&mut self, id: GroupId, above: GroupId) {
        self.get_mut(id).above = above;
        self.add_up();
    }

    /// Changes the limit of a group.
    pub fn set_limit(&mut self, id: GroupId, limit: Option<u64>) {
        self.get_mut(id).limit = limit;
    }

    /// The least limit of a group and of those above it.
    pub fn limit_of(&self, id: GroupId) -> u64 {
        self.way_up(id).filter_map(|id| self.get(id).limit).min().unwrap_or(u64::MAX)
    }

    /// The group, the one above it, and so on up to the root.
    fn way_up(&self, id: GroupId) -> impl Iterator<Item = GroupId> + '_ {
        std::iter::successors(Some(id), |id| (*id != GroupId::ROOT).then(|| self.get(*id).above))
    }

    fn is_within(&self, id: GroupId, above: GroupId) -> bool {
        above == GroupId::ROOT || self.way_up(id).any(|id| id == above)
    }

    /// Sums up the use of all groups anew.
    fn add_up(&mut self) {
        self.groups.iter_mut().flatten().for_each(|group| group.used = 0);
        let residents: Vec<(GroupId, u64)> = self.iter().map(|(id, group)| (id, group.resident)).collect();
        for (id, resident) in residents {
            self.climb(id, |group| group.used += resident);
        }
    }

    /// Changes a group and all above it.
    fn climb(&mut self, id: GroupId, mut change: impl FnMut(&mut CacheGroup)) {
        let mut id = id;
        loop {
            let group = self.get_mut(id);
            change(group);
            group.peak = group.peak.max(group.used);
            if id == GroupId::ROOT {
                return;
            }
            id = group.above;
        }
    }

    /// A page of the group has come into memory.
    pub fn page_came(&mut self, id: GroupId) {
        self.get_mut(id).resident += 1;
        self.climb(id, |group| group.used += 1);
    }

    /// A page of the group has left memory.
    pub fn page_left(&mut self, id: GroupId) {
        self.get_mut(id).resident -= 1;
        self.climb(id, |group| group.used -= 1);
    }

    /// Whether one page in `share` of the limit is free, for the group and for all above it.
    pub fn has_room(&self, id: GroupId, share: u64) -> bool {
        self.way_up(id).map(|id| self.get(id)).all(|group| match group.limit {
            Some(limit) => group.used + limit / share < limit,
            None => true,
        })
    }

    /// Whether a page of the group would not have left if the group had had the memory of all
    /// others too. `distance`: evictions of the group since it left.
    pub fn is_near(&self, id: GroupId, distance: u64) -> bool {
        distance <= self.get(GroupId::ROOT).used - self.get(id).resident
    }

    /// Of a group and those above it the deepest that is above its limit.
    pub fn over_limit(&self, id: GroupId) -> Option<GroupId> {
        self.way_up(id).find(|id| self.get(*id).is_over())
    }

    /// Any group that is above its limit; one below it, if there is such a one.
    pub fn any_over_limit(&self) -> Option<GroupId> {
        let over = self.iter().filter(|(_, group)| group.is_over());
        over.max_by_key(|(id, _)| self.way_up(*id).count()).map(|(id, _)| id)
    }

    /// The group within `above` that gives a page. `newcomer`: the room is for a new page of that
    /// group. `None`: there are no pages.
    pub fn giver(&mut self, above: GroupId, newcomer: Option<GroupId>) -> Option<GroupId> {
        if self.groups.len() == 1 {
            return (self.get(GroupId::ROOT).resident > 0).then_some(GroupId::ROOT);
        }
        let pays = |id: &GroupId| self.get(*id).resident > self.limit_of(above) / LEAST_SHARE;
        if let Some(id) = newcomer.filter(pays) {
            return Some(id);
        }
        self.turn = self.turn.wrapping_add(1);
        let all = self.get(above).used;
        let mut point = ((u128::from(self.turn.wrapping_mul(GOLDEN)) * u128::from(all)) >> 64) as u64;
        for (id, group) in self.iter().filter(|(id, _)| self.is_within(*id, above)) {
            match point.checked_sub(group.resident) {
                Some(left) => point = left,
                None => return Some(id),
            }
        }
        None
    }

    /// Entries of all histories.
    pub fn history(&self) -> u64 {
        self.iter().map(|(_, group)| group.history.len() as u64).sum()
    }

    /// The group with the longest history.
    pub fn longest_history(&self) -> GroupId {
        let longest = self.iter().max_by_key(|(_, group)| group.history.len());
        longest.map_or(GroupId::ROOT, |(id, _)| id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(groups: &mut CacheGroups, id: GroupId, pages: u64) {
        (0..pages).for_each(|_| groups.page_came(id));
    }

    #[test]
    fn use_is_summed_on_the_way_up_and_stays_right_when_groups_come_and_go() {
        let mut groups = CacheGroups::new(1000);
        let logs = groups.add(GroupId::ROOT).expect("a group");
        let old = groups.add(logs).expect("a group");
        fill(&mut groups, GroupId::ROOT, 5);
        fill(&mut groups, logs, 3);
        fill(&mut groups, old, 2);
        let used = |groups: &CacheGroups| groups.iter().map(|(_, group)| group.used()).collect::<Vec<_>>();
        assert_eq!(used(&groups), [10, 5, 2]);
        groups.set_above(old, GroupId::ROOT);
        assert_eq!(used(&groups), [10, 3, 2]);
        groups.set_above(old, logs);
        (0..3).for_each(|_| groups.page_left(logs));
        groups.drop_empty(logs);
        assert_eq!((used(&groups), groups.get(old).above), (vec![7, 2], GroupId::ROOT));
        assert_eq!(groups.add(GroupId::ROOT), Some(logs), "its number is free");
        assert_eq!((0..300).filter(|_| groups.add(GroupId::ROOT).is_some()).count(), 253);
    }

    #[test]
    fn a_new_page_displaces_one_of_its_own_group_and_others_give_by_their_size() {
        let mut groups = CacheGroups::new(1000);
        let [small, large] = [0; 2].map(|_| groups.add(GroupId::ROOT).expect("a group"));
        fill(&mut groups, small, 200);
        fill(&mut groups, large, 600);
        assert_eq!(groups.giver(GroupId::ROOT, Some(small)), Some(small));
        let mut given = [0; 3];
        for _ in 0..800 {
            given[usize::from(groups.giver(GroupId::ROOT, None).expect("a group").number())] += 1;
        }
        assert!(given[0] == 0 && (195..=205).contains(&given[1]), "{given:?}");
        let begins = groups.add(GroupId::ROOT).expect("a group");
        fill(&mut groups, begins, 3);
        assert_ne!(groups.giver(GroupId::ROOT, Some(begins)), Some(begins), "it has hardly anything");
        assert_eq!(groups.giver(large, None), Some(large), "only within the group");
        assert!(groups.is_near(small, 603) && !groups.is_near(small, 604));
    }

    #[test]
    fn the_deepest_group_above_its_limit_goes_first() {
        let mut groups = CacheGroups::new(10);
        let logs = groups.add(GroupId::ROOT).expect("a group");
        let old = groups.add(logs).expect("a group");
        groups.set_limit(old, Some(4));
        fill(&mut groups, old, 5);
        fill(&mut groups, logs, 6);
        assert_eq!((groups.over_limit(old), groups.over_limit(logs)), (Some(old), Some(GroupId::ROOT)));
        assert_eq!((groups.any_over_limit(), groups.limit_of(old), groups.limit_of(logs)), (Some(old), 4, 10));
        groups.page_left(old);
        assert_eq!((groups.any_over_limit(), groups.has_room(old, 8)), (None, false));
        groups.set_limit(old, None);
        groups.set_limit(GroupId::ROOT, Some(20));
        assert!(groups.has_room(old, 8));
    }
}
