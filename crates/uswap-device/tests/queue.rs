//! Queues of reads: right bytes at the right place of the memory, errors where there is none, and
//! the memory comes back whatever happens.

mod liar;

use std::time::{Duration, Instant};

use liar::{Liar, Lie};
use uswap_device::nbd::{NbdDevice, NbdOptions};
use uswap_device::{Device, FileDevice, IoBackend, QUEUE_DEPTH, QueuedEnd, QueuedRead, RamDevice, ReadQueue};
use uswap_sys::Reservation;
use uswap_sys::io::events::Poller;

const PAGE: usize = 4096;
const SLOTS: u32 = 1024;

fn read(slot: u32, skip: usize, length: usize, at: usize) -> QueuedRead {
    QueuedRead { slot, skip, length, memory: Reservation::new(4 * PAGE).expect("memory"), at }
}

/// The next read that is over, by polling as an owner does.
fn next(queue: &mut dyn ReadQueue) -> QueuedEnd {
    let poller = Poller::new().expect("a poller");
    poller.add(queue.event(), 1).expect("an event");
    let begun = Instant::now();
    loop {
        if let Some(end) = queue.finished() {
            return end;
        }
        assert!(begun.elapsed() < Duration::from_secs(5), "nothing came");
        poller.wait(100, &mut Vec::new()).expect("a wait");
    }
}

fn fill(device: &dyn Device) {
    for slot in 0..64 {
        device.write(slot, aligned(slot as u8 + 1).bytes()).expect("a write");
    }
}

fn aligned(byte: u8) -> Reservation {
    let mut memory = Reservation::new(PAGE).expect("memory");
    memory.bytes_mut().fill(byte);
    memory
}

fn nbd(liar: &Liar) -> NbdDevice {
    let options = NbdOptions { timeout: Duration::from_secs(2), connections: None, size: None };
    NbdDevice::open(&liar.uri().parse().expect("a URI"), options).unwrap_or_else(|error| panic!("{error}"))
}

fn file() -> Option<FileDevice> {
    let folder = std::env::var_os("CARGO_TARGET_TMPDIR").map_or_else(std::env::temp_dir, Into::into);
    match FileDevice::unnamed(&folder, u64::from(SLOTS) * PAGE as u64, IoBackend::Uring) {
        Ok(device) => Some(device),
        Err(error) => {
            eprintln!("note: NOT TESTED: {error}");
            None
        }
    }
}

/// Many at once, each with its bytes at its place and nothing beside them.
fn reads_are_right(device: &dyn Device) {
    fill(device);
    let mut queue = device.read_queue().expect("a queue");
    let mut asked = [None; QUEUE_DEPTH];
    for slot in 0..32 {
        let pages = 1 + slot as usize % 3;
        let number = queue.begin(read(slot, 0, pages * PAGE, PAGE)).expect("begun");
        assert!(asked[number as usize].replace((slot, pages)).is_none(), "a number belongs to one read");
    }
    for _ in 0..32 {
        let end = next(&mut *queue);
        let (slot, pages) = asked[end.number as usize].take().expect("it was asked for");
        assert_eq!(end.result, Ok(()));
        let (before, bytes) = end.memory.bytes().split_at(PAGE);
        for (n, page) in bytes.chunks(PAGE).enumerate() {
            let expected = if n < pages { (slot as usize + n) as u8 + 1 } else { 0 };
            assert!(page.iter().all(|byte| *byte == expected), "slot {slot}, page {n}");
        }
        assert!(before.iter().all(|byte| *byte == 0));
    }
    assert!(queue.finished().is_none() && !queue.is_broken());
}

#[test]
fn many_reads_of_a_file_each_bring_their_bytes() {
    let Some(device) = file() else { return };
    reads_are_right(&device);
    let mut queue = device.read_queue().expect("a queue");
    if device.sector() < PAGE {
        queue.begin(read(3, 1024, 512, 512)).expect("begun");
        let end = next(&mut *queue);
        assert!(end.memory.bytes()[512..1024].iter().all(|byte| *byte == 4) && end.memory.bytes()[1024] == 0);
    }
}

#[test]
fn many_reads_of_a_server_each_bring_their_bytes() {
    let liar = Liar::new(Lie::None, u64::from(SLOTS) * PAGE as u64);
    let device = nbd(&liar);
    reads_are_right(&device);
    let mut queue = device.read_queue().expect("a queue");
    queue.begin(read(3, PAGE - 512, 1024, 512)).expect("begun");
    let end = next(&mut *queue);
    let memory = end.memory.bytes();
    assert!(memory[512..1024].iter().all(|byte| *byte == 4) && memory[1024..1536].iter().all(|byte| *byte == 5));
    assert!(end.result.is_ok() && memory[1536] == 0);
}

