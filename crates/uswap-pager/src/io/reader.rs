//! The readers: bring pages from devices. They block, so the owners do not.
//!
//! Each device has a *lane*: a queue of reads and threads that serve it, so that a slow device
//! keeps nobody waiting for a fast one. Each thread has one read in flight; there are as many as
//! the device's round trip makes worth having, some more when reads queue up, and each costs two
//! pages of stack. A read brings up to 64 pages into a buffer of the reserve
//! ([`uswap_core::Reserve`]), from which the owner installs them: no byte is copied in between, and
//! nothing allocates.

pub mod threads;

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use uswap_core::{Lease, PAGE_SIZE, Reserve};
use uswap_store::{LoadScratch, PageLoad};
use uswap_sys::Reservation;

use crate::io::bounded_queue::Jobs;
use crate::space::id::SpaceId;

/// Devices in the life of a run.
const MAX_LANES: usize = 255;
/// Reads that wait for a thread, at most.
const MAX_QUEUED: usize = 256;
/// Threads of a lane.
const FEW: u32 = 4;
const MANY: u32 = 32;
/// A device with a longer round trip is far away.
const FAR: Duration = Duration::from_micros(300);
/// A thread more is worth having for each so much of a round trip.
const PER_THREAD: Duration = Duration::from_micros(25);
/// Buffers of the reserve: pages of each, and which part of the whole they are.
const SIZES: [(u32, u32); 3] = [(4, 4), (16, 4), (64, 2)];
/// Pages that are read ahead for each microsecond of a round trip: a program that consumes 800 MB/s
/// does not wait.
const PAGES_PER_200_US: u32 = 40;
/// Bounds of that: three reads are under way at least, so that the next is asked for while two
/// others come.
const MIN_AHEAD: u32 = 192;
const MAX_AHEAD: u32 = 2048;

/// Where a read puts its pages.
pub struct ReadBuffer {
    memory: Reservation,
    /// The pages, and once they are read what became of each; the n-th lies in the n-th page of the
    /// buffer.
    pub pages: Vec<PageLoad>,
}

impl ReadBuffer {
    /// Pages that fit.
    pub fn capacity(&self) -> usize {
        self.memory.bytes().len() / PAGE_SIZE
    }

    /// Bytes that fit.
    pub fn room(&self) -> usize {
        self.memory.bytes().len()
    }

    /// The pages, and room for their bytes.
    pub fn parts(&mut self) -> (&mut [PageLoad], &mut [u8]) {
        (&mut self.pages, self.memory.bytes_mut())
    }

    /// Takes the memory away, for a device that fills it. It has to be put back.
    pub fn take_memory(&mut self) -> Reservation {
        std::mem::replace(&mut self.memory, Reservation::none())
    }

    /// Puts it back.
    pub fn put_memory(&mut self, memory: Reservation) {
        self.memory = memory;
    }

    /// The bytes of some pages.
    pub fn bytes(&self, pages: std::ops::Range<usize>) -> &[u8] {
        &self.memory.bytes()[pages.start * PAGE_SIZE..pages.end * PAGE_SIZE]
    }
}

/// Why pages are read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// A fault asked for them.
    Fault,
    /// Faults are expected to (`readahead_cache.rs`).
    Ahead,
    /// Their device is being emptied (`unuse.rs`).
    BringIn,
}

/// A read of some pages, on its way there or back.
pub struct Read {
    /// Whose.
    pub space: SpaceId,
    /// Owner to be told.
    pub owner: usize,
    /// The pages and room for them; the one that faulted is the first.
    pub buffer: Lease<ReadBuffer>,
    /// When the fault was read.
    pub since: Instant,
    /// What it is for.
    pub purpose: Purpose,
    /// The processor on which the one thread waits that asks for it: it should be read there
    /// (`affinity.rs`).
    pub beside: Option<u32>,
}

impl std::fmt::Debug for Read {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "read of {} pages for space {}", self.buffer.pages.len(), self.space)
    }
}

/// What the threads of a lane do.
#[derive(Debug)]
pub enum Job {
    /// Bring pages.
    Read(Read),
    /// Make a queue for an owner ([`crate::io::direct_reads`]).
    MakeQueue {
        /// Its number.
        owner: usize,
    },
}

/// What serves one device.
struct Lane {
    jobs: Jobs<Job>,
    /// Threads to begin with.
    first_threads: u32,
    threads: AtomicU32,
    /// Reads that a thread is at.
    in_flight: AtomicU32,
    /// Time of a read in microseconds, smoothed.
    latency: AtomicU64,
}

/// The lanes of all devices, by the device's number.
pub struct Readers {
    lanes: Box<[OnceLock<Lane>]>,
    reserve: Reserve<ReadBuffer>,
    /// Test: one read in flight for each device.
    one: bool,
    far: AtomicBool,
    /// Pages that the reserve shall have once memory is managed.
    wanted: AtomicU32,
    managing: AtomicBool,
    equipping: Mutex<()>,
}

impl Readers {
    /// No lane yet, and an empty reserve.
    pub fn new(one: bool) -> Self {
        let reserve = Reserve::new(SIZES.iter().map(|(pages, _)| (*pages, Vec::new())).collect());
        Self {
            lanes: (0..MAX_LANES).map(|_| OnceLock::new()).collect(),
            reserve,
            one,
            far: AtomicBool::new(false),
            wanted: AtomicU32::new(0),
            managing: AtomicBool::new(false),
            equipping: Mutex::new(()),
        }
    }

    /// The buffers of reads.
    pub fn reserve(&self) -> &Reserve<ReadBuffer> {
        &self.reserve
    }

    /// Hands something over to the threads of a device.
    ///
    /// # Errors
    /// The job, when the device has too many already or has gone.
    pub fn push(&self, device: u8, job: Job) -> Result<(), Job> {
        match self.lanes[usize::from(device)].get() {
            Some(lane) => lane.jobs.push(job),
            None => Err(job),
        }
    }

    /// Pages that a stream of faults shall be ahead of its program, at most.
    pub fn most_ahead(&self, device: u8) -> u32 {
        let latency = self.lanes[usize::from(device)].get().map_or(0, |lane| lane.latency.load(Relaxed));
        (latency as u32 / 200 * PAGES_PER_200_US).clamp(MIN_AHEAD, MAX_AHEAD)
    }

    /// Whether a device is so far away that its server may have to be waited for.
    pub fn is_far(&self) -> bool {
        self.far.load(Relaxed)
    }

    /// Reads in flight and reads that wait, for each lane that is open.
    pub fn in_flight(&self) -> impl Iterator<Item = (u32, usize, Duration)> + '_ {
        let open = self.lanes.iter().map_while(OnceLock::get);
        open.map(|lane| {
            let latency = Duration::from_micros(lane.latency.load(Relaxed));
            (lane.in_flight.load(Relaxed), lane.jobs.waiting(), latency)
        })
    }

    /// Reads that an owner has asked for, or got, past the threads.
    pub fn note_queued(&self, device: u8, more: i32) {
        if let Some(lane) = self.lanes[usize::from(device)].get() {
            lane.in_flight.fetch_add(more as u32, Relaxed);
        }
    }

    /// The device has gone: its threads leave.
    pub fn close(&self, device: u8) {
        if let Some(lane) = self.lanes[usize::from(device)].get() {
            lane.jobs.close();
        }
    }
}
