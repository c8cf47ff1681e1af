//! Changes of the groups of files, from outside: groups come and go, get limits, and files move.

use std::collections::HashMap;

use crate::cache::figures::GroupNumbers;
use crate::cache::file::FileKey;
use crate::cache::groups::GroupId;
use crate::cache::pages::Displaced;
use crate::cache::{CacheTables, FileCache};

impl CacheTables {
    /// Puts files into other groups, with what is cached of them.
    fn change_groups(&mut self, moves: &[(FileKey, GroupId)]) {
        let mut ranges = Vec::new();
        for (file, group) in moves {
            let Some(entry) = self.files.get_mut(file).filter(|entry| entry.group != *group) else { continue };
            entry.group = *group;
            ranges.extend(entry.range.map(|range| (range, *group)));
        }
        if !ranges.is_empty() {
            self.pages.change_groups(&ranges);
        }
    }
}

impl FileCache {
    /// Makes a group of files with a limit in pages; `None`: there are too many.
    pub fn add_group(&self, above: GroupId, limit: Option<u64>) -> Option<GroupId> {
        let mut tables = self.lock();
        let groups = tables.pages.groups_mut();
        let id = groups.add(above)?;
        groups.set_limit(id, limit);
        Some(id)
    }

    /// Puts a group below another one.
    pub fn set_above(&self, group: GroupId, above: GroupId) {
        self.change_tables(|tables| tables.pages.groups_mut().set_above(group, above));
    }

    /// Changes the limit of a group, in pages; `None`: it has none of its own.
    pub fn limit_group(&self, group: GroupId, limit: Option<u64>) {
        self.change_tables(|tables| tables.pages.groups_mut().set_limit(group, limit));
    }

    /// The limit that holds for what is in a group, in pages; `None`: only that of the cache.
    pub fn limit_above(&self, group: GroupId) -> Option<u64> {
        let tables = self.lock();
        let limit = tables.pages.groups().limit_of(group);
        (limit < tables.pages.limit()).then_some(limit)
    }

    /// Puts files into other groups, with what is cached of them.
    pub fn change_groups(&self, moves: &[(FileKey, GroupId)]) {
        self.change_tables(|tables| tables.change_groups(moves));
    }

    /// Removes a group, whose files go to another one.
    pub fn remove_group(&self, group: GroupId, to: GroupId) {
        self.change_tables(|tables| {
            let files = tables.files.iter().filter(|(_, entry)| entry.group == group);
            let moves: Vec<(FileKey, GroupId)> = files.map(|(file, _)| (*file, to)).collect();
            tables.change_groups(&moves);
            tables.pages.drop_group(group, to);
        });
    }

    fn change_tables(&self, change: impl FnOnce(&mut CacheTables)) {
        let mut displaced = Displaced::default();
        let mut tables = self.lock();
        change(&mut tables);
        tables.pages.shrink(&mut displaced);
        drop(tables);
        self.settle(displaced);
    }

    /// Figures of the groups.
    pub fn group_figures(&self) -> HashMap<GroupId, GroupNumbers> {
        let tables = self.lock();
        let numbers = tables.pages.groups().iter().map(|(id, group)| {
            let (used, peak, limit, stored) = (group.used(), group.peak(), group.limit(), group.stored);
            (id, GroupNumbers { used, peak, limit, stored, files: 0 })
        });
        let mut all: HashMap<GroupId, GroupNumbers> = numbers.collect();
        for entry in tables.files.values() {
            all.entry(entry.group).or_default().files += 1;
        }
        all
    }
}
