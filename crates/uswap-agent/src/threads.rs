//! Pages that a thread needs when it ends: its control block and the robust futexes it holds.
//!
//! When a thread ends, the kernel clears its tid word and walks its robust list *while it is
//! exiting*; if a page is missing then, the kernel skips it instead of waiting for it, and a thread
//! that joins the ended one or waits for its mutex sleeps for ever. Stacks are never managed, but a
//! program may put stacks and mutexes where it likes: so before each round of orders the agent asks
//! every thread for its robust list head, which lies in the control block.

use crate::layout::{CONTROL_BLOCK, TID_WORD};
use crate::syscall::{self, call};
use crate::thread_list::ThreadList;

const MAX_PAGES: usize = 2048;
const MAX_FUTEXES: usize = 64;
const RECENT: usize = 128;
const PROCESS_VM_READV: usize = 310;

/// The pages to leave alone in this round.
pub struct ThreadPages {
    pages: [u64; MAX_PAGES],
    count: usize,
    /// Pages of earlier rounds that are not in this one: a thread that begins and ends between two
    /// rounds is seen by neither, but its control block and its mutexes mostly lie where other
    /// threads had theirs.
    recent: [u64; RECENT],
    next_recent: usize,
    /// /proc/PID/task of this process.
    tasks: i32,
    /// That /proc numbers threads by another pid namespace than ours.
    foreign: bool,
    /// Address of the word in which the engine has left the address of a tid word.
    tid_word: u64,
    /// The kernel refuses our question about some thread: the engine asks instead, and leaves the
    /// answers in the ring.
    hidden: bool,
    /// Not all of these pages are known: every page counts as one of them, and none may be moved.
    all: bool,
}

#[repr(C)]
struct Vector {
    base: u64,
    length: u64,
}

impl ThreadPages {
    /// An empty set; `tasks` is the directory of this process's threads.
    pub fn new(tasks: i32, area: u64) -> Self {
        let ids = namespace_ids(syscall::open_at(tasks, b"../status\0", 0));
        let foreign = ids.is_some_and(|(levels, _)| levels > 1);
        Self {
            pages: [0; MAX_PAGES],
            count: 0,
            recent: [0; RECENT],
            next_recent: 0,
            tasks,
            foreign,
            tid_word: area + TID_WORD,
            hidden: false,
            all: false,
        }
    }

    /// Whether a page of the range is one of them.
    pub fn overlap(&self, address: u64, pages: u32) -> bool {
        if self.all {
            return true;
        }
        let end = address + u64::from(pages) * 4096;
        self.pages[..self.count].iter().chain(&self.recent).any(|page| (address..end).contains(page))
    }

    /// Asks the kernel about all threads again, or takes the answers that the engine has left in
    /// `told`.
    pub fn collect(&mut self, told: &ThreadList) {
        (self.count, self.all) = (0, false);
        // SAFETY: the header page is ours and always present.
        let tid_word = unsafe { (self.tid_word as *const u64).read_volatile() };
        if tid_word != 0 {
            self.add(tid_word);
        }
        if !self.hidden {
            self.ask();
        }
        if self.hidden {
            told.want();
            self.all = !told.read(|head| self.collect_list(head));
        }
    }

    fn ask(&mut self) {
        // SAFETY: no pointers.
        unsafe { call(syscall::LSEEK, [self.tasks as usize, 0, 0, 0, 0, 0]) };
        let mut entries = [0u8; 4096];
        loop {
            let buffer = entries.as_mut_ptr() as usize;
            // SAFETY: the buffer is as long as said.
            let n = unsafe { call(syscall::GETDENTS64, [self.tasks as usize, buffer, entries.len(), 0, 0, 0]) };
            if n <= 0 {
                break;
            }
            self.collect_entries(&entries[..n as usize]);
        }
    }

    /// `entries`: struct linux_dirent64 one after the other (length at 16, name at 19).
    fn collect_entries(&mut self, entries: &[u8]) {
        let mut at = 0;
        while let Some(entry) = entries.get(at..).filter(|e| e.len() > 19) {
            let length = usize::from(u16::from_ne_bytes([entry[16], entry[17]]));
            let name = &entry[19..length.clamp(19, entry.len())];
            let tid = if self.foreign { self.own_number(name) } else { number(name) };
            if tid != 0 {
                self.collect_thread(tid as usize);
            }
            if length == 0 {
                break;
            }
            at += length;
        }
    }

    /// The number, in our own pid namespace, of the thread that /proc calls `name`; 0 if there is
    /// none.
    fn own_number(&self, name: &[u8]) -> u32 {
        const FILE: &[u8] = b"/status\0";
        let digits = name.iter().take_while(|c| c.is_ascii_digit()).count();
        let mut path = [0u8; 32];
        if digits == 0 || digits + FILE.len() > path.len() {
            return 0;
        }
        path[..digits].copy_from_slice(&name[..digits]);
        path[digits..digits + FILE.len()].copy_from_slice(FILE);
        let status = syscall::open_at(self.tasks, &path[..digits + FILE.len()], 0);
        namespace_ids(status).map_or(0, |(_, innermost)| innermost)
    }

