//! Growth: the memory that the threads that serve pages may allocate, by name.
//!
//! Swap over a network must not need memory to free memory. Everything that a page needs on its way
//! to or from a device is allocated at the start: buffers of the reserve ([`crate::Reserve`]),
//! queues, scratch memory. The remaining memory grows with the programs and not with the traffic,
//! counts as memory of the engine within the budget, and has a name here; code that lets it grow
//! gives the name ([`during`]). If a thread has called [`forbid`] and allocates without a name,
//! that is a defect, and the allocator of `uswap-sys` ends the process (fault point `no-alloc`).

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

macro_rules! growths {
    ($($(#[$doc:meta])* $name:ident = $text:literal),* $(,)?) => {
        /// The kinds of memory that grow.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(u8)]
        pub enum Growth { $($(#[$doc])* $name),* }

        impl Growth {
            /// All kinds, with the names of their figures.
            pub const ALL: &'static [(Self, &'static str)] = &[$((Self::$name, $text)),*];
        }
    };
}

growths! {
    /// Page words: 8.5 bytes for each page that a program touches for the first time.
    PageTables = "page_tables",
    /// Entries of stored pages: 17 bytes each, used again, with the lists of their chunks.
    ObjectTable = "object_table",
    /// The pool's own tables: a few words for each slab.
    Pool = "pool",
    /// Lists of pages, 4 bytes for an entry, and of faults that wait, as long as a program gets
    /// more of them.
    Lists = "lists",
    /// Processes and mappings that come, change and go.
    AddressSpaces = "address_spaces",
    /// Groups and their accounts.
    Groups = "groups",
    /// Connections made anew, rings of the kernel's, tables of packs.
    Devices = "devices",
    /// Records of TLS: its library makes a buffer for each, at most of the size that it was given,
    /// and frees it again.
    Tls = "tls",
    /// Messages to users.
    Telling = "telling",
}

const KINDS: usize = Growth::ALL.len();
/// Values of [`STATE`]: allocation is free, allocation is forbidden, and from here on the kind of
/// growth that is under way.
const FREE: u8 = 0;
const FORBIDDEN: u8 = 1;
const FIRST_KIND: u8 = 2;

thread_local! {
    static STATE: Cell<u8> = const { Cell::new(FREE) };
}

static BYTES: [AtomicU64; KINDS] = [const { AtomicU64::new(0) }; KINDS];

/// From now on this thread allocates only under a name.
pub fn forbid() {
    STATE.set(FORBIDDEN);
}

static LENIENT: AtomicBool = AtomicBool::new(false);

/// Sets whether a forbidden allocation is only reported.
pub fn set_lenient(lenient: bool) {
    LENIENT.store(lenient, Relaxed);
}

/// See [`set_lenient`].
pub fn is_lenient() -> bool {
    LENIENT.load(Relaxed)
}

/// Lets this thread allocate freely again.
pub fn permit() {
    STATE.set(FREE);
}

/// Runs `work`, which may allocate under the name `what`.
pub fn during<R>(what: Growth, work: impl FnOnce() -> R) -> R {
    let before = STATE.replace(FIRST_KIND + what as u8);
    let result = work();
    STATE.set(before);
    result
}

/// The allocator asks this: whether the thread may allocate this number of bytes.
pub fn may_allocate(bytes: usize) -> bool {
    // A thread that is ending has no state any more.
    match STATE.try_with(Cell::get).unwrap_or(FREE) {
        FREE => true,
        FORBIDDEN => false,
        kind => {
            BYTES[usize::from(kind - FIRST_KIND)].fetch_add(bytes as u64, Relaxed);
            true
        }
    }
}

/// Bytes requested under each name so far, freed or not.
pub fn figures() -> impl Iterator<Item = (&'static str, u64)> {
    Growth::ALL.iter().map(|(what, name)| (*name, BYTES[*what as usize].load(Relaxed)))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_is_named_is_counted_and_the_rest_forbidden() {
        let counted = || figures().find(|(name, _)| *name == "groups").map(|(_, bytes)| bytes);
        let before = counted().expect("a figure");
        assert!(may_allocate(1));
        forbid();
        let inside = during(Growth::Groups, || during(Growth::Lists, || may_allocate(10)) && may_allocate(20));
        let outside = may_allocate(5);
        permit();
        assert!(inside && !outside && may_allocate(7));
        assert_eq!(counted(), Some(before + 20));
    }
}
