//! Doubly linked lists over densely numbered pages. One array holds the links of all pages, so that
//! a page is moved from the middle of one list to the end of another without a search or an
//! allocation.
//!
//! A page is on at most one of the lists that share a [`PageLinks`]. The policy knows which one.

const NONE: u32 = u32::MAX;

/// The neighbours of each page.
#[derive(Clone, Debug)]
pub struct PageLinks {
    around: Vec<[u32; 2]>,
}

/// A list; its links are in a [`PageLinks`], which every operation takes as an argument.
#[derive(Clone, Copy, Debug)]
pub struct LinkedPages {
    first: u32,
    last: u32,
    len: usize,
}

impl PageLinks {
    /// Links for this many pages, none of which is on a list.
    pub fn new(pages: usize) -> Self {
        Self { around: vec![[NONE; 2]; pages] }
    }
}

impl Default for LinkedPages {
    fn default() -> Self {
        Self { first: NONE, last: NONE, len: 0 }
    }
}

impl LinkedPages {
    /// Number of pages on the list.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The page at the front.
    pub fn front(&self) -> Option<u32> {
        (self.first != NONE).then_some(self.first)
    }

    /// Appends a page that is on no list.
    pub fn push_back(&mut self, links: &mut PageLinks, page: u32) {
        links.around[page as usize] = [self.last, NONE];
        match self.last {
            NONE => self.first = page,
            last => links.around[last as usize][1] = page,
        }
        self.last = page;
        self.len += 1;
    }

    /// Removes the page at the front.
    pub fn pop_front(&mut self, links: &mut PageLinks) -> Option<u32> {
        let page = self.front()?;
        self.remove(links, page);
        Some(page)
    }

    /// Removes a page that is on this list.
    pub fn remove(&mut self, links: &mut PageLinks, page: u32) {
        let [before, after] = links.around[page as usize];
        match before {
            NONE => self.first = after,
            before => links.around[before as usize][1] = after,
        }
        match after {
            NONE => self.last = before,
            after => links.around[after as usize][0] = before,
        }
        self.len -= 1;
    }

    /// Moves a page that is on this list to the back.
    pub fn move_to_back(&mut self, links: &mut PageLinks, page: u32) {
        if self.last != page {
            self.remove(links, page);
            self.push_back(links, page);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(mut list: LinkedPages, links: &mut PageLinks) -> Vec<u32> {
        std::iter::from_fn(|| list.pop_front(links)).collect()
    }

    #[test]
    fn pages_leave_from_front_middle_and_back() {
        let mut links = PageLinks::new(6);
        let mut list = LinkedPages::default();
        (0..6).for_each(|page| list.push_back(&mut links, page));
        [0, 3, 5].into_iter().for_each(|page| list.remove(&mut links, page));
        assert_eq!((list.len(), list.front()), (3, Some(1)));
        list.move_to_back(&mut links, 1);
        list.move_to_back(&mut links, 1);
        assert_eq!(pages(list, &mut links), [2, 4, 1]);
    }

    #[test]
    fn the_last_page_leaves_an_empty_list() {
        let mut links = PageLinks::new(1);
        let mut list = LinkedPages::default();
        list.push_back(&mut links, 0);
        assert_eq!(list.pop_front(&mut links), Some(0));
        assert!(list.is_empty() && list.pop_front(&mut links).is_none());
        list.push_back(&mut links, 0);
        assert_eq!(pages(list, &mut links), [0]);
    }
}
