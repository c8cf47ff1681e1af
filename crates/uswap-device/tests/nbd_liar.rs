//! Servers that lie: the client refuses, names the reason, and waits no longer than it said.

mod liar;

use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use liar::{Liar, Lie};
use uswap_device::nbd::{NbdDevice, NbdOptions};
use uswap_device::{ConnectionState, Device, Errno, ReadRequest};

const PAGE: usize = 4096;
const SIZE: u64 = 16 << 20;

fn options(seconds: u64) -> NbdOptions {
    NbdOptions { timeout: Duration::from_secs(seconds), connections: Some(1), size: None }
}

fn open(liar: &Liar, seconds: u64) -> NbdDevice {
    let uri = liar.uri().parse().expect("a URI");
    NbdDevice::open(&uri, options(seconds)).unwrap_or_else(|error| panic!("{error}"))
}

fn page(byte: u8) -> Vec<u8> {
    vec![byte; PAGE]
}

/// What the device says of its connection, and of itself.
fn errors(device: &NbdDevice) -> String {
    let connections = device.connections();
    let last = connections.iter().filter_map(|connection| connection.error.clone());
    let news = std::iter::from_fn(|| device.news()).map(|news| news.text);
    last.chain(news).collect::<Vec<_>>().join("; ")
}

#[test]
fn an_honest_server_serves() {
    let liar = Liar::new(Lie::None, SIZE);
    let device = open(&liar, 5);
    assert_eq!(device.slots(), (SIZE / PAGE as u64) as u32 - 1);
    device.write(3, &[page(1), page(2)].concat()).expect("a write");
    let (mut a, mut b, mut c) = (page(9), page(9), [page(9), page(9)].concat());
    let mut requests = [ReadRequest::new(4, &mut a), ReadRequest::new(5, &mut b), ReadRequest::new(3, &mut c)];
    device.read_many(&mut requests);
    assert!(requests.iter().all(|request| request.result.is_ok()));
    assert_eq!((a, b, c), (page(2), page(0), [page(1), page(2)].concat()));
    device.discard(3, 2).expect("a discard");
    assert_eq!(device.write(device.slots(), &page(0)), Err(Errno::INVALID));
    assert_eq!((device.connections()[0].state, device.note()), (ConnectionState::Up, None));
}

#[test]
fn a_handshake_that_cannot_be_is_refused_by_name() {
    for (lie, why) in [
        (Lie::Http, "no NBD server"),
        (Lie::OldStyle, "oldstyle"),
        (Lie::HangsUp, "ended the connection during the handshake"),
        (Lie::SaysNothing, "no answer in time"),
        (Lie::ReadOnly, "read-only"),
        (Lie::Small, "less than 2 MiB"),
        (Lie::LargeBlocks, "smallest block is 65536"),
        (Lie::SmallRequests, "2048 bytes at most"),
        (Lie::OddBlocks, "block sizes that cannot be"),
        (Lie::OtherOption, "an option that was not sent"),
        (Lie::EnormousOption, "enormous length"),
        (Lie::EndlessInfo, "without end"),
        (Lie::NoSize, "no size"),
        (Lie::Forgets, ""),
    ] {
        let liar = Liar::new(lie, SIZE);
        let begun = Instant::now();
        match NbdDevice::open(&liar.uri().parse().expect("a URI"), options(1)) {
            Ok(_) => assert_eq!(why, "", "{lie:?} was not refused"),
            Err(error) => assert!(!why.is_empty() && error.to_string().contains(why), "{lie:?}: {error}"),
        }
        assert!(begun.elapsed() < Duration::from_secs(3), "{lie:?} took {:?}", begun.elapsed());
    }
}

#[test]
fn an_export_that_is_not_there_is_named() {
    let liar = Liar::new(Lie::None, SIZE);
    let uri = format!("nbd://{}/other", liar.address).parse().expect("a URI");
    let error = NbdDevice::open(&uri, options(1)).err().expect("a refusal").to_string();
    assert!(error.contains("no such export") && error.contains("only \\\"export\\\" is here"), "{error}");
}

/// Without the server's word that all connections see the same data there is one.
#[test]
fn several_connections_need_the_server_s_word() {
    let several = NbdOptions { connections: Some(2), ..options(1) };
    let open = |lie, options| NbdDevice::open(&Liar::new(lie, SIZE).uri().parse().expect("a URI"), options);
    let error = open(Lie::OneConnection, several).err().expect("a refusal").to_string();
    assert!(error.contains("connections=2 is not possible"), "{error}");
    let usual = NbdOptions { connections: None, ..options(1) };
    assert_eq!(open(Lie::OneConnection, usual).expect("a device").connections().len(), 1);
    assert_eq!(open(Lie::None, usual).expect("a device").connections().len(), 4);
}