#[test]
fn what_cannot_be_begun_gives_the_memory_back() {
    let liar = Liar::new(Lie::None, u64::from(SLOTS) * PAGE as u64);
    let device = nbd(&liar);
    let mut queues = vec![(device.read_queue().expect("a queue"), device.slots())];
    queues.extend(file().map(|device| (device.read_queue().expect("a queue"), device.slots())));
    for (queue, slots) in &mut queues {
        let memory = queue.begin(read(*slots - 1, 0, 2 * PAGE, 0)).expect_err("beyond the end");
        assert_eq!(memory.bytes().len(), 4 * PAGE);
        queue.begin(read(0, 100, 512, 0)).expect_err("not a sector's start");
        let begun = (0..QUEUE_DEPTH + 1).filter(|_| queue.begin(read(0, 0, PAGE, 0)).is_ok()).count();
        assert_eq!(begun, QUEUE_DEPTH);
        (0..QUEUE_DEPTH).for_each(|_| assert_eq!(next(&mut **queue).result, Ok(())));
    }
}

#[test]
fn devices_without_a_queue_say_so() {
    assert!(RamDevice::new("ram", 512).read_queue().is_none());
    let liar = Liar::new(Lie::OneConnection, u64::from(SLOTS) * PAGE as u64);
    assert!(nbd(&liar).read_queue().is_none(), "another connection might see other data");
    let liar = Liar::new(Lie::None, u64::from(SLOTS) * PAGE as u64);
    let two = NbdOptions { connections: Some(2), ..NbdOptions::default() };
    let device = NbdDevice::open(&liar.uri().parse().expect("a URI"), two).expect("a device");
    assert!(device.read_queue().is_none(), "two connections were asked for");
}

/// Whatever a server says that cannot be: every read ends with an error, with its memory, and the
/// queue is of no more use.
#[test]
fn a_server_that_lies_ends_all_reads_with_errors() {
    for lie in [
        Lie::WrongMagic,
        Lie::WrongCookie,
        Lie::HugeChunk,
        Lie::Outside,
        Lie::Short,
        Lie::HalfAndGone,
        Lie::SimpleToRead,
        Lie::UnknownChunk,
    ] {
        let liar = Liar::new(Lie::None, u64::from(SLOTS) * PAGE as u64);
        let device = nbd(&liar);
        let mut queue = device.read_queue().expect("a queue");
        liar.set(lie);
        let begun = (1..6).filter(|slot| queue.begin(read(*slot, 0, PAGE, 0)).is_ok()).count();
        assert!(begun > 0);
        for _ in 0..begun {
            let end = next(&mut *queue);
            assert!(end.result.is_err() && end.memory.bytes().len() == 4 * PAGE, "{lie:?}");
        }
        assert!(queue.is_broken(), "{lie:?}");
        queue.begin(read(0, 0, PAGE, 0)).expect_err("broken");
    }
}

#[test]
fn an_error_is_one_read_s_and_the_queue_goes_on() {
    let liar = Liar::new(Lie::None, u64::from(SLOTS) * PAGE as u64);
    let device = nbd(&liar);
    fill(&device);
    let mut queue = device.read_queue().expect("a queue");
    liar.set(Lie::Errors);
    queue.begin(read(7, 0, PAGE, 0)).expect("begun");
    assert!(next(&mut *queue).result.is_err() && !queue.is_broken());
    liar.set(Lie::None);
    queue.begin(read(7, 0, PAGE, 0)).expect("begun");
    let end = next(&mut *queue);
    assert!(end.result.is_ok() && end.memory.bytes()[..PAGE].iter().all(|byte| *byte == 8));
}

/// The event of a connection that has ended stays: its thread would go round and round.
#[test]
fn a_connection_that_ends_while_nothing_is_read_breaks_the_queue() {
    let liar = Liar::new(Lie::None, u64::from(SLOTS) * PAGE as u64);
    let device = nbd(&liar);
    fill(&device);
    let mut queue = device.read_queue().expect("a queue");
    queue.begin(read(7, 0, PAGE, 0)).expect("begun");
    assert!(next(&mut *queue).result.is_ok());
    assert!(queue.finished().is_none() && queue.finished().is_none() && !queue.is_broken());
    liar.hang_up();
    let poller = Poller::new().expect("a poller");
    poller.add(queue.event(), 1).expect("an event");
    for _ in 0..50 {
        let mut events = Vec::new();
        poller.wait(100, &mut events).expect("a wait");
        assert!(queue.finished().is_none());
        if queue.is_broken() {
            return assert!(queue.begin(read(7, 0, PAGE, 0)).is_err());
        }
    }
    panic!("the end was not seen");
}

#[test]
fn a_server_that_never_answers_is_given_up_with_the_memory() {
    let liar = Liar::new(Lie::None, u64::from(SLOTS) * PAGE as u64);
    let device = nbd(&liar);
    let mut queue = device.read_queue().expect("a queue");
    liar.set(Lie::Never);
    (1..4).for_each(|slot| assert!(queue.begin(read(slot, 0, PAGE, 0)).is_ok()));
    assert!(queue.finished().is_none());
    queue.give_up();
    (1..4).for_each(|_| assert!(next(&mut *queue).result.is_err()));
    assert!(queue.finished().is_none() && queue.is_broken());
}
