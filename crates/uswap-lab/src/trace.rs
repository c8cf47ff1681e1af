//! Reads traces: text with one page number per line, decimal or hexadecimal with `0x`, as in
//! published traces, or the compact format (`compact.rs`). The first bytes of the file, not its
//! name, tell the format and whether it is compressed with gzip.
//!
//! In text, the reader skips spaces around the number (and so the line ends of other systems),
//! empty lines, lines that begin with `#`, and lines of stars, with which some published traces
//! mark their phases. Any other text that is no page number is an error that names the file and the
//! line.

use std::fmt;
use std::fs::File;
use std::io::{BufRead, BufReader, Chain, Cursor, Read};
use std::path::{Path, PathBuf};

use flate2::bufread::MultiGzDecoder;

use crate::compact::{self, Reader};

const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];
const BUFFER: usize = 1 << 16;
/// Maximum length of a line; longer ones are malformed, so that a file without lines is not read
/// into memory.
const LONGEST_LINE: usize = 256;

/// An error in a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceError {
    /// The file of the trace.
    pub path: PathBuf,
    /// The number of the line, from 1 on, if the error is in a line.
    pub line: Option<u64>,
    /// The reason, as the rest of a sentence.
    pub reason: String,
}

impl TraceError {
    /// An error that concerns the file as a whole.
    pub fn of_file(path: &Path, reason: impl fmt::Display) -> Self {
        Self { path: path.into(), line: None, reason: reason.to_string() }
    }
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.path.display())?;
        if let Some(line) = self.line {
            write!(f, "line {line}: ")?;
        }
        f.write_str(&self.reason)
    }
}

impl std::error::Error for TraceError {}

/// The page numbers of a trace, in order. The memory that this takes does not depend on the length
/// of the trace.
pub struct Trace {
    path: PathBuf,
    input: Input,
    format: Format,
}

/// The first bytes, read to tell the format, then the rest of the file.
type Input = BufReader<Chain<Cursor<Vec<u8>>, Box<dyn Read + Send>>>;

enum Format {
    /// Number of lines read, and the last line.
    Text(u64, Vec<u8>),
    Compact(Reader),
}

impl Trace {
    /// Opens a trace.
    ///
    /// # Errors
    /// The file cannot be read, or is not a regular one: traces are read twice.
    pub fn open(path: &Path) -> Result<Self, TraceError> {
        let failed = |error: std::io::Error| TraceError::of_file(path, error);
        let file = File::open(path).map_err(failed)?;
        if !file.metadata().map_err(failed)?.is_file() {
            return Err(TraceError::of_file(path, "is not a regular file, and a trace is read twice"));
        }
        Self::new(path, file)
    }

    /// Reads a trace from any input; `path` is for error messages.
    ///
    /// # Errors
    /// The first bytes cannot be read.
    pub fn new(path: &Path, input: impl Read + Send + 'static) -> Result<Self, TraceError> {
        let failed = |error: std::io::Error| TraceError::of_file(path, error);
        let mut input = decompressed(input).map_err(failed)?;
        let head = first_bytes(&mut input, compact::MAGIC.len()).map_err(failed)?;
        let is_compact = head == compact::MAGIC;
        let put_back = if is_compact { Vec::new() } else { head };
        let mut input = BufReader::with_capacity(BUFFER, Cursor::new(put_back).chain(input));
        let format = if is_compact {
            Format::Compact(Reader::new(&mut input).map_err(|reason| TraceError::of_file(path, reason))?)
        } else {
            Format::Text(0, Vec::new())
        };
        Ok(Self { path: path.into(), input, format })
    }

    /// The next page number, or `None` at the end.
    ///
    /// # Errors
    /// An error that names the file and the line (in the compact format, the access): there is no
    /// page number, or the file cannot be read.
    pub fn next_page(&mut self) -> Result<Option<u64>, TraceError> {
        match &mut self.format {
            Format::Text(line, text) => next_in_text(&mut self.input, line, text).map_err(|reason| TraceError {
                path: self.path.clone(),
                line: Some(*line),
                reason,
            }),
            Format::Compact(reader) => {
                reader.next_page(&mut self.input).map_err(|reason| TraceError::of_file(&self.path, reason))
            }
        }
    }
}

