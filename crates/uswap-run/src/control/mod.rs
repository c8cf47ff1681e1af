//! The control socket: by it `uswap status` and other commands send requests to a living run.
//!
//! The request is one line of JSON, the answer is one line of JSON (`protocol/`), then the
//! connection ends. The socket is an abstract one, `@uswap/UID/NAME`, so nothing is left behind by
//! a run that is killed, and a name is free again as soon as its run has ended. Only the same user
//! and root get an answer.
//!
//! One thread serves one caller at a time. A caller that sends nothing, too much or nonsense takes
//! one second of that thread at most. The threads that serve faults are not involved.

pub mod group_orders;
pub mod last_swapoff;
pub mod protocol;
pub mod report;
pub mod swapoff;
pub mod swapon;
pub mod verbose;

use std::ffi::CString;
use std::io::{self, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;
use uswap_sys::io::socket::peer_credentials;
use uswap_sys::process::user;

use crate::attach::leave;
use crate::config::RunConfig;
use crate::control::protocol::Request;
use crate::control::protocol::answer::{DetachBegun, LimitAnswer, PagesBegun, Refusal};
use crate::control::protocol::encode;
use crate::control::protocol::request::NewBudget;
use crate::control::protocol::status::RunStatus;
use crate::shared::RunShared;
use uswap_pager::io::page_query;
use uswap_remote::EngineContext;

/// Time limit for one caller.
const CALLER_TIMEOUT: Duration = Duration::from_secs(1);
/// Longest request in bytes.
const LONGEST_REQUEST: usize = 4096;
/// Longest name of a run in bytes.
const LONGEST_NAME: usize = 64;

/// Checks whether a run may have this name, which is part of an address and of tables.
///
/// # Errors
/// The fault of the name, for the user.
pub fn check_name(name: &str) -> Result<(), String> {
    if name.is_empty() || name.len() > LONGEST_NAME {
        return Err(format!("a name has 1 to {LONGEST_NAME} characters"));
    }
    match name.chars().find(|c| !c.is_ascii_alphanumeric() && !" -_.:+@".contains(*c)) {
        Some(c) => Err(format!("a name is made of letters, digits, spaces and - _ . : + @, not {c:?}")),
        None => Ok(()),
    }
}

/// The name of the abstract socket of a run.
pub fn socket_name(user: u32, name: &str) -> String {
    format!("uswap/{user}/{name}")
}

/// The address of a run.
///
/// # Errors
/// EINVAL: the name is too long.
pub fn address(user: u32, name: &str) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(socket_name(user, name))
}

/// The socket of this run, bound.
#[derive(Debug)]
pub struct Control {
    listener: UnixListener,
    name: String,
    keeper: u32,
    command: Vec<String>,
    attached_to: Option<u32>,
    begun: Instant,
}

impl Control {
    /// Binds the socket, which takes the run's name. This is done before the command runs, since a
    /// run whose name is taken is refused.
    ///
    /// # Errors
    /// For the user: the name is taken.
    pub fn bind(config: &RunConfig, keeper: u32) -> Result<Self, String> {
        let name = config.name.clone();
        check_name(&name).map_err(|error| format!("--name {name:?}: {error}"))?;
        let bound = address(user(), &name).and_then(|address| UnixListener::bind_addr(&address));
        let listener = bound.map_err(|error| match error.kind() {
            io::ErrorKind::AddrInUse => format!("a run named {name:?} is there already (uswap status {name})"),
            _ => format!("the control socket of run {name:?} cannot be made: {error}"),
        })?;
        let text = |argument: &CString| argument.to_string_lossy().into_owned();
        let command = config.arguments.iter().map(text).collect();
        let attached_to = config.target.map(|target| target.pid);
        Ok(Self { listener, name, keeper, command, attached_to, begun: Instant::now() })
    }

    /// Serves callers, in a separate thread, as long as the process lives.
    ///
    /// # Errors
    /// EAGAIN: no more threads.
    pub fn start(self, shared: Arc<EngineContext>) -> io::Result<()> {
        uswap_sys::process::thread::spawn("control".into(), move || self.serve(&shared))
    }

    fn serve(&self, shared: &Arc<EngineContext>) {
        loop {
            match self.listener.accept() {
                // A caller that is gone has no use for an answer.
                Ok((stream, _)) => drop(self.answer(stream, shared)),
                // There is no free descriptor: other threads will close some.
                Err(_) => std::thread::sleep(Duration::from_millis(100)),
            }
        }
    }

    fn answer(&self, stream: UnixStream, shared: &Arc<EngineContext>) -> io::Result<()> {
        let deadline = Instant::now() + CALLER_TIMEOUT;
        let caller = peer_credentials(&stream)?.user;
        // The request is read even if the caller is refused: with an unread request the caller
        // would get an error instead of the answer.
        let line = read_line(&stream, LONGEST_REQUEST, deadline)?;
        let Some(reply) = self.reply(caller, &line, &stream, shared) else { return Ok(()) };
        // The order can have used up the caller's time.
        let deadline = deadline.max(Instant::now() + CALLER_TIMEOUT / 4);
        write_all(&stream, format!("{reply}\n").as_bytes(), deadline)
    }

