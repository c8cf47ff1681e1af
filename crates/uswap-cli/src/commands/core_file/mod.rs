//! `uswap core`: writes a core file of a managed process, with its evicted pages. The program runs
//! on afterwards.
//!
//! The threads of the program are stopped, as by a debugger, until its memory is written; the
//! agent's thread runs on, since pages that are on their way need it. Present pages are read
//! through /proc; evicted pages are requested from the run (`page_query.rs` of the engine), which
//! changes nothing there.

mod elf;
mod file;
mod mappings;
mod memory;
mod notes;
mod source;
mod threads;

use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;
use uswap_core::util::size::human;
use uswap_run::config::exit;
use uswap_sys::process::interrupt;

use crate::client;
use file::CoreFile;
use mappings::CoreMapping;
use memory::{Copier, Tally};
use source::Source;
use threads::StoppedThreads;

/// The result of writing a core file.
#[derive(Debug, Serialize)]
struct CoreWritten {
    file: String,
    memory_bytes: u64,
    evicted_bytes: u64,
    threads: usize,
}

/// Why there is no core file, as a message for the user, and the exit status.
type CoreFailure = (String, i32);

/// Added to the number of the signal that ended the command, as in shells.
const BY_SIGNAL: i32 = 128;

#[derive(Args, Debug)]
pub struct CoreArguments {
    /// Name of the run
    #[arg(value_name = "NAME")]
    name: String,
    /// The process id
    #[arg(value_name = "PID")]
    pid: u32,
    /// The core file; one that is there is replaced (default: core.PID)
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Print what came of it as JSON
    #[arg(long)]
    json: bool,
}

/// Writes a core file; returns the exit status.
pub fn run(arguments: &CoreArguments) -> i32 {
    // An interrupt must not leave an incomplete file.
    if let Err(error) = interrupt::remember_requests_to_end() {
        eprintln!("uswap: {error}");
        return exit::REFUSED;
    }
    let place = arguments.output.clone().unwrap_or_else(|| format!("core.{}", arguments.pid).into());
    match write(&arguments.name, arguments.pid, &place) {
        Ok(told) => crate::commands::orders::tell(Ok(told), arguments.json, |told| {
            let (all, evicted) = (human(told.memory_bytes), human(told.evicted_bytes));
            format!("{}: {all} of memory, {evicted} of it evicted, {} threads", told.file, told.threads)
        }),
        Err((text, status)) => {
            eprintln!("uswap: {text}");
            status
        }
    }
}

fn refused(text: String) -> CoreFailure {
    (text, exit::REFUSED)
}

fn write(name: &str, pid: u32, place: &Path) -> Result<CoreWritten, CoreFailure> {
    let run = client::find(name).map_err(refused)?;
    let mut source = Source::open(&run, pid).map_err(refused)?;
    let mut file = CoreFile::create(place).map_err(refused)?;
    let stopped = StoppedThreads::all_of(pid).map_err(refused)?;
    let written = write_stopped(pid, &stopped, &mut source, &mut file);
    let tally = written.map_err(|failure| why(pid, failure))?;
    let threads = stopped.threads().len();
    drop(stopped);
    file.finish().map_err(refused)?;
    let (memory_bytes, evicted_bytes) = (tally.copied, tally.evicted);
    Ok(CoreWritten { file: place.display().to_string(), memory_bytes, evicted_bytes, threads })
}

/// The failure to report: the end of the process, if the process has ended meanwhile, otherwise the
/// given one.
fn why(pid: u32, failure: CoreFailure) -> CoreFailure {
    match threads::has_ended(pid) && failure.1 == exit::REFUSED {
        true => refused(format!("process {pid} ended while its memory was being written; there is no core file")),
        false => failure,
    }
}

/// Writes everything; the beginning of the file comes last, when the offsets of the segments are
/// known.
fn write_stopped(
    pid: u32,
    stopped: &StoppedThreads,
    source: &mut Source,
    file: &mut CoreFile,
) -> Result<Tally, CoreFailure> {
    // The first thread may have ended; the process cannot be read through it then.
    let reader = stopped.reader();
    let area = source.area().map_err(refused)?;
    let mappings = mappings::of(reader).map_err(refused)?;
    let mappings: Vec<CoreMapping> = mappings.into_iter().filter(|mapping| !mapping.is_agents(area)).collect();
    let notes = notes::of(pid, stopped, &mappings).map_err(refused)?;
    let filter = mappings::filter(reader);
    let mut layout = elf::CoreLayout::new(mappings.len(), notes.len());
    let mut copier = Copier::new(reader, source, file).map_err(refused)?;
    for mapping in &mappings {
        let content = mapping.content(filter);
        let begins = layout.next_segment();
        let bytes = copier.copy(mapping, content, begins)?;
        layout.add(mapping, bytes);
    }
    let tally = copier.end();
    file.write_all(0, &layout.headers()).map_err(refused)?;
    file.write_all(layout.notes_at(), &notes).map_err(refused)?;
    file.set_length(layout.end()).map_err(refused)?;
    if let Some((at, section)) = layout.section() {
        file.write_all(at, &section).map_err(refused)?;
    }
    Ok(tally)
}

/// Fails if a signal has asked this command to end; called between two pieces.
fn look_for_interrupt() -> Result<(), CoreFailure> {
    match interrupt::arrived() {
        Some(signal) => Err(("interrupted; there is no core file".into(), BY_SIGNAL + signal)),
        None => Ok(()),
    }
}
