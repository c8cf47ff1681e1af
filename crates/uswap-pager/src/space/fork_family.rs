//! Fork families: address spaces that come from one image by fork and may share pages.
//!
//! A fork leaves all private pages shared until one side writes them, and each side's statm counts
//! them. Counting the shared pages is costly (see `cow_accounting.rs` of the crate run), so it is
//! done only for spaces with relatives: a space made by execve(2) is an image of its own, a space
//! made by fork(2) belongs to its parent's image, and the last space of an image shares with no
//! other. Most processes of a build are the last of their image: a shell forks, and the child
//! executes a compiler.
//!
//! **If it cannot be known.** A fork child whose parent was not managed at the fork is counted as
//! an image of its own, and so is a program to which an agent was brought later. The shared pages
//! of these ([`ForkFamily::doubt`]), of processes without an agent, and of the parents of both are
//! always counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

/// The state that all spaces of an image have in common.
#[derive(Debug, Default)]
struct ForkRelatives {
    living: AtomicU32,
    births: AtomicU32,
}

/// The image of one space. The space counts as living until this is dropped.
#[derive(Debug)]
pub struct ForkFamily {
    family: Arc<ForkRelatives>,
    uncertain: bool,
    /// Whether it has children that are not known to be relatives.
    is_doubted: Arc<AtomicBool>,
}

/// The fork family of a space, as other threads see it.
#[derive(Clone, Debug, Default)]
pub struct ForkFamilySeen {
    family: Arc<ForkRelatives>,
    /// Whether the space may share pages with processes that are not known to be relatives.
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
    /// The family of a fork child.
    #[must_use]
    pub fn child(&self) -> Self {
        self.family.living.fetch_add(1, Relaxed);
        self.family.births.fetch_add(1, Relaxed);
        Self { family: self.family.clone(), uncertain: self.uncertain, is_doubted: Arc::default() }
    }

    /// Notes that the space was forked, or may have been, while it was not managed.
    pub const fn doubt(&mut self) {
        self.uncertain = true;
    }

    /// Number of other living spaces of its image.
    pub fn relatives(&self) -> u32 {
        self.family.living.load(Relaxed).saturating_sub(1)
    }

    /// Whether the space may share pages now.
    pub fn may_share(&self) -> bool {
        self.uncertain || self.relatives() > 0 || self.is_doubted.load(Relaxed)
    }

    /// The view for the accounting of shared pages.
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
    /// A number that identifies the image.
    pub fn image(&self) -> usize {
        Arc::as_ptr(&self.family) as usize
    }

    /// Number of living spaces of its image.
    pub fn living(&self) -> u32 {
        self.family.living.load(Relaxed)
    }

    /// Number of fork children of its image so far.
    pub fn births(&self) -> u32 {
        self.family.births.load(Relaxed)
    }

    /// Notes that a child was found that is not known to be a relative: the two may share pages.
    pub fn doubt_children(&self) {
        self.is_doubted.store(true, Relaxed);
    }

    /// Whether the space may share pages now.
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