/// Each lie ends the connection; it is made anew and the request sent again, until the request's
/// time is over.
#[test]
fn a_reply_that_cannot_be_ends_in_an_error_by_name_and_in_time() {
    for (lie, why) in [
        (Lie::WrongMagic, "0x12121212, which is no reply's magic"),
        (Lie::WrongCookie, "which nobody sent"),
        (Lie::Never, "nothing was heard"),
        (Lie::HugeChunk, "longer than the request"),
        (Lie::Outside, "outside what was asked for"),
        (Lie::Short, "ends 1 bytes short"),
        (Lie::HalfAndGone, "the server ended the connection"),
        (Lie::SimpleToRead, "simple reply to a read"),
        (Lie::UnknownChunk, "a chunk of kind 5"),
        (Lie::ShutsDown, "the server shuts down"),
    ] {
        let liar = Liar::new(lie, SIZE);
        let device = open(&liar, 1);
        let begun = Instant::now();
        let outcome = device.read(5, &mut page(0));
        let elapsed = begun.elapsed();
        assert_eq!(outcome, Err(Errno::IO), "{lie:?}");
        assert!(elapsed < Duration::from_millis(1500), "{lie:?}: {elapsed:?}");
        let errors = errors(&device);
        assert!(errors.contains(why), "{lie:?}: {errors}");
        // Silence lasts as long as a request may.
        assert!(liar.connections.load(SeqCst) > 1 || lie == Lie::Never, "{lie:?}: it was not tried again");
        // It comes to its senses.
        liar.set(Lie::None);
        std::thread::sleep(Duration::from_millis(1100));
        assert_eq!(device.write(5, &page(6)), Ok(()), "{lie:?}: {errors}");
        let mut back = page(0);
        assert_eq!((device.read(5, &mut back), back[0]), (Ok(()), 6), "{lie:?}");
    }
}

/// The first reply counts; the second one ends the connection, and what was in flight then is sent
/// again.
#[test]
fn a_second_reply_ends_the_connection_and_not_the_request() {
    for lie in [Lie::Twice, Lie::TwiceAtOnce] {
        let liar = Liar::new(Lie::None, SIZE);
        // Each connection breaks at its first reply, so that it takes longer each time until the
        // next one is made.
        let device = open(&liar, 30);
        device.write(7, &page(3)).expect("a write");
        liar.set(lie);
        let mut back = page(0);
        for _ in 0..3 {
            back.fill(0);
            assert_eq!((device.read(7, &mut back), back[0]), (Ok(()), 3), "{lie:?}");
        }
        let errors = errors(&device);
        assert!(errors.contains("a second reply to cookie"), "{lie:?}: {errors}");
    }
}

#[test]
fn bytes_for_a_write_end_the_connection() {
    let liar = Liar::new(Lie::DataToWrite, SIZE);
    let device = open(&liar, 1);
    assert_eq!(device.write(7, &page(3)), Err(Errno::IO));
    let errors = errors(&device);
    assert!(errors.contains("asked for none"), "{errors}");
}

#[test]
fn an_error_is_the_request_s_own() {
    let liar = Liar::new(Lie::Errors, SIZE);
    let device = open(&liar, 5);
    assert_eq!(device.read(1, &mut page(0)), Err(Errno::IO));
    assert_eq!(device.write(1, &page(0)), Err(Errno::NO_SPACE));
    assert_eq!((device.connections()[0].reconnects, device.note()), (0, None));
}

/// A page no two bytes of which at the same distance from a sector's start are alike in
/// neighbouring sectors.
fn striped(slot: u32) -> Vec<u8> {
    (0..PAGE).map(|at| (at / 512 * 31 + at % 251) as u8 ^ slot as u8).collect()
}

/// Parts of pages, one by one and many at once, a part that crosses from one page to the next among
/// them.
fn parts_are_right(device: &NbdDevice, sector: usize) {
    let all: Vec<u8> = (3..8).flat_map(striped).collect();
    let expected = |skip: usize, length: usize| all[skip..skip + length].to_vec();
    let asked = [(0, sector), (sector, sector), (PAGE - sector, 2 * sector), (PAGE, PAGE), (2 * sector, PAGE + sector)];
    for (skip, length) in asked {
        let mut part = vec![0; length];
        assert_eq!(device.read_part(3, skip, &mut part), Ok(()), "{skip} {length}");
        assert!(part == expected(skip, length), "{skip} {length}");
    }
    let mut buffers = asked.map(|(_, length)| vec![0; length]);
    let requests = buffers.iter_mut().zip(asked);
    let mut requests: Vec<_> = requests.map(|(buffer, (skip, _))| ReadRequest::part(3, skip, buffer)).collect();
    device.read_many(&mut requests);
    assert!(requests.iter().all(|request| request.result.is_ok()));
    assert!(buffers.iter().zip(asked).all(|(buffer, (skip, length))| *buffer == expected(skip, length)));
    assert_eq!(device.read_part(3, sector / 2, &mut vec![0; sector]), Err(Errno::INVALID));
    assert_eq!(device.read_part(device.slots() - 1, sector, &mut page(0)), Err(Errno::INVALID));
}

fn striped_device(liar: &Liar) -> NbdDevice {
    let device = open(liar, 5);
    (3..8).for_each(|slot| device.write(slot, &striped(slot)).expect("a write"));
    liar.reads.lock().unwrap().clear();
    device
}

