//! Tests the decoder with random replies, cut at random, and with bytes that are no replies.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

/// Requests by cookie, the bytes that were handed over for each, and the outcome of each.
#[derive(Default)]
struct Requests {
    waiting: Vec<(u64, ReplyProgress, Vec<u8>)>,
    outcomes: BTreeMap<u64, u32>,
}

impl Requests {
    fn expect(&mut self, cookie: u64, offset: u64, length: u32) {
        let progress = ReplyProgress { offset, length, ..ReplyProgress::default() };
        self.waiting.push((cookie, progress, vec![0xee; length as usize]));
    }
}

impl CookieTable for Requests {
    fn find(&mut self, cookie: u64) -> Result<(usize, ReplyProgress), Malformed> {
        if self.outcomes.contains_key(&cookie) {
            return Err(Malformed::AnsweredTwice(cookie));
        }
        let found = self.waiting.iter().position(|waiting| waiting.0 == cookie);
        found.map(|index| (index, self.waiting[index].1)).ok_or(Malformed::UnknownCookie(cookie))
    }
    fn progress(&self, index: usize) -> ReplyProgress {
        self.waiting[index].1
    }
    fn note(&mut self, index: usize, progress: ReplyProgress) {
        self.waiting[index].1 = progress;
    }
    fn put(&mut self, index: usize, at: u32, bytes: &[u8]) {
        self.waiting[index].2[at as usize..at as usize + bytes.len()].copy_from_slice(bytes);
    }
    fn zero(&mut self, index: usize, at: u32, length: u32) {
        self.waiting[index].2[at as usize..(at + length) as usize].fill(0);
    }
    fn finish(&mut self, index: usize, error: u32) {
        let before = self.outcomes.insert(self.waiting[index].0, error);
        assert_eq!(before, None, "finished twice");
    }
}

fn simple(error: u32, cookie: u64, data: &[u8]) -> Vec<u8> {
    [&SIMPLE.to_be_bytes()[..], &error.to_be_bytes(), &cookie.to_be_bytes(), data].concat()
}

fn chunk(flags: u16, kind: u16, cookie: u64, payload: &[u8]) -> Vec<u8> {
    let length = payload.len() as u32;
    let head = [&STRUCTURED.to_be_bytes()[..], &flags.to_be_bytes(), &kind.to_be_bytes(), &cookie.to_be_bytes()];
    [&head.concat()[..], &length.to_be_bytes(), payload].concat()
}

fn data(flags: u16, cookie: u64, offset: u64, bytes: &[u8]) -> Vec<u8> {
    chunk(flags, OFFSET_DATA, cookie, &[&offset.to_be_bytes()[..], bytes].concat())
}

fn hole(flags: u16, cookie: u64, offset: u64, length: u32) -> Vec<u8> {
    chunk(flags, OFFSET_HOLE, cookie, &[&offset.to_be_bytes()[..], &length.to_be_bytes()].concat())
}

fn error(flags: u16, kind: u16, cookie: u64, number: u32, text: &[u8], after: &[u8]) -> Vec<u8> {
    let length = (text.len() as u16).to_be_bytes();
    chunk(flags, kind, cookie, &[&number.to_be_bytes()[..], &length, text, after].concat())
}

/// A read of 8 KiB at 4096 under cookie 1, and a write under cookie 2.
fn two() -> Requests {
    let mut requests = Requests::default();
    requests.expect(1, 4096, 8192);
    requests.expect(2, 0, 0);
    requests
}

fn feed(structured: bool, bytes: &[u8]) -> (Result<(), Malformed>, Requests) {
    let mut requests = two();
    let result = Decoder::new(structured).feed(bytes, &mut requests);
    (result, requests)
}

