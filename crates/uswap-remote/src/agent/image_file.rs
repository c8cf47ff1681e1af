//! The agent's image as a file that every user can read, for runs whose tree can have programs of
//! several users.
//!
//! Only a process that may trace another one can follow its `/proc/PID/fd/N`. A program that runs
//! as another user cannot, and its loader complains. So a run of root has its image in a file as
//! well. The keeper makes the file; every user can read it, only root can write it, and keeper or
//! engine removes it, whichever ends later. If both are killed at once the file is left behind
//! without a lock, and the next run of root removes it. If no folder is fit for the file, programs
//! load the image through the descriptor, as in runs of other users, whose programs all run as one
//! user.

use std::fs::{self, File, OpenOptions, Permissions};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use uswap_sys::can_be_executed;
use uswap_sys::process::{random_word, user};

/// Prefix of the file's name. By it the image is also recognised among the mappings of a program.
pub const PREFIX: &str = "uswap-agent-";
const ENDING: &str = ".so";
/// Every user can read the file, so every user's loader can map it.
const MODE: u32 = 0o444;
/// A file younger than this may be without a lock: its keeper is still creating it.
const YOUNG: Duration = Duration::from_secs(10);
const ROOT: u32 = 0;
/// Folders for the file, the best first: one that is empty after a crash of the machine, and that
/// only root can write to.
const FOLDERS: [&str; 4] = ["/run", "/var/tmp", "/tmp", "/dev/shm"];

/// The file. It is locked as long as keeper or engine lives.
#[derive(Debug)]
pub struct ImageFile {
    file: File,
    path: PathBuf,
}

impl ImageFile {
    /// Creates an empty file, if the user is root and some folder is fit for it.
    pub fn create() -> Option<Self> {
        if user() != ROOT {
            return None;
        }
        let folders = FOLDERS.iter().map(PathBuf::from).chain(uswap_sys::process::temporary_folder());
        folders.filter(|folder| is_safe_and_open_to_all(folder)).find_map(|folder| {
            sweep(&folder);
            Self::create_in(&folder)
        })
    }

    fn create_in(folder: &Path) -> Option<Self> {
        let path = folder.join(format!("{PREFIX}{:016x}{ENDING}", random_word().ok()?));
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(MODE).open(&path).ok()?;
        let made = Self { file, path };
        // The disk may be full, or mounted without permission to execute.
        let fits = made.file.try_lock().is_ok()
            && made.fill(crate::agent::image::IMAGE).is_ok()
            && made.file.set_permissions(Permissions::from_mode(MODE)).is_ok()
            && can_be_executed(&made.file);
        if !fits {
            made.remove();
        }
        fits.then_some(made)
    }

    /// Overwrites the file with this content.
    ///
    /// # Errors
    /// ENOSPC.
    pub fn fill(&self, content: &[u8]) -> std::io::Result<()> {
        self.file.write_all_at(content, 0)
    }

    /// Duplicates the descriptor of the file.
    ///
    /// # Errors
    /// EMFILE.
    pub fn descriptor(&self) -> std::io::Result<File> {
        self.file.try_clone()
    }

    /// The path for LD_PRELOAD.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the file. Programs that have mapped it keep it; others do not find it any more.
    pub fn remove(&self) {
        // The other one of keeper and engine may have removed it already.
        let _ = fs::remove_file(&self.path);
    }
}

/// Whether all users can reach a file in this folder, only root and the file's maker can replace
/// it, and its path can stand in LD_PRELOAD, whose entries are separated by colons and blanks.
fn is_safe_and_open_to_all(folder: &Path) -> bool {
    const SEARCHABLE: u32 = 0o001;
    const WRITABLE_BY_OTHERS: u32 = 0o022;
    const STICKY: u32 = 0o1000;
    let has_plain_name =
        folder.is_absolute() && folder.to_str().is_some_and(|text| !text.contains([':', ';', '$', ' ', '\t', '\n']));
    has_plain_name
        && folder.ancestors().all(|level| {
            fs::metadata(level).is_ok_and(|found| {
                let is_safe = found.mode() & WRITABLE_BY_OTHERS == 0 || found.mode() & STICKY != 0;
                found.is_dir() && found.uid() == ROOT && found.mode() & SEARCHABLE != 0 && is_safe
            })
        })
}

/// Removes the files of runs whose keeper and engine were killed at once: those are not locked.
fn sweep(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let is_named_so = name.to_str().is_some_and(|name| name.starts_with(PREFIX) && name.ends_with(ENDING));
        let is_old = |found: &fs::Metadata| {
            let age = found.modified().ok().and_then(|made| made.elapsed().ok()).unwrap_or_default();
            found.is_file() && found.uid() == ROOT && age > YOUNG
        };
        if is_named_so
            && entry.metadata().is_ok_and(|found| is_old(&found))
            && File::open(entry.path()).is_ok_and(|file| file.try_lock().is_ok())
        {
            let _ = fs::remove_file(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_must_be_open_to_all_and_its_files_safe_from_them() {
        assert!(!is_safe_and_open_to_all(Path::new("relative")) && !is_safe_and_open_to_all(Path::new("/no/such")));
        assert!(!is_safe_and_open_to_all(Path::new("/bin/sh")));
        if user() != ROOT {
            return;
        }
        let folder = std::env::temp_dir().join(format!("uswap-image-file-{}", std::process::id()));
        let parent_fits = is_safe_and_open_to_all(&std::env::temp_dir());
        fs::create_dir(&folder).expect("a folder");
        for (mode, fits) in [(0o755, true), (0o1777, true), (0o777, false), (0o775, false), (0o700, false)] {
            fs::set_permissions(&folder, Permissions::from_mode(mode)).expect("a mode");
            assert_eq!(is_safe_and_open_to_all(&folder), fits && parent_fits, "{mode:o}");
        }
        fs::set_permissions(&folder, Permissions::from_mode(0o755)).expect("a mode");
        for name in ["a blank", "a:colon"] {
            fs::create_dir(folder.join(name)).expect("a folder");
            assert!(!is_safe_and_open_to_all(&folder.join(name)), "{name}");
        }
        fs::remove_dir_all(&folder).expect("our folder");
    }

    /// A locked file belongs to a run, a young one may be about to be locked, and files of other
    /// programs are left alone.
    #[test]
    fn only_what_nobody_holds_any_more_is_swept_away() {
        if user() != ROOT {
            return;
        }
        let folder = std::env::temp_dir().join(format!("uswap-image-sweep-{}", std::process::id()));
        fs::create_dir(&folder).expect("a folder");
        let held = ImageFile::create_in(&folder).expect("a place for files");
        assert_eq!(held.file.metadata().expect("a file").mode() & 0o777, MODE);
        let make = |name: &str, age: Duration| {
            let file = File::create(folder.join(name)).expect("a file");
            file.set_modified(std::time::SystemTime::now() - age).expect("an age");
        };
        held.file.set_modified(std::time::SystemTime::now() - 2 * YOUNG).expect("an age");
        make("uswap-agent-0.so", 2 * YOUNG);
        make("uswap-agent-1.so", Duration::ZERO);
        make("another-agent.so", 2 * YOUNG);
        sweep(&folder);
        let left = |name: &str| folder.join(name).exists();
        assert!(held.path.exists() && left("uswap-agent-1.so") && left("another-agent.so"));
        assert!(!left("uswap-agent-0.so"));
        held.remove();
        assert!(!held.path.exists());
        fs::remove_dir_all(&folder).expect("our folder");
    }
}
