//! Who may share pages with whom: address spaces that come from one image by fork.
//!
//! A fork leaves all private pages shared until one side writes them, and each side's statm counts
//! them. How many they are is costly to ask (see `cow_accounting.rs` of the crate run), so it is
//! asked only of those who have kin: a space made by execve(2) is an image of its own, one made by
//! fork(2) is of its parent's image, and who is the last of its image shares with nobody. Most
//! processes of a build are: a shell forks, and the child executes a compiler.
//!
//! **If it cannot be known.** A fork child whose parent was not managed at the fork comes as an
//! image of its own, and so does a program that an agent was brought to. Those
//! ([`ForkFamily::doubt`]), those without an agent and the parents of both are always asked.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

/// What all of an image have in common.
#[derive(Debug, Default)]
struct ForkRelatives {
    living: AtomicU32,
    births: AtomicU32,
}

/// Of one space: its image. Counted as long as it lives.
#[derive(Debug)]
pub struct ForkFamily {
    family: Arc<ForkRelatives>,
    uncertain: bool,
    /// It has children that are not known to be its kin.
    is_doubted: Arc<AtomicBool>,
}

/// What others see of a space's kin.
#[derive(Clone, Debug, Default)]
pub struct ForkFamilySeen {
    family: Arc<ForkRelatives>,
    /// It may share pages with processes that are not known to be its kin.
    pub is_uncertain: bool,
    is_doubted: Arc<AtomicBool>,
}

impl Default for ForkFamily {
    fn default() -> Self {
        let family = ForkRelatives { living: AtomicU32::new(1), births: AtomicU32::new(0) };
        Self { family: Arc::new(family), uncertain: false, is_doubted: Arc::default() }
    }
}

impl ForkFamily {
    /// Of a fork child.
    #[must_use]
    pub fn child(&self) -> Self {
        self.family.living.fetch_add(1, Relaxed);
        self.family.births.fetch_add(1, Relaxed);
        Self { family: self.family.clone(), uncertain: self.uncertain, is_doubted: Arc::default() }
    }

    /// It was forked, or may have been, while nobody looked.
    pub const fn doubt(&mut self) {
        self.uncertain = true;
    }

    /// How many others there are of its image.
    pub fn relatives(&self) -> u32 {
        self.family.living.load(Relaxed).saturating_sub(1)
    }

    /// Whether it may share pages now.
    pub fn may_share(&self) -> bool {
        self.uncertain || self.relatives() > 0 || self.is_doubted.load(Relaxed)
    }

    /// For whoever counts what it shares.
    pub fn seen(&self) -> ForkFamilySeen {
        ForkFamilySeen {
            family: self.family.clone(),
            is_uncertain: self.uncertain,
            is_doubted: self.is_doubted.clone(),
        }
    }
}

impl Drop for ForkFamily {
    fn drop(&mut self) {
        self.family.living.fetch_sub(1, Relaxed);
    }
}

impl ForkFamilySeen {
    /// What tells its image from others.
    pub fn image(&self) -> usize {
        Arc::as_ptr(&self.family) as usize
    }

    /// How many of its image live.
    pub fn living(&self) -> u32 {
        self.family.living.load(Relaxed)
    }

    /// How many of its image were born so far.
    pub fn births(&self) -> u32 {
        self.family.births.load(Relaxed)
    }

    /// A child of it was found whose kin is not known: they may share pages.
    pub fn doubt_children(&self) {
        self.is_doubted.store(true, Relaxed);
    }

    /// Whether it may share pages now.
    pub fn may_share(&self) -> bool {
        self.is_uncertain || self.family.living.load(Relaxed) > 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_of_an_image_shares_with_nobody() {
        let parent = ForkFamily::default();
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
        let mut stranger = ForkFamily::default();
        stranger.doubt();
        assert!(stranger.seen().may_share());
        let child = stranger.child();
        drop(stranger);
        assert!(child.seen().may_share());
    }
}
