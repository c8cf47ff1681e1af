//! Pages for a core file: the contents that a process would read where its memory is evicted, sent
//! to a caller of the control socket without changing the state of the pages.
//!
//! A caller sends the request `pages` and gets a line that says that questions can be asked. From
//! then on the connection carries questions and answers of fixed layout (`page_answer.rs`): which
//! pages of a range are not present in the program, with the bytes of those that are evicted. Each
//! connection has a thread of its own, so that reads of slow devices do not block the control
//! socket.
//!
//! **Pager and thread.** Only the pager that owns a space knows its page words, so each question
//! passes through its mailbox. The pager copies staged pages at once, since their slots may be used
//! again, and takes a reference to the objects of stored pages. The thread then loads these
//! objects, waiting for devices if necessary, and gives the references back.
//!
//! **When an answer is valid.** A pager answers only when no change of the address space waits to
//! be applied in order. A page that the caller found missing *before* it asked, and that the answer
//! does not name, reads as zeros. So the caller has to look for present pages first and ask
//! afterwards, and it must have stopped the threads of the program.

pub mod serve;

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;
use uswap_core::PAGE;

use uswap_core::{PAGE_SIZE, PageBuf};
use uswap_store::{LoadScratch, ObjectId};

use crate::io::page_answer::{AnswerHeader, Answered, MAX_BYTES, MAX_RECORDS, Named, PageQuestion};
use crate::space::id::SpaceId;

/// Maximum number of connections that are served at the same time.
const MAX_CALLERS: usize = 4;
/// Time after which a caller that neither asks nor reads is disconnected.
const IDLE: Duration = Duration::from_secs(30);
/// Time that a pager may take for an answer: it serves faults first.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Page words that a pager looks at for one answer.
const MAX_LOOKS: usize = 4 * 1024;

/// The number of callers that are being served.
#[derive(Debug, Default)]
pub struct PageCallers(AtomicUsize);

/// A question on its way to the pager that owns the space, with room for the answer.
#[derive(Debug)]
pub struct PageQuery {
    space: SpaceId,
    pid: u32,
    question: PageQuestion,
    answer: Answer,
    reply: SyncSender<Answer>,
}

/// The answer of a pager. It is allocated before the question is sent, so that the pager allocates
/// nothing.
#[derive(Debug)]
struct Answer {
    header: AnswerHeader,
    named: Vec<Named>,
    /// The pages with bytes; each has the same index in `bytes`, where its bytes are or will be
    /// loaded.
    given: Vec<Given>,
    bytes: Vec<PageBuf>,
}

/// A page with bytes.
#[derive(Clone, Copy, Debug)]
struct Given {
    /// Its index in `named`.
    named: usize,
    /// The object whose bytes are to be loaded; `None`: the bytes are there already.
    object: Option<ObjectId>,
}

const NO_ANSWER: AnswerHeader = AnswerHeader { state: Answered::Unknown, next: 0, area: 0, records: 0 };

impl Answer {
    fn new() -> Self {
        let (named, given) = (Vec::with_capacity(MAX_RECORDS), Vec::with_capacity(MAX_BYTES));
        Self { header: NO_ANSWER, named, given, bytes: vec![[0; PAGE_SIZE]; MAX_BYTES] }
    }

    fn clear(&mut self) {
        self.header = NO_ANSWER;
        self.named.clear();
        self.given.clear();
    }

    fn is_full(&self) -> bool {
        self.named.len() == MAX_RECORDS || self.given.len() == MAX_BYTES
    }

    fn name(&mut self, named: Named) {
        self.named.push(named);
    }

    /// Names a page whose bytes are those of `object`, or are in `bytes` already.
    fn give(&mut self, page: u64, object: Option<ObjectId>) {
        self.given.push(Given { named: self.named.len(), object });
        self.named.push(Named::Given(page));
    }

    fn next_bytes(&mut self) -> &mut PageBuf {
        &mut self.bytes[self.given.len()]
    }

    /// Sends the answer. A page that could not be loaded is sent without bytes.
    fn send(&mut self, stream: &mut UnixStream) -> io::Result<()> {
        self.header.records = self.named.len() as u64;
        let mut message = self.header.encode().to_vec();
        self.named.iter().for_each(|named| message.extend(named.encode().to_le_bytes()));
        for (given, bytes) in self.given.iter().zip(&self.bytes) {
            if matches!(self.named[given.named], Named::Given(_)) {
                message.extend(bytes);
            }
        }
        stream.write_all(&message)
    }
}
