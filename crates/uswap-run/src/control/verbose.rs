//! Messages of `-v` during a run, each on one line; with `-vv` also the figures, once a second.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use uswap_core::util::size::human;

use crate::config::RunConfig;
use crate::measure::heap_limits;
use crate::shared::RunShared;
use uswap_remote::EngineContext;

/// Prints one line for the user. A failure is ignored: a tree is not ended because its output has
/// no reader any more.
macro_rules! say {
    ($($words:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($words)*);
    }};
}
pub(crate) use say;

/// How often figures and new limits are printed.
const PERIOD: Duration = Duration::from_secs(1);
/// Levels of verbosity from which on events are printed, and figures.
const EVENTS: u8 = 2;
const FIGURES: u8 = 3;

/// The state that was printed last. Owned by the engine's main thread.
pub struct VerboseLog {
    verbosity: u8,
    managed: bool,
    unmanaged: HashSet<(u32, String)>,
    /// Processes that were checked for a heap limit of their own, and the programs that were named
    /// to the user.
    looked_at: HashSet<u32>,
    limited: HashSet<&'static str>,
    limit: i64,
    told: Instant,
    before: Rates,
}

/// Pages since the beginning of the run.
#[derive(Clone, Copy, Default)]
struct Rates {
    evicted: u64,
    brought: u64,
    from_devices: u64,
    soft: u64,
}

impl VerboseLog {
    /// Prints the settings with which the run begins.
    pub fn begin(config: &RunConfig, shared: &EngineContext) -> Self {
        let limit = shared.budget.limit();
        let talk = Self {
            verbosity: config.verbosity,
            managed: false,
            unmanaged: HashSet::new(),
            looked_at: HashSet::new(),
            limited: HashSet::new(),
            limit,
            told: Instant::now(),
            before: Rates::default(),
        };
        if talk.verbosity >= EVENTS {
            say!("uswap: the budget is {} ({})", pages(limit), config.origin);
            for device in &shared.store.stats().devices {
                let size = human(device.slots_total << 12);
                say!("uswap: swap on {}, {size}, priority {}", device.name, device.priority);
            }
        }
        talk
    }

    /// Prints the events since the last call. Called all the time.
    pub fn go_on(&mut self, shared: &EngineContext) {
        if self.verbosity < EVENTS {
            return;
        }
        self.tell_management(shared);
        self.tell_unmanaged(shared);
        let elapsed = self.told.elapsed();
        if elapsed >= PERIOD {
            self.told = Instant::now();
            self.tell_limit(shared);
            self.tell_heaps(shared);
            if self.verbosity >= FIGURES {
                self.tell_figures(shared, elapsed);
            }
        }
    }

    fn tell_management(&mut self, shared: &EngineContext) {
        if self.managed || shared.counters.managed_processes.get() == 0 {
            return;
        }
        let budget = &shared.budget;
        let names: Vec<String> = shared.managed.all().iter().filter(|(_, process)| process.active).map(named).collect();
        if names.is_empty() {
            // The managed process will be in the list at the next call; the message waits for its
            // name.
            return;
        }
        self.managed = true;
        let (used, limit) = (pages(budget.usage()), pages(budget.limit()));
        say!("uswap: {used} of {limit} are in use: memory is managed from now on, of {}", names.join(", "));
    }

    fn tell_unmanaged(&mut self, shared: &EngineContext) {
        for program in RunShared::of(shared).unmanaged.lock().expect("unmanaged").iter() {
            if self.unmanaged.insert((program.pid, program.name.clone())) {
                let (name, pid, memory) = (&program.name, program.pid, pages(program.pages));
                say!("uswap: {name} (process {pid}, {memory}) stays unmanaged: {}", program.why);
            }
        }
    }

    /// Prints a new limit. One that follows its cgroup moves all the time, so only changes of a
    /// sixty-fourth or more are printed.
    fn tell_limit(&mut self, shared: &EngineContext) {
        let limit = shared.budget.limit();
        if (limit - self.limit).abs() > self.limit / 64 {
            say!("uswap: the budget is {} now, {} before", pages(limit), pages(self.limit));
            self.limit = limit;
        }
    }

    /// Tells the user, once for each program, that the program limits its own heap.
    fn tell_heaps(&mut self, shared: &EngineContext) {
        let processes = shared.managed.all();
        self.looked_at.retain(|pid| processes.contains_key(pid));
        for pid in processes.keys() {
            if self.looked_at.insert(*pid)
                && let Some(runtime) = heap_limits::by_process(*pid)
                && self.limited.insert(runtime.program)
            {
                say!("uswap: {}", heap_limits::in_words(runtime, *pid));
            }
        }
    }

    fn tell_figures(&mut self, shared: &EngineContext, elapsed: Duration) {
        let (budget, counters, store) = (&shared.budget, &shared.counters, shared.store.stats());
        let swap: u64 = store.devices.iter().map(|device| device.slots_used << 12).sum();
        let now = Rates {
            evicted: counters.pgsteal.get(),
            brought: store.zswpin + store.pswpin,
            from_devices: store.pswpin,
            soft: counters.soft_faults.get(),
        };
        let rate = |now: u64, before: u64| (now - before) as f64 / elapsed.as_secs_f64();
        say!(
            "uswap: {} of {} in use, pool {} of {}, swap {}; pages a second: {:.0} evicted, {:.0} brought back ({:.0} from \
             devices), {:.0} soft faults",
            pages(budget.usage()),
            pages(budget.limit()),
            human(store.pool_bytes),
            human(store.pool_limit_bytes),
            human(swap),
            rate(now.evicted, self.before.evicted),
            rate(now.brought, self.before.brought),
            rate(now.from_devices, self.before.from_devices),
            rate(now.soft, self.before.soft),
        );
        self.before = now;
    }
}

fn named((pid, process): (&u32, &uswap_pager::context::ManagedProcess)) -> String {
    format!("{} (process {pid})", process.name)
}

fn pages(pages: i64) -> String {
    human((pages.max(0) as u64) << 12)
}
