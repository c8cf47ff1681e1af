//! Pages for a core file: what a process would read where its memory is evicted, told to a caller
//! of the control socket without changing what the pages are.
//!
//! A caller sends the request `pages` and gets a line that says that questions can be asked. From
//! then on the connection carries questions and answers of fixed layout (`page_answer.rs`): which
//! pages of a range are not where the program has them, with the bytes of those that are evicted. A
//! thread of its own serves a connection, so that reads of slow devices keep nobody else from the
//! control socket.
//!
//! **Who knows.** Only the owner of a space knows its page words, so each question passes through
//! its mailbox. It copies staged pages at once, since their slots may be used again, and takes a
//! reference to the objects of stored ones. The thread then loads these, waiting for devices if
//! need be, and gives the references back.
//!
//! **When an answer holds.** An owner answers only when no change of the address space waits to be
//! ordered. A page that the caller found missing *before* it asked, and that the answer does not
//! name, reads as zeros: that is the order in which a caller has to look, and it must have stopped
//! the program's threads.

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

/// Connections served at the same time, at most.
const MAX_CALLERS: usize = 4;
/// A caller that neither asks nor reads for so long is left.
const IDLE: Duration = Duration::from_secs(30);
/// How long an owner may take for an answer: it serves faults before.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Words that an owner looks at for an answer.
const MAX_LOOKS: usize = 4 * 1024;

/// The callers that are served.
#[derive(Debug, Default)]
pub struct PageCallers(AtomicUsize);

/// A question on its way to the owner of a space, with room for the answer.
#[derive(Debug)]
pub struct PageQuery {
    space: SpaceId,
    pid: u32,
    question: PageQuestion,
    answer: Answer,
    reply: SyncSender<Answer>,
}

/// What an owner says. Made before it is asked: an owner allocates nothing for it.
#[derive(Debug)]
struct Answer {
    header: AnswerHeader,
    named: Vec<Named>,
    /// The pages whose bytes lie at the same place of `bytes`, or are going to.
    given: Vec<Given>,
    bytes: Vec<PageBuf>,
}

/// A page with bytes.
#[derive(Clone, Copy, Debug)]
struct Given {
    /// Its place in `named`.
    named: usize,
    /// Whose bytes are to be loaded; `None`: they are there.
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

    /// Names a page whose bytes are those of `object`, or lie at their place already.
    fn give(&mut self, page: u64, object: Option<ObjectId>) {
        self.given.push(Given { named: self.named.len(), object });
        self.named.push(Named::Given(page));
    }

    fn next_bytes(&mut self) -> &mut PageBuf {
        &mut self.bytes[self.given.len()]
    }

    /// Sends it. A page that could not be loaded brings no bytes.
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