#[test]
fn each_kind_of_reply_is_understood() {
    let (result, requests) = feed(false, &[simple(0, 2, &[]), simple(0, 1, &[7; 8192])].concat());
    assert_eq!((result, &requests.outcomes), (Ok(()), &BTreeMap::from([(1, 0), (2, 0)])));
    assert_eq!(requests.waiting[0].2, [7; 8192]);
    let reply = [
        data(0, 1, 8192, &[5; 4096]),
        chunk(DONE, NONE, 2, &[]),
        hole(0, 1, 4096, 4095),
        data(0, 1, 8191, &[9]),
        chunk(DONE, NONE, 1, &[]),
    ];
    let (result, requests) = feed(true, &reply.concat());
    assert_eq!((result, &requests.outcomes), (Ok(()), &BTreeMap::from([(1, 0), (2, 0)])));
    let bytes = &requests.waiting[0].2;
    assert!(bytes[..4095].iter().all(|byte| *byte == 0) && bytes[4095] == 9 && bytes[4096..] == [5; 4096]);
    let offset = 5000u64.to_be_bytes();
    let reply = [
        error(0, ERROR_OFFSET, 1, 5, b"disk", &offset),
        error(DONE, ERROR + 1, 1, 22, b"", b""),
        error(DONE, ERROR + 9, 2, 28, b"later", b"more"),
    ];
    let (result, requests) = feed(true, &reply.concat());
    assert_eq!((result, &requests.outcomes), (Ok(()), &BTreeMap::from([(1, 5), (2, 28)])));
}

#[test]
fn what_cannot_be_believed_is_named() {
    let long = vec![0; 8193];
    for (structured, bytes, why) in [
        (false, b"HTTP".to_vec(), Malformed::Magic(0x4854_5450)),
        (false, chunk(DONE, NONE, 2, &[]), Malformed::NotAgreed),
        (true, simple(0, 1, &[]), Malformed::SimpleRead),
        (true, simple(0, 3, &[]), Malformed::UnknownCookie(3)),
        (true, [simple(0, 2, &[]), simple(0, 2, &[])].concat(), Malformed::AnsweredTwice(2)),
        (true, data(DONE, 1, 4096, &long), Malformed::TooLong(8193)),
        (true, data(DONE, 1, 4095, &[1]), Malformed::Outside(4095)),
        (true, data(DONE, 1, 12288, &[1]), Malformed::Outside(12288)),
        (true, data(DONE, 1, 12287, &[1, 1]), Malformed::Outside(12287)),
        (true, hole(DONE, 1, 4096, u32::MAX), Malformed::Outside(4096)),
        (true, hole(DONE, 1, 4096, 0), Malformed::Outside(4096)),
        (true, [hole(0, 1, 4096, 8192), hole(DONE, 1, 4096, 1)].concat(), Malformed::TooLong(1)),
        (true, data(DONE, 1, 4096, &[1]), Malformed::TooShort(8191)),
        (true, chunk(DONE, NONE, 1, &[]), Malformed::TooShort(8192)),
        (true, data(DONE, 2, 0, &[1]), Malformed::DataNotAsked),
        (true, chunk(DONE, 5, 1, &[0; 8]), Malformed::Kind(5)),
        (true, chunk(0, NONE, 2, &[]), Malformed::ChunkLength(NONE, 0)),
        (true, chunk(DONE, NONE, 2, &[1]), Malformed::ChunkLength(NONE, 1)),
        (true, chunk(DONE, OFFSET_DATA, 1, &[0; 8]), Malformed::ChunkLength(OFFSET_DATA, 8)),
        (true, chunk(DONE, OFFSET_HOLE, 1, &[0; 13]), Malformed::ChunkLength(OFFSET_HOLE, 13)),
        (true, chunk(DONE, ERROR + 1, 1, &[0; 5]), Malformed::ChunkLength(ERROR + 1, 5)),
        (true, chunk(DONE, ERROR + 1, 1, &[0; 5000]), Malformed::ChunkLength(ERROR + 1, 5000)),
        (true, error(DONE, ERROR + 1, 1, 5, b"x", b"y"), Malformed::ChunkLength(ERROR + 1, 8)),
        (true, error(DONE, ERROR + 1, 1, 0, b"", b""), Malformed::NoError),
    ] {
        let (result, _) = feed(structured, &bytes);
        assert_eq!(result, Err(why));
    }
}

#[derive(Clone, Debug)]
struct Made {
    length: u32,
    cuts: Vec<u32>,
    holes: Vec<bool>,
    error: Option<u32>,
}

