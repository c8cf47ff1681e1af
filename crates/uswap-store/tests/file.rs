//! A store over a real file: pages through writeback and back, and a disk that is full before the
//! file is.

mod common;

use std::path::{Path, PathBuf};

use common::{check, hard, put, soft, store};
use uswap_core::PAGE_SIZE;
use uswap_device::{FileDevice, IoBackend};
use uswap_store::{ObjectId, Scratch, Store, WritebackScratch};

const BACKENDS: [IoBackend; 2] = [IoBackend::Auto, IoBackend::Positioned];

fn over_file(directory: &Path, bytes: u64, backend: IoBackend) -> Store {
    store(8, vec![Box::new(FileDevice::unnamed(directory, bytes, backend).expect("a swap file"))])
}

#[test]
fn a_store_can_be_shared_by_threads() {
    fn shared<T: Send + Sync>() {}
    shared::<Store>();
}

#[test]
fn pages_go_to_the_file_and_come_back() {
    for backend in BACKENDS {
        let store = over_file(&std::env::temp_dir(), 64 << 20, backend);
        let (mut scratch, mut wb) = (Scratch::new(), WritebackScratch::new());
        let pages: Vec<_> = (0..2000).map(|i| if i % 5 == 0 { hard(i) } else { soft(i) }).collect();
        let mut ids = Vec::new();
        for page in &pages {
            ids.push(put(&store, page, &mut scratch).unwrap());
            while store.needs_writeback() && store.writeback(&mut wb).progressed() {}
        }
        assert!(store.stats().written_back_pages > 500);
        let mut outs: Vec<_> = ids.iter().map(|_| Box::new([0; PAGE_SIZE])).collect();
        let mut results = Vec::new();
        store.load_many_blocking(&ids, &mut outs, &mut results, &mut scratch);
        assert!(results.iter().all(Result::is_ok));
        assert!(outs.iter().zip(&pages).all(|(out, page)| **out == *page));
        ids.into_iter().for_each(|id| store.release(id));
        while store.trim() > 0 {}
        assert_eq!(store.stats().devices[0].slots_used, 0);
    }
}

/// Needs a directory on a disk of less than 60 MiB:
/// `USWAP_TEST_SMALL_DIR=... cargo test -- --ignored`.
#[test]
#[ignore = "needs a small file system"]
fn a_full_disk_is_no_room() {
    let directory = PathBuf::from(std::env::var_os("USWAP_TEST_SMALL_DIR").expect("USWAP_TEST_SMALL_DIR"));
    for backend in BACKENDS {
        let (store, mut scratch) = (over_file(&directory, 64 << 20, backend), Scratch::new());
        let mut pages: Vec<(ObjectId, u64)> = Vec::new();
        while let Ok(id) = put(&store, &hard(pages.len() as u64), &mut scratch) {
            pages.push((id, pages.len() as u64));
        }
        let status = store.stats().devices[0].clone();
        assert!(status.out_of_room && !status.latched_off && status.write_errors == 0, "{status:?}");
        for (id, _) in pages.drain(..100) {
            store.release(id);
        }
        for seed in 10_000..10_100 {
            pages.push((put(&store, &hard(seed), &mut scratch).expect("freed slots own their room"), seed));
        }
        pages.iter().for_each(|&(id, seed)| check(&store, id, &hard(seed), &mut scratch));
    }
}
