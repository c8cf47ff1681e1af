//! The attacher: injects an agent into programs that have none.
//!
//! It is one thread, since the kernel binds a traced thread to the thread that seized it. The
//! governor's scan for unmanaged programs reports programs of 8 MiB and more and, once an agent was
//! injected anywhere, all programs without one: children that such a program forks have no handler
//! that would start their own agent. A program that cannot be attached to is left alone for a
//! while; the reason is kept for the scan to report.

pub mod elf_image;
pub mod reason;
pub mod sequence;
pub mod stoppable_thread;

use std::collections::HashMap;
use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use uswap_sys::process::trace::{self, Stop, Tracee};

use crate::EngineContext;
use crate::detach::Leaver;
use crate::inject::elf_image::{Found, ImageLayout};
use crate::inject::reason::{ProgramKind, UnmanagedReason, program_kind};
use crate::inject::sequence::{Brought, InjectFailure, InjectTarget, Injector, Words};
use crate::shared::Attached;
use crate::shared::Fetched;
use uswap_sys::process::thread::spawn;
use uswap_sys::procfs;

/// How long the attacher waits for a message when every program has an agent.
const NOBODY: Duration = Duration::from_millis(100);
/// How often it retries a program whose threads all wait in calls that must not be disturbed.
const AGAIN: Duration = Duration::from_millis(20);
/// How long it waits for a thread that is better to stop than those that can be stopped now.
const CHOICE_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a program that cannot be attached to is left alone.
const REFUSED: Duration = Duration::from_secs(1);
/// How long an injected agent may take until the governor knows it.
const HELLO: Duration = Duration::from_secs(2);
/// Maximum of agents that are injected into one image without a greeting.
const MAX_AGENTS: u32 = 3;
/// Interval at which the attacher checks whether an agent has ended, and the maximum of checks.
const LOOK: Duration = Duration::from_millis(1);
const MAX_LOOKS: u32 = 200;
/// Age from which on a small process is attached to: children mostly execute another program at
/// once.
const SETTLED: Duration = Duration::from_millis(100);

/// Programs without an agent, from the scan for unmanaged programs.
#[derive(Clone, Debug, Default)]
pub struct AttachCandidates {
    /// Programs large enough to be worth an agent.
    pub large: Vec<u32>,
    /// All other programs without an agent.
    pub small: Vec<u32>,
    /// All processes of the tree.
    pub tree: Vec<u32>,
}

/// The governor's end of the channel to the attacher. The thread begins with the first program to
/// attach to, which few runs have.
pub struct AttacherHandle {
    tell: Sender<AttachCandidates>,
    thread: Option<Box<dyn FnOnce() -> std::io::Result<()> + Send>>,
}

impl std::fmt::Debug for AttacherHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AttacherHandle").field("has_begun", &self.thread.is_none()).finish_non_exhaustive()
    }
}

impl AttacherHandle {
    /// `image`: the memfd of the agent.
    pub fn new(shared: Arc<EngineContext>, image: OwnedFd, stop: Arc<AtomicBool>) -> Self {
        let (tell, census) = channel();
        let body = move || Attacher::new(shared, image).run(&census, &stop);
        Self { tell, thread: Some(Box::new(move || spawn("attacher".into(), body))) }
    }

    /// Starts the thread, whether there are candidates or not: a run that was attached to a program
    /// also needs it to detach.
    ///
    /// # Errors
    /// EAGAIN: no more threads.
    pub fn begin(&mut self) -> std::io::Result<()> {
        self.thread.take().map_or(Ok(()), |begin| begin())
    }

    /// Sends the programs without an agent to the attacher.
    ///
    /// # Errors
    /// As [`begin`](Self::begin).
    pub fn tell(&mut self, silent: AttachCandidates) -> std::io::Result<()> {
        if !silent.large.is_empty() || !silent.small.is_empty() {
            self.begin()?;
        }
        if self.thread.is_none() {
            // An error means that the attacher's thread has ended, and so has the run.
            let _ = self.tell.send(silent);
        }
        Ok(())
    }
}

