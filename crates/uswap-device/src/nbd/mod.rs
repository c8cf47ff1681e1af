//! Swap slots on an NBD server: on another machine, or in another process.
//!
//! Requests go over one or several connections (`connection.rs`), each of which is made again when
//! it breaks (`reconnect.rs`). When the connection of a request breaks, its own caller, who still
//! has its bytes, sends it again on another connection; the request ends with the server's answer,
//! or with EIO when its time limit (`timeout=`) has passed. A server that has not answered for that
//! long is *lost*: from then on requests fail at once, except one each second that tests whether
//! the server is back.
//!
//! **Order.** The store writes a slot only after the last write to it has returned, and reads it
//! only then. So requests in flight never overlap, and may be executed in any order, also twice.
//! One case remains: a server that was given up while it held a write (or a TRIM) may execute it
//! later, when the slot has been freed and written again. So a server that is merely slow is not
//! given up before the time limit; a server that is restarted has forgotten the requests that it
//! held. The protocol has no means against this case. Then the slot holds old bytes; the store's
//! checksum of the page detects it, and the page is reported as lost. It is never read as if it
//! were right.
//!
//! **Signature.** The first page of an export holds a signature, so that foreign data is not
//! overwritten, and a random number of this run: after a reconnect this number must be there, and
//! size and flags must be the same. A server that now has another export under the same name is
//! refused.

mod connection;
mod handshake;
mod queue;
mod reconnect;
mod reply;
mod server;
mod stream;
mod tls;
mod uri;
mod wire;

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use uswap_core::PAGE_SIZE;
use uswap_core::util::growth::{Growth, during};

use crate::device::{ConnectionStatus, Device, DeviceClass, Errno, News, ReadRequest, check_part, check_range};
use crate::open::{SIGNATURE, is_swap_header};
use crate::queue::ReadQueue;
use connection::{Breakage, Broken, Connection, DEPTH, NbdOrder};
pub use handshake::{Export, ExportTold, HandshakeError, parse_greeting, parse_option_reply};
use queue::NbdQueue;
use reconnect::{Look, Reconnector};
pub use reply::{CookieTable, Decoder, Direct, Malformed, ReplyProgress};
use server::{ConnectError, NbdServer};
pub use uri::NbdUri;
use wire::{NbdCommand, flag};

/// Bytes before slot 0.
const BASE: u64 = PAGE_SIZE as u64;
const CLUSTER_BYTES: u64 = 512 * PAGE_SIZE as u64;
/// Default number of connections, where the server allows several.
const CONNECTIONS: u32 = 4;
/// Maximum number of connections that a user can ask for.
pub const MAX_CONNECTIONS: u32 = 16;
/// Time limit of connecting.
const CONNECT: Duration = Duration::from_secs(5);
/// Time limit of connecting while other connections are up.
const CONNECT_ASIDE: Duration = Duration::from_millis(500);
/// Interval at which a lost server is tried again.
const PROBE: Duration = Duration::from_secs(1);
/// Offset of the run's number in the first page.
const OWNER_AT: usize = 32;
const OWNER: usize = 16;
/// Length in bytes of one TRIM request when the whole device is discarded.
const TRIM_BYTES: u32 = 1 << 30;

/// How to use an export.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NbdOptions {
    /// Time limit of a request, all attempts together.
    pub timeout: Duration,
    /// Number of connections; `None`: the default.
    pub connections: Option<u32>,
    /// Maximum number of bytes used; `None`: the whole export.
    pub size: Option<u64>,
}

impl Default for NbdOptions {
    fn default() -> Self {
        Self { timeout: Duration::from_secs(30), connections: None, size: None }
    }
}

/// Why an export cannot be swapped to.
#[derive(Debug)]
pub struct NbdError {
    uri: String,
    why: NbdWhy,
}

#[derive(Debug)]
enum NbdWhy {
    Connect(ConnectError),
    TooSmall(u64),
    HoldsData,
    OneConnection(u32),
    FirstPage(String),
    Forgets,
    Changed(&'static str),
}

impl fmt::Display for NbdError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.uri, self.why)
    }
}

