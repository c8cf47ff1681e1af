//! Reads from an NBD server that their thread does not wait for, on a connection of their own.
//!
//! One thread sends and receives, so there is no lead to pass on and no other thread to wake. The
//! connection is not made again when it breaks: the reads in flight end with an error, the caller
//! repeats them on one of the device's connections, and makes another queue later.

use std::io::IoSlice;
use std::os::fd::BorrowedFd;

use uswap_core::PAGE_SIZE;
use uswap_core::util::growth::{Growth, during};
use uswap_sys::Reservation;

use super::BASE;
use super::connection::{DEPTH, INBOX, errno};
use super::handshake::Export;
use super::reply::{CookieTable, Decoder, Malformed, ReplyProgress};
use super::stream::{NbdStream, is_later};
use super::wire::{self, NbdCommand};
use crate::device::{Errno, check_part};
use crate::queue::{QUEUE_DEPTH, QueuedEnd, QueuedRead, ReadQueue};

const _: () = assert!(DEPTH == QUEUE_DEPTH && DEPTH == 64, "one bit for each read");

/// A read in flight.
struct Flight {
    memory: Reservation,
    at: usize,
    uses: u64,
    progress: ReplyProgress,
    /// The result, once the reply is complete.
    outcome: Option<Result<(), Errno>>,
}

/// The reads in flight, by number.
struct Flights {
    places: [Option<Flight>; DEPTH],
    uses: u64,
    /// Bit N: read N is in flight; its reply is complete.
    taken: u64,
    done: u64,
}

/// A connection and the reads in flight on it.
pub struct NbdQueue {
    stream: Box<dyn NbdStream>,
    decoder: Decoder,
    inbox: Box<[u8; INBOX]>,
    flights: Flights,
    slots: u32,
    sector: usize,
    broken: bool,
    /// Bytes came that were not acknowledged to the server yet.
    came: bool,
    /// A read has ended since the caller was last told that none had.
    has_ended: bool,
}

impl NbdQueue {
    /// A queue on a connection whose handshake is done and on which nothing is in flight.
    pub fn new(stream: Box<dyn NbdStream>, export: &Export, slots: u32) -> Self {
        let flights = Flights { places: std::array::from_fn(|_| None), uses: 0, taken: 0, done: 0 };
        Self {
            stream,
            decoder: Decoder::new(export.structured),
            inbox: Box::new([0; INBOX]),
            flights,
            slots,
            sector: export.sector as usize,
            broken: false,
            came: false,
            has_ended: false,
        }
    }

    fn send(&mut self, number: usize, offset: u64, length: u32) -> bool {
        let cookie = self.flights.uses * DEPTH as u64 + number as u64;
        let head = wire::request(NbdCommand::Read, cookie, offset, length);
        // The socket has room for far more than all requests that can be in flight: a server that
        // does not take them is given up.
        let written = self.stream.try_write(&[IoSlice::new(&head)]).is_ok_and(|count| count == head.len());
        written && self.stream.try_flush().is_ok()
    }

    /// Reads the socket as long as it returns bytes.
    fn receive(&mut self) {
        while !self.broken && self.flights.taken != self.flights.done {
            match self.receive_once() {
                Some(true) => {}
                Some(false) => return,
                None => self.broken = true,
            }
        }
    }

    /// Reads the socket once. Returns whether there may be more; `None`: the connection cannot be
    /// used any more.
    fn receive_once(&mut self) -> Option<bool> {
        let direct = self.decoder.direct();
        let (read, room) = match direct {
            None => (self.stream.try_read(&mut self.inbox[..]), INBOX),
            Some(direct) => {
                let flight = self.flights.places[direct.index].as_mut()?;
                let room = &mut flight.memory.bytes_mut()[flight.at + direct.at as usize..][..direct.left as usize];
                (self.stream.try_read(room), direct.left as usize)
            }
        };
        let count = match read {
            Ok(0) => return None,
            Ok(count) => count,
            Err(error) if is_later(&error) => {
                // A server with Nagle's algorithm holds back the rest of a reply until the client
                // has acknowledged the beginning.
                if std::mem::take(&mut self.came) {
                    self.stream.acknowledge();
                }
                return Some(false);
            }
            Err(_) => return None,
        };
        self.came = true;
        let taken = match direct {
            Some(_) => self.decoder.advanced(count as u32, &mut self.flights),
            None => self.decoder.feed(&self.inbox[..count], &mut self.flights),
        };
        taken.ok()?;
        Some(count == room || direct.is_some() || self.stream.has_buffered())
    }

