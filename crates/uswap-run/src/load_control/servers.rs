//! Recognises servers: processes that load control never suspends.
//!
//! A program that waits some seconds for its turn ends sooner than one that faults all the time,
//! and users notice the difference only in the time. A server is different: a client waits for each
//! of its answers, and gives up after some seconds. A server cannot be recognised by its use of the
//! processor, which under load is like that of a compiler. So it is recognised by its sockets: a
//! socket of the internet (listening or connected), or a Unix socket with a name.
//!
//! A pair of sockets between parent and child has no name. It counts if the process has an event
//! loop (an epoll descriptor) too: so the processes of a browser answer one another, and all of
//! them wait when one is held. The standard streams never count, nor do pipes and terminals: builds
//! have those too, and a process that is waited for through one of them gets its turn when the
//! others are idle.
//!
//! Sources: proc_pid_net(5), proc_pid_fd(5); the tables are those of the process's own network
//! namespace.

use std::collections::HashSet;
use std::fs;
use std::time::{Duration, Instant};

/// How long an answer is valid: a program may begin to listen or connect at any time.
const GOOD_FOR: Duration = Duration::from_secs(1);
/// Maximum of descriptors that are looked at.
const MAX: usize = 4096;
/// The tables of the sockets of the internet, and the column of the inode there.
const INTERNET: [&str; 4] = ["tcp", "tcp6", "udp", "udp6"];
const INTERNET_INODE: usize = 9;
/// The column of the inode in the table of Unix sockets; the name, if there is one, comes behind
/// it.
const UNIX_INODE: usize = 6;
/// Where the link of an epoll descriptor points to, and the numbers of the standard streams.
const EVENT_LOOP: &str = "anon_inode:[eventpoll]";
const STREAMS: [&str; 3] = ["0", "1", "2"];

/// The last answer for a process, and its time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Looked {
    at: Option<Instant>,
    answers: bool,
}

impl Looked {
    /// Whether this process is a server.
    pub fn answers(&mut self, pid: u32) -> bool {
        if self.at.is_none_or(|at| at.elapsed() >= GOOD_FOR) {
            *self = Self { at: Some(Instant::now()), answers: answers_others(pid) };
        }
        self.answers
    }
}

fn answers_others(pid: u32) -> bool {
    let OpenDescriptors { sockets, streams, has_event_loop } = descriptors(pid);
    if sockets.is_empty() {
        return false;
    }
    let table = |name: &str| fs::read_to_string(format!("/proc/{pid}/net/{name}")).unwrap_or_default();
    let unix = table("unix");
    let is_pair = |inode| sockets.contains(&inode) && !streams.contains(&inode);
    // The tables of the internet come last: each takes the kernel some milliseconds.
    unix_inodes(&unix, true).any(|inode| sockets.contains(&inode))
        || has_event_loop && unix_inodes(&unix, false).any(is_pair)
        || INTERNET.iter().any(|name| internet_inodes(&table(name)).any(|inode| sockets.contains(&inode)))
}

/// The descriptors that a process has open.
#[derive(Default)]
struct OpenDescriptors {
    /// Inodes of its sockets, and of those that are its standard streams.
    sockets: HashSet<u64>,
    streams: HashSet<u64>,
    /// It has an epoll descriptor.
    has_event_loop: bool,
}

fn descriptors(pid: u32) -> OpenDescriptors {
    let mut found = OpenDescriptors::default();
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/fd")) else { return found };
    for entry in entries.flatten().take(MAX) {
        let Ok(target) = fs::read_link(entry.path()) else { continue };
        let Some(target) = target.to_str() else { continue };
        found.has_event_loop |= target == EVENT_LOOP;
        let inode = target.strip_prefix("socket:[").and_then(|rest| rest.strip_suffix(']')?.parse().ok());
        if let Some(inode) = inode {
            found.sockets.insert(inode);
            if entry.file_name().to_str().is_some_and(|number| STREAMS.contains(&number)) {
                found.streams.insert(inode);
            }
        }
    }
    found
}

fn internet_inodes(table: &str) -> impl Iterator<Item = u64> {
    table.lines().skip(1).filter_map(|line| line.split_whitespace().nth(INTERNET_INODE)?.parse().ok())
}

/// The Unix sockets that have a name, or those that have none.
fn unix_inodes(table: &str, named: bool) -> impl Iterator<Item = u64> {
    table.lines().skip(1).filter_map(move |line| {
        let mut words = line.split_whitespace().skip(UNIX_INODE);
        let inode = words.next()?.parse().ok()?;
        (words.next().is_some() == named).then_some(inode)
    })
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::*;

    /// This is one test, because all its cases are about the descriptors of one process.
    #[test]
    fn sockets_that_others_can_reach_count_and_pairs_do_not() {
        let own = std::process::id();
        let pair = UnixStream::pair().expect("a pair");
        assert!(!answers_others(own), "a pair of sockets is no server's");
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        assert!(answers_others(own));
        let mut looked = Looked::default();
        assert!(looked.answers(own));
        drop(listener);
        assert!(looked.answers(own), "an answer is good for a second");
        assert!(!answers_others(own));
        let place = std::env::temp_dir().join(format!("uswap-servers-{own}"));
        let listener = UnixListener::bind(&place).expect("a socket with a name");
        assert!(answers_others(own));
        drop(listener);
        std::fs::remove_file(place).expect("the socket's name goes");
        assert!(!answers_others(own));
        let event_loop = uswap_sys::io::events::Poller::new().expect("an epoll descriptor");
        assert!(answers_others(own), "a pair beside an event loop");
        drop((event_loop, pair));
    }

    #[test]
    fn lines_that_are_no_sockets_are_passed_over() {
        assert_eq!(internet_inodes("head\n0: 1 2 3 4 5 6 7 8 77 9\nshort\n").collect::<Vec<_>>(), [77]);
        let table = "head\n0: 2 0 0 1 1 55\n0: 2 0 0 1 1 56 /run/it\n0: 2 0 0 1 1 x /run/it\n";
        assert_eq!(unix_inodes(table, true).collect::<Vec<_>>(), [56]);
        assert_eq!(unix_inodes(table, false).collect::<Vec<_>>(), [55]);
    }
}
