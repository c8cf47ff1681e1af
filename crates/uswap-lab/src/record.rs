//! Writes a recorded trace to a new file in the compact format.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;

use crate::compact;

enum Output {
    Plain(BufWriter<File>),
    Gzip(Box<GzEncoder<BufWriter<File>>>),
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(file) => file.write(bytes),
            Self::Gzip(file) => file.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(file) => file.flush(),
            Self::Gzip(file) => file.flush(),
        }
    }
}

/// A trace that is being written.
pub struct TraceFile {
    writer: Option<compact::Writer<Output>>,
    path: PathBuf,
}

impl TraceFile {
    /// Makes a new file, with gzip if its name ends in `.gz`.
    ///
    /// # Errors
    /// A sentence with the name of the file: it exists already, or cannot be written.
    pub fn create(path: &Path) -> Result<Self, String> {
        let file = File::create_new(path).map_err(|error| format!("{}: {error}", path.display()))?;
        let file = BufWriter::with_capacity(1 << 16, file);
        let output = if path.extension().is_some_and(|extension| extension == "gz") {
            Output::Gzip(Box::new(GzEncoder::new(file, Compression::default())))
        } else {
            Output::Plain(file)
        };
        let writer = compact::Writer::new(output).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(Self { writer: Some(writer), path: path.into() })
    }

    /// Appends accesses.
    ///
    /// # Errors
    /// A sentence with the name of the file.
    pub fn push(&mut self, pages: &[u64]) -> Result<(), String> {
        let Some(writer) = &mut self.writer else { return Ok(()) };
        let written = pages.iter().try_for_each(|page| writer.push(*page));
        written.map_err(|error| format!("{}: {error}", self.path.display()))
    }

    /// Writes the buffered bytes and closes the file; later calls write nothing.
    ///
    /// # Errors
    /// A sentence with the name of the file.
    pub fn finish(&mut self) -> Result<(), String> {
        let Some(writer) = self.writer.take() else { return Ok(()) };
        let finished = match writer.into_inner() {
            Output::Plain(mut file) => file.flush(),
            Output::Gzip(file) => file.finish().and_then(|mut file| file.flush()),
        };
        finished.map_err(|error| format!("{}: {error}", self.path.display()))
    }
}
