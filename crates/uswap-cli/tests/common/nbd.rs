//! The system's NBD servers, each in a process of its own, on a free port or a Unix socket in a
//! scratch folder. They serve a sparse file that outlives them. They are ended by their process
//! ids.

use std::fs::{self, File};
use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::{Scratch, installed, procs};

/// The kind of server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Nbdkit,
    NbdServer,
    Qemu,
}

impl Kind {
    /// All kinds that the tests know.
    pub const ALL: [Self; 3] = [Self::Nbdkit, Self::NbdServer, Self::Qemu];

    /// The program of the server.
    pub fn program(self) -> &'static str {
        match self {
            Self::Nbdkit => "nbdkit",
            Self::NbdServer => "nbd-server",
            Self::Qemu => "qemu-nbd",
        }
    }

    /// Whether the program is installed.
    pub fn is_here(self) -> bool {
        installed(self.program())
    }
}

/// Returns from the test, with a report, where a server is not installed.
#[macro_export]
macro_rules! need_server {
    ($kind:expr) => {
        if !$kind.is_here() {
            return $crate::common::skip(&format!("{} is not installed", $kind.program()));
        }
    };
}

/// A server, running or killed.
pub struct Server {
    kind: Kind,
    /// Options before the file that is served, and parameters after it.
    options: Vec<String>,
    parameters: Vec<String>,
    port: Option<u16>,
    child: Option<Child>,
    pid: u32,
    pub scratch: Scratch,
}

impl Server {
    /// Serves a new file of 1 GiB over TCP.
    pub fn tcp(kind: Kind) -> Self {
        Self::new(kind, Some(free_port()), &[], &[])
    }

    /// The same over a Unix socket.
    pub fn unix(kind: Kind) -> Self {
        Self::new(kind, None, &[], &[])
    }

    /// Starts nbdkit with filters or other options, and parameters.
    pub fn nbdkit(options: &[&str], parameters: &[&str]) -> Self {
        Self::new(Kind::Nbdkit, Some(free_port()), options, parameters)
    }

    fn new(kind: Kind, port: Option<u16>, options: &[&str], parameters: &[&str]) -> Self {
        let scratch = Scratch::new();
        File::create(scratch.path("disk")).and_then(|disk| disk.set_len(1 << 30)).expect("a disk");
        let own = |words: &[&str]| words.iter().map(|word| word.to_string()).collect();
        let (options, parameters) = (own(options), own(parameters));
        let mut server = Self { kind, options, parameters, port, child: None, pid: 0, scratch };
        server.start();
        server
    }

    /// The file that is served.
    pub fn disk(&self) -> PathBuf {
        self.scratch.path("disk")
    }

    /// The URI of the server, with the name of an export where the server demands one.
    pub fn uri(&self) -> String {
        self.uri_of("nbd", "")
    }

    /// The same with another scheme and a query.
    pub fn uri_of(&self, scheme: &str, query: &str) -> String {
        let export = if self.kind == Kind::Nbdkit { "" } else { "swap" };
        match self.port {
            Some(port) if query.is_empty() => format!("{scheme}://127.0.0.1:{port}/{export}"),
            Some(port) => format!("{scheme}://127.0.0.1:{port}/{export}?{query}"),
            None => format!("{scheme}+unix:///{export}?socket={}&{query}", self.socket().display()),
        }
    }

