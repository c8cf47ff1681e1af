//! A connection that is made again when it breaks.
//!
//! This needs no thread either: the thread that needs the connection makes it. Attempts are spaced
//! by a growing back-off; one thread at a time tries, the others wait for its result.

use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};
use uswap_core::util::growth::{Growth, during};

use super::connection::Connection;
use crate::device::{ConnectionState, ConnectionStatus};

/// The first pause between two attempts.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The state of a connection, as [`Reconnector::look`] finds it.
pub enum Look {
    /// It is up.
    Up(Arc<Connection>),
    /// It has just been found broken; the caller looks again.
    Broke(String),
    /// The caller is to connect, and must report the result: [`Reconnector::connected`] or
    /// [`Reconnector::failed`].
    Yours,
    /// Another thread is connecting, or it is too early to try; the caller looks again at this time
    /// at the latest.
    Later(Instant),
}

/// One of a device's connections.
#[derive(Default)]
pub struct Reconnector {
    state: Mutex<ReconnectState>,
    news: Condvar,
}

#[derive(Default)]
struct ReconnectState {
    line: Option<Arc<Connection>>,
    connecting: bool,
    was_up: bool,
    attempts: u32,
    next_try: Option<Instant>,
    reconnects: u64,
    round_trip: Duration,
    error: Option<String>,
}

impl Reconnector {
    /// The state now. With `may_connect` the caller agrees to be the one that connects.
    pub fn look(&self, may_connect: bool) -> Look {
        let mut state = self.lock();
        if let Some(line) = &state.line {
            let Some(breakage) = line.breakage() else { return Look::Up(line.clone()) };
            let (why, age) = (during(Growth::Devices, || breakage.to_string()), line.age());
            // A connection that broke soon after it was made counts as a failed attempt.
            state.attempts = if age < LONGEST_PAUSE { state.attempts + 1 } else { 0 };
            state.next_try = (state.attempts > 0).then(|| Instant::now() + pause(state.attempts));
            state.line = None;
            state.error = Some(during(Growth::Devices, || why.clone()));
            return Look::Broke(why);
        }
        let now = Instant::now();
        match state.next_try.filter(|next| *next > now) {
            _ if state.connecting => Look::Later(now + LONGEST_PAUSE),
            Some(next) => Look::Later(next),
            None if may_connect => {
                state.connecting = true;
                Look::Yours
            }
            None => Look::Later(now),
        }
    }

    /// Waits for a change, at most until `until`.
    pub fn wait(&self, until: Instant) {
        let state = self.lock();
        if state.line.is_none() {
            let patience = until.saturating_duration_since(Instant::now());
            drop(self.news.wait_timeout(state, patience));
        }
    }

    /// Reports that the connection was made.
    pub fn connected(&self, line: Arc<Connection>, round_trip: Duration) {
        let mut state = self.lock();
        state.reconnects += u64::from(state.was_up);
        state.was_up = true;
        state.round_trip = round_trip;
        state.connecting = false;
        state.line = Some(line);
        drop(state);
        self.news.notify_all();
    }

    /// Reports that the attempt failed.
    pub fn failed(&self, why: String) {
        let mut state = self.lock();
        state.connecting = false;
        state.attempts += 1;
        state.next_try = Some(Instant::now() + pause(state.attempts));
        state.error = Some(why);
        drop(state);
        self.news.notify_all();
    }

    /// The last error.
    pub fn error(&self) -> Option<String> {
        self.lock().error.clone()
    }

    /// Requests in flight now; `None` without a connection.
    pub fn load(&self) -> Option<u32> {
        self.lock().line.as_ref().filter(|line| line.breakage().is_none()).map(|line| line.in_flight())
    }

    /// The state for status output.
    pub fn status(&self) -> ConnectionStatus {
        let state = self.lock();
        let up = state.line.as_ref().filter(|line| line.breakage().is_none());
        ConnectionStatus {
            state: if up.is_some() { ConnectionState::Up } else { ConnectionState::Down },
            reconnects: state.reconnects,
            in_flight: up.map_or(0, |line| line.in_flight()),
            round_trip_us: state.round_trip.as_micros() as u64,
            error: state.error.clone(),
        }
    }

    /// Disconnects from the server.
    pub fn close(&self) {
        let line = self.lock().line.take();
        if let Some(line) = line.filter(|line| line.breakage().is_none()) {
            line.say_goodbye();
        }
    }

    fn lock(&self) -> MutexGuard<'_, ReconnectState> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// The pause after this many failed attempts in a row.
fn pause(attempts: u32) -> Duration {
    (FIRST_PAUSE * 2u32.pow(attempts.min(10))).min(LONGEST_PAUSE)
}
