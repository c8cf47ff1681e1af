//! One connection and the requests in flight on it.
//!
//! A connection has no thread of its own. A thread that has sent a request waits for its reply; one
//! of the waiting threads is the *leader*: it reads the socket, puts the bytes straight into the
//! buffers that the others have lent, and wakes those whose replies are complete. When the leader's
//! own reply has come, it passes the lead on to another thread. A single fault thus costs no thread
//! switch, and nothing runs while no thread waits.
//!
//! Each request in flight has a place in a fixed table. A cookie consists of the number of the
//! place and of how often the place was used, so that a reply that comes twice, or that belongs to
//! no request, is recognised. A request is given up only together with its whole connection: so no
//! reply can ever come late, and no buffer stays lent after its owner has stopped waiting.
//!
//! Locks, in the order in which they are taken: sender, receiver, a place, its desk. A thread that
//! holds the lock of a place only ever tries to lock the receiver.

use std::fmt;
use std::io::{self, IoSlice};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst, fence};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, TryLockError};
use std::time::{Duration, Instant};

use uswap_sys::alloc::loan::Desk;
use uswap_sys::io::net::{SocketReady, wait_ready};

use super::reply::{CookieTable, Decoder, Malformed, ReplyProgress};
use super::stream::{NbdStream, is_later};
use super::wire::{self, NbdCommand};
use crate::device::Errno;

/// Maximum number of requests in flight on one connection.
pub const DEPTH: usize = 64;
const INDEX_BITS: u32 = DEPTH.trailing_zeros();
/// Bytes of one read that does not go straight to a lent buffer: a reply with one page fits.
pub const INBOX: usize = 8192;
/// Longest wait before the deadline is checked again.
const GLANCE: Duration = Duration::from_millis(50);
/// The error number of a server that shuts down (ESHUTDOWN of the protocol).
const SHUTS_DOWN: u32 = 108;

/// Why a connection cannot be used any more.
#[derive(Clone, Debug)]
pub enum Breakage {
    /// The server closed it.
    Closed,
    /// A system call failed.
    Io(String),
    /// A reply was malformed.
    Malformed(Malformed),
    /// A request timed out, and not a byte came from the server meanwhile.
    Silent(Duration),
    /// A request timed out.
    TimedOut,
    /// The server answered that it is shutting down.
    ShutsDown,
    /// The client closed it.
    Left,
}

impl fmt::Display for Breakage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("the server ended the connection"),
            Self::Io(text) => f.write_str(text),
            Self::Malformed(reason) => write!(f, "the server sent {reason}"),
            Self::Silent(time) => write!(f, "nothing was heard for {time:.1?}"),
            Self::TimedOut => f.write_str("a request was not answered in time"),
            Self::ShutsDown => f.write_str("the server shuts down"),
            Self::Left => f.write_str("closed"),
        }
    }
}

/// The connection broke while a request was in flight: it is not known whether the server has
/// executed the request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Broken;

/// A request without its payload.
#[derive(Clone, Copy, Debug)]
pub struct NbdOrder {
    pub command: NbdCommand,
    pub offset: u64,
    pub length: u32,
}

/// The places that a batch has taken.
pub struct Tickets {
    indices: [u8; DEPTH],
    count: usize,
}

impl Tickets {
    /// The numbers of the places.
    pub fn indices(&self) -> &[u8] {
        &self.indices[..self.count]
    }
}

#[derive(Default)]
struct BufferPlace {
    desk: Desk,
    state: Mutex<PlaceState>,
    bell: Condvar,
}

#[derive(Default)]
struct PlaceState {
    uses: u64,
    waiting: bool,
    progress: ReplyProgress,
    outcome: Option<Result<(), Errno>>,
}

struct FreePlaces {
    stack: [u8; DEPTH],
    count: usize,
}

struct Receiver {
    decoder: Decoder,
    inbox: Box<[u8; INBOX]>,
}

/// A connection in its transmission phase.
pub struct Connection {
    stream: Box<dyn NbdStream>,
    sender: Mutex<()>,
    receiver: Mutex<Receiver>,
    places: [BufferPlace; DEPTH],
    free: Mutex<FreePlaces>,
    room: Condvar,
    /// Bit N: the thread that waits at place N is asleep and can be given the lead.
    sleepers: AtomicU64,
    in_flight: AtomicU32,
    broken: OnceLock<Breakage>,
    born: Instant,
    /// Bytes came that were not acknowledged to the server yet.
    came: AtomicBool,
    /// When bytes came last, in milliseconds after `born`.
    heard: AtomicU64,
}

