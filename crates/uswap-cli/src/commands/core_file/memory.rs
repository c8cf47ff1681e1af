//! Copies the memory of a stopped process, as the program would read it, into the core file.
//!
//! **No page is lost.** Evictions go on meanwhile, so the order matters: first the present pages
//! are read, then the run is asked for the missing ones. If a page is evicted in between, the
//! answer contains it; if a page is on its way, the answer names it, and it is looked for again; if
//! the answer does not name a page, that page was missing and is evicted nowhere: it reads as
//! zeros.

use std::fs::File;
use std::io::IsTerminal;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};
use uswap_core::PAGE;

use uswap_core::util::size::human;
use uswap_run::page_answer::{Answered, Named};
use uswap_sys::procfs::pagemap::{Pagemap, PresentRun};

use super::file::CoreFile;
use super::mappings::{Content, CoreMapping};
use super::source::Source;
use super::{CoreFailure, look_for_interrupt, refused};

/// Number of bytes that are read at a time.
const PIECE: u64 = 2 << 20;
/// Maximum time for which a page may be on its way, or an address space may be changing.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(1);
/// Interval between two progress lines.
const TELLING: Duration = Duration::from_millis(200);

/// Number of bytes that were copied.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// Bytes of all pages of the program that were copied, present or evicted.
    pub copied: u64,
    /// Bytes of the evicted pages among them.
    pub evicted: u64,
}

/// Copies one mapping after the other.
pub struct Copier<'a> {
    memory: File,
    pagemap: Pagemap,
    source: &'a mut Source,
    file: &'a CoreFile,
    buffer: Vec<u8>,
    /// For each page of the piece, whether it was read.
    read: Vec<bool>,
    /// Addresses of pages that are on their way.
    moving: Vec<u64>,
    tally: Tally,
    told: Instant,
}

/// A part of a mapping, and its place in the file.
#[derive(Clone, Copy)]
struct MemoryPiece {
    start: u64,
    end: u64,
    /// Offset in the file minus the address (it can be negative).
    shift: u64,
    /// Whether the mapping is registered with a userfaultfd for missing pages.
    is_registered: bool,
}

impl MemoryPiece {
    fn place(&self, address: u64) -> u64 {
        address.wrapping_add(self.shift)
    }

    fn index(&self, address: u64) -> usize {
        ((address - self.start) / PAGE) as usize
    }
}

impl<'a> Copier<'a> {
    /// A copier that reads the memory through a thread of the process.
    ///
    /// # Errors
    /// A message for the user: the memory may not be read.
    pub fn new(thread: u32, source: &'a mut Source, file: &'a CoreFile) -> Result<Self, String> {
        let failed = |error| format!("the memory of thread {thread} cannot be read: {error}");
        let memory = File::open(format!("/proc/{thread}/mem")).map_err(failed)?;
        let pagemap = Pagemap::open(thread).map_err(failed)?;
        let (buffer, read) = (vec![0; PIECE as usize], Vec::new());
        let (moving, tally) = (Vec::new(), Tally::default());
        Ok(Self { memory, pagemap, source, file, buffer, read, moving, tally, told: Instant::now() })
    }

    /// Copies a mapping to the offset of its segment. Returns how many bytes of it the file has.
    ///
    /// # Errors
    /// A message for the user, and an exit status.
    pub fn copy(&mut self, mapping: &CoreMapping, content: Content, begins: u64) -> Result<u64, CoreFailure> {
        let shift = begins.wrapping_sub(mapping.start);
        let whole = MemoryPiece { start: mapping.start, end: mapping.end, shift, is_registered: mapping.is_registered };
        match content {
            Content::Nothing => return Ok(0),
            Content::Header => return self.copy_header(&whole),
            Content::Own | Content::Whole => {}
        }
        let before = self.tally.copied;
        let mut at = whole.start;
        while at < whole.end {
            look_for_interrupt()?;
            at = match content {
                Content::Own => self.copy_own(&MemoryPiece { start: at, ..whole })?,
                _ => self.copy_all(&MemoryPiece { start: at, end: whole.end.min(at + PIECE), ..whole })?,
            };
            self.tell();
        }
        // With its pages, a reservation would make the file look as large as the reservation.
        let is_empty = mapping.is_reserved() && self.tally.copied == before;
        Ok(if is_empty { 0 } else { mapping.end - mapping.start })
    }

    /// Ends the copy; returns the counts.
    pub fn end(self) -> Tally {
        if std::io::stderr().is_terminal() {
            eprint!("\r\x1b[K");
        }
        self.tally
    }

    /// Copies the first page of a mapped file if it is an ELF file: this page contains the build
    /// id.
    fn copy_header(&mut self, piece: &MemoryPiece) -> Result<u64, CoreFailure> {
        let page = &mut self.buffer[..PAGE as usize];
        if self.memory.read_exact_at(page, piece.start).is_err() || !page.starts_with(b"\x7fELF") {
            return Ok(0);
        }
        self.file.write_pages(piece.place(piece.start), page).map_err(refused)?;
        Ok(PAGE)
    }

    /// Copies the present and the evicted pages at the beginning of a piece. Returns the address up
    /// to which it has copied.
    fn copy_own(&mut self, piece: &MemoryPiece) -> Result<u64, CoreFailure> {
        let mut runs = [PresentRun::default(); 64];
        let scanned = self.pagemap.present(piece.start, piece.end, &mut runs);
        let (count, walked) = scanned.map_err(|error| refused(format!("what is in memory cannot be told: {error}")))?;
        let first = runs[..count].first().map_or(walked, |run| run.start);
        if first >= piece.start + PIECE {
            // There is no present page for a long distance, which is not checked page by page.
            self.read.clear();
            self.ask(&MemoryPiece { end: first, ..*piece })?;
            return Ok(first);
        }
        let end = walked.min(piece.start + PIECE).min(piece.end);
        let piece = MemoryPiece { end, ..*piece };
        self.begin(&piece);
        for run in &runs[..count] {
            self.read_run(&piece, run.start, run.end.min(end))?;
        }
        self.finish(&piece)
    }

