//! A file that the kernel knows, with or without a descriptor.
//!
//! A descriptor opened with O_PATH names a file wherever it is moved to. A large tree has more
//! files than a process may have descriptors, so a file can be *closed*: it is reached by its name
//! in its folder, which may be closed too. These rules hold:
//!
//! 1. A descriptor is closed only if the name leads to the file at that moment.
//! 2. A file whose name is taken away through the mount has a descriptor before ([`Node::unname`]).
//! 3. A file that has the name counts as this one only if it has the same number and type.
//!
//! So a closed file is lost (ESTALE) only by a change behind the back of the mount. The kernel then
//! looks up the path anew.

use std::ffi::{CStr, CString};
use std::io;
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use uswap_sys::fs::inode::{self, FileStatus};

use crate::cache::file::FileKey;
use crate::cache::groups::GroupId;
use crate::tree::descriptors::{Descriptor, PathDescriptors};

/// The longest way of closed folders.
const DEEPEST: usize = 1 << 16;
/// How often a way is walked whose names change meanwhile.
const WALKS: usize = 100;

/// The error of a file that is reached no more.
pub fn stale() -> io::Error {
    io::Error::from_raw_os_error(libc::ESTALE)
}

/// A name in a folder.
#[derive(Clone, Debug)]
pub struct Name {
    folder: Arc<Node>,
    name: CString,
}

impl Name {
    /// The name without the folder.
    pub fn text(&self) -> &CStr {
        &self.name
    }
}

impl PartialEq for Name {
    fn eq(&self, other: &Self) -> bool {
        self.folder.key == other.folder.key && self.name == other.name
    }
}

/// How a file is reached.
#[derive(Debug)]
enum NodePlace {
    /// By a descriptor. A name, if one is known, may be wrong.
    Open(Arc<Descriptor>, Option<Name>),
    Closed(Name),
}

/// The same, to be followed.
#[derive(Debug)]
pub enum Reach {
    /// It has a descriptor.
    Descriptor(Arc<Descriptor>),
    /// It has none.
    Name(Name),
}

/// The names that lead to a file.
#[derive(Debug)]
pub struct NodeWay {
    /// The nearest folder that has a descriptor, or the file itself.
    pub from: Arc<Descriptor>,
    /// The files on the way from there and their names, the last one first.
    pub names: Vec<(Arc<Node>, Name)>,
}

/// A file that the kernel knows.
#[derive(Debug)]
pub struct Node {
    /// The file in the cache.
    pub key: FileKey,
    kind: u32,
    group: AtomicU8,
    used: AtomicBool,
    place: Mutex<NodePlace>,
}

impl Node {
    /// A file that was looked up just now.
    pub fn new(status: &FileStatus, group: GroupId, descriptor: Arc<Descriptor>, name: Option<Name>) -> Self {
        let place = Mutex::new(NodePlace::Open(descriptor, name));
        let (key, kind, group) = (FileKey::from(status), status.kind(), AtomicU8::new(group.number()));
        Self { key, kind, group, used: AtomicBool::new(true), place }
    }

    /// Whether it is a regular file.
    pub fn is_file(&self) -> bool {
        self.kind == libc::S_IFREG
    }

    /// The group of files that it belongs to.
    pub fn group(&self) -> GroupId {
        GroupId::new(self.group.load(Relaxed))
    }

    /// Puts it into another group.
    pub fn set_group(&self, group: GroupId) {
        self.group.store(group.number(), Relaxed);
    }

    /// Whether the status is that of this file.
    pub fn is(&self, status: &FileStatus) -> bool {
        (self.key, self.kind) == (FileKey::from(status), status.kind())
    }

    /// Whether it was used since the last call.
    pub fn was_used(&self) -> bool {
        self.used.swap(false, Relaxed)
    }

    /// How it is reached now.
    pub fn reach(&self) -> Reach {
        match &*self.place.lock().expect("place") {
            NodePlace::Open(descriptor, _) => Reach::Descriptor(Arc::clone(descriptor)),
            NodePlace::Closed(name) => Reach::Name(name.clone()),
        }
    }

    /// The way to it; `None`: there is no folder that has a descriptor, as names were changed
    /// behind the back of the mount.
    pub fn way(self: &Arc<Self>) -> Option<NodeWay> {
        let (mut names, mut at) = (Vec::new(), Arc::clone(self));
        while names.len() < DEEPEST {
            let name = match at.reach() {
                Reach::Descriptor(from) => return Some(NodeWay { from, names }),
                Reach::Name(name) => name,
            };
            let folder = Arc::clone(&name.folder);
            names.push((std::mem::replace(&mut at, folder), name));
        }
        None
    }

    /// The file with a descriptor, and the folders on the way to it.
    ///
    /// # Errors
    /// ESTALE: its name leads to another file or to none. Else as openat(2).
    pub fn open(self: &Arc<Self>, descriptors: &PathDescriptors) -> io::Result<OpenNode> {
        if !self.used.load(Relaxed) {
            self.used.store(true, Relaxed);
        }
        for _ in 0..WALKS {
            if let Some(descriptor) = self.walk(descriptors)? {
                return Ok(OpenNode { node: Arc::clone(self), descriptor });
            }
        }
        Err(stale())
    }

