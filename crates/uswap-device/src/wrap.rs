//! Devices around a device, each of which changes one thing. Tests and users stack them.
//!
//! To control a wrapper while it is in use, share it as `Arc`: `Arc<D>` is a device too.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering::Relaxed};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde::Serialize;
use uswap_core::{Histogram, HistogramSnapshot, PAGE_SIZE};

use crate::device::{Device, DeviceClass, Errno, ReadRequest};

/// The methods that a wrapper does not change.
macro_rules! pass_through {
    ($($method:ident)*) => { $(pass_through!(@ $method);)* };
    (@ name) => { fn name(&self) -> &str { self.inner.name() } };
    (@ slots) => { fn slots(&self) -> u32 { self.inner.slots() } };
    (@ class) => { fn class(&self) -> DeviceClass { self.inner.class() } };
    (@ write) => { fn write(&self, first: u32, bytes: &[u8]) -> Result<(), Errno> { self.inner.write(first, bytes) } };
    (@ sector) => { fn sector(&self) -> usize { self.inner.sector() } };
    (@ keep) => { fn keep(&self) -> bool { self.inner.keep() } };
    (@ discard) => { fn discard(&self, first: u32, n: u32) -> Result<(), Errno> { self.inner.discard(first, n) } };
}

/// Waits before every read and every write.
pub struct Delay<D> {
    inner: D,
    read: Duration,
    write: Duration,
}

impl<D: Device> Delay<D> {
    /// A wrapper around `inner` that is slower by `read` and `write` per call (a batch of reads
    /// waits once).
    pub fn new(inner: D, read: Duration, write: Duration) -> Self {
        Self { inner, read, write }
    }
}

impl<D: Device> Device for Delay<D> {
    pass_through!(name slots sector discard keep);

    fn class(&self) -> DeviceClass {
        let class = self.inner.class();
        DeviceClass { latency: class.latency + self.read, ..class }
    }
    fn write(&self, first: u32, bytes: &[u8]) -> Result<(), Errno> {
        sleep(self.write);
        self.inner.write(first, bytes)
    }
    fn read(&self, first: u32, bytes: &mut [u8]) -> Result<(), Errno> {
        sleep(self.read);
        self.inner.read(first, bytes)
    }
    fn read_part(&self, first: u32, skip: usize, bytes: &mut [u8]) -> Result<(), Errno> {
        sleep(self.read);
        self.inner.read_part(first, skip, bytes)
    }
    fn read_many(&self, requests: &mut [ReadRequest<'_>]) {
        sleep(self.read);
        self.inner.read_many(requests);
    }
}

/// Which calls fail, counted from the moment the trigger is set; the first call is 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum When {
    /// No call.
    Never,
    /// Only this call.
    Nth(u64),
    /// This call and all after it.
    From(u64),
    /// Every Nth call (1/N).
    Every(u64),
}

struct Trigger {
    when: Mutex<(When, u64)>,
    errno: AtomicI32,
}

impl Trigger {
    fn new() -> Self {
        Self { when: Mutex::new((When::Never, 0)), errno: AtomicI32::new(libc::EIO) }
    }

    fn set(&self, when: When, errno: Errno) {
        *self.when.lock().expect("no panic under this lock") = (when, 0);
        self.errno.store(errno.0, Relaxed);
    }

    fn pull(&self) -> Result<(), Errno> {
        let mut guard = self.when.lock().expect("no panic under this lock");
        let (when, call) = *guard;
        guard.1 += 1;
        let fails = match when {
            When::Never => false,
            When::Nth(n) => call == n,
            When::From(n) => call >= n,
            When::Every(n) => call % n == n - 1,
        };
        if fails { Err(Errno(self.errno.load(Relaxed))) } else { Ok(()) }
    }
}

/// Fails chosen reads and writes with a chosen error.
pub struct Fail<D> {
    inner: D,
    reads: Trigger,
    writes: Trigger,
}

impl<D: Device> Fail<D> {
    /// A wrapper around `inner` that fails nothing yet.
    pub fn new(inner: D) -> Self {
        Self { inner, reads: Trigger::new(), writes: Trigger::new() }
    }

    /// Sets which reads fail from now on. Each read of a batch counts as one.
    pub fn fail_reads(&self, when: When, errno: Errno) {
        self.reads.set(when, errno);
    }

    /// Sets which writes fail from now on. A failed write changes nothing.
    pub fn fail_writes(&self, when: When, errno: Errno) {
        self.writes.set(when, errno);
    }
}