impl fmt::Display for NbdWhy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connect(error) => error.fmt(f),
            Self::TooSmall(bytes) => write!(f, "the export has {bytes} bytes, room for less than 2 MiB of slots"),
            Self::HoldsData => f.write_str("the export holds data that is not swap; empty it first"),
            Self::OneConnection(n) => {
                write!(
                    f,
                    "the server does not say that several connections see the same data: connections={n} is not possible"
                )
            }
            Self::FirstPage(why) => write!(f, "the export's first page: {why}"),
            Self::Forgets => f.write_str("what is written to the export does not come back"),
            Self::Changed(what) => write!(f, "this is not the export that was left: {what}"),
        }
    }
}

impl std::error::Error for NbdError {}

/// An export of an NBD server.
pub struct NbdDevice {
    name: String,
    server: NbdServer,
    export: Export,
    owner: [u8; OWNER],
    slots: u32,
    /// Whether the device may open connections besides those of `links`.
    may_have_more: bool,
    timeout: Duration,
    latency: Duration,
    links: Box<[Reconnector]>,
    turn: AtomicUsize,
    troubled: AtomicBool,
    trouble: Mutex<Trouble>,
    can_discard: AtomicBool,
    /// The content stays on the server when the device is closed.
    kept: AtomicBool,
    /// The server refused a read of a part of a page, although it reported a smaller sector.
    whole_pages: AtomicBool,
    news: Mutex<Vec<News>>,
}

/// Since when no request has succeeded.
#[derive(Default)]
struct Trouble {
    since: Option<Instant>,
    next_probe: Option<Instant>,
    /// The server accepts connections but does not answer; only an answer ends this state.
    silent: bool,
    told_lost: bool,
}

/// The deadline of one request.
#[derive(Clone, Copy)]
struct Patience {
    deadline: Instant,
    probe: bool,
}

impl NbdDevice {
    /// Connects to the export and marks it as used by this run.
    ///
    /// # Errors
    /// [`NbdError`] names the reason; the export is unchanged then.
    pub fn open(uri: &NbdUri, options: NbdOptions) -> Result<Self, NbdError> {
        Self::try_open(uri, options).map_err(|why| NbdError { uri: uri.text.clone(), why })
    }

    fn try_open(uri: &NbdUri, options: NbdOptions) -> Result<Self, NbdWhy> {
        let patience = options.timeout.min(CONNECT);
        let server = NbdServer::find(uri).map_err(NbdWhy::Connect)?;
        let (stream, export) =
            server.connect(Instant::now() + patience, patience_of_tcp(options.timeout)).map_err(NbdWhy::Connect)?;
        let room = export.size.saturating_sub(BASE);
        if room < CLUSTER_BYTES {
            return Err(NbdWhy::TooSmall(export.size));
        }
        let count = match options.connections {
            Some(n) if n > 1 && !export.allows_several() => return Err(NbdWhy::OneConnection(n)),
            Some(n) => n.clamp(1, MAX_CONNECTIONS),
            None if export.allows_several() => CONNECTIONS,
            None => 1,
        };
        let bytes = options.size.map_or(room, |size| size.min(room));
        if bytes < CLUSTER_BYTES {
            return Err(NbdWhy::TooSmall(bytes));
        }
        let line = Connection::new(stream, export.structured);
        // The server is there, but it may have a slow disk or much to do.
        let owner = claim(&line, Instant::now() + options.timeout)?;
        let round_trip = measure(&line, Instant::now() + options.timeout).map_err(|Broken| broken(&line))?;
        let device = Self {
            name: uri.text.clone(),
            server,
            export,
            owner,
            slots: (bytes / PAGE_SIZE as u64).min(u64::from(u32::MAX) - 1) as u32,
            may_have_more: options.connections.is_none() && export.allows_several(),
            timeout: options.timeout,
            latency: round_trip,
            links: (0..count).map(|_| Reconnector::default()).collect(),
            turn: AtomicUsize::new(0),
            troubled: AtomicBool::new(false),
            trouble: Mutex::default(),
            can_discard: AtomicBool::new(export.flags & (flag::SEND_TRIM | flag::SEND_WRITE_ZEROES) != 0),
            kept: AtomicBool::new(false),
            whole_pages: AtomicBool::new(false),
            news: Mutex::default(),
        };
        device.links[0].connected(Arc::new(line), round_trip);
        for link in &device.links[1..] {
            let (line, round_trip) = device.connect(Instant::now() + patience)?;
            link.connected(Arc::new(line), round_trip);
        }
        Ok(device)
    }

