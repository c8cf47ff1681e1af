//! The default swap file: sparse, and as large as half of what is free on its disk.

use crate::common;

use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;

use common::disk::Mounted;
use common::told::Told;
use common::{is_root, not_here, under};
use serde_json::Value;

const MIB: u64 = 1 << 20;

fn device(figures: &Value, field: &str) -> u64 {
    figures["devices"][0][field].as_u64().unwrap_or(0)
}

fn free(folder: &Path) -> u64 {
    uswap_sys::free_bytes(File::open(folder).expect("a folder").as_fd()).expect("its file system tells")
}

/// More than four times the budget, of bytes that do not compress, lies in it, and all of it comes
/// back.
#[test]
fn a_run_stores_more_than_four_times_its_budget() {
    need_userfaultfd!();
    let told = Told::start("growing", "24M", 1, "160", &[]);
    told.order(1, "noise");
    told.until("most of it in the file", || device(&told.figures(), "used_bytes") > 4 * 24 * MIB);
    assert!(device(&told.figures(), "size_bytes") > 4 * 24 * MIB);
    told.order(1, "walk");
    told.end().paged();
}

/// Half of a small disk, which is not written before it is needed; what is named has the size that
/// is said.
#[test]
fn it_may_take_half_of_what_is_free() {
    need_userfaultfd!();
    let Some(disk) = Some(()).filter(|()| is_root()).and_then(|()| Mounted::new(300 * MIB)) else {
        return not_here("a file system in a file cannot be mounted here");
    };
    let before = free(&disk.folder);
    let outcome = under("64M").env("TMPDIR", &disk.folder).waits().run(["true"]);
    outcome.expect(0);
    let size = outcome.stats.as_ref().map_or(0, |stats| device(stats, "size_bytes"));
    assert!((before / 2 - MIB..=before / 2).contains(&size), "{size} of {before}: {}", outcome.account());
    assert!(before - free(&disk.folder) < MIB, "it is sparse, and gone");
    let outcome = under("64M").swap_file("32M").waits().run(["true"]);
    let size = outcome.stats.as_ref().map_or(0, |stats| device(stats, "size_bytes"));
    assert!((31 * MIB..=32 * MIB).contains(&size), "{size}: {}", outcome.account());
}

/// A limit of the size of files is obeyed, and not met by a signal.
#[test]
fn a_limit_of_file_sizes_holds_for_it() {
    need_userfaultfd!();
    let outcome = under("64M").wrapper(["sh", "-c", "ulimit -f 65536; exec \"$@\"", "sh"]).waits().run(["true"]);
    outcome.expect(0);
    let size = outcome.stats.as_ref().map_or(0, |stats| device(stats, "size_bytes"));
    assert!((MIB..=64 * MIB).contains(&size), "{size}: {}", outcome.account());
}
