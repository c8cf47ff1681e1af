//! An NBD server of our own that can lie: in the handshake, in its replies, or about what it
//! stores. What concerns the first page it always serves rightly, so that a client comes as far as
//! the lie.

// Each test uses a part of this.
#![allow(dead_code)]

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const PAGE: usize = 4096;

/// How it lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lie {
    /// Not at all.
    None,
    // In the handshake.
    Http,
    OldStyle,
    HangsUp,
    SaysNothing,
    ReadOnly,
    Small,
    LargeBlocks,
    SmallRequests,
    OddBlocks,
    OtherOption,
    EnormousOption,
    EndlessInfo,
    NoSize,
    /// No lie: it does not say that several connections see the same data.
    OneConnection,
    // No lies: it refuses to read parts of pages, and has said so, has said nothing of blocks, or
    // has said that it would not.
    PageBlocks,
    NoBlocks,
    RefusesParts,
    // In replies to what is beyond the first page.
    WrongMagic,
    WrongCookie,
    Twice,
    /// Both replies in one piece.
    TwiceAtOnce,
    Never,
    HugeChunk,
    Outside,
    Short,
    HalfAndGone,
    SimpleToRead,
    DataToWrite,
    UnknownChunk,
    Errors,
    ShutsDown,
    // About what it stores.
    Forgets,
    OtherData,
    /// It breaks the first connection, and has lost all when the next one comes.
    Amnesia,
    /// It breaks the first connection, and has grown when the next one comes.
    Grows,
}

/// The server: it serves as long as the process lives.
pub struct Liar {
    pub address: SocketAddr,
    pub connections: Arc<AtomicU32>,
    pub lie: Arc<Mutex<Lie>>,
    /// Offset and length of each read that came.
    pub reads: Arc<Mutex<Vec<(u64, u32)>>>,
    store: Arc<Mutex<HashMap<u64, Box<[u8; PAGE]>>>>,
    streams: Arc<Mutex<Vec<TcpStream>>>,
}

impl Lie {
    fn refuses_parts(self) -> bool {
        matches!(self, Self::PageBlocks | Self::NoBlocks | Self::RefusesParts)
    }
}

impl Liar {
    /// Begins to serve an export of this many bytes.
    pub fn new(lie: Lie, bytes: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let (connections, store, lie) = (Arc::new(AtomicU32::new(0)), Arc::default(), Arc::new(Mutex::new(lie)));
        let (reads, streams) = (Arc::default(), Arc::default());
        let liar = Self { address, connections: connections.clone(), lie: lie.clone(), reads, store, streams };
        let (store, reads, streams) = (liar.store.clone(), liar.reads.clone(), liar.streams.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let number = connections.fetch_add(1, SeqCst);
                let size = bytes + if *lie.lock().unwrap() == Lie::Grows { u64::from(number) * PAGE as u64 } else { 0 };
                let (lie, store, reads) = (lie.clone(), store.clone(), reads.clone());
                streams.lock().unwrap().extend(stream.try_clone());
                let mut session = Session { stream, lie, store, reads, size, number };
                std::thread::spawn(move || {
                    let _ = session.serve();
                    // It is kept open by its copy for `hang_up`.
                    let _ = session.stream.shutdown(std::net::Shutdown::Both);
                });
            }
        });
        liar
    }

    /// Its URI.
    pub fn uri(&self) -> String {
        format!("nbd://{}/export", self.address)
    }

    /// Ends all connections that there are.
    #[allow(dead_code, reason = "each test file uses its part")]
    pub fn hang_up(&self) {
        let streams = std::mem::take(&mut *self.streams.lock().unwrap());
        streams.iter().for_each(|stream| drop(stream.shutdown(std::net::Shutdown::Both)));
    }

    /// From now on.
    pub fn set(&self, lie: Lie) {
        *self.lie.lock().unwrap() = lie;
    }
}

struct Session {
    stream: TcpStream,
    lie: Arc<Mutex<Lie>>,
    store: Arc<Mutex<HashMap<u64, Box<[u8; PAGE]>>>>,
    reads: Arc<Mutex<Vec<(u64, u32)>>>,
    size: u64,
    number: u32,
}

impl Session {
    fn lie(&self) -> Lie {
        *self.lie.lock().unwrap()
    }

    fn serve(&mut self) -> io::Result<()> {
        if self.lie() == Lie::Amnesia && self.number > 0 {
            self.store.lock().unwrap().clear();
        }
        self.greet()?;
        while !self.option()? {}
        while self.request()? {}
        Ok(())
    }

