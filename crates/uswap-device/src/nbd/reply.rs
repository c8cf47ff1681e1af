//! Decodes replies, simple and structured, as their bytes arrive, in pieces of any size.
//!
//! The decoder does no I/O and knows no buffers: it asks a [`CookieTable`] which request each
//! cookie stands for and hands over bytes and outcomes. The decoder trusts nothing in a reply: a
//! length that does not fit the request, a cookie for which no thread waits, or a chunk of a kind
//! that was not asked for ends the connection with a named error. After a [`Malformed`] reply the
//! rest of the stream cannot be understood.

use std::fmt;

use super::wire::{be16, be32, be64};

const SIMPLE: u32 = 0x6744_6698;
const STRUCTURED: u32 = 0x668e_33ef;
const SIMPLE_HEAD: usize = 16;
const STRUCTURED_HEAD: usize = 20;
/// Longest text of an error chunk (the protocol's limit for strings).
const LONGEST_TEXT: u32 = 4096;

const DONE: u16 = 1;
const NONE: u16 = 0;
const OFFSET_DATA: u16 = 1;
const OFFSET_HOLE: u16 = 2;
const ERROR: u16 = 1 << 15;
const ERROR_OFFSET: u16 = ERROR + 2;

/// Why a reply is malformed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Malformed {
    /// It begins with a number that begins no reply.
    Magic(u32),
    /// A structured reply, although structured replies were not negotiated.
    NotAgreed,
    /// A read was answered by a simple reply, although structured replies were negotiated.
    SimpleRead,
    /// This cookie was never sent.
    UnknownCookie(u64),
    /// This cookie was answered before.
    AnsweredTwice(u64),
    /// More bytes than the request asked for.
    TooLong(u32),
    /// Bytes outside the range of the request.
    Outside(u64),
    /// The reply ended before all bytes had come.
    TooShort(u32),
    /// Bytes for a request that reads nothing.
    DataNotAsked,
    /// A chunk of a kind that was not asked for.
    Kind(u16),
    /// A chunk whose length does not fit its kind.
    ChunkLength(u16, u32),
    /// An error chunk with the error number 0.
    NoError,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Magic(n) => write!(f, "a reply begins with {n:#010x}, which is no reply's magic"),
            Self::NotAgreed => f.write_str("a structured reply, which was not agreed upon"),
            Self::SimpleRead => f.write_str("a simple reply to a read, where structured ones were agreed upon"),
            Self::UnknownCookie(n) => write!(f, "a reply with cookie {n:#x}, which nobody sent"),
            Self::AnsweredTwice(n) => write!(f, "a second reply to cookie {n:#x}"),
            Self::TooLong(n) => write!(f, "a reply that is longer than the request, by a chunk of {n} bytes"),
            Self::Outside(n) => write!(f, "a reply with bytes at {n}, outside what was asked for"),
            Self::TooShort(n) => write!(f, "a reply that ends {n} bytes short"),
            Self::DataNotAsked => f.write_str("bytes in reply to a request that asked for none"),
            Self::Kind(n) => write!(f, "a chunk of kind {n}, which was not asked for"),
            Self::ChunkLength(kind, n) => write!(f, "a chunk of kind {kind} and {n} bytes, which do not fit"),
            Self::NoError => f.write_str("an error without a number"),
        }
    }
}

impl std::error::Error for Malformed {}

/// The expected reply of a cookie, and how much of it has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ReplyProgress {
    /// Offset in the export of the requested bytes.
    pub offset: u64,
    /// Number of requested bytes; 0 for requests that read nothing.
    pub length: u32,
    /// Number of bytes that have come.
    pub got: u32,
    /// The first error in the reply; 0: none.
    pub error: u32,
}

/// The requests in flight, as the decoder sees them.
pub trait CookieTable {
    /// The request of this cookie, and the number by which the other calls name it.
    ///
    /// # Errors
    /// [`Malformed::UnknownCookie`], [`Malformed::AnsweredTwice`].
    fn find(&mut self, cookie: u64) -> Result<(usize, ReplyProgress), Malformed>;
    /// The progress of the request of this number.
    fn progress(&self, index: usize) -> ReplyProgress;
    /// Stores the progress.
    fn note(&mut self, index: usize, progress: ReplyProgress);
    /// Hands over bytes that lie `at` bytes after the start of the requested range.
    fn put(&mut self, index: usize, at: u32, bytes: &[u8]);
    /// Hands over a hole there: zero bytes.
    fn zero(&mut self, index: usize, at: u32, length: u32);
    /// The reply is complete; `error` is 0 or the error number.
    fn finish(&mut self, index: usize, error: u32);
}

/// A structured chunk that is being decoded.
#[derive(Clone, Copy, Debug)]
struct ReplyChunk {
    index: usize,
    progress: ReplyProgress,
    kind: u16,
    last: bool,
    /// Bytes after the header.
    length: u32,
}

