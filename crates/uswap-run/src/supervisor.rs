//! The engine's process: starts the command, runs the threads, and supervises both from its main
//! thread.

use std::ffi::CString;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use uswap_core::PageHasher;
use uswap_core::util::size::human;
use uswap_device::{Device, FileDevice, IoBackend, SwapSpec};
use uswap_store::{Concurrency, Store, StoreConfig};
use uswap_sys::alloc::shared::ControlPage;
use uswap_sys::io::events::{EventFd, Poller};
use uswap_sys::io::socket::Listener;
use uswap_sys::process::signal::{self, Mask};
use uswap_sys::process::{self, ChildChange, Fork, ResourceLimit};

use crate::attach::session::AttachSession;
use crate::config::{RunConfig, exit};
use crate::control::Control;
use crate::control::report;
use crate::control::swapon;
use crate::control::verbose::{VerboseLog, say};
use crate::keeper;
use crate::measure::governor::Governor;
use crate::measure::heap_limits;
use crate::shared::RunShared;
use crate::threads::{self, Later};
use uswap_pager::accounting::budget::Budget;
use uswap_pager::accounting::groups::Groups;
use uswap_pager::accounting::pool_size::{PoolSizer, ShareTold};
use uswap_pager::context::{TrayList, Verdict};
use uswap_pager::fault_points::FaultPoints;
use uswap_pager::idle_priority;
use uswap_pager::io::bounded_queue::Jobs;
use uswap_pager::io::reader;
use uswap_pager::io::reader::Readers;
use uswap_pager::reclaim::evict;
use uswap_remote::agent::image::{AgentImage, Letters};
use uswap_remote::agent::image_file::ImageFile;
use uswap_remote::agent::listener::AgentListener;
use uswap_remote::agent::processes;
use uswap_remote::detach::DetachState;
use uswap_remote::fd_budget::Descriptors;
use uswap_remote::identity::probe::Prover;
use uswap_remote::process_tree::Tree;
use uswap_remote::sched::boost::PriorityBoost;
use uswap_remote::shared::RemoteShared;
use uswap_remote::shared::SharedContext;
use uswap_remote::{EngineContext, Mailbox, Message};
use uswap_sys::procfs;

/// How long eviction may make no progress with everything full before the tree is ended.
const EXHAUSTION: Duration = Duration::from_secs(5);

/// The state in which memory is short and the store refused the last pages.
struct Exhaustion {
    since: Instant,
    refusals: u64,
}

impl Exhaustion {
    fn new(budget: &Budget) -> Self {
        Self { since: Instant::now(), refusals: budget.refusals.load(SeqCst) }
    }

    /// Whether the state has lasted for long, and the store has refused pages since it began: an
    /// earlier refusal may be out of date. If the store was not asked since, there is no progress
    /// either, and four times as long is hopeless too.
    fn is_hopeless(&self, budget: &Budget) -> bool {
        let refused = budget.refusals.load(SeqCst) > self.refusals;
        self.since.elapsed() > if refused { EXHAUSTION } else { 4 * EXHAUSTION }
    }
}

/// Runs the whole engine. Returns the exit status of its process (the user's status goes through
/// `control`). `image`: a file for the agent's image; `files_before`: the limit of open files that
/// the command is to have.
pub fn run(
    config: &RunConfig,
    control: &ControlPage,
    keeper: u32,
    mask: &Mask,
    image: Option<Arc<ImageFile>>,
    files_before: Option<ResourceLimit>,
) -> i32 {
    match start(config, control, keeper, mask, image, files_before) {
        Err(reason) => {
            say!("uswap: {reason}");
            finish(control, exit::REFUSED)
        }
        Ok(mut engine) => {
            let status = engine.supervise(control);
            engine.stop(status);
            finish(control, status)
        }
    }
}

fn finish(control: &ControlPage, status: i32) -> i32 {
    control.status.store(status as u32, SeqCst);
    control.finished.store(1, SeqCst);
    0
}

/// A running engine, as its main thread sees it.
struct Engine {
    config: RunConfig,
    shared: Arc<EngineContext>,
    door: AgentListener,
    poller: Poller,
    keeper: std::os::fd::OwnedFd,
    command: u32,
    command_fd: std::os::fd::OwnedFd,
    /// The threads that are not needed yet.
    later: Option<Later>,
    governor: Arc<Mutex<Governor>>,
    stopping: Arc<AtomicBool>,
    /// The session of `uswap attach`, where no command was started.
    attached: Option<AttachSession>,
    talk: VerboseLog,
    recording: Option<JoinHandle<Result<u64, String>>>,
    /// Kept open: programs load the agent through it.
    _image: AgentImage,
}

