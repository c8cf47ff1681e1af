//! Files with fewer descriptors than there are files: each rule of [`super::node`].

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use uswap_sys::fs::inode::{self, FileStatus};

use crate::cache::groups::GroupId;
use crate::tree::node::OpenNode;
use crate::tree::nodes::{FoundFile, Nodes};

const ROOT: u64 = 1;
/// PathDescriptors for files that nobody has open. One walk may use more.
const MOST: usize = 3;

/// A folder, and what the kernel would know of it.
struct Known {
    folder: PathBuf,
    nodes: Nodes,
}

impl Known {
    fn new(test: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("uswap-nodes-{test}-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        let root = fs::File::open(&folder).expect("the folder");
        let nodes = Nodes::new(root.into(), MOST).expect("nodes");
        Self { folder, nodes }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Makes a file or a folder behind the back of the mount.
    fn make(&self, name: &str, is_folder: bool) {
        let path = self.path(name);
        if is_folder { fs::create_dir(path) } else { fs::write(path, name) }.expect("a new file");
    }

    /// Looks up all parts of a path. Returns the numbers, the root's first.
    fn find(&self, path: &str) -> io::Result<Vec<u64>> {
        let mut numbers = vec![ROOT];
        for part in Path::new(path) {
            let folder = self.nodes.open(numbers[numbers.len() - 1])?;
            let name = CString::new(part.as_bytes())?;
            numbers.push(self.nodes.find(FoundFile::look_up(&folder, &name)?, GroupId::ROOT));
        }
        Ok(numbers)
    }

    fn number(&self, path: &str) -> u64 {
        self.find(path).expect("a file").pop().expect("a number")
    }

    fn status(&self, number: u64) -> io::Result<FileStatus> {
        inode::status(self.nodes.open(number)?.as_fd())
    }

    /// The folder of a path, the last part, and the file that has it.
    fn place(&self, path: &str) -> io::Result<(OpenNode, CString, Option<FoundFile>)> {
        let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
        let folder = self.nodes.open(*self.find(folder)?.last().expect("a number"))?;
        let name = CString::new(name)?;
        let found = FoundFile::look_up(&folder, &name).ok();
        Ok((folder, name, found))
    }

    fn rename(&self, old: &str, new: &str, flags: u32) -> io::Result<()> {
        let ((from, old, file), (to, new, displaced)) = (self.place(old)?, self.place(new)?);
        let exchanged = flags & libc::RENAME_EXCHANGE != 0;
        self.nodes.renaming(file.as_ref(), (displaced.as_ref(), to.with(&new)), exchanged, || {
            inode::rename((from.as_fd(), &old), (to.as_fd(), &new), flags)
        })
    }

    fn remove(&self, path: &str, is_folder: bool) -> io::Result<()> {
        let (folder, name, file) = self.place(path)?;
        self.nodes.removing(file.as_ref(), || inode::remove(folder.as_fd(), &name, is_folder))
    }

    /// Uses many files, so that others lose their descriptors.
    fn crowd(&self) {
        for number in 0..4 * MOST {
            let name = format!("crowd{number}");
            if !self.path(&name).exists() {
                self.make(&name, false);
            }
            self.number(&name);
        }
        let open = self.nodes.descriptors_open();
        assert!(open <= MOST + 12, "{open} descriptors");
    }
}

impl Drop for Known {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// A small generator of random numbers.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }
}

/// Files are made, renamed, linked and removed through the mount: the numbers that the kernel knows
/// lead to the files that they were given for.
#[test]
fn a_number_leads_to_its_file_whatever_names_change() {
    const PATHS: [&str; 10] = ["a", "b", "c", "c/a", "c/b", "c/c", "c/c/a", "d", "d/a", "d/d"];
    let known = Known::new("random");
    let mut random = Random(7);
    let mut files: BTreeMap<u64, u64> = BTreeMap::new();
    for step in 0..4000 {
        let (one, other) = (PATHS[random.below(PATHS.len())], PATHS[random.below(PATHS.len())]);
        let _ = match random.below(9) {
            0 => fs::write(known.path(one), "text"),
            1 => fs::create_dir(known.path(one)),
            2 | 3 => known.rename(one, other, 0),
            4 => known.rename(one, other, libc::RENAME_EXCHANGE),
            5 => known.remove(one, random.below(2) == 0),
            6 => known.place(one).and_then(|(folder, name, _)| {
                let file = known.nodes.open(*known.find(other)?.last().expect("a number"))?;
                inode::link(file.as_fd(), folder.as_fd(), &name)
            }),
            _ => Ok(()),
        };
        for number in known.find(one).unwrap_or_default() {
            let inode = known.status(number).expect("what was found just now").inode;
            assert_eq!(*files.entry(number).or_insert(inode), inode, "step {step}: number {number} is another file");
        }
        if random.below(8) == 0 {
            let chosen = files.keys().nth(random.below(files.len().max(1))).copied();
            if let Some(number) = chosen.filter(|number| *number != ROOT) {
                known.nodes.forget(number, u64::MAX);
                files.remove(&number);
            }
        }
        for (number, inode) in &files {
            let now = known.status(*number).unwrap_or_else(|error| panic!("step {step}: number {number}: {error}"));
            assert_eq!(now.inode, *inode, "step {step}: number {number}");
        }
    }
    (2..100_000).for_each(|number| drop(known.nodes.forget(number, u64::MAX)));
    assert_eq!(known.nodes.descriptors_open(), 1, "descriptors stay after all files are forgotten");
}

/// Rule 1: a descriptor stays where the name leads elsewhere.
#[test]
fn a_file_that_others_rename_is_not_lost() {
    let known = Known::new("behind");
    known.make("a", false);
    let (number, inode) = (known.number("a"), fs::metadata(known.path("a")).expect("a").ino());
    fs::rename(known.path("a"), known.path("b")).expect("a rename");
    known.crowd();
    assert_eq!(known.status(number).expect("the file").inode, inode);
}

/// Rule 3: another file that has the name now is not taken for it.
#[test]
fn another_file_of_the_name_is_not_taken_for_it() {
    let known = Known::new("other");
    known.make("folder", true);
    ["folder/a", "folder/b", "folder/c"].iter().for_each(|name| known.make(name, false));
    let (replaced, gone) = (known.number("folder/a"), known.number("folder/c"));
    known.crowd();
    fs::rename(known.path("folder/b"), known.path("folder/a")).expect("a rename");
    fs::remove_file(known.path("folder/c")).expect("a removal");
    for number in [replaced, gone] {
        assert_eq!(known.status(number).unwrap_err().raw_os_error(), Some(libc::ESTALE));
    }
    let found = known.number("folder/a");
    assert!(found != replaced, "two files have one number");
    assert!(known.status(found).is_ok());
}

/// A folder that gets the number of a removed file is told from it by its type.
#[test]
fn a_number_that_is_used_again_is_another_file() {
    let known = Known::new("again");
    // The source gives the number of a removed file to the next one; not all file systems do.
    for _ in 0..100 {
        known.make("a", false);
        let number = known.number("a");
        known.crowd();
        fs::remove_file(known.path("a")).expect("a removal");
        known.make("b", true);
        let folder = known.number("b");
        assert!(folder != number, "a folder has the number of a file");
        assert_eq!(known.status(folder).expect("the folder").kind(), libc::S_IFDIR);
        known.nodes.forget(number, 1);
        assert!(known.nodes.open(folder).is_ok(), "the folder was forgotten with the file");
        known.nodes.forget(folder, 1);
        fs::remove_dir(known.path("b")).expect("a removal");
    }
}

/// Tells other threads that this one has ended, also if it has failed.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// Rule 2 with threads: while names change, and while others use many files, a file is reached,
/// also one that has no name any more.
#[test]
fn a_file_is_reached_while_names_change() {
    let known = Known::new("threads");
    known.make("a", true);
    known.make("a/folder", true);
    known.make("a/folder/file", false);
    let (number, inode) = (known.number("a/folder/file"), fs::metadata(known.path("a/folder/file")).expect("it").ino());
    let ended = AtomicBool::new(false);
    let until_ended = |step: &dyn Fn()| {
        while !ended.load(SeqCst) {
            step();
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _end = End(&ended);
            for round in 0..1500 {
                known.rename("a", "b", 0).expect("a rename");
                known.rename("b/folder", "b/other", 0).expect("a rename");
                let name = format!("b/other/{round}");
                known.make(&name, false);
                let removed = known.number(&name);
                std::thread::yield_now();
                known.remove(&name, false).expect("a removal");
                assert_eq!(known.status(removed).expect("a file without a name").links, 0);
                known.nodes.forget(removed, 1);
                known.rename("b/other", "b/folder", 0).expect("a rename");
                known.rename("b", "a", 0).expect("a rename");
            }
        });
        scope.spawn(|| until_ended(&|| known.crowd()));
        until_ended(&|| assert_eq!(known.status(number).expect("the file").inode, inode));
    });
}
