//! Serving a caller, and answering its questions about a space.

use super::*;

use crate::address_space::AddressSpace;
use crate::context::{EngineContext, Message};
use crate::event_loop::Pager;
use crate::reclaim::staging::Phase;
use crate::space::Space;
use std::sync::Arc;
use uswap_core::page::word::PageState;
use uswap_sys::process::thread::spawn;

/// Begins to serve a caller in a thread of its own, which sends `greeting` first.
///
/// # Errors
/// For the caller: the reason why it is refused.
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

/// Admits one more caller, if this process may be queried.
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

impl Answer {
    fn give_back<M: AddressSpace>(&self, shared: &EngineContext<M>) {
        self.given.iter().filter_map(|given| given.object).for_each(|object| shared.store.release(object));
    }
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

    /// Asks the pager.
    fn ask(&mut self, question: PageQuestion) -> io::Result<Answer> {
        let mut answer = self.answer.take().unwrap_or_else(Answer::new);
        answer.clear();
        let Some((owner, space, pid)) = self.find() else { return Ok(answer) };
        let (reply, answers) = sync_channel(1);
        let query = PageQuery { space, pid, question, answer, reply };
        self.shared.mailboxes[owner].post(Message::Pages(Box::new(query)));
        answers.recv_timeout(ANSWER_TIMEOUT).map_err(|_| io::ErrorKind::TimedOut.into())
    }

    /// Finds pager, space and process of the memory: a child of vfork uses the memory of its
    /// parent.
    fn find(&self) -> Option<(usize, SpaceId, u32)> {
        let all = self.shared.managed.all();
        let has_its_memory = |pid: &u32| *pid == self.pid || M::share_memory(*pid, self.pid);
        let pid = all.get(&self.pid).map(|_| self.pid).or_else(|| all.keys().copied().find(has_its_memory))?;
        all.get(&pid).map(|process| (process.owner, process.space, pid))
    }

    /// Loads the bytes of stored pages, and gives the references back.
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
    /// Answers which pages of a range are not present in the program.
    pub fn receive_page_query(&mut self, query: PageQuery) {
        let PageQuery { space, pid, question, mut answer, reply } = query;
        self.with_space(space, |owner, space| {
            // A process that has executed another program has the same number, but other memory.
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
            // The program had freed the page, and the kernel took it.
            _ if !filling && space.is_clean(slot) => CopiedPages::Freed,
            _ => CopiedPages::Later,
        }
    }
}

/// The outcome of copying a page from its staging slot.
enum CopiedPages {
    Done,
    Freed,
    Later,
}
