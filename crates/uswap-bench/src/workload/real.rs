//! Programs in common use, each as a small job whose answer shows whether a page was lost. A
//! program that is not installed is reported as missing, not left out.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::workload::{Prepared, WorkFolder};

/// A program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RealProgram {
    /// GNU sort of lines of text.
    Sort,
    /// Python with a large dictionary.
    PythonDict,
    /// Redis with a zipf load.
    Redis,
    /// SQLite with a database in memory.
    Sqlite,
    /// Node.js with a large heap.
    Node,
    /// Java with a large heap.
    Java,
    /// Python with numpy.
    PythonNumpy,
    /// The Go toolchain, which is statically linked: uswap attaches to its processes.
    GoBuild,
}

/// All programs.
pub const PROGRAMS: [RealProgram; 8] = [
    RealProgram::Sort,
    RealProgram::PythonDict,
    RealProgram::Redis,
    RealProgram::Sqlite,
    RealProgram::Node,
    RealProgram::Java,
    RealProgram::PythonNumpy,
    RealProgram::GoBuild,
];

/// Debian packages that the real workloads need.
const PACKAGES: [&str; 14] = [
    "gcc",
    "make",
    "python3",
    "redis-server",
    "sqlite3",
    "nodejs",
    "default-jdk-headless",
    "linux-source-6.1",
    "flex",
    "bison",
    "bc",
    "libelf-dev",
    "xz-utils",
    "util-linux",
];

/// The path of a program, if it is installed.
pub fn installed(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|program| program.is_file())
}

/// An error that names the first of these programs that is missing.
pub fn need(names: &[&str]) -> Result<(), String> {
    match names.iter().find(|name| installed(name).is_none()) {
        Some(name) => Err(format!("not installed: {name}")),
        None => Ok(()),
    }
}

/// Installs what the real workloads need, with apt and pip.
///
/// # Errors
/// A sentence with the step that failed; packages that were installed stay.
pub fn install() -> Result<(), String> {
    need(&["apt-get"])?;
    let run = |program: &str, arguments: &[&str]| {
        let status = Command::new(program).args(arguments).env("DEBIAN_FRONTEND", "noninteractive").status();
        status.is_ok_and(|status| status.success())
    };
    if !run("apt-get", &["update", "-qq"]) {
        return Err("apt-get update failed".into());
    }
    let missing: Vec<&str> = PACKAGES
        .into_iter()
        .filter(|package| !run("apt-get", &["install", "-y", "-qq", "--no-install-recommends", package]))
        .collect();
    if !has_numpy() && !run("python3", &["-m", "pip", "install", "--quiet", "numpy"]) {
        run("apt-get", &["install", "-y", "-qq", "--no-install-recommends", "python3-numpy"]);
    }
    if missing.is_empty() { Ok(()) } else { Err(format!("could not be installed: {}", missing.join(", "))) }
}

fn has_numpy() -> bool {
    Command::new("python3").args(["-c", "import numpy"]).output().is_ok_and(|output| output.status.success())
}

fn script(place: &WorkFolder, name: &str, text: &str) -> Result<String, String> {
    let path = place.folder.join(name);
    fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(path.display().to_string())
}

impl RealProgram {
    /// The name of the workload.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sort => "sort",
            Self::PythonDict => "python-dict",
            Self::Redis => "redis",
            Self::Sqlite => "sqlite",
            Self::Node => "node",
            Self::Java => "java",
            Self::PythonNumpy => "python-numpy",
            Self::GoBuild => "go-build",
        }
    }

    /// A description in one line.
    pub fn about(self) -> &'static str {
        match self {
            Self::Sort => "GNU sort of 32 sorted runs of lines, in memory",
            Self::PythonDict => "Python: a dictionary, built, partly looked up at random, read through",
            Self::Redis => "redis-server: GET and SET by zipf 1.2, values checked",
            Self::Sqlite => "sqlite3: a table in memory, filled, indexed, updated, partly joined",
            Self::Node => "Node.js: a map of objects, built, partly looked up at random, added up",
            Self::Java => "Java: a map of arrays, built, partly looked up at random, added up",
            Self::PythonNumpy => "Python and numpy: sorts and permutes arrays",
            Self::GoBuild => "go build of gopls with the standard library; its answer is the hash of the binary",
        }
    }

    /// Prepares the program.
    ///
    /// # Errors
    /// A sentence that says what is missing on this machine.
    pub fn prepare(self, place: &WorkFolder) -> Result<Prepared, String> {
        let mib = place.mib.to_string();
        match self {
            Self::Sort => sort(place),
            Self::PythonDict => {
                need(&["python3"])?;
                let program = script(place, "dict.py", include_str!("../../scripts/dict.py"))?;
                Ok(Prepared::command(["python3", &program, &mib]))
            }
            Self::PythonNumpy => {
                need(&["python3"])?;
                if !has_numpy() {
                    return Err("not installed: numpy".into());
                }
                let program = script(place, "arrays.py", include_str!("../../scripts/arrays.py"))?;
                Ok(Prepared::command(["python3", &program, &mib]))
            }
            Self::Redis => redis(place),
            Self::Sqlite => {
                need(&["sqlite3"])?;
                let rows = (place.mib * 6500).to_string();
                let text = include_str!("../../scripts/table.sql").replace("ROWS", &rows);
                let program = script(place, "table.sql", &text)?;
                Ok(Prepared::command(["sqlite3", ":memory:", &format!(".read {program}")]))
            }
            Self::Node => {
                need(&["node"])?;
                let program = script(place, "objects.js", include_str!("../../scripts/objects.js"))?;
                let heap = format!("--max-old-space-size={}", place.mib * 2);
                Ok(Prepared::command(["node", &heap, &program, &mib]))
            }
            Self::Java => java(place),
            Self::GoBuild => go_build(place),
        }
    }
}

