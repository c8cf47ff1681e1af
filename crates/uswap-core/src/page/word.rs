//! The page word: the whole state of one managed page, packed into 8 bytes.
//!
//! ```text
//! bit  0..3   state
//!      3      in flight: an order or a device read is under way for it; resident, in a cache of
//!             files: it was read ahead and not used yet
//!      4      on the active list
//!      5      a kept copy: `object` names what is still valid in the store (swap cache)
//!      6      workingset: it was active when it was evicted
//!      7      queued on a list
//!      8..32  staged: slot (low 16 bits); stored: the eviction clock when it went (the shadow);
//!             resident, in a cache of files: bit 8, it has come back before; bit 9, it was used
//!             again; the others, when it was used last
//!     32..64  object (stored, or kept copy); resident, in a cache of files: the frame
//! ```
//! (A cache of files keeps no copies of resident pages in the store. Its pages lie in frames.)
//!
//! For the kernel's page table the word is only a hint. For the store it is authoritative: an
//! object's use count is the number of words that name it.

/// The state of a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PageState {
    /// Never seen, or dropped by the program: reads as zeros.
    Untouched,
    /// Mapped in the program.
    Resident,
    /// Evicted; all its bytes are zero.
    Zero,
    /// Moved out of the program into the staging slot; uncompressed in RAM.
    Staged(u16),
    /// In the store.
    Stored(u32),
    /// Its bytes are lost; a touch raises SIGBUS.
    Poisoned,
}

/// The packed word.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct PageWord(u64);

const STATE: u64 = 0b111;
const IN_FLIGHT: u64 = 1 << 3;
const ACTIVE: u64 = 1 << 4;
const KEPT: u64 = 1 << 5;
const WORKINGSET: u64 = 1 << 6;
const QUEUED: u64 = 1 << 7;
const RETURNED: u64 = 1 << 8;
const USED_AGAIN: u64 = 1 << 9;
/// The time of the last use of a page of a file: 22 bits, in steps of 16 arrivals.
const USE_SHIFT: u32 = 10;
const USE_SPAN: u64 = (1 << 22) - 1;
const USE_STEP: u64 = 16;
const MIDDLE: u64 = 0x00ff_ffff << 8;
const OBJECT: u64 = 0xffff_ffff << 32;

/// Values of the eviction clock that fit a shadow.
pub const SHADOW_SPAN: u32 = 1 << 24;

impl PageWord {
    /// The word of a page that was never seen.
    pub const UNTOUCHED: Self = Self(0);

    /// The state.
    pub fn state(self) -> PageState {
        match self.0 & STATE {
            1 => PageState::Resident,
            2 => PageState::Zero,
            3 => PageState::Staged((self.0 >> 8) as u16),
            4 => PageState::Stored((self.0 >> 32) as u32),
            5 => PageState::Poisoned,
            _ => PageState::Untouched,
        }
    }

    fn with(self, mask: u64, bits: u64) -> Self {
        Self(self.0 & !mask | bits)
    }

    fn flag(self, flag: u64, on: bool) -> Self {
        self.with(flag, if on { flag } else { 0 })
    }

    /// The page becomes resident. The word keeps its list bits, and names the object that it named
    /// before only if that is a kept copy.
    #[must_use]
    pub fn resident(self) -> Self {
        let object = if self.0 & KEPT == 0 { OBJECT } else { 0 };
        self.with(STATE | MIDDLE | IN_FLIGHT | object, 1)
    }

    /// The page becomes resident, and the stored object that it came from its kept copy.
    #[must_use]
    pub fn resident_with_copy(self, object: u32) -> Self {
        self.with(STATE | MIDDLE | IN_FLIGHT | OBJECT, 1 | KEPT | u64::from(object) << 32)
    }

    /// The page becomes staged in `slot`. A kept copy stays named; the list bits are cleared.
    #[must_use]
    pub fn staged(self, slot: u16) -> Self {
        self.with(STATE | MIDDLE | IN_FLIGHT | QUEUED, 3 | u64::from(slot) << 8)
    }

    /// The page becomes stored as `object` at the eviction clock `clock`. The active bit becomes
    /// the shadow's workingset bit.
    #[must_use]
    pub fn stored(self, object: u32, clock: u32) -> Self {
        let workingset = if self.0 & ACTIVE != 0 { WORKINGSET } else { 0 };
        let kept = STATE | MIDDLE | IN_FLIGHT | QUEUED | ACTIVE | KEPT | WORKINGSET | OBJECT;
        self.with(kept, 4 | workingset | shadow(clock) | u64::from(object) << 32)
    }

    /// The page becomes an evicted page of zeros at `clock`.
    #[must_use]
    pub fn zero(self, clock: u32) -> Self {
        let word = self.stored(0, clock);
        word.with(STATE, 2)
    }

    /// The page becomes poisoned.
    #[must_use]
    pub fn poisoned(self) -> Self {
        Self(5)
    }

    /// The kept copy, if there is one.
    pub fn kept_copy(self) -> Option<u32> {
        (self.0 & KEPT != 0).then_some((self.0 >> 32) as u32)
    }

    /// The page of a file becomes resident in this frame. `returned`: it was resident before.
    #[must_use]
    pub fn in_frame(self, frame: u32, returned: bool) -> Self {
        self.resident_with_copy(frame).flag(RETURNED, returned)
    }

    /// The frame of a resident page of a file.
    pub fn frame(self) -> Option<u32> {
        self.kept_copy().filter(|_| self.state() == PageState::Resident)
    }

    /// Whether a resident page of a file was resident before.
    pub fn has_returned(self) -> bool {
        self.0 & RETURNED != 0
    }

