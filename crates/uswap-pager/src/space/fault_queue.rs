//! Pages whose faults wait for something under way. Room is allocated in advance, for as many as a
//! program usually has threads.

use uswap_core::util::growth::{Growth, during};

/// Addresses of pages in rising order; each with a flag that says whether a write waits.
#[derive(Clone, Debug)]
pub struct Waiters {
    all: Vec<(u64, bool)>,
}

impl Default for Waiters {
    fn default() -> Self {
        Self { all: Vec::with_capacity(64) }
    }
}

impl Waiters {
    fn place(&self, address: u64) -> Result<usize, usize> {
        self.all.binary_search_by_key(&address, |(known, _)| *known)
    }

    /// Adds a fault that waits for the page.
    pub fn insert(&mut self, address: u64, write: bool) {
        match self.place(address) {
            Ok(index) => self.all[index].1 |= write,
            Err(index) => during(Growth::Lists, || self.all.insert(index, (address, write))),
        }
    }

    /// Removes the page: no fault waits for it any more. Returns whether one did.
    pub fn remove(&mut self, address: u64) -> bool {
        self.place(address).map(|index| self.all.remove(index)).is_ok()
    }

    /// Whether a fault waits for the page.
    pub fn contains(&self, address: u64) -> bool {
        self.place(address).is_ok()
    }

    /// The first page at or behind `address` for which a fault waits.
    pub fn next_from(&self, address: u64) -> Option<(u64, bool)> {
        let index = self.place(address).unwrap_or_else(|index| index);
        self.all.get(index).copied()
    }

    /// All pages, the lowest first.
    pub fn addresses(&self) -> impl Iterator<Item = u64> + '_ {
        self.all.iter().map(|(address, _)| *address)
    }

    /// Number of pages for which faults wait.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Whether no fault waits.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_there_once_and_a_write_is_remembered() {
        let mut waiters = Waiters::default();
        for (address, write) in [(0x3000, false), (0x1000, true), (0x3000, true), (0x1000, false), (0x2000, false)] {
            waiters.insert(address, write);
        }
        let walk = std::iter::successors(waiters.next_from(0), |(at, _)| waiters.next_from(at + 1));
        assert_eq!(walk.collect::<Vec<_>>(), [(0x1000, true), (0x2000, false), (0x3000, true)]);
        assert!(waiters.remove(0x2000) && !waiters.remove(0x2000) && waiters.contains(0x3000));
        assert_eq!((waiters.len(), waiters.next_from(0x1001)), (2, Some((0x3000, true))));
    }
}