impl<D: Device> Device for Fail<D> {
    pass_through!(name slots class sector discard keep);

    fn write(&self, first: u32, bytes: &[u8]) -> Result<(), Errno> {
        self.writes.pull()?;
        self.inner.write(first, bytes)
    }
    fn read(&self, first: u32, bytes: &mut [u8]) -> Result<(), Errno> {
        self.read_part(first, 0, bytes)
    }
    fn read_part(&self, first: u32, skip: usize, bytes: &mut [u8]) -> Result<(), Errno> {
        self.reads.pull()?;
        self.inner.read_part(first, skip, bytes)
    }
}

/// Flips a bit of chosen slots when the slots are read.
pub struct Corrupt<D> {
    inner: D,
    /// Slot -> bit to flip and number of reads that still flip it.
    slots: Mutex<BTreeMap<u32, (usize, u64)>>,
}

impl<D: Device> Corrupt<D> {
    /// A wrapper around `inner` that corrupts nothing yet.
    pub fn new(inner: D) -> Self {
        Self { inner, slots: Mutex::new(BTreeMap::new()) }
    }

    /// The next `reads` reads of `slot` that include the byte with bit number `bit` of the page
    /// return that bit flipped.
    pub fn corrupt(&self, slot: u32, bit: usize, reads: u64) {
        assert!(bit < PAGE_SIZE * 8);
        self.slots.lock().expect("no panic under this lock").insert(slot, (bit, reads));
    }
}

impl<D: Device> Device for Corrupt<D> {
    pass_through!(name slots class sector write discard keep);

    fn read(&self, first: u32, bytes: &mut [u8]) -> Result<(), Errno> {
        self.read_part(first, 0, bytes)
    }
    fn read_part(&self, first: u32, skip: usize, bytes: &mut [u8]) -> Result<(), Errno> {
        self.inner.read_part(first, skip, bytes)?;
        let mut slots = self.slots.lock().expect("no panic under this lock");
        let start = first as usize * PAGE_SIZE + skip;
        for (slot, (bit, reads)) in slots.iter_mut().filter(|(_, (_, reads))| *reads > 0) {
            let at = (*slot as usize * PAGE_SIZE + *bit / 8).checked_sub(start);
            if let Some(byte) = at.and_then(|at| bytes.get_mut(at)) {
                *byte ^= 1 << (*bit % 8);
                *reads -= 1;
            }
        }
        Ok(())
    }
}

/// Counts and times the calls that pass through.
pub struct Stats<D> {
    inner: D,
    read_calls: AtomicU64,
    read_bytes: AtomicU64,
    write_calls: AtomicU64,
    write_pages: AtomicU64,
    discarded: AtomicU64,
    errors: AtomicU64,
    read_time: Histogram,
    write_time: Histogram,
}

/// The figures of [`Stats`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct DeviceCounters {
    /// Calls of `read` and `read_many`.
    pub read_calls: u64,
    /// Pages that those calls asked for, rounded down from bytes.
    pub read_pages: u64,
    /// Bytes that those calls asked for.
    pub read_bytes: u64,
    /// Calls of `write`.
    pub write_calls: u64,
    /// Pages that those calls wrote.
    pub write_pages: u64,
    /// Slots discarded.
    pub discarded: u64,
    /// Reads and writes that failed; each request of a batch counts.
    pub errors: u64,
    /// Time of a read call.
    pub read_time: HistogramSnapshot,
    /// Time of a write call.
    pub write_time: HistogramSnapshot,
}

impl<D: Device> Stats<D> {
    /// A wrapper around `inner` whose counts are zero.
    pub fn new(inner: D) -> Self {
        Self {
            inner,
            read_calls: AtomicU64::new(0),
            read_bytes: AtomicU64::new(0),
            write_calls: AtomicU64::new(0),
            write_pages: AtomicU64::new(0),
            discarded: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            read_time: Histogram::new(),
            write_time: Histogram::new(),
        }
    }

    /// The figures so far.
    pub fn counters(&self) -> DeviceCounters {
        DeviceCounters {
            read_calls: self.read_calls.load(Relaxed),
            read_pages: self.read_bytes.load(Relaxed) / PAGE_SIZE as u64,
            read_bytes: self.read_bytes.load(Relaxed),
            write_calls: self.write_calls.load(Relaxed),
            write_pages: self.write_pages.load(Relaxed),
            discarded: self.discarded.load(Relaxed),
            errors: self.errors.load(Relaxed),
            read_time: self.read_time.snapshot(),
            write_time: self.write_time.snapshot(),
        }
    }

