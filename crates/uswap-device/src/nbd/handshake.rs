//! The handshake: fixed newstyle, structured replies where the server has them, NBD_OPT_GO.
//!
//! The replies of a server are parsed by functions over bytes that trust nothing; the rest of the
//! file sends and waits. The whole handshake has one deadline.

use std::fmt;
use std::io;
use std::time::Instant;

use super::stream::{NbdStream, read_exact, write_all};
use super::wire::{self, be16, be32, be64, flag, info, option, reply};

/// Longest reply to an option that is read: somewhat more than the longest name or text of the
/// protocol.
const LONGEST_REPLY: u32 = 8192;
/// Smallest unit of a read in bytes, even if the server permits less.
const SECTOR: u32 = 512;
/// Maximum number of replies to one option.
const MAX_REPLIES: u32 = 64;

/// The properties of an export.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Export {
    /// Size in bytes.
    pub size: u64,
    /// Transmission flags.
    pub flags: u16,
    /// Smallest request and its alignment, in bytes.
    pub smallest: u32,
    /// Size in bytes to whose multiples reads are aligned: the server's, at least 512; a page where
    /// the server did not report any.
    pub sector: u32,
    /// Largest request in bytes.
    pub largest: u32,
    /// Structured replies were negotiated.
    pub structured: bool,
}

impl Export {
    /// Whether all connections to the server see the same content.
    pub fn allows_several(&self) -> bool {
        self.flags & flag::CAN_MULTI_CONN != 0
    }
}

/// Why the handshake failed.
#[derive(Debug)]
pub enum HandshakeError {
    /// The connection ended, or the deadline passed.
    Io(io::Error),
    /// The peer is no NBD server; its first bytes.
    NoServer(u64),
    /// The server speaks only a protocol from before 2011.
    Old,
    /// The server does not know NBD_OPT_GO.
    NoGo,
    /// The server demands TLS.
    TlsRequired,
    /// The server has no TLS.
    NoTls(String),
    /// There is no such export; the server's text.
    NoExport(String),
    /// The server refuses; its text.
    Refused(u32, String),
    /// The export is read-only.
    ReadOnly,
    /// The server's smallest block is larger than a page; its size.
    BlockTooLarge(u32),
    /// The server's largest request is smaller than a page; its size.
    RequestTooSmall(u32),
    /// A malformed reply.
    Malformed(&'static str),
}

impl fmt::Display for HandshakeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let says = |text: &String| if text.is_empty() { String::new() } else { format!(": {text:?}") };
        match self {
            Self::Io(e) if e.kind() == io::ErrorKind::UnexpectedEof => {
                f.write_str("the server ended the connection during the handshake")
            }
            Self::Io(e) if e.kind() == io::ErrorKind::TimedOut => f.write_str("no answer in time"),
            Self::Io(e) => e.fmt(f),
            Self::NoServer(n) => write!(f, "no NBD server: it begins with {n:#018x}"),
            Self::Old => f.write_str("the server speaks only the oldstyle protocol"),
            Self::NoGo => f.write_str("the server does not know NBD_OPT_GO"),
            Self::TlsRequired => f.write_str("the server wants TLS: name it nbds:// or nbds+unix://"),
            Self::NoTls(text) => write!(f, "the server has no TLS{}", says(text)),
            Self::NoExport(text) => write!(f, "there is no such export{}", says(text)),
            Self::Refused(n, text) => write!(f, "the server refuses with error {:#x}{}", n & !reply::ERROR, says(text)),
            Self::ReadOnly => f.write_str("the export is read-only"),
            Self::BlockTooLarge(n) => write!(f, "the export's smallest block is {n} bytes; a page has 4096"),
            Self::RequestTooSmall(n) => write!(f, "the export takes {n} bytes at most; a page has 4096"),
            Self::Malformed(what) => write!(f, "the handshake is malformed: {what}"),
        }
    }
}

impl std::error::Error for HandshakeError {}

