//! Who may share pages with whom: address spaces that come from one image by fork.
//!
//! A fork leaves all private pages shared until one side writes them, and each side's statm counts them. How many they are is
//! costly to ask (see [`crate::fork_shares`]), so it is asked only of those who have kin: a space made by execve(2) is an
//! image of its own, one made by fork(2) is of its parent's image, and who is the last of its image shares with nobody. Most
//! processes of a build are: a shell forks, and the child executes a compiler.
//!
//! **If it cannot be known.** A fork child whose parent was not managed at the fork comes as an image of its own, and so does a
//! program that an agent was brought to. Those ([`Kin::doubt`]), those without an agent and the parents of both are always asked.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Of one space: its image. Counted as long as it lives.
#[derive(Debug)]
pub struct Kin {
    living: Arc<AtomicU32>,
    uncertain: bool,
}

/// What others see of a space's kin.
#[derive(Clone, Debug, Default)]
pub struct KinSeen {
    living: Arc<AtomicU32>,
    /// It may share pages with processes that are not known to be its kin.
    pub is_uncertain: bool,
}

impl Default for Kin {
    fn default() -> Self {
        Self { living: Arc::new(AtomicU32::new(1)), uncertain: false }
    }
}

impl Kin {
    /// Of a fork child.
    #[must_use]
    pub fn child(&self) -> Self {
        self.living.fetch_add(1, Relaxed);
        Self { living: self.living.clone(), uncertain: self.uncertain }
    }

    /// It was forked, or may have been, while nobody looked.
    pub const fn doubt(&mut self) {
        self.uncertain = true;
    }

    /// For whoever counts what it shares.
    pub fn seen(&self) -> KinSeen {
        KinSeen { living: self.living.clone(), is_uncertain: self.uncertain }
    }
}

impl Drop for Kin {
    fn drop(&mut self) {
        self.living.fetch_sub(1, Relaxed);
    }
}

impl KinSeen {
    /// Whether it may share pages now.
    pub fn may_share(&self) -> bool {
        self.is_uncertain || self.living.load(Relaxed) > 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_of_an_image_shares_with_nobody() {
        let parent = Kin::default();
        let seen = parent.seen();
        assert!(!seen.may_share());
        let child = parent.child();
        let grandchild = child.child();
        assert!(seen.may_share() && grandchild.seen().may_share());
        drop(child);
        assert!(seen.may_share(), "the grandchild is left");
        drop(grandchild);
        assert!(!seen.may_share());
    }

    #[test]
    fn whose_parent_was_not_known_may_always_share_and_so_do_its_children() {
        let mut stranger = Kin::default();
        stranger.doubt();
        assert!(stranger.seen().may_share());
        let child = stranger.child();
        drop(stranger);
        assert!(child.seen().may_share());
    }
}
