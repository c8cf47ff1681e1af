//! How fast an NBD server is through our client: `cargo run --release -p uswap-device --example
//! nbd_speed -- URI [CONNECTIONS]`. It overwrites the export.

use std::time::{Duration, Instant};

use uswap_core::{Histogram, PAGE_SIZE};
use uswap_device::nbd::{NbdDevice, NbdOptions};
use uswap_device::{Device, ReadRequest};

const PAGES: u32 = 64 << 8;

fn main() {
    let mut words = std::env::args().skip(1);
    let uri = words.next().expect("a URI").parse().expect("a URI");
    let connections = words.next().map(|n| n.parse().expect("a number"));
    let device = NbdDevice::open(&uri, NbdOptions { connections, ..NbdOptions::default() }).expect("a device");
    println!("{} connections, round trip {:?}", device.connections().len(), device.class().latency);
    let begun = Instant::now();
    let batch = vec![0x5a; 128 * PAGE_SIZE];
    (0..PAGES).step_by(128).for_each(|slot| device.write(slot, &batch).expect("a write"));
    rate("written, 128 pages at a time", PAGES, begun.elapsed());
    sequential(&device, 1, 64);
    sequential(&device, 4, 32);
    for threads in [1, 4, 16] {
        random(&device, threads);
    }
}

fn rate(what: &str, pages: u32, time: Duration) {
    println!("{what}: {:.0} MiB/s", f64::from(pages) / 256.0 / time.as_secs_f64());
}

fn sequential(device: &NbdDevice, threads: u32, depth: u32) {
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for thread in 0..threads {
            scope.spawn(move || {
                let mut room = vec![0; depth as usize * 4 * PAGE_SIZE];
                for first in (0..PAGES).step_by((depth * 4 * threads) as usize) {
                    let first = first + thread * depth * 4;
                    let pieces = room.chunks_mut(4 * PAGE_SIZE).zip((first..).step_by(4));
                    let mut requests: Vec<_> = pieces.map(|(piece, slot)| ReadRequest::new(slot, piece)).collect();
                    device.read_many(&mut requests);
                    assert!(requests.iter().all(|r| r.result.is_ok()));
                }
            });
        }
    });
    rate(&format!("read by {threads} threads, {depth} requests of 4 pages each at once"), PAGES, begun.elapsed());
}

fn random(device: &NbdDevice, threads: u32) {
    let times = Histogram::new();
    let until = Instant::now() + Duration::from_secs(1);
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let times = &times;
            scope.spawn(move || {
                let (mut page, mut slot) = (vec![0; PAGE_SIZE], thread * 7919);
                while Instant::now() < until {
                    slot = slot.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    let begun = Instant::now();
                    device.read((slot >> 8) % PAGES, &mut page).expect("a read");
                    times.record(begun.elapsed().as_nanos() as u64);
                }
            });
        }
    });
    let seen = times.snapshot();
    let [p50, p99, most] = [seen.p50_ns, seen.p99_ns, seen.max_ns].map(|n| n as f64 / 1e3);
    println!(
        "random pages, {threads} threads: {} a second, p50 {p50:.0} us, p99 {p99:.0} us, most {most:.0} us",
        seen.count
    );
}
