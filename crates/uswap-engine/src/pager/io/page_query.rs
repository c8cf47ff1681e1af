//! Pages for a core file: what a process would read where its memory is evicted, told to a caller of the control socket
//! without changing what the pages are.
//!
//! A caller sends the request `pages` and gets a line that says that questions can be asked. From then on the
//! connection carries questions and answers of fixed layout (`page_answer.rs`): which pages of a range are not where
//! the program has them, with the bytes of those that are evicted. A thread of its own serves a connection, so that reads of slow devices keep nobody
//! else from the control socket.
//!
//! **Who knows.** Only the owner of a space knows its page words, so each question passes through its mailbox. It copies
//! staged pages at once, since their slots may be used again, and takes a reference to the objects of stored ones. The
//! thread then loads these, waiting for devices if need be, and gives the references back.
//!
//! **When an answer holds.** An owner answers only when no change of the address space waits to be ordered. A page that
//! the caller found missing *before* it asked, and that the answer does not name, reads as zeros: that is the order in
//! which a caller has to look, and it must have stopped the program's threads.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

use uswap_core::page::word::PageState;
use uswap_core::{PAGE_SIZE, PageBuf};
use uswap_store::{LoadScratch, ObjectId};

use crate::pager::address_space::AddressSpace;
use crate::pager::context::{EngineContext, Message};
use crate::pager::event_loop::Pager;
use crate::pager::io::page_answer::{AnswerHeader, Answered, MAX_BYTES, MAX_RECORDS, Named, PageQuestion};
use crate::pager::reclaim::staging::Phase;
use crate::pager::space::Space;
use crate::pager::space::id::SpaceId;
use uswap_sys::process::thread::spawn;

/// Connections served at the same time, at most.
const MAX_CALLERS: usize = 4;
/// A caller that neither asks nor reads for so long is left.
const IDLE: Duration = Duration::from_secs(30);
/// How long an owner may take for an answer: it serves faults before.
const PATIENCE: Duration = Duration::from_secs(5);
/// Words that an owner looks at for an answer.
const MAX_LOOKS: usize = 4 * 1024;
const PAGE: u64 = PAGE_SIZE as u64;

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

    fn give_back<M: AddressSpace>(&self, shared: &EngineContext<M>) {
        self.given.iter().filter_map(|given| given.object).for_each(|object| shared.store.release(object));
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

/// Serves a caller from now on, in a thread of its own, which sends `greeting` first.
///
/// # Errors
/// For the caller: why it is refused.
pub fn begin<M: AddressSpace>(
    shared: &Arc<EngineContext<M>>,
    stream: &UnixStream,
    pid: u32,
    greeting: String,
) -> Result<(), String> {
    admit(shared, pid)?;
    let (for_thread, its) = (shared.clone(), stream.try_clone());
    let serve = |its| spawn("pages".into(), move || PageServer::new(&for_thread, pid).serve(its, &greeting));
    its.and_then(serve).map_err(|error| {
        shared.page_callers.0.fetch_sub(1, SeqCst);
        format!("no thread for it: {error}")
    })
}

/// Whether this process can be asked about, by one more caller.
fn admit<M: AddressSpace>(shared: &EngineContext<M>, pid: u32) -> Result<(), String> {
    if !M::is_member(shared, pid) {
        return Err(format!("{pid} is no process of this run"));
    }
    let callers = &shared.page_callers.0;
    let more = |count: usize| (count < MAX_CALLERS).then_some(count + 1);
    callers
        .fetch_update(SeqCst, SeqCst, more)
        .map(drop)
        .map_err(|_| "it writes other core files; try again later".into())
}

struct PageServer<'a, M: AddressSpace> {
    shared: &'a EngineContext<M>,
    pid: u32,
    scratch: LoadScratch,
    answer: Option<Answer>,
}

impl<M: AddressSpace> Drop for PageServer<'_, M> {
    fn drop(&mut self) {
        self.shared.page_callers.0.fetch_sub(1, SeqCst);
    }
}

impl<'a, M: AddressSpace> PageServer<'a, M> {
    fn new(shared: &'a EngineContext<M>, pid: u32) -> Self {
        Self { shared, pid, scratch: LoadScratch::default(), answer: None }
    }

    /// Answers until the caller has gone.
    fn serve(mut self, mut stream: UnixStream, greeting: &str) {
        let _ = self.answer_all(&mut stream, greeting);
    }

    fn answer_all(&mut self, stream: &mut UnixStream, greeting: &str) -> io::Result<()> {
        stream.set_read_timeout(Some(IDLE))?;
        stream.set_write_timeout(Some(IDLE))?;
        stream.write_all(greeting.as_bytes())?;
        let mut bytes = [0; PageQuestion::BYTES];
        loop {
            stream.read_exact(&mut bytes)?;
            let Some(question) = PageQuestion::decode(&bytes) else { return Err(io::ErrorKind::InvalidData.into()) };
            self.shared.faults.pause(self.shared.faults.delay_pages);
            let mut answer = self.ask(question)?;
            self.load(&mut answer);
            answer.send(stream)?;
            self.answer = Some(answer);
        }
    }

