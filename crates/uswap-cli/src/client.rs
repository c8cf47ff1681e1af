//! Finding the runs of this machine and sending them requests.

use std::io;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use serde_json::Value;
use uswap_run::control;
use uswap_run::control::protocol::Request;
use uswap_run::control::protocol::answer::{PagesBegun, decode_answer};
use uswap_run::control::protocol::status::RunStatus;
use uswap_sys::io::socket::peer_credentials;
use uswap_sys::process::user;

/// Time in which a run must answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);
const SWAPON_TIMEOUT: Duration = Duration::from_secs(15);
/// Longest answer in bytes: that of a tree of a hundred thousand processes.
const LONGEST_ANSWER: usize = 32 << 20;

/// A run to which requests can be sent.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RunningRun {
    /// The name of the run.
    pub name: String,
    /// The user id of its owner.
    pub user: u32,
}

/// The runs that this user may ask: the user's own, and all runs for root.
pub fn runs() -> Vec<RunningRun> {
    let me = user();
    let text = std::fs::read_to_string("/proc/net/unix").unwrap_or_default();
    runs_in(&text).into_iter().filter(|run| me == 0 || run.user == me).collect()
}

/// The runs in the text of /proc/net/unix. A socket's name ends the line: `@uswap/UID/NAME`.
fn runs_in(text: &str) -> Vec<RunningRun> {
    let mut found: Vec<RunningRun> = text.lines().filter_map(run_in).collect();
    found.sort();
    found.dedup();
    found
}

fn run_in(line: &str) -> Option<RunningRun> {
    let (user, name) = line.split_once(" @uswap/")?.1.split_once('/')?;
    control::check_name(name).ok()?;
    Some(RunningRun { name: name.into(), user: user.parse().ok()? })
}

/// The run of this name; one of this user comes before those of others.
///
/// # Errors
/// A message for the user: there is no such run.
pub fn find(name: &str) -> Result<RunningRun, String> {
    let me = user();
    let all = runs();
    let mut named: Vec<&RunningRun> = all.iter().filter(|run| run.name == name).collect();
    named.sort_by_key(|run| run.user != me);
    if let Some(run) = named.first() {
        return Ok((*run).clone());
    }
    let others: Vec<&str> = all.iter().map(|run| run.name.as_str()).collect();
    Err(match others[..] {
        [] => format!("there is no run named {name:?}, and no other"),
        _ => format!("there is no run named {name:?}; there is: {}", others.join(", ")),
    })
}

/// Asks a run for its whole status.
///
/// # Errors
/// A message for the user: the run does not answer, or refuses.
pub fn status(run: &RunningRun) -> Result<RunStatus, String> {
    ask_for(run, &Request::Status {})
}

/// The status as the run sends it, including fields that this build may not know.
///
/// # Errors
/// A message for the user: the run does not answer, or refuses.
pub fn status_as_told(run: &RunningRun) -> Result<Value, String> {
    ask_for(run, &Request::Status {})
}

/// Sends a request and returns the answer.
///
/// # Errors
/// A message for the user: the run does not answer, or refuses.
pub fn ask_for<A: DeserializeOwned>(run: &RunningRun, request: &Request) -> Result<A, String> {
    told(run, ask(run, request))
}

fn told<A>(run: &RunningRun, answer: io::Result<Result<A, String>>) -> Result<A, String> {
    let answer = answer.map_err(|error| format!("run {:?} does not answer: {error}", run.name))?;
    answer.map_err(|refusal| format!("run {:?}: {refusal}", run.name))
}

/// Sends a request and keeps the connection for what follows the answer. The request may depend on
/// the process id of the run's engine in this pid namespace (0: not visible).
///
/// # Errors
/// A message for the user: the run does not answer, or refuses.
pub fn converse(run: &RunningRun, request: impl FnOnce(u32) -> Result<Request, String>) -> Result<UnixStream, String> {
    let silent = |error: io::Error| format!("run {:?} does not answer: {error}", run.name);
    let (stream, engine) = connect(run).map_err(silent)?;
    let request = request(engine).map_err(|error| format!("run {:?}: {error}", run.name))?;
    told::<PagesBegun>(run, exchange(&stream, &request, ANSWER_TIMEOUT))?;
    Ok(stream)
}

fn ask<A: DeserializeOwned>(run: &RunningRun, request: &Request) -> io::Result<Result<A, String>> {
    // The run connects to a server on the network before it answers.
    let patience = if matches!(request, Request::Swapon { .. }) { SWAPON_TIMEOUT } else { ANSWER_TIMEOUT };
    exchange(&connect(run)?.0, request, patience)
}

/// The connection, and the id of the process that listens at the other end.
fn connect(run: &RunningRun) -> io::Result<(UnixStream, u32)> {
    let stream = UnixStream::connect_addr(&control::address(run.user, &run.name)?)?;
    // Every user can take an abstract name, so only a listener of the run's owner or of root is
    // trusted.
    let owner = peer_credentials(&stream)?;
    if owner.user != run.user && owner.user != 0 {
        let text = format!("user {} has taken its name", owner.user);
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
    }
    Ok((stream, owner.pid))
}

fn exchange<A: DeserializeOwned>(
    stream: &UnixStream,
    request: &Request,
    patience: Duration,
) -> io::Result<Result<A, String>> {
    let deadline = Instant::now() + patience;
    control::write_all(stream, format!("{}\n", request.encode()).as_bytes(), deadline)?;
    let line = control::read_line(stream, LONGEST_ANSWER, deadline)?;
    Ok(decode_answer(&line)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_found_by_their_sockets_names() {
        let text = "Num       RefCount Protocol Flags    Type St Inode Path\n\
            0: 00000002 00000000 00010000 0001 01 41 @uswap/1000/build\n\
            0: 00000003 00000000 00000000 0001 03 43 @uswap/1000/build\n\
            0: 00000002 00000000 00010000 0001 01 44 @uswap/0/a: b\n\
            0: 00000002 00000000 00010000 0001 01 45 @uswap/x/bad\n\
            0: 00000002 00000000 00010000 0001 01 46 @uswap/0/\n\
            0: 00000002 00000000 00010000 0001 01 47 /run/uswap/0/c\n\
            0: 00000002 00000000 00010000 0001 01 48\n";
        let run = |user, name: &str| RunningRun { name: name.into(), user };
        assert_eq!(runs_in(text), [run(0, "a: b"), run(1000, "build")]);
    }

    #[test]
    fn a_run_that_is_not_there_is_an_error() {
        assert!(find("no-run-has-this-name").is_err());
        assert!(status(&RunningRun { name: "no-run-has-this-name".into(), user: 0 }).is_err());
    }
}
