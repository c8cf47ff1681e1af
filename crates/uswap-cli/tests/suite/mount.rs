//! `uswap mount` from the outside: the same results as in a plain folder, whatever others do to the
//! source, whatever fails below, within its memory.

use crate::common;

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use serde_json::Value;

use common::cgroup::Group;
use common::mounted::{Mounted, content};
use common::{Scratch, command, installed, not_here, skip};

const STEPS: &str = include_str!("../common/mount_steps.py");
const MIB: u64 = 1 << 20;

/// Random steps in a mounted folder and in a plain one have the same results, with a cache so small
/// that pages leave all the time, and with pool and swap.
#[test]
fn random_steps_have_the_results_of_a_plain_folder() {
    if !installed("python3") {
        return skip("needs python3");
    }
    for (seed, options) in [(1, &["--ram", "32M"][..]), (2, &["--ram", "32M", "--pool", "0", "--revalidate", "0"])] {
        let Some(mounted) = Mounted::new(options) else { return };
        random_steps(&mounted, seed, 0, 0.05);
        assert!(mounted.figure("hit_pages") > 0 && mounted.figure("written_pages") > 0);
    }
}

/// Random steps; `crowd`: before each one others are looked at, of so many; `behind`: the share of
/// steps that are done in the source.
fn random_steps(mounted: &Mounted, seed: u32, crowd: u32, behind: f64) {
    let folders = ["mount", "source", "plain"].map(|name| mounted.scratch.path(name));
    let mut python = command("timeout");
    python.args(["300", "python3", "-c", STEPS]).args(&folders).args([seed, 2500, crowd].map(|n| n.to_string()));
    python.arg(behind.to_string());
    let (ended, made) = (AtomicBool::new(false), AtomicBool::new(false));
    let output = std::thread::scope(|scope| {
        scope.spawn(|| make_and_remove_groups(mounted, &ended, &made));
        let output = python.output().expect("python3");
        ended.store(true, SeqCst);
        output
    });
    let (told, complaint) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && told == "same\n", "seed {seed}: {told}{complaint}");
    assert!(made.load(SeqCst), "no group was made");
}

/// Folders become groups with limits and cease to be some, whether they are there or not.
fn make_and_remove_groups(mounted: &Mounted, ended: &AtomicBool, made: &AtomicBool) {
    while !ended.load(SeqCst) {
        for order in [&["create", "--limit", "8M"][..], &["create"], &["remove"]] {
            for folder in ["folder", "other"] {
                let words = ["group", order[0], &mounted.name, folder];
                let done = mounted.uswap(&[&words[..], &order[1..]].concat()).status.success();
                made.fetch_or(done && order[0] == "create", SeqCst);
            }
            std::thread::sleep(Duration::from_millis(30));
        }
    }
}

/// Files that are much larger than the cache are read again and again by two readers: each byte is
/// right, what was used twice comes from pool and swap, and memory stays within the limit.
#[test]
fn files_larger_than_the_cache_are_right_and_memory_is_kept() {
    let scratch = Scratch::new();
    let swap = format!("{},size=1G", scratch.path("swap").display());
    let Some(mounted) = Mounted::new(&["--ram", "48M", "--pool", "20", "--swap", &swap]) else { return };
    let files: Vec<Vec<u8>> = (1..=2).map(|mark| content(9000, mark)).collect();
    files.iter().enumerate().for_each(|(number, bytes)| mounted.put(&format!("f{number}"), bytes));
    let read_all = || {
        std::thread::scope(|scope| {
            for (number, bytes) in files.iter().enumerate() {
                let mounted = &mounted;
                scope.spawn(move || assert!(mounted.get(&format!("f{number}")) == *bytes, "file {number}"));
            }
        });
    };
    (0..6).for_each(|_| read_all());
    // A thread that stores and has no time stores less, and more readings fill the pool.
    let is_on_device = || mounted.status()["figures"]["pswpout"].as_u64() > Some(0);
    (0..30).take_while(|_| !is_on_device()).for_each(|_| read_all());
    read_all();
    let status = mounted.status();
    assert!(mounted.figure("store_hit_pages") > 1000, "{status:#}");
    assert_eq!(mounted.figure("store_errors"), 0, "{status:#}");
    assert!(status["figures"]["pswpout"].as_u64() > Some(0), "{status:#}");
    assert!(status["figures"]["ram_peak_bytes"].as_u64() <= Some(50 * MIB), "{status:#}");
    let of_process = fs::read_to_string(format!("/proc/{}/status", mounted.process())).expect("a process");
    let anonymous = of_process.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("a size");
    let kib: u64 = anonymous.trim().trim_end_matches(" kB").parse().expect("a number");
    assert!(kib <= 52 << 10, "{kib} KiB of 48 MiB");
}

