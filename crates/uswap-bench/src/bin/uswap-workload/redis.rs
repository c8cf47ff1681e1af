//! A client of a Redis server: it fills the server with keys, then sends GET and SET of keys by a
//! zipf distribution, in small batches, and checks every value that it gets.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::{Value, json};
use uswap_core::Histogram;

use crate::content::mix;
use crate::sequence::{SequenceRandom, ZipfSequence, scatter};

/// Options of `redis`.
#[derive(Args, Debug)]
pub struct RedisArguments {
    /// The server's Unix socket
    #[arg(long)]
    socket: PathBuf,
    /// Keys
    #[arg(long, default_value_t = 200_000)]
    keys: u64,
    /// Bytes of a value, a multiple of 16
    #[arg(long, default_value_t = 1024)]
    value: usize,
    /// Requests after the keys are there
    #[arg(long, default_value_t = 400_000)]
    operations: u64,
    /// The requests end after so many seconds
    #[arg(long, default_value_t = 6.0)]
    seconds: f64,
    /// Percentage of requests that are SET
    #[arg(long, default_value_t = 20)]
    writes: u64,
    /// Exponent of the distribution, not 1
    #[arg(long, default_value_t = 1.2)]
    zipf: f64,
}

/// Number of requests in flight.
const BATCH: u64 = 8;

struct Client {
    reader: BufReader<UnixStream>,
    writer: UnixStream,
    bytes: usize,
    versions: Vec<u8>,
    out: Vec<u8>,
}

/// Runs the load; returns its results, which are printed as one line of JSON. The server keeps
/// running.
///
/// # Errors
/// A wrong value, an invalid answer, or a connection error.
pub fn run(arguments: &RedisArguments) -> Result<Value, String> {
    let mut client = Client::connect(arguments)?;
    let start = Instant::now();
    client.fill(arguments.keys)?;
    let fill = start.elapsed().as_secs_f64();
    let latency = Histogram::new();
    let start = Instant::now();
    let operations = client.load(arguments, start, &latency)?;
    let seconds = start.elapsed().as_secs_f64();
    Ok(json!({
        "answer": "values as set",
        "fill_seconds": fill,
        "visit_seconds": seconds,
        "operations": operations,
        "planned": arguments.operations,
        "seconds": fill + seconds * arguments.operations as f64 / operations.max(1) as f64,
        "latency": latency.snapshot(),
    }))
}

impl Client {
    /// Connects; waits for a server that is still starting.
    fn connect(arguments: &RedisArguments) -> Result<Self, String> {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            match UnixStream::connect(&arguments.socket) {
                Ok(writer) => {
                    let reader = BufReader::new(writer.try_clone().map_err(|error| error.to_string())?);
                    let versions = vec![0; arguments.keys as usize];
                    return Ok(Self { reader, writer, bytes: arguments.value, versions, out: Vec::new() });
                }
                Err(error) if Instant::now() > deadline => {
                    return Err(format!("{}: {error}", arguments.socket.display()));
                }
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
        }
    }

    fn fill(&mut self, keys: u64) -> Result<(), String> {
        for first in (0..keys).step_by(64) {
            let batch: Vec<(u64, bool)> = (first..keys.min(first + 64)).map(|key| (key, true)).collect();
            self.exchange(&batch)?;
        }
        Ok(())
    }

    fn load(&mut self, arguments: &RedisArguments, start: Instant, latency: &Histogram) -> Result<u64, String> {
        let (zipf, mut random) = (ZipfSequence::new(arguments.keys, arguments.zipf), SequenceRandom::new(5));
        let mut done = 0;
        while done < arguments.operations && start.elapsed().as_secs_f64() < arguments.seconds {
            let mut batch: Vec<(u64, bool)> = Vec::new();
            while batch.len() < BATCH as usize {
                let key = scatter(zipf.sample(&mut random) - 1, arguments.keys);
                // A key occurs once per batch, since answers are checked against the values before
                // the batch.
                if batch.iter().all(|(other, _)| *other != key) {
                    batch.push((key, random.below(100) < arguments.writes));
                }
            }
            let begin = Instant::now();
            self.exchange(&batch)?;
            latency.record(begin.elapsed().as_nanos() as u64);
            done += BATCH;
        }
        Ok(done)
    }

    /// Sends the requests, SET where the flag is true, and checks the answers.
    fn exchange(&mut self, batch: &[(u64, bool)]) -> Result<(), String> {
        self.out.clear();
        for &(key, set) in batch {
            let name = format!("key:{key:012}");
            if set {
                let version = self.versions[key as usize].wrapping_add(1);
                self.versions[key as usize] = version;
                let value = value(key, version, self.bytes);
                let head = format!("*3\r\n$3\r\nSET\r\n${}\r\n{name}\r\n${}\r\n", name.len(), value.len());
                self.out.extend([head.as_bytes(), value.as_bytes(), b"\r\n"].concat());
            } else {
                self.out.extend(format!("*2\r\n$3\r\nGET\r\n${}\r\n{name}\r\n", name.len()).bytes());
            }
        }
        self.writer.write_all(&self.out).map_err(|error| format!("the server is gone: {error}"))?;
        batch.iter().try_for_each(|&(key, set)| self.answer(key, set))
    }

    fn answer(&mut self, key: u64, set: bool) -> Result<(), String> {
        let mut line = String::new();
        let read = self.reader.read_line(&mut line).map_err(|error| error.to_string())?;
        if read == 0 {
            return Err("the server closed the connection".into());
        }
        if set {
            return if line == "+OK\r\n" { Ok(()) } else { Err(format!("SET of key {key}: {}", line.trim())) };
        }
        let length: usize = line.trim().strip_prefix('$').and_then(|n| n.parse().ok()).unwrap_or(usize::MAX);
        if length != self.bytes {
            return Err(format!("GET of key {key}: {}", line.trim()));
        }
        let mut found = vec![0; length + 2];
        self.reader.read_exact(&mut found).map_err(|error| error.to_string())?;
        if found[..length] != *value(key, self.versions[key as usize], self.bytes).as_bytes() {
            return Err(format!("GET of key {key}: not the value that was set"));
        }
        Ok(())
    }
}

/// A value of hexadecimal digits, half of which repeat.
fn value(key: u64, version: u8, bytes: usize) -> String {
    let unit = |i: u64| mix((key << 16) ^ (u64::from(version) << 8) ^ (i / 2));
    (0..bytes as u64 / 16).map(|i| format!("{:016x}", unit(i))).collect()
}
