//! Fault points: places where a test can make the engine slow, make it refuse something, or switch
//! off one of its rules.
//!
//! They are set by the environment variable `USWAP_FAULT_POINTS`, a list like
//! `delay-install=200,again=5,no-gate`. Numbers are microseconds for delays, milliseconds for
//! `turn` and "one in N" for refusals. Without the variable each check is one load of a constant
//! word. Fault points exist so that every test of an integrity rule can be shown to fail when its
//! rule is switched off.

mod list;

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use uswap_core::reclaim::PolicyKind;
use uswap_core::util::growth;
use uswap_store::StoreFaults;

pub use list::FaultPoints;

/// Length of a turn under `crowd`, unless `turn` sets another one.
const FORCED_TURN: Duration = Duration::from_millis(200);

/// Makes [`FaultPoints`] from a list of documented fields: `u64` points take a number, `bool`
/// points take none.
macro_rules! fault_points {
    ($($(#[doc = $text:literal])+ $field:ident: $kind:ty,)*) => {
        /// All fault points, zero when off.
        #[derive(Default, Debug)]
        pub struct FaultPoints {
            $($(#[doc = $text])+ pub $field: $kind,)*
            /// Not a rule: the eviction policy, for comparison. The name of any policy is a fault
            /// point.
            pub policy: uswap_core::reclaim::PolicyKind,
            pub(super) draws: std::sync::atomic::AtomicU64,
            pub(super) steps: std::sync::atomic::AtomicU64,
        }

        impl FaultPoints {
            /// Name, whether it takes a number, and what each point does, in the order of the list.
            pub const ALL: &[(&str, bool, &[&str])] =
                &[$((stringify!($field), <$kind as super::PointSetting>::IS_NUMBER, &[$($text),+]),)*];

            /// Sets the point of that name; `false`: there is none.
            pub(super) fn set(&mut self, name: &str, number: u64) -> bool {
                $(if super::is_name_of(name, stringify!($field)) {
                    self.$field = super::PointSetting::from_number(number);
                    return true;
                })*
                false
            }
        }
    };
}
use fault_points;

/// The setting of a fault point.
trait PointSetting {
    /// Whether the point takes a number.
    const IS_NUMBER: bool;
    fn from_number(number: u64) -> Self;
}

impl PointSetting for u64 {
    const IS_NUMBER: bool = true;
    fn from_number(number: u64) -> Self {
        number
    }
}

impl PointSetting for bool {
    const IS_NUMBER: bool = false;
    fn from_number(_: u64) -> Self {
        true
    }
}

/// Whether a name as users write it, with dashes, means the field.
fn is_name_of(name: &str, field: &str) -> bool {
    name.len() == field.len()
        && name.bytes().zip(field.bytes()).all(|(n, f)| n == f && n != b'_' || n == b'-' && f == b'_')
}

impl FaultPoints {
    /// Notes that the calling thread serves pages: where that is tested, it allocates nothing from
    /// now on outside of a named purpose.
    pub fn serve_without_growth(&self) {
        if self.no_alloc > 0 {
            growth::set_lenient(self.no_alloc > 1);
            growth::forbid();
        }
    }

    /// Reads a list as users write it.
    ///
    /// # Errors
    /// The entry that is unknown, or whose value is not a number.
    pub fn parse(list: &str) -> Result<Self, String> {
        let mut points = Self::default();
        for entry in list.split(',').filter(|entry| !entry.is_empty()) {
            let (name, value) = entry.split_once('=').unwrap_or((entry, "1"));
            let number = value.parse().map_err(|_| entry.to_string())?;
            if !points.set(name, number) {
                points.policy = PolicyKind::named(name).ok_or(entry)?;
            }
        }
        Ok(points)
    }

    /// The settings of load control.
    pub fn turns(&self) -> uswap_core::load_control::LoadTuning {
        let length = if self.turn == 0 { FORCED_TURN } else { Duration::from_millis(self.turn) };
        uswap_core::load_control::LoadTuning { forced: self.crowd.then_some(length), idle_turns: self.idle_turns }
    }

    /// The settings of the store.
    pub fn tuning(&self) -> uswap_store::Tuning {
        uswap_store::Tuning {
            no_packing: self.no_packing,
            whole_pages: self.whole_pages,
            crossing: self.crossing,
            eager_writeback: self.eager_writeback,
            eager_repack: self.eager_repack,
            no_squeeze: self.no_squeeze,
            delay: Duration::from_micros(self.delay_writeback),
        }
    }

    /// Passes on the points that belong to the store.
    pub fn set_in(&self, store: &StoreFaults) {
        let points = [&store.flip, &store.compress, &store.memory, &store.entry];
        let numbers = [self.flip_pool, self.compress_fail, self.alloc_fail, self.entry_fail];
        points.iter().zip(numbers).for_each(|(point, n)| point.set(n));
        store.delay_compact.store(self.delay_compact, Relaxed);
        store.trust_copy.store(self.trust_copy, Relaxed);
    }

    /// Whether this call is the one in `n` that is hit (never for 0).
    pub fn hits(&self, n: u64) -> bool {
        n != 0 && self.draws.fetch_add(1, Relaxed) % n == n - 1
    }

    /// A step of bringing an agent to a process. Returns `true` if it is to fail.
    pub fn step(&self, pid: u32) -> bool {
        self.pause(self.delay_attach);
        let number = self.steps.fetch_add(1, Relaxed) + 1;
        if number == self.attach_kill {
            // The process may have ended by itself.
            let _ = uswap_sys::process::kill(pid, 9);
        }
        if number == self.attach_die {
            let _ = uswap_sys::process::kill(std::process::id(), 9);
        }
        number == self.attach_fail
    }

    /// Whether a thread is to be asked late to stop.
    pub fn is_late(&self) -> bool {
        self.attach_late != 0 && self.draws.fetch_add(1, Relaxed).is_multiple_of(2)
    }

    /// Waits this long, if a delay is set.
    pub fn pause(&self, microseconds: u64) {
        if microseconds != 0 {
            std::thread::sleep(Duration::from_micros(microseconds));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_point_is_set_by_its_name_and_by_no_other() {
        for (field, is_number, _) in FaultPoints::ALL {
            let name = field.replace('_', "-");
            let entry = if *is_number { format!("{name}=7") } else { name.clone() };
            let set = format!("{:?}", FaultPoints::parse(&entry).expect("a fault point"));
            let expected = format!("{field}: {}", if *is_number { "7" } else { "true" });
            assert!(set.contains(&expected), "{entry}: {set}");
            assert_eq!(FaultPoints::parse(&format!("{name}x")).err(), Some(format!("{name}x")));
            assert_eq!(FaultPoints::parse(field).is_err(), field.contains('_'), "{field}");
            assert!(FaultPoints::parse(&format!("{name}=x")).is_err());
        }
    }

    /// A rule that can be switched off has a test that names it: by the name of the point, or as a
    /// field of the store's tuning.
    #[test]
    fn each_rule_that_can_be_off_is_named_by_a_test() {
        let crates = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let mut tests = String::from(include_str!("../fake/tests.rs"));
        for folder in ["uswap-cli/tests", "uswap-cli/tests/suite", "uswap-store/tests"] {
            for file in std::fs::read_dir(crates.join(folder)).expect("tests").flatten().map(|entry| entry.path()) {
                tests += &std::fs::read_to_string(file).unwrap_or_default();
            }
        }
        for (field, _, text) in FaultPoints::ALL {
            let is_named = tests.contains(&field.replace('_', "-")) || tests.contains(&format!("{field}: true"));
            assert!(is_named || !text[0].starts_with(" Rule off"), "no test switches {field} off");
        }
    }

    /// The page of the documentation is this list. `USWAP_UPDATE_DOCS=1` in the environment writes
    /// it anew.
    #[test]
    fn the_page_of_fault_points_is_the_list() {
        let place = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/fault-points.md");
        if std::env::var_os("USWAP_UPDATE_DOCS").is_some() {
            std::fs::write(&place, page()).expect("the page");
        }
        let there = std::fs::read_to_string(&place).expect("the page");
        assert!(there == page(), "docs/reference/fault-points.md is not the list: USWAP_UPDATE_DOCS=1 writes it anew");
    }

    fn page() -> String {
        let mut page = String::from(include_str!("page_head.md"));
        for policy in PolicyKind::ALL {
            page += &format!(
                "| `{}` | Not a rule: the eviction policy, for comparison: {} |\n",
                policy.name(),
                policy.about()
            );
        }
        for (field, is_number, text) in FaultPoints::ALL {
            let name = field.replace('_', "-");
            let text: Vec<&str> = text.iter().map(|line| line.trim()).collect();
            let text = text.join(" ").replace('|', "\\|").replace("[`", "`").replace("`]", "`");
            let number = if *is_number { "=N" } else { "" };
            page += &format!("| `{name}{number}` | {text} |\n");
        }
        page
    }
}