    /// The answer line. `None`: another thread answers.
    fn reply(&self, caller: u32, line: &[u8], stream: &UnixStream, shared: &Arc<EngineContext>) -> Option<String> {
        let refusal = |error| encode(&Refusal { error });
        if caller != 0 && caller != user() {
            return Some(refusal("this run belongs to another user".into()));
        }
        match Request::decode(line) {
            Ok(Request::Pages { pid }) => {
                let greeting = encode(&PagesBegun { pid }) + "\n";
                page_query::serve::begin(shared, stream, pid, greeting).err().map(refusal)
            }
            request => Some(request.and_then(|request| self.obey(request, shared)).unwrap_or_else(refusal)),
        }
    }

    /// Carries a request out. Returns the answer line.
    fn obey(&self, request: Request, shared: &Arc<EngineContext>) -> Result<String, String> {
        match request {
            Request::Status {} => told(Ok(self.status(shared))),
            Request::Swapon { spec } => told(swapon::swapon(shared, &spec)),
            Request::Swapoff { device } => told(swapoff::begin(shared, &device)),
            Request::SwapoffStop {} => told(RunShared::of(shared).orders.swapoff.stop()),
            Request::Detach {} => told(leave::begin(shared).map(|pages| DetachBegun { pages })),
            Request::Limit { bytes } => told(limit(shared, bytes)),
            Request::Compressor { compressor } => told(swapon::compressor(shared, &compressor)),
            Request::GroupCreate { group, limit } => told(group_orders::create(shared, &group, limit.as_deref())),
            Request::GroupLimit { group, limit } => told(group_orders::limit(shared, &group, &limit)),
            Request::GroupMove { what, group } => told(group_orders::change_place(shared, &what, &group)),
            Request::GroupRemove { group } => told(group_orders::remove(shared, &group)),
            Request::Pages { .. } => Err("it is answered by itself".into()),
        }
    }

    fn status(&self, shared: &EngineContext) -> RunStatus {
        RunStatus {
            name: self.name.clone(),
            pid: self.keeper,
            engine_pid: std::process::id(),
            user: user(),
            command: self.command.clone(),
            attached_to: self.attached_to,
            uptime_ms: self.begun.elapsed().as_millis() as u64,
            version: env!("CARGO_PKG_VERSION").into(),
            figures: report::figures(shared),
            mount: None,
        }
    }
}

fn told<T: Serialize>(answer: Result<T, String>) -> Result<String, String> {
    answer.map(|answer| encode(&answer))
}

/// Sets the budget, unless a detach is under way.
fn limit(shared: &EngineContext, budget: NewBudget) -> Result<LimitAnswer, String> {
    match (budget, shared.of_memory.leaving.is_under_way()) {
        (NewBudget::Bytes(bytes), true) => {
            Err(format!("it is letting go of its program: no limit of {bytes} bytes can be set"))
        }
        (NewBudget::Auto, true) => Err("it is letting go of its program".into()),
        (NewBudget::Bytes(bytes), false) => swapon::limit(shared, bytes),
        (NewBudget::Auto, false) => swapon::limit_auto(shared),
    }
}

/// Reads up to a newline or the end, at most `most` bytes, until `deadline`.
///
/// # Errors
/// ETIMEDOUT; EMSGSIZE for a longer line.
pub fn read_line(mut stream: &UnixStream, most: usize, deadline: Instant) -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    let mut piece = [0u8; 4096];
    loop {
        stream.set_read_timeout(Some(left(deadline)?))?;
        let n = match stream.read(&mut piece) {
            Ok(0) => return Ok(line),
            Ok(n) => n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        let end = piece[..n].iter().position(|byte| *byte == b'\n');
        line.extend_from_slice(&piece[..end.unwrap_or(n)]);
        if line.len() > most {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the line is too long"));
        }
        if end.is_some() {
            return Ok(line);
        }
    }
}

/// Writes everything until `deadline`.
///
/// # Errors
/// ETIMEDOUT; EPIPE: the other end is gone.
pub fn write_all(mut stream: &UnixStream, mut bytes: &[u8], deadline: Instant) -> io::Result<()> {
    while !bytes.is_empty() {
        stream.set_write_timeout(Some(left(deadline)?))?;
        match stream.write(bytes) {
            Ok(n) => bytes = &bytes[n..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fit_into_an_address_and_a_table() {
        for good in ["a", "build-1", "1234", "ci:job_7.2", "my run", &"x".repeat(LONGEST_NAME)] {
            assert_eq!(check_name(good), Ok(()));
            assert!(address(u32::MAX, good).is_ok());
        }
        for bad in ["", "a\tb", "a/b", "ü", "a\n", &"x".repeat(LONGEST_NAME + 1)] {
            assert!(check_name(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_caller_that_sends_nothing_or_too_much_is_left_after_its_time() {
        let soon = || Instant::now() + Duration::from_millis(50);
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        assert!(read_line(&ours, 10, soon()).is_err());
        (&theirs).write_all(b"12345678901234567890").expect("room");
        assert!(read_line(&ours, 10, soon()).is_err());
        (&theirs).write_all(b"abc\nrest").expect("room");
        assert_eq!(read_line(&ours, 10, soon()).expect("a line"), b"abc");
        let much = vec![0; 16 << 20];
        let begun = Instant::now();
        assert!(write_all(&ours, &much, soon()).is_err());
        assert!(begun.elapsed() < Duration::from_secs(5));
    }
}
