//! The readers: threads that read pages from devices. They block, so that the pagers need not.
//!
//! Each device has a *lane*: a queue of reads and threads that serve it, so that a slow device does
//! not delay reads of a fast one. Each thread has one read in flight. The number of threads follows
//! from the device's round trip and grows when reads queue up; each costs two pages of stack. A
//! read brings up to 64 pages into a buffer of the reserve ([`uswap_core::Reserve`]), from which
//! the pager installs them: no byte is copied in between, and nothing allocates.

pub mod threads;

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use uswap_core::{Lease, PAGE_SIZE, Reserve};
use uswap_store::{LoadScratch, PageLoad};
use uswap_sys::Reservation;

use crate::io::bounded_queue::Jobs;
use crate::space::id::SpaceId;

/// Maximum number of devices during a run.
const MAX_LANES: usize = 255;
/// Maximum number of reads that wait for a thread.
const MAX_QUEUED: usize = 256;
/// Smallest and largest number of threads of a lane.
const FEW: u32 = 4;
const MANY: u32 = 32;
/// A device with a longer round trip than this is far away.
const FAR: Duration = Duration::from_micros(300);
/// One more thread is worthwhile for each multiple of this round trip.
const PER_THREAD: Duration = Duration::from_micros(25);
/// Buffers of the reserve: pages of each buffer, and the divisor that gives their part of the
/// whole.
const SIZES: [(u32, u32); 3] = [(4, 4), (16, 4), (64, 2)];
/// Pages that are read ahead for each 200 µs of a round trip, so that a program that consumes 800
/// MB/s does not wait.
const PAGES_PER_200_US: u32 = 40;
/// Bounds of the pages read ahead: at least three reads are under way, so that the next is asked
/// for while two others come.
const MIN_AHEAD: u32 = 192;
const MAX_AHEAD: u32 = 2048;

/// The buffer of a read.
pub struct ReadBuffer {
    memory: Reservation,
    /// The pages, and after the read the outcome for each. The n-th page lies in the n-th page of
    /// the buffer.
    pub pages: Vec<PageLoad>,
}

impl ReadBuffer {
    /// Number of pages that fit.
    pub fn capacity(&self) -> usize {
        self.memory.bytes().len() / PAGE_SIZE
    }

    /// Number of bytes that fit.
    pub fn room(&self) -> usize {
        self.memory.bytes().len()
    }

    /// The pages, and room for their bytes.
    pub fn parts(&mut self) -> (&mut [PageLoad], &mut [u8]) {
        (&mut self.pages, self.memory.bytes_mut())
    }

    /// Takes the memory away, for a device to fill. It must be put back.
    pub fn take_memory(&mut self) -> Reservation {
        std::mem::replace(&mut self.memory, Reservation::none())
    }

    /// Puts the memory back.
    pub fn put_memory(&mut self, memory: Reservation) {
        self.memory = memory;
    }

    /// The bytes of these pages.
    pub fn bytes(&self, pages: std::ops::Range<usize>) -> &[u8] {
        &self.memory.bytes()[pages.start * PAGE_SIZE..pages.end * PAGE_SIZE]
    }
}

/// The reason why pages are read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// A fault asked for them.
    Fault,
    /// Faults are expected to ask for them (`readahead_cache.rs`).
    Ahead,
    /// Their device is being emptied (`unuse.rs`).
    BringIn,
}

/// A read of some pages, on its way to the readers or back.
pub struct Read {
    /// The space of the pages.
    pub space: SpaceId,
    /// The number of the pager that gets the answer.
    pub owner: usize,
    /// The pages, and room for them; the page that faulted is the first.
    pub buffer: Lease<ReadBuffer>,
    /// When the fault was read.
    pub since: Instant,
    /// The purpose of the read.
    pub purpose: Purpose,
    /// The processor of the only thread that waits for the page: the reader should run there
    /// (`affinity.rs`).
    pub beside: Option<u32>,
}

impl std::fmt::Debug for Read {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "read of {} pages for space {}", self.buffer.pages.len(), self.space)
    }
}

/// A job for the threads of a lane.
#[derive(Debug)]
pub enum Job {
    /// Read pages.
    Read(Read),
    /// Make a queue for a pager ([`crate::io::direct_reads`]).
    MakeQueue {
        /// The number of the pager.
        owner: usize,
    },
}

/// The jobs and threads of one device.
struct Lane {
    jobs: Jobs<Job>,
    /// Number of threads to begin with.
    first_threads: u32,
    threads: AtomicU32,
    /// Number of reads that are being executed.
    in_flight: AtomicU32,
    /// Time of a read in microseconds, smoothed.
    latency: AtomicU64,
}

/// The lanes of all devices, by the device's number.
pub struct Readers {
    lanes: Box<[OnceLock<Lane>]>,
    reserve: Reserve<ReadBuffer>,
    /// For tests: one read in flight for each device.
    one: bool,
    far: AtomicBool,
    /// Pages that the reserve is to have once memory is managed.
    wanted: AtomicU32,
    managing: AtomicBool,
    equipping: Mutex<()>,
}

impl Readers {
    /// Readers without lanes, with an empty reserve.
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

    /// Hands a job to the threads of a device.
    ///
    /// # Errors
    /// The job, when the device has too many already or was removed.
    pub fn push(&self, device: u8, job: Job) -> Result<(), Job> {
        match self.lanes[usize::from(device)].get() {
            Some(lane) => lane.jobs.push(job),
            None => Err(job),
        }
    }

    /// Maximum number of pages that are read ahead for a stream of faults.
    pub fn most_ahead(&self, device: u8) -> u32 {
        let latency = self.lanes[usize::from(device)].get().map_or(0, |lane| lane.latency.load(Relaxed));
        (latency as u32 / 200 * PAGES_PER_200_US).clamp(MIN_AHEAD, MAX_AHEAD)
    }

    /// Whether a device is so far away that the pager may have to wait for its server.
    pub fn is_far(&self) -> bool {
        self.far.load(Relaxed)
    }

    /// For each open lane: reads in flight, reads that wait, and the time of a read.
    pub fn in_flight(&self) -> impl Iterator<Item = (u32, usize, Duration)> + '_ {
        let open = self.lanes.iter().map_while(OnceLock::get);
        open.map(|lane| {
            let latency = Duration::from_micros(lane.latency.load(Relaxed));
            (lane.in_flight.load(Relaxed), lane.jobs.waiting(), latency)
        })
    }

    /// Counts reads that a pager has sent to the device itself (or, negative, that have ended).
    pub fn note_queued(&self, device: u8, more: i32) {
        if let Some(lane) = self.lanes[usize::from(device)].get() {
            lane.in_flight.fetch_add(more as u32, Relaxed);
        }
    }

    /// Closes the lane of a device that was removed: its threads end.
    pub fn close(&self, device: u8) {
        if let Some(lane) = self.lanes[usize::from(device)].get() {
            lane.jobs.close();
        }
    }
}
