//! The agent's image: carried inside the binary, handed out through a descriptor, and by a file
//! where users differ (`image_file.rs`).

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
/// What the agent's constructor looks at: whether it is to wait.
const SHORTAGE: &[u8] = b"uswap:memory-is-short:no";
/// What the agent looks at before it makes its thread, for tests.
const FOLDER: &[u8] = b"uswap:folder-is-shared:n";
/// The same: whether the agent is a thread of the program.
const THREAD: &[u8] = b"uswap:agent-is-thread:no";
/// In the place of the first letter of one of these three: it is so.
const SET: u8 = b'S';
/// Where they stand in the image. Looked for by the compiler: a run would need a tenth of a
/// millisecond.
const MARKER_AT: usize = place_of(MARKER);
const SHORTAGE_AT: usize = place_of(SHORTAGE);
const FOLDER_AT: usize = place_of(FOLDER);
const THREAD_AT: usize = place_of(THREAD);

/// How agents are made, for tests.
#[derive(Clone, Copy, Debug, Default)]
pub struct Letters {
    /// They share folder and root with their programs: a rule off.
    pub shared_folder: bool,
    /// They are threads of their programs, as where they are brought.
    pub thread: bool,
}

/// The image with the path of this run's socket in it.
#[derive(Debug)]
pub struct AgentImage {
    memory: OwnedFd,
    file: Option<Arc<ImageFile>>,
}

/// Bytes of the file from which the engine maps it: a linker that keeps zeros apart has a segment
/// reach beyond what is stored.
fn mapped_length() -> usize {
    const MAX_ZEROS: usize = 4096;
    IMAGE.len().next_multiple_of(4096) + MAX_ZEROS
}

impl AgentImage {
    /// Writes the socket's path over the marker and puts the image into a memfd, and into the file
    /// if there is one.
    ///
    /// # Errors
    /// ENOMEM, EMFILE, ENOSPC.
    ///
    /// # Panics
    /// When the path is longer than the marker: it has two numbers in it.
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

    /// For telling new programs that memory is short.
    ///
    /// # Errors
    /// EMFILE.
    pub fn shortage(&self) -> std::io::Result<Shortage> {
        let mut images = vec![File::from(self.memory.try_clone()?)];
        images.extend(self.file.as_ref().map(|file| file.descriptor()).transpose()?);
        Ok(Shortage { images, at: SHORTAGE_AT as u64, short: false })
    }

    /// Another descriptor of it.
    ///
    /// # Errors
    /// EMFILE.
    pub fn descriptor(&self) -> std::io::Result<OwnedFd> {
        self.memory.try_clone()
    }

    /// Its path, for LD_PRELOAD: the file's, which everybody may read, or as seen by processes that
    /// may look at `pid`'s descriptors.
    pub fn path(&self, pid: u32) -> String {
        match &self.file {
            Some(file) => file.path().display().to_string(),
            None => format!("/proc/{pid}/fd/{}", self.memory.as_raw_fd()),
        }
    }
}

/// Where a marker stands in the image, which has it.
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

/// A letter in the image that programs see when they start, since it lies in a page that nobody
/// changes: whether they are to wait for the engine's answer before they begin.
#[derive(Debug)]
pub struct Shortage {
    images: Vec<File>,
    at: u64,
    short: bool,
}

impl Shortage {
    /// Tells it, if it is news.
    pub fn tell(&mut self, short: bool) {
        if short != self.short {
            let letter = if short { SET } else { SHORTAGE[0] };
            // A program that is not told begins at once, as it does while memory is ample.
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