    /// Makes a new connection to the same export.
    fn connect(&self, deadline: Instant) -> Result<(Connection, Duration), NbdWhy> {
        let (stream, export) = self.server.connect(deadline, patience_of_tcp(self.timeout)).map_err(NbdWhy::Connect)?;
        if export.size != self.export.size {
            return Err(NbdWhy::Changed("it has another size"));
        }
        let abilities = |export: &Export| (export.flags, export.smallest, export.sector, export.largest);
        if abilities(&export) != abilities(&self.export) {
            return Err(NbdWhy::Changed("it can do other things"));
        }
        let line = Connection::new(stream, export.structured);
        let mut page = [0; PAGE_SIZE];
        let order = NbdOrder { command: NbdCommand::Read, offset: 0, length: PAGE_SIZE as u32 };
        match once(&line, order, &[], Some(&mut page), deadline) {
            Err(Broken) => return Err(broken(&line)),
            Ok(Err(errno)) => return Err(NbdWhy::FirstPage(errno.to_string())),
            Ok(Ok(())) if !page.starts_with(SIGNATURE) => return Err(NbdWhy::Changed("its first page is not ours")),
            Ok(Ok(())) if page[OWNER_AT..OWNER_AT + OWNER] != self.owner => {
                return Err(NbdWhy::Changed("another run has taken it"));
            }
            Ok(Ok(())) => {}
        }
        let round_trip = measure(&line, deadline).map_err(|Broken| broken(&line))?;
        Ok((line, round_trip))
    }

    /// The deadline of a request that begins now.
    fn begin(&self) -> Result<Patience, Errno> {
        let now = Instant::now();
        if !self.troubled.load(Relaxed) || !self.is_lost() {
            return Ok(Patience { deadline: now + self.timeout, probe: false });
        }
        let mut trouble = lock(&self.trouble);
        if trouble.next_probe.is_some_and(|next| now < next) {
            return Err(Errno::IO);
        }
        let deadline = now + self.timeout.min(PROBE);
        trouble.next_probe = Some(deadline + PROBE);
        Ok(Patience { deadline, probe: true })
    }

    /// Whether no request has succeeded for longer than the time limit of one.
    fn is_lost(&self) -> bool {
        let mut trouble = lock(&self.trouble);
        let lost = trouble.since.is_some_and(|since| since.elapsed() >= self.timeout);
        if lost && !trouble.told_lost {
            trouble.told_lost = true;
            drop(trouble);
            let why = self.links.iter().find_map(Reconnector::error).unwrap_or_default();
            let text = format!(
                "{}: lost, nothing went for {:.0?} ({why}); it is tried again each second",
                self.name, self.timeout
            );
            self.tell(true, text);
        }
        lost
    }

    fn note_trouble(&self, why: &str) {
        let mut trouble = lock(&self.trouble);
        self.troubled.store(true, Relaxed);
        if trouble.since.is_none() {
            trouble.since = Some(Instant::now());
            drop(trouble);
            self.tell(false, format!("{}: {why}; connecting again", self.name));
        }
    }

    /// A request timed out on this connection. A server that sent nothing at all meanwhile is lost
    /// at once, so that no other request waits as long again.
    fn note_break(&self, line: &Connection) {
        let Some(why @ Breakage::Silent(_)) = line.breakage() else { return };
        during(Growth::Telling, || self.note_trouble(&why.to_string()));
        let mut trouble = lock(&self.trouble);
        trouble.silent = true;
        trouble.since = Instant::now().checked_sub(self.timeout).or(trouble.since);
    }

