//! Swap slots in a file or on a block device.
//!
//! Transfers bypass the page cache (O_DIRECT) where the file system allows it, so that swapping out
//! does not fill the memory that it is to free. Where io_uring works, a batch of reads costs one
//! system call; where io_uring is forbidden (many container seccomp profiles), positioned reads and
//! writes do the same one by one.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use uswap_core::PAGE_SIZE;
use uswap_core::util::growth::{Growth, during};
use uswap_sys::{AlignedBuf, IoRing, RingOp, direct_alignment, punch_hole};

use crate::device::{Device, DeviceClass, Errno, ReadRequest, check_part, check_range};
use crate::file_queue::FileQueue;
use crate::open::{IoBackend, OpenError, Opened, open_named, open_unnamed};
use crate::queue::ReadQueue;

/// Transfers in flight per ring.
const RING_DEPTH: u32 = 64;
/// Smallest sector size in bytes: no disk has smaller sectors.
const MIN_SECTOR: usize = 512;
const CLUSTER_BYTES: u64 = 512 * PAGE_SIZE as u64;

/// A file or block device.
pub struct FileDevice {
    name: String,
    file: File,
    base: u64,
    slots: u32,
    direct: bool,
    /// Size in bytes to whose multiples transfers must be aligned.
    sector: usize,
    block: bool,
    named: bool,
    /// Idle rings, as many as threads that ever used the device at the same time; `None`:
    /// positioned transfers.
    rings: Option<Mutex<Vec<IoRing>>>,
    can_discard: AtomicBool,
    /// The content stays when the file is closed.
    kept: AtomicBool,
}

impl FileDevice {
    /// A sparse file without a name in `directory`; it vanishes when the process ends.
    ///
    /// # Errors
    /// [`OpenError`]; a directory on tmpfs or ramfs is refused.
    pub fn unnamed(directory: &Path, bytes: u64, backend: IoBackend) -> Result<Self, OpenError> {
        let opened = open_unnamed(directory, bytes)?;
        Self::build(format!("{}/(unnamed)", directory.display()), directory, opened, false, backend)
    }

    /// Opens the block device at `path`, or the file (sparse, made if missing). `bytes` is the
    /// wanted size; without it the existing size counts. The first page is reserved for a
    /// signature; a file or device that holds foreign data is refused.
    ///
    /// # Errors
    /// [`OpenError`] names the reason.
    pub fn open(path: &Path, bytes: Option<u64>, backend: IoBackend) -> Result<Self, OpenError> {
        let opened = open_named(path, bytes)?;
        Self::build(path.display().to_string(), path, opened, true, backend)
    }

    fn build(name: String, path: &Path, opened: Opened, named: bool, backend: IoBackend) -> Result<Self, OpenError> {
        let Opened { file, direct, length, base } = opened;
        if length < CLUSTER_BYTES {
            return Err(OpenError::TooSmall(path.into()));
        }
        let slots = (length / PAGE_SIZE as u64).min(u32::MAX as u64 - 1) as u32;
        let block = file.metadata().is_ok_and(|m| m.file_type().is_block_device());
        let rings = match (backend, try_ring(&file)) {
            (IoBackend::Positioned, _) | (IoBackend::Auto, Err(_)) => None,
            (IoBackend::Uring, Err(e)) => return Err(OpenError::NoUring(path.into(), e)),
            (_, Ok(ring)) => Some(Mutex::new(vec![ring])),
        };
        let sector = sector_of(&file, direct);
        let (can_discard, kept) = (AtomicBool::new(true), AtomicBool::new(false));
        Ok(Self { name, file, base, slots, direct, sector, block, named, rings, can_discard, kept })
    }

    /// Whether transfers bypass the page cache. If not, the kernel caches the swapped pages, in
    /// memory that counts.
    pub fn is_direct(&self) -> bool {
        self.direct
    }

    /// How transfers are made; never `Auto`.
    pub fn backend(&self) -> IoBackend {
        if self.rings.is_some() { IoBackend::Uring } else { IoBackend::Positioned }
    }

    fn offset(&self, slot: u32) -> u64 {
        self.base + slot as u64 * PAGE_SIZE as u64
    }

    /// An idle ring, or a new one when all are in use.
    fn take_ring(&self) -> Option<IoRing> {
        let idle = self.rings.as_ref()?.lock().expect("no panic under this lock").pop();
        idle.or_else(|| during(Growth::Devices, || IoRing::new(RING_DEPTH).ok()))
    }

    fn put_ring(&self, ring: IoRing) {
        if let Some(rings) = &self.rings {
            let mut rings = rings.lock().expect("no panic under this lock");
            during(Growth::Devices, || rings.push(ring));
        }
    }

    /// Completes a transfer that returned fewer bytes than `buffer` holds, by positioned reads,
    /// which return the error if there is one.
    fn finish_read(&self, request: &mut ReadRequest<'_>, result: i32) -> Result<(), Errno> {
        match result {
            n if n >= 0 && n as usize == request.buf.len() => Ok(()),
            n if n >= 0 || -n == libc::EAGAIN || -n == libc::EINTR => {
                Ok(self.file.read_exact_at(request.buf, self.offset(request.slot) + request.skip as u64)?)
            }
            n => Err(Errno(-n)),
        }
    }