impl Connection {
    /// A connection on a stream whose handshake is done.
    pub fn new(stream: Box<dyn NbdStream>, structured: bool) -> Self {
        let receiver = Receiver { decoder: Decoder::new(structured), inbox: Box::new([0; INBOX]) };
        let stack = std::array::from_fn(|index| index as u8);
        Self {
            stream,
            sender: Mutex::new(()),
            receiver: Mutex::new(receiver),
            places: std::array::from_fn(|_| BufferPlace::default()),
            free: Mutex::new(FreePlaces { stack, count: DEPTH }),
            room: Condvar::new(),
            sleepers: AtomicU64::new(0),
            in_flight: AtomicU32::new(0),
            broken: OnceLock::new(),
            born: Instant::now(),
            came: AtomicBool::new(false),
            heard: AtomicU64::new(0),
        }
    }

    /// The stream of a connection on which nothing is in flight.
    pub fn into_stream(self) -> Box<dyn NbdStream> {
        self.stream
    }

    /// Why the connection cannot be used any more; `None` while it can.
    pub fn breakage(&self) -> Option<&Breakage> {
        self.broken.get()
    }

    /// Time since the connection was made.
    pub fn age(&self) -> Duration {
        self.born.elapsed()
    }

    /// Requests in flight.
    pub fn in_flight(&self) -> u32 {
        self.in_flight.load(Relaxed)
    }

    /// Ends the connection and wakes all threads that wait on it.
    pub fn give_up(&self, why: Breakage) {
        // Only the first reason is kept.
        let _ = self.broken.set(why);
        self.stream.shut();
        for place in &self.places {
            drop(lock(&place.state));
            place.bell.notify_all();
        }
        drop(lock(&self.free));
        self.room.notify_all();
    }

    /// Takes at least one place and at most `most`.
    ///
    /// # Errors
    /// The connection is broken, or no place became free before `deadline`; in that case the
    /// connection is given up.
    pub fn take(&self, most: usize, deadline: Instant) -> Result<Tickets, Broken> {
        let begun = Instant::now();
        let mut free = lock(&self.free);
        while free.count == 0 {
            drop(free);
            self.check_time(begun, deadline)?;
            free = lock(&self.free);
            if free.count > 0 {
                break;
            }
            free = self.room.wait_timeout(free, GLANCE).unwrap_or_else(|e| e.into_inner()).0;
        }
        let count = free.count.min(most).max(1);
        let mut tickets = Tickets { indices: [0; DEPTH], count };
        free.count -= count;
        tickets.indices[..count].copy_from_slice(&free.stack[free.count..free.count + count]);
        self.in_flight.fetch_add(count as u32, Relaxed);
        Ok(tickets)
    }

    /// Returns places to the table. Those of a broken connection stay taken: a reply may still be
    /// on its way to them.
    pub fn give_back(&self, tickets: &Tickets) {
        self.in_flight.fetch_sub(tickets.count as u32, Relaxed);
        if self.broken.get().is_some() {
            return;
        }
        let mut free = lock(&self.free);
        let at = free.count;
        free.stack[at..at + tickets.count].copy_from_slice(tickets.indices());
        free.count += tickets.count;
        drop(free);
        if at == 0 {
            self.room.notify_all();
        }
    }

    /// The desk of a place: the buffer for the bytes that are read is lent there.
    pub fn desk(&self, index: u8) -> &Desk {
        &self.places[index as usize].desk
    }

    /// Sends a request under the number of a place that was taken.
    ///
    /// # Errors
    /// The connection broke.
    pub fn send(&self, index: u8, order: NbdOrder, payload: &[u8], deadline: Instant) -> Result<(), Broken> {
        let length = if order.command == NbdCommand::Read { order.length } else { 0 };
        let cookie = {
            let mut state = lock(&self.places[index as usize].state);
            state.uses += 1;
            state.waiting = true;
            state.outcome = None;
            state.progress = ReplyProgress { offset: order.offset, length, got: 0, error: 0 };
            state.uses << INDEX_BITS | u64::from(index)
        };
        let head = wire::request(order.command, cookie, order.offset, order.length);
        self.transmit(&head, payload, deadline)
    }

    /// Tells the server that the client disconnects; does not wait.
    pub fn say_goodbye(&self) {
        if let Ok(_turn) = self.sender.try_lock() {
            let head = wire::request(NbdCommand::Disconnect, 0, 0, 0);
            let _ = self.stream.try_write(&[IoSlice::new(&head)]).and_then(|_| self.stream.try_flush());
        }
        self.give_up(Breakage::Left);
    }