    fn note_read(&self, start: Instant, bytes: usize, errors: usize) {
        self.read_time.record(start.elapsed().as_nanos() as u64);
        self.read_calls.fetch_add(1, Relaxed);
        self.read_bytes.fetch_add(bytes as u64, Relaxed);
        self.errors.fetch_add(errors as u64, Relaxed);
    }
}

impl<D: Device> Device for Stats<D> {
    pass_through!(name slots class sector keep);

    fn write(&self, first: u32, bytes: &[u8]) -> Result<(), Errno> {
        let start = Instant::now();
        let result = self.inner.write(first, bytes);
        self.write_time.record(start.elapsed().as_nanos() as u64);
        self.write_calls.fetch_add(1, Relaxed);
        self.write_pages.fetch_add((bytes.len() / PAGE_SIZE) as u64, Relaxed);
        self.errors.fetch_add(result.is_err() as u64, Relaxed);
        result
    }
    fn read(&self, first: u32, bytes: &mut [u8]) -> Result<(), Errno> {
        self.read_part(first, 0, bytes)
    }
    fn read_part(&self, first: u32, skip: usize, bytes: &mut [u8]) -> Result<(), Errno> {
        let start = Instant::now();
        let result = self.inner.read_part(first, skip, bytes);
        self.note_read(start, bytes.len(), result.is_err() as usize);
        result
    }
    fn read_many(&self, requests: &mut [ReadRequest<'_>]) {
        let start = Instant::now();
        self.inner.read_many(requests);
        let bytes = requests.iter().map(|r| r.buf.len()).sum();
        self.note_read(start, bytes, requests.iter().filter(|r| r.result.is_err()).count());
    }
    fn discard(&self, first: u32, count: u32) -> Result<(), Errno> {
        self.discarded.fetch_add(count as u64, Relaxed);
        self.inner.discard(first, count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ram::RamDevice;

    fn page() -> [u8; PAGE_SIZE] {
        [5; PAGE_SIZE]
    }

    #[test]
    fn fail_counts_from_the_moment_it_is_set() {
        let device = Fail::new(RamDevice::new("ram", 8));
        device.write(0, &page()).unwrap();
        device.fail_writes(When::Nth(1), Errno::NO_SPACE);
        assert_eq!(device.write(0, &page()), Ok(()));
        assert_eq!(device.write(0, &page()), Err(Errno::NO_SPACE));
        assert_eq!(device.write(0, &page()), Ok(()));
        device.fail_reads(When::From(1), Errno::IO);
        let mut buffers = [page(); 3];
        let mut requests: Vec<_> = buffers.iter_mut().map(|b| ReadRequest::new(0, b)).collect();
        device.read_many(&mut requests);
        let results: Vec<_> = requests.iter().map(|r| r.result).collect();
        assert_eq!(results, [Ok(()), Err(Errno::IO), Err(Errno::IO)]);
    }

    #[test]
    fn corrupt_flips_one_bit_as_often_as_asked() {
        let device = Corrupt::new(RamDevice::new("ram", 8));
        device.corrupt(1, 9, 1);
        let mut back = [0; 3 * PAGE_SIZE];
        device.read(0, &mut back).unwrap();
        assert_eq!(back[PAGE_SIZE + 1], 2);
        assert_eq!(back.iter().map(|b| b.count_ones()).sum::<u32>(), 1);
        device.read(0, &mut back).unwrap();
        assert_eq!(back[PAGE_SIZE + 1], 0);
    }

    #[test]
    fn stats_and_delay_stack() {
        let device = Stats::new(Delay::new(RamDevice::new("ram", 8), Duration::from_millis(1), Duration::ZERO));
        device.write(2, &page()).unwrap();
        let mut back = [0; 2 * PAGE_SIZE];
        device.read(2, &mut back).unwrap();
        assert!(device.read(7, &mut back).is_err());
        device.discard(0, 3).unwrap();
        let seen = device.counters();
        assert_eq!((seen.read_calls, seen.read_pages, seen.write_calls, seen.write_pages), (2, 4, 1, 1));
        assert_eq!((seen.discarded, seen.errors), (3, 1));
        assert!(seen.read_time.p50_ns >= 1_000_000);
        assert!(device.class().latency >= Duration::from_millis(1));
    }
}