fn parts_of_pages(liar: &Liar) -> usize {
    let reads = liar.reads.lock().unwrap();
    reads.iter().filter(|(offset, length)| (offset | u64::from(*length)) % PAGE as u64 != 0).count()
}

#[test]
fn a_server_that_told_its_blocks_is_asked_for_sectors() {
    let liar = Liar::new(Lie::None, SIZE);
    let device = striped_device(&liar);
    assert_eq!(device.sector(), 512, "a byte is what it would allow");
    parts_are_right(&device, 512);
    let bytes: u32 = liar.reads.lock().unwrap().iter().map(|(_, length)| length).sum();
    assert_eq!(bytes as usize, 2 * (4 * 512 + 2 * PAGE + 512), "nothing more is read");
}

#[test]
fn a_server_that_told_nothing_or_pages_is_asked_for_pages() {
    for lie in [Lie::PageBlocks, Lie::NoBlocks] {
        let liar = Liar::new(lie, SIZE);
        let device = striped_device(&liar);
        assert_eq!(device.sector(), PAGE, "{lie:?}");
        parts_are_right(&device, PAGE);
        assert_eq!(parts_of_pages(&liar), 0, "{lie:?}");
    }
}

/// Who refuses what it said it would do is asked for whole pages from then on.
#[test]
fn a_server_that_refuses_parts_is_asked_for_pages_instead() {
    let liar = Liar::new(Lie::RefusesParts, SIZE);
    let device = striped_device(&liar);
    assert_eq!(device.sector(), 512);
    parts_are_right(&device, 512);
    assert_eq!(device.sector(), PAGE);
    assert_eq!((device.connections()[0].reconnects, device.note()), (0, None));
}

/// Another export in the place of ours is no server of ours.
#[test]
fn an_export_that_changed_is_not_used() {
    for (lie, why) in [(Lie::Amnesia, "its first page is not ours"), (Lie::Grows, "another size")] {
        let liar = Liar::new(lie, SIZE);
        let device = open(&liar, 1);
        device.write(2, &page(1)).expect("a write");
        assert_eq!(device.read(2, &mut page(0)), Err(Errno::IO), "{lie:?}");
        let errors = errors(&device);
        assert!(errors.contains(why), "{lie:?}: {errors}");
    }
}

/// Many threads, a server that ends the connection now and then: each gets its own bytes.
#[test]
fn many_threads_get_their_own_bytes_while_connections_break() {
    let liar = Liar::new(Lie::None, SIZE);
    let uri = liar.uri().parse().expect("a URI");
    let device = NbdDevice::open(&uri, NbdOptions { connections: Some(3), ..options(20) }).expect("a device");
    let until = Instant::now() + Duration::from_secs(3);
    std::thread::scope(|scope| {
        for thread in 0..8u32 {
            let device = &device;
            scope.spawn(move || {
                let (slots, mut round) = (thread * 100..thread * 100 + 70, 0u8);
                while Instant::now() < until {
                    round = round.wrapping_add(1);
                    for slot in slots.clone().step_by(7) {
                        let bytes: Vec<u8> = (0..7).flat_map(|i| page(round ^ (slot + i) as u8)).collect();
                        device.write(slot, &bytes).expect("a write");
                    }
                    let mut buffers: Vec<Vec<u8>> = slots.clone().map(|_| page(0)).collect();
                    let mut requests: Vec<_> =
                        buffers.iter_mut().zip(slots.clone()).map(|(b, slot)| ReadRequest::new(slot, b)).collect();
                    device.read_many(&mut requests);
                    assert!(requests.iter().all(|request| request.result.is_ok()));
                    for (buffer, slot) in buffers.iter().zip(slots.clone()) {
                        assert!(*buffer == page(round ^ slot as u8), "thread {thread} slot {slot}");
                    }
                }
            });
        }
        scope.spawn(|| {
            while Instant::now() < until {
                std::thread::sleep(Duration::from_millis(200));
                liar.set(Lie::HalfAndGone);
                std::thread::sleep(Duration::from_millis(20));
                liar.set(Lie::None);
            }
        });
    });
    let reconnects: u64 = device.connections().iter().map(|connection| connection.reconnects).sum();
    assert!(reconnects > 2, "no connection broke");
    assert!(device.connections().iter().all(|connection| connection.in_flight == 0));
}

/// Once nothing has gone for as long as a request may take, requests fail at once.
#[test]
fn a_lost_server_costs_its_time_once() {
    let liar = Liar::new(Lie::Never, SIZE);
    let device = open(&liar, 1);
    assert_eq!(device.read(1, &mut page(0)), Err(Errno::IO));
    liar.set(Lie::HangsUp);
    std::thread::sleep(Duration::from_millis(1200));
    let _ = device.read(1, &mut page(0));
    let begun = Instant::now();
    for slot in 0..50 {
        assert_eq!(device.read(slot, &mut page(0)), Err(Errno::IO));
    }
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
    let note = device.note().expect("a note");
    assert!(note.contains("lost"), "{note}");
    let news = std::iter::from_fn(|| device.news()).filter(|news| news.grave).count();
    assert_eq!(news, 1, "said once");
}
