//! Compiles the agent: freestanding, one shared object without dependencies, to be carried inside
//! the binary.
//!
//! It is not an ordinary cargo target, because its symbols must stay hidden from the programs it is
//! loaded into (only the interposed calls are exported) and because nothing of std or of a libc may
//! come along.

use std::path::Path;
use std::process::Command;

fn main() {
    let out = std::env::var("OUT_DIR").expect("cargo sets OUT_DIR");
    let out = Path::new(&out);
    let agent = Path::new("../uswap-agent");
    for input in ["../uswap-agent/src", "../uswap-agent/agent.version", "../uswap-abi/src", "build.rs"] {
        println!("cargo::rerun-if-changed={input}");
    }
    let archive = out.join("libuswap_agent.a");
    let object = out.join("uswap-agent.so");
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".into());
    run(Command::new(rustc)
        .args(["--edition", "2024", "--crate-type", "staticlib", "--crate-name", "uswap_agent"])
        .args(["-C", "panic=abort", "-C", "opt-level=2", "-C", "relocation-model=pic"])
        .args(["--cfg", "uswap_freestanding", "-A", "dead_code"])
        .arg("-o")
        .arg(&archive)
        .arg(agent.join("src/lib.rs")));
    run(Command::new(std::env::var("CC").unwrap_or_else(|_| "cc".into()))
        .args(["-shared", "-nostdlib", "-s"])
        .arg("-o")
        .arg(&object)
        .arg("-Wl,--whole-archive")
        .arg(&archive)
        .args(["-Wl,--no-whole-archive", "-Wl,--gc-sections", "-Wl,-z,now", "-Wl,-z,relro"])
        .arg(format!("-Wl,--version-script={}", agent.join("agent.version").display()))
        .args(["-Wl,-soname,uswap-agent.so", "-Wl,-e,uswap_entry"]));
}

fn run(command: &mut Command) {
    let status = command.status().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(status.success(), "{command:?}: {status}");
}