#[derive(Clone, Copy, Debug)]
enum Stage {
    /// The next bytes are the header of a reply.
    Head,
    /// The next bytes are the first fields of a chunk: an offset, a hole or an error.
    Prefix(ReplyChunk),
    /// The next bytes are requested data: `left` bytes, the first of them at `at`.
    Data { index: usize, at: u32, left: u32, last: bool },
    /// The next bytes are text that is ignored.
    Text { chunk: ReplyChunk, left: u32 },
}

/// The destination of the next bytes, if they are requested data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Direct {
    /// The request's number.
    pub index: usize,
    /// Offset of the next byte in the requested range.
    pub at: u32,
    /// Number of bytes that follow.
    pub left: u32,
}

/// The decoder for the replies of one connection.
pub struct Decoder {
    structured: bool,
    stage: Stage,
    piece: [u8; STRUCTURED_HEAD],
    have: usize,
}

impl Decoder {
    /// A decoder for a new connection; `structured`: structured replies were negotiated.
    pub fn new(structured: bool) -> Self {
        Self { structured, stage: Stage::Head, piece: [0; STRUCTURED_HEAD], have: 0 }
    }

    /// The destination of the next bytes, if the caller may read them straight to there; it then
    /// reports their number by [`advanced`](Self::advanced).
    pub fn direct(&self) -> Option<Direct> {
        match self.stage {
            Stage::Data { index, at, left, .. } => Some(Direct { index, at, left }),
            _ => None,
        }
    }

    /// Reports that `count` bytes, at most those that were left, were read to where
    /// [`direct`](Self::direct) said.
    ///
    /// # Errors
    /// The reply is complete but too short.
    pub fn advanced(&mut self, count: u32, table: &mut impl CookieTable) -> Result<(), Malformed> {
        let Stage::Data { index, at, left, last } = &mut self.stage else { return Ok(()) };
        (*at, *left) = (*at + count, *left - count);
        if *left > 0 {
            return Ok(());
        }
        let (index, last) = (*index, *last);
        self.stage = Stage::Head;
        if last { finish(index, table) } else { Ok(()) }
    }

    /// Decodes all of `bytes`.
    ///
    /// # Errors
    /// [`Malformed`]: the connection cannot be used any more.
    pub fn feed(&mut self, mut bytes: &[u8], table: &mut impl CookieTable) -> Result<(), Malformed> {
        while !bytes.is_empty() {
            bytes = match self.stage {
                Stage::Data { index, at, left, .. } => {
                    let (now, rest) = bytes.split_at(bytes.len().min(left as usize));
                    table.put(index, at, now);
                    self.advanced(now.len() as u32, table)?;
                    rest
                }
                Stage::Text { chunk, left } => {
                    let now = bytes.len().min(left as usize);
                    self.stage = Stage::Text { chunk, left: left - now as u32 };
                    if left as usize == now {
                        self.end_of(chunk, table)?;
                    }
                    &bytes[now..]
                }
                Stage::Head | Stage::Prefix(_) => self.gather(bytes, table)?,
            };
        }
        Ok(())
    }