    /// A connection was made, or an answer came.
    fn note_success(&self, answered: bool) {
        let mut trouble = lock(&self.trouble);
        if trouble.silent && !answered {
            return;
        }
        self.troubled.store(false, Relaxed);
        let before = std::mem::take(&mut *trouble);
        drop(trouble);
        if let Some(since) = before.since {
            let text = format!("{}: connected again after {:.1?}", self.name, since.elapsed());
            self.tell(before.told_lost, text);
        }
    }

    fn note_answer(&self) {
        if self.troubled.load(Relaxed) {
            during(Growth::Telling, || self.note_success(true));
        }
    }

    fn tell(&self, grave: bool, text: String) {
        lock(&self.news).push(News { grave, text });
    }

    /// The connection with the fewest requests in flight. Each call also looks at the next
    /// connection in turn, and makes it again if it is down.
    fn line(&self, patience: Patience) -> Result<Arc<Connection>, Errno> {
        loop {
            let turn = self.turn.fetch_add(1, Relaxed);
            let count = self.links.len();
            let loads =
                (0..count).map(|i| (turn + i) % count).filter_map(|i| self.links[i].load().map(|load| (load, i)));
            let best = loads.min_by_key(|(load, _)| *load).map(|(_, i)| &self.links[i]);
            let link = &self.links[turn % count];
            match link.look(true) {
                Look::Up(line) => match best.map(|best| best.look(false)) {
                    Some(Look::Up(better)) => return Ok(better),
                    _ => return Ok(line),
                },
                Look::Broke(why) => during(Growth::Devices, || self.note_trouble(&why)),
                Look::Yours => {
                    let up = during(Growth::Devices, || self.repair(link, patience, best.is_some()));
                    if patience.probe && !up {
                        return Err(Errno::IO);
                    }
                }
                Look::Later(until) => match best.map(|best| best.look(false)) {
                    Some(Look::Up(line)) => return Ok(line),
                    Some(Look::Broke(why)) => during(Growth::Devices, || self.note_trouble(&why)),
                    _ => link.wait(until.min(patience.deadline)),
                },
            }
            if Instant::now() >= patience.deadline || (!patience.probe && self.troubled.load(Relaxed) && self.is_lost())
            {
                return Err(Errno::IO);
            }
        }
    }

    /// Makes a connection again. Returns whether it is up.
    fn repair(&self, link: &Reconnector, patience: Patience, aside: bool) -> bool {
        let most = if aside { CONNECT_ASIDE } else { CONNECT };
        match self.connect(patience.deadline.min(Instant::now() + most)) {
            Ok((line, round_trip)) => {
                link.connected(Arc::new(line), round_trip);
                self.note_success(false);
                true
            }
            Err(why) => {
                let why = why.to_string();
                self.note_trouble(&why);
                link.failed(why);
                false
            }
        }
    }

    /// Sends one request, again each time its connection breaks, until its deadline.
    fn transfer(&self, order: NbdOrder, payload: &[u8], mut buffer: Option<&mut [u8]>) -> Result<(), Errno> {
        let patience = self.begin()?;
        loop {
            let line = self.line(patience)?;
            match once(&line, order, payload, buffer.as_deref_mut(), patience.deadline) {
                Ok(outcome) => {
                    self.note_answer();
                    return outcome;
                }
                Err(Broken) => self.note_break(&line),
            }
        }
    }

    fn order(&self, command: NbdCommand, first: u32, length: usize) -> NbdOrder {
        NbdOrder { command, offset: BASE + u64::from(first) * PAGE_SIZE as u64, length: length as u32 }
    }

    fn read_order(&self, first: u32, skip: usize, length: usize) -> NbdOrder {
        let order = self.order(NbdCommand::Read, first, length);
        NbdOrder { offset: order.offset + skip as u64, ..order }
    }

    fn check_read(&self, first: u32, skip: usize, length: usize) -> Result<(), Errno> {
        check_part(first, skip, length, self.export.sector as usize, self.slots)
    }

