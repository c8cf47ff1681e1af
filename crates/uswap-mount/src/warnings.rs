//! Sentences about what goes wrong while a mount goes on.
//!
//! A mount in the background has no streams any more, so `uswap status` tells them. There is one
//! for each kind, the first; a kind whose cause has gone has none.

use std::collections::BTreeMap;
use std::sync::Mutex;

/// The kinds of warnings.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum WarningKind {
    /// Pages that pool or devices cannot give back.
    LostPages,
    /// The file of `--keep`.
    Keep,
}

/// The present warnings of a mount.
#[derive(Debug, Default)]
pub struct MountWarnings(Mutex<BTreeMap<WarningKind, String>>);

impl MountWarnings {
    /// Warns, unless there is a warning of that kind.
    pub fn tell(&self, kind: WarningKind, text: impl FnOnce() -> String) {
        let mut warnings = self.0.lock().expect("warnings");
        warnings.entry(kind).or_insert_with(|| {
            let text = text();
            eprintln!("uswap: {text}");
            text
        });
    }

    /// The cause has gone.
    pub fn withdraw(&self, kind: WarningKind) {
        self.0.lock().expect("warnings").remove(&kind);
    }

    /// All present ones.
    pub fn all(&self) -> Vec<String> {
        self.0.lock().expect("warnings").values().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_one_warning_of_a_kind_until_its_cause_has_gone() {
        let warnings = MountWarnings::default();
        warnings.tell(WarningKind::Keep, || "the disk is full".into());
        warnings.tell(WarningKind::Keep, || "the disk is full still".into());
        warnings.tell(WarningKind::LostPages, || "slot 7 is damaged".into());
        assert_eq!(warnings.all(), ["slot 7 is damaged", "the disk is full"]);
        warnings.withdraw(WarningKind::Keep);
        assert_eq!(warnings.all(), ["slot 7 is damaged"]);
        warnings.tell(WarningKind::Keep, || "the disk is full again".into());
        assert_eq!(warnings.all(), ["slot 7 is damaged", "the disk is full again"]);
    }
}
