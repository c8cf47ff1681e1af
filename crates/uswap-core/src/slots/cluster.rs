//! One cluster: which of its slots are taken, and in which list it belongs.

/// Slots in a cluster.
pub const CLUSTER_SLOTS: u32 = 512;

/// The place of a cluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Home {
    /// In the list of that number.
    Listed(ClusterList),
    /// No slot is free: in no list.
    Full,
    /// The current cluster of a lane, or taken for a trim: in no list, and only its owner takes
    /// slots of it or moves it.
    Owned,
}

/// The lists of clusters that have free slots.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(super) enum ClusterList {
    /// All slots are free, and it takes no room on the device.
    Clean,
    /// All slots are free, but were written before.
    Dirty,
    /// Some slots are free.
    Partial,
}

/// Which slots of a cluster are taken. Offsets count from its first slot.
pub(super) struct Cluster {
    /// One bit a slot, set = taken.
    taken: [u64; (CLUSTER_SLOTS / 64) as usize],
    free: u16,
    /// Handed out at least once since it was new or trimmed.
    pub written: bool,
    pub home: Home,
}

impl Cluster {
    pub fn new() -> Self {
        let home = Home::Listed(ClusterList::Clean);
        Self { taken: [0; (CLUSTER_SLOTS / 64) as usize], free: CLUSTER_SLOTS as u16, written: false, home }
    }

    pub fn has_free(&self) -> bool {
        self.free > 0
    }

    /// The place where it belongs when it has no owner.
    pub fn proper_home(&self) -> Home {
        match self.free as u32 {
            0 => Home::Full,
            CLUSTER_SLOTS if self.written => Home::Listed(ClusterList::Dirty),
            CLUSTER_SLOTS => Home::Listed(ClusterList::Clean),
            _ => Home::Listed(ClusterList::Partial),
        }
    }

    /// The first run of `want` free slots at or above `from`, else the longest one there: offset
    /// and length.
    pub fn find(&self, from: u32, want: u32) -> Option<(u32, u32)> {
        let mut best: Option<(u32, u32)> = None;
        let mut at = from;
        while at < CLUSTER_SLOTS {
            let free_at = self.next_with(at, false);
            let end = self.next_with(free_at, true).min(free_at + want);
            if end > free_at && best.is_none_or(|(_, count)| count < end - free_at) {
                best = Some((free_at, end - free_at));
                if end - free_at == want {
                    break;
                }
            }
            at = end.max(free_at + 1);
        }
        best
    }

    /// The first slot at or above `from` that is taken (or free), or the cluster's end.
    fn next_with(&self, from: u32, taken: bool) -> u32 {
        let mut at = from;
        while at < CLUSTER_SLOTS {
            let word = self.taken[(at / 64) as usize] ^ if taken { 0 } else { u64::MAX };
            let rest = word >> (at % 64);
            if rest != 0 {
                return at + rest.trailing_zeros();
            }
            at = (at / 64 + 1) * 64;
        }
        CLUSTER_SLOTS
    }

    /// Whether a slot is taken.
    pub fn is_taken(&self, slot: u32) -> bool {
        self.taken[(slot / 64) as usize] >> (slot % 64) & 1 == 1
    }

    /// Takes `count` free slots from `first` on.
    pub fn mark(&mut self, first: u32, count: u32) {
        for_each_word(first, count, |word, bits| {
            debug_assert!(self.taken[word] & bits == 0, "a slot is handed out twice");
            self.taken[word] |= bits;
        });
        self.free -= count as u16;
    }

    /// Frees `count` slots from `first` on; `false` if one of them is free already; then the state
    /// of the others is undefined.
    #[must_use]
    pub fn unmark(&mut self, first: u32, count: u32) -> bool {
        let mut all_taken = true;
        for_each_word(first, count, |word, bits| {
            all_taken &= self.taken[word] & bits == bits;
            self.taken[word] &= !bits;
        });
        self.free += count as u16;
        all_taken
    }
}

/// The words of the bitmap that the run covers, and its bits in each.
fn for_each_word(first: u32, count: u32, mut work: impl FnMut(usize, u64)) {
    let (mut at, end) = (first, first + count);
    while at < end {
        let stop = end.min((at / 64 + 1) * 64);
        let bits = (u64::MAX >> (64 - (stop - at))) << (at % 64);
        work((at / 64) as usize, bits);
        at = stop;
    }
}
