//! A memory cgroup for one run, of version 1 or 2: it sets the hard limit, reads the figures, and
//! ends all processes in the group.
//!
//! A [`BenchCgroup`] is removed when it is dropped, also after an error; before that, every process
//! in it is killed. Processes join through a shell that writes its own pid to the group and then
//! executes the command, so that not one page is charged elsewhere.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use crate::measure::proc_text::field;

/// First characters of the names of all groups of this tool.
pub const PREFIX: &str = "uswap-bench-";

/// The version of the hierarchy that holds the memory controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// Each controller has its own hierarchy.
    V1,
    /// One hierarchy for all controllers.
    V2,
}

/// The memory controller, switched on for child groups of version 2, and off when the last
/// hierarchy is dropped.
#[derive(Debug)]
struct SwitchedOn(PathBuf);

impl Drop for SwitchedOn {
    fn drop(&mut self) {
        // The kernel refuses while other programs use the controller by now; then it stays on.
        let _ = fs::write(&self.0, "-memory");
    }
}

/// The hierarchy in which groups are made.
#[derive(Clone, Debug)]
pub struct Hierarchy {
    version: Version,
    memory: PathBuf,
    /// Version 1: the hierarchy that counts processor time.
    processor: Option<PathBuf>,
    _switched_on: Option<Arc<SwitchedOn>>,
}

impl Hierarchy {
    /// The hierarchy with the memory controller.
    ///
    /// # Errors
    /// A sentence: why no group can be made on this machine.
    pub fn find() -> Result<Self, String> {
        Self::under(Path::new("/sys/fs/cgroup"))
    }

    fn under(root: &Path) -> Result<Self, String> {
        let v1 = root.join("memory");
        if v1.join("memory.limit_in_bytes").exists() {
            let processor = root.join("cpuacct");
            let processor = processor.join("cpuacct.usage_user").exists().then_some(processor);
            return Ok(Self { version: Version::V1, memory: v1, processor, _switched_on: None });
        }
        let has = |file| {
            let controllers = fs::read_to_string(root.join(file)).unwrap_or_default();
            controllers.split_whitespace().any(|name| name == "memory")
        };
        if !has("cgroup.controllers") {
            return Err("no memory controller: neither cgroup version 1 nor version 2 offers one".into());
        }
        let switch = root.join("cgroup.subtree_control");
        let mut switched_on = None;
        if !has("cgroup.subtree_control") {
            fs::write(&switch, "+memory")
                .map_err(|error| format!("the memory controller cannot be switched on for child groups: {error}"))?;
            switched_on = Some(Arc::new(SwitchedOn(switch)));
        }
        Ok(Self { version: Version::V2, memory: root.to_path_buf(), processor: None, _switched_on: switched_on })
    }

    /// The version of the hierarchy.
    pub fn version(&self) -> Version {
        self.version
    }
}

/// An existing group; see the module.
#[derive(Debug)]
pub struct BenchCgroup {
    version: Version,
    memory: PathBuf,
    processor: Option<PathBuf>,
}

/// How much memory a group may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Hard limit of RAM in bytes; `None` is no limit.
    pub ram: Option<u64>,
    /// Whether the kernel may swap for this group.
    pub kernel_swap: bool,
}

static COUNT: AtomicU32 = AtomicU32::new(0);

impl BenchCgroup {
    /// Makes a group.
    ///
    /// # Errors
    /// The kernel's error for the folder or the limit.
    pub fn new(hierarchy: &Hierarchy, limits: Limits) -> Result<Self, String> {
        let name = format!("{PREFIX}{}-{}", std::process::id(), COUNT.fetch_add(1, Relaxed));
        let make = |parent: &Path| {
            let folder = parent.join(&name);
            fs::create_dir(&folder).map_err(|error| format!("cgroup {}: {error}", folder.display()))?;
            Ok::<_, String>(folder)
        };
        let memory = make(&hierarchy.memory)?;
        let mut group = Self { version: hierarchy.version, memory, processor: None };
        group.processor = hierarchy.processor.as_deref().map(make).transpose()?;
        group.limit(limits).map_err(|error| format!("cgroup {}: limit: {error}", group.memory.display()))?;
        Ok(group)
    }

