//! The systems that are compared, by their names on the command line.
//!
//! | name | what runs the command |
//! |---|---|
//! | `none` | nothing, and no limit |
//! | `uswap` | `uswap run --ram auto` in a cgroup of exactly the limit, without kernel swap |
//! | `uswap-fixed` | the same with `--ram (limit - 32 MiB) / 1.05`, what SPECIFICATION.md promises to hold |
//! | `uswap:OPTIONS` | with further options of `uswap run`; one word may be `faults=LIST`, fault points for a comparison |
//! | `uswap:--ram SIZE --swap ram` | no limit of the group but the budget: the device's memory would count in it |
//! | `uswap@PATH`, `uswap@PATH:OPTIONS` | another build |
//! | `kernel-swapfile` | the kernel with a swap file |
//! | `kernel-zswap[:COMPRESSOR\|:each]` | the same with zswap in front |
//! | `kernel-zram[:ALGORITHM\|:each]` | the kernel with zram |

pub mod kernel;

use std::path::{Path, PathBuf};

use uswap_device::{SwapPlace, SwapSpec};

use crate::system::kernel::{SwapPlan, zram_algorithms, zswap_compressors, zswap_default};

/// A way to run a command in less memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct System {
    /// The name as the user wrote it, or one of the names that it was expanded to.
    pub name: String,
    /// The kind of the system.
    pub kind: SystemKind,
}

/// The kinds of systems.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SystemKind {
    /// No limit.
    None,
    /// uswap.
    Uswap {
        /// The binary; `None`: the one that the tool was given or has found.
        binary: Option<PathBuf>,
        /// Further options of `uswap run`.
        options: Vec<String>,
        /// A budget by formula instead of `--ram auto`.
        fixed: bool,
    },
    /// The kernel's swap.
    Kernel(SwapPlan),
}

impl System {
    /// The baseline.
    pub fn none() -> Self {
        Self { name: "none".into(), kind: SystemKind::None }
    }

    /// The systems that a name stands for: one, or several for `each`.
    ///
    /// # Errors
    /// A sentence that lists the possible names.
    pub fn parse(name: &str) -> Result<Vec<Self>, String> {
        let one = |kind| Ok(vec![Self { name: name.into(), kind }]);
        let (head, tail) = name.split_once(':').map_or((name, None), |(head, tail)| (head, Some(tail)));
        let options = || tail.unwrap_or("").split_whitespace().map(String::from).collect();
        match (head, tail) {
            ("none", None) => one(SystemKind::None),
            ("uswap" | "uswap-fixed", _) => {
                one(SystemKind::Uswap { binary: None, options: options(), fixed: head == "uswap-fixed" })
            }
            (_, _) if head.starts_with("uswap@") && head.len() > 6 => {
                one(SystemKind::Uswap { binary: Some(head[6..].into()), options: options(), fixed: false })
            }
            ("kernel-swapfile", None) => one(SystemKind::Kernel(SwapPlan::SwapFile)),
            ("kernel-zswap", Some("each")) => Ok(each("kernel-zswap", &zswap_compressors(), SwapPlan::Zswap)),
            ("kernel-zswap", _) => {
                Ok(each("kernel-zswap", &[tail.map_or_else(zswap_default, String::from)], SwapPlan::Zswap))
            }
            ("kernel-zram", Some("each")) => Ok(each("kernel-zram", &zram_algorithms(), SwapPlan::Zram)),
            ("kernel-zram", _) => Ok(each("kernel-zram", &[tail.unwrap_or("lz4")], SwapPlan::Zram)),
            _ => Err(format!(
                "{name:?} is not a system: none, uswap, uswap-fixed, uswap:OPTIONS, uswap@PATH, kernel-swapfile, \
                 kernel-zswap[:COMPRESSOR|:each] or kernel-zram[:ALGORITHM|:each]"
            )),
        }
    }

    /// Whether the system is uswap in any form.
    pub fn is_uswap(&self) -> bool {
        matches!(self.kind, SystemKind::Uswap { .. })
    }

    /// Whether the system's device lies in memory, which a limit of the group would count.
    pub fn swaps_in_memory(&self) -> bool {
        let SystemKind::Uswap { options, .. } = &self.kind else { return false };
        let in_memory = |spec: &SwapSpec| spec.places().any(SwapPlace::is_memory);
        options.windows(2).any(|two| two[0] == "--swap" && two[1].parse().as_ref().is_ok_and(in_memory))
    }
}

