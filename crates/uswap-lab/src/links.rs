//! Doubly linked lists over densely numbered pages: the links of all pages in one array, so that a
//! page is moved from the middle of one list to the end of another without a search and without an
//! allocation.
//!
//! A page is on at most one of the lists that share a [`PageLinks`]. Which one it is on the policy
//! knows.

const NONE: u32 = u32::MAX;

/// Before and after each page.
#[derive(Clone, Debug)]
pub struct PageLinks {
    around: Vec<[u32; 2]>,
}

/// A list; its links are in a [`PageLinks`], which every operation must be given.
#[derive(Clone, Copy, Debug)]
pub struct LinkedPages {
    first: u32,
    last: u32,
    len: usize,
}

impl PageLinks {
    /// For so many pages, none of which is on a list.
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
    /// Pages on it.
    pub fn len(&self) -> usize {
        self.len
    }

    /// No page is on it.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The page at the front.
    pub fn front(&self) -> Option<u32> {
        (self.first != NONE).then_some(self.first)
    }

    /// Puts a page that is on no list behind the last one.
    pub fn push_back(&mut self, links: &mut PageLinks, page: u32) {
        links.around[page as usize] = [self.last, NONE];
        match self.last {
            NONE => self.first = page,
            last => links.around[last as usize][1] = page,
        }
        self.last = page;
        self.len += 1;
    }

    /// Takes the page at the front off.
    pub fn pop_front(&mut self, links: &mut PageLinks) -> Option<u32> {
        let page = self.front()?;
        self.remove(links, page);
        Some(page)
    }

    /// Takes a page off that is on this list.
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