/// A stream that is larger than the cache takes nothing from a file that is used again and again.
#[test]
fn a_stream_does_not_flush_the_working_set() {
    let Some(mounted) = Mounted::new(&["--ram", "64M", "--pool", "0"]) else { return };
    let (set, stream) = (content(3000, 1), content(20_000, 2));
    mounted.put("set", &set);
    mounted.put("stream", &stream);
    (0..2).for_each(|_| assert!(mounted.get("set") == set));
    for _ in 0..3 {
        assert!(mounted.get("stream") == stream);
        let before = mounted.figure("source_pages");
        assert!(mounted.get("set") == set);
        let lost = mounted.figure("source_pages") - before;
        // About a hundredth is lost to what is read ahead by several threads.
        assert!(lost <= 90, "{lost} of 3000 pages were lost");
    }
}

/// What others do to the source is seen at the next open, and within the time of `--revalidate` by
/// who has the file open.
#[test]
fn changes_by_others_are_seen() {
    let Some(mounted) = Mounted::new(&["--ram", "64M", "--revalidate", "0.2"]) else { return };
    mounted.put("file", &content(100, 1));
    let open = File::open(mounted.path("file")).expect("a file");
    assert!(mounted.get("file") == content(100, 1));
    let mut buffer = vec![0; 4096];
    for mark in 2..8 {
        // Same size, and at once after the change before.
        fs::write(mounted.source("file"), content(100, mark)).expect("a change");
        assert!(mounted.get("file") == content(100, mark), "{mark}: at open");
        fs::write(mounted.source("file"), content(100, mark + 100)).expect("a change");
        let (begun, wanted) = (Instant::now(), content(100, mark + 100)[..4096].to_vec());
        while open.read_exact_at(&mut buffer, 0).is_err() || buffer != wanted {
            assert!(begun.elapsed() < Duration::from_secs(10), "{mark}: not seen by who has it open");
        }
    }
    // A shorter file ends where it ends, also for who knew more of it.
    fs::write(mounted.source("file"), b"short").expect("a change");
    std::thread::sleep(Duration::from_millis(400));
    assert_eq!(open.read_at(&mut buffer, 0).expect("a read"), 5);
    fs::remove_file(mounted.source("file")).expect("a removal");
    assert_eq!(fs::read(mounted.path("file")).expect_err("gone").kind(), std::io::ErrorKind::NotFound);
}

/// Pages on a swap file that is damaged, and errors of its device, cost time only.
#[test]
fn what_the_swap_loses_comes_from_the_source() {
    let scratch = Scratch::new();
    let place = scratch.path("swap");
    let Some(mounted) =
        Mounted::new(&["--ram", "32M", "--pool", "0", "--swap", &format!("{},size=512M", place.display())])
    else {
        return;
    };
    let bytes = content(12_000, 1);
    mounted.put("file", &bytes);
    mounted.read_until_stored("file", &bytes);
    let swap = File::options().write(true).open(&place).expect("the swap file");
    let length = swap.metadata().expect("its length").len();
    let noise = vec![0xa5; MIB as usize];
    (1..length / MIB).for_each(|mib| swap.write_all_at(&noise, mib * MIB).expect("damage"));
    for _ in 0..2 {
        assert!(mounted.get("file") == bytes, "after the damage");
    }
    assert!(mounted.figure("store_errors") > 0, "{:#}", mounted.status());
    let told = String::from_utf8_lossy(&mounted.uswap(&["status", &mounted.name]).stdout).into_owned();
    assert!(told.contains("warning: ") && told.contains("the cache reads from the source"), "{told}");
}