    /// Copies a piece by reading all of it.
    fn copy_all(&mut self, piece: &MemoryPiece) -> Result<u64, CoreFailure> {
        self.begin(piece);
        self.read_run(piece, piece.start, piece.end)?;
        self.finish(piece)
    }

    fn begin(&mut self, piece: &MemoryPiece) {
        self.read.clear();
        self.read.resize(piece.index(piece.end), false);
    }

    /// Reads the present pages of a stretch and writes them. Pages that cannot be read are left to
    /// the run.
    fn read_run(&mut self, piece: &MemoryPiece, start: u64, end: u64) -> Result<(), CoreFailure> {
        let mut at = start;
        while at < end {
            let bytes = &mut self.buffer[..(end - at) as usize];
            let pages = match self.memory.read_at(bytes, at) {
                Ok(0) => return Err(refused("its memory is gone".into())),
                Ok(n) => n as u64 / PAGE,
                Err(_) => 0,
            };
            if pages == 0 {
                at += PAGE;
                continue;
            }
            let bytes = &self.buffer[..(pages * PAGE) as usize];
            self.file.write_pages(piece.place(at), bytes).map_err(refused)?;
            let first = piece.index(at);
            self.read[first..first + pages as usize].fill(true);
            self.tally.copied += pages * PAGE;
            at += pages * PAGE;
        }
        Ok(())
    }

    /// Asks the run for the pages that were not read. Returns the end of the piece.
    fn finish(&mut self, piece: &MemoryPiece) -> Result<u64, CoreFailure> {
        let missing = |read: &bool| !read;
        if let (Some(first), Some(last)) = (self.read.iter().position(missing), self.read.iter().rposition(missing)) {
            let address = |index: usize| piece.start + index as u64 * PAGE;
            let (start, end) = (address(first), address(last + 1));
            self.ask_range(piece, start, end)?;
        }
        Ok(piece.end)
    }

    /// Asks the run for all pages of a piece in which none is present.
    fn ask(&mut self, piece: &MemoryPiece) -> Result<(), CoreFailure> {
        self.ask_range(piece, piece.start, piece.end)
    }

    fn ask_range(&mut self, piece: &MemoryPiece, start: u64, end: u64) -> Result<(), CoreFailure> {
        self.moving.clear();
        let mut next = start;
        let mut deadline = Instant::now() + SETTLE_TIMEOUT;
        while next < end {
            let header = self.source.ask(next, end).map_err(refused)?;
            match header.state {
                Answered::Done => {
                    self.take(piece)?;
                    deadline = Instant::now() + SETTLE_TIMEOUT;
                    next = header.next;
                }
                // No run manages the mapping, so none of its pages is evicted.
                Answered::Unknown if !piece.is_registered => return Ok(()),
                state => wait(deadline, state)?,
            }
        }
        for page in std::mem::take(&mut self.moving) {
            self.settle(piece, page)?;
        }
        Ok(())
    }

    /// Writes those pages of an answer that were not read.
    fn take(&mut self, piece: &MemoryPiece) -> Result<(), CoreFailure> {
        let mut bytes = self.source.bytes.chunks_exact(PAGE as usize);
        for named in &self.source.named {
            let is_read = |page: u64| self.read.get(piece.index(page)).copied().unwrap_or(false);
            match *named {
                Named::Given(page) => {
                    let bytes = bytes.next().unwrap_or_default();
                    if !is_read(page) {
                        self.file.write_pages(piece.place(page), bytes).map_err(refused)?;
                        self.tally.copied += PAGE;
                        self.tally.evicted += PAGE;
                    }
                }
                Named::Moving(page) if !is_read(page) => self.moving.push(page),
                Named::Lost(page) if !is_read(page) => {
                    let text =
                        format!("the page at {page:#x} cannot be read: its bytes are lost; there is no core file");
                    return Err(refused(text));
                }
                Named::Moving(_) | Named::Lost(_) => {}
            }
        }
        Ok(())
    }

    /// Looks for a page that is on its way, in both places in turn, until it is found.
    fn settle(&mut self, piece: &MemoryPiece, page: u64) -> Result<(), CoreFailure> {
        let piece = MemoryPiece { start: page, end: page + PAGE, ..*piece };
        let deadline = Instant::now() + SETTLE_TIMEOUT;
        loop {
            look_for_interrupt()?;
            self.begin(&piece);
            self.read_run(&piece, piece.start, piece.end)?;
            if self.read[0] {
                return Ok(());
            }
            let header = self.source.ask(piece.start, piece.end).map_err(refused)?;
            if header.state == Answered::Done {
                self.moving.clear();
                self.take(&piece)?;
                if self.moving.is_empty() {
                    return Ok(());
                }
            }
            wait(deadline, Answered::Later)?;
        }
    }

    /// Shows progress on one line that is overwritten, on a terminal only.
    fn tell(&mut self) {
        if self.told.elapsed() >= TELLING && std::io::stderr().is_terminal() {
            self.told = Instant::now();
            eprint!("\r{} written ", human(self.tally.copied));
        }
    }
}

fn wait(deadline: Instant, state: Answered) -> Result<(), CoreFailure> {
    if Instant::now() < deadline {
        std::thread::sleep(PAUSE);
        return look_for_interrupt();
    }
    Err(refused(match state {
        Answered::Unknown => "the run does not know the memory of this process; there is no core file".into(),
        _ => "its pages do not come to rest; there is no core file".into(),
    }))
}