    /// Asks the owner.
    fn ask(&mut self, question: PageQuestion) -> io::Result<Answer> {
        let mut answer = self.answer.take().unwrap_or_else(Answer::new);
        answer.clear();
        let Some((owner, space, pid)) = self.find() else { return Ok(answer) };
        let (reply, answers) = sync_channel(1);
        let query = PageQuery { space, pid, question, answer, reply };
        self.shared.mailboxes[owner].post(Message::Pages(Box::new(query)));
        answers.recv_timeout(PATIENCE).map_err(|_| io::ErrorKind::TimedOut.into())
    }

    /// Owner, space and process of the memory: that of a child of vfork is its parent's.
    fn find(&self) -> Option<(usize, SpaceId, u32)> {
        let all = self.shared.managed.all();
        let has_its_memory = |pid: &u32| *pid == self.pid || M::share_memory(*pid, self.pid);
        let pid = all.get(&self.pid).map(|_| self.pid).or_else(|| all.keys().copied().find(has_its_memory))?;
        all.get(&pid).map(|process| (process.owner, process.space, pid))
    }

    /// Brings the bytes of what is stored, and gives the references back.
    fn load(&mut self, answer: &mut Answer) {
        let Answer { named, given, bytes, .. } = answer;
        let (mut ids, mut outs, mut places, mut results) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for (given, bytes) in given.iter().zip(bytes) {
            if let Some(object) = given.object {
                ids.push(object);
                outs.push(bytes);
                places.push(given.named);
            }
        }
        self.shared.store.load_many_blocking(&ids, &mut outs, &mut results, &mut self.scratch);
        for (place, result) in places.into_iter().zip(results) {
            if let (Named::Given(page), Err(_)) = (named[place], result) {
                named[place] = Named::Lost(page);
            }
        }
        answer.give_back(self.shared);
    }
}

impl<M: AddressSpace> Pager<M> {
    /// Tells what of a range is not where the program has it.
    pub fn receive_page_query(&mut self, query: PageQuery) {
        let PageQuery { space, pid, question, mut answer, reply } = query;
        self.with_space(space, |owner, space| {
            // What executes another program has its number still, and other memory.
            if space.memory.process() == Some(pid) && space.memory.is_alive() {
                owner.answer(space, question, &mut answer);
            }
        });
        if let Err(unwanted) = reply.send(answer) {
            unwanted.0.give_back(&self.shared);
        }
    }

    fn answer(&mut self, space: &mut Space<M>, question: PageQuestion, answer: &mut Answer) {
        answer.header =
            AnswerHeader { state: Answered::Later, next: question.start, area: space.memory.own_start(), records: 0 };
        if space.memory.is_changing() || space.memory.is_gate_closed() {
            return;
        }
        answer.header.state = Answered::Done;
        if self.shared.faults.forget_evicted {
            answer.header.next = question.end;
            return;
        }
        let mut looks = MAX_LOOKS;
        let mut next = question.start;
        while next < question.end && looks > 0 && !answer.is_full() {
            let known = space.table.iter_from(next).next().filter(|(page, _)| *page < question.end);
            let Some((page, word)) = known else {
                next = question.end;
                break;
            };
            self.answer_page(space, page, word.state(), answer);
            next = page + PAGE;
            looks -= 1;
        }
        answer.header.next = next;
    }

    /// Names one page, unless it reads as zeros.
    fn answer_page(&mut self, space: &mut Space<M>, page: u64, state: PageState, answer: &mut Answer) {
        match state {
            PageState::Untouched | PageState::Zero => {}
            PageState::Resident => answer.name(Named::Moving(page)),
            PageState::Poisoned => answer.name(Named::Lost(page)),
            PageState::Stored(object) => {
                let object = ObjectId::from_bits(object);
                self.shared.store.retain(object);
                answer.give(page, Some(object));
            }
            PageState::Staged(slot) => match self.copy_staged(space, page, slot, answer.next_bytes()) {
                CopiedPages::Done => answer.give(page, None),
                CopiedPages::Freed => {}
                CopiedPages::Later => answer.name(Named::Moving(page)),
            },
        }
    }

    /// Copies a staged page out of its slot.
    fn copy_staged(&mut self, space: &mut Space<M>, page: u64, slot: u16, bytes: &mut PageBuf) -> CopiedPages {
        let (tray, _) = space.trays.of_slot(slot);
        let (filling, inherited) = (tray.phase == Phase::Filling, tray.inherited);
        let place = if filling { None } else { space.memory.place_of(u32::from(slot), inherited) };
        match place {
            Some(from) if self.read_staged(space, page, from, 1) => {
                bytes.copy_from_slice(&self.buffer[PAGE_SIZE..2 * PAGE_SIZE]);
                CopiedPages::Done
            }
            // The program had freed it, and the kernel took it.
            _ if !filling && space.is_clean(slot) => CopiedPages::Freed,
            _ => CopiedPages::Later,
        }
    }
}

/// What became of a page that was to be copied from its staging slot.
enum CopiedPages {
    Done,
    Freed,
    Later,
}
