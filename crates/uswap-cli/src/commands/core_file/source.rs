//! The run as a source of evicted pages: requests and answers on a connection of the control
//! socket.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use uswap_run::control::protocol::Request;
use uswap_run::page_answer::{AnswerHeader, Named, PageQuestion};

use crate::client::{self, RunningRun};

/// Time in which the run must answer a request: it may have to read a slow device.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
const PAGE: usize = uswap_core::PAGE_SIZE;

/// A connection to the run of a process.
pub struct Source {
    stream: UnixStream,
    /// The pages that the last answer names.
    pub named: Vec<Named>,
    /// The bytes of those pages whose content the answer contains, in the same order.
    pub bytes: Vec<u8>,
}

impl Source {
    /// Connects for requests about a process of the run; `pid` is its id in this pid namespace.
    ///
    /// # Errors
    /// A message for the user: the process does not belong to that run, or the run does not answer.
    pub fn open(run: &RunningRun, pid: u32) -> Result<Self, String> {
        if !std::fs::exists(format!("/proc/{pid}")).unwrap_or(false) {
            return Err(format!("there is no process {pid}"));
        }
        let request = |engine: u32| Ok(Request::Pages { pid: number_there(engine, pid)? });
        let stream = client::converse(run, request)?;
        let bounded =
            stream.set_read_timeout(Some(ANSWER_TIMEOUT)).and_then(|()| stream.set_write_timeout(Some(ANSWER_TIMEOUT)));
        bounded.map_err(|error| error.to_string())?;
        Ok(Self { stream, named: Vec::new(), bytes: Vec::new() })
    }

    /// Address of the agent's area (0: there is none).
    ///
    /// # Errors
    /// A message for the user: the run does not answer.
    pub fn area(&mut self) -> Result<u64, String> {
        Ok(self.ask(0, 0)?.area)
    }

    /// Requests the pages of a range that are not present in the program.
    ///
    /// # Errors
    /// A message for the user: the run does not answer.
    pub fn ask(&mut self, start: u64, end: u64) -> Result<AnswerHeader, String> {
        self.exchange(PageQuestion { start, end })
            .map_err(|error| format!("the run does not tell what is evicted: {error}"))
    }

    fn exchange(&mut self, question: PageQuestion) -> std::io::Result<AnswerHeader> {
        let nonsense = || std::io::Error::from(std::io::ErrorKind::InvalidData);
        self.stream.write_all(&question.encode())?;
        let mut bytes = [0; AnswerHeader::BYTES];
        self.stream.read_exact(&mut bytes)?;
        let header = AnswerHeader::decode(&bytes).ok_or_else(nonsense)?;
        self.bytes.resize(8 * header.records as usize, 0);
        self.stream.read_exact(&mut self.bytes)?;
        let words = self.bytes.as_chunks::<8>().0.iter().map(|word| Named::decode(u64::from_le_bytes(*word)));
        self.named = words.collect::<Option<_>>().ok_or_else(nonsense)?;
        let given = self.named.iter().filter(|named| matches!(named, Named::Given(_))).count();
        self.bytes.resize(PAGE * given, 0);
        self.stream.read_exact(&mut self.bytes)?;
        Ok(header)
    }
}

/// The id of a process in the pid namespace of the run, which is this one or one below it.
fn number_there(engine: u32, pid: u32) -> Result<u32, String> {
    let numbers = |pid: u32| -> Vec<u32> {
        let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("NSpid:"));
        line.unwrap_or_default().split_whitespace().filter_map(|number| number.parse().ok()).collect()
    };
    let depth = numbers(engine).len();
    if engine == 0 || depth == 0 {
        return Err("it runs in another pid namespace; ask from there".into());
    }
    numbers(pid).get(depth - 1).copied().ok_or_else(|| format!("{pid} is no process of this run"))
}
