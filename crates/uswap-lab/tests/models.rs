//! The reference policies do what slow and plain models do, written from the papers a second time:
//! lists are vectors, everything is searched for. After each access both hold the same pages.

mod common;

use common::{simulator, trace};
use proptest::prelude::*;
use uswap_lab::Kind;

/// A policy that takes its time.
trait Model {
    fn access(&mut self, page: u32);
    fn held(&self) -> Vec<u32>;
}

fn remove(list: &mut Vec<u32>, page: u32) -> bool {
    let place = list.iter().position(|other| *other == page);
    place.map(|place| list.remove(place)).is_some()
}

fn agree(kind: Kind, pages: &[u32], capacity: usize, mut model: impl Model) -> Result<(), TestCaseError> {
    let mut simulator = simulator(kind, pages, capacity);
    for (at, page) in pages.iter().enumerate() {
        simulator.access(*page);
        model.access(*page);
        let mut held = model.held();
        held.sort_unstable();
        let simulated: Vec<u32> = (0..64).filter(|page| simulator.holds(*page)).collect();
        prop_assert_eq!(simulated, held, "after access {} (page {})", at, page);
    }
    Ok(())
}

/// ARC, figure 4 of the paper. The most recent is at the front, as there.
#[derive(Default)]
struct Arc {
    c: usize,
    p: f64,
    t1: Vec<u32>,
    t2: Vec<u32>,
    b1: Vec<u32>,
    b2: Vec<u32>,
}

impl Arc {
    fn replace(&mut self, page: u32) {
        let size = self.t1.len() as f64;
        if !self.t1.is_empty() && (size > self.p || (self.b2.contains(&page) && size == self.p)) {
            self.b1.insert(0, self.t1.pop().expect("T1"));
        } else if let Some(page) = self.t2.pop() {
            self.b2.insert(0, page);
        }
    }
}

impl Model for Arc {
    fn access(&mut self, page: u32) {
        if remove(&mut self.t1, page) || remove(&mut self.t2, page) {
            return self.t2.insert(0, page);
        }
        let ratio = |other: usize, own: usize| if own >= other { 1.0 } else { other as f64 / own as f64 };
        let (b1, b2) = (self.b1.len(), self.b2.len());
        if self.b1.contains(&page) {
            self.p = (self.c as f64).min(self.p + ratio(b2, b1));
            self.replace(page);
            remove(&mut self.b1, page);
            return self.t2.insert(0, page);
        }
        if self.b2.contains(&page) {
            self.p = 0f64.max(self.p - ratio(b1, b2));
            self.replace(page);
            remove(&mut self.b2, page);
            return self.t2.insert(0, page);
        }
        let l1 = self.t1.len() + b1;
        let l2 = self.t2.len() + b2;
        if l1 == self.c {
            if self.t1.len() < self.c {
                self.b1.pop();
                self.replace(page);
            } else {
                self.t1.pop();
            }
        } else if l1 < self.c && l1 + l2 >= self.c {
            if l1 + l2 == 2 * self.c {
                self.b2.pop();
            }
            self.replace(page);
        }
        self.t1.insert(0, page);
    }

    fn held(&self) -> Vec<u32> {
        [self.t1.as_slice(), &self.t2].concat()
    }
}

/// LIRS, section 3.3 of the paper: the stack S with its top at the front, the list Q with its front
/// at the front.
#[derive(Default)]
struct Lirs {
    most_lir: usize,
    capacity: usize,
    s: Vec<u32>,
    q: Vec<u32>,
    lir: Vec<u32>,
}

impl Lirs {
    fn put_on_top(&mut self, page: u32) -> bool {
        let was_there = remove(&mut self.s, page);
        self.s.insert(0, page);
        was_there
    }

    fn prune(&mut self) {
        while self.s.last().is_some_and(|bottom| !self.lir.contains(bottom)) {
            self.s.pop();
        }
    }

    /// "Change its status to LIR. The LIR block in the bottom of S is moved to the end of Q with
    /// its status changed to HIR."
    fn exchange(&mut self, page: u32) {
        self.lir.push(page);
        if self.lir.len() > self.most_lir {
            let bottom = self.s.pop().expect("a LIR block is at the bottom");
            assert!(remove(&mut self.lir, bottom));
            self.q.push(bottom);
        }
        self.prune();
    }
}

impl Model for Lirs {
    fn access(&mut self, page: u32) {
        if self.lir.contains(&page) {
            self.put_on_top(page);
            return self.prune();
        }
        if remove(&mut self.q, page) {
            if self.put_on_top(page) {
                return self.exchange(page);
            }
            self.q.push(page);
            return self.prune();
        }
        if self.lir.len() + self.q.len() == self.capacity {
            self.q.remove(0);
        }
        if self.put_on_top(page) || self.lir.len() < self.most_lir {
            return self.exchange(page);
        }
        self.q.push(page);
        self.prune();
    }

    fn held(&self) -> Vec<u32> {
        [self.lir.as_slice(), &self.q].concat()
    }
}

/// 2Q, figure 2 of the paper; tails are at the front.
#[derive(Default)]
struct TwoQueue {
    k: usize,
    a1in: Vec<u32>,
    a1out: Vec<u32>,
    am: Vec<u32>,
}

