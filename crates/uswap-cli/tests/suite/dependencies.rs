//! What comes in from outside is what `deny.toml` allows: licences, registries, unwanted packages,
//! one version each; and what a new machine lacks is set up or told.
//!
//! cargo-deny judges the same and more (`make lint`, where it is installed); building it takes
//! minutes, so CI has this.

use crate::common;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::{Command, Output};

/// A package from outside that is built, with what it is there from.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Package {
    name: String,
    version: String,
    licence: String,
    /// Empty: the registry.
    place: String,
}

/// What is built on Linux, tests included.
fn packages() -> BTreeSet<Package> {
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/../../Cargo.toml");
    let told = Command::new(std::env::var("CARGO").unwrap_or_else(|_| "cargo".into()))
        .args(["tree", "--workspace", "--locked", "--target", "x86_64-unknown-linux-gnu"])
        .args(["--prefix", "none", "--format", "{p}|{l}|", "--manifest-path", manifest])
        .output()
        .expect("cargo");
    assert!(told.status.success(), "{}", String::from_utf8_lossy(&told.stderr));
    let text = String::from_utf8(told.stdout).expect("text");
    text.lines().filter(|line| !line.is_empty()).filter_map(package).collect()
}

/// A line of the tree: `name v1.2.3 (proc-macro) (place)|licence|`. `None`: one of our own.
fn package(line: &str) -> Option<Package> {
    let mut fields = line.split('|');
    let (what, licence) = (fields.next()?, fields.next()?.to_string());
    let mut words = what.splitn(3, ' ');
    let (name, version) = (words.next()?.to_string(), words.next()?.to_string());
    let place = words.next().unwrap_or("").replace("(proc-macro)", "").trim().to_string();
    (!place.starts_with("(/")).then_some(Package { name, version, licence, place })
}

/// The strings of `key = [...]` in deny.toml, comments aside; in a list of tables those of `crate`.
fn listed(key: &str) -> Vec<String> {
    let text = include_str!("../../../../deny.toml");
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or(""));
    let text: String = lines.collect::<Vec<_>>().join("\n");
    let start = format!("\n{key} = [");
    let (_, rest) = text.split_once(&start).unwrap_or_else(|| panic!("deny.toml has no {key}"));
    let list = rest.split(']').next().unwrap_or("");
    list.split('"').skip(1).step_by(2).map(str::to_string).collect()
}

/// Whether an SPDX expression can be satisfied by allowed licences: OR binds less than AND; `/` is
/// an old OR.
fn is_allowed(expression: &str, allowed: &[String]) -> bool {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut at = 0;
    let fits = alternatives(&words, &mut at, allowed);
    fits && at == words.len()
}

fn alternatives(words: &[&str], at: &mut usize, allowed: &[String]) -> bool {
    let mut fits = all_of(words, at, allowed);
    while words.get(*at) == Some(&"OR") {
        *at += 1;
        fits |= all_of(words, at, allowed);
    }
    fits
}

fn all_of(words: &[&str], at: &mut usize, allowed: &[String]) -> bool {
    let mut fits = one(words, at, allowed);
    while words.get(*at) == Some(&"AND") {
        *at += 1;
        fits &= one(words, at, allowed);
    }
    fits
}

fn one(words: &[&str], at: &mut usize, allowed: &[String]) -> bool {
    let word = words.get(*at).copied().unwrap_or("");
    *at += 1;
    if word != "(" {
        return allowed.iter().any(|licence| licence == word);
    }
    let fits = alternatives(words, at, allowed);
    *at += 1;
    fits
}

#[test]
fn expressions_are_read_as_spdx_says() {
    let allowed = ["MIT".to_string(), "Unicode-3.0".to_string()];
    for yes in ["MIT", "GPL-3.0 OR MIT", "Zlib/MIT", "(MIT OR Apache-2.0) AND Unicode-3.0"] {
        assert!(is_allowed(yes, &allowed), "{yes}");
    }
    for no in ["", "Zlib", "MIT AND Zlib", "Zlib OR (MIT AND GPL-3.0)", "MIT Zlib", "(Zlib OR GPL-3.0) AND MIT"] {
        assert!(!is_allowed(no, &allowed), "{no}");
    }
}