    /// Collects the bytes of a header or of a chunk's first fields, and acts on them when they are
    /// complete.
    fn gather<'a>(&mut self, bytes: &'a [u8], table: &mut impl CookieTable) -> Result<&'a [u8], Malformed> {
        let need = match self.stage {
            Stage::Prefix(chunk) => prefix_length(chunk.kind),
            // The magic number tells how long the rest of the header is.
            _ if self.have < 4 => 4,
            _ if be32(&self.piece) == STRUCTURED => STRUCTURED_HEAD,
            _ => SIMPLE_HEAD,
        };
        let (now, rest) = bytes.split_at(bytes.len().min(need - self.have));
        self.piece[self.have..self.have + now.len()].copy_from_slice(now);
        self.have += now.len();
        if self.have < need {
            return Ok(rest);
        }
        match self.stage {
            Stage::Prefix(chunk) => {
                self.have = 0;
                self.prefix(chunk, table)?;
            }
            _ if need == 4 => self.magic()?,
            _ => {
                self.have = 0;
                if need == SIMPLE_HEAD { self.simple(table)? } else { self.chunk(table)? }
            }
        }
        Ok(rest)
    }

    fn magic(&self) -> Result<(), Malformed> {
        match be32(&self.piece) {
            SIMPLE => Ok(()),
            STRUCTURED if self.structured => Ok(()),
            STRUCTURED => Err(Malformed::NotAgreed),
            other => Err(Malformed::Magic(other)),
        }
    }

    fn simple(&mut self, table: &mut impl CookieTable) -> Result<(), Malformed> {
        let (error, cookie) = (be32(&self.piece[4..]), be64(&self.piece[8..]));
        let (index, progress) = table.find(cookie)?;
        if error != 0 || progress.length == 0 {
            table.finish(index, if error == 0 { progress.error } else { error });
            return Ok(());
        }
        if self.structured {
            return Err(Malformed::SimpleRead);
        }
        table.note(index, ReplyProgress { got: progress.length, ..progress });
        self.stage = Stage::Data { index, at: 0, left: progress.length, last: true };
        Ok(())
    }

    fn chunk(&mut self, table: &mut impl CookieTable) -> Result<(), Malformed> {
        let (flags, kind) = (be16(&self.piece[4..]), be16(&self.piece[6..]));
        let (cookie, length) = (be64(&self.piece[8..]), be32(&self.piece[16..]));
        let (index, progress) = table.find(cookie)?;
        let chunk = ReplyChunk { index, progress, kind, last: flags & DONE != 0, length };
        let wrong = Err(Malformed::ChunkLength(kind, length));
        match kind {
            NONE if length == 0 && chunk.last => return self.end_of(chunk, table),
            NONE => return wrong,
            OFFSET_DATA | OFFSET_HOLE if progress.length == 0 => return Err(Malformed::DataNotAsked),
            OFFSET_DATA if length <= 8 => return wrong,
            OFFSET_DATA if length - 8 > progress.length - progress.got => return Err(Malformed::TooLong(length - 8)),
            OFFSET_HOLE if length != 12 => return wrong,
            OFFSET_DATA | OFFSET_HOLE => {}
            _ if kind & ERROR == 0 => return Err(Malformed::Kind(kind)),
            _ if !(6..=LONGEST_TEXT + 14).contains(&length) => return wrong,
            _ => {}
        }
        self.stage = Stage::Prefix(chunk);
        Ok(())
    }

    fn prefix(&mut self, chunk: ReplyChunk, table: &mut impl CookieTable) -> Result<(), Malformed> {
        let ReplyChunk { index, progress, .. } = chunk;
        match chunk.kind {
            OFFSET_DATA => {
                let length = chunk.length - 8;
                let at = place(&progress, be64(&self.piece), length)?;
                table.note(index, ReplyProgress { got: progress.got + length, ..progress });
                self.stage = Stage::Data { index, at, left: length, last: chunk.last };
                Ok(())
            }
            OFFSET_HOLE => {
                let length = be32(&self.piece[8..]);
                let at = place(&progress, be64(&self.piece), length)?;
                table.zero(index, at, length);
                table.note(index, ReplyProgress { got: progress.got + length, ..progress });
                self.end_of(chunk, table)
            }
            _ => self.error(chunk, table),
        }
    }

    fn error(&mut self, chunk: ReplyChunk, table: &mut impl CookieTable) -> Result<(), Malformed> {
        let (error, text) = (be32(&self.piece), u32::from(be16(&self.piece[4..])));
        let after = if chunk.kind == ERROR_OFFSET { 8 } else { 0 };
        // Bytes after the text of a chunk of an unknown kind are skipped together with the text.
        let known = chunk.kind <= ERROR_OFFSET;
        let fits = if known { chunk.length == 6 + text + after } else { chunk.length >= 6 + text };
        if !fits {
            return Err(Malformed::ChunkLength(chunk.kind, chunk.length));
        }
        if error == 0 {
            return Err(Malformed::NoError);
        }
        let first = if chunk.progress.error == 0 { error } else { chunk.progress.error };
        table.note(chunk.index, ReplyProgress { error: first, ..chunk.progress });
        match chunk.length - 6 {
            0 => self.end_of(chunk, table),
            left => {
                self.stage = Stage::Text { chunk, left };
                Ok(())
            }
        }
    }

    fn end_of(&mut self, chunk: ReplyChunk, table: &mut impl CookieTable) -> Result<(), Malformed> {
        self.stage = Stage::Head;
        if !chunk.last {
            return Ok(());
        }
        finish(chunk.index, table)
    }
}

/// Number of bytes before the data or text of a chunk.
fn prefix_length(kind: u16) -> usize {
    match kind {
        OFFSET_DATA => 8,
        OFFSET_HOLE => 12,
        _ => 6,
    }
}

/// Offset in the requested range of `length` bytes that lie at `offset` of the export.
fn place(progress: &ReplyProgress, offset: u64, length: u32) -> Result<u32, Malformed> {
    let at = offset.checked_sub(progress.offset).filter(|at| *at <= u64::from(progress.length));
    let at = at.ok_or(Malformed::Outside(offset))? as u32;
    if length == 0 || length > progress.length - at {
        return Err(Malformed::Outside(offset));
    }
    if length > progress.length - progress.got {
        return Err(Malformed::TooLong(length));
    }
    Ok(at)
}

/// Ends a reply: all bytes must have come, unless the reply reported an error.
fn finish(index: usize, table: &mut impl CookieTable) -> Result<(), Malformed> {
    let progress = table.progress(index);
    if progress.error == 0 && progress.got < progress.length {
        return Err(Malformed::TooShort(progress.length - progress.got));
    }
    table.finish(index, progress.error);
    Ok(())
}

#[cfg(test)]
#[path = "reply_tests.rs"]
mod tests;
