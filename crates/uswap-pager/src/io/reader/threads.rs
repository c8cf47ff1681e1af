//! The threads that read: making them, lending them buffers, and their work.

use super::*;

use crate::address_space::AddressSpace;
use crate::context::{EngineContext, Message};
use uswap_core::util::growth::{Growth, during};
use uswap_sys::process::affinity::Processors;

/// Opens the lane of a device that the store has. The reserve grows to the size that a device of
/// its kind needs: at once for one that is far away or while memory is managed, otherwise in
/// [`prepare`].
///
/// # Errors
/// There is no memory, or no thread can be made.
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

/// Prepares the readers when memory begins to be managed: from now on there are pages to read.
/// Buffers and threads for devices nearby are made here and not at the start, so that a run that is
/// never short of memory does not pay for them.
///
/// # Errors
/// There is no memory, or no thread can be made.
pub fn prepare<M: AddressSpace>(shared: &Arc<EngineContext<M>>) -> std::io::Result<()> {
    if shared.readers.managing.swap(true, SeqCst) { Ok(()) } else { equip(shared) }
}

/// Makes buffers and threads for all open lanes.
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

/// Adds a thread to each lane in which reads wait for threads. To be called now and then.
pub fn follow_load<M: AddressSpace>(shared: &Arc<EngineContext<M>>) {
    for (device, lane) in shared.readers.lanes.iter().map_while(OnceLock::get).enumerate() {
        if lane.jobs.waiting() > 0 && lane.threads.load(Relaxed) < MANY && !shared.readers.one {
            // Without the new thread the others serve the reads that wait.
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

/// Pages that the reserve is to have, with a budget of `budget` pages.
fn wanted_pages(budget: i64, far: bool) -> u32 {
    let (part, most) = if far { (32, 4096) } else { (128, 1024) };
    (budget / part).clamp(256, most) as u32
}

/// Makes buffers until the reserve has this many pages. The buffers are touched here, so that they
/// are present (and locked) when they are needed.
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

/// The processor on which a reader runs. The thread that waits for a device, its pager and the
/// reader never need the processor at the same time: on one processor the steps between them are
/// plain context switches; on several, each step interrupts a processor that may sleep. The
/// processor is chosen for each read anew, so that the reader follows the program; reads ahead run
/// where they disturb no other thread.
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
        // This is refused where the cpuset changed: then the kernel has moved the thread already.
        let _ = wanted.and_then(Processors::only).or(self.home).map(|place| place.confine(0));
        self.now = wanted;
    }
}

/// Serves the reads of a device until it is removed.
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