fn decompressed(mut input: impl Read + Send + 'static) -> std::io::Result<Box<dyn Read + Send>> {
    let head = first_bytes(&mut input, GZIP_MAGIC.len())?;
    let is_gzip = head == GZIP_MAGIC;
    let input = Cursor::new(head).chain(input);
    if !is_gzip {
        return Ok(Box::new(input));
    }
    Ok(Box::new(MultiGzDecoder::new(BufReader::with_capacity(BUFFER, input))))
}

/// The first `length` bytes, or fewer if the input ends before.
fn first_bytes(input: &mut impl Read, length: usize) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    input.take(length as u64).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn next_in_text(input: &mut impl BufRead, line: &mut u64, text: &mut Vec<u8>) -> Result<Option<u64>, String> {
    loop {
        text.clear();
        *line += 1;
        let read = input.take(LONGEST_LINE as u64 + 1).read_until(b'\n', text);
        if read.map_err(|error| error.to_string())? == 0 {
            return Ok(None);
        }
        if text.len() > LONGEST_LINE {
            return Err(format!("is longer than {LONGEST_LINE} bytes: this is no trace"));
        }
        match parse_line(text) {
            TraceLine::Page(page) => return Ok(Some(page)),
            TraceLine::Nothing => {}
            TraceLine::Malformed => {
                return Err(format!("{:?} is not a page number", String::from_utf8_lossy(text.trim_ascii())));
            }
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum TraceLine {
    Page(u64),
    Nothing,
    Malformed,
}

fn parse_line(line: &[u8]) -> TraceLine {
    let text = line.trim_ascii();
    if text.first().is_none_or(|first| *first == b'#') || text.iter().all(|byte| *byte == b'*') {
        return TraceLine::Nothing;
    }
    let (digits, radix) = match text {
        [b'0', b'x' | b'X', digits @ ..] => (digits, 16),
        digits => (digits, 10),
    };
    parse_digits(digits, radix).map_or(TraceLine::Malformed, TraceLine::Page)
}

/// Parses digits only: at least one, and a number that fits.
fn parse_digits(digits: &[u8], radix: u32) -> Option<u64> {
    let step = |number: u64, byte: &u8| {
        let digit = (*byte as char).to_digit(radix)?;
        number.checked_mul(u64::from(radix))?.checked_add(u64::from(digit))
    };
    if digits.is_empty() { None } else { digits.iter().try_fold(0, step) }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    fn pages(bytes: &[u8]) -> Result<Vec<u64>, TraceError> {
        let mut trace = Trace::new(Path::new("a.txt"), Cursor::new(bytes.to_vec()))?;
        std::iter::from_fn(|| trace.next_page().transpose()).collect()
    }

    #[test]
    fn numbers_are_read_and_what_is_none_is_passed_over() {
        let text = b"0\n 12\t\r\n# a comment\n\n*\n***\r\n0x1F\n18446744073709551615\n0Xff\n007";
        assert_eq!(pages(text), Ok(vec![0, 12, 31, u64::MAX, 255, 7]));
        assert_eq!(pages(b""), Ok(vec![]));
    }

    #[test]
    fn what_is_malformed_is_named_by_its_line() {
        for bad in ["x", "1 2", "-1", "+1", "1.5", "0x", "12a", "18446744073709551616", "*1", "0x1g"] {
            let error = pages(format!("1\n\n{bad}\n2\n").as_bytes()).unwrap_err();
            assert_eq!(error.to_string(), format!("a.txt: line 3: {bad:?} is not a page number"));
        }
        let long = pages(&[b'1'; 10_000]).unwrap_err();
        assert!(long.line == Some(1) && long.reason.contains("longer"), "{long}");
    }

    #[test]
    fn gzip_is_seen_by_its_magic_and_a_torn_file_is_an_error() {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(b"5\n6\n7\n").expect("memory");
        let bytes = encoder.finish().expect("memory");
        assert_eq!(pages(&bytes), Ok(vec![5, 6, 7]));
        assert_eq!(pages(&[bytes.as_slice(), &bytes].concat()), Ok(vec![5, 6, 7, 5, 6, 7]));
        assert!(pages(&bytes[..bytes.len() - 9]).is_err());
    }
}
