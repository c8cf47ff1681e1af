//! The control socket of a mount: it understands the requests of a run, as far as they make sense
//! for a cache.

use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use uswap_core::PAGE;
use uswap_core::util::size::human;
use uswap_device::SwapSpec;
use uswap_run::control::last_swapoff::LastSwapoff;
use uswap_run::control::protocol::Request;
use uswap_run::control::protocol::answer::{CompressorAnswer, LimitAnswer, Refusal, SwaponAnswer};
use uswap_run::control::protocol::encode;
use uswap_run::control::protocol::request::NewBudget;
use uswap_run::control::protocol::status::{MountFigures, RunFigures, RunStatus};
use uswap_run::control::{self, report};
use uswap_sys::io::socket::peer_credentials;
use uswap_sys::process::thread::spawn;
use uswap_sys::process::user;

use crate::MIN_RAM;
use crate::auto_ram::AutoRam;
use crate::cache::FileCache;
use crate::tree::SourceTree;
use crate::{group_orders, swapoff};

/// Time limit for one caller.
const CALLER_TIMEOUT: Duration = Duration::from_secs(1);
/// Longest request in bytes.
const LONGEST_REQUEST: usize = 4096;

/// The identity that a mount tells.
#[derive(Clone, Debug)]
pub struct MountIdentity {
    /// Its name.
    pub name: String,
    /// The folder whose files are cached.
    pub source: String,
    /// Where it is mounted.
    pub mountpoint: String,
}

/// The socket, bound.
#[derive(Debug)]
pub struct MountControl {
    listener: UnixListener,
    identity: MountIdentity,
    begun: Instant,
    swapoff: LastSwapoff,
    auto: Arc<AutoRam>,
}

impl MountControl {
    /// Binds the socket, which takes the name.
    ///
    /// # Errors
    /// For the user: the name is taken, or no name.
    pub fn bind(identity: MountIdentity, auto: Arc<AutoRam>) -> Result<Self, String> {
        let name = &identity.name;
        control::check_name(name).map_err(|error| format!("--name {name:?}: {error}"))?;
        let bound = control::address(user(), name).and_then(|address| UnixListener::bind_addr(&address));
        let listener = bound.map_err(|error| match error.kind() {
            std::io::ErrorKind::AddrInUse => format!("a run or mount named {name:?} is there already"),
            _ => format!("the control socket of {name:?} cannot be made: {error}"),
        })?;
        Ok(Self { listener, identity, begun: Instant::now(), swapoff: LastSwapoff::default(), auto })
    }

    /// Serves callers in a thread of its own, as long as the process lives.
    ///
    /// # Errors
    /// EAGAIN: no more threads.
    pub fn start(self, cache: Arc<FileCache>, tree: Arc<SourceTree>) -> std::io::Result<()> {
        spawn("control".into(), move || {
            loop {
                match self.listener.accept() {
                    // A caller that is gone has no use for an answer.
                    Ok((stream, _)) => drop(self.answer(&stream, &cache, &tree)),
                    Err(_) => std::thread::sleep(Duration::from_millis(100)),
                }
            }
        })
    }

    fn answer(&self, stream: &UnixStream, cache: &Arc<FileCache>, tree: &SourceTree) -> std::io::Result<()> {
        let deadline = Instant::now() + CALLER_TIMEOUT;
        let caller = peer_credentials(stream)?.user;
        let line = control::read_line(stream, LONGEST_REQUEST, deadline)?;
        let obeyed = match caller == 0 || caller == user() {
            true => Request::decode(&line).and_then(|request| self.obey(request, cache, tree)),
            false => Err("this mount belongs to another user".into()),
        };
        let reply = obeyed.unwrap_or_else(|error| encode(&Refusal { error }));
        let deadline = deadline.max(Instant::now() + CALLER_TIMEOUT / 4);
        control::write_all(stream, format!("{reply}\n").as_bytes(), deadline)
    }

    fn obey(&self, request: Request, cache: &Arc<FileCache>, tree: &SourceTree) -> Result<String, String> {
        match request {
            Request::Status {} => Ok(encode(&self.status(cache, tree))),
            Request::Limit { bytes } => self.limit(cache, bytes).map(|answer| encode(&answer)),
            Request::Swapon { spec } => swapon(cache, &self.identity.mountpoint, &spec).map(|answer| encode(&answer)),
            Request::Swapoff { device } => swapoff::begin(cache, &self.swapoff, &device).map(|answer| encode(&answer)),
            Request::SwapoffStop {} => self.swapoff.stop().map(|answer| encode(&answer)),
            Request::Compressor { compressor } => set_compressor(cache, &compressor).map(|answer| encode(&answer)),
            Request::GroupCreate { group, limit } => {
                group_orders::create(tree, &group, limit.as_deref()).map(|answer| encode(&answer))
            }
            Request::GroupLimit { group, limit } => {
                group_orders::limit(tree, &group, &limit).map(|answer| encode(&answer))
            }
            Request::GroupRemove { group } => group_orders::remove(tree, &group).map(|answer| encode(&answer)),
            Request::GroupMove { .. } => {
                Err("the groups of a mount are folders: a file is in the group of the folder that it lies in".into())
            }
            _ => Err("it is a mount, which does not know this order: it has status, limit, swapon, swapoff, \
                      compressor and group"
                .into()),
        }
    }