/// A device is emptied while files are read: its pages go to another one, or are dropped.
#[test]
fn a_swapoff_moves_pages_or_drops_them() {
    let scratch = Scratch::new();
    let places = ["one", "two"].map(|name| scratch.path(name).display().to_string());
    let swap = |place: &str| format!("{place},size=512M");
    let Some(mounted) = Mounted::new(&["--ram", "32M", "--pool", "0", "--swap", &swap(&places[0])]) else { return };
    let bytes = content(12_000, 1);
    mounted.put("file", &bytes);
    mounted.read_until_stored("file", &bytes);
    let refused = mounted.uswap(&["swapoff", &mounted.name, "/no/such"]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(125) && said.contains(&places[0]), "{said}");
    let ordered = |order: &str, device: &str| {
        let output = mounted.uswap(&[order, &mounted.name, device]);
        assert!(output.status.success(), "{order}: {}", String::from_utf8_lossy(&output.stderr));
    };
    ordered("swapon", &swap(&places[1]));
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| (0..3).all(|_| mounted.get("file") == bytes));
        ordered("swapoff", &places[0]);
        assert!(reader.join().expect("a reader"), "while it was emptied");
    });
    let devices = |status: &Value| -> Vec<String> {
        let devices = status["figures"]["devices"].as_array().expect("devices");
        devices.iter().map(|device| device["name"].as_str().expect("a name").to_owned()).collect()
    };
    let status = mounted.status();
    assert_eq!(devices(&status), [places[1].clone()], "{status:#}");
    assert!(status["mount"]["stored_pages"].as_u64() > Some(1000), "{status:#}");
    assert!(mounted.get("file") == bytes, "from the other one");
    // There is no other place: the pages are dropped, and come from the source.
    ordered("swapoff", &places[1]);
    let status = mounted.status();
    assert_eq!((devices(&status).len(), &status["figures"]["swapoff"]["running"]), (0, &Value::Bool(false)));
    assert_eq!(status["mount"]["stored_pages"], 0, "{status:#}");
    assert!(mounted.get("file") == bytes, "from the source");
    assert_eq!(mounted.figure("store_errors"), 0);
}

/// A mount whose process is killed leaves nobody hanging, can be ended, and can be made again.
#[test]
fn a_killed_mount_leaves_no_hung_process() {
    let Some(mounted) = Mounted::new(&["--ram", "64M"]) else { return };
    mounted.put("file", &content(100, 1));
    let mut reader = command("sh");
    let script = format!("while cat '{}' >/dev/null; do :; done", mounted.path("file").display());
    let mut reader = reader.args(["-c", &script]).stderr(Stdio::null()).spawn().expect("sh");
    std::thread::sleep(Duration::from_millis(200));
    uswap_sys::process::kill(mounted.process() as u32, 9).expect("a kill");
    let begun = Instant::now();
    while reader.try_wait().expect("a child").is_none() {
        assert!(begun.elapsed() < Duration::from_secs(10), "the reader hangs");
        std::thread::sleep(Duration::from_millis(10));
    }
    let error = fs::read(mounted.path("file")).expect_err("nobody serves");
    assert_eq!(error.raw_os_error(), Some(107), "ENOTCONN");
    assert!(mounted.umount().status.success());
    assert!(mounted.mount(&["--ram", "64M"]));
    assert!(mounted.get("file") == content(100, 1));
}