fn made() -> impl Strategy<Value = Made> {
    let cuts = prop::collection::vec(1..9000u32, 0..4);
    let holes = prop::collection::vec(any::<bool>(), 5);
    (prop::sample::select(vec![0u32, 4096, 12288]), cuts, holes, prop::option::of(1..200u32))
        .prop_map(|(length, cuts, holes, error)| Made { length, cuts, holes, error })
}

/// The bytes that a request of this cookie reads.
fn content(cookie: u64, at: u32) -> u8 {
    (cookie as u32).wrapping_mul(31).wrapping_add(at / 7) as u8
}

/// Structured chunks that answer the read, and a mark for each byte that lies in a hole.
fn chunks(cookie: u64, made: &Made) -> (Vec<Vec<u8>>, Vec<u8>) {
    let mut cuts: Vec<u32> = made.cuts.iter().copied().filter(|cut| *cut < made.length).collect();
    cuts.extend([0, made.length]);
    cuts.sort_unstable();
    cuts.dedup();
    let (offset, mut all, mut expected) = (cookie << 20, Vec::new(), Vec::new());
    for (pair, is_hole) in cuts.windows(2).zip(&made.holes) {
        let bytes: Vec<u8> = (pair[0]..pair[1]).map(|at| if *is_hole { 0 } else { content(cookie, at) }).collect();
        let at = offset + u64::from(pair[0]);
        all.push(if *is_hole { hole(0, cookie, at, pair[1] - pair[0]) } else { data(0, cookie, at, &bytes) });
        expected.extend(bytes);
    }
    match made.error {
        Some(number) => all.push(error(DONE, ERROR + 1, cookie, number, b"text", b"")),
        None => all.push(chunk(DONE, NONE, cookie, &[])),
    }
    (all, expected)
}

proptest! {
    /// The mixed chunks of several replies, cut anywhere, give each request its bytes and its
    /// outcome.
    #[test]
    fn replies_are_the_same_however_they_are_cut(
        all in prop::collection::vec(made(), 1..6),
        order in prop::collection::vec(any::<u16>(), 64),
        steps in prop::collection::vec(1..3000usize, 1..50),
    ) {
        let mut requests = Requests::default();
        let mut queues = Vec::new();
        let mut expected = Vec::new();
        for (made, cookie) in all.iter().zip(1u64..) {
            requests.expect(cookie, cookie << 20, made.length);
            let (chunks, bytes) = chunks(cookie, made);
            queues.push(std::collections::VecDeque::from(chunks));
            expected.push(bytes);
        }
        let mut wire = Vec::new();
        let mut turns = order.iter().cycle();
        while queues.iter().any(|queue| !queue.is_empty()) {
            let index = *turns.next().expect("endless") as usize % queues.len();
            let index = (0..queues.len()).map(|i| (index + i) % queues.len()).find(|i| !queues[*i].is_empty());
            wire.extend(queues[index.expect("one is left")].pop_front().expect("a chunk"));
        }
        let mut decoder = Decoder::new(true);
        let (mut rest, mut steps) = (&wire[..], steps.iter().cycle());
        while !rest.is_empty() {
            let (now, after) = rest.split_at(rest.len().min(*steps.next().expect("endless")));
            decoder.feed(now, &mut requests).expect("replies");
            rest = after;
        }
        for ((made, (cookie, _, bytes)), expected) in all.iter().zip(&requests.waiting).zip(expected) {
            prop_assert_eq!(requests.outcomes.get(cookie), Some(&made.error.unwrap_or(0)));
            prop_assert_eq!(bytes, &expected);
        }
    }

    /// The decoder accepts or refuses any bytes; it hands over nothing outside the requested range
    /// (`put` would panic).
    #[test]
    fn no_bytes_do_harm(bytes in prop::collection::vec(any::<u8>(), 0..200), structured: bool, flags: u16, kind: u16) {
        let _ = feed(structured, &bytes);
        let known = [NONE, OFFSET_DATA, OFFSET_HOLE, ERROR + 1, ERROR_OFFSET, kind][flags as usize % 6];
        let _ = feed(structured, &chunk(flags % 2, known, u64::from(kind % 4), &bytes));
    }
}
