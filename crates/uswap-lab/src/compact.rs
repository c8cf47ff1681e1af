//! The compact format of traces: about one byte per access where accesses are near each other.
//!
//! ```text
//! magic    8 bytes  "\x89USWTRC\n"
//! version  1 byte   1
//! flags    1 byte   0; a reader refuses flags that it does not know
//! then, for each access, the difference to the page before (the first: to 0), modulo 2^64, as signed number
//!          1 to 10 bytes: zigzag (0, -1, 1, -2 become 0, 1, 2, 3), then LEB128 (7 bits a byte, least first, the highest
//!          bit says that more follow)
//! ```
//! There is no count and no end mark, so a trace can be written as a stream and the part before a
//! crash can be read; an end inside an access is an error. A number has one encoding only: one that
//! is longer than needed, or that exceeds 64 bits, is malformed. The magic number is no text and no
//! beginning of gzip; a conversion of line ends would change its last byte.

use std::io::{self, BufRead, Write};

/// First bytes of the file.
pub const MAGIC: [u8; 8] = *b"\x89USWTRC\n";
/// The version that the writer writes.
pub const VERSION: u8 = 1;
/// Maximum length of an access in bytes.
const LONGEST: u32 = 10;

/// Writes a trace.
#[derive(Debug)]
pub struct Writer<W> {
    output: W,
    last: u64,
}

impl<W: Write> Writer<W> {
    /// Begins a trace. `output` should be buffered: it is written a few bytes at a time.
    ///
    /// # Errors
    /// The errors of `output`.
    pub fn new(mut output: W) -> io::Result<Self> {
        output.write_all(&MAGIC)?;
        output.write_all(&[VERSION, 0])?;
        Ok(Self { output, last: 0 })
    }

    /// Appends an access.
    ///
    /// # Errors
    /// The errors of `output`.
    pub fn push(&mut self, page: u64) -> io::Result<()> {
        let difference = page.wrapping_sub(self.last) as i64;
        self.last = page;
        let mut bytes = [0; LONGEST as usize];
        let length = encode(zigzag(difference), &mut bytes);
        self.output.write_all(&bytes[..length])
    }

    /// Returns the output; the writer itself buffers nothing.
    pub fn into_inner(self) -> W {
        self.output
    }
}

/// Reads the rest of a trace after its magic number.
#[derive(Debug)]
pub struct Reader {
    last: u64,
    read: u64,
}

impl Reader {
    /// Reads the header from the version on; the caller has read the magic number.
    ///
    /// # Errors
    /// A sentence: why this is not the header of a trace that can be read.
    pub fn new(input: &mut impl BufRead) -> Result<Self, String> {
        let mut head = [0; 2];
        input.read_exact(&mut head).map_err(|_| "ends in its head".to_string())?;
        match head {
            [VERSION, 0] => Ok(Self { last: 0, read: 0 }),
            [VERSION, flags] => Err(format!("has flags that are not known here ({flags:#04x})")),
            [version, _] => Err(format!("is of version {version} of the format; known here is {VERSION}")),
        }
    }

    /// The next page number, or `None` at the end.
    ///
    /// # Errors
    /// A sentence that names the access: it is malformed or cut off, or the file cannot be read.
    pub fn next_page(&mut self, input: &mut impl BufRead) -> Result<Option<u64>, String> {
        self.read += 1;
        let number = self.number(input).map_err(|reason| format!("access {}: {reason}", self.read))?;
        let Some(number) = number else { return Ok(None) };
        self.last = self.last.wrapping_add(unzigzag(number) as u64);
        Ok(Some(self.last))
    }

    fn number(&self, input: &mut impl BufRead) -> Result<Option<u64>, String> {
        let mut number = 0;
        for place in 0..LONGEST {
            let Some(byte) = next_byte(input).map_err(|error| error.to_string())? else {
                return if place == 0 { Ok(None) } else { Err("the file ends in the middle of it".into()) };
            };
            number |= u64::from(byte & 0x7f) << (7 * place);
            if byte & 0x80 == 0 {
                let too_long = place > 0 && byte == 0;
                let too_large = place == LONGEST - 1 && byte > 1;
                return if too_long || too_large { Err("malformed number".into()) } else { Ok(Some(number)) };
            }
        }
        Err("malformed number".into())
    }
}

fn next_byte(input: &mut impl BufRead) -> io::Result<Option<u8>> {
    loop {
        match input.fill_buf() {
            Ok(buffer) => {
                let byte = buffer.first().copied();
                input.consume(usize::from(byte.is_some()));
                return Ok(byte);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

fn zigzag(number: i64) -> u64 {
    (number << 1 ^ number >> 63) as u64
}

fn unzigzag(number: u64) -> i64 {
    (number >> 1) as i64 ^ -((number & 1) as i64)
}

fn encode(mut number: u64, bytes: &mut [u8; LONGEST as usize]) -> usize {
    let mut length = 0;
    while number > 0x7f {
        bytes[length] = number as u8 | 0x80;
        number >>= 7;
        length += 1;
    }
    bytes[length] = number as u8;
    length + 1
}