    fn limit(&self, cache: &FileCache, budget: NewBudget) -> Result<LimitAnswer, String> {
        let NewBudget::Bytes(bytes) = budget else {
            self.auto.set(true);
            self.auto.follow(cache);
            return Ok(LimitAnswer { ram_limit_bytes: cache.ram(), ram_bytes: None, auto: Some(true) });
        };
        if bytes < MIN_RAM {
            return Err(format!("{} is too little: the least that works is {}", human(bytes), human(MIN_RAM)));
        }
        if bytes > cache.most_ram() {
            return Err(format!("{} is more than this mount can take: {}", human(bytes), human(cache.most_ram())));
        }
        self.auto.set(false);
        cache.set_ram(bytes);
        Ok(LimitAnswer { ram_limit_bytes: bytes, ram_bytes: Some(cache.memory().used()), auto: None })
    }

    fn status(&self, cache: &FileCache, tree: &SourceTree) -> RunStatus {
        let MountIdentity { name, source, mountpoint } = self.identity.clone();
        RunStatus {
            name,
            pid: std::process::id(),
            engine_pid: std::process::id(),
            user: user(),
            command: vec!["mount".into(), source.clone(), mountpoint.clone()],
            uptime_ms: self.begun.elapsed().as_millis() as u64,
            version: env!("CARGO_PKG_VERSION").into(),
            figures: RunFigures {
                swapoff: self.swapoff.figures(),
                groups: group_orders::figures(tree),
                ..run_figures(cache)
            },
            mount: Some(MountFigures { source, mountpoint, ..figures(cache) }),
            ..RunStatus::default()
        }
    }
}

fn run_figures(cache: &FileCache) -> RunFigures {
    let memory = cache.memory();
    let figures = RunFigures {
        ram_bytes: memory.used(),
        ram_peak_bytes: cache.peak(),
        ram_limit_bytes: cache.ram(),
        ..RunFigures::default()
    };
    match cache.below() {
        Some(below) => report::with_store(figures, below.store().stats()),
        None => figures,
    }
}

fn figures(cache: &FileCache) -> MountFigures {
    let told = cache.page_figures();
    let counters = &cache.counters;
    MountFigures {
        files: told.files,
        resident_pages: told.resident,
        active_pages: told.active,
        stored_pages: told.stored,
        history_pages: told.history,
        table_bytes: told.table_bytes + cache.memory().names,
        asked_pages: counters.asked.load(Relaxed),
        hit_pages: counters.hits.load(Relaxed),
        store_hit_pages: counters.store_hits.load(Relaxed),
        source_pages: counters.source_reads.load(Relaxed),
        store_errors: counters.store_errors.load(Relaxed),
        found_pages: counters.found.load(Relaxed),
        kept_pages: counters.kept.load(Relaxed),
        written_pages: counters.written.load(Relaxed),
        invalidations: counters.invalidations.load(Relaxed),
        evicted_pages: told.counts.evictions,
        refault_pages: told.counts.refaults,
        activated_pages: told.counts.activations,
        warnings: cache.warnings.all(),
        ..MountFigures::default()
    }
}

/// Whether a place lies in the folder that is mounted: its pages would pass the cache that they
/// left.
fn is_within(place: &str, mountpoint: &str) -> bool {
    let device = |path: &Path| std::fs::metadata(path).ok().map(|folder| folder.dev());
    let folder = Path::new(place).parent().and_then(device);
    folder.is_some() && folder == device(Path::new(mountpoint))
}

fn swapon(cache: &FileCache, mountpoint: &str, spec: &str) -> Result<SwaponAnswer, String> {
    let below = cache.below().ok_or("it was mounted with --pool 0 and without --swap, and so has no store")?;
    let parsed: SwapSpec = spec.parse().map_err(|error| format!("{spec}: {error}"))?;
    if let Some(place) = parsed.places().map(ToString::to_string).find(|place| is_within(place, mountpoint)) {
        return Err(format!("{place} lies in the mount itself: give a file outside of {mountpoint}"));
    }
    let device = crate::open_device(&parsed, cache.ram())?;
    let (device_name, size_bytes) = (device.name().to_owned(), u64::from(device.slots()) * PAGE);
    let priority = parsed.priority();
    below.store().add_device(device, priority).ok_or("this mount has had 255 devices, which is the most")?;
    Ok(SwaponAnswer { device: device_name, size_bytes, priority })
}

fn set_compressor(cache: &FileCache, name: &str) -> Result<CompressorAnswer, String> {
    let below = cache.below().ok_or("it was mounted with --pool 0 and without --swap, and so has no store")?;
    let compression: uswap_store::Compression = name.parse()?;
    let before = below.store().compression().to_string();
    below.store().set_compression(compression)?;
    Ok(CompressorAnswer { compressor: compression.to_string(), before })
}