    fn read_with(&self, mut ring: IoRing, requests: &mut [ReadRequest<'_>]) {
        for batch in requests.chunks_mut(RING_DEPTH as usize) {
            let mut results = [0; RING_DEPTH as usize];
            let mut ops: [RingOp<'_>; RING_DEPTH as usize] = std::array::from_fn(|_| RingOp::read(0, &mut []));
            let count = batch.len();
            for (op, request) in ops.iter_mut().zip(batch.iter_mut()) {
                *op = RingOp::read(self.offset(request.slot) + request.skip as u64, request.buf);
            }
            ring.run(self.file.as_fd(), &mut ops[..count]);
            results.iter_mut().zip(&ops).for_each(|(to, op)| *to = op.result);
            for (request, result) in batch.iter_mut().zip(results) {
                request.result = self.finish_read(request, result);
            }
        }
        self.put_ring(ring);
    }
}

impl Device for FileDevice {
    fn name(&self) -> &str {
        &self.name
    }

    fn slots(&self) -> u32 {
        self.slots
    }

    fn class(&self) -> DeviceClass {
        DeviceClass { latency: Duration::from_micros(100), best_batch: 32 }
    }

    fn write(&self, first: u32, bytes: &[u8]) -> Result<(), Errno> {
        check_range(first, bytes.len(), self.slots)?;
        let offset = self.offset(first);
        let Some(mut ring) = self.take_ring() else { return Ok(self.file.write_all_at(bytes, offset)?) };
        let mut op = [RingOp::write(offset, bytes)];
        ring.run(self.file.as_fd(), &mut op);
        let result = op[0].result;
        self.put_ring(ring);
        match result {
            n if n >= 0 && n as usize == bytes.len() => Ok(()),
            n if n >= 0 || -n == libc::EAGAIN || -n == libc::EINTR => Ok(self.file.write_all_at(bytes, offset)?),
            n => Err(Errno(-n)),
        }
    }

    fn read(&self, first: u32, bytes: &mut [u8]) -> Result<(), Errno> {
        check_range(first, bytes.len(), self.slots)?;
        // A single transfer gains nothing from a ring.
        Ok(self.file.read_exact_at(bytes, self.offset(first))?)
    }

    fn sector(&self) -> usize {
        self.sector
    }

    fn read_part(&self, first: u32, skip: usize, bytes: &mut [u8]) -> Result<(), Errno> {
        check_part(first, skip, bytes.len(), self.sector, self.slots)?;
        Ok(self.file.read_exact_at(bytes, self.offset(first) + skip as u64)?)
    }

    fn read_many(&self, requests: &mut [ReadRequest<'_>]) {
        let ring = if requests.len() > 1 { self.take_ring() } else { None };
        let inside = requests.iter().all(|r| check_part(r.slot, r.skip, r.buf.len(), self.sector, self.slots).is_ok());
        match ring {
            Some(ring) if inside => self.read_with(ring, requests),
            _ => requests.iter_mut().for_each(|r| r.result = self.read_part(r.slot, r.skip, r.buf)),
        }
    }

    fn read_queue(&self) -> Option<Box<dyn ReadQueue>> {
        self.rings.as_ref()?;
        let file = self.file.try_clone().ok()?;
        let queue = FileQueue::new(file, self.base, self.slots, self.sector).ok()?;
        Some(Box::new(queue))
    }

    fn discard(&self, first: u32, count: u32) -> Result<(), Errno> {
        if !self.can_discard.load(Relaxed) {
            return Ok(());
        }
        check_range(first, count as usize * PAGE_SIZE, self.slots)?;
        let done = punch_hole(self.file.as_fd(), self.offset(first), count as u64 * PAGE_SIZE as u64);
        if done.is_err() {
            self.can_discard.store(false, Relaxed);
        }
        Ok(done?)
    }

    fn keep(&self) -> bool {
        self.kept.store(true, Relaxed);
        self.named
    }
}

impl Drop for FileDevice {
    /// Empties a file that has a name, so that the programs' memory content does not stay in it.
    fn drop(&mut self) {
        if self.named && !self.block && !self.kept.load(Relaxed) {
            let whole = self.slots as u64 * PAGE_SIZE as u64;
            let _ = punch_hole(self.file.as_fd(), self.base, whole);
        }
    }
}

/// The smallest sector that a transfer past the page cache allows; a page where the kernel does not
/// report it; 512 for a file in the page cache.
fn sector_of(file: &File, direct: bool) -> usize {
    if !direct {
        return MIN_SECTOR;
    }
    match direct_alignment(file.as_fd()) {
        Ok(Some(bytes)) => (bytes as usize).next_power_of_two().clamp(MIN_SECTOR, PAGE_SIZE),
        _ => PAGE_SIZE,
    }
}

/// Makes a ring and tests it with a read of `file`: a ring that could be made may still be
/// forbidden to run.
fn try_ring(file: &File) -> io::Result<IoRing> {
    let mut ring = IoRing::new(RING_DEPTH)?;
    let mut page = AlignedBuf::zeroed(PAGE_SIZE);
    let mut op = [RingOp::read(0, &mut page)];
    ring.run(file.as_fd(), &mut op);
    if op[0].result < 0 {
        return Err(io::Error::from_raw_os_error(-op[0].result));
    }
    Ok(ring)
}

#[cfg(test)]
#[path = "file_tests.rs"]
mod tests;
