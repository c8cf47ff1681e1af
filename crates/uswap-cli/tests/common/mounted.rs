//! A folder that is mounted with `uswap mount` for a test.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::{Scratch, USWAP, command, is_root, not_here, skip};

/// Pages that say which they are; half of each does not compress.
pub fn content(pages: u64, mark: u8) -> Vec<u8> {
    let mut random = u64::from(mark) + 1;
    let mut bytes = Vec::with_capacity(pages as usize * 4096);
    for page in 0..pages {
        for _ in 0..256 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            bytes.extend(random.to_le_bytes());
        }
        bytes.extend((page << 8 | u64::from(mark)).to_le_bytes().repeat(256));
    }
    bytes
}

/// A folder that is mounted on another one, until the test ends.
pub struct Mounted {
    /// Has the folders `source` and `mount`, and `plain`.
    pub scratch: Scratch,
    /// The name of the mount.
    pub name: String,
    /// Words before `uswap mount`.
    wrapper: Vec<String>,
}

impl Mounted {
    /// `None`, with a report: mounts are not permitted here.
    pub fn new(options: &[&str]) -> Option<Self> {
        Self::within(Vec::new(), options)
    }

    /// The same under a wrapper: words before `uswap mount`.
    pub fn within(wrapper: Vec<String>, options: &[&str]) -> Option<Self> {
        let scratch = Scratch::new();
        ["source", "mount", "plain"].iter().for_each(|name| fs::create_dir(scratch.path(name)).expect("a folder"));
        let name = scratch.path("").file_name().expect("a name").to_string_lossy().replace(' ', "-");
        let mounted = Self { scratch, name, wrapper };
        mounted.mount(options).then_some(mounted)
    }

    /// Mounts; `false`, with a report: mounts are not permitted here.
    pub fn mount(&self, options: &[&str]) -> bool {
        if !Path::new("/dev/fuse").exists() || !is_root() {
            skip("needs /dev/fuse and root");
            return false;
        }
        let output = self.try_mount(options);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        if text.contains("SYS_ADMIN") {
            not_here("mounts are not permitted");
            return false;
        }
        assert!(output.status.success(), "{text}");
        true
    }

    /// Mounts, or is refused.
    pub fn try_mount(&self, options: &[&str]) -> Output {
        let mut mount = command("timeout");
        mount.arg("30").args(&self.wrapper).args([USWAP, "mount", "--name", &self.name]).args(options);
        mount.arg(self.source("")).arg(self.path("")).output().expect("uswap mount")
    }

    /// A file of the mount.
    pub fn path(&self, name: &str) -> PathBuf {
        self.scratch.path("mount").join(name)
    }

    /// A file of the source.
    pub fn source(&self, name: &str) -> PathBuf {
        self.scratch.path("source").join(name)
    }

    /// Runs a command of uswap.
    pub fn uswap(&self, arguments: &[&str]) -> Output {
        command("timeout").args(["20", USWAP]).args(arguments).output().expect("uswap")
    }

    /// The status of the mount.
    pub fn status(&self) -> Value {
        let output = self.uswap(&["status", "--json", &self.name]);
        serde_json::from_slice(&output.stdout).expect("a status")
    }

    /// A figure of the mount.
    pub fn figure(&self, name: &str) -> u64 {
        self.status()["mount"][name].as_u64().expect("a figure")
    }

    /// Reads the file again and again, until many of its pages are stored.
    pub fn read_until_stored(&self, name: &str, bytes: &[u8]) {
        let begun = Instant::now();
        while self.figure("stored_pages") < 2000 {
            assert!(self.get(name) == bytes);
            assert!(begun.elapsed() < Duration::from_secs(60), "{:#}", self.status());
        }
    }

    /// Its process.
    pub fn process(&self) -> u64 {
        self.status()["pid"].as_u64().expect("a process")
    }

    /// Waits until its process answers no more.
    pub fn wait_for_end(&self) {
        let begun = Instant::now();
        while self.uswap(&["status", &self.name]).status.success() {
            assert!(begun.elapsed() < Duration::from_secs(20), "it has not ended");
        }
    }

    /// Unmounts.
    pub fn umount(&self) -> Output {
        self.uswap(&["umount", &self.scratch.path("mount").display().to_string()])
    }

    /// A file of the source whose times are long past.
    pub fn put(&self, name: &str, bytes: &[u8]) {
        fs::write(self.source(name), bytes).expect("a file");
        let long_ago = std::time::SystemTime::now() - Duration::from_secs(3600);
        File::open(self.source(name)).and_then(|file| file.set_modified(long_ago)).expect("a time");
        // The time of change cannot be set.
        std::thread::sleep(Duration::from_millis(40));
    }

    /// The content of a file of the mount.
    pub fn get(&self, name: &str) -> Vec<u8> {
        fs::read(self.path(name)).expect("a file")
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if !self.umount().status.success() {
            self.uswap(&["umount", "--lazy", &self.scratch.path("mount").display().to_string()]);
        }
    }
}
