//! The core file while it is written: under another name in the same folder; it gets its own name
//! once it is complete. Pages of zeros are holes.

use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use uswap_core::{PAGE_SIZE, same_filled};

/// A file that is removed on drop unless it was finished.
pub struct CoreFile {
    file: File,
    place: PathBuf,
    unfinished: PathBuf,
    is_finished: bool,
}

impl CoreFile {
    /// Begins a core file that only its owner can read.
    ///
    /// # Errors
    /// A message for the user: the file cannot be made there, or something that is no file has this
    /// name.
    pub fn create(place: &Path) -> Result<Self, String> {
        let place = match place.canonicalize() {
            Ok(found) if found.is_file() => found,
            Ok(found) => return Err(format!("{}: it is there and is no file", found.display())),
            Err(_) => place.to_path_buf(),
        };
        let Some(name) = place.file_name() else {
            return Err(format!("{}: this is no name of a file", place.display()));
        };
        let mut other = name.to_os_string();
        other.push(format!(".unfinished-{}", std::process::id()));
        let unfinished = place.with_file_name(other);
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&unfinished);
        let file = file.map_err(|error| format!("{}: {}", place.display(), sentence(&error)))?;
        Ok(Self { file, place, unfinished, is_finished: false })
    }

    /// Writes all bytes.
    ///
    /// # Errors
    /// A message for the user: the disk is full, or returns an error.
    pub fn write_all(&self, at: u64, bytes: &[u8]) -> Result<(), String> {
        self.file.write_all_at(bytes, at).map_err(|error| self.failed(&error))
    }

    /// Writes whole pages, except those of zeros.
    ///
    /// # Errors
    /// As [`CoreFile::write_all`].
    pub fn write_pages(&self, at: u64, bytes: &[u8]) -> Result<(), String> {
        let pages = bytes.as_chunks::<PAGE_SIZE>().0;
        let mut first = 0;
        for same in pages.chunk_by(|a, b| is_zero(a) == is_zero(b)) {
            if !is_zero(&same[0]) {
                self.write_all(at + (first * PAGE_SIZE) as u64, same.as_flattened())?;
            }
            first += same.len();
        }
        Ok(())
    }

    /// Sets the final length of the file.
    ///
    /// # Errors
    /// A message for the user: the file system does not support files of that length.
    pub fn set_length(&self, length: u64) -> Result<(), String> {
        self.file.set_len(length).map_err(|error| self.failed(&error))
    }

    /// Gives the file its own name.
    ///
    /// # Errors
    /// A message for the user: the written bytes did not reach the disk, or the file cannot have
    /// the name.
    pub fn finish(mut self) -> Result<(), String> {
        std::fs::rename(&self.unfinished, &self.place).map_err(|error| self.failed(&error))?;
        self.is_finished = true;
        Ok(())
    }

    fn failed(&self, error: &std::io::Error) -> String {
        format!("{}: {}; there is no core file", self.place.display(), sentence(error))
    }
}

impl Drop for CoreFile {
    fn drop(&mut self) {
        if !self.is_finished {
            // The file may have been removed together with its folder.
            let _ = std::fs::remove_file(&self.unfinished);
        }
    }
}

fn is_zero(page: &[u8; PAGE_SIZE]) -> bool {
    same_filled(page) == Some(0)
}

fn sentence(error: &std::io::Error) -> String {
    match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => "the disk is full".into(),
        ErrorKind::NotFound => "there is no such folder".into(),
        ErrorKind::FileTooLarge => "the file system takes no file that is so large".into(),
        _ => error.to_string(),
    }
}
