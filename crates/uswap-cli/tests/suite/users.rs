//! Programs of several users in one run: each loads the agent, and hears nothing of it; what is
//! left for that in the file system goes with the run, whoever of it is killed.

use crate::common;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use common::{Launch, Outcome, Running, USWAP, is_root, plain, procs, skip, under};

/// Where the agent's image may lie, and what it is called there.
const FOLDERS: [&str; 4] = ["/run", "/var/tmp", "/tmp", "/dev/shm"];
const PREFIX: &str = "uswap-agent-";
/// Ends by executing its arguments as somebody with no rights.
const NOBODY: [&str; 4] = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
/// A larger program and a small one, as shells start them.
const SCRIPT: &str = "ls / >/dev/null; python3 -c \"$0\"";
/// Fills 96 MiB and checks them, and tells what it has loaded.
const FILLS: &str = "import os, re
print(os.getuid(), *set(re.findall(r'\\S*uswap-agent\\S*', open('/proc/self/maps').read())), flush=True)
memory = [bytearray(os.urandom(64)) * 64 for i in range(24576)]
sums = [sum(page) for page in memory]
assert sums == [sum(page) for page in memory]
print('right')";

/// Returns from the test where nobody can become another user.
macro_rules! need_root {
    () => {
        need_userfaultfd!();
        if !is_root() || !common::installed("setpriv") {
            return skip("needs root and setpriv to become another user");
        }
    };
}

/// As `nobody`, from a folder that everybody may enter.
fn as_nobody(launch: Launch, script: &str) -> Outcome {
    let words = NOBODY.into_iter().chain(["sh", "-c", script, FILLS]);
    launch.flag("-q").folder(Path::new("/")).deadline(90).run(words)
}

/// Files of the image that the process has mapped.
fn images_of(pid: u32) -> Vec<PathBuf> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let paths = maps.lines().filter_map(|line| Some(PathBuf::from(&line[line.find('/')?..])));
    let mut found: Vec<PathBuf> =
        paths.filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(PREFIX))).collect();
    found.dedup();
    found
}

/// A run that sleeps, and the file of its image.
fn sleeping() -> (Running, PathBuf) {
    let run = under("64M").waits().start(["sh", "-c", "echo ready; exec sleep 30"]);
    run.says("ready");
    let images = run.until("an agent", || Some(images_of(run.command())).filter(|images| !images.is_empty()));
    assert_eq!(images.len(), 1, "{images:?}");
    (run, images[0].clone())
}

/// No *cannot be preloaded* for any program, and the large one is managed as others are, without
/// being stopped for it.
#[test]
fn programs_of_another_user_load_the_agent_without_a_word() {
    need_root!();
    let outcome = as_nobody(under("48M"), SCRIPT);
    assert_eq!(outcome.expect(0).stderr, "", "{}", outcome.account());
    assert!(outcome.stdout.starts_with("65534 /") && outcome.stdout.ends_with("right\n"), "{}", outcome.account());
    assert_eq!((outcome.paged().stat("attached"), outcome.stat("checksum_errors")), (0, 0), "{}", outcome.account());
}

/// Where there is no place for such a file it is as it was: a complaint for each program, and the
/// agent is brought.
#[test]
fn without_a_place_for_the_file_the_agent_is_brought() {
    need_root!();
    let outcome = as_nobody(under("48M").faults("no-image-file"), SCRIPT);
    assert!(outcome.expect(0).stdout.ends_with("right\n"), "{}", outcome.account());
    let complaints = outcome.stderr.lines().filter(|line| line.starts_with("ERROR: ld.so: object '/proc/")).count();
    assert_eq!(complaints, outcome.stderr.lines().count(), "{}", outcome.account());
    assert!(complaints > 0 && outcome.paged().stat("attached") == 1, "{}", outcome.account());
}

#[test]
fn the_file_is_readable_by_all_and_writable_by_nobody() {
    need_root!();
    let (run, image) = sleeping();
    let found = fs::metadata(&image).expect("a file");
    assert_eq!(std::os::unix::fs::MetadataExt::mode(&found) & 0o7777, 0o444, "{}", image.display());
    for deed in ["echo x >>\"$0\"", "rm -f \"$0\"", "mv \"$0\" \"$0.x\"", "chmod u+w \"$0\""] {
        let words = NOBODY.into_iter().chain(["sh", "-c", deed, image.to_str().expect("a path")]);
        assert_ne!(plain().folder(Path::new("/")).run(words).code(), 0, "{deed}");
        assert!(image.exists(), "{deed}");
    }
    run.signal(15);
    run.wait().expect(143);
    assert!(!image.exists(), "after a good end");
}

#[test]
fn the_file_goes_with_the_run_whoever_is_killed() {
    need_root!();
    let (run, image) = sleeping();
    procs::kill(run.engine(), 9);
    run.wait().expect(70);
    assert!(!image.exists(), "after the engine was killed");

    let (run, image) = sleeping();
    run.signal(9);
    let outcome = run.wait();
    assert_eq!((outcome.code(), outcome.left.len()), (137, 0), "{}", outcome.account());
    assert!(!image.exists(), "after the keeper was killed");

    let refused = plain().run([USWAP, "run", "--ram", "64M", "--swap", "/no/such/folder/swap", "--", "true"]);
    refused.expect(125);
}

/// If both are killed at once nobody is there to remove it: the next run does.
#[test]
fn what_two_killed_processes_left_the_next_run_removes() {
    need_root!();
    let (run, image) = sleeping();
    let engine = run.engine();
    procs::kill(engine, 19);
    procs::kill(run.pid(), 9);
    procs::kill(engine, 9);
    assert_eq!(run.wait().code(), 137);
    assert!(image.exists(), "somebody was there to remove it");
    let file = fs::File::options().read(true).write(true).open(&image).expect("the file");
    file.set_modified(std::time::SystemTime::now() - Duration::from_secs(60)).expect("an age");
    drop(file);
    under("64M").run(["true"]).expect(0);
    assert!(!image.exists(), "it is still there");
    assert!(FOLDERS.iter().any(|folder| image.starts_with(folder)), "{}", image.display());
}