fn each<S: ToString>(head: &str, variants: &[S], plan: fn(String) -> SwapPlan) -> Vec<System> {
    let one = |variant: &S| {
        let variant = variant.to_string();
        System { name: format!("{head}:{variant}"), kind: SystemKind::Kernel(plan(variant)) }
    };
    variants.iter().map(one).collect()
}

/// The words before a command that make uswap run it, in a group with a limit of `limit` bytes.
pub fn uswap_words(
    binary: &Path,
    options: &[String],
    fixed: bool,
    limit: Option<u64>,
    stats: &Path,
    swap: Option<&str>,
) -> Vec<String> {
    let mut words = vec![binary.display().to_string(), "run".into(), "--quiet".into()];
    if !options.iter().any(|option| option.starts_with("--ram")) {
        let ram = match limit {
            Some(limit) if fixed => fixed_budget(limit).to_string(),
            _ => "auto".into(),
        };
        words.extend(["--ram".into(), ram]);
    }
    if let Some(swap) = swap.filter(|_| !options.iter().any(|option| option.starts_with("--swap"))) {
        words.extend(["--swap".into(), swap.into()]);
    }
    words.extend(["--stats".into(), stats.display().to_string()]);
    words.extend(options.iter().cloned());
    words.push("--".into());
    words
}

/// The fault points among options (`faults=LIST`), and the other options.
pub fn fault_points(options: &[String]) -> (String, Vec<String>) {
    let (points, others): (Vec<&String>, Vec<&String>) = options.iter().partition(|word| word.starts_with("faults="));
    let list: Vec<&str> = points.iter().map(|word| &word["faults=".len()..]).collect();
    (list.join(","), others.into_iter().cloned().collect())
}

/// The budget in bytes that is guaranteed to stay within a hard limit; at least 16 MiB.
pub fn fixed_budget(limit: u64) -> u64 {
    ((limit.saturating_sub(32 << 20) as f64 / 1.05) as u64).max(16 << 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(name: &str) -> System {
        System::parse(name).unwrap().remove(0)
    }

    #[test]
    fn fault_points_are_no_options() {
        let words = |text: &str| text.split(' ').map(String::from).collect::<Vec<_>>();
        assert_eq!(fault_points(&words("--pool 5 faults=a,b=2 --x")), ("a,b=2".into(), words("--pool 5 --x")));
        assert_eq!(fault_points(&words("--pool 5")), (String::new(), words("--pool 5")));
    }

    #[test]
    fn names_are_understood() {
        assert_eq!(parse("none"), System::none());
        let with_options = parse("uswap:--pool 30");
        let options = vec!["--pool".to_string(), "30".into()];
        assert_eq!(with_options.kind, SystemKind::Uswap { binary: None, options: options.clone(), fixed: false });
        assert_eq!(
            parse("uswap@/a/b:--pool 30").kind,
            SystemKind::Uswap { binary: Some("/a/b".into()), options, fixed: false }
        );
        assert_eq!(parse("kernel-zram").name, "kernel-zram:lz4");
        assert_eq!(parse("kernel-zswap:zstd").kind, SystemKind::Kernel(SwapPlan::Zswap("zstd".into())));
        assert_eq!(parse("kernel-swapfile").kind, SystemKind::Kernel(SwapPlan::SwapFile));
        for bad in ["", "nothing", "uswap@", "none:x", "kernel-swapfile:4", "kernel"] {
            assert!(System::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn words_for_uswap_respect_what_the_user_gave() {
        let words = |options: &[&str], fixed| {
            let options: Vec<String> = options.iter().map(ToString::to_string).collect();
            uswap_words(Path::new("u"), &options, fixed, Some(158 << 20), Path::new("s"), Some("w,size=1G")).join(" ")
        };
        assert_eq!(words(&[], false), "u run --quiet --ram auto --swap w,size=1G --stats s --");
        assert_eq!(words(&["--ram", "1G", "--swap", "x"], true), "u run --quiet --stats s --ram 1G --swap x --");
        assert_eq!(words(&[], true), "u run --quiet --ram 125829120 --swap w,size=1G --stats s --");
    }
}
