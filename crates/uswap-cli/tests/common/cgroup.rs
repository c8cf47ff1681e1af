//! A memory cgroup for one test, of version 1 or 2, with a hard limit and without kernel swap.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// A cgroup, removed on drop.
pub struct Group {
    folder: PathBuf,
    unified: bool,
}

impl Group {
    /// A group below the root of the memory controller, limited to this many bytes.
    pub fn new(name: &str, limit: u64) -> io::Result<Self> {
        let v1 = Path::new("/sys/fs/cgroup/memory");
        let unified = !v1.join("memory.limit_in_bytes").exists();
        let root = if unified { unified_root()? } else { v1.to_path_buf() };
        let folder = root.join(format!("uswap-test-{name}-{}", std::process::id()));
        fs::create_dir(&folder)?;
        let group = Self { folder, unified };
        group.set(if unified { "memory.max" } else { "memory.limit_in_bytes" }, &limit.to_string())?;
        // The file is absent where the kernel has no swap accounting; no swap is active on machines
        // where this runs then.
        let (file, most) = if unified { ("memory.swap.max", 0) } else { ("memory.memsw.limit_in_bytes", limit) };
        let _ = group.set(file, &most.to_string());
        Ok(group)
    }

    fn set(&self, file: &str, value: &str) -> io::Result<()> {
        fs::write(self.folder.join(file), value)
    }

    /// Sets another limit.
    pub fn limit(&self, bytes: u64) -> io::Result<()> {
        let files = ["memory.limit_in_bytes", "memory.max"];
        // Version 1 demands that the limit with swap is always the larger one.
        let _ = self.set("memory.memsw.limit_in_bytes", "-1");
        self.set(files[usize::from(self.unified)], &bytes.to_string())
    }

    /// A wrapper command that joins the group and then executes the command.
    pub fn wrapper(&self) -> [String; 4] {
        let join = format!("echo $$ > {}/cgroup.procs && exec \"$@\"", self.folder.display());
        ["bash".into(), "-c".into(), join, "join".into()]
    }

    fn number(&self, file: &str) -> Option<u64> {
        fs::read_to_string(self.folder.join(file)).ok()?.trim().parse().ok()
    }

    /// Maximum number of bytes ever charged, including file pages and kernel memory.
    pub fn peak(&self) -> Option<u64> {
        self.number(if self.unified { "memory.peak" } else { "memory.max_usage_in_bytes" })
    }

    /// Number of the group's processes that the kernel killed because memory was short.
    pub fn oom_kills(&self) -> u64 {
        let file = if self.unified { "memory.events" } else { "memory.oom_control" };
        let text = fs::read_to_string(self.folder.join(file)).unwrap_or_default();
        text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok()).unwrap_or(0)
    }

    /// A figure of memory.stat, by its name in version 1 and 2.
    pub fn stat(&self, names: [&str; 2]) -> u64 {
        let text = fs::read_to_string(self.folder.join("memory.stat")).unwrap_or_default();
        let name = names[usize::from(self.unified)];
        text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok()).unwrap_or(0)
    }
}

/// The folder in which child groups with the memory controller can be made.
fn unified_root() -> io::Result<PathBuf> {
    let root = PathBuf::from("/sys/fs/cgroup");
    if !fs::read_to_string(root.join("cgroup.controllers"))?.contains("memory") {
        return Err(io::Error::other("the memory controller is not there"));
    }
    fs::write(root.join("cgroup.subtree_control"), "+memory")?;
    Ok(root)
}

impl Drop for Group {
    fn drop(&mut self) {
        for _ in 0..100 {
            if fs::remove_dir(&self.folder).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        super::notice(&format!("{} could not be removed", self.folder.display()));
    }
}