impl TwoQueue {
    fn reclaim_for(&mut self) {
        if self.a1in.len() + self.am.len() < self.k {
        } else if self.a1in.len() > self.k / 4 {
            self.a1out.push(self.a1in.remove(0));
            if self.a1out.len() > (self.k / 2).max(1) {
                self.a1out.remove(0);
            }
        } else {
            self.am.remove(0);
        }
    }
}

impl Model for TwoQueue {
    fn access(&mut self, page: u32) {
        if remove(&mut self.am, page) {
            self.am.push(page);
        } else if remove(&mut self.a1out, page) {
            self.reclaim_for();
            self.am.push(page);
        } else if !self.a1in.contains(&page) {
            self.reclaim_for();
            self.a1in.push(page);
        }
    }

    fn held(&self) -> Vec<u32> {
        [self.a1in.as_slice(), &self.am].concat()
    }
}

/// S3-FIFO, algorithm 1 of the paper; tails are at the front. With each page its `freq`.
#[derive(Default)]
struct S3Fifo {
    capacity: usize,
    s: Vec<(u32, u8)>,
    m: Vec<(u32, u8)>,
    g: Vec<u32>,
}

impl S3Fifo {
    fn small(&self) -> usize {
        (self.capacity / 10).max(1)
    }

    fn evict_s(&mut self) {
        while !self.s.is_empty() {
            let (page, freq) = self.s.remove(0);
            if freq > 1 {
                self.m.push((page, 0));
                continue;
            }
            self.g.push(page);
            if self.g.len() > self.capacity - self.small() {
                self.g.remove(0);
            }
            return;
        }
    }

    fn evict_m(&mut self) {
        while !self.m.is_empty() {
            let (page, freq) = self.m.remove(0);
            if freq == 0 {
                return;
            }
            self.m.push((page, freq - 1));
        }
    }
}

impl Model for S3Fifo {
    fn access(&mut self, page: u32) {
        if let Some((_, freq)) = self.s.iter_mut().chain(&mut self.m).find(|(other, _)| *other == page) {
            *freq = (*freq + 1).min(3);
            return;
        }
        let was_ghost = remove(&mut self.g, page);
        while self.s.len() + self.m.len() == self.capacity {
            if self.s.len() >= self.small() { self.evict_s() } else { self.evict_m() }
        }
        if was_ghost { self.m.push((page, 0)) } else { self.s.push((page, 0)) }
    }

    fn held(&self) -> Vec<u32> {
        self.s.iter().chain(&self.m).map(|(page, _)| *page).collect()
    }
}

/// The kernel's lists; tails are at the front. With each page its accessed bit and its mark.
#[derive(Default)]
struct Kernel {
    capacity: usize,
    inactive: Vec<(u32, bool, bool)>,
    active: Vec<(u32, bool, bool)>,
    shadows: Vec<(u32, usize)>,
    age: usize,
}

impl Kernel {
    fn reclaim(&mut self) {
        loop {
            if self.inactive.len() < self.active.len() {
                let (page, _, mark) = self.active.remove(0);
                self.inactive.push((page, false, mark));
                continue;
            }
            match self.inactive.remove(0) {
                (page, true, true) => {
                    self.active.push((page, false, true));
                    self.age += 1;
                }
                (page, true, false) => self.inactive.push((page, false, true)),
                (page, false, _) => {
                    self.shadows.push((page, self.age));
                    self.age += 1;
                    return;
                }
            }
        }
    }
}

impl Model for Kernel {
    fn access(&mut self, page: u32) {
        let mut all = self.inactive.iter_mut().chain(&mut self.active);
        if let Some((_, accessed, _)) = all.find(|(other, ..)| *other == page) {
            *accessed = true;
            return;
        }
        let shadow = self.shadows.iter().position(|(other, _)| *other == page);
        let evicted = shadow.map(|place| self.shadows.remove(place).1);
        if self.inactive.len() + self.active.len() == self.capacity {
            self.reclaim();
        }
        if evicted.is_some_and(|evicted| self.age - evicted <= self.active.len()) {
            self.active.push((page, true, false));
            self.age += 1;
        } else {
            self.inactive.push((page, true, false));
        }
    }

    fn held(&self) -> Vec<u32> {
        self.inactive.iter().chain(&self.active).map(|(page, ..)| *page).collect()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn arc_is_its_paper(pages in trace(40, 300), c in 1usize..24) {
        agree(Kind::Arc, &pages, c, Arc { c, ..Arc::default() })?;
    }

    #[test]
    fn lirs_is_its_paper(pages in trace(40, 300), capacity in 1usize..24) {
        agree(Kind::Lirs, &pages, capacity, Lirs { capacity, most_lir: capacity - 1, ..Lirs::default() })?;
    }

    #[test]
    fn two_queue_is_its_paper(pages in trace(40, 300), k in 1usize..24) {
        agree(Kind::TwoQueue, &pages, k, TwoQueue { k, ..TwoQueue::default() })?;
    }

    #[test]
    fn s3fifo_is_its_paper(pages in trace(40, 300), capacity in 1usize..35) {
        agree(Kind::S3Fifo, &pages, capacity, S3Fifo { capacity, ..S3Fifo::default() })?;
    }

    #[test]
    fn kernel_is_its_plain_model(pages in trace(40, 300), capacity in 1usize..24) {
        agree(Kind::KernelLists, &pages, capacity, Kernel { capacity, ..Kernel::default() })?;
    }
}
