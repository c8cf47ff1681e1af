//! A mirror returns the bytes that it said it has written, or an error, whichever device fails at
//! whichever moment.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use uswap_core::PAGE_SIZE;

use super::*;
use crate::ram::RamDevice;
use crate::wrap::{Fail, When};

type Half = Arc<Fail<RamDevice>>;

fn halves() -> (Half, Half, Mirror) {
    let half = |name: &str| Arc::new(Fail::new(RamDevice::new(name, 16)));
    let (one, other) = (half("one"), half("other"));
    let mirror = Mirror::new(Box::new(one.clone()), Box::new(other.clone()));
    (one, other, mirror)
}

fn page(byte: u8) -> [u8; PAGE_SIZE] {
    [byte; PAGE_SIZE]
}

fn read(mirror: &Mirror, slot: u32) -> Result<u8, Errno> {
    let mut bytes = page(0);
    mirror.read(slot, &mut bytes).map(|()| bytes[0])
}

#[test]
fn a_half_that_missed_a_write_is_never_read_again() {
    let (one, _, mirror) = halves();
    mirror.write(3, &page(1)).unwrap();
    one.fail_writes(When::Nth(0), Errno::IO);
    mirror.write(3, &page(2)).unwrap();
    assert_eq!(read(&mirror, 3), Ok(2));
    let news = mirror.news().expect("news");
    assert!(news.grave && news.text.contains("one is out of the mirror for good"), "{news:?}");
    assert!(mirror.news().is_none() && mirror.note().expect("a note").contains("one is out"));
    // The device works again, and its half stays out.
    mirror.write(3, &page(4)).unwrap();
    let mut bytes = page(0);
    one.read(3, &mut bytes).unwrap();
    assert_eq!((bytes[0], read(&mirror, 3)), (1, Ok(4)));
}

#[test]
fn the_last_half_stays_and_its_errors_are_told() {
    let (one, other, mirror) = halves();
    mirror.write(0, &page(1)).unwrap();
    one.fail_reads(When::From(0), Errno::IO);
    assert_eq!(read(&mirror, 0), Ok(1));
    other.fail_reads(When::Nth(0), Errno::IO);
    assert_eq!((read(&mirror, 0), read(&mirror, 0)), (Err(Errno::IO), Ok(1)));
    other.fail_writes(When::Nth(0), Errno::IO);
    assert_eq!((mirror.write(0, &page(2)), mirror.write(0, &page(3))), (Err(Errno::IO), Ok(())));
    assert_eq!(read(&mirror, 0), Ok(3));
}

#[test]
fn no_room_puts_nobody_out() {
    let (one, other, mirror) = halves();
    one.fail_writes(When::Nth(0), Errno::NO_SPACE);
    assert_eq!(mirror.write(1, &page(1)), Err(Errno::NO_SPACE));
    assert_eq!(mirror.note(), None);
    one.fail_writes(When::Nth(0), Errno::NO_SPACE);
    other.fail_writes(When::Nth(0), Errno::IO);
    assert_eq!(mirror.write(1, &page(1)), Err(Errno::NO_SPACE));
    assert_eq!((mirror.write(1, &page(2)), read(&mirror, 1), mirror.note()), (Ok(()), Ok(2), None));
}

#[test]
fn wrong_bytes_are_read_again_from_the_other_half() {
    let (one, other, mirror) = halves();
    mirror.write(2, &page(7)).unwrap();
    one.write(2, &page(8)).unwrap();
    let mut bytes = page(0);
    mirror.read_again(2, 0, &mut bytes).unwrap();
    assert_eq!((read(&mirror, 2), bytes[0]), (Ok(8), 7));
    drop(other);
}

