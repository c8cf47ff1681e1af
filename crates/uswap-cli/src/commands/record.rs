//! `uswap lab record`: records a trace of the pages that a command accesses, as the engine sees
//! them or, with valgrind, of every access.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex};

use clap::Args;
use uswap_lab::lackey;
use uswap_lab::record::TraceFile;
use uswap_run::config::exit;
use uswap_run::keeper;
use uswap_run::record::TouchRecord;

use crate::commands::run::{RunArguments, RunRefusal, find_program, prepare};
use crate::host::ward::{Reading, Ward};

#[derive(Args, Debug)]
pub struct RecordArguments {
    /// The trace: a new file, in the compact format, gzip if its name ends in .gz
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Every data access, by valgrind's tool lackey: some hundred times slower, for small programs.
    /// The command's children and budget are left aside
    #[arg(long)]
    every_access: bool,
    #[command(flatten)]
    run: RunArguments,
}

/// Runs the command; returns the exit status.
pub fn run(arguments: &RecordArguments) -> i32 {
    let done = if arguments.every_access { every_access(arguments) } else { faults(arguments) };
    done.unwrap_or_else(|(text, status)| {
        eprintln!("uswap: {text}");
        status
    })
}

fn refuse(text: String) -> RunRefusal {
    (text, exit::REFUSED)
}

/// Records the faults of the command in a memory of the run's budget.
fn faults(arguments: &RecordArguments) -> Result<i32, RunRefusal> {
    let mut config = prepare(&arguments.run)?;
    let trace = Mutex::new(TraceFile::create(&arguments.output).map_err(refuse)?);
    config.record = Some(TouchRecord(Arc::new(move |touches| {
        let mut trace = trace.lock().map_err(|_| "the trace is broken off".to_string())?;
        if touches.is_empty() { trace.finish() } else { trace.push(touches) }
    })));
    Ok(keeper::run(&config))
}

/// Runs the command under lackey and reads lackey's output through a separate pipe.
fn every_access(arguments: &RecordArguments) -> Result<i32, RunRefusal> {
    let valgrind = find_program(OsStr::new("valgrind"))
        .map_err(|_| refuse("--every-access needs valgrind, which is not installed".into()))?;
    let program = find_program(&arguments.run.command[0])?;
    let mut trace = TraceFile::create(&arguments.output).map_err(refuse)?;
    let failed = |error: std::io::Error| refuse(format!("valgrind: {error}"));
    let (reader, writer) = std::io::pipe().map_err(failed)?;
    let log = format!("--log-file=/proc/{}/fd/{}", std::process::id(), writer.as_raw_fd());
    let mut command = Command::new(valgrind);
    command.args(["--tool=lackey", "--trace-mem=yes", &log]).arg(program).args(&arguments.run.command[1..]);
    let ward = Ward::start(&mut command).map_err(failed)?;
    let reading = Arc::new(Reading::default());
    let seen = reading.clone();
    // The pipe ends when valgrind, its children and this process have closed it.
    let waiter = std::thread::spawn(move || ward.attend(writer, &seen));
    let told = tell(BufReader::new(reader), |page| trace.push(&[page]));
    let told = told.and_then(|touches| trace.finish().map(|()| touches));
    reading.ends(told.is_ok());
    let status = waiter.join().map_err(|_| refuse("valgrind was lost sight of".into()))?;
    let touches = told.map_err(refuse)?;
    if !arguments.run.engine.quiet {
        eprintln!("uswap: recorded {touches} touches");
    }
    Ok(status)
}

/// Reads lackey's lines to the end; several accesses to one page in a row count as one.
fn tell(input: impl BufRead, mut push: impl FnMut(u64) -> Result<(), String>) -> Result<u64, String> {
    let (mut last, mut touches) = (None, 0);
    for line in input.lines() {
        let line = line.map_err(|error| error.to_string())?;
        let Some((first, end)) = lackey::pages(&line)? else { continue };
        for page in first..=end {
            if last != Some(page) {
                push(page)?;
                touches += 1;
            }
            last = Some(page);
        }
    }
    Ok(touches)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_touches_of_a_page_are_one() {
        let mut pages = Vec::new();
        let lines = "==1== Lackey\n L 1000,8\n S 1008,8\nI  9000,3\n M 2ffc,8\n L 1000,1\n";
        let touches = tell(lines.as_bytes(), |page| {
            pages.push(page);
            Ok(())
        });
        assert_eq!((touches, pages), (Ok(4), vec![1, 2, 3, 1]));
    }
}