    /// `None`: a name has changed on the way.
    fn walk(self: &Arc<Self>, descriptors: &PathDescriptors) -> io::Result<Option<Arc<Descriptor>>> {
        let NodeWay { from: mut descriptor, mut names } = self.way().ok_or_else(stale)?;
        while let Some((node, name)) = names.pop() {
            descriptor = match node.look_up(&descriptor, &name.name) {
                Ok(file) => node.adopt(file, descriptors),
                Err(error) if node.is_closed_at(&name) => return Err(error),
                Err(_) => return Ok(None),
            }
        }
        Ok(Some(descriptor))
    }

    /// This file by a name in a folder.
    fn look_up(&self, folder: &Descriptor, name: &CStr) -> io::Result<OwnedFd> {
        let found = inode::look_up(folder.as_fd(), name).map_err(|error| match error.raw_os_error() {
            Some(libc::ENOENT | libc::ENOTDIR) => stale(),
            _ => error,
        })?;
        let status = inode::status(found.as_fd())?;
        self.is(&status).then_some(found).ok_or_else(stale)
    }

    fn is_closed_at(&self, name: &Name) -> bool {
        matches!(&*self.place.lock().expect("place"), NodePlace::Closed(now) if now == name)
    }

    /// A closed file gets this descriptor of it.
    fn adopt(self: &Arc<Self>, file: OwnedFd, descriptors: &PathDescriptors) -> Arc<Descriptor> {
        let mut place = self.place.lock().expect("place");
        let name = match &*place {
            NodePlace::Open(descriptor, _) => return Arc::clone(descriptor),
            NodePlace::Closed(name) => name.clone(),
        };
        let descriptor = descriptors.count(file);
        *place = NodePlace::Open(Arc::clone(&descriptor), Some(name));
        descriptors.enqueue(self);
        descriptor
    }

    /// It was found again, by that name.
    pub fn found(self: &Arc<Self>, file: OwnedFd, name: Option<Name>, descriptors: &PathDescriptors) {
        self.used.store(true, Relaxed);
        self.adopt(file, descriptors);
        name.into_iter().for_each(|name| self.set_name(name));
    }

    /// Notes a name. That of a closed file stays: nobody has checked the other one.
    fn set_name(&self, new: Name) {
        if let NodePlace::Open(_, name) = &mut *self.place.lock().expect("place") {
            *name = Some(new);
        }
    }

    /// To be called before the name is taken away from the file. If the file is reached by that
    /// name alone, it is reached by its descriptor afterwards, for which `file` may serve.
    ///
    /// # Errors
    /// EMFILE: there are no more descriptors.
    pub fn unname(
        self: &Arc<Self>,
        name: Name,
        file: BorrowedFd<'_>,
        descriptors: &PathDescriptors,
    ) -> io::Result<Unnamed> {
        if self.is_closed_at(&name) {
            self.adopt(file.try_clone_to_owned()?, descriptors);
        }
        let mut taken = None;
        if let NodePlace::Open(_, known) = &mut *self.place.lock().expect("place") {
            taken = known.take_if(|known| *known == name);
        }
        Ok(Unnamed { node: Arc::clone(self), taken })
    }

    /// Closes the descriptor if nobody uses it and the name leads to the file. Returns whether.
    pub fn close(self: &Arc<Self>, descriptors: &PathDescriptors) -> bool {
        let (descriptor, name) = match &*self.place.lock().expect("place") {
            NodePlace::Open(descriptor, Some(name)) => (Arc::clone(descriptor), name.clone()),
            _ => return false,
        };
        // The one here and the one in `place`.
        let is_idle = |descriptor: &Arc<Descriptor>| Arc::strong_count(descriptor) == 2;
        if !is_idle(&descriptor) || !self.is_led_to_by(&name, descriptors) {
            return false;
        }
        let mut place = self.place.lock().expect("place");
        let is_same = matches!(&*place, NodePlace::Open(_, Some(now)) if *now == name) && is_idle(&descriptor);
        if is_same {
            *place = NodePlace::Closed(name);
        }
        is_same
    }

    fn is_led_to_by(&self, name: &Name, descriptors: &PathDescriptors) -> bool {
        let folder = name.folder.open(descriptors);
        folder.is_ok_and(|folder| self.look_up(&folder.descriptor, &name.name).is_ok())
    }
}

/// A file whose name is being taken away.
#[derive(Debug)]
#[must_use]
pub struct Unnamed {
    node: Arc<Node>,
    taken: Option<Name>,
}

impl Unnamed {
    /// The file has kept the name.
    pub fn put_back(self) {
        self.taken.into_iter().for_each(|name| self.node.set_name(name));
    }

    /// The file has that name now.
    pub fn renamed(self, name: Name) {
        self.node.set_name(name);
    }
}

/// A file that has a descriptor as long as this value is there.
#[derive(Clone, Debug)]
pub struct OpenNode {
    node: Arc<Node>,
    descriptor: Arc<Descriptor>,
}

impl OpenNode {
    /// A name in this folder.
    pub fn with(&self, name: &CStr) -> Name {
        Name { folder: Arc::clone(&self.node), name: name.to_owned() }
    }
}

impl Deref for OpenNode {
    type Target = Node;

    fn deref(&self) -> &Node {
        &self.node
    }
}

impl AsFd for OpenNode {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}