const DOOR: u64 = 0;
const BELL: u64 = 1;
const KEEPER: u64 = 2;
const COMMAND: u64 = 3;
const FIRST_VISITOR: u64 = 16;

fn start(
    config: &RunConfig,
    control: &ControlPage,
    keeper: u32,
    mask: &Mask,
    image: Option<Arc<ImageFile>>,
    files_before: Option<ResourceLimit>,
) -> Result<Engine, String> {
    let say = |what: &str| {
        let what = what.to_string();
        move |error: std::io::Error| format!("{what}: {error}")
    };
    process::set_name(c"uswap-engine");
    process::become_subreaper().map_err(say("cannot become a subreaper"))?;
    process::fix_mmap_threshold(1 << 20);
    let named = Control::bind(config, keeper)?;
    let (shared, mut channels) = share(config, keeper)?;
    if shared.faults.own_table {
        process::unshare_descriptors().map_err(say("a table of descriptors of its own"))?;
    }
    let talk = VerboseLog::begin(config, &shared);
    let listener = Listener::new(&socket_directory()).map_err(say("cannot make the agents' socket"))?;
    let engine = std::process::id();
    let path = format!("/proc/{engine}/fd/{}", listener.inode_fd());
    let letters = Letters { shared_folder: shared.faults.shared_folder, thread: shared.faults.agent_threads };
    let image = AgentImage::new(&path, letters, image).map_err(say("agent image"))?;
    let (mut go, wait) = pipe().map_err(say("pipe"))?;
    let environment = environment(config, &image.path(engine));
    let command = match config.target {
        Some(target) => target.pid,
        None => match process::fork().map_err(say("cannot start the command"))? {
            Fork::Child => {
                // If the engine ends before it sends the go, the child sees the end of the pipe,
                // provided that the engine held the only other end.
                if !shared.faults.keep_go {
                    drop(go);
                }
                become_command(config, wait, &environment, mask, files_before)
            }
            Fork::Parent(pid) => pid,
        },
    };
    shared.faults.pause(shared.faults.delay_command);
    // From here on settings apply only to the engine: the command has been forked, and keeps those
    // from before.
    let hurry = PriorityBoost::begin();
    process::set_turn(idle_priority::TURN);
    keeper::protect();
    let poller = Poller::new().map_err(say("epoll"))?;
    let keeper = process::pidfd(keeper).map_err(say("keeper"))?;
    poller.add(&listener, DOOR).map_err(say("epoll"))?;
    poller.add(&shared.main_bell, BELL).map_err(say("epoll"))?;
    poller.add(&keeper, KEEPER).map_err(say("epoll"))?;
    let command_fd = process::pidfd(command).map_err(say("command"))?;
    poller.add(&command_fd, COMMAND).map_err(say("epoll"))?;
    let stopping = Arc::new(AtomicBool::new(false));
    // The command loads while the engine's threads start; its agent waits at the socket for a
    // moment. From now on the keeper can send signals to the command.
    if config.target.is_none() {
        control.command.store(command, SeqCst);
        go.write_all(b"g").map_err(say("command"))?;
    }
    let tape = channels.tape.take();
    let recording = tape.map(|tape| std::thread::Builder::new().name("recorder".into()).spawn(|| tape.run()));
    let recording = recording.transpose().map_err(say("cannot start a thread"))?;
    let started = threads::start(config, &shared, channels, &stopping, &image, hurry)
        .and_then(|started| named.start(shared.clone()).map(|()| started))
        .map_err(say("cannot start a thread"));
    let (later, governor) = started.inspect_err(|_| {
        if config.target.is_none() {
            shared.kill_tree();
        }
    })?;
    let door = AgentListener::new(shared.clone(), listener);
    let config = config.clone();
    Ok(Engine {
        shared,
        door,
        poller,
        keeper,
        command,
        command_fd,
        later: Some(later),
        governor,
        stopping,
        talk,
        recording,
        attached: config.target.map(|target| AttachSession::new(target.pid)),
        config,
        _image: image,
    })
}

/// The folder in which the agents' socket has a name for a moment.
fn socket_directory() -> PathBuf {
    let candidates = [process::temporary_folder(), Some("/tmp".into()), Some("/dev/shm".into())];
    let fits = |directory: &PathBuf| directory.is_dir() && directory.as_os_str().len() < 80;
    candidates.into_iter().flatten().find(fits).unwrap_or_else(|| "/var/tmp".into())
}