    fn greet(&mut self) -> io::Result<()> {
        match self.lie() {
            Lie::Http => self.stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")?,
            Lie::HangsUp => return Err(io::ErrorKind::Other.into()),
            Lie::SaysNothing => std::thread::sleep(Duration::from_secs(20)),
            Lie::OldStyle => self.stream.write_all(b"NBDMAGIC\x00\x00\x42\x02\x81\x86\x12\x53\0\0")?,
            _ => self.stream.write_all(b"NBDMAGICIHAVEOPT\0\x03")?,
        }
        self.take(4).map(drop)
    }

    fn take(&mut self, count: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; count];
        self.stream.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    fn reply(&mut self, option: u32, kind: u32, data: &[u8]) -> io::Result<()> {
        let mut bytes = 0x0003_e889_0455_65a9u64.to_be_bytes().to_vec();
        let option = if self.lie() == Lie::OtherOption { option + 1 } else { option };
        let length = if self.lie() == Lie::EnormousOption { u32::MAX } else { data.len() as u32 };
        for word in [option, kind, length] {
            bytes.extend(word.to_be_bytes());
        }
        bytes.extend(data);
        self.stream.write_all(&bytes)
    }

    /// Serves one option; `true`: the transmission begins.
    fn option(&mut self) -> io::Result<bool> {
        let head = self.take(16)?;
        let (option, length) = (be32(&head[8..]), be32(&head[12..]));
        let data = self.take(length as usize)?;
        if option != 7 {
            return self.reply(option, 1, &[]).map(|()| false);
        }
        let name = String::from_utf8_lossy(&data[4..4 + be32(&data) as usize]).into_owned();
        if name != "export" {
            return self.reply(option, (1 << 31) + 6, b"only \"export\" is here").map(|()| false);
        }
        let lie = self.lie();
        let size = if lie == Lie::Small { 1 << 20 } else { self.size };
        let flags: u16 = match lie {
            Lie::ReadOnly => 0x103,
            Lie::OneConnection => 0x021,
            _ => 0x121,
        };
        let mut info = vec![0, 0];
        info.extend(size.to_be_bytes());
        info.extend(flags.to_be_bytes());
        let times = match lie {
            Lie::EndlessInfo => u32::MAX,
            Lie::NoSize => 0,
            _ => 1,
        };
        for _ in 0..times {
            self.reply(option, 3, &info)?;
        }
        let (smallest, largest): (u32, u32) = match lie {
            Lie::LargeBlocks => (65536, 1 << 25),
            Lie::SmallRequests => (512, 2048),
            Lie::OddBlocks => (513, 1 << 25),
            Lie::PageBlocks => (4096, 1 << 25),
            _ => (1, 1 << 25),
        };
        if lie == Lie::NoBlocks {
            return self.reply(option, 1, &[]).map(|()| true);
        }
        let sizes = [smallest, 4096, largest].map(u32::to_be_bytes).concat();
        self.reply(option, 3, &[&[0, 3], &sizes[..]].concat())?;
        self.reply(option, 1, &[]).map(|()| true)
    }

    /// Serves one request; `false`: the client goes.
    fn request(&mut self) -> io::Result<bool> {
        let head = self.take(28)?;
        let (kind, cookie) = (head[7], u64::from_be_bytes(head[8..16].try_into().expect("eight")));
        let (offset, length) = (u64::from_be_bytes(head[16..24].try_into().expect("eight")), be32(&head[24..]));
        let lie = match self.lie() {
            _ if offset == 0 => Lie::None,
            Lie::Amnesia | Lie::Grows if self.number == 0 => Lie::HalfAndGone,
            lie => lie,
        };
        self.reads.lock().unwrap().extend((kind == 0).then_some((offset, length)));
        match kind {
            0 if (offset | u64::from(length)) % PAGE as u64 != 0 && lie.refuses_parts() => self.error(cookie, 22)?,
            0 => {
                let bytes = self.load(offset, length, lie);
                self.answer_read(lie, cookie, offset, &bytes)?;
            }
            1 => {
                let bytes = self.take(length as usize)?;
                if lie != Lie::Forgets {
                    self.keep(offset, &bytes);
                }
                self.answer_write(lie, cookie)?;
            }
            2 => return Ok(false),
            _ => self.chunk(1, 0, cookie, &[])?,
        }
        Ok(true)
    }

