//! The readers: bring pages from devices. They block, so the owners do not.
//!
//! Each device has a *lane*: a queue of reads and threads that serve it, so that a slow device keeps nobody waiting for a
//! fast one. Each thread has one read in flight; there are as many as the device's round trip makes worth having, some more
//! when reads queue up, and each costs two pages of stack. A read brings up to 64 pages into a buffer of the reserve
//! ([`uswap_core::Reserve`]), from which the owner installs them: no byte is copied in between, and nothing allocates.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use uswap_core::util::growth::{Growth, during};
use uswap_core::{Lease, PAGE_SIZE, Reserve};
use uswap_store::{LoadScratch, PageLoad};
use uswap_sys::Reservation;
use uswap_sys::process::affinity::Processors;

use crate::pager::address_space::AddressSpace;
use crate::pager::context::{EngineContext, Message};
use crate::pager::io::bounded_queue::Jobs;
use crate::pager::space::id::SpaceId;

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
/// Pages that are read ahead for each microsecond of a round trip: a program that consumes 800 MB/s does not wait.
const PAGES_PER_200_US: u32 = 40;
/// Bounds of that: three reads are under way at least, so that the next is asked for while two others come.
const MIN_AHEAD: u32 = 192;
const MAX_AHEAD: u32 = 2048;

