//! Tests that every compressor of the registry must pass. The toy (`run_length.rs`), which no other
//! code knows, is one of them.

use uswap_core::PageHasher;
use uswap_device::RamDevice;

use super::*;
use crate::{Concurrency, ObjectId, Scratch, Store, StoreConfig, Tier, WritebackScratch};

const TOY: &str = "run-length";

fn by(name: &str) -> Compression {
    name.parse().expect("a compressor")
}

fn noise(page: &mut PageBuf) {
    let mut state = 1u64;
    page.iter_mut().for_each(|b| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        *b = (state >> 56) as u8;
    });
}

/// A page of noise, then one repeated byte.
fn mixed(noisy: usize, rest: u8) -> PageBuf {
    let mut page = [0; PAGE_SIZE];
    noise(&mut page);
    page[noisy..].fill(rest);
    page
}

/// Every level after every other one, with the same context.
#[test]
fn round_trip_and_rejection() {
    let mut codec = Compressor::new();
    let mut page = [0; PAGE_SIZE];
    for by in Compression::all().chain(Compression::all()) {
        page.iter_mut().enumerate().for_each(|(i, b)| *b = (i / 7 % 50) as u8);
        let mut back = [1; PAGE_SIZE];
        let object = &codec.compress(&page, by).unwrap()[TAG..];
        assert_eq!(object[0], by.id, "{by}");
        assert!(expand(object, &mut back), "{by}");
        assert_eq!(back, page);
        noise(&mut page);
        assert_eq!(codec.compress(&page, by), Err(Reject::Poor), "{by}");
    }
    let mut back = [0; PAGE_SIZE];
    assert!(expand(&page, &mut back));
    assert_eq!(back, page);
}

#[test]
fn garbage_is_refused_not_trusted() {
    let mut back = [0; PAGE_SIZE];
    assert!(!expand(&[], &mut back));
    for seed in 0..200u8 {
        let mut bytes: Vec<u8> = (0..100).map(|i: u8| i.wrapping_mul(seed).rotate_left(3) ^ seed).collect();
        for id in 0..=255 {
            bytes[0] = id;
            assert!(!expand(&bytes, &mut back), "{id}");
        }
    }
}

/// An object that is cut, lengthened or has a bit flipped expands to no page, or to another page,
/// which the hash shows; no access is out of bounds.
#[test]
fn damaged_objects_are_no_panic() {
    let (mut codec, mut back) = (Compressor::new(), [0; PAGE_SIZE]);
    let page = mixed(1500, 9);
    for by in Compression::all().filter(|by| is_lowest_or_highest(*by)) {
        let bytes = codec.compress(&page, by).unwrap()[TAG..].to_vec();
        for length in 0..bytes.len() {
            assert!(!expand(&bytes[..length], &mut back), "{by} cut to {length}");
        }
        for bit in (0..8 * bytes.len()).step_by(3) {
            let mut bytes = bytes.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let _ = expand(&bytes, &mut back);
        }
    }
}

fn is_lowest_or_highest(by: Compression) -> bool {
    by.info().levels.is_none_or(|levels| by.level == levels.all.0 || by.level == levels.all.1)
}

#[test]
fn names_are_read_and_written() {
    for by in Compression::all() {
        assert_eq!(by.to_string().parse(), Ok(by));
        assert_eq!(Compression::from_bits(by.to_bits()), by);
    }
    for bad in ["", "lzo", "LZ4", "lz4:1", "zstd:", "zstd:0", "zstd:23", "zstd:-1", "zstd:3:4", "zstd:x", "zstd:300"] {
        assert!(bad.parse::<Compression>().is_err(), "{bad}");
    }
}