fn pipe() -> std::io::Result<(File, File)> {
    let (reader, writer) = std::io::pipe()?;
    Ok((File::from(std::os::fd::OwnedFd::from(writer)), File::from(std::os::fd::OwnedFd::from(reader))))
}

fn environment(config: &RunConfig, agent: &str) -> Vec<CString> {
    use std::os::unix::ffi::OsStringExt;
    let ours = ["LD_PRELOAD", "USWAP_NAME", "USWAP_FAULT_POINTS", "ASAN_OPTIONS"];
    let kept = std::env::vars_os().filter(|(name, _)| !ours.iter().any(|our| name == our));
    let mut all: Vec<CString> = kept
        .filter_map(|(name, value)| CString::new([name.into_vec(), b"=".to_vec(), value.into_vec()].concat()).ok())
        .collect();
    let before_others = |name: &str, ours: &str| match std::env::var(name) {
        Ok(others) if !others.is_empty() => CString::new(format!("{name}={ours}:{others}")),
        _ => CString::new(format!("{name}={ours}")),
    };
    all.extend(before_others("LD_PRELOAD", agent));
    // AddressSanitizer refuses to start where another library is loaded before its own. The agent
    // replaces no function of AddressSanitizer, so the check is switched off.
    all.extend(before_others("ASAN_OPTIONS", "verify_asan_link_order=0"));
    all.extend(CString::new(format!("USWAP_NAME={}", config.name)));
    all
}

/// In the forked child: waits until the engine is ready, then becomes the user's command.
fn become_command(
    config: &RunConfig,
    mut wait: File,
    environment: &[CString],
    mask: &Mask,
    files: Option<ResourceLimit>,
) -> ! {
    let mut byte = [0];
    if wait.read_exact(&mut byte).is_err() {
        process::exit_now(exit::ENGINE_DIED);
    }
    if let Some(limit) = files {
        process::restore_open_files(limit);
    }
    signal::default_sigpipe();
    signal::restore(mask);
    let error = process::exec(&config.program, &config.arguments, environment);
    say!("uswap: {}: {error}", config.program.to_string_lossy());
    process::exit_now(if error.kind() == std::io::ErrorKind::NotFound { exit::NOT_FOUND } else { exit::NOT_EXECUTABLE })
}

/// The receiving ends of channels, for the threads that read them.
pub struct Channels {
    pub matches: std::sync::mpsc::Receiver<uswap_remote::identity::lookup::MatchJob>,
    pub tape: Option<uswap_pager::record::Tape>,
    pub questions: std::sync::mpsc::Receiver<uswap_pager::load_control::Question>,
}

