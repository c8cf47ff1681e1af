//! The lists of clusters with free slots, and the state of the room on the device.
//!
//! Clusters that were never used are in no list: they are clean, and are handed out in order when
//! no linked clean cluster is left. So a device costs memory for the part of it that was used, not
//! for its full length.

use super::cluster::ClusterList;
use super::{NONE, SlotRun};
use crate::util::growth::{Growth, during};

#[derive(Clone, Copy)]
struct ClusterLinks {
    prev: u32,
    next: u32,
}

/// The lists of a device's clusters. Which list a cluster is in is noted in the cluster itself
/// (`Cluster::home`).
pub(super) struct ClusterLists {
    /// Links of the clusters that were used.
    links: Vec<ClusterLinks>,
    clusters: u32,
    heads: [u32; 3],
    /// Clusters in the list `Dirty`.
    pub dirty: u32,
    /// Slots that the device had no room for.
    pub set_aside: Vec<SlotRun>,
}

impl ClusterLists {
    /// Lists in which all clusters are clean, the lowest first.
    pub fn new(clusters: u32) -> Self {
        Self { links: Vec::new(), clusters, heads: [NONE; 3], dirty: 0, set_aside: Vec::new() }
    }

    pub fn head(&self, list: ClusterList) -> Option<u32> {
        let unused = || Some(self.unused()).filter(|index| list == ClusterList::Clean && *index < self.clusters);
        self.linked(list).or_else(unused)
    }

    /// The lowest cluster that was never used; equal to the number of clusters when all were used.
    fn unused(&self) -> u32 {
        self.links.len() as u32
    }

    /// Links clusters that were never used, all up to this one, as clean ones.
    pub fn link_up_to(&mut self, index: u32) {
        while self.unused() <= index {
            let next = self.unused();
            self.unlink(next, ClusterList::Clean);
            self.link(next, ClusterList::Clean);
        }
    }

    fn linked(&self, list: ClusterList) -> Option<u32> {
        Some(self.heads[list as usize]).filter(|head| *head != NONE)
    }

    /// The clusters of a list, from its head on, without those that were never used.
    pub fn iter(&self, list: ClusterList) -> impl Iterator<Item = u32> {
        let next = |index: &u32| Some(self.links[*index as usize].next).filter(|next| *next != NONE);
        std::iter::successors(self.linked(list), next)
    }

    pub fn link(&mut self, index: u32, list: ClusterList) {
        let head = std::mem::replace(&mut self.heads[list as usize], index);
        self.links[index as usize] = ClusterLinks { prev: NONE, next: head };
        if head != NONE {
            self.links[head as usize].prev = index;
        }
        self.dirty += (list == ClusterList::Dirty) as u32;
    }

    pub fn unlink(&mut self, index: u32, list: ClusterList) {
        if index == self.unused() {
            return during(Growth::Devices, || self.links.push(ClusterLinks { prev: NONE, next: NONE }));
        }
        let ClusterLinks { prev, next } = self.links[index as usize];
        match prev {
            NONE => self.heads[list as usize] = next,
            prev => self.links[prev as usize].next = next,
        }
        if next != NONE {
            self.links[next as usize].prev = prev;
        }
        self.dirty -= (list == ClusterList::Dirty) as u32;
    }
}