    fn collect_thread(&mut self, tid: usize) {
        let (mut head, mut length) = (0u64, 0usize);
        // SAFETY: two words of ours.
        let result =
            unsafe { call(syscall::GET_ROBUST_LIST, [tid, &raw mut head as usize, &raw mut length as usize, 0, 0, 0]) };
        self.hidden |= result == -syscall::EPERM;
        if result == 0 && head != 0 {
            self.collect_list(head);
        }
    }

    fn collect_list(&mut self, head: u64) {
        self.add(head.saturating_sub(CONTROL_BLOCK.0));
        self.add(head + CONTROL_BLOCK.1);
        self.collect_futexes(head);
    }

    /// struct robust_list_head: first entry, offset of the futex word in an entry, entry about to
    /// be added.
    fn collect_futexes(&mut self, head: u64) {
        let mut words = [0u64; 3];
        if !read_words(head, &mut words) {
            return;
        }
        let [mut entry, offset, pending] = words;
        if pending != 0 {
            self.add(pending.wrapping_add(offset));
        }
        for _ in 0..MAX_FUTEXES {
            // The lowest bit marks a priority-inheriting futex.
            entry &= !1;
            if entry == head || entry == 0 {
                return;
            }
            self.add(entry);
            self.add(entry.wrapping_add(offset));
            let mut next = [0u64; 1];
            if !read_words(entry, &mut next) {
                return;
            }
            entry = next[0];
        }
    }

    fn add(&mut self, address: u64) {
        let page = address & !4095;
        if self.count < MAX_PAGES && (self.count == 0 || self.pages[self.count - 1] != page) {
            self.pages[self.count] = page;
            self.count += 1;
        }
        if !self.recent.contains(&page) {
            self.recent[self.next_recent] = page;
            self.next_recent = (self.next_recent + 1) % RECENT;
        }
    }
}

/// Reads the program's memory without trusting the pointer: a bad one answers EFAULT instead of a
/// signal.
fn read_words(address: u64, words: &mut [u64]) -> bool {
    let length = size_of_val(words) as u64;
    let local = Vector { base: words.as_mut_ptr() as u64, length };
    let remote = Vector { base: address, length };
    // SAFETY: the local vector is the caller's buffer; the remote side is checked by the kernel.
    unsafe {
        // Uses the agent's own id: if the first thread of a process has ended, the process cannot
        // be read by that thread's id.
        let pid = call(syscall::GETTID, [0; 6]) as usize;
        let args = [pid, &raw const local as usize, 1, &raw const remote as usize, 1, 0];
        call(PROCESS_VM_READV, args) == length as isize
    }
}

impl ThreadPages {
    /// Threads of this process, the agent included, and whether the first one has already ended.
    pub fn census(&self) -> Option<(u32, bool)> {
        let mut text = [0u8; 512];
        let text = read_and_close(syscall::open_at(self.tasks, b"../stat\0", 0), &mut text)?;
        // proc_pid_stat(5): after the name in parentheses, field 3 is the state and field 20 the
        // number of threads.
        let name_end = text.iter().rposition(|c| *c == b')')?;
        let mut fields = text[name_end + 1..].split(|c| *c == b' ').filter(|f| !f.is_empty());
        let state = *fields.next()?.first()?;
        Some((number(fields.nth(16)?), state == b'Z'))
    }
}

/// From a status file in /proc: the number of pid namespaces in which that /proc knows the task,
/// and the task's number in the innermost one.
fn namespace_ids(status: isize) -> Option<(usize, u32)> {
    const FIELD: &[u8] = b"\nNSpid:";
    let mut text = [0u8; 4096];
    let text = read_and_close(status, &mut text)?;
    let start = text.windows(FIELD.len()).position(|window| window == FIELD)? + FIELD.len();
    let line = text[start..].split(|c| *c == b'\n').next()?;
    let numbers = || line.split(|c| *c == b'\t').filter(|field| !field.is_empty());
    Some((numbers().count(), number(numbers().next_back()?)))
}

/// Reads a file once and closes it; `None` if it could not be opened or read.
pub fn read_and_close(fd: isize, buffer: &mut [u8]) -> Option<&[u8]> {
    if fd < 0 {
        return None;
    }
    let n = syscall::read(fd as i32, buffer);
    syscall::close(fd as i32);
    buffer.get(..usize::try_from(n).ok()?)
}

/// The decimal number at the start of a text; 0 if there is none.
fn number(text: &[u8]) -> u32 {
    let digits = text.iter().take_while(|c| c.is_ascii_digit());
    digits.fold(0, |n, digit| n * 10 + u32::from(digit - b'0'))
}