    /// Whether the server may have refused a read because it is less than a page. From then on
    /// parts of pages are not asked for.
    fn is_refused_part(&self, outcome: Result<(), Errno>, skip: usize, length: usize) -> bool {
        let part = skip != 0 || !length.is_multiple_of(PAGE_SIZE);
        let refused = part && outcome == Err(Errno::INVALID);
        if refused {
            self.whole_pages.store(true, Relaxed);
        }
        refused
    }

    /// Reads the whole pages that contain the sectors.
    fn read_by_pages(&self, first: u32, skip: usize, bytes: &mut [u8]) -> Result<(), Errno> {
        let (mut slot, mut from, mut rest) = (first + (skip / PAGE_SIZE) as u32, skip % PAGE_SIZE, bytes);
        let mut page = [0; PAGE_SIZE];
        while !rest.is_empty() {
            let (part, after) = rest.split_at_mut(rest.len().min(PAGE_SIZE - from));
            self.transfer(self.order(NbdCommand::Read, slot, PAGE_SIZE), &[], Some(&mut page))?;
            part.copy_from_slice(&page[from..from + part.len()]);
            (slot, from, rest) = (slot + 1, 0, after);
        }
        Ok(())
    }

    /// Reads as many requests as one connection has places for, in parallel. A request without a
    /// result was on a connection that broke.
    fn read_batch(&self, requests: &mut [ReadRequest<'_>]) -> usize {
        let line = self.begin().and_then(|patience| Ok((patience, self.line(patience)?)));
        let (patience, line) = match line {
            Ok(found) => found,
            Err(errno) => {
                requests.iter_mut().for_each(|request| request.result = Err(errno));
                return requests.len();
            }
        };
        let Ok(tickets) = line.take(requests.len().min(DEPTH), patience.deadline) else { return 0 };
        let batch = &mut requests[..tickets.indices().len()];
        let mut orders = [NbdOrder { command: NbdCommand::Read, offset: 0, length: 0 }; DEPTH];
        for (order, request) in orders.iter_mut().zip(batch.iter()) {
            *order = self.read_order(request.slot, request.skip, request.buf.len());
        }
        let mut results = [None; DEPTH];
        lend_all(&line, tickets.indices(), batch, &mut || {
            let sent = tickets.indices().iter().zip(&orders);
            if sent.map(|(index, order)| line.send(*index, *order, &[], patience.deadline)).all(|sent| sent.is_ok()) {
                for (result, index) in results.iter_mut().zip(tickets.indices()) {
                    *result = line.wait(*index, patience.deadline).ok();
                }
            }
        });
        line.give_back(&tickets);
        if results.iter().any(Option::is_some) {
            self.note_answer();
        }
        if results[..batch.len()].contains(&None) {
            self.note_break(&line);
        }
        for (request, result) in batch.iter_mut().zip(results) {
            // A request whose connection broke is sent again, alone; so is one whose part of a page
            // was refused.
            let again = |request: &mut ReadRequest<'_>| self.read_part(request.slot, request.skip, request.buf);
            request.result = match result {
                Some(result) if !self.is_refused_part(result, request.skip, request.buf.len()) => result,
                _ => again(request),
            };
        }
        batch.len()
    }
}

/// Lends the buffers of all requests at the desks of their places while `work` runs.
fn lend_all(line: &Connection, indices: &[u8], requests: &mut [ReadRequest<'_>], work: &mut dyn FnMut()) {
    match (indices.split_first(), requests.split_first_mut()) {
        (Some((index, indices)), Some((request, requests))) => {
            line.desk(*index).lend(request.buf, || lend_all(line, indices, requests, work));
        }
        _ => work(),
    }
}

/// One request on one connection.
fn once(
    line: &Connection,
    order: NbdOrder,
    payload: &[u8],
    buffer: Option<&mut [u8]>,
    deadline: Instant,
) -> Result<Result<(), Errno>, Broken> {
    let tickets = line.take(1, deadline)?;
    let index = tickets.indices()[0];
    let work = || {
        line.send(index, order, payload, deadline)?;
        line.wait(index, deadline)
    };
    let outcome = match buffer {
        Some(buffer) => line.desk(index).lend(buffer, work),
        None => work(),
    };
    line.give_back(&tickets);
    outcome
}

/// Time after which unacknowledged bytes end a connection: short enough to leave time for another
/// connection.
fn patience_of_tcp(timeout: Duration) -> Duration {
    timeout / 3
}

fn broken(line: &Connection) -> NbdWhy {
    NbdWhy::FirstPage(line.breakage().map_or_else(String::new, ToString::to_string))
}

/// Time to read one page: the shortest of three reads.
fn measure(line: &Connection, deadline: Instant) -> Result<Duration, Broken> {
    let mut page = [0; PAGE_SIZE];
    let order = NbdOrder { command: NbdCommand::Read, offset: 0, length: PAGE_SIZE as u32 };
    let mut shortest = Duration::MAX;
    for _ in 0..3 {
        let begun = Instant::now();
        // The server takes as long to answer with an error.
        let _ = once(line, order, &[], Some(&mut page), deadline)?;
        shortest = shortest.min(begun.elapsed());
    }
    Ok(shortest)
}

/// Writes the signature and a new number to the first page, unless the page shows that somebody's
/// data would be lost.
fn claim(line: &Connection, deadline: Instant) -> Result<[u8; OWNER], NbdWhy> {
    let mut page = [0; PAGE_SIZE];
    let ask = |command, payload: &[u8], buffer: Option<&mut [u8]>| {
        let order = NbdOrder { command, offset: 0, length: PAGE_SIZE as u32 };
        match once(line, order, payload, buffer, deadline) {
            Ok(outcome) => outcome.map_err(|errno| NbdWhy::FirstPage(errno.to_string())),
            Err(Broken) => Err(broken(line)),
        }
    };
    ask(NbdCommand::Read, &[], Some(&mut page))?;
    if !is_swap_header(&page) {
        return Err(NbdWhy::HoldsData);
    }
    let mut owner = [0; OWNER];
    for half in owner.chunks_mut(8) {
        let word = uswap_sys::process::random_word().map_err(|error| NbdWhy::FirstPage(error.to_string()))?;
        half.copy_from_slice(&word.to_ne_bytes());
    }
    page.fill(0);
    page[..SIGNATURE.len()].copy_from_slice(SIGNATURE);
    page[OWNER_AT..OWNER_AT + OWNER].copy_from_slice(&owner);
    ask(NbdCommand::Write, &page, None)?;
    let mut back = [0; PAGE_SIZE];
    ask(NbdCommand::Read, &[], Some(&mut back))?;
    if back != page {
        return Err(NbdWhy::Forgets);
    }
    Ok(owner)
}

impl Device for NbdDevice {
    fn name(&self) -> &str {
        &self.name
    }

    fn slots(&self) -> u32 {
        self.slots
    }

    fn class(&self) -> DeviceClass {
        // Pages that are transferred in one round trip at about 1 GB/s.
        let best_batch = (self.latency.as_micros() / 4).clamp(32, 256) as u32;
        DeviceClass { latency: self.latency, best_batch }
    }

    fn write(&self, first: u32, bytes: &[u8]) -> Result<(), Errno> {
        check_range(first, bytes.len(), self.slots)?;
        let largest = self.export.largest as usize;
        for (piece, n) in bytes.chunks(largest).zip(0..) {
            let slot = first + n * (largest / PAGE_SIZE) as u32;
            self.transfer(self.order(NbdCommand::Write, slot, piece.len()), piece, None)?;
        }
        Ok(())
    }

    fn read(&self, first: u32, bytes: &mut [u8]) -> Result<(), Errno> {
        self.read_part(first, 0, bytes)
    }

    fn sector(&self) -> usize {
        if self.whole_pages.load(Relaxed) { PAGE_SIZE } else { self.export.sector as usize }
    }

    fn read_part(&self, first: u32, skip: usize, bytes: &mut [u8]) -> Result<(), Errno> {
        self.check_read(first, skip, bytes.len())?;
        let largest = self.export.largest as usize;
        for (piece, n) in bytes.chunks_mut(largest).zip(0..) {
            let (slot, length) = (first + n * (largest / PAGE_SIZE) as u32, piece.len());
            let outcome = self.transfer(self.read_order(slot, skip, length), &[], Some(piece));
            match self.is_refused_part(outcome, skip, length) {
                true => self.read_by_pages(slot, skip, piece)?,
                false => outcome?,
            }
        }
        Ok(())
    }

    fn read_many(&self, requests: &mut [ReadRequest<'_>]) {
        let fits = |r: &ReadRequest<'_>| {
            let length = r.buf.len();
            length > 0 && length <= self.export.largest as usize && self.check_read(r.slot, r.skip, length).is_ok()
        };
        if requests.len() < 2 || !requests.iter().all(fits) {
            return requests.iter_mut().for_each(|r| r.result = self.read_part(r.slot, r.skip, r.buf));
        }
        let mut rest = requests;
        while !rest.is_empty() {
            let done = self.read_batch(rest);
            rest = &mut rest[done..];
        }
    }

    fn keep(&self) -> bool {
        self.kept.store(true, Relaxed);
        true
    }

    fn discard(&self, first: u32, count: u32) -> Result<(), Errno> {
        if !self.can_discard.load(Relaxed) || count == 0 {
            return Ok(());
        }
        let length = count as usize * PAGE_SIZE;
        check_range(first, length, self.slots)?;
        let command = if self.export.flags & flag::SEND_TRIM != 0 { NbdCommand::Trim } else { NbdCommand::WriteZeroes };
        let outcome = self.transfer(self.order(command, first, length), &[], None);
        if matches!(outcome, Err(Errno(libc::EINVAL | libc::ENOTSUP | libc::EPERM))) {
            self.can_discard.store(false, Relaxed);
        }
        outcome
    }

    /// Uses a connection besides the others, if the user did not set the number of connections.
    fn read_queue(&self) -> Option<Box<dyn ReadQueue>> {
        if !self.may_have_more || self.troubled.load(Relaxed) {
            return None;
        }
        let (line, _) = self.connect(Instant::now() + CONNECT_ASIDE).ok()?;
        Some(Box::new(NbdQueue::new(line.into_stream(), &self.export, self.slots)))
    }

    fn connections(&self) -> Vec<ConnectionStatus> {
        self.links.iter().map(Reconnector::status).collect()
    }

    fn note(&self) -> Option<String> {
        if !self.troubled.load(Relaxed) {
            return None;
        }
        let since = lock(&self.trouble).since?.elapsed();
        let why = self.links.iter().find_map(Reconnector::error).unwrap_or_default();
        Some(format!("{} for {since:.0?} ({why})", if since < self.timeout { "no connection" } else { "lost" }))
    }

    fn news(&self) -> Option<News> {
        let mut news = self.news.lock().ok()?;
        if news.is_empty() { None } else { Some(news.remove(0)) }
    }
}

impl Drop for NbdDevice {
    /// Discards the content, if the server still answers, so that the programs' memory content does
    /// not stay there.
    fn drop(&mut self) {
        if self.export.flags & flag::SEND_TRIM != 0 && !self.kept.load(Relaxed) {
            let Some(line) = self.links.iter().find_map(|link| match link.look(false) {
                Look::Up(line) => Some(line),
                _ => None,
            }) else {
                return;
            };
            let (deadline, mut at) = (Instant::now() + CONNECT, BASE);
            let end = BASE + u64::from(self.slots) * PAGE_SIZE as u64;
            while at < end {
                let length = (end - at).min(u64::from(TRIM_BYTES)) as u32;
                let order = NbdOrder { command: NbdCommand::Trim, offset: at, length };
                if !matches!(once(&line, order, &[], None, deadline), Ok(Ok(()))) {
                    break;
                }
                at += u64::from(length);
            }
        }
        self.links.iter().for_each(Reconnector::close);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
