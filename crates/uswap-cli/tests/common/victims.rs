//! The C programs of tests/programs, each compiled once.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

/// For a shell: starts the program `$0` (`alloc_fast`) `$1` times at once with `$2` MiB each, and
/// ends with status 3 if one of them fails.
pub const ALL_AT_ONCE: &str = "for i in $(seq $1); do \"$0\" --memory $2 --threads 1 --how mmap --timeout 140 & \
                               all=\"$all $!\"; done; for one in $all; do wait $one || exit 3; done";

/// The folder of the sources.
fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/programs")
}

/// The compiled program of this name.
pub fn victim(name: &str) -> PathBuf {
    compile(&sources().join(name).with_extension("c"), name, &["-O1", "-g", "-pthread"])
}

/// Compiles a C program, unless its binary is newer than its source and all headers beside it.
pub fn compile(source: &Path, name: &str, flags: &[&str]) -> PathBuf {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = super::place("programs");
    fs::create_dir_all(&folder).expect("folder of programs");
    let program = folder.join(name);
    if modified(&program) > newest_input(source) {
        return program;
    }
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    let unfinished = folder.join(format!("{name}.{}", std::process::id()));
    let out = Command::new(&compiler).args(flags).arg(source).arg("-o").arg(&unfinished).output();
    let out = out.unwrap_or_else(|error| panic!("{compiler}: {error} (the test programs need a C compiler)"));
    assert!(out.status.success(), "{}: {}", source.display(), String::from_utf8_lossy(&out.stderr));
    fs::rename(&unfinished, &program).expect("program in place");
    program
}

/// A C program given as text.
pub fn compile_text(name: &str, text: &str) -> PathBuf {
    let source = super::place(&format!("{name}.c"));
    if fs::read_to_string(&source).unwrap_or_default() != text {
        fs::write(&source, text).expect("source");
    }
    compile(&source, name, &["-O1", "-g", "-pthread"])
}

/// The same with `-fsanitize=WHICH`; `None`: the compiler on this machine does not support it.
pub fn compile_sanitized(name: &str, text: &str, which: &str) -> Option<PathBuf> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let source = super::place(&format!("{name}-{which}.c"));
    fs::write(&source, text).expect("source");
    let program = super::place(&format!("{name}-{which}"));
    if program.is_file() {
        return Some(program);
    }
    let how = [format!("-fsanitize={which}"), "-O1".into(), "-g".into(), "-pthread".into()];
    let made = Command::new("cc").args(how).arg("-o").arg(&program).arg(&source).output().expect("cc");
    made.status.success().then_some(program)
}

fn modified(path: &Path) -> SystemTime {
    path.metadata().and_then(|found| found.modified()).unwrap_or(SystemTime::UNIX_EPOCH)
}

fn newest_input(source: &Path) -> SystemTime {
    let beside = fs::read_dir(source.parent().expect("folder")).expect("sources").flatten().map(|entry| entry.path());
    let headers = beside.filter(|path| path.extension().is_some_and(|ending| ending == "h"));
    headers.map(|path| modified(&path)).fold(modified(source), SystemTime::max)
}
