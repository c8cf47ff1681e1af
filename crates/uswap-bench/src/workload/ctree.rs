//! The C build: part of a Linux kernel (tinyconfig) where Debian's package with its source is
//! installed, and otherwise a generated source tree. Every run builds it from scratch.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::workload::real::need;
use crate::workload::{Prepared, WorkFolder};

/// Number of files of the generated tree.
const FILES: u64 = 48;
/// Number of functions in each file.
const FUNCTIONS: u64 = 160;

/// The build with this many jobs.
///
/// # Errors
/// A sentence that says what is missing on this machine.
pub fn prepare(jobs: usize, place: &WorkFolder) -> Result<Prepared, String> {
    need(&["cc", "make"])?;
    let jobs = jobs.to_string();
    match kernel_tree(place)? {
        Some((sources, objects)) => {
            let script = write(&place.folder.join("kernel.sh"), include_str!("../../scripts/kernel.sh"))?;
            Ok(Prepared::command(["sh", &script, &jobs, &objects, &sources]))
        }
        None => {
            let script = write(&place.folder.join("tree.sh"), include_str!("../../scripts/tree.sh"))?;
            let (folder, answer) = generated_tree(place)?;
            Ok(Prepared { answer: Some(answer), ..Prepared::command(["sh", &script, &jobs, &folder]) })
        }
    }
}

/// Description of what is built, for the report.
pub fn what() -> &'static str {
    if kernel_archive().is_some() { "mm/ of Linux 6.1 tinyconfig" } else { "a generated tree of C files" }
}

fn write(path: &Path, text: &str) -> Result<String, String> {
    fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(path.display().to_string())
}

/// The archive of the source package, if everything that a kernel build needs is installed.
fn kernel_archive() -> Option<PathBuf> {
    need(&["flex", "bison", "bc", "xz", "tar"]).ok()?;
    let archive = PathBuf::from("/usr/src/linux-source-6.1.tar.xz");
    (archive.exists() && Path::new("/usr/include/libelf.h").exists()).then_some(archive)
}

/// Unpacks and configures a kernel once; returns the folders of its sources and objects.
fn kernel_tree(place: &WorkFolder) -> Result<Option<(String, String)>, String> {
    let Some(archive) = kernel_archive() else { return Ok(None) };
    let (sources, objects) = (place.folder.join("linux-source-6.1"), place.folder.join("objects"));
    let folders = (sources.display().to_string(), objects.display().to_string());
    if objects.join("ready").exists() {
        return Ok(Some(folders));
    }
    let archive = archive.display().to_string();
    step(&["tar", "-C", &place.folder.display().to_string(), "-xf", &archive])?;
    let (output, jobs) =
        (format!("O={}", folders.1), format!("-j{}", std::thread::available_parallelism().map_or(2, usize::from)));
    for goal in ["tinyconfig", "prepare"] {
        step(&["make", "-s", "-C", &folders.0, &output, "ARCH=x86", &jobs, goal])?;
    }
    write(&objects.join("ready"), "")?;
    Ok(Some(folders))
}

fn step(words: &[&str]) -> Result<(), String> {
    if let Some(signal) = uswap_sys::process::interrupt::arrived() {
        return Err(format!("interrupted by signal {signal}"));
    }
    let output = Command::new(words[0]).args(&words[1..]).output().map_err(|error| format!("{}: {error}", words[0]))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{}: {}", words.join(" "), crate::measure::launch::last_line(&String::from_utf8_lossy(&output.stderr))))
}

/// The folder of a generated tree and the answer of its program.
fn generated_tree(place: &WorkFolder) -> Result<(String, String), String> {
    let folder = place.folder.join("tree");
    fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let (mut main, mut calls, mut sum) = (String::from("#include <stdio.h>\n"), String::new(), 0u64);
    for file in 0..FILES {
        write(&folder.join(format!("part{file}.c")), &part(file))?;
        // Writing to a String cannot fail.
        let _ = writeln!(main, "unsigned long part{file}(unsigned long);");
        let _ = writeln!(calls, "sum += part{file}({file});");
        sum = sum.wrapping_add((0..FUNCTIONS).fold(file, |value, function| step_of(value, file, function)));
    }
    let _ = write!(main, "int main(void) {{ unsigned long sum = 0;\n{calls}printf(\"answer %lu\\n\", sum); }}\n");
    write(&folder.join("main.c"), &main)?;
    let objects: Vec<String> = (0..FILES).map(|file| format!("part{file}.o")).collect();
    let rules = format!(
        "CFLAGS = -O2 -g\nprogram: main.o {}\n\t$(CC) -o $@ $^\nclean:\n\trm -f *.o program\n",
        objects.join(" ")
    );
    write(&folder.join("Makefile"), &rules)?;
    Ok((folder.display().to_string(), sum.to_string()))
}

/// One step of the computation in a generated file.
fn step_of(value: u64, file: u64, function: u64) -> u64 {
    let (mut value, odd) = (value, 2 * (file * FUNCTIONS + function) + 1);
    for _ in 0..4 {
        value = value.wrapping_mul(odd) ^ (value >> 7);
    }
    value
}

fn part(file: u64) -> String {
    let mut text = String::from("#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n");
    for function in 0..FUNCTIONS {
        let odd = 2 * (file * FUNCTIONS + function) + 1;
        let _ = write!(
            text,
            "__attribute__((noinline)) static unsigned long f{function}(unsigned long v)\n{{\n\
             for (int i = 0; i < 4; i++)\n v = (v * {odd}UL) ^ (v >> 7);\n return v;\n}}\n"
        );
    }
    let _ = write!(text, "unsigned long part{file}(unsigned long v)\n{{\n");
    for function in 0..FUNCTIONS {
        let _ = writeln!(text, "v = f{function}(v);");
    }
    text + "return v;\n}\n"
}