/// Writes lines of text in 32 sorted runs, like the logs of 32 servers one after the other: with
/// lines in random order every comparison would fault, under any system.
fn write_lines(path: &Path, bytes: u64) -> std::io::Result<()> {
    const RUNS: u64 = 32;
    const LINE: u64 = 80;
    let mut file = BufWriter::new(File::create(path)?);
    let lines = bytes / LINE / RUNS;
    for run in 0..RUNS {
        for line in 0..lines {
            let (key, number) = (line * RUNS + run * 11 % RUNS, run * lines + line);
            writeln!(file, "{key:016x} a line of text that belongs to number {number:010} of a long file, its end")?;
        }
    }
    file.flush()
}

fn sort(place: &WorkFolder) -> Result<Prepared, String> {
    need(&["sort", "cksum"])?;
    let lines = place.folder.join("lines");
    if !lines.exists() {
        write_lines(&lines, (place.mib as u64) << 19).map_err(|error| format!("{}: {error}", lines.display()))?;
    }
    let buffer = place.mib * 2;
    // The temporary folder does not exist: a sort that does not fit in its buffer fails.
    let job = format!(
        "LC_ALL=C sort -S {buffer}M --parallel=2 -T /nonexistent {} | cksum | sed 's/^/answer /'",
        lines.display()
    );
    Ok(Prepared::command(["sh", "-c", &job]))
}

fn redis(place: &WorkFolder) -> Result<Prepared, String> {
    need(&["redis-server"])?;
    let program = script(place, "redis.sh", include_str!("../../scripts/redis.sh"))?;
    let (keys, operations) = ((place.mib * 700).to_string(), (place.mib * 800).to_string());
    let client = place.workloads.display().to_string();
    let (seconds, command) = (format!("{}", place.seconds * 3.0), ["sh", &program, &client, "redis", "--keys", &keys]);
    let load = ["--operations", &operations, "--seconds", &seconds];
    Ok(Prepared::command(command.into_iter().chain(load)))
}

fn java(place: &WorkFolder) -> Result<Prepared, String> {
    need(&["java", "javac"])?;
    let source = script(place, "Objects.java", include_str!("../../scripts/Objects.java"))?;
    let folder = place.folder.display().to_string();
    let compiled = Command::new("javac").args(["-d", &folder, &source]).output();
    let compiled = compiled.map_err(|error| format!("javac: {error}"))?;
    if !compiled.status.success() {
        return Err(format!(
            "javac: {}",
            crate::measure::launch::last_line(&String::from_utf8_lossy(&compiled.stderr))
        ));
    }
    let (least, most) = (format!("-Xms{}M", place.mib), format!("-Xmx{}M", place.mib));
    let mib = (place.mib * 5 / 8).to_string();
    Ok(Prepared::command(["java", &least, &most, "-XX:+UseSerialGC", "-cp", &folder, "Objects", &mib]))
}

/// The Go module that is built, by its name at the module proxy.
const GO_MODULE: &str = "golang.org/x/tools/gopls@v0.20.0";

fn go_build(place: &WorkFolder) -> Result<Prepared, String> {
    need(&["go", "sha256sum"])?;
    let fetch = script(place, "go_fetch.sh", include_str!("../../scripts/go_fetch.sh"))?;
    let build = script(place, "go_build.sh", include_str!("../../scripts/go_build.sh"))?;
    let tree = place.folder.join("go-tree").display().to_string();
    let fetched =
        Command::new("sh").args([&fetch, GO_MODULE, &tree]).output().map_err(|error| format!("sh: {error}"))?;
    if !fetched.status.success() {
        let why = crate::measure::launch::last_line(&String::from_utf8_lossy(&fetched.stderr));
        return Err(format!("{GO_MODULE} cannot be fetched: {why}"));
    }
    Ok(Prepared::command(["sh", &build, &tree]))
}
