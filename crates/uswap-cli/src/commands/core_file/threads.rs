//! The threads of a process, stopped as by a debugger, all except the agent's. They run on when
//! this value is dropped, or when this command ends.

use std::time::{Duration, Instant};

use uswap_run::page_answer::{AGENT_NAME, CALL_NAME};
use uswap_sys::process::trace::{Stop, Tracee};

/// Time in which threads must stop: a thread that waits in the kernel for a page is woken for it,
/// one that waits for a disk is not.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// A stopped thread.
pub struct Thread {
    /// The thread, traced by this process.
    pub tracee: Tracee,
    /// The signal that is about to be delivered to the thread (0: none).
    pub signal: i32,
}

/// The threads of a process.
pub struct StoppedThreads {
    threads: Vec<Thread>,
}

impl StoppedThreads {
    /// Stops all threads of a process, including those that are made meanwhile.
    ///
    /// # Errors
    /// A message for the user: the threads may not be stopped, or do not stop in time. All run on
    /// then.
    pub fn all_of(pid: u32) -> Result<Self, String> {
        let mut stopped = Self { threads: Vec::new() };
        let deadline = Instant::now() + STOP_TIMEOUT;
        loop {
            let begun = stopped.begin(pid)?;
            if begun.is_empty() {
                break;
            }
            for tracee in begun {
                stopped.wait(tracee, deadline)?;
            }
        }
        if stopped.threads.is_empty() {
            return Err(format!("process {pid} has ended"));
        }
        // A debugger shows the first thread of the file first.
        stopped.threads.sort_by_key(|thread| (thread.tracee.tid() != pid, thread.tracee.tid()));
        Ok(stopped)
    }

    /// The stopped threads; the first thread of the program comes first, if it lives.
    pub fn threads(&self) -> &[Thread] {
        &self.threads
    }

    /// The id of a thread through which the process can be read.
    pub fn reader(&self) -> u32 {
        self.threads[0].tracee.tid()
    }

    /// Asks all threads to stop that were not asked yet.
    fn begin(&self, pid: u32) -> Result<Vec<Tracee>, String> {
        let mut begun = Vec::new();
        for tid in threads_of(pid) {
            if self.threads.iter().any(|thread| thread.tracee.tid() == tid) || is_left_alone(tid) {
                continue;
            }
            match Tracee::seize(tid, tid == pid) {
                Ok(tracee) => {
                    // The end of a thread is noticed when its state change is read.
                    let _ = tracee.interrupt();
                    begun.push(tracee);
                }
                Err(_) if has_ended(tid) => {}
                Err(error) => return Err(refusal(pid, tid, &error)),
            }
        }
        Ok(begun)
    }

    fn wait(&mut self, tracee: Tracee, deadline: Instant) -> Result<(), String> {
        match tracee.wait_for_arrival(deadline.saturating_duration_since(Instant::now())) {
            Some(Stop::Gone) => {}
            Some(Stop::Signal(signal)) => self.threads.push(Thread { tracee, signal }),
            Some(_) => self.threads.push(Thread { tracee, signal: 0 }),
            None => return Err(format!("thread {} does not stop: it waits in the kernel", tracee.tid())),
        }
        Ok(())
    }
}

impl Drop for StoppedThreads {
    fn drop(&mut self) {
        for thread in &self.threads {
            // A thread that was killed meanwhile is gone.
            let _ = thread.tracee.detach_with(thread.signal);
        }
    }
}

fn threads_of(pid: u32) -> Vec<u32> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    tasks.filter_map(|task| task.file_name().to_str()?.parse().ok()).collect()
}

/// Whether a thread is not stopped: the agent must run on, and a thread that has ended cannot be
/// stopped.
fn is_left_alone(tid: u32) -> bool {
    let name = std::fs::read_to_string(format!("/proc/{tid}/comm")).unwrap_or_default();
    let is_agent = name.trim_end() == AGENT_NAME.to_string_lossy() || name.starts_with(CALL_NAME);
    is_agent || has_ended(tid)
}

/// Whether a process or thread has ended, even if its status was not collected yet.
pub fn has_ended(tid: u32) -> bool {
    let text = std::fs::read_to_string(format!("/proc/{tid}/stat")).unwrap_or_default();
    text.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with(['Z', 'X']))
}

fn refusal(pid: u32, tid: u32, error: &std::io::Error) -> String {
    let status = std::fs::read_to_string(format!("/proc/{tid}/status")).unwrap_or_default();
    let tracer = status.lines().find_map(|line| line.strip_prefix("TracerPid:")).map_or("0", str::trim);
    match tracer {
        "0" => format!(
            "process {pid} may not be stopped: {error} (CAP_SYS_PTRACE is needed, or kernel.yama.ptrace_scope 0)"
        ),
        tracer => format!("process {pid} is traced by process {tracer} already"),
    }
}
