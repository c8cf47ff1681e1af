//! Whatever a server sends, the decoder keeps within what was asked for, and however the bytes are
//! cut it comes to the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use uswap_device::nbd::{Decoder, Malformed, ReplyProgress, CookieTable};

/// Two reads and a write, under the cookies 0 to 2.
#[derive(Default, PartialEq, Debug)]
struct Requests {
    progress: [ReplyProgress; 3],
    bytes: [Vec<u8>; 3],
    outcomes: [Option<u32>; 3],
}

impl Requests {
    fn new() -> Self {
        let lengths = [4096u32, 8192, 0];
        let progress = lengths.map(|length| ReplyProgress { offset: 4096, length, ..ReplyProgress::default() });
        Self { progress, bytes: lengths.map(|length| vec![0xee; length as usize]), outcomes: [None; 3] }
    }
}

impl CookieTable for Requests {
    fn find(&mut self, cookie: u64) -> Result<(usize, ReplyProgress), Malformed> {
        let index = usize::try_from(cookie).ok().filter(|index| *index < 3);
        let index = index.ok_or(Malformed::UnknownCookie(cookie))?;
        match self.outcomes[index] {
            Some(_) => Err(Malformed::AnsweredTwice(cookie)),
            None => Ok((index, self.progress[index])),
        }
    }
    fn progress(&self, index: usize) -> ReplyProgress {
        self.progress[index]
    }
    fn note(&mut self, index: usize, progress: ReplyProgress) {
        assert!(progress.got <= progress.length);
        self.progress[index] = progress;
    }
    fn put(&mut self, index: usize, at: u32, bytes: &[u8]) {
        self.bytes[index][at as usize..][..bytes.len()].copy_from_slice(bytes);
    }
    fn zero(&mut self, index: usize, at: u32, length: u32) {
        self.bytes[index][at as usize..][..length as usize].fill(0);
    }
    fn finish(&mut self, index: usize, error: u32) {
        assert!(self.outcomes[index].replace(error).is_none(), "answered twice");
        let progress = self.progress[index];
        assert!(error != 0 || progress.got == progress.length, "bytes are missing");
    }
}

fuzz_target!(|input: (bool, u8, &[u8])| {
    let (structured, step, bytes) = input;
    let (mut whole, mut pieces) = (Requests::new(), Requests::new());
    let outcome = Decoder::new(structured).feed(bytes, &mut whole);
    let mut decoder = Decoder::new(structured);
    let again = bytes.chunks(usize::from(step) + 1).try_for_each(|piece| decoder.feed(piece, &mut pieces));
    assert_eq!((outcome, whole), (again, pieces));
});