    fn transmit(&self, head: &[u8], payload: &[u8], deadline: Instant) -> Result<(), Broken> {
        let begun = Instant::now();
        let _turn = lock(&self.sender);
        let (mut done, whole) = (0, head.len() + payload.len());
        loop {
            if self.broken.get().is_some() {
                return Err(Broken);
            }
            let step = if done < whole {
                let (head, payload) = (&head[done.min(head.len())..], &payload[done.saturating_sub(head.len())..]);
                self.stream.try_write(&[IoSlice::new(head), IoSlice::new(payload)]).map(|n| done += n)
            } else {
                match self.stream.try_flush() {
                    Ok(()) => return Ok(()),
                    later => later,
                }
            };
            match step {
                Ok(()) => {}
                Err(error) if is_later(&error) => self.wait_for_room(begun, deadline)?,
                Err(error) => return Err(self.broke(error)),
            }
        }
    }

    /// Waits until the socket accepts more bytes. A server that waits until its replies are read
    /// does not read requests: so this thread reads replies meanwhile, if no other thread does.
    fn wait_for_room(&self, begun: Instant, deadline: Instant) -> Result<(), Broken> {
        self.check_time(begun, deadline)?;
        let Ok(mut receiver) = self.receiver.try_lock() else {
            let ready = wait_ready(self.stream.socket(), SocketReady { read: false, write: true }, GLANCE / 10);
            return ready.map(drop).map_err(|error| self.broke(error));
        };
        let both = SocketReady { read: true, write: true };
        let ready = wait_ready(self.stream.socket(), both, GLANCE).map_err(|error| self.broke(error))?;
        let received = if ready.read { self.receive(&mut receiver).map(drop) } else { Ok(()) };
        drop(receiver);
        self.pass_the_lead_on();
        received
    }

    /// Waits for the reply to the request that was sent from this place.
    ///
    /// # Errors
    /// The connection broke; the connection is also given up when `deadline` passes.
    pub fn wait(&self, index: u8, deadline: Instant) -> Result<Result<(), Errno>, Broken> {
        let begun = Instant::now();
        let mut slept = false;
        loop {
            if let Some(outcome) = self.outcome(index) {
                // A thread that was woken to lead and no longer needs to must wake another.
                if slept && self.receiver.try_lock().is_ok() {
                    self.pass_the_lead_on();
                }
                return Ok(outcome);
            }
            self.check_time(begun, deadline)?;
            match self.receiver.try_lock() {
                Ok(receiver) => {
                    let led = self.lead(receiver, index, begun, deadline);
                    self.pass_the_lead_on();
                    if led.is_err() {
                        // The reply to this request may have come before the bytes that broke the
                        // connection.
                        return self.outcome(index).ok_or(Broken);
                    }
                }
                Err(TryLockError::Poisoned(_)) => {
                    self.give_up(Breakage::Left);
                    return Err(Broken);
                }
                Err(TryLockError::WouldBlock) => {
                    self.follow(index);
                    slept = true;
                }
            }
        }
    }

    fn outcome(&self, index: u8) -> Option<Result<(), Errno>> {
        lock(&self.places[index as usize].state).outcome.take()
    }

    fn check_time(&self, begun: Instant, deadline: Instant) -> Result<(), Broken> {
        if self.broken.get().is_some() {
            return Err(Broken);
        }
        let now = Instant::now();
        if now < deadline {
            return Ok(());
        }
        let heard = self.born + Duration::from_millis(self.heard.load(Relaxed));
        let silent = heard < begun;
        self.give_up(if silent { Breakage::Silent(now - begun) } else { Breakage::TimedOut });
        Err(Broken)
    }

    /// Sleeps until the reply has come or the lead is free.
    fn follow(&self, index: u8) {
        let place = &self.places[index as usize];
        let state = lock(&place.state);
        self.sleepers.fetch_or(1 << index, SeqCst);
        fence(SeqCst);
        // Either this thread finds the lead free now, or the leader finds this thread's bit when it
        // leaves.
        let lead_is_free = self.receiver.try_lock().is_ok();
        if state.outcome.is_none() && self.broken.get().is_none() && !lead_is_free {
            drop(place.bell.wait_timeout(state, GLANCE));
        }
        self.sleepers.fetch_and(!(1 << index), SeqCst);
    }

    /// Wakes one thread that sleeps and still waits for a reply, to read the socket in place of
    /// this one.
    fn pass_the_lead_on(&self) {
        fence(SeqCst);
        let mut sleepers = self.sleepers.load(SeqCst);
        while sleepers != 0 {
            let place = &self.places[sleepers.trailing_zeros() as usize];
            sleepers &= sleepers - 1;
            let answered = lock(&place.state).outcome.is_some();
            if !answered {
                return place.bell.notify_one();
            }
        }
    }