    /// Looks at a socket that has become readable although no read is in flight: the connection has
    /// ended, or brought bytes that nobody asked for. Unseen, it would stay readable, and its
    /// thread would never wait for anything again.
    fn look_for_end(&mut self) {
        let read = self.stream.try_read(&mut self.inbox[..]);
        self.broken |= !read.is_err_and(|error| is_later(&error));
    }

    fn take_done(&mut self) -> Option<QueuedEnd> {
        let over = if self.broken { self.flights.taken } else { self.flights.done };
        if over == 0 {
            return None;
        }
        let number = over.trailing_zeros();
        let flight = self.flights.places[number as usize].take()?;
        self.flights.taken &= !(1 << number);
        self.flights.done &= !(1 << number);
        Some(QueuedEnd { number, memory: flight.memory, result: flight.outcome.unwrap_or(Err(Errno::IO)) })
    }
}

impl ReadQueue for NbdQueue {
    fn event(&self) -> BorrowedFd<'_> {
        self.stream.socket()
    }

    fn begin(&mut self, read: QueuedRead) -> Result<u32, Reservation> {
        let QueuedRead { slot, skip, length, memory, at } = read;
        let number = (!self.flights.taken).trailing_zeros();
        let inside = check_part(slot, skip, length, self.sector, self.slots).is_ok();
        let fits = inside && at + length <= memory.bytes().len();
        if self.broken || number as usize == DEPTH || !fits {
            return Err(memory);
        }
        let offset = BASE + u64::from(slot) * PAGE_SIZE as u64 + skip as u64;
        self.flights.uses += 1;
        if !self.send(number as usize, offset, length as u32) {
            self.give_up();
            return Err(memory);
        }
        let progress = ReplyProgress { offset, length: length as u32, got: 0, error: 0 };
        let flight = Flight { memory, at, uses: self.flights.uses, progress, outcome: None };
        self.flights.places[number as usize] = Some(flight);
        self.flights.taken |= 1 << number;
        Ok(number)
    }

    fn finished(&mut self) -> Option<QueuedEnd> {
        if self.flights.done == 0 {
            self.receive();
        }
        let ended = self.take_done();
        if ended.is_none() && self.flights.taken == 0 && !self.has_ended && !self.broken {
            self.look_for_end();
        }
        self.has_ended = ended.is_some();
        ended
    }

    fn is_broken(&self) -> bool {
        self.broken
    }

    fn give_up(&mut self) {
        self.broken = true;
        self.stream.shut();
    }
}

impl Drop for NbdQueue {
    fn drop(&mut self) {
        if !self.broken && self.flights.taken == 0 {
            let head = wire::request(NbdCommand::Disconnect, 0, 0, 0);
            let goodbye = || self.stream.try_write(&[IoSlice::new(&head)]).and_then(|_| self.stream.try_flush());
            // A server that does not get this message notices the closed connection.
            let _ = during(Growth::Devices, goodbye);
        }
    }
}

impl Flights {
    fn flight(&mut self, index: usize) -> &mut Flight {
        self.places[index].as_mut().expect("the decoder names what it found")
    }

    fn part(&mut self, index: usize, at: u32, length: usize) -> &mut [u8] {
        let flight = self.flight(index);
        let from = flight.at + at as usize;
        &mut flight.memory.bytes_mut()[from..from + length]
    }
}

impl CookieTable for Flights {
    fn find(&mut self, cookie: u64) -> Result<(usize, ReplyProgress), Malformed> {
        let (index, uses) = ((cookie % DEPTH as u64) as usize, cookie / DEPTH as u64);
        match &self.places[index] {
            Some(flight) if flight.uses == uses && flight.outcome.is_none() => Ok((index, flight.progress)),
            _ if uses > 0 && uses <= self.uses => Err(Malformed::AnsweredTwice(cookie)),
            _ => Err(Malformed::UnknownCookie(cookie)),
        }
    }

    fn progress(&self, index: usize) -> ReplyProgress {
        self.places[index].as_ref().map_or_else(ReplyProgress::default, |flight| flight.progress)
    }

    fn note(&mut self, index: usize, progress: ReplyProgress) {
        self.flight(index).progress = progress;
    }

    fn put(&mut self, index: usize, at: u32, bytes: &[u8]) {
        self.part(index, at, bytes.len()).copy_from_slice(bytes);
    }

    fn zero(&mut self, index: usize, at: u32, length: u32) {
        self.part(index, at, length as usize).fill(0);
    }

    fn finish(&mut self, index: usize, error: u32) {
        self.flight(index).outcome = Some(if error == 0 { Ok(()) } else { Err(errno(error)) });
        self.done |= 1 << index;
    }
}
