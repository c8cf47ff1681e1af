//! Programs that limit their own heap by the memory of the cgroup or the machine: they end when
//! that limit is reached, however much of their memory could be evicted. uswap cannot change the
//! limit of such a program, so it only tells the user.

use std::fs;

/// A runtime that limits its own heap.
#[derive(Debug, PartialEq, Eq)]
pub struct Runtime {
    /// Name of its program.
    pub program: &'static str,
    /// The setting by which users choose another limit.
    pub setting: &'static str,
    /// Texts of its command line or environment by which a user sets a limit.
    keys: &'static [&'static str],
}

const KNOWN: [Runtime; 5] = [
    Runtime {
        program: "node",
        setting: "node --max-old-space-size=MIB",
        keys: &["max-old-space-size", "max_old_space_size", "max-heap-size"],
    },
    Runtime { program: "java", setting: "java -Xmx SIZE", keys: &["-Xmx", "-XX:MaxRAM", "-XX:MaxHeapSize"] },
    Runtime { program: "dotnet", setting: "DOTNET_GCHeapHardLimit=HEX", keys: &["GCHeapHardLimit"] },
    Runtime { program: "deno", setting: "deno --v8-flags=--max-old-space-size=MIB", keys: &["max-old-space-size"] },
    Runtime { program: "duckdb", setting: "SET memory_limit = 'SIZE'", keys: &["memory_limit", "max_memory"] },
];

/// Exit statuses of a program that gave up by itself: by SIGABRT or, in some releases of V8, by
/// SIGTRAP.
const GAVE_UP: [i32; 2] = [128 + 6, 128 + 5];
/// The page of the guide that lists all settings.
const GUIDE: &str = "docs/guide/heap-limits.md";

/// The runtime that a program's path names.
pub fn by_path(path: &str) -> Option<&'static Runtime> {
    let name = path.rsplit('/').next()?;
    KNOWN.iter().find(|runtime| runtime.program == name)
}

/// The runtime that a process executes, unless the user has set a limit.
pub fn by_process(pid: u32) -> Option<&'static Runtime> {
    let path = fs::read_link(format!("/proc/{pid}/exe")).ok()?;
    let runtime = by_path(path.to_str()?)?;
    let told = ["cmdline", "environ"].map(|file| fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default());
    let told = told.map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    let is_set = runtime.keys.iter().any(|key| told.iter().any(|text| text.contains(key)));
    (!is_set).then_some(runtime)
}

/// The message of `-v` about such a program.
pub fn in_words(runtime: &Runtime, pid: u32) -> String {
    let Runtime { program, setting, .. } = runtime;
    format!(
        "{program} (process {pid}) limits its heap by the memory it finds, whatever can be evicted: {setting} sets another \
         limit ({GUIDE})"
    )
}

/// The summary's remark about the end of a command that may have reached such a limit: the command
/// gave up though nothing was ever evicted.
pub fn of_end(status: i32, program: &str, evicted: u64) -> Option<String> {
    if evicted > 0 || !GAVE_UP.contains(&status) {
        return None;
    }
    let setting = by_path(program).map(|runtime| format!("{}, ", runtime.setting)).unwrap_or_default();
    Some(format!(
        "it ended by {} though memory was never short: if it ran into a heap limit of its own, set another ({setting}{GUIDE})",
        if status == GAVE_UP[0] { "abort" } else { "a trap" }
    ))
}

/// The advice of `doctor`.
pub fn advice() -> String {
    let settings: Vec<&str> = KNOWN.iter().take(3).map(|runtime| runtime.setting).collect();
    format!("they end when that is reached, whatever can be evicted: {} ({GUIDE})", settings.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_end_by_abort_with_nothing_evicted_is_spoken_of() {
        assert!(of_end(134, "/usr/bin/node", 0).is_some_and(|text| text.contains("node --max-old-space-size")));
        assert!(of_end(134, "/bin/sh", 0).is_some_and(|text| text.contains(GUIDE) && !text.contains("node")));
        assert!(of_end(133, "/usr/bin/node", 0).is_some_and(|text| text.contains("a trap")));
        for (status, evicted) in [(134, 1), (0, 0), (1, 0), (137, 0), (139, 0)] {
            assert_eq!(of_end(status, "/usr/bin/node", evicted), None, "{status}");
        }
    }

    #[test]
    fn programs_are_known_by_their_names() {
        assert_eq!(by_path("/opt/jdk/bin/java").map(|runtime| runtime.program), Some("java"));
        assert_eq!(by_path("node").map(|runtime| runtime.program), Some("node"));
        assert_eq!((by_path("/usr/bin/nodejs-tool"), by_path(""), by_process(std::process::id())), (None, None, None));
    }
}