    fn load(&self, offset: u64, length: u32, lie: Lie) -> Vec<u8> {
        let store = self.store.lock().unwrap();
        let skip = offset % PAGE as u64;
        let pages = (offset - skip..offset + u64::from(length)).step_by(PAGE);
        let bytes = pages.flat_map(|at| store.get(&at).map_or([0; PAGE], |page| **page));
        let mut bytes: Vec<u8> = bytes.skip(skip as usize).take(length as usize).collect();
        if lie == Lie::OtherData {
            bytes.iter_mut().step_by(PAGE).for_each(|byte| *byte ^= 1);
        }
        bytes
    }

    fn keep(&self, offset: u64, bytes: &[u8]) {
        let mut store = self.store.lock().unwrap();
        for (page, at) in bytes.chunks_exact(PAGE).zip((offset..).step_by(PAGE)) {
            store.insert(at, Box::new(page.try_into().expect("a page")));
        }
    }

    fn chunk(&mut self, flags: u16, kind: u16, cookie: u64, payload: &[u8]) -> io::Result<()> {
        self.stream.write_all(&Self::chunk_bytes(flags, kind, cookie, payload))
    }

    fn chunk_bytes(flags: u16, kind: u16, cookie: u64, payload: &[u8]) -> Vec<u8> {
        let mut bytes = 0x668e_33efu32.to_be_bytes().to_vec();
        bytes.extend(flags.to_be_bytes());
        bytes.extend(kind.to_be_bytes());
        bytes.extend(cookie.to_be_bytes());
        bytes.extend((payload.len() as u32).to_be_bytes());
        bytes.extend(payload);
        bytes
    }

    fn data(&mut self, cookie: u64, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.chunk(1, 1, cookie, &[&offset.to_be_bytes(), bytes].concat())
    }

    fn error(&mut self, cookie: u64, error: u32) -> io::Result<()> {
        self.chunk(1, (1 << 15) + 1, cookie, &[&error.to_be_bytes()[..], &[0, 3], b"why"].concat())
    }

    fn answer_read(&mut self, lie: Lie, cookie: u64, offset: u64, bytes: &[u8]) -> io::Result<()> {
        match lie {
            Lie::WrongMagic => self.stream.write_all(&[0x12; 20]),
            Lie::WrongCookie => self.data(cookie ^ (1 << 40), offset, bytes),
            Lie::Twice => {
                self.data(cookie, offset, bytes)?;
                self.data(cookie, offset, bytes)
            }
            Lie::TwiceAtOnce => {
                let reply = Self::chunk_bytes(1, 1, cookie, &[&offset.to_be_bytes(), bytes].concat());
                self.stream.write_all(&reply.repeat(2))
            }
            Lie::Never => Ok(()),
            Lie::HugeChunk => {
                let head = [&0x668e_33efu32.to_be_bytes()[..], &[0, 1, 0, 1], &cookie.to_be_bytes(), &[255; 4]];
                self.stream.write_all(&head.concat())
            }
            Lie::Outside => self.data(cookie, offset - 1, bytes),
            Lie::Short => self.data(cookie, offset, &bytes[1..]),
            Lie::HalfAndGone => {
                let half = &bytes[..bytes.len() / 2];
                let length = (bytes.len() as u32 + 8).to_be_bytes();
                let head = [&0x668e_33efu32.to_be_bytes()[..], &[0, 1, 0, 1], &cookie.to_be_bytes(), &length];
                self.stream.write_all(&[&head.concat()[..], &offset.to_be_bytes(), half].concat())?;
                Err(io::ErrorKind::Other.into())
            }
            Lie::SimpleToRead => {
                let head = [&0x6744_6698u32.to_be_bytes()[..], &[0; 4], &cookie.to_be_bytes(), bytes];
                self.stream.write_all(&head.concat())
            }
            Lie::UnknownChunk => self.chunk(1, 5, cookie, &[0; 12]),
            Lie::Errors => self.error(cookie, 5),
            Lie::ShutsDown => self.error(cookie, 108),
            _ => self.data(cookie, offset, bytes),
        }
    }

    fn answer_write(&mut self, lie: Lie, cookie: u64) -> io::Result<()> {
        match lie {
            Lie::DataToWrite => self.data(cookie, 0, &[1; 8]),
            Lie::Never => Ok(()),
            Lie::Errors => self.error(cookie, 28),
            _ => self.chunk(1, 0, cookie, &[]),
        }
    }
}

fn be32(bytes: &[u8]) -> u32 {
    u32::from_be_bytes(bytes[..4].try_into().expect("four bytes"))
}