    /// The process id of the server.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    fn socket(&self) -> PathBuf {
        self.scratch.path("nbd.sock")
    }

    /// Starts the server, again if it was killed, and waits until it sends its greeting.
    pub fn start(&mut self) {
        let _ = fs::remove_file(self.socket());
        let mut command = self.command();
        let log = File::options().create(true).append(true).open(self.scratch.path("log")).expect("a log");
        command.stdin(Stdio::null()).stdout(log.try_clone().expect("a log")).stderr(log);
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{}: {error}", self.kind.program()));
        self.pid = child.id();
        if self.kind == Kind::NbdServer {
            // The server goes to the background and writes its process id to a file.
            assert!(child.wait().expect("its start").success(), "{}", self.scratch.text("log"));
        } else {
            self.child = Some(child);
        }
        let begun = Instant::now();
        while !self.greets() || !self.is_known() {
            let gone = self.child.as_mut().is_some_and(|child| child.try_wait().is_ok_and(|end| end.is_some()));
            // nbd-server looks for large primes before it answers.
            let late = begun.elapsed() > Duration::from_secs(150);
            assert!(!gone && !late, "{:?} did not start: {}", self.kind, self.scratch.text("log"));
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Whether the process id of the server is known.
    fn is_known(&mut self) -> bool {
        if self.kind == Kind::NbdServer {
            self.pid = self.scratch.text("pid").trim().parse().unwrap_or(0);
        }
        self.pid != 0
    }

    fn command(&self) -> Command {
        let mut command = Command::new(self.kind.program());
        let disk = self.disk();
        let (port, socket) = (self.port.map(|port| port.to_string()), self.socket());
        match (self.kind, port) {
            (Kind::Nbdkit, port) => {
                command.args(["-f", "--exit-with-parent"]);
                match port {
                    Some(port) => command.args(["-i", "127.0.0.1", "-p", &port]),
                    None => command.arg("-U").arg(socket),
                };
                command.args(&self.options).arg("file").arg(disk).args(&self.parameters);
            }
            (Kind::NbdServer, port) => {
                let place = match port {
                    Some(port) => format!("listenaddr = 127.0.0.1\nport = {port}"),
                    None => format!("listenaddr = 127.0.0.1\nport = {}\nunixsock = {}", free_port(), socket.display()),
                };
                let export = format!("[swap]\nexportname = {}\ntrim = true\nflush = true", disk.display());
                fs::write(self.scratch.path("conf"), format!("[generic]\n{place}\n{export}\n")).expect("a config");
                let _ = fs::remove_file(self.scratch.path("pid"));
                command.arg("-C").arg(self.scratch.path("conf")).arg("-p").arg(self.scratch.path("pid"));
            }
            (Kind::Qemu, port) => {
                command.args(["-f", "raw", "-x", "swap", "-t", "-e", "16", "--discard=unmap"]);
                match port {
                    Some(port) => command.args(["-b", "127.0.0.1", "-p", &port]),
                    None => command.arg("-k").arg(socket),
                };
                command.arg(disk);
            }
        }
        command
    }

    fn greets(&self) -> bool {
        let mut magic = [0; 8];
        // On a busy machine the server takes long to fork the process that sends the greeting.
        let patience = Some(Duration::from_secs(5));
        let read = match self.port {
            Some(port) => TcpStream::connect(("127.0.0.1", port)).and_then(|mut stream| {
                stream.set_read_timeout(patience)?;
                stream.read_exact(&mut magic)
            }),
            None => UnixStream::connect(self.socket()).and_then(|mut stream| {
                stream.set_read_timeout(patience)?;
                stream.read_exact(&mut magic)
            }),
        };
        read.is_ok() && magic == *b"NBDMAGIC"
    }

    /// Kills the server and the processes that it has forked.
    pub fn kill(&mut self) {
        if self.pid == 0 {
            return;
        }
        self.signal(9);
        if let Some(mut child) = self.child.take() {
            let _ = child.wait();
        }
        let begun = Instant::now();
        while procs::is_alive(self.pid) && begun.elapsed() < Duration::from_secs(5) {
            std::thread::sleep(Duration::from_millis(2));
        }
        self.pid = 0;
    }

    /// Whether the server is running.
    #[allow(dead_code, reason = "not every suite asks")]
    pub fn is_alive(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid)).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
    }

    /// Sends a signal to the server and to the processes that it has forked.
    pub fn signal(&self, signal: i32) {
        let forked = procs::descendants(self.pid);
        procs::kill(self.pid, signal);
        forked.into_iter().for_each(|pid| procs::kill(pid, signal));
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A port at which no process listens now.
pub fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("an address").port()
}
