//! The agent's image. It is embedded in the binary, and programs load it through a descriptor, or
//! from a file where they run as different users (`image_file.rs`).

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use uswap_sys::alloc::shared::memfd_with;

use crate::agent::image_file::ImageFile;

/// The bytes of the shared object.
pub static IMAGE: &[u8] = BYTES;
const BYTES: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/uswap-agent.so"));
const MARKER: &[u8] = b"uswap:socket-path:uswap:socket-path:uswap:socket-path:uswap:sock";
/// Flag that the agent's constructor reads: whether the program waits for the engine's answer.
const SHORTAGE: &[u8] = b"uswap:memory-is-short:no";
/// Flag for tests, which the agent reads before it makes its thread: whether the agent shares
/// folder and root with its program.
const FOLDER: &[u8] = b"uswap:folder-is-shared:n";
/// Flag for tests: whether the agent is a thread of the program.
const THREAD: &[u8] = b"uswap:agent-is-thread:no";
/// First byte of one of these three flags when it is set.
const SET: u8 = b'S';
/// Offsets of marker and flags in the image. They are computed at compile time, since a search at
/// run time takes a tenth of a millisecond.
const MARKER_AT: usize = place_of(MARKER);
const SHORTAGE_AT: usize = place_of(SHORTAGE);
const FOLDER_AT: usize = place_of(FOLDER);
const THREAD_AT: usize = place_of(THREAD);

/// Settings of the agents, for tests.
#[derive(Clone, Copy, Debug, Default)]
pub struct Letters {
    /// The agents share folder and root with their programs (a rule switched off).
    pub shared_folder: bool,
    /// The agents are threads of their programs, as injected agents are.
    pub thread: bool,
}

/// The image, with the path of this run's socket written into it.
#[derive(Debug)]
pub struct AgentImage {
    memory: OwnedFd,
    file: Option<Arc<ImageFile>>,
}

/// Length of the file from which the engine maps the image. It can be longer than the stored bytes:
/// some linkers store no zeros (.bss), so a segment reaches beyond the end of the file.
fn mapped_length() -> usize {
    const MAX_ZEROS: usize = 4096;
    IMAGE.len().next_multiple_of(4096) + MAX_ZEROS
}

impl AgentImage {
    /// Writes the socket's path over the marker, and stores the image in a memfd, and in the file
    /// if there is one.
    ///
    /// # Errors
    /// ENOMEM, EMFILE, ENOSPC.
    ///
    /// # Panics
    /// When the path is longer than the marker. The path contains two numbers.
    pub fn new(socket_path: &str, letters: Letters, file: Option<Arc<ImageFile>>) -> std::io::Result<Self> {
        assert!(socket_path.len() < MARKER.len());
        let mut image = IMAGE.to_vec();
        let at = MARKER_AT;
        image[at..at + MARKER.len()].fill(0);
        image[at..at + socket_path.len()].copy_from_slice(socket_path.as_bytes());
        if letters.shared_folder {
            image[FOLDER_AT] = SET;
        }
        if letters.thread {
            image[THREAD_AT] = SET;
        }
        file.as_ref().map(|file| file.fill(&image)).transpose()?;
        image.resize(mapped_length(), 0);
        Ok(Self { memory: memfd_with(c"uswap-agent.so", &image)?, file })
    }

    /// A handle by which new programs are told that memory is short.
    ///
    /// # Errors
    /// EMFILE.
    pub fn shortage(&self) -> std::io::Result<Shortage> {
        let mut images = vec![File::from(self.memory.try_clone()?)];
        images.extend(self.file.as_ref().map(|file| file.descriptor()).transpose()?);
        Ok(Shortage { images, at: SHORTAGE_AT as u64, short: false })
    }

    /// Duplicates the descriptor of the image.
    ///
    /// # Errors
    /// EMFILE.
    pub fn descriptor(&self) -> std::io::Result<OwnedFd> {
        self.memory.try_clone()
    }

    /// The path for LD_PRELOAD: that of the file, which every user may read, or without a file the
    /// descriptor's below `/proc/pid/fd`, for processes that may read the descriptors of `pid`.
    pub fn path(&self, pid: u32) -> String {
        match &self.file {
            Some(file) => file.path().display().to_string(),
            None => format!("/proc/{pid}/fd/{}", self.memory.as_raw_fd()),
        }
    }
}

/// Offset of a marker in the image, which must contain it.
const fn place_of(marker: &[u8]) -> usize {
    let mut at = 0;
    loop {
        let mut same = 0;
        while same < marker.len() && BYTES[at + same] == marker[same] {
            same += 1;
        }
        if same == marker.len() {
            return at;
        }
        at += 1;
    }
}

/// A flag byte in the image: whether new programs wait for the engine's answer before they begin.
/// It lies in an unmodified file-backed page, so every program that maps the image sees the change.
#[derive(Debug)]
pub struct Shortage {
    images: Vec<File>,
    at: u64,
    short: bool,
}

impl Shortage {
    /// Sets the flag, if it changes.
    pub fn tell(&mut self, short: bool) {
        if short != self.short {
            let letter = if short { SET } else { SHORTAGE[0] };
            // A program that does not see the flag begins at once, as it does while memory is
            // ample.
            let told = self.images.iter().all(|image| image.write_at(&[letter], self.at).is_ok());
            self.short = if told { short } else { self.short };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inject::elf_image::ImageLayout;

    #[test]
    fn the_image_is_an_elf_object_with_exactly_one_marker() {
        assert_eq!(&IMAGE[..4], b"\x7fELF");
        assert!(ImageLayout::of_agent().file_span() <= mapped_length() as u64, "a segment reaches beyond the file");
        assert_eq!(IMAGE.windows(MARKER.len()).filter(|window| *window == MARKER).count(), 1);
        assert_eq!(IMAGE.windows(SHORTAGE.len()).filter(|window| *window == SHORTAGE).count(), 1);
    }

    #[test]
    fn a_shortage_is_a_letter_of_the_image_and_leaves_the_rest_alone() {
        let image = AgentImage::new("/proc/1/fd/2", Letters::default(), None).expect("a memfd");
        let path = image.path(std::process::id());
        let before = std::fs::read(&path).expect("readable");
        let mut shortage = image.shortage().expect("a descriptor");
        shortage.tell(true);
        let during = std::fs::read(&path).expect("readable");
        let changed: Vec<_> = before.iter().zip(&during).filter(|(b, d)| b != d).collect();
        assert_eq!(changed, [(&b'u', &SET)]);
        shortage.tell(false);
        assert_eq!(std::fs::read(&path).expect("readable"), before);
    }
}