#[test]
fn packages_from_outside_are_what_deny_toml_allows() {
    let (allowed, unwanted) = (listed("allow"), listed("deny"));
    assert!(allowed.contains(&"MIT".to_string()) && unwanted.contains(&"tokio".to_string()), "deny.toml is read");
    let packages = packages();
    assert!(packages.len() > 10, "{} packages", packages.len());
    let mut versions: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let mut wrong = Vec::new();
    for Package { name, version, licence, place } in &packages {
        versions.entry(name).or_default().push(version);
        if !is_allowed(licence, &allowed) {
            wrong.push(format!("{name} has the licence {licence:?}"));
        }
        if unwanted.contains(name) {
            wrong.push(format!("{name} is not wanted"));
        }
        if !place.is_empty() {
            wrong.push(format!("{name} comes from {place}"));
        }
    }
    let skipped = listed("skip");
    for (name, mut all) in versions {
        all.retain(|version| !skipped.iter().any(|skip| format!("{name}@{}", &version[1..]).starts_with(skip)));
        if all.len() > 1 {
            wrong.push(format!("{name} is there as {all:?}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// A folder of programs, the machine's own as far as the script needs them, and others that
/// pretend.
struct Pretended(common::Scratch);

impl Pretended {
    fn new() -> Self {
        let folder = common::Scratch::new();
        for name in ["bash", "sh", "sed", "awk", "sort", "head", "tr", "dirname", "cc", "make"] {
            let places = ["/usr/bin", "/bin", "/usr/local/bin"].map(|place| Path::new(place).join(name));
            let place = places.iter().find(|place| place.exists()).unwrap_or_else(|| panic!("there is no {name}"));
            std::os::unix::fs::symlink(place, folder.path(name)).expect("a link");
        }
        Self(folder)
    }

    fn program(&self, name: &str, script: &str) {
        let path = self.0.path(name);
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).expect("a script");
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("a mode");
    }

    /// What `install-deps build` answers here.
    fn install_deps(&self) -> Output {
        let (script, folder) = (concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/install-deps"), self.0.path(""));
        let mut command = Command::new(self.0.path("bash"));
        command.args([script, "build"]).env("PATH", &folder).env("HOME", &folder).output().expect("a script")
    }
}

/// A machine with an old Rust, one that rustup cannot replace, or none, is told so in a sentence,
/// and by a status.
#[test]
fn a_machine_without_a_rust_that_builds_this_is_told_so() {
    let here = Pretended::new();
    // Not root, who would have something installed.
    here.program("id", "echo 1000");
    here.program("rustup", "exit 1");
    let least = env!("CARGO_PKG_RUST_VERSION");
    for (cargo, told) in [
        ("echo cargo 1.64.0", Some("here is 1.64.0")),
        ("exit 1", Some("here is none")),
        (&*format!("echo cargo {least}.0-nightly"), None),
        ("echo cargo 9.0.0", None),
    ] {
        here.program("cargo", cargo);
        let output = here.install_deps();
        let said = String::from_utf8_lossy(&output.stderr);
        let wanted = format!("Rust {least} or later is needed");
        let is_told = told.is_some_and(|told| said.contains(told) && said.contains(&wanted));
        assert_eq!((output.status.success(), is_told), (told.is_none(), told.is_some()), "{cargo}: {said}");
    }
}

/// For root the package is installed that has a Rust that is new enough, and rustup only where none
/// has.
#[test]
fn the_package_with_a_rust_that_is_new_enough_is_installed() {
    for (cargo, web, rustup, wanted) in [
        ("1.63.0+dfsg1-2", "9.0.0+dfsg1-1~deb12u2", "(none)", Some("cargo-web")),
        ("1.63.0+dfsg1-2", "9.0.0+dfsg1-1~deb13u1", "1.27.1-3", Some("cargo-web")),
        ("9.0.0+dfsg1-2", "9.0.0+dfsg1-1", "1.27.1-3", Some("cargo")),
        ("1.63.0", "1.85.0", "1.27.1-3", Some("rustup")),
        ("1.63.0", "1.85.0", "(none)", None),
    ] {
        let here = Pretended::new();
        let programs = here.0.path("").display().to_string();
        here.program("id", "echo 0");
        here.program("cargo", "exit 1");
        let versions = format!("cargo) v='{cargo}' ;; cargo-web) v='{web}' ;; rustup) v='{rustup}' ;; *) v=1 ;;");
        here.program("apt-cache", &format!("case $2 in {versions} esac; echo \"  Candidate: $v\""));
        // Whatever is installed brings the newest Rust; what was is noted.
        let install = format!(
            "for it; do last=$it; done; echo \"$last\" >>'{programs}/installed'; echo 'echo cargo 9.0.0' >'{programs}/cargo'"
        );
        here.program("apt-get", &format!("[ \"$1\" = update ] || {{ {install}; }}"));
        let output = here.install_deps();
        let installed = std::fs::read_to_string(here.0.path("installed")).ok();
        let told = String::from_utf8_lossy(&output.stderr);
        assert_eq!(installed.as_deref().map(str::trim), wanted, "{told}");
        assert_eq!(output.status.success(), wanted.is_some(), "{told}");
    }
}

/// The demo needs neither the bench nor what only tests need, and does its own set-up.
#[test]
fn the_demo_sets_up_and_builds_what_it_needs() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let output =
        Command::new("make").args(["-n", "-C", folder, "demo"]).env_remove("MAKEFLAGS").output().expect("make");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("install-deps demo") && text.contains("-p uswap-cli") && text.contains("demo/run"), "{text}");
    assert!(!text.contains("--workspace") && !text.contains("install-deps tests"), "{text}");
}
