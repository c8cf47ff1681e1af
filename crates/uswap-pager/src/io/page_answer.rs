//! Questions about pages and their answers, in the form in which they are sent over the connection
//! of a caller (`page_query.rs`): short arrays of 64-bit words, the lowest byte first.

use uswap_core::PAGE;

/// Bytes of an agent's area.
pub use uswap_abi::layout::AREA_BYTES;
/// Name of an agent's thread, and its name while it waits to be fetched.
pub use uswap_abi::message::{AGENT_NAME, CALL_NAME};

/// Maximum number of pages whose bytes fit into an answer.
pub const MAX_BYTES: usize = 128;
/// Maximum number of pages that an answer names.
pub const MAX_RECORDS: usize = 1024;

/// A question of a caller, about the pages from `start` to `end`, both multiples of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageQuestion {
    /// First byte.
    pub start: u64,
    /// Byte behind the last.
    pub end: u64,
}

impl PageQuestion {
    /// Length on the wire.
    pub const BYTES: usize = 16;

    /// Encodes it for the wire.
    pub fn encode(self) -> [u8; Self::BYTES] {
        words([self.start, self.end])
    }

    /// Decodes it; `None`: these are no pages.
    pub fn decode(bytes: &[u8; Self::BYTES]) -> Option<Self> {
        let [start, end] = from_words(bytes);
        (start <= end && (start | end) % PAGE == 0).then_some(Self { start, end })
    }
}

/// The beginning of an answer. After it follow `records` words, then the bytes of the pages that
/// are given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnswerHeader {
    /// Whether there is an answer.
    pub state: Answered,
    /// The answer covers the pages from the start of the question to this address.
    pub next: u64,
    /// Address of the agent's area (0: there is none).
    pub area: u64,
    /// Number of pages that are named.
    pub records: u64,
}

impl AnswerHeader {
    /// Length on the wire.
    pub const BYTES: usize = 32;

    /// Encodes it for the wire.
    pub fn encode(self) -> [u8; Self::BYTES] {
        words([self.state as u64, self.next, self.area, self.records])
    }

    /// Decodes it; `None`: it is not valid.
    pub fn decode(bytes: &[u8; Self::BYTES]) -> Option<Self> {
        let [state, next, area, records] = from_words(bytes);
        let state = [Answered::Done, Answered::Later, Answered::Unknown].into_iter().find(|s| *s as u64 == state)?;
        (records <= MAX_RECORDS as u64).then_some(Self { state, next, area, records })
    }
}

/// Whether a question is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answered {
    /// The question is answered.
    Done,
    /// Not now: the address space is changing.
    Later,
    /// No space is known for this process.
    Unknown,
}

/// A page that an answer names: its address, with its kind in the lowest bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Named {
    /// The page is evicted; its bytes are in the answer.
    Given(u64),
    /// The program has the page, or will have it in a moment, or it is being evicted.
    Moving(u64),
    /// The bytes of the page are lost.
    Lost(u64),
}

impl Named {
    /// Encodes it for the wire.
    pub fn encode(self) -> u64 {
        match self {
            Self::Moving(page) => page,
            Self::Given(page) => page | 1,
            Self::Lost(page) => page | 2,
        }
    }

    /// Decodes it.
    pub fn decode(word: u64) -> Option<Self> {
        let page = word & !(PAGE - 1);
        match word % PAGE {
            0 => Some(Self::Moving(page)),
            1 => Some(Self::Given(page)),
            2 => Some(Self::Lost(page)),
            _ => None,
        }
    }
}

/// Encodes words with eight bytes each, the lowest first.
fn words<const WORDS: usize, const BYTES: usize>(from: [u64; WORDS]) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    for (place, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(from) {
        *place = word.to_le_bytes();
    }
    bytes
}

fn from_words<const WORDS: usize, const BYTES: usize>(bytes: &[u8; BYTES]) -> [u64; WORDS] {
    let (from, _) = bytes.as_chunks::<8>();
    std::array::from_fn(|n| u64::from_le_bytes(from[n]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sent_is_what_is_received() {
        let question = PageQuestion { start: 0x7f00_0000_1000, end: 0x7f00_0000_3000 };
        assert_eq!(PageQuestion::decode(&question.encode()), Some(question));
        for state in [Answered::Done, Answered::Later, Answered::Unknown] {
            let header = AnswerHeader { state, next: 0x3000, area: 0x9000, records: 7 };
            assert_eq!(AnswerHeader::decode(&header.encode()), Some(header));
        }
        for named in [Named::Given(0x1000), Named::Moving(0x2000), Named::Lost(0)] {
            assert_eq!(Named::decode(named.encode()), Some(named));
        }
    }

    #[test]
    fn nonsense_is_nothing() {
        for (start, end) in [(1, 4096), (0, 4097), (8192, 4096)] {
            assert_eq!(PageQuestion::decode(&words([start, end])), None);
        }
        assert_eq!(AnswerHeader::decode(&words([3, 0, 0, 0])), None);
        assert_eq!(AnswerHeader::decode(&words([0, 0, 0, MAX_RECORDS as u64 + 1])), None);
        assert_eq!(Named::decode(0x1003), None);
    }
}