#[test]
fn what_users_read_of_lz4_and_zstd() {
    let error = |text: &str| text.parse::<Compression>().expect_err("no compressor");
    assert_eq!(error("lz4:1"), "lz4 has no levels");
    assert_eq!(error("zstd:0x1"), "\"0x1\" is no level of zstd: they go from 1 to 22");
    assert!(error("lzo").starts_with("there is no compressor \"lzo\"; there is: lz4, zstd[:LEVEL]"));
    assert_eq!(Compression::default().to_string(), "lz4");
    let levels = ["lz4", "zstd:1", "zstd:3", "zstd:9", "zstd:19"].map(by);
    assert!(levels.iter().all(|by| Compression::compared().any(|compared| compared == *by)));
    assert!(Compression::choices().starts_with("lz4, zstd[:LEVEL] with a level from 1 to 22, "));
    assert!(
        Compression::choices_in_short()
            .starts_with("lz4, zstd[:LEVEL] with a level from 1 to 22 (smaller and slower), ")
    );
    let manual = "lz4, the default, is fast; zstd[:LEVEL], with a level from 1 to 22 (3 where none is given), makes \
                  pages smaller and takes two to three times as long at low levels; ";
    assert!(Compression::manual().starts_with(manual));
}

#[test]
fn the_registry_is_sound() {
    let names: std::collections::BTreeSet<_> = Compression::each().map(Compression::name).collect();
    assert_eq!(names.len(), REGISTRY.len());
    for info in REGISTRY {
        assert!(!info.name.is_empty() && !info.name.contains([':', ' ', ',']), "{}", info.name);
        assert!(!info.help.is_empty() && !info.help.ends_with('.'), "{}", info.name);
        assert!(info.max_output >= PAGE_SIZE, "{}: noise has a length too", info.name);
        let Some(Levels { all: (lowest, highest), usual, compared }) = info.levels else { continue };
        let exists = |level: &u8| (lowest..=highest).contains(level);
        assert!(lowest > 0 && exists(&usual) && compared.iter().all(exists) && compared.contains(&usual));
    }
}

/// With its one line of the registry, all texts for users name the toy. It stands last.
#[test]
fn the_toy_is_a_compressor_like_all_others() {
    assert_eq!((by(TOY).to_string(), by(TOY).name()), (TOY.into(), TOY));
    let mut lists = [Compression::each().last(), Compression::all().last(), Compression::compared().last()].into_iter();
    assert!(lists.all(|last| last == Some(by(TOY))));
    let error = "lzo".parse::<Compression>().expect_err("no compressor");
    assert!(error.starts_with("there is no compressor \"lzo\"; there is: ") && error.ends_with(", run-length"));
    assert_eq!("run-length:1".parse::<Compression>(), Err("run-length has no levels".into()));
    assert!(Compression::choices().ends_with(", or run-length"));
    assert!(Compression::choices_in_short().ends_with(", or run-length"));
    assert!(Compression::manual().ends_with("; run-length is a toy."));
}

fn store(compression: Compression) -> Store {
    Store::new(StoreConfig {
        pool_limit_bytes: 512 << 10,
        pool_reserve_bytes: 64 << 20,
        hasher: PageHasher::new(5),
        devices: vec![(Box::new(RamDevice::new("ram", 2048)), 0)],
        concurrency: Concurrency::default(),
        tier: Tier { compression, ..Tier::default() },
    })
    .expect("address space")
}

/// For each compressor alone: pages are stored, written back, and come back right from the pool and
/// from the device.
#[test]
fn a_store_works_with_each_compressor() {
    for by in Compression::each() {
        let (store, mut scratch, mut writeback) = (store(by), Scratch::new(), WritebackScratch::new());
        let pages: Vec<_> = (0..600).map(|n| mixed(400 + n, n as u8)).collect();
        let mut ids: Vec<ObjectId> = Vec::new();
        for page in &pages {
            ids.push(store.put(page, store.hasher.hash(page), &mut scratch).expect("room on the device"));
            while store.needs_writeback() && store.writeback(&mut writeback).progressed() {}
        }
        for (&id, page) in ids.iter().zip(&pages) {
            let mut back = [0; PAGE_SIZE];
            store.load_blocking(id, &mut back, &mut scratch).expect("a stored page");
            assert!(back == *page, "{by}: a page came back different");
        }
        let stats = store.stats();
        assert_eq!((stats.compressor, stats.checksum_errors), (by.to_string(), 0));
        assert_eq!((stats.reject_compress_poor, stats.reject_compress_fail), (0, 0), "{by}");
        assert!(stats.written_back_pages > 100 && stats.zswpin > 100 && stats.pswpin > 100, "{by}: {}", stats.pswpin);
        ids.into_iter().for_each(|id| store.release(id));
    }
}
