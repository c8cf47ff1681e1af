//! File devices on the temporary directory: both backends, both kinds of file, and every refusal.

use std::path::PathBuf;
use std::sync::atomic::AtomicU32;

use super::*;

const BYTES: u64 = 4 << 20;

/// A path in the temporary directory that is removed on drop.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("uswap-device-test-{}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed));
        Self(std::env::temp_dir().join(name))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn backends() -> Vec<IoBackend> {
    let mut all = vec![IoBackend::Auto, IoBackend::Positioned];
    if IoRing::new(1).is_ok() {
        all.push(IoBackend::Uring);
    }
    all
}

fn exercise(device: &FileDevice) {
    let mut out = AlignedBuf::zeroed(128 * PAGE_SIZE);
    out.chunks_mut(PAGE_SIZE).enumerate().for_each(|(i, page)| page.fill(i as u8 + 1));
    device.write(300, &out).unwrap();
    let mut back = AlignedBuf::zeroed(128 * PAGE_SIZE);
    device.read(300, &mut back).unwrap();
    assert!(*back == *out);

    back.fill(0);
    let mut requests: Vec<_> =
        back.chunks_mut(PAGE_SIZE).enumerate().map(|(i, b)| ReadRequest::new(300 + (i as u32 * 37) % 128, b)).collect();
    device.read_many(&mut requests);
    assert!(requests.iter().all(|r| r.result.is_ok()));
    for (i, page) in back.chunks(PAGE_SIZE).enumerate() {
        assert!(page.iter().all(|&b| b == (i * 37 % 128) as u8 + 1));
    }

    let _ = device.discard(300, 128);
    device.write(300, &out[..PAGE_SIZE]).unwrap();
    device.read(300, &mut back[..PAGE_SIZE]).unwrap();
    assert_eq!(back[0], 1);
    assert_eq!(device.write(device.slots(), &out[..PAGE_SIZE]), Err(Errno::INVALID));
}

#[test]
fn unnamed_file_with_every_backend() {
    for backend in backends() {
        let device = FileDevice::unnamed(&std::env::temp_dir(), BYTES, backend).unwrap();
        assert_eq!(device.slots() as u64, BYTES / PAGE_SIZE as u64);
        assert!(backend == IoBackend::Auto || device.backend() == backend);
        exercise(&device);
    }
}

#[test]
fn named_file_is_locked_wiped_and_found_again() {
    let path = Scratch::new();
    for backend in backends() {
        let device = FileDevice::open(&path.0, Some(BYTES), backend).unwrap();
        exercise(&device);
        let second = FileDevice::open(&path.0, Some(BYTES), backend);
        assert!(matches!(second.err(), Some(OpenError::InUse(_))));
    }
    let device = FileDevice::open(&path.0, None, IoBackend::Auto).unwrap();
    assert_eq!(device.slots() as u64, BYTES / PAGE_SIZE as u64);
    let mut page = AlignedBuf::zeroed(PAGE_SIZE);
    device.read(300, &mut page).unwrap();
    assert!(page.iter().all(|&b| b == 0), "the last user's pages are gone");
}

#[test]
fn several_threads_share_a_device() {
    let device = FileDevice::unnamed(&std::env::temp_dir(), BYTES, IoBackend::Auto).unwrap();
    std::thread::scope(|s| {
        for t in 0..4u32 {
            let device = &device;
            s.spawn(move || {
                let mut buf = AlignedBuf::zeroed(4 * PAGE_SIZE);
                for round in 0..20u32 {
                    let byte = (t * 20 + round) as u8;
                    buf.fill(byte);
                    device.write(t * 100, &buf).unwrap();
                    buf.fill(0);
                    let mut requests: Vec<_> =
                        buf.chunks_mut(PAGE_SIZE).zip(t * 100..).map(|(b, slot)| ReadRequest::new(slot, b)).collect();
                    device.read_many(&mut requests);
                    assert!(buf.iter().all(|&b| b == byte));
                }
            });
        }
    });
}

#[test]
fn refusals_name_their_reason() {
    let temp = std::env::temp_dir();
    let named = |path: &Path| FileDevice::open(path, Some(BYTES), IoBackend::Auto).err();
    assert!(matches!(named(&temp), Some(OpenError::IsDirectory(_))));
    assert!(matches!(named(Path::new("/dev/null")), Some(OpenError::NotUsable(_))));
    assert!(matches!(named(Path::new("/no/such/directory/file")), Some(OpenError::Io(..))));
    let shm = Path::new("/dev/shm");
    if uswap_sys::is_memory_file_system(File::open(shm).unwrap().as_fd()).unwrap() {
        let error = FileDevice::unnamed(shm, BYTES, IoBackend::Auto).err().unwrap();
        assert!(matches!(error, OpenError::InMemory(_)));
        assert!(error.to_string().contains("that is memory"));
        let path = shm.join("uswap-device-test-must-not-be-made");
        assert!(matches!(named(&path), Some(OpenError::InMemory(_))));
        assert!(!path.exists());
    }
    let file = Scratch::new();
    std::fs::write(&file.0, "a letter that must not be lost").unwrap();
    assert!(matches!(named(&file.0), Some(OpenError::HoldsData(_))));
    assert_eq!(std::fs::read(&file.0).unwrap(), b"a letter that must not be lost");
    assert!(matches!(FileDevice::unnamed(&file.0, BYTES, IoBackend::Auto).err(), Some(OpenError::NotDirectory(_))));
    let small = FileDevice::unnamed(&temp, 4096, IoBackend::Auto).err();
    assert!(matches!(small, Some(OpenError::TooSmall(_))));
}

/// Needs a block device whose content may be destroyed:
/// `USWAP_TEST_BLOCK=/dev/... cargo test -- --ignored`.
#[test]
#[ignore = "needs a block device"]
fn block_device() {
    let path = PathBuf::from(std::env::var_os("USWAP_TEST_BLOCK").expect("USWAP_TEST_BLOCK"));
    for backend in backends() {
        let device = FileDevice::open(&path, None, backend).unwrap();
        assert!(device.is_direct() && device.slots() > 512);
        exercise(&device);
        assert!(matches!(FileDevice::open(&path, None, backend).err(), Some(OpenError::InUse(_))));
    }
}