#[derive(Debug)]
struct AttachState {
    since: Instant,
    not_before: Instant,
    agents: u32,
    /// Signature of the image into which these agents were injected.
    image: Option<[u64; 3]>,
    small_done: bool,
}

/// The attacher's thread.
pub struct Attacher {
    shared: Arc<EngineContext>,
    layout: ImageLayout,
    image: OwnedFd,
    known: HashMap<u32, AttachState>,
    /// Threads that were seized and have not stopped yet, and since when.
    late: Vec<(Tracee, Instant)>,
    own_filters: u32,
}

impl Attacher {
    /// `image`: the memfd of the agent.
    pub fn new(shared: Arc<EngineContext>, image: OwnedFd) -> Self {
        let own_filters = filters(std::process::id());
        Self { shared, layout: ImageLayout::of_agent(), image, known: HashMap::new(), late: Vec::new(), own_filters }
    }

    /// Attaches to candidates until `stop` is set.
    pub fn run(&mut self, census: &Receiver<AttachCandidates>, stop: &AtomicBool) {
        // While this thread waits for a processor, the program that it has stopped waits too.
        uswap_sys::process::run_first();
        let mut silent = AttachCandidates::default();
        while !stop.load(SeqCst) {
            let patience = match self.shared.of_memory.leaving.is_under_way() {
                _ if !self.late.is_empty() => Duration::from_millis(1),
                false if silent.large.is_empty() && silent.small.is_empty() => NOBODY,
                _ => AGAIN,
            };
            match census.recv_timeout(patience) {
                Ok(news) => {
                    self.known.retain(|pid, _| news.tree.contains(pid));
                    self.shared.of_memory.refused.lock().expect("refused").retain(|pid, _| news.tree.contains(pid));
                    silent = news;
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            self.let_go_of_late();
            if self.shared.of_memory.leaving.is_under_way() {
                if self.shared.of_memory.leaving.is_last_phase()
                    && !self.shared.of_memory.leaving.agents_gone.load(SeqCst)
                {
                    self.remove_agents();
                }
                continue;
            }
            for pid in silent.large.clone() {
                self.look_after(pid, &silent.tree, true);
            }
            for pid in silent.small.clone() {
                self.look_after(pid, &silent.tree, false);
            }
        }
    }

    /// Detaches from threads that have stopped at last, and delivers the signals at which they did.
    fn let_go_of_late(&mut self) {
        if self.late.is_empty() {
            return;
        }
        let kept = Duration::from_micros(self.shared.faults.attach_late);
        let mut late = self.shared.of_memory.tracing.lock().expect("tracing");
        self.late.retain(|(tracee, since)| {
            if since.elapsed() < kept {
                return true;
            }
            if !kept.is_zero() {
                // The thread was not asked to stop yet; if it was, asking again changes nothing.
                let _ = tracee.interrupt();
            }
            match tracee.wait_for_arrival(Duration::ZERO) {
                // Threads that have ended are left to the engine's main thread, which waits for all
                // children: the kernel does not report the end of a first thread while other
                // threads of its process are traced.
                None => return !procfs::has_ended(tracee.tid()),
                Some(Stop::Gone) => {}
                // A thread from which detaching fails has ended.
                Some(Stop::Signal(signal)) => drop(tracee.detach_with(signal)),
                Some(_) => drop(tracee.detach()),
            }
            false
        });
        *late = self.late.len();
        drop(late);
        self.shared.main_bell.ring();
    }

    /// Makes the agents of programs that were let go unmap their memory, and end. An agent that
    /// cannot be stopped for that ends by itself when its socket is closed, and leaves its mappings
    /// behind.
    fn remove_agents(&mut self) {
        let shared = self.shared.clone();
        let injector = Injector::new(&self.layout, self.image.as_fd(), &shared.faults);
        for Leaver { pid, thread, area, unregistered, link } in shared.of_memory.leaving.take_agents() {
            let tracing = shared.of_memory.tracing.lock().expect("tracing");
            let removed = match unregistered {
                true => injector.remove(pid, thread, area),
                false => Err(InjectFailure::Unfit("still registered")),
            };
            drop(tracing);
            if let Err(failure) = removed
                && procfs::start_time(pid).is_some()
            {
                let text = "mappings of its agent are left behind; they hold no memory";
                shared.notice(format!("process {pid}: {text} ({failure:?})"));
            }
            drop(link);
            let gone = || !procfs::is_agent(pid, thread);
            for _ in 0..MAX_LOOKS {
                if gone() {
                    break;
                }
                std::thread::sleep(LOOK);
            }
        }
        shared.of_memory.leaving.agents_gone.store(true, SeqCst);
        shared.main_bell.ring();
    }

    fn look_after(&mut self, pid: u32, tree: &[u32], large: bool) {
        let now = Instant::now();
        let delay = if large { Duration::ZERO } else { SETTLED };
        let fresh = || AttachState { since: now, not_before: now + delay, agents: 0, image: None, small_done: false };
        let known = self.known.entry(pid).or_insert_with(fresh);
        if now < known.not_before || !large && known.small_done || self.shared.of_memory.descriptors.are_short() {
            return;
        }
        if known.agents > 0 {
            let image = procfs::image_signature(pid);
            if image != known.image {
                (known.agents, known.image) = (0, image);
            }
        }
        if known.agents >= MAX_AGENTS {
            return;
        }
        let patient = known.since.elapsed() > CHOICE_TIMEOUT;
        let outcome = self.attach(pid, tree, large, patient);
        let known = self.known.get_mut(&pid).expect("known");
        let (wait, why) = match outcome {
            InjectOutcome::Brought => {
                known.agents += 1;
                known.image = procfs::image_signature(pid);
                (HELLO, None)
            }
            InjectOutcome::Nothing => {
                known.small_done = true;
                (AGAIN, None)
            }
            InjectOutcome::Later => (AGAIN, patient.then_some(UnmanagedReason::Busy)),
            InjectOutcome::Unfit(why) => (REFUSED, Some(why)),
        };
        known.not_before = Instant::now() + wait;
        let mut refused = self.shared.of_memory.refused.lock().expect("refused");
        match why {
            Some(why) => refused.insert(pid, why),
            None => refused.remove(&pid),
        };
    }

    fn attach(&mut self, pid: u32, tree: &[u32], large: bool, patient: bool) -> InjectOutcome {
        let Some(signature) = procfs::image_signature(pid) else { return InjectOutcome::Nothing };
        let threads = match self.examine(pid, tree) {
            Ok(threads) => threads,
            Err(outcome) => return outcome,
        };
        let inherited = match self.layout.find_in(pid) {
            Found::Inherited { base, area } => Some((base, area)),
            Found::Preloaded if self.shared.of_memory.tree.is_root(pid) => {
                return InjectOutcome::Unfit(UnmanagedReason::Unfit("the agent of another run is loaded in it"));
            }
            Found::Preloaded => return InjectOutcome::Nothing,
            Found::Nothing if !large => return InjectOutcome::Nothing,
            Found::Nothing => None,
        };
        let Some(tid) = stoppable_thread::choose(pid, &threads, patient) else { return InjectOutcome::Later };
        let target = InjectTarget { pid, tid, inherited, signature };
        self.bring(target)
    }

    /// Injects an agent. Meanwhile the engine's main thread must not take the wait statuses of the
    /// traced thread.
    fn bring(&mut self, target: InjectTarget) -> InjectOutcome {
        let shared = self.shared.clone();
        let injector = Injector::new(&self.layout, self.image.as_fd(), &shared.faults);
        let mut late = shared.of_memory.tracing.lock().expect("tracing");
        if shared.of_memory.leaving.is_under_way() {
            return InjectOutcome::Later;
        }
        let brought = injector.bring(target, || procfs::image_signature(target.pid));
        if let Err(InjectFailure::Late(tracee)) = brought {
            self.late.push((tracee, Instant::now()));
            *late = self.late.len();
            return InjectOutcome::Later;
        }
        drop(late);
        shared.main_bell.ring();
        match brought {
            Ok(Brought { socket, stopped, words }) => {
                shared.counters.attached.add(1);
                shared.of_memory.attach_stops.record(stopped.as_nanos() as u64);
                let attached = Attached { wordless: words == Words::Unknown, free_stacks: words == Words::One };
                shared.of_memory.fetched.lock().expect("fetched").push(Fetched {
                    socket,
                    pid: target.pid,
                    attached: Some(attached),
                });
                shared.main_bell.ring();
                InjectOutcome::Brought
            }
            Err(InjectFailure::Later | InjectFailure::Late(_) | InjectFailure::Gone) => InjectOutcome::Later,
            Err(InjectFailure::Unfit(why)) => InjectOutcome::Unfit(UnmanagedReason::Unfit(why)),
            Err(InjectFailure::Refused(what, errno)) => InjectOutcome::Unfit(UnmanagedReason::Refused(what, errno)),
        }
    }

    /// Checks in /proc whether a process may be attached to. Returns its threads.
    fn examine(&self, pid: u32, tree: &[u32]) -> Result<Vec<u32>, InjectOutcome> {
        let Some(status) = Status::read(pid) else { return Err(InjectOutcome::Nothing) };
        if status.tracer == uswap_sys::process::this_thread() {
            return Err(InjectOutcome::Later);
        }
        if status.tracer != 0 {
            return Err(InjectOutcome::Unfit(UnmanagedReason::Traced(status.tracer)));
        }
        if matches!(status.state, 'T' | 't') {
            return Err(InjectOutcome::Later);
        }
        if status.state == 'Z' {
            return Err(InjectOutcome::Nothing);
        }
        if status.filtered && filters(pid) != self.own_filters {
            return Err(InjectOutcome::Unfit(UnmanagedReason::Filtered));
        }
        if program_kind(pid) == Some(ProgramKind::OtherMachine) {
            return Err(InjectOutcome::Unfit(UnmanagedReason::OtherMachine));
        }
        let threads = procfs::threads(pid);
        // All threads of the process count: the kernel refuses to seize a thread a second time.
        if self.late.iter().any(|(tracee, _)| threads.contains(&tracee.tid())) {
            return Err(InjectOutcome::Later);
        }
        if threads.iter().any(|tid| procfs::is_agent(pid, *tid)) {
            return Err(InjectOutcome::Nothing);
        }
        // The process may share the memory of another one, as a child of vfork does: one agent is
        // enough for that memory.
        for other in tree.iter().filter(|other| **other != pid) {
            match trace::share_memory(pid, *other) {
                Ok(true) => return Err(InjectOutcome::Nothing),
                Err(error) if error.raw_os_error() == Some(NOT_THERE) => {
                    return Err(InjectOutcome::Unfit(UnmanagedReason::Unfit(
                        "the kernel cannot compare memories (kcmp)",
                    )));
                }
                Ok(false) | Err(_) => {}
            }
        }
        Ok(threads)
    }
}

/// ENOSYS.
const NOT_THERE: i32 = 38;

enum InjectOutcome {
    /// An agent was injected, and its greeting is awaited.
    Brought,
    /// There is nothing to do.
    Nothing,
    /// The attempt is to be repeated soon.
    Later,
    /// The program stays without an agent.
    Unfit(UnmanagedReason),
}

struct Status {
    state: char,
    tracer: u32,
    filtered: bool,
}

impl Status {
    fn read(pid: u32) -> Option<Self> {
        let text = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        Some(Self {
            state: field("State:")?.chars().next()?,
            tracer: field("TracerPid:")?.parse().ok()?,
            filtered: field("Seccomp:").is_some_and(|mode| mode != "0"),
        })
    }
}

/// Number of seccomp filters of a process. A process with as many as the engine has only the
/// engine's, under which preloaded agents work.
fn filters(pid: u32) -> u32 {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("Seccomp_filters:"));
    line.and_then(|count| count.trim().parse().ok()).unwrap_or(u32::MAX)
}