impl From<io::Error> for HandshakeError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// Parses the server's first 18 bytes; returns its handshake flags.
///
/// # Errors
/// The server does not speak a protocol that the client knows.
pub fn parse_greeting(bytes: &[u8; 18]) -> Result<u16, HandshakeError> {
    match (be64(bytes), be64(&bytes[8..]), be16(&bytes[16..])) {
        (wire::GREETING, wire::OPTION, flags) if flags & wire::FIXED_NEWSTYLE != 0 => Ok(flags),
        (wire::GREETING, wire::OPTION | wire::OLD_STYLE, _) => Err(HandshakeError::Old),
        (wire::GREETING, ..) => Err(HandshakeError::Malformed("the greeting's second magic")),
        (other, ..) => Err(HandshakeError::NoServer(other)),
    }
}

/// Parses the header of a reply to `option`: its type and the length of its data.
///
/// # Errors
/// The reply belongs to another option, or is too long.
pub fn parse_option_reply(bytes: &[u8; 20], option: u32) -> Result<(u32, u32), HandshakeError> {
    if be64(bytes) != wire::OPTION_REPLY {
        return Err(HandshakeError::Malformed("an option reply's magic"));
    }
    if be32(&bytes[8..]) != option {
        return Err(HandshakeError::Malformed("a reply to an option that was not sent"));
    }
    let (kind, length) = (be32(&bytes[12..]), be32(&bytes[16..]));
    if length > LONGEST_REPLY {
        return Err(HandshakeError::Malformed("an option reply of enormous length"));
    }
    Ok((kind, length))
}

/// The information of all NBD_REP_INFO replies.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ExportTold {
    export: Option<(u64, u16)>,
    blocks: Option<(u32, u32)>,
}

impl ExportTold {
    /// Adds the data of one reply. Kinds of information that were not asked for are ignored, as the
    /// protocol demands.
    ///
    /// # Errors
    /// Impossible lengths or block sizes.
    pub fn add(&mut self, data: &[u8]) -> Result<(), HandshakeError> {
        if data.len() < 2 {
            return Err(HandshakeError::Malformed("information without a kind"));
        }
        let (kind, data) = (be16(data), &data[2..]);
        match kind {
            info::EXPORT if data.len() == 10 => self.export = Some((be64(data), be16(&data[8..]))),
            info::BLOCK_SIZE if data.len() == 12 => {
                let (smallest, largest) = (be32(data), be32(&data[8..]));
                if !smallest.is_power_of_two() || largest < smallest {
                    return Err(HandshakeError::Malformed("block sizes that cannot be"));
                }
                self.blocks = Some((smallest, largest));
            }
            info::EXPORT | info::BLOCK_SIZE => return Err(HandshakeError::Malformed("information of a wrong length")),
            _ => {}
        }
        Ok(())
    }

    /// The export, if it can be used for swap.
    ///
    /// # Errors
    /// The export is read-only, its block sizes do not fit pages, or no information came.
    pub fn export(&self, structured: bool) -> Result<Export, HandshakeError> {
        let (size, flags) = self.export.ok_or(HandshakeError::Malformed("no size of the export"))?;
        // Without information, the protocol's defaults hold.
        let (smallest, largest) = self.blocks.unwrap_or((512, 32 << 20));
        if flags & flag::READ_ONLY != 0 {
            return Err(HandshakeError::ReadOnly);
        }
        if smallest > 4096 {
            return Err(HandshakeError::BlockTooLarge(smallest));
        }
        if largest < 4096 {
            return Err(HandshakeError::RequestTooSmall(largest));
        }
        // A server that reports nothing may need more than the default; a page is a size that all
        // servers serve.
        let sector = self.blocks.map_or(4096, |_| smallest.max(SECTOR));
        Ok(Export { size, flags, smallest, sector, largest: largest.min(32 << 20) & !4095, structured })
    }
}

