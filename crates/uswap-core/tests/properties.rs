//! The packed page word behaves as the plain structure it stands for, and sizes survive being
//! written and read.

use proptest::prelude::*;
use uswap_core::page::word::{PageState, PageWord, SHADOW_SPAN};
use uswap_core::util::size::{Size, human};

/// What the bits of a word mean, unpacked.
#[derive(Clone, Debug)]
struct Plain {
    state: PageState,
    in_flight: bool,
    active: bool,
    queued: bool,
    workingset: bool,
    kept: Option<u32>,
    clock: u32,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Resident,
    ResidentWithCopy(u32),
    Staged(u16),
    Stored(u32, u32),
    Zero(u32),
    Poisoned,
    WithoutCopy,
    InFlight(bool),
    Active(bool),
    Queued(bool),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        Just(Step::Resident),
        any::<u32>().prop_map(Step::ResidentWithCopy),
        any::<u16>().prop_map(Step::Staged),
        any::<(u32, u32)>().prop_map(|(object, clock)| Step::Stored(object, clock)),
        any::<u32>().prop_map(Step::Zero),
        Just(Step::Poisoned),
        Just(Step::WithoutCopy),
        any::<bool>().prop_map(Step::InFlight),
        any::<bool>().prop_map(Step::Active),
        any::<bool>().prop_map(Step::Queued),
    ]
}

const UNTOUCHED: Plain = Plain {
    state: PageState::Untouched,
    in_flight: false,
    active: false,
    queued: false,
    workingset: false,
    kept: None,
    clock: 0,
};

impl Plain {
    fn take(&mut self, step: Step) {
        match step {
            Step::Resident => (self.state, self.in_flight) = (PageState::Resident, false),
            Step::ResidentWithCopy(object) => {
                (self.state, self.in_flight, self.kept) = (PageState::Resident, false, Some(object));
            }
            Step::Staged(slot) => (self.state, self.in_flight, self.queued) = (PageState::Staged(slot), false, false),
            Step::Stored(object, clock) => self.evict(PageState::Stored(object), clock),
            Step::Zero(clock) => self.evict(PageState::Zero, clock),
            Step::Poisoned => *self = Self { state: PageState::Poisoned, ..UNTOUCHED },
            Step::WithoutCopy => self.kept = None,
            Step::InFlight(on) => self.in_flight = on,
            Step::Active(on) => self.active = on,
            Step::Queued(on) => self.queued = on,
        }
    }

    fn evict(&mut self, state: PageState, clock: u32) {
        *self = Self { state, workingset: self.active, clock, ..UNTOUCHED };
    }
}

fn apply(word: PageWord, step: Step) -> PageWord {
    match step {
        Step::Resident => word.resident(),
        Step::ResidentWithCopy(object) => word.resident_with_copy(object),
        Step::Staged(slot) => word.staged(slot),
        Step::Stored(object, clock) => word.stored(object, clock),
        Step::Zero(clock) => word.zero(clock),
        Step::Poisoned => word.poisoned(),
        Step::WithoutCopy => word.without_copy(),
        Step::InFlight(on) => word.set_in_flight(on),
        Step::Active(on) => word.set_active(on),
        Step::Queued(on) => word.set_queued(on),
    }
}

proptest! {
    #[test]
    fn a_word_is_the_plain_structure(steps in prop::collection::vec(step(), 0..40), now in any::<u32>()) {
        let (mut word, mut plain) = (PageWord::UNTOUCHED, UNTOUCHED);
        for step in steps {
            // The object of a stored page is the page: there is no copy to forget.
            if matches!((step, plain.state), (Step::WithoutCopy, PageState::Stored(_))) {
                continue;
            }
            word = apply(word, step);
            plain.take(step);
            prop_assert_eq!(word.state(), plain.state);
            let flags = (word.in_flight(), word.active(), word.queued(), word.workingset());
            prop_assert_eq!(flags, (plain.in_flight, plain.active, plain.queued, plain.workingset));
            prop_assert_eq!(word.kept_copy(), plain.kept);
            if matches!(plain.state, PageState::Stored(_) | PageState::Zero) {
                let distance = now.wrapping_sub(plain.clock) % SHADOW_SPAN;
                prop_assert_eq!(word.refault_distance(now), distance);
            }
        }
        prop_assert_eq!(size_of::<PageWord>(), 8);
    }

    #[test]
    fn whole_numbers_with_any_unit_are_exact(number in 0u64..1 << 20, unit in 0usize..5, long in 0usize..3, space in any::<bool>()) {
        let (letter, shift) = [("", 0), ("k", 10), ("M", 20), ("g", 30), ("T", 40)][unit];
        let ending = if unit == 0 { "" } else { ["", "B", "iB"][long] };
        let text = format!("{number}{}{letter}{ending}", if space { " " } else { "" });
        prop_assert_eq!(text.parse::<Size>(), Ok(Size::Bytes(number << shift)), "{}", text);
    }

    #[test]
    fn what_is_written_for_people_is_read_back_nearly(bytes in 0u64..1 << 60) {
        let text = human(bytes);
        let read = text.parse::<Size>().map(|size| size.of(0));
        prop_assert!(read.as_ref().is_ok_and(|read| read.abs_diff(bytes) <= bytes / 15), "{bytes}: {text}: {read:?}");
    }

    #[test]
    fn any_text_is_read_or_refused(text in "\\PC{0,24}") {
        if let Ok(size) = text.parse::<Size>() {
            prop_assert!(size.of(1 << 40) < u64::MAX / 4);
        }
    }

    #[test]
    fn percents_are_of_the_whole(percent in 0u32..=100, whole in 0u64..1 << 50) {
        let size: Size = format!("{percent}%").parse().expect("a size");
        prop_assert!(size.of(whole) <= whole);
        prop_assert!(size.of(whole).abs_diff(whole / 100 * u64::from(percent)) <= 100 + whole / 1_000_000);
    }
}
