//! The lists in which clusters with free slots hang, and what is known of the device's room.
//!
//! Clusters that were never used are in no list: they are clean, and come in their order when none that is linked is left. So a
//! device costs what is used of it and not what it may become.

use super::cluster::List;
use super::{NONE, Run};
use crate::util::growth::{Growth, during};

#[derive(Clone, Copy)]
struct Links {
    prev: u32,
    next: u32,
}

/// The lists of a device's clusters. Which list a cluster is in is noted in the cluster itself (`Cluster::home`).
pub(super) struct Lists {
    /// Of the clusters that were used.
    links: Vec<Links>,
    clusters: u32,
    heads: [u32; 3],
    /// Clusters in the list `Dirty`.
    pub dirty: u32,
    /// Slots that the device had no room for.
    pub set_aside: Vec<Run>,
}

impl Lists {
    /// All clusters clean, the lowest first.
    pub fn new(clusters: u32) -> Self {
        Self { links: Vec::new(), clusters, heads: [NONE; 3], dirty: 0, set_aside: Vec::new() }
    }

    pub fn head(&self, list: List) -> Option<u32> {
        let unused = || Some(self.unused()).filter(|index| list == List::Clean && *index < self.clusters);
        self.linked(list).or_else(unused)
    }

    /// The lowest cluster that was never used; as many as there are when all were.
    fn unused(&self) -> u32 {
        self.links.len() as u32
    }

    fn linked(&self, list: List) -> Option<u32> {
        Some(self.heads[list as usize]).filter(|head| *head != NONE)
    }

    /// The clusters of a list, from its head on, without those that were never used.
    pub fn iter(&self, list: List) -> impl Iterator<Item = u32> {
        let next = |index: &u32| Some(self.links[*index as usize].next).filter(|next| *next != NONE);
        std::iter::successors(self.linked(list), next)
    }

    pub fn link(&mut self, index: u32, list: List) {
        let head = std::mem::replace(&mut self.heads[list as usize], index);
        self.links[index as usize] = Links { prev: NONE, next: head };
        if head != NONE {
            self.links[head as usize].prev = index;
        }
        self.dirty += (list == List::Dirty) as u32;
    }

    pub fn unlink(&mut self, index: u32, list: List) {
        if index == self.unused() {
            return during(Growth::Devices, || self.links.push(Links { prev: NONE, next: NONE }));
        }
        let Links { prev, next } = self.links[index as usize];
        match prev {
            NONE => self.heads[list as usize] = next,
            prev => self.links[prev as usize].next = next,
        }
        if next != NONE {
            self.links[next as usize].prev = prev;
        }
        self.dirty -= (list == List::Dirty) as u32;
    }
}