/// Converts a server's error reply to the reason.
pub fn refusal(kind: u32, text: &[u8]) -> HandshakeError {
    let text: String = String::from_utf8_lossy(text).chars().filter(|c| !c.is_control()).take(200).collect();
    match kind {
        reply::UNKNOWN => HandshakeError::NoExport(text),
        reply::TLS_REQUIRED => HandshakeError::TlsRequired,
        _ => HandshakeError::Refused(kind, text),
    }
}

/// Reads the server's greeting and answers it.
///
/// # Errors
/// [`HandshakeError`].
pub fn greet(stream: &dyn NbdStream, deadline: Instant) -> Result<(), HandshakeError> {
    let mut greeting = [0; 18];
    // The first magic number alone: a peer that is no NBD server may send less than 18 bytes.
    read_exact(stream, &mut greeting[..8], deadline)?;
    if be64(&greeting) != wire::GREETING {
        return Err(HandshakeError::NoServer(be64(&greeting)));
    }
    read_exact(stream, &mut greeting[8..], deadline)?;
    let flags = parse_greeting(&greeting)?;
    let ours = u32::from(flags & (wire::FIXED_NEWSTYLE | wire::NO_ZEROES));
    Ok(write_all(stream, &ours.to_be_bytes(), deadline)?)
}

/// Asks for TLS; from then on the stream carries it.
///
/// # Errors
/// [`HandshakeError::NoTls`] and others.
pub fn start_tls(stream: &dyn NbdStream, deadline: Instant) -> Result<(), HandshakeError> {
    write_all(stream, &wire::option_request(option::STARTTLS, &[]), deadline)?;
    match read_reply(stream, option::STARTTLS, deadline)? {
        (reply::ACK, _) => Ok(()),
        (kind, text) if kind & reply::ERROR != 0 => match refusal(kind, &text) {
            HandshakeError::Refused(reply::UNSUPPORTED | reply::POLICY, text) => Err(HandshakeError::NoTls(text)),
            other => Err(other),
        },
        _ => Err(HandshakeError::Malformed("an unexpected reply to NBD_OPT_STARTTLS")),
    }
}

/// Negotiates the options and enters the transmission phase.
///
/// # Errors
/// [`HandshakeError`].
pub fn negotiate(stream: &dyn NbdStream, export: &str, deadline: Instant) -> Result<Export, HandshakeError> {
    write_all(stream, &wire::option_request(option::STRUCTURED_REPLY, &[]), deadline)?;
    let structured = match read_reply(stream, option::STRUCTURED_REPLY, deadline)? {
        (reply::ACK, _) => true,
        (reply::TLS_REQUIRED, _) => return Err(HandshakeError::TlsRequired),
        (kind, _) if kind & reply::ERROR != 0 => false,
        _ => return Err(HandshakeError::Malformed("an unexpected reply to NBD_OPT_STRUCTURED_REPLY")),
    };
    write_all(stream, &wire::option_request(option::GO, &wire::go(export)), deadline)?;
    let mut told = ExportTold::default();
    for _ in 0..MAX_REPLIES {
        match read_reply(stream, option::GO, deadline)? {
            (reply::ACK, _) => return told.export(structured),
            (reply::INFO, data) => told.add(&data)?,
            (reply::UNSUPPORTED, _) => return Err(HandshakeError::NoGo),
            (kind, text) if kind & reply::ERROR != 0 => return Err(refusal(kind, &text)),
            _ => return Err(HandshakeError::Malformed("an unexpected reply to NBD_OPT_GO")),
        }
    }
    Err(HandshakeError::Malformed("NBD_OPT_GO is answered without end"))
}

fn read_reply(stream: &dyn NbdStream, option: u32, deadline: Instant) -> Result<(u32, Vec<u8>), HandshakeError> {
    let mut head = [0; 20];
    read_exact(stream, &mut head, deadline)?;
    let (kind, length) = parse_option_reply(&head, option)?;
    let mut data = vec![0; length as usize];
    read_exact(stream, &mut data, deadline)?;
    Ok((kind, data))
}
