//! `uswap group` of a mount: folders have limits, and a scan of one of them leaves others alone.

use crate::common;

use std::fs;
use std::time::{Duration, Instant};

use common::mounted::{Mounted, content};
use serde_json::Value;

const MIB: u64 = 1 << 20;

impl Mounted {
    fn group(&self, name: &str) -> Value {
        let groups = self.status()["figures"]["groups"].clone();
        let group = groups.as_array().and_then(|groups| groups.iter().find(|group| group["name"] == name));
        group.unwrap_or_else(|| panic!("{name}: {groups:#}")).clone()
    }

    fn used(&self, group: &str) -> u64 {
        self.group(group)["ram_bytes"].as_u64().expect("a size")
    }

    fn order(&self, words: &[&str]) -> String {
        let words = [&["group", words[0], &self.name], &words[1..]].concat();
        let output = self.uswap(&words);
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn refused(&self, words: &[&str], text: &str) {
        let output = self.uswap(&[&["group", words[0], &self.name], &words[1..]].concat());
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(125) && said.contains(text), "{words:?}: {said}");
    }

    /// How many pages came from the source while the file was read.
    fn missed(&self, name: &str, bytes: &[u8]) -> u64 {
        let before = self.figure("source_pages");
        assert!(self.get(name) == bytes, "{name}");
        self.figure("source_pages") - before
    }

    fn until(&self, what: &str, holds: impl Fn() -> bool) {
        let begun = Instant::now();
        while !holds() {
            assert!(begun.elapsed() < Duration::from_secs(30), "{what}: {:#}", self.status());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn folders_are_groups_with_limits() {
    let Some(mounted) = Mounted::new(&["--ram", "96M", "--pool", "0"]) else { return };
    ["set", "scan", "scan/old"].iter().for_each(|name| fs::create_dir(mounted.source(name)).expect("a folder"));
    let files = [("set/a", content(5000, 1)), ("scan/b", content(9000, 2)), ("scan/old/c", content(4000, 3))];
    files.iter().for_each(|(name, bytes)| mounted.put(name, bytes));
    // What is cached already is moved into the groups.
    files[1..].iter().for_each(|(name, bytes)| assert!(mounted.get(name) == *bytes));
    assert!(mounted.order(&["create", "scan", "--limit", "24M"]).contains("24.0 MiB"));
    assert!((20 * MIB..=24 * MIB).contains(&mounted.used("scan")), "{:#}", mounted.group("scan"));
    assert!(mounted.order(&["create", "scan/old", "--limit", "50%"]).contains("12.0 MiB"));
    mounted.order(&["create", "set"]);
    for _ in 0..3 {
        files.iter().for_each(|(name, bytes)| assert!(mounted.get(name) == *bytes, "{name}"));
        assert!(mounted.used("scan") <= 24 * MIB && mounted.used("scan/old") <= 12 * MIB);
    }
    assert!((8 * MIB..=12 * MIB).contains(&mounted.used("scan/old")), "{:#}", mounted.group("scan/old"));
    assert!(mounted.used("set") >= 19 * MIB, "{:#}", mounted.group("set"));
    assert_eq!(mounted.missed("set/a", &files[0].1), 0, "the scan has taken from another group");

    let list = mounted.order(&["list"]);
    assert!(list.contains("FILES") && list.contains("scan/old"), "{list}");
    assert_eq!((&mounted.group("scan")["files"], &mounted.group("/")["files"]), (&2.into(), &3.into()));
    mounted.order(&["limit", "scan", "8M"]);
    assert!(mounted.used("scan") <= 8 * MIB);
    let removed = mounted.order(&["remove", "scan"]);
    assert!(removed.contains("1 file(s) went to the group above it"), "{removed}");
    mounted.order(&["remove", "scan/old"]);
    for _ in 0..4 {
        files[2..].iter().for_each(|(name, bytes)| assert!(mounted.get(name) == *bytes, "{name}"));
    }
    assert_eq!(mounted.missed("scan/old/c", &files[2].1), 0, "it is held to no limit any more");
}

/// A stream that would flush what was read once does not, if it lies in another group.
#[test]
fn a_scan_in_one_folder_leaves_the_others_alone() {
    let Some(mounted) = Mounted::new(&["--ram", "64M", "--pool", "0"]) else { return };
    ["once", "logs"].iter().for_each(|name| fs::create_dir(mounted.source(name)).expect("a folder"));
    let (once, log) = (content(6000, 1), content(30_000, 2));
    mounted.put("once/a", &once);
    mounted.put("logs/b", &log);
    mounted.order(&["create", "logs"]);
    assert!(mounted.get("once/a") == once);
    assert!(mounted.get("logs/b") == log);
    let lost = mounted.missed("once/a", &once);
    assert!(lost <= 200, "{lost} of 6000 pages");
}

#[test]
fn a_file_that_moves_changes_its_group() {
    let Some(mounted) = Mounted::new(&["--ram", "64M", "--pool", "0"]) else { return };
    ["a", "b", "b/deep"].iter().for_each(|name| fs::create_dir(mounted.source(name)).expect("a folder"));
    let bytes = content(2000, 1);
    ["a/one", "b/deep/two"].iter().for_each(|name| mounted.put(name, &bytes));
    ["a", "b"].iter().for_each(|name| _ = mounted.order(&["create", name]));
    ["a/one", "b/deep/two"].iter().for_each(|name| assert!(mounted.get(name) == bytes));
    let pages = |group: &str| mounted.used(group) / 4096;
    assert_eq!((pages("a"), pages("b")), (2000, 2000));
    fs::rename(mounted.path("a/one"), mounted.path("b/one")).expect("a rename");
    // While another change could hide behind the time of this one nothing is kept.
    mounted.until("it is in b", || mounted.get("b/one") == bytes && (pages("a"), pages("b")) == (0, 4000));
    // The kernel does not look up what lies in a folder that moves.
    fs::rename(mounted.path("b/deep"), mounted.path("a/deep")).expect("a rename");
    mounted.until("the folder's file is in the other group", || (pages("a"), pages("b")) == (2000, 2000));
    // A group is a path: what has it is in the group.
    fs::rename(mounted.path("a"), mounted.path("c")).expect("a rename");
    mounted.until("nothing is in a", || pages("a") == 0);
    fs::create_dir(mounted.path("a")).expect("a folder");
    fs::rename(mounted.path("c/deep/two"), mounted.path("a/two")).expect("a rename");
    mounted.until("it is in a", || mounted.get("a/two") == bytes && pages("a") == 2000);

    mounted.refused(&["create", "a"], "there is a group \"a\" already");
    mounted.refused(&["create", "d"], "a group of a mount is a folder in it");
    mounted.refused(&["create", "a/two"], "Not a directory");
    mounted.refused(&["create", "a/../b"], "without . and ..");
    mounted.refused(&["create", "/"], "is the mount itself");
    mounted.refused(&["create", "c", "--limit", "1M"], "the least is 8.0 MiB");
    mounted.refused(&["create", "c", "--limit", "some"], "is not a limit");
    mounted.refused(&["limit", "d", "16M"], "there is no group \"d\"");
    mounted.refused(&["limit", "/", "16M"], "uswap limit changes its memory");
    mounted.refused(&["remove", "d"], "there is no group \"d\"");
    mounted.refused(&["move", "a", "b"], "a file is in the group of the folder that it lies in");
}
