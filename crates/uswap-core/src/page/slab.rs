//! A slab: values of one size, each named by a number, without the allocator's overhead for each
//! value.
//!
//! The values lie in blocks of 32 that never move. After a value is removed its number is used
//! again, so a caller that keeps numbers must know when its values are removed. Empty blocks go
//! back to the allocator, except the block that is being filled.

/// Values in a block: each has one bit of a word.
const BLOCK: usize = u32::BITS as usize;
const GIVEN: &str = "a number that was given";

#[derive(Clone, Debug)]
struct SlabBlock<T> {
    /// `None` after the block became empty and went back.
    things: Option<Box<[T; BLOCK]>>,
    /// One bit for each place that is not in use.
    vacant: u32,
}

/// The slab; the module's text says how it works.
#[derive(Clone, Debug)]
pub(crate) struct IndexSlab<T> {
    blocks: Vec<SlabBlock<T>>,
    /// Numbers of blocks with room, each once; the last is being filled. Some of them may have
    /// become empty.
    open: Vec<u32>,
    /// Numbers of blocks that have no memory and are not in `open`.
    absent: Vec<u32>,
}

impl<T> Default for IndexSlab<T> {
    fn default() -> Self {
        Self { blocks: Vec::new(), open: Vec::new(), absent: Vec::new() }
    }
}

fn split(number: u32) -> (usize, usize) {
    (number as usize / BLOCK, number as usize % BLOCK)
}

impl<T: Copy> IndexSlab<T> {
    /// Stores a value, and returns its number.
    pub fn insert(&mut self, thing: T) -> u32 {
        let number = self.block_with_room(thing);
        let block = &mut self.blocks[number as usize];
        let at = block.vacant.trailing_zeros();
        block.vacant &= block.vacant - 1;
        block.things.as_deref_mut().expect("a block with room")[at as usize] = thing;
        if block.vacant == 0 {
            self.open.pop();
        }
        number * BLOCK as u32 + at
    }

    /// The last of the open blocks, which has memory; a new one is filled with `thing`.
    fn block_with_room(&mut self, thing: T) -> u32 {
        while let Some(&number) = self.open.last() {
            if self.blocks[number as usize].things.is_some() {
                return number;
            }
            self.open.pop();
            self.absent.push(number);
        }
        let block = SlabBlock { things: Some(Box::new([thing; BLOCK])), vacant: u32::MAX };
        let number = match self.absent.pop() {
            Some(number) => {
                self.blocks[number as usize] = block;
                number
            }
            None => {
                self.blocks.push(block);
                (self.blocks.len() - 1) as u32
            }
        };
        self.open.push(number);
        number
    }

    /// Gives a number back; the next `insert` may return it.
    pub fn remove(&mut self, number: u32) {
        let (block, at) = split(number);
        debug_assert!(self.blocks[block].vacant & 1 << at == 0, "{number} is given back twice");
        if self.blocks[block].vacant == 0 {
            let filling = self.open.last().copied();
            self.open.push(block as u32);
            filling.into_iter().for_each(|filling| self.end_if_empty(filling));
        }
        self.blocks[block].vacant |= 1 << at;
        if self.open.last() != Some(&(block as u32)) {
            self.end_if_empty(block as u32);
        }
    }

    fn end_if_empty(&mut self, number: u32) {
        let block = &mut self.blocks[number as usize];
        if block.vacant == u32::MAX {
            block.things = None;
        }
    }

    pub fn get(&self, number: u32) -> &T {
        let (number, at) = split(number);
        &self.blocks[number].things.as_deref().expect(GIVEN)[at]
    }

    pub fn get_mut(&mut self, number: u32) -> &mut T {
        let (number, at) = split(number);
        &mut self.blocks[number].things.as_deref_mut().expect(GIVEN)[at]
    }

    #[cfg(all(test, not(loom)))]
    pub fn len(&self) -> usize {
        self.blocks.iter().map(|block| block.vacant.count_zeros() as usize).sum()
    }

    /// Memory of the slab in bytes.
    pub fn bytes(&self) -> usize {
        let blocks = self.blocks.iter().filter(|block| block.things.is_some()).count();
        let numbers = (self.open.capacity() + self.absent.capacity()) * size_of::<u32>();
        blocks * size_of::<[T; BLOCK]>() + self.blocks.capacity() * size_of::<SlabBlock<T>>() + numbers
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Values keep their numbers and do not change, and no number names two values.
        #[test]
        fn means_what_a_map_means(steps in prop::collection::vec(any::<(u64, bool)>(), 0..1500)) {
            let (mut slab, mut plain, mut numbers) = (IndexSlab::default(), HashMap::new(), Vec::new());
            for (value, comes) in steps {
                if comes || numbers.is_empty() {
                    let number = slab.insert(value);
                    prop_assert_eq!(plain.insert(number, value), None);
                    numbers.push(number);
                } else {
                    let number = numbers.swap_remove(value as usize % numbers.len());
                    prop_assert_eq!(Some(*slab.get(number)), plain.remove(&number));
                    slab.remove(number);
                }
            }
            prop_assert_eq!(slab.len(), plain.len());
            for (number, value) in plain {
                prop_assert_eq!(*slab.get(number), value);
                *slab.get_mut(number) ^= 1;
                prop_assert_eq!(*slab.get(number), value ^ 1);
            }
        }
    }

    /// The slab uses numbers that were given back before it allocates a block, and gives empty
    /// blocks back.
    #[test]
    fn memory_follows_what_is_held() {
        let mut slab = IndexSlab::default();
        let numbers: Vec<u32> = (0..32 * 100).map(|n| slab.insert(n)).collect();
        let full = slab.bytes();
        assert!(full < 4 * 3200 + 100 * 32 + 1024, "{full}");
        for number in numbers.iter().filter(|number| **number % 32 != 7) {
            slab.remove(*number);
        }
        assert_eq!((slab.len(), slab.blocks.len()), (100, 100));
        let _: Vec<u32> = (0..3100).map(|n| slab.insert(n)).collect();
        assert_eq!(
            (slab.len(), slab.blocks.len(), slab.blocks.iter().all(|block| block.vacant == 0)),
            (3200, 100, true)
        );
        numbers.iter().for_each(|number| slab.remove(*number));
        assert!(slab.bytes() < full / 3, "{} of {full} bytes: only what names blocks is left", slab.bytes());
        let _: Vec<u32> = (0..3200).map(|n| slab.insert(n)).collect();
        assert_eq!(slab.blocks.len(), 100, "numbers are used again");
    }
}
