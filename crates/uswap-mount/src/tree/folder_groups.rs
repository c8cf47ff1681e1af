//! Groups of files by folders: what lies in a folder belongs to its group.
//!
//! A group is a path below the root of the mount. A file is put into its group when the kernel
//! looks it up: the group of its folder, or of the path itself. The kernel does not look up anew
//! what lies in a folder that was renamed, and nothing at all when a group is made, so then the
//! paths of all known files are asked for ([`SourceTree::sort_into_groups`]).
//!
//! Pages of a file that the kernel has forgotten stay in the group in which it was used last.

use std::collections::HashMap;
use std::ffi::{CString, OsStr};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, RwLock};
use std::time::{Duration, Instant};

use uswap_sys::fs::inode;

use crate::cache::file::FileKey;
use crate::cache::groups::GroupId;
use crate::tree::SourceTree;
use crate::tree::node::{Node, NodeWay};

/// All files are sorted at least this often, for changes behind the back of the mount, and not more
/// often than that it takes this part of the time.
const INTERVAL: Duration = Duration::from_secs(10);
const COST: u32 = 20;

#[derive(Debug)]
struct FolderGroup {
    id: GroupId,
    /// The folder that has its path now.
    folder: Option<FileKey>,
}

/// The groups of a mount by the paths of their folders, as text without a slash at the ends.
#[derive(Debug, Default)]
pub struct FolderGroups {
    groups: RwLock<HashMap<String, FolderGroup>>,
    doubted: AtomicBool,
    /// When the files were sorted last, and how long it took.
    sorted: Mutex<Option<(Instant, Duration)>>,
}

/// A path of a group as users write it, without the slashes at its ends.
pub fn trimmed(path: &str) -> &str {
    path.trim_matches('/')
}

impl FolderGroups {
    /// The group of a file in a folder of that group.
    pub fn of_child(&self, folder: GroupId, file: &FileKey) -> GroupId {
        let groups = self.groups.read().expect("groups");
        let own = groups.values().find(|group| group.folder.as_ref() == Some(file));
        own.map_or(folder, |group| group.id)
    }

    /// Names have changed: files may be in other groups now.
    pub fn doubt(&self) {
        self.doubted.store(true, SeqCst);
    }

    /// The group of that path.
    pub fn id(&self, path: &str) -> Option<GroupId> {
        self.groups.read().expect("groups").get(path).map(|group| group.id)
    }

    /// Paths and groups, in the order of the paths.
    pub fn all(&self) -> Vec<(String, GroupId)> {
        let groups = self.groups.read().expect("groups");
        let mut all: Vec<(String, GroupId)> = groups.iter().map(|(path, group)| (path.clone(), group.id)).collect();
        all.sort();
        all
    }

    /// The group that has this path or the longest part of it; `but`: not counting that group.
    pub fn nearest(&self, path: &str, but: Option<GroupId>) -> GroupId {
        let groups = self.groups.read().expect("groups");
        nearest(&groups, path, but)
    }

    /// Adds a group whose folder is not known yet.
    pub fn add(&self, path: &str, id: GroupId) {
        self.groups.write().expect("groups").insert(path.to_owned(), FolderGroup { id, folder: None });
    }

    /// Removes a group.
    pub fn remove(&self, path: &str) {
        self.groups.write().expect("groups").remove(path);
    }

    fn is_due(&self) -> bool {
        if self.groups.read().expect("groups").is_empty() {
            return false;
        }
        let Some((at, took)) = *self.sorted.lock().expect("sorted") else { return true };
        at.elapsed() > took * COST && (self.doubted.load(SeqCst) || at.elapsed() > INTERVAL)
    }
}

fn nearest(groups: &HashMap<String, FolderGroup>, path: &str, but: Option<GroupId>) -> GroupId {
    let ends = path.match_indices('/').map(|(at, _)| at).chain([path.len()]);
    let mut parts = ends.filter_map(|end| groups.get(&path[..end])).map(|group| group.id);
    parts.rfind(|id| Some(*id) != but).unwrap_or_default()
}

/// The present path of a file that has a descriptor.
fn path_of(file: impl AsFd) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/self/fd/{}", file.as_fd().as_raw_fd())).ok()
}