/// Where a read puts its pages.
pub struct ReadBuffer {
    memory: Reservation,
    /// The pages, and once they are read what became of each; the n-th lies in the n-th page of the buffer.
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
    /// The processor on which the one thread waits that asks for it: it should be read there (`affinity.rs`).
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
    /// Make a queue for an owner ([`crate::pager::io::direct_reads`]).
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

/// Opens the lane of a device that the store has. The reserve grows to what a device of its kind needs: at once for one
/// that is far away or while memory is managed, else by [`prepare`].
///
/// # Errors
/// No memory, no thread.
pub fn open<M: AddressSpace>(shared: &Arc<EngineContext<M>>, device: u8) -> std::io::Result<()> {
    let Some(class) = shared.store.class_of(device) else { return Ok(()) };
    let readers = &shared.readers;
    let far = is_far(shared, device);
    if far {
        readers.far.store(true, Relaxed);
    }
    readers.wanted.fetch_max(wanted_pages(shared.budget.limit(), far), SeqCst);
    let few = if far { 2 * FEW } else { FEW };
    let threads = (class.latency.as_micros() / PER_THREAD.as_micros()) as u32;
    let lane = Lane {
        jobs: Jobs::new(MAX_QUEUED),
        first_threads: if readers.one { 1 } else { threads.clamp(few, MANY) },
        threads: AtomicU32::new(0),
        in_flight: AtomicU32::new(0),
        latency: AtomicU64::new(class.latency.as_micros() as u64),
    };
    let _ = readers.lanes[usize::from(device)].set(lane);
    if far || readers.managing.load(SeqCst) { equip(shared) } else { Ok(()) }
}

/// Memory begins to be managed: from now on there is something to read. What devices nearby need for that is made now
/// and not at the start, so that a run that is never short of memory does not pay for it.
///
/// # Errors
/// No memory, no thread.
pub fn prepare<M: AddressSpace>(shared: &Arc<EngineContext<M>>) -> std::io::Result<()> {
    if shared.readers.managing.swap(true, SeqCst) { Ok(()) } else { equip(shared) }
}

/// Buffers and threads for all lanes that are open.
fn equip<M: AddressSpace>(shared: &Arc<EngineContext<M>>) -> std::io::Result<()> {
    let readers = &shared.readers;
    let _one_at_a_time = readers.equipping.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    grow_reserve(readers, readers.wanted.load(SeqCst))?;
    for (device, lane) in readers.lanes.iter().map_while(OnceLock::get).enumerate() {
        while lane.threads.load(SeqCst) < lane.first_threads {
            add_thread(shared, device as u8)?;
        }
    }
    Ok(())
}

/// Where reads wait for threads there is one more. To be called now and then.
pub fn follow_load<M: AddressSpace>(shared: &Arc<EngineContext<M>>) {
    for (device, lane) in shared.readers.lanes.iter().map_while(OnceLock::get).enumerate() {
        if lane.jobs.waiting() > 0 && lane.threads.load(Relaxed) < MANY && !shared.readers.one {
            // Without it the others serve what waits.
            let _ = add_thread(shared, device as u8);
        }
    }
    shared.readers.reserve.forget_wants();
}

/// Whether the device is on the network, or as slow as if it were.
pub fn is_far<M: AddressSpace>(shared: &EngineContext<M>, device: u8) -> bool {
    let slow = shared.store.class_of(device).is_some_and(|class| class.latency >= FAR);
    slow || shared.store.is_networked(device)
}

/// Pages that the reserve shall have, beside a budget of so many pages.
fn wanted_pages(budget: i64, far: bool) -> u32 {
    let (part, most) = if far { (32, 4096) } else { (128, 1024) };
    (budget / part).clamp(256, most) as u32
}

/// Makes buffers until there are so many pages of them. They are touched here, so that they are there (and locked) when
/// they are needed.
fn grow_reserve(readers: &Readers, pages: u32) -> std::io::Result<()> {
    let missing = pages.saturating_sub(readers.reserve.usage().total);
    for (size, part) in SIZES {
        let count = missing / part / size;
        if count == 0 {
            continue;
        }
        let bytes = size as usize * PAGE_SIZE;
        let pieces = Reservation::in_pieces(count as usize * bytes, bytes)?;
        let buffer = |mut memory: Reservation| {
            memory.bytes_mut().fill(0);
            ReadBuffer { memory, pages: Vec::with_capacity(size as usize) }
        };
        readers.reserve.add(size, pieces.map(buffer).collect());
    }
    Ok(())
}

fn add_thread<M: AddressSpace>(shared: &Arc<EngineContext<M>>, device: u8) -> std::io::Result<()> {
    let number = shared.readers.lanes[usize::from(device)].get().map_or(0, |lane| lane.threads.fetch_add(1, SeqCst));
    let shared = shared.clone();
    let thread = std::thread::Builder::new().name(format!("reader-{device}-{number}")).stack_size(128 << 10);
    thread.spawn(move || run(&shared, device)).map(drop)
}

/// Where a reader runs. A thread that waits for a device, its owner and the reader never want the processor at the same
/// time: on one processor what passes between them are plain switches, on several each step is an interrupt to a processor
/// that may sleep. Found for each read anew, so that a reader follows; what is read ahead is read where it disturbs nobody.
struct Seat {
    home: Option<Processors>,
    now: Option<u32>,
}

impl Default for Seat {
    fn default() -> Self {
        Self { home: Processors::of(0).ok(), now: None }
    }
}

impl Seat {
    fn change(&mut self, wanted: Option<u32>) {
        if self.now == wanted {
            return;
        }
        // Refused where the cpuset changed: then the kernel has moved the thread already.
        let _ = wanted.and_then(Processors::only).or(self.home).map(|place| place.confine(0));
        self.now = wanted;
    }
}

/// Serves the reads of a device until it has gone.
fn run<M: AddressSpace>(shared: &EngineContext<M>, device: u8) {
    let Some(lane) = shared.readers.lanes[usize::from(device)].get() else { return };
    let mut scratch = LoadScratch::default();
    let mut seat = Seat::default();
    shared.faults.serve_without_growth();
    while let Some(job) = lane.jobs.take() {
        let mut read = match job {
            Job::Read(read) => read,
            Job::MakeQueue { owner } => {
                let queue = during(Growth::Devices, || shared.store.read_queue(device));
                shared.mailboxes[owner].post(Message::Queue { device, queue });
                continue;
            }
        };
        seat.change(read.beside);
        lane.in_flight.fetch_add(1, Relaxed);
        let begun = Instant::now();
        let ReadBuffer { memory, pages } = &mut *read.buffer;
        shared.store.load_pages(pages, memory.bytes_mut(), &mut scratch);
        let (took, before) = (begun.elapsed().as_micros() as u64, lane.latency.load(Relaxed));
        lane.latency.store((before * 15 + took) / 16, Relaxed);
        lane.in_flight.fetch_sub(1, Relaxed);
        let owner = read.owner;
        shared.mailboxes[owner].post(Message::Read(read));
    }
}
