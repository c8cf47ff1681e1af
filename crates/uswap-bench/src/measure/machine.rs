//! Information on the machine, the kernel and the revision of a measurement.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde::{Deserialize, Serialize};
use uswap_core::util::size::human;

use crate::measure::proc_text::field;

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineInfo {
    /// Name of the processor.
    pub processor: String,
    /// Number of processors.
    pub processors: usize,
    /// RAM in bytes.
    pub memory_bytes: u64,
    /// Release of the kernel.
    pub kernel: String,
    /// Setting of transparent huge pages.
    pub huge_pages: String,
    /// Version of the cgroup hierarchy that limits memory.
    pub cgroup: String,
    /// File system of the working folder.
    pub file_system: String,
    /// Revision of the source, with a plus if the source was changed.
    pub commit: String,
    /// The date, in UTC.
    pub date: String,
    /// Load average of the last minute before the measurement began.
    pub load: String,
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

fn output(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).stderr(std::process::Stdio::null()).output();
    output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_string()).unwrap_or_default()
}

impl MachineInfo {
    /// Processors, kernel, commit, date and load, for the head of a document.
    pub fn heading(&self) -> String {
        format!(
            "{} x {}, Linux {}, commit {}, {}, load average at the start {}",
            self.processors, self.processor, self.kernel, self.commit, self.date, self.load
        )
    }

    /// This machine, with the working folder `folder`.
    pub fn here(folder: &Path, cgroup: &str) -> Self {
        let cpuinfo = read("/proc/cpuinfo");
        let name = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
        let huge_pages = read("/sys/kernel/mm/transparent_hugepage/enabled");
        let chosen = huge_pages.split(['[', ']']).nth(1).unwrap_or("not there");
        let commit = output("git", &["describe", "--always", "--dirty=+", "--exclude=*"]);
        Self {
            processor: name.map_or("unknown", |(_, name)| name.trim()).into(),
            processors: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: field(&read("/proc/meminfo"), "MemTotal").unwrap_or(0) << 10,
            kernel: read("/proc/sys/kernel/osrelease").trim().into(),
            huge_pages: chosen.into(),
            cgroup: cgroup.into(),
            file_system: output("stat", &["-f", "-c", "%T", &folder.display().to_string()]),
            commit: if commit.is_empty() { "unknown".into() } else { commit },
            date: output("date", &["-u", "+%Y-%m-%d"]),
            load: read("/proc/loadavg").split_whitespace().next().unwrap_or_default().into(),
        }
    }

    /// The information in one paragraph.
    pub fn in_words(&self) -> String {
        format!(
            "{} x {}, {} of RAM, Linux {}, memory limited by cgroup {}, huge pages {}, swap files on {}; commit {}, {}; \
             load average at the start {}",
            self.processors,
            self.processor,
            human(self.memory_bytes),
            self.kernel,
            self.cgroup,
            self.huge_pages,
            self.file_system,
            self.commit,
            self.date,
            self.load,
        )
    }
}
