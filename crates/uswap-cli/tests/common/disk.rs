//! Block devices over a file, which a test makes and removes.

use std::path::PathBuf;
use std::process::Command;

use super::Scratch;

/// A loop device over a file.
pub struct BlockDevice {
    pub name: String,
    scratch: Scratch,
}

impl BlockDevice {
    /// `None` if this machine cannot make one.
    pub fn new(bytes: u64) -> Option<Self> {
        let scratch = Scratch::new();
        let image = scratch.path("disk");
        std::fs::File::create(&image).ok()?.set_len(bytes).ok()?;
        let made = Command::new("losetup").args(["--find", "--show"]).arg(&image).output().ok()?;
        let name = String::from_utf8(made.stdout).ok()?.trim().to_owned();
        (made.status.success() && !name.is_empty()).then_some(Self { name, scratch })
    }
}

impl Drop for BlockDevice {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["--detach", &self.name]).status();
    }
}

/// A mounted ext4 file system on a device.
pub struct Mounted {
    pub folder: PathBuf,
    // Dropped after the file system was unmounted.
    pub device: BlockDevice,
}

impl Mounted {
    /// `None` if this machine cannot mount one.
    pub fn new(bytes: u64) -> Option<Self> {
        let device = BlockDevice::new(bytes)?;
        let folder = device.scratch.path("mounted");
        std::fs::create_dir(&folder).ok()?;
        let succeeds = |command: &mut Command| command.status().is_ok_and(|status| status.success());
        let made = succeeds(Command::new("mkfs.ext4").args(["-q", "-F", &device.name]))
            && succeeds(Command::new("mount").arg(&device.name).arg(&folder));
        made.then_some(Self { folder, device })
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.folder).status();
    }
}