/// Orders and refusals.
/// The memory of a mount is a quarter of its cgroup's limit, also when that changes, until a size is
/// ordered.
#[test]
fn memory_follows_the_cgroup() {
    let Ok(group) = Group::new("mount", 512 * MIB) else { return not_here("no memory cgroup can be made") };
    let Some(mounted) = Mounted::within(group.wrapper().to_vec(), &[]) else { return };
    let limit = || mounted.status()["figures"]["ram_limit_bytes"].as_u64().expect("a limit") / MIB;
    let becomes = |wanted: u64| {
        let begun = Instant::now();
        while limit() != wanted {
            assert!(begun.elapsed() < Duration::from_secs(20), "{} MiB", limit());
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    assert_eq!(limit(), 128);
    group.limit(256 * MIB).expect("a limit");
    becomes(64);
    assert!(mounted.uswap(&["limit", &mounted.name, "48M"]).status.success());
    group.limit(512 * MIB).expect("a limit");
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(limit(), 48);
    assert!(mounted.uswap(&["limit", &mounted.name, "auto"]).status.success());
    becomes(128);
}

/// The next mount finds what was cached, also after a kill, and reads anew what was changed.
#[test]
fn a_cache_outlives_its_mount() {
    let scratch = Scratch::new();
    let swap = format!("{},size=256M", scratch.path("swap").display());
    let index = scratch.path("kept").display().to_string();
    let options = ["--ram", "64M", "--swap", &swap, "--keep", &index];
    let Some(mounted) = Mounted::new(&options) else { return };
    let [first, second, changed] = [(5000, 1), (2000, 2), (2000, 3)].map(|(pages, mark)| content(pages, mark));
    mounted.put("first", &first);
    mounted.put("second", &second);
    assert!(mounted.get("first") == first && mounted.get("second") == second);
    let ended = mounted.umount();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    mounted.wait_for_end();
    mounted.put("second", &changed);

    assert!(mounted.mount(&options));
    assert!(mounted.figure("found_pages") > 6000 && mounted.figure("stored_pages") > 4900, "{:#}", mounted.status());
    assert!(mounted.get("first") == first);
    let from_source = mounted.figure("source_pages");
    assert!(from_source < 1000, "{from_source} pages of the first file were read again");
    assert!(mounted.get("second") == changed);

    // The checksums tell what the killed process has changed on the device since.
    uswap_sys::process::kill(mounted.process() as u32, 9).expect("a kill");
    mounted.wait_for_end();
    assert!(
        mounted.uswap(&["umount", "--lazy", &mounted.scratch.path("mount").display().to_string()]).status.success()
    );
    assert!(mounted.mount(&options));
    assert!(mounted.get("first") == first && mounted.get("second") == changed);
}

/// Files of the crowd, in folders three deep.
const CROWD: usize = 1000;

fn crowd_file(number: usize) -> String {
    format!("crowd{}/{}/in/f{number}", number % 7, number % 100)
}

/// A mount that may have 200 open files: 100 descriptors for files that nobody has open.
fn mount_of_few_descriptors(options: &[&str]) -> Option<Mounted> {
    let wrapper = ["prlimit", "--nofile=200:200"].map(String::from).to_vec();
    Mounted::within(wrapper, &[&["--ram", "32M"], options].concat())
}

/// Most files that the kernel knows have no descriptor: they are there all the same, also when
/// folders above them were renamed, and when they have no name any more.
#[test]
fn there_may_be_more_files_than_the_limit_of_open_files() {
    let Some(mounted) = mount_of_few_descriptors(&[]) else { return };
    for number in 0..CROWD {
        let file = mounted.source(&crowd_file(number));
        fs::create_dir_all(file.parent().expect("a folder")).expect("folders");
        fs::write(file, number.to_string()).expect("a file");
    }
    let right = |number: usize, name: &str| assert_eq!(mounted.get(name), number.to_string().as_bytes(), "{name}");
    (0..CROWD).for_each(|number| right(number, &crowd_file(number)));
    let descriptors = fs::read_dir(format!("/proc/{}/fd", mounted.process())).expect("descriptors").count();
    assert!(descriptors < 170, "{descriptors} descriptors");
    // Held by their names only (O_PATH): the mount does not know of that.
    let held = |number| File::options().read(true).custom_flags(O_PATH).open(mounted.path(&crowd_file(number)));
    let held: Vec<File> = (0..CROWD).step_by(10).map(|number| held(number).expect("a file")).collect();
    (0..CROWD).for_each(|number| right(number, &crowd_file(number)));
    for number in (0..CROWD).step_by(20) {
        fs::remove_file(mounted.path(&crowd_file(number))).expect("a file");
    }
    for folder in 0..7 {
        let path = |name: &str| mounted.path(&format!("{name}{folder}"));
        fs::rename(path("crowd"), path("moved")).expect("a folder");
    }
    for number in (0..CROWD).filter(|number| number % 20 != 0) {
        right(number, &crowd_file(number).replace("crowd", "moved"));
    }
    for (file, number) in held.iter().zip((0..CROWD).step_by(10)) {
        let links = u64::from(number % 20 != 0);
        let metadata = file.metadata().unwrap_or_else(|error| panic!("{number}: {error}"));
        assert_eq!((metadata.nlink(), metadata.len()), (links, number.to_string().len() as u64), "{number}");
    }
}

/// Files without descriptors change as in a plain folder: before each step many others are used.
#[test]
fn random_steps_among_more_files_than_descriptors() {
    if !installed("python3") {
        return skip("needs python3");
    }
    let Some(mounted) = mount_of_few_descriptors(&[]) else { return };
    // Names are believed for a second: nothing is done behind its back.
    random_steps(&mounted, 3, 150, 0.0);
    let Some(mounted) = mount_of_few_descriptors(&["--revalidate", "0"]) else { return };
    random_steps(&mounted, 4, 150, 0.05);
}

#[test]
fn orders_and_refusals_of_a_mount() {
    let Some(mounted) = Mounted::new(&["--ram", "64M"]) else { return };
    let folder = mounted.scratch.path("mount").display().to_string();
    let refused = |arguments: &[&str], text: &str| {
        let output = mounted.uswap(arguments);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(125) && said.contains(text), "{arguments:?}: {said}");
    };
    let again = mounted.try_mount(&[]);
    assert_eq!(again.status.code(), Some(125), "the name is taken");
    refused(&["mount", "/no/such/folder", &folder], "/no/such/folder");
    refused(&["mount", "/", "/dev/null"], "is no folder");
    refused(&["mount", "--ram", "1M", "/", &folder], "too little");
    refused(&["mount", "--revalidate=-1", "/", &folder], "--revalidate");
    let kept = mounted.scratch.path("kept").display().to_string();
    refused(&["mount", "--keep", &kept, "/", &folder], "--keep needs --swap");
    refused(&["mount", "--keep", &kept, "--swap", "ram,size=64M", "/", &folder], "goes with the mount");
    fs::write(&kept, "a letter").expect("a file");
    refused(&["mount", "--keep", &kept, "/", &folder], "it holds something else");
    refused(&["umount", &mounted.scratch.path("plain").display().to_string()], "no mount of uswap");
    refused(&["limit", &mounted.name, "1M"], "too little");
    refused(&["detach", &mounted.name], "does not know this order");
    assert!(mounted.uswap(&["limit", &mounted.name, "40M"]).status.success());
    assert_eq!(mounted.status()["figures"]["ram_limit_bytes"], 40 * MIB);
    let swap = mounted.scratch.path("swap").display().to_string();
    assert!(mounted.uswap(&["swapon", &mounted.name, &format!("{swap},size=64M")]).status.success());
    let within = format!("{},size=64M", mounted.path("swap").display());
    refused(&["swapon", &mounted.name, &within], "lies in the mount itself");
    let told = mounted.uswap(&["status", &mounted.name]);
    let told = String::from_utf8_lossy(&told.stdout).into_owned();
    assert!(told.contains("found in memory") && told.contains(&swap), "{told}");
    // In use: not now, and with --lazy.
    let open = File::open(&folder).expect("a folder");
    refused(&["umount", &folder], "fuser -m");
    assert!(mounted.uswap(&["umount", "--lazy", &folder]).status.success());
    drop(open);
    mounted.wait_for_end();
    assert!(mounted.mount(&[]));
}

/// Numbers of the kernel.
const O_PATH: i32 = 0o10_000_000;
const O_TMPFILE: i32 = 0o20_200_000;
const EOPNOTSUPP: i32 = 95;

/// A file without a name (O_TMPFILE) is written, read, and gets a name.
#[test]
fn files_without_names_get_one() {
    let Some(mounted) = Mounted::new(&["--ram", "64M"]) else { return };
    let unnamed = File::options().read(true).write(true).custom_flags(O_TMPFILE).mode(0o640).open(mounted.path(""));
    let unnamed = match unnamed {
        Err(error) if error.raw_os_error() == Some(EOPNOTSUPP) => return not_here("no O_TMPFILE"),
        unnamed => unnamed.expect("a file"),
    };
    unnamed.write_all_at(&content(50, 1), 0).expect("a write");
    let mut bytes = vec![0; 50 * 4096];
    unnamed.read_exact_at(&mut bytes, 0).expect("a read");
    assert!(bytes == content(50, 1));
    assert_eq!(fs::read_dir(mounted.source("")).expect("a folder").count(), 0);
    let link = format!("os.link('/proc/self/fd/0', '{}', src_dir_fd=os.open('/', 0))", mounted.path("named").display());
    // With a folder to begin at, os.link follows the link in /proc.
    let link = format!("import os; {link}");
    let mut python = command("timeout");
    python.args(["20", "python3", "-c", &link]).stdin(unnamed.try_clone().expect("a descriptor"));
    assert!(python.status().expect("python3").success());
    drop(unnamed);
    assert!(mounted.get("named") == content(50, 1) && fs::read(mounted.source("named")).expect("a file") == bytes);
    assert_eq!(fs::metadata(mounted.source("named")).expect("a file").mode() & 0o777, 0o640);
}