/// The present path of a file; `None`: it has none.
fn path_of_node(node: &Arc<Node>) -> Option<PathBuf> {
    let NodeWay { from, mut names } = node.way()?;
    let mut path = path_of(&*from)?;
    while let Some((_, name)) = names.pop() {
        path.push(OsStr::from_bytes(name.text().to_bytes()));
    }
    Some(path)
}

impl SourceTree {
    /// The groups of folders.
    pub fn groups(&self) -> &FolderGroups {
        &self.groups
    }

    /// A folder by its path below the root. Symbolic links are not followed.
    ///
    /// # Errors
    /// ENOENT, ENOTDIR: there is no such folder.
    pub fn folder(&self, path: &str) -> io::Result<FileKey> {
        let mut found: OwnedFd = self.nodes.root().as_fd().try_clone_to_owned()?;
        for name in path.split('/') {
            found = inode::look_up(found.as_fd(), &CString::new(name)?)?;
        }
        let status = inode::status(found.as_fd())?;
        let is_folder = status.kind() == libc::S_IFDIR;
        is_folder.then(|| FileKey::from(&status)).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOTDIR))
    }

    /// Puts all known files into the groups of the folders in which they are now.
    pub fn sort_into_groups(&self) {
        // One at a time: an older one must not undo what a newer one has found.
        let mut sorted = self.groups.sorted.lock().expect("sorted");
        let begun = Instant::now();
        self.groups.doubted.store(false, SeqCst);
        for (path, id) in self.groups.all() {
            let folder = self.folder(&path).ok();
            let mut groups = self.groups.groups.write().expect("groups");
            groups.get_mut(&path).filter(|group| group.id == id).into_iter().for_each(|group| group.folder = folder);
        }
        let Some(root) = path_of(self.nodes.root()) else { return };
        let mut moves = Vec::new();
        for node in self.nodes.all() {
            let Some(group) = self.group_of(&node, &root) else { continue };
            node.set_group(group);
            if node.is_file() {
                moves.push((node.key, group));
            }
        }
        self.cache.change_groups(&moves);
        *sorted = Some((Instant::now(), begun.elapsed()));
    }

    /// The group of a file by its present path; `None`: it has no name any more.
    fn group_of(&self, node: &Arc<Node>, root: &Path) -> Option<GroupId> {
        let path = path_of_node(node)?;
        let below = path.strip_prefix(root).ok()?;
        Some(self.groups.nearest(&below.to_string_lossy(), None))
    }

    /// The same, if names have changed. To be called now and then.
    pub fn sort_now_and_then(&self) {
        if self.groups.is_due() {
            self.sort_into_groups();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_in_the_deepest_group_on_its_path() {
        let groups = FolderGroups::default();
        for (number, path) in (1..).zip(["logs", "logs/old/er", "log"]) {
            groups.add(path, GroupId::new(number));
        }
        let nearest = |path| groups.nearest(path, None).number();
        let found = ["logs/a", "logs/old/er/a", "logs/old/erased", "lo", "log", "logs", "", "x/logs/a"].map(nearest);
        assert_eq!(found, [1, 2, 1, 0, 3, 1, 0, 0]);
        assert_eq!(groups.nearest("logs/old/er", Some(GroupId::new(2))), GroupId::new(1));
        groups.remove("logs");
        assert_eq!(groups.nearest("logs/old/er/a", Some(GroupId::new(2))), GroupId::ROOT);
    }

    #[test]
    fn files_are_sorted_only_where_there_are_groups_and_names_have_changed() {
        let groups = FolderGroups::default();
        groups.doubt();
        assert!(!groups.is_due(), "no groups");
        groups.add("logs", GroupId::new(1));
        assert!(groups.is_due());
        *groups.sorted.lock().unwrap() = Some((Instant::now(), Duration::ZERO));
        std::thread::sleep(Duration::from_millis(1));
        assert!(groups.is_due(), "doubted");
        groups.doubted.store(false, SeqCst);
        assert!(!groups.is_due());
        groups.doubt();
        *groups.sorted.lock().unwrap() = Some((Instant::now(), Duration::from_secs(9)));
        assert!(!groups.is_due(), "it takes long");
    }
}
