//! Large tables that read as zero and cost memory only where they were written.

use std::sync::atomic::AtomicU32;

/// `count` words, all zero. The pages of the table are not touched.
pub fn atomic_words(count: usize) -> Box<[AtomicU32]> {
    let words = vec![0u32; count].into_boxed_slice();
    // SAFETY: an AtomicU32 has size, alignment and valid values of a u32 (its documentation), and
    // the box is handed over whole.
    unsafe { Box::from_raw(Box::into_raw(words) as *mut [AtomicU32]) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn words_are_zero_and_keep_what_is_written() {
        let words = atomic_words(1 << 17);
        assert_eq!(words.len(), 1 << 17);
        words[70_000].store(7, Relaxed);
        assert_eq!(words.iter().map(|word| word.load(Relaxed)).sum::<u32>(), 7);
    }
}