    /// The page of a file is used at this count of arrivals.
    #[must_use]
    pub fn used_at(self, clock: u64) -> Self {
        self.with(MIDDLE & !(RETURNED | USED_AGAIN), ((clock / USE_STEP) & USE_SPAN) << USE_SHIFT)
    }

    /// Arrivals since the page of a file was used last: a multiple of 16, below 2^26.
    pub fn unused_for(self, clock: u64) -> u64 {
        ((clock / USE_STEP).wrapping_sub(self.0 >> USE_SHIFT) & USE_SPAN) * USE_STEP
    }

    /// Whether the page of a file was read ahead and not used yet.
    pub fn is_ahead(self) -> bool {
        self.in_flight()
    }

    /// Notes whether the page of a file was read ahead and not used yet.
    #[must_use]
    pub fn set_ahead(self, on: bool) -> Self {
        self.set_in_flight(on)
    }

    /// Whether a page of a file was used again after it had come to its list.
    pub fn used_again(self) -> bool {
        self.0 & USED_AGAIN != 0
    }

    /// Notes whether a page of a file was used again.
    #[must_use]
    pub fn set_used_again(self, on: bool) -> Self {
        self.flag(USED_AGAIN, on)
    }

    /// Forgets the kept copy.
    #[must_use]
    pub fn without_copy(self) -> Self {
        self.with(KEPT | OBJECT, 0)
    }

    /// Evictions between this page's own and `clock`: the refault distance (linux
    /// `mm/workingset.c`), modulo 2^24.
    pub fn refault_distance(self, clock: u32) -> u32 {
        clock.wrapping_sub((self.0 >> 8) as u32) & (SHADOW_SPAN - 1)
    }

    /// An order or a device read is under way.
    pub fn in_flight(self) -> bool {
        self.0 & IN_FLIGHT != 0
    }

    /// Sets or clears the in-flight flag.
    #[must_use]
    pub fn set_in_flight(self, on: bool) -> Self {
        self.flag(IN_FLIGHT, on)
    }

    /// On the active list.
    pub fn active(self) -> bool {
        self.0 & ACTIVE != 0
    }

    /// Sets or clears the active flag.
    #[must_use]
    pub fn set_active(self, on: bool) -> Self {
        self.flag(ACTIVE, on)
    }

    /// On a list.
    pub fn queued(self) -> bool {
        self.0 & QUEUED != 0
    }

    /// Sets or clears the queued flag.
    #[must_use]
    pub fn set_queued(self, on: bool) -> Self {
        self.flag(QUEUED, on)
    }

    /// It was active when it was evicted.
    pub fn workingset(self) -> bool {
        self.0 & WORKINGSET != 0
    }
}

fn shadow(clock: u32) -> u64 {
    u64::from(clock & (SHADOW_SPAN - 1)) << 8
}

impl std::fmt::Debug for PageWord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.state())?;
        for (flag, name) in [(IN_FLIGHT, "in flight"), (ACTIVE, "active"), (KEPT, "kept"), (QUEUED, "queued")] {
            if self.0 & flag != 0 {
                write!(f, " {name}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stored_page_remembers_when_it_went_and_that_it_was_active() {
        let word = PageWord::UNTOUCHED.resident().set_active(true).set_queued(true);
        let word = word.staged(40_000);
        assert_eq!(word.state(), PageState::Staged(40_000));
        assert!(!word.queued());
        let word = word.stored(0xdead_beef, SHADOW_SPAN - 2);
        assert_eq!(word.state(), PageState::Stored(0xdead_beef));
        assert!(word.workingset() && !word.active());
        assert_eq!(word.refault_distance(5), 7);
    }

    #[test]
    fn a_kept_copy_survives_staging_and_nothing_else_names_an_object() {
        let word = PageWord::UNTOUCHED.stored(9, 1).resident_with_copy(9);
        assert_eq!((word.state(), word.kept_copy()), (PageState::Resident, Some(9)));
        assert_eq!(word.staged(3).kept_copy(), Some(9));
        assert_eq!(word.without_copy().kept_copy(), None);
        let word = PageWord::UNTOUCHED.stored(9, 1).resident();
        assert_eq!(word.kept_copy(), None);
        assert_eq!(word, PageWord::UNTOUCHED.resident());
    }

    #[test]
    fn a_page_of_a_file_has_a_frame_only_while_it_is_resident() {
        let word = PageWord::UNTOUCHED.in_frame(77, true).set_active(true).set_queued(true);
        assert_eq!((word.frame(), word.has_returned()), (Some(77), true));
        let word = word.stored(u32::MAX, 5);
        assert_eq!((word.frame(), word.workingset(), word.refault_distance(9)), (None, true, 4));
        let word = word.in_frame(3, false);
        assert_eq!((word.frame(), word.has_returned(), word.state()), (Some(3), false, PageState::Resident));
    }

    #[test]
    fn the_last_use_of_a_page_of_a_file_is_known_in_steps() {
        let word = PageWord::UNTOUCHED.in_frame(77, true).used_at(100);
        assert_eq!((word.unused_for(100), word.unused_for(250), word.has_returned()), (0, 144, true));
        assert_eq!((word.frame(), word.used_at(1 << 26).unused_for((1 << 26) + 32)), (Some(77), 32));
        assert_eq!(word.used_at((1 << 26) - 16).unused_for(1 << 26), 16);
    }

    #[test]
    fn in_flight_is_cleared_by_every_new_state() {
        let word = PageWord::UNTOUCHED.resident().set_in_flight(true);
        assert!(word.in_flight());
        for next in [word.resident(), word.staged(1), word.stored(1, 1), word.zero(1), word.poisoned()] {
            assert!(!next.in_flight());
        }
    }
}
