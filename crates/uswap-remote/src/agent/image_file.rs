//! The agent's image as a file that every user can read, where programs of several users can be in
//! the tree.
//!
//! Only who may trace a process can follow `/proc/PID/fd/N`; a program that another user executes
//! cannot, and its loader complains. So a run of root's has its image in a file as well: made by
//! the keeper, readable by all, writable by nobody but root, and removed by keeper and engine,
//! whichever ends later. If both are killed at once it is left, and unlocked: the next run of
//! root's removes it. Where there is no place for it the descriptor must do, as it does for other
//! users' runs, whose programs all have one user.

use std::fs::{self, File, OpenOptions, Permissions};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use uswap_sys::can_be_executed;
use uswap_sys::process::{random_word, user};

/// What the file's name begins with; also the image in a program is known by it.
pub const PREFIX: &str = "uswap-agent-";
const ENDING: &str = ".so";
/// Readable by all, so that every user's loader may map it.
const MODE: u32 = 0o444;
/// A file may be unlocked for so long after it was made.
const YOUNG: Duration = Duration::from_secs(10);
const ROOT: u32 = 0;
/// Where it may lie, the best place first: what is gone after a crash of the machine, and nobody
/// but root writes to.
const FOLDERS: [&str; 4] = ["/run", "/var/tmp", "/tmp", "/dev/shm"];

/// The file. Locked as long as keeper or engine lives.
#[derive(Debug)]
pub struct ImageFile {
    file: File,
    path: PathBuf,
}

impl ImageFile {
    /// An empty one, if this is root and there is a place for it.
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
        // A full disk, or one from which nothing may be executed.
        let fits = made.file.try_lock().is_ok()
            && made.fill(crate::agent::image::IMAGE).is_ok()
            && made.file.set_permissions(Permissions::from_mode(MODE)).is_ok()
            && can_be_executed(&made.file);
        if !fits {
            made.remove();
        }
        fits.then_some(made)
    }

    /// Gives it this content, in the place of what it had.
    ///
    /// # Errors
    /// ENOSPC.
    pub fn fill(&self, content: &[u8]) -> std::io::Result<()> {
        self.file.write_all_at(content, 0)
    }

    /// Another descriptor of it.
    ///
    /// # Errors
    /// EMFILE.
    pub fn descriptor(&self) -> std::io::Result<File> {
        self.file.try_clone()
    }

    /// For LD_PRELOAD.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Programs that have it keep it; no others find it any more.
    pub fn remove(&self) {
        // The other of keeper and engine may have done it.
        let _ = fs::remove_file(&self.path);
    }
}

/// Whether all users can reach what lies there, none but root and its maker can replace it, and its
/// path can stand in LD_PRELOAD, which is taken apart at colons and blanks.
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

/// Removes the files of runs whose keeper and engine were killed at once: theirs are not locked.
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

    /// What is locked belongs to a run; what is young may be about to be locked; what is not ours
    /// is left alone.
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