    /// Reads the socket until this thread's own reply is complete.
    fn lead(
        &self,
        mut receiver: MutexGuard<'_, Receiver>,
        index: u8,
        begun: Instant,
        deadline: Instant,
    ) -> Result<(), Broken> {
        let mut more = self.stream.has_buffered();
        loop {
            if lock(&self.places[index as usize].state).outcome.is_some() {
                return Ok(());
            }
            self.check_time(begun, deadline)?;
            if !more && self.came.swap(false, Relaxed) {
                self.stream.acknowledge();
            }
            let ready = SocketReady { read: true, write: false };
            let patience = GLANCE.min(deadline.saturating_duration_since(Instant::now()));
            if more || wait_ready(self.stream.socket(), ready, patience).map_err(|error| self.broke(error))?.read {
                more = self.receive(&mut receiver)? || self.stream.has_buffered();
            }
        }
    }

    /// Reads the socket once. Returns whether there may be more bytes to read at once.
    fn receive(&self, receiver: &mut Receiver) -> Result<bool, Broken> {
        let Receiver { decoder, inbox } = receiver;
        let direct = decoder.direct().filter(|direct| direct.left as usize >= INBOX / 2);
        let (read, room) = match direct {
            None => (self.stream.try_read(&mut inbox[..]), INBOX),
            Some(direct) => {
                let (from, to) = (direct.at as usize, (direct.at + direct.left) as usize);
                let desk = &self.places[direct.index].desk;
                let read = desk.fill(|buffer| self.stream.try_read(&mut buffer[from..to]));
                // Only on a connection that was given up does no thread wait for these bytes.
                (read.ok_or(Broken)?, direct.left as usize)
            }
        };
        let count = match read {
            Ok(0) => {
                self.give_up(Breakage::Closed);
                return Err(Broken);
            }
            Ok(count) => count,
            Err(error) if is_later(&error) => return Ok(false),
            Err(error) => return Err(self.broke(error)),
        };
        self.came.store(true, Relaxed);
        self.heard.store(self.born.elapsed().as_millis() as u64, Relaxed);
        let mut board = Board(self);
        let taken = match direct {
            Some(_) => decoder.advanced(count as u32, &mut board),
            None => decoder.feed(&inbox[..count], &mut board),
        };
        taken.map_err(|reason| {
            self.give_up(Breakage::Malformed(reason));
            Broken
        })?;
        Ok(count == room)
    }

    fn broke(&self, error: io::Error) -> Broken {
        self.give_up(Breakage::Io(uswap_core::util::growth::during(uswap_core::util::growth::Growth::Devices, || {
            error.to_string()
        })));
        Broken
    }
}

/// The places of a connection, as the decoder's table of cookies.
struct Board<'a>(&'a Connection);

impl Board<'_> {
    fn state(&self, index: usize) -> MutexGuard<'_, PlaceState> {
        lock(&self.0.places[index].state)
    }
}

impl CookieTable for Board<'_> {
    fn find(&mut self, cookie: u64) -> Result<(usize, ReplyProgress), Malformed> {
        let (index, uses) = ((cookie % DEPTH as u64) as usize, cookie >> INDEX_BITS);
        let state = self.state(index);
        match state.waiting && state.uses == uses {
            true => Ok((index, state.progress)),
            false if uses > 0 && uses <= state.uses => Err(Malformed::AnsweredTwice(cookie)),
            false => Err(Malformed::UnknownCookie(cookie)),
        }
    }

    fn progress(&self, index: usize) -> ReplyProgress {
        self.state(index).progress
    }

    fn note(&mut self, index: usize, progress: ReplyProgress) {
        self.state(index).progress = progress;
    }

    fn put(&mut self, index: usize, at: u32, bytes: &[u8]) {
        let at = at as usize;
        self.0.places[index].desk.fill(|buffer| buffer[at..at + bytes.len()].copy_from_slice(bytes));
    }

    fn zero(&mut self, index: usize, at: u32, length: u32) {
        self.0.places[index].desk.fill(|buffer| buffer[at as usize..(at + length) as usize].fill(0));
    }

    fn finish(&mut self, index: usize, error: u32) {
        let mut state = self.state(index);
        state.waiting = false;
        if error == SHUTS_DOWN {
            drop(state);
            return self.0.give_up(Breakage::ShutsDown);
        }
        state.outcome = Some(if error == 0 { Ok(()) } else { Err(errno(error)) });
        // A sleeping thread has set its bit under this lock.
        let sleeps = self.0.sleepers.load(SeqCst) & 1 << index != 0;
        drop(state);
        if sleeps {
            self.0.places[index].bell.notify_one();
        }
    }
}

/// Converts an error number of the protocol to one of the system.
pub fn errno(error: u32) -> Errno {
    match error {
        1 => Errno(libc::EPERM),
        12 => Errno(libc::ENOMEM),
        22 => Errno::INVALID,
        28 => Errno::NO_SPACE,
        75 => Errno(libc::EOVERFLOW),
        95 => Errno(libc::ENOTSUP),
        _ => Errno::IO,
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
