//! The memory of a stopped process, as the program would read it, copied into the file.
//!
//! **No page is lost.** Evictions go on meanwhile, so the order counts: first what is there is
//! read, then the run is asked about what was missing. A page that is evicted in between is given
//! by the answer; one that is on its way is named, and looked for again; one that the answer does
//! not name was missing and is evicted nowhere: it reads as zeros.

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

/// Read at a time.
const PIECE: u64 = 2 << 20;
/// How long a page may be on its way, or an address space changing.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(1);
/// Between two lines about how far it is.
const TELLING: Duration = Duration::from_millis(200);

/// What was copied, in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// All that the program has: read or evicted.
    pub copied: u64,
    /// Of that, what was evicted.
    pub evicted: u64,
}

/// Copies mapping by mapping.
pub struct Copier<'a> {
    memory: File,
    pagemap: Pagemap,
    source: &'a mut Source,
    file: &'a CoreFile,
    buffer: Vec<u8>,
    /// By page of the piece: it was read.
    read: Vec<bool>,
    /// Pages on their way.
    moving: Vec<u64>,
    tally: Tally,
    told: Instant,
}

/// A part of a mapping, and where it goes.
#[derive(Clone, Copy)]
struct MemoryPiece {
    start: u64,
    end: u64,
    /// What is to be added to an address to have its place in the file (it can be less than
    /// nothing).
    shift: u64,
    /// A userfaultfd is told of missing pages.
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
    /// Reads by way of a thread.
    ///
    /// # Errors
    /// For the user: its memory may not be read.
    pub fn new(thread: u32, source: &'a mut Source, file: &'a CoreFile) -> Result<Self, String> {
        let failed = |error| format!("the memory of thread {thread} cannot be read: {error}");
        let memory = File::open(format!("/proc/{thread}/mem")).map_err(failed)?;
        let pagemap = Pagemap::open(thread).map_err(failed)?;
        let (buffer, read) = (vec![0; PIECE as usize], Vec::new());
        let (moving, tally) = (Vec::new(), Tally::default());
        Ok(Self { memory, pagemap, source, file, buffer, read, moving, tally, told: Instant::now() })
    }

    /// Copies a mapping to where its segment begins. Returns how many bytes of it the file has.
    ///
    /// # Errors
    /// A sentence and a status.
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
        // A reservation would make the file look as large as it.
        let is_empty = mapping.is_reserved() && self.tally.copied == before;
        Ok(if is_empty { 0 } else { mapping.end - mapping.start })
    }

    /// All is copied.
    pub fn end(self) -> Tally {
        if std::io::stderr().is_terminal() {
            eprint!("\r\x1b[K");
        }
        self.tally
    }

    /// The first page of a file, if it is an ELF file's: it has the build id.
    fn copy_header(&mut self, piece: &MemoryPiece) -> Result<u64, CoreFailure> {
        let page = &mut self.buffer[..PAGE as usize];
        if self.memory.read_exact_at(page, piece.start).is_err() || !page.starts_with(b"\x7fELF") {
            return Ok(0);
        }
        self.file.write_pages(piece.place(piece.start), page).map_err(refused)?;
        Ok(PAGE)
    }

    /// Copies what is there and what is evicted at the beginning of a piece. Returns how far it
    /// came.
    fn copy_own(&mut self, piece: &MemoryPiece) -> Result<u64, CoreFailure> {
        let mut runs = [PresentRun::default(); 64];
        let scanned = self.pagemap.present(piece.start, piece.end, &mut runs);
        let (count, walked) = scanned.map_err(|error| refused(format!("what is in memory cannot be told: {error}")))?;
        let first = runs[..count].first().map_or(walked, |run| run.start);
        if first >= piece.start + PIECE {
            // A long way without a page: it is not looked at page by page.
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

    /// Reads what is there of a run, and writes it. What cannot be read is left to the run.
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

    /// Asks about what was not read. Returns the piece's end.
    fn finish(&mut self, piece: &MemoryPiece) -> Result<u64, CoreFailure> {
        let missing = |read: &bool| !read;
        if let (Some(first), Some(last)) = (self.read.iter().position(missing), self.read.iter().rposition(missing)) {
            let address = |index: usize| piece.start + index as u64 * PAGE;
            let (start, end) = (address(first), address(last + 1));
            self.ask_range(piece, start, end)?;
        }
        Ok(piece.end)
    }

    /// Asks about all of a piece of which nothing is there.
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
                // No run looks after it, so nothing is evicted.
                Answered::Unknown if !piece.is_registered => return Ok(()),
                state => wait(deadline, state)?,
            }
        }
        for page in std::mem::take(&mut self.moving) {
            self.settle(piece, page)?;
        }
        Ok(())
    }

    /// Writes the pages of an answer that were not read.
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

    /// A page is on its way: it is looked for where it may be until it is found.
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

    /// One line that is written over, on a terminal only.
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
