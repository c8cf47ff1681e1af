//! The count of living units under every interleaving:
//! `RUSTFLAGS="--cfg loom" cargo test -p uswap-core --release`.
//!
//! Two slots and three objects, the middle one in both, as a pack lies on a device; each object is
//! freed by a thread of its own.

use loom::sync::Arc;
use loom::sync::Mutex;
use loom::thread;

use super::*;

struct ModelSlots {
    living: [Living; 2],
    /// How often each slot was freed.
    freed: [Mutex<u32>; 2],
}

impl ModelSlots {
    /// The counts as a writer leaves them.
    fn new(mistake: bool) -> Self {
        let living = [0, 1].map(|_| Living { mistake, ..Living::default() });
        assert_eq!([living[0].add(40), living[0].add(24), living[1].add(25), living[1].add(39)], [0, 40, 0, 25]);
        Self { living, freed: [Mutex::new(0), Mutex::new(0)] }
    }

    fn remove(&self, parts: &[(usize, u8)]) {
        for &(slot, units) in parts {
            if self.living[slot].remove(units) {
                *self.freed[slot].lock().expect("no panic") += 1;
                // The slot is free: the next thread that takes it finds no units in it, and writes.
                assert_eq!(self.living[slot].add(7), 0, "a slot was free twice");
            }
        }
    }
}

fn three_objects_go(mistake: bool) {
    loom::model(move || {
        let slots = Arc::new(ModelSlots::new(mistake));
        let parts: [&[(usize, u8)]; 2] = [&[(0, 40)], &[(0, 24), (1, 25)]];
        let others = parts.map(|parts| {
            let slots = slots.clone();
            thread::spawn(move || slots.remove(parts))
        });
        slots.remove(&[(1, 39)]);
        others.into_iter().for_each(|other| other.join().expect("another thread"));
        for slot in 0..2 {
            let freed = *slots.freed[slot].lock().expect("no panic");
            assert_eq!((freed, slots.living[slot].get()), (1, 7), "a slot was free twice, or never");
        }
    });
}

#[test]
fn each_slot_is_freed_once_by_who_frees_its_last_object() {
    three_objects_go(false);
}

#[test]
#[should_panic(expected = "a slot was free twice")]
fn looking_after_the_subtraction_is_found() {
    three_objects_go(true);
}
