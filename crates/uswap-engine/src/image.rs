//! The agent's image: carried inside the binary, handed out through a descriptor, never a file.

use std::os::fd::{AsRawFd, OwnedFd};

use uswap_sys::shared::memfd_with;

static IMAGE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/uswap-agent.so"));
const MARKER: &[u8] = b"uswap:socket-path:uswap:socket-path:uswap:socket-path:uswap:sock";

/// The image with the path of this run's socket in it.
#[derive(Debug)]
pub struct AgentImage(OwnedFd);

impl AgentImage {
    /// Writes the socket's path over the marker and puts the image into a memfd.
    ///
    /// # Errors
    /// ENOMEM, EMFILE.
    ///
    /// # Panics
    /// When the path is longer than the marker: it has two numbers in it.
    pub fn new(socket_path: &str) -> std::io::Result<Self> {
        assert!(socket_path.len() < MARKER.len());
        let mut image = IMAGE.to_vec();
        let at = image.windows(MARKER.len()).position(|window| window == MARKER).expect("the image has its marker");
        image[at..at + MARKER.len()].fill(0);
        image[at..at + socket_path.len()].copy_from_slice(socket_path.as_bytes());
        memfd_with(c"uswap-agent.so", &image).map(Self)
    }

    /// Its path, for LD_PRELOAD, as seen by processes that may look at `pid`'s descriptors.
    pub fn path(&self, pid: u32) -> String {
        format!("/proc/{pid}/fd/{}", self.0.as_raw_fd())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_image_is_an_elf_object_with_exactly_one_marker() {
        assert_eq!(&IMAGE[..4], b"\x7fELF");
        assert_eq!(IMAGE.windows(MARKER.len()).filter(|window| *window == MARKER).count(), 1);
    }
}