fn share(config: &RunConfig, keeper: u32) -> Result<(Arc<EngineContext>, Channels), String> {
    let faults = FaultPoints::parse(&config.fault_points).map_err(|entry| format!("unknown fault point {entry:?}"))?;
    let secret = process::random_word().map_err(|error| format!("no random numbers: {error}"))?;
    let hasher = PageHasher::new(secret);
    let store = Store::new(StoreConfig {
        pool_limit_bytes: (config.limit as f64 * PoolSizer::new(config.pool_share).percent() / 100.0) as u64,
        pool_reserve_bytes: config.limit.next_multiple_of(1 << 20),
        hasher,
        devices: open_devices(config)?
            .into_iter()
            .map(|(device, prio)| (swapon::slowed(device, &faults), prio))
            .collect(),
        concurrency: Concurrency::default(),
        tier: config.tier,
    })
    .map_err(|error| format!("the store cannot be set up: {error}"))?;
    store.tune(faults.tuning());
    faults.set_in(&store.faults);
    let processors = process::processors();
    let (matches, match_jobs) = std::sync::mpsc::channel();
    let (asked, questions) = sync_channel(uswap_pager::load_control::MAX_QUESTIONS);
    let owners = processors.clamp(1, 4);
    let mailboxes: std::io::Result<Vec<_>> = (0..owners).map(|_| Mailbox::new().map(Arc::new)).collect();
    let mailboxes = mailboxes.map_err(|error| format!("eventfd: {error}"))?;
    let (recorder, tape) = config.record.clone().map(uswap_pager::record::Recorder::new).unzip();
    let of_memory = RemoteShared {
        prover: Prover::new(faults.one_proof),
        matches,
        fetched: Mutex::default(),
        tracing: Mutex::default(),
        refused: Mutex::default(),
        attach_stops: Default::default(),
        descriptors: Descriptors::new().map_err(|error| format!("descriptors: {error}"))?,
        tree: Tree::of(config.target, keeper),
        leaving: DetachState::new(owners),
        above: Box::<RunShared>::default(),
    };
    let shared = EngineContext {
        of_memory,
        store,
        budget: Budget::new(config.limit, processors).with_slack(!faults.no_slack),
        groups: Groups::new(processors, mailboxes.iter().map(|mailbox| mailbox.lowered.clone()).collect()),
        load: uswap_pager::load_control::LoadControlState::new(config.load_control || faults.crowd, owners, asked),
        counters: Default::default(),
        latencies: Default::default(),
        hasher,
        mailboxes,
        readers: Readers::new(faults.one_read),
        faults,
        relatives: Default::default(),
        pool_share: ShareTold::new(config.pool_share),
        page_callers: Default::default(),
        main_bell: EventFd::new().map_err(|error| format!("eventfd: {error}"))?,
        managed: uswap_pager::context::Managed::default(),
        recorder,
        storing: uswap_pager::context::StoreQueue {
            jobs: Jobs::new(evict::MAX_STORING),
            lists: TrayList::reserve(evict::MAX_STORING + threads::MAX_WORKERS + 2 * owners),
        },
        gauges: uswap_pager::context::PagerGauges {
            manageable: (0..owners).map(|_| Default::default()).collect(),
            idle: (0..owners).map(|_| Default::default()).collect(),
            zero_pages: Default::default(),
        },
        said: uswap_pager::context::Said { verdict: Mutex::default(), notices: Mutex::default() },
    };
    Ok((Arc::new(shared), Channels { matches: match_jobs, tape, questions }))
}

/// Devices with their priorities.
type RunDevices = Vec<(Box<dyn Device>, i32)>;

fn open_devices(config: &RunConfig) -> Result<RunDevices, String> {
    if config.swap.is_empty() {
        return default_device(config).map(|device| vec![(device, 0)]);
    }
    let open = |spec: &SwapSpec| {
        let device = swapon::open_device(spec, config.limit).map_err(|error| format!("--swap {error}"))?;
        Ok((device, spec.priority()))
    };
    config.swap.iter().map(open).collect()
}

/// An unnamed, sparse file in $TMPDIR or /var/tmp, which may grow to half of the free space of its
/// disk. If TMPDIR is set and the file lies elsewhere the user is told.
fn default_device(config: &RunConfig) -> Result<Box<dyn Device>, String> {
    let mut refused = Vec::new();
    for directory in process::temporary_folder().into_iter().chain([PathBuf::from("/var/tmp")]) {
        let opened = swapon::half_of_free(&directory)
            .map_err(|error| format!("{}: {error}", directory.display()))
            .and_then(|size| FileDevice::unnamed(&directory, size, IoBackend::Auto).map_err(|error| error.to_string()));
        match opened {
            Ok(device) => {
                if let (Some(why), true) = (refused.first(), config.verbosity > 0) {
                    let place = directory.display();
                    say!("uswap: no swap file in $TMPDIR: {why}; it is in {place} (--swap PATH names another place)");
                }
                return Ok(Box::new(device));
            }
            Err(error) => refused.push(error),
        }
    }
    Err(format!("no place for a swap file: {}; name one with --swap", refused.join("; ")))
}

/// How long the figures of a run that has ended wait for the release of its programs' pages.
const LAST_ENDS: Duration = Duration::from_secs(1);

/// How long killed agents mostly take to end. In that time the main thread waits for the end of
/// each.
const AGENTS_END: Duration = Duration::from_millis(10);

/// Whether agents that were killed at `seen_off` are likely still to end.
fn agents_are_ending(seen_off: Option<Instant>) -> bool {
    seen_off.is_some_and(|at| at.elapsed() < AGENTS_END)
}