/// When a sector of the first half cannot be read, the bytes come from the second half, from the
/// same place of the page.
#[test]
fn parts_of_pages_are_read_from_either_half() {
    let (one, other, mirror) = halves();
    assert_eq!(mirror.sector(), one.sector().max(other.sector()));
    assert!(mirror.sector() < PAGE_SIZE);
    let bytes: Vec<u8> = (0..2 * PAGE_SIZE).map(|at| (at / 512) as u8 + 1).collect();
    mirror.write(4, &bytes).unwrap();
    let read = |skip: usize| {
        let mut part = [0; 1024];
        mirror.read_part(4, skip, &mut part).map(|()| part[0])
    };
    assert_eq!([read(512), read(PAGE_SIZE - 512)], [Ok(2), Ok(8)]);
    let mut part = [0; 512];
    mirror.read_again(4, 1024, &mut part).unwrap();
    assert_eq!(part[0], 3);
    one.fail_reads(When::Nth(0), Errno::IO);
    let mut parts = [[0; 512]; 2];
    let mut requests: Vec<_> =
        parts.iter_mut().zip([512, 1536]).map(|(part, skip)| ReadRequest::part(4, skip, part)).collect();
    mirror.read_many(&mut requests);
    assert!(requests.iter().all(|request| request.result.is_ok()));
    assert_eq!((parts[0][0], parts[1][0], mirror.note().is_some()), (2, 4, true));
}

/// If one half reads only whole pages, the mirror does too.
#[test]
fn a_mirror_reads_no_less_than_its_coarser_half() {
    struct Pages(RamDevice);
    impl Device for Pages {
        fn name(&self) -> &str {
            self.0.name()
        }
        fn slots(&self) -> u32 {
            self.0.slots()
        }
        fn class(&self) -> DeviceClass {
            self.0.class()
        }
        fn write(&self, first: u32, bytes: &[u8]) -> Result<(), Errno> {
            self.0.write(first, bytes)
        }
        fn read(&self, first: u32, bytes: &mut [u8]) -> Result<(), Errno> {
            self.0.read(first, bytes)
        }
    }
    let mirror = Mirror::new(Box::new(RamDevice::new("fine", 16)), Box::new(Pages(RamDevice::new("coarse", 16))));
    assert_eq!(mirror.sector(), PAGE_SIZE);
}

#[derive(Clone, Debug)]
enum Step {
    Write(u32, u8),
    Read(u32),
    ReadMany(u32),
    FailWrite(bool, bool),
    FailRead(bool),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..16u32, 1..255u8).prop_map(|(slot, byte)| Step::Write(slot, byte)),
        4 => (0..16u32).prop_map(Step::Read),
        2 => (0..14u32).prop_map(Step::ReadMany),
        1 => any::<(bool, bool)>().prop_map(|(half, room)| Step::FailWrite(half, room)),
        1 => any::<bool>().prop_map(Step::FailRead),
    ]
}

proptest! {
    #[test]
    fn what_was_written_is_read_or_an_error(steps in prop::collection::vec(step(), 1..80)) {
        let (one, other, mirror) = halves();
        let mut written = BTreeMap::new();
        let pick = |half: bool| if half { &one } else { &other };
        for step in steps {
            match step {
                Step::FailWrite(half, room) => {
                    pick(half).fail_writes(When::Nth(0), if room { Errno::NO_SPACE } else { Errno::IO });
                }
                Step::FailRead(half) => pick(half).fail_reads(When::Nth(0), Errno::IO),
                Step::Write(slot, byte) => match mirror.write(slot, &page(byte)) {
                    Ok(()) => drop(written.insert(slot, byte)),
                    // As in the store: such a slot holds nothing.
                    Err(_) => drop(written.remove(&slot)),
                },
                Step::Read(slot) => {
                    if let (Ok(byte), Some(expected)) = (read(&mirror, slot), written.get(&slot)) {
                        prop_assert_eq!(byte, *expected);
                    }
                }
                Step::ReadMany(slot) => {
                    let mut buffers = [page(0), page(0)];
                    let mut requests: Vec<_> =
                        buffers.iter_mut().zip(slot..).map(|(buffer, slot)| ReadRequest::new(slot, buffer)).collect();
                    mirror.read_many(&mut requests);
                    for request in &requests {
                        if let (Ok(()), Some(expected)) = (request.result, written.get(&request.slot)) {
                            prop_assert_eq!(request.buf[0], *expected);
                        }
                    }
                }
            }
        }
    }
}