    fn limit(&self, limits: Limits) -> io::Result<()> {
        let Some(ram) = limits.ram else { return Ok(()) };
        let ram_file = self.either("memory.limit_in_bytes", "memory.max");
        fs::write(self.memory.join(ram_file), ram.to_string())?;
        if !limits.kernel_swap {
            // The file is absent where the kernel does not account for swap; then only active swap
            // areas matter, and the report shows pswpout.
            let (file, most) =
                (self.either("memory.memsw.limit_in_bytes", "memory.swap.max"), self.either_number(ram, 0));
            match fs::write(self.memory.join(file), most.to_string()) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    fn either<'a>(&self, v1: &'a str, v2: &'a str) -> &'a str {
        if self.version == Version::V1 { v1 } else { v2 }
    }

    fn either_number(&self, v1: u64, v2: u64) -> u64 {
        if self.version == Version::V1 { v1 } else { v2 }
    }

    fn folders(&self) -> impl Iterator<Item = &PathBuf> {
        std::iter::once(&self.memory).chain(&self.processor)
    }

    /// The words before a command that make it run in the group.
    pub fn wrapper(&self) -> Vec<OsString> {
        let join = "for file in $1; do echo $$ > \"$file\" || exit 125; done; shift; exec \"$@\"";
        let files: Vec<String> =
            self.folders().map(|folder| folder.join("cgroup.procs").display().to_string()).collect();
        ["sh", "-c", join, "join", &files.join(" ")].map(OsString::from).into()
    }

    fn read(&self, file: &str) -> String {
        fs::read_to_string(self.memory.join(file)).unwrap_or_default()
    }

    fn number(&self, file: &str) -> u64 {
        self.read(file).trim().parse().unwrap_or(0)
    }

    /// Maximum number of bytes ever charged, including file pages and kernel memory.
    pub fn peak(&self) -> u64 {
        self.number(self.either("memory.max_usage_in_bytes", "memory.peak"))
    }

    /// Number of processes that the kernel killed because memory was short.
    pub fn oom_kills(&self) -> u64 {
        field(&self.read(self.either("memory.oom_control", "memory.events")), "oom_kill").unwrap_or(0)
    }

    /// Number of major faults in the group.
    pub fn major_faults(&self) -> u64 {
        field(&self.read("memory.stat"), self.either("total_pgmajfault", "pgmajfault")).unwrap_or(0)
    }

    /// Bytes that cannot be dropped without being read again at once: anonymous memory, mapped file
    /// pages, and kernel memory.
    pub fn working_set(&self) -> u64 {
        let stat = self.read("memory.stat");
        let get = |name| field(&stat, name).unwrap_or(0);
        match self.version {
            Version::V1 => get("total_rss") + get("total_mapped_file") + self.number("memory.kmem.usage_in_bytes"),
            Version::V2 => (get("anon") + get("file_mapped") + get("kernel")).saturating_sub(get("slab_reclaimable")),
        }
    }

    /// User and system time of all processes that ran in the group, in seconds; `None` where the
    /// kernel does not count it.
    pub fn processor_seconds(&self) -> Option<(f64, f64)> {
        if let Some(folder) = &self.processor {
            let get = |file| fs::read_to_string(folder.join(file)).ok()?.trim().parse::<f64>().ok();
            return Some((get("cpuacct.usage_user")? / 1e9, get("cpuacct.usage_sys")? / 1e9));
        }
        let text = self.read("cpu.stat");
        Some((field(&text, "user_usec")? as f64 / 1e6, field(&text, "system_usec")? as f64 / 1e6))
    }

    /// The ids of the processes in the group.
    pub fn processes(&self) -> Vec<u32> {
        let lists = self.folders().map(|folder| fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default());
        lists.flat_map(|text| text.lines().filter_map(|pid| pid.parse().ok()).collect::<Vec<u32>>()).collect()
    }

    /// Kills every process in the group, including those that are started meanwhile. Waits at most
    /// five seconds.
    pub fn kill_all(&self) {
        for _ in 0..500 {
            let processes = self.processes();
            if processes.is_empty() {
                return;
            }
            for pid in processes {
                // An error means that the process has ended already.
                let _ = uswap_sys::process::kill(pid, 9);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for BenchCgroup {
    fn drop(&mut self) {
        self.kill_all();
        for folder in self.folders() {
            // A killed process is listed until it is reaped.
            let removed = (0..100).any(|_| {
                let gone = fs::remove_dir(folder).is_ok() || !folder.exists();
                if !gone {
                    std::thread::sleep(Duration::from_millis(20));
                }
                gone
            });
            if !removed {
                eprintln!("uswap-bench: {} could not be removed", folder.display());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder that behaves like a cgroup file system when files are read and written.
    fn pretended(name: &str, files: &[(&str, &str)]) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("{PREFIX}pretended-{name}-{}", std::process::id()));
        for (file, text) in files {
            let path = folder.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        folder
    }

    #[test]
    fn version_2_is_switched_on_and_off_again() {
        let files = [("cgroup.controllers", "cpu memory pids\n"), ("cgroup.subtree_control", "cpu\n")];
        let folder = pretended("switch", &files);
        let switch = || fs::read_to_string(folder.join("cgroup.subtree_control")).unwrap();
        let hierarchy = Hierarchy::under(&folder).unwrap();
        assert_eq!((hierarchy.version(), switch()), (Version::V2, "+memory".into()));
        let other = hierarchy.clone();
        drop(hierarchy);
        assert_eq!(switch(), "+memory");
        drop(other);
        assert_eq!(switch(), "-memory");
        fs::write(folder.join("cgroup.controllers"), "cpu pids\n").unwrap();
        assert!(Hierarchy::under(&folder).unwrap_err().contains("no memory controller"));
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn figures_of_version_2_are_read() {
        let files = [
            ("memory.stat", "anon 100\nfile 999\nkernel 50\nfile_mapped 10\nslab_reclaimable 20\npgmajfault 7\n"),
            ("memory.events", "low 0\noom 3\noom_kill 2\n"),
            ("memory.peak", "12345\n"),
            ("cpu.stat", "usage_usec 3000000\nuser_usec 2000000\nsystem_usec 1000000\n"),
            ("cgroup.procs", ""),
        ];
        let folder = pretended("figures", &files);
        let group = BenchCgroup { version: Version::V2, memory: folder.clone(), processor: None };
        assert_eq!((group.working_set(), group.oom_kills(), group.peak(), group.major_faults()), (140, 2, 12345, 7));
        assert_eq!(group.processor_seconds(), Some((2.0, 1.0)));
        fs::remove_dir_all(folder).unwrap();
    }
}