impl Engine {
    /// Supervises the run until the command and all processes that it left behind have ended.
    /// Returns the user's exit status.
    fn supervise(&mut self, control: &ControlPage) -> i32 {
        let mut ready = Vec::new();
        let mut ended: Option<(i32, Instant)> = None;
        let mut told = false;
        let mut exhaustion: Option<Exhaustion> = None;
        let mut seen_off: Option<Instant> = None;
        loop {
            ready.clear();
            let soon = ended.is_some() || self.attached.as_ref().is_some_and(|attached| attached.is_busy(&self.shared));
            let patience = if agents_are_ending(seen_off) {
                // Waits for SIGCHLD. Polling without a wait would keep the agent from a processor.
                let _ = signal::take(AGENTS_END / 10);
                0
            } else if soon {
                5
            } else {
                50
            };
            if self.poller.wait(patience, &mut ready).is_err() {
                return exit::ENGINE_DIED;
            }
            for event in &ready {
                match event.token {
                    DOOR => self.open_door(control),
                    BELL => {
                        self.shared.main_bell.clear();
                        self.open_door(control);
                    }
                    // The end of the command is handled below, once.
                    COMMAND => self.poller.remove(&self.command_fd),
                    KEEPER => match &self.attached {
                        Some(attached) => {
                            self.poller.remove(&self.keeper);
                            attached.detach(&self.shared);
                        }
                        None => {
                            self.shared.kill_tree();
                            return exit::ENGINE_DIED;
                        }
                    },
                    visitor => self.door.hear(visitor - FIRST_VISITOR, |socket| self.poller.remove(socket)),
                }
            }
            self.tell_notices();
            self.start_later();
            if self.shared.of_memory.descriptors.are_short() {
                self.shared.of_memory.descriptors.refill();
            }
            reader::threads::follow_load(&self.shared);
            self.talk.go_on(&self.shared);
            if let Some(status) = self.judged(&mut exhaustion) {
                return status;
            }
            if let Some(attached) = &mut self.attached {
                attached.tell_keeper(&self.shared, control);
                if let Some(status) = attached.look(&self.shared, &self.config, control) {
                    self.leave_undisturbed();
                    return status;
                }
                continue;
            }
            if let Some(status) = self.reap(control) {
                ended = Some((status, Instant::now()));
                control.stopped.store(2, SeqCst);
            }
            if let Some((status, at)) = ended {
                if agents_are_ending(seen_off) && process::has_children() {
                    continue;
                }
                // Processes that cannot be read count as not ended.
                let Ok(left) = procfs::children_seen(std::process::id()) else { continue };
                if left.is_empty() {
                    return status;
                }
                if seen_off.is_none() && processes::end_those_left(&left) {
                    seen_off = Some(Instant::now());
                }
                self.wait_for_rest(control, &left, at, &mut told);
            }
        }
    }

    /// Starts the later threads once memory is to be managed.
    fn start_later(&mut self) {
        if !RunShared::of(&self.shared).is_expecting.load(SeqCst) {
            return;
        }
        if let Some(Err(error)) = self.later.take().map(Later::start) {
            self.shared.condemn(Verdict::Broken(format!("cannot start a thread: {error}")));
        }
    }

    /// Ends the attacher's work: when this returns no thread of the program is stopped by it, and
    /// none will be.
    fn leave_undisturbed(&mut self) {
        self.stopping.store(true, SeqCst);
        self.shared.of_memory.leaving.end();
        drop(self.shared.of_memory.tracing.lock().expect("tracing"));
    }

    fn open_door(&mut self, control: &ControlPage) {
        if self.attached.is_some() && !self.shared.of_memory.fetched.lock().expect("fetched").is_empty() {
            control.holds.store(1, SeqCst);
        }
        let poller = &self.poller;
        self.door.welcome(|number, socket| {
            // A pending agent that cannot be polled is dropped after a while.
            let _ = poller.add(socket, FIRST_VISITOR + number);
        });
    }

    /// Reaps all children. The exit status of the command is that of the run.
    fn reap(&mut self, control: &ControlPage) -> Option<i32> {
        let mut status = None;
        // While the attacher traces a thread this is left; it rings when it is done.
        let Ok(tracing) = self.shared.of_memory.tracing.try_lock() else { return None };
        if *tracing > 0 {
            return None;
        }
        while let Ok(Some((pid, change))) = process::wait_news(None) {
            if pid != self.command {
                continue;
            }
            match change {
                ChildChange::Exited(code) => status = Some(code),
                ChildChange::Killed(signal) => status = Some(128 + signal),
                ChildChange::Stopped(_) => control.stopped.store(1, SeqCst),
                ChildChange::Continued => {
                    control.stopped.store(0, SeqCst);
                    // The keeper may have stopped together with the command.
                    let _ = process::kill(process::parent(), 18);
                }
            }
        }
        status
    }

    fn wait_for_rest(&self, control: &ControlPage, left: &[u32], since: Instant, told: &mut bool) {
        if !*told && since.elapsed() > Duration::from_secs(1) && self.config.verbosity > 0 {
            *told = true;
            say!("uswap: the command has ended; waiting for {} process(es) it left behind", left.len());
        }
        if control.end_requested.load(SeqCst) != 0 {
            self.shared.kill_tree();
        }
    }

    /// Checks whether the engine must end the tree. Returns the exit status then.
    fn judged(&mut self, exhaustion: &mut Option<Exhaustion>) -> Option<i32> {
        let budget = &self.shared.budget;
        let exhausted = budget.exhausted.load(SeqCst) && !budget.has_room(1);
        if !exhausted {
            *exhaustion = None;
        } else if exhaustion.get_or_insert_with(|| Exhaustion::new(budget)).is_hopeless(budget) {
            *exhaustion = None;
            if self.attached.is_some() {
                self.yield_to_program();
            } else {
                let text =
                    "swap space and pool are full and nothing can be freed; give more with --swap PATH,size=SIZE";
                self.shared.condemn(Verdict::Exhausted(text.into()));
            }
        }
        let verdict = self.shared.said.verdict.lock().expect("verdict").clone()?;
        let left = self.shared.kill_tree();
        let (text, status) = match verdict {
            Verdict::Exhausted(text) => (text, exit::EXHAUSTED),
            Verdict::Broken(text) => (text, exit::BROKEN),
        };
        say!("uswap: all programs of this run were killed: {text}");
        left.iter().for_each(|left| say!("uswap: {left}"));
        Some(status)
    }

    /// A program that was attached to is not ended for want of swap space: its budget grows.
    fn yield_to_program(&self) {
        let limit = (self.shared.budget.limit() as u64) << 12;
        let more = limit + limit / 4;
        RunShared::of(&self.shared).orders.limit.store(more, SeqCst);
        self.shared.budget.set_limit(more);
        let text = "swap space and pool are full and nothing can be freed: the budget is";
        self.shared.alarm(format!("{text} {} now; uswap swapon gives it more space", human(more)));
    }

    fn tell_notices(&self) {
        self.shared.store.device_news(|news| {
            if news.grave || self.config.verbosity > 0 {
                say!("uswap: {}", news.text);
            }
        });
        for notice in std::mem::take(&mut *self.shared.said.notices.lock().expect("notices")) {
            if notice.grave || self.config.verbosity > 0 {
                say!("uswap: {}", notice.text);
            }
        }
    }

    /// Writes the rest of the trace, if there is one, and tells the user the outcome.
    fn end_recording(&mut self) {
        let (Some(recorder), Some(thread)) = (&self.shared.recorder, self.recording.take()) else { return };
        let lost = recorder.end();
        let text = match thread.join() {
            Ok(Ok(written)) if lost == 0 => return self.say(&format!("recorded {written} touches")),
            Ok(Ok(written)) => {
                format!("recorded {written} touches; {lost} were lost, since they came too fast to be written")
            }
            Ok(Err(error)) => format!("the trace is incomplete: {error}"),
            Err(_) => "the trace is incomplete".into(),
        };
        say!("uswap: {text}");
    }

    fn say(&self, text: &str) {
        if self.config.verbosity > 0 {
            say!("uswap: {text}");
        }
    }

    /// Waits until the pagers have released the pages of all programs, which have ended, so that
    /// the figures tell of a finished run. The wait has a bound.
    fn wait_for_ends(&self) {
        let since = Instant::now();
        while self.shared.load.has_spaces() && since.elapsed() < LAST_ENDS {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Stops the threads, and writes the reports that the user asked for.
    fn stop(&mut self, status: i32) {
        if self.config.stats.is_some() {
            self.wait_for_ends();
        }
        self.stopping.store(true, SeqCst);
        for mailbox in &self.shared.mailboxes {
            mailbox.post(Message::Stop);
        }
        Governor::measure_at_the_end(&self.governor);
        self.end_recording();
        self.tell_notices();
        self.poller.remove(self.keeper.as_fd());
        if self.config.verbosity > 0 {
            let program = self.config.program.to_string_lossy();
            let end = heap_limits::of_end(status, &program, self.shared.counters.pgsteal.get());
            say!("{}", report::summary(&self.shared, end));
        }
        if let Some(path) = &self.config.stats {
            let text = crate::control::protocol::in_json(&report::figures(&self.shared));
            if let Err(error) = std::fs::write(path, text) {
                say!("uswap: {}: {error}", path.display());
            }
        }
    }
}
