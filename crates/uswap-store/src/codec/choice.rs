//! Compressors as users name them: names and levels, errors and help, all of them from the
//! registry.

use std::fmt;
use std::str::FromStr;

use super::{Info, Levels, REGISTRY};

/// A choice of compressor and level.
///
/// ```
/// use uswap_store::Compression;
///
/// let zstd: Compression = "zstd".parse().unwrap();
/// assert_eq!(Ok(zstd), "zstd:3".parse());
/// assert_eq!(zstd.to_string(), "zstd:3");
/// assert!("zstd:23".parse::<Compression>().is_err());
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Compression {
    /// The codec byte with which its objects begin.
    pub(super) id: u8,
    /// The level; 0 if the compressor has no levels.
    pub(super) level: u8,
}

impl Default for Compression {
    /// The first one of the registry.
    fn default() -> Self {
        REGISTRY[0].usual()
    }
}

impl Compression {
    /// Each compressor once, at its usual level if it has levels.
    pub fn each() -> impl Iterator<Item = Self> {
        REGISTRY.iter().map(Info::usual)
    }

    /// All compressors at all levels, levels in rising order.
    pub fn all() -> impl Iterator<Item = Self> {
        REGISTRY.iter().flat_map(|info| {
            let (lowest, highest) = info.levels.map_or((0, 0), |levels| levels.all);
            (lowest..=highest).map(|level| Self { id: info.id, level })
        })
    }

    /// The compressors at the levels whose costs are worth a table.
    pub fn compared() -> impl Iterator<Item = Self> {
        REGISTRY.iter().flat_map(|info| {
            let levels = info.levels.map_or(&[0][..], |levels| levels.compared);
            levels.iter().map(|&level| Self { id: info.id, level })
        })
    }

    /// The name without the level.
    pub fn name(self) -> &'static str {
        self.info().name
    }

    /// The names that users can write, with their levels: a list for the help of a command.
    pub fn choices() -> String {
        alternatives(REGISTRY.iter().map(Info::with_levels).collect())
    }

    /// The same, with the reason to choose each compressor.
    pub fn choices_in_short() -> String {
        let texts = REGISTRY.iter().map(|info| match info.in_short {
            Some(why) => format!("{} ({why})", info.with_levels()),
            None => info.with_levels(),
        });
        alternatives(texts.collect())
    }

    /// A sentence on all of them, for the man page.
    pub fn manual() -> String {
        let clauses: Vec<_> = REGISTRY.iter().map(Info::manual).collect();
        format!("{}.", clauses.join("; "))
    }

    pub(super) fn info(self) -> &'static Info {
        REGISTRY.iter().find(|info| info.id == self.id).expect("a compressor is made from the registry")
    }
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.info().levels {
            None => write!(f, "{}", self.name()),
            Some(_) => write!(f, "{}:{}", self.name(), self.level),
        }
    }
}

impl FromStr for Compression {
    type Err = String;

    /// `NAME`, or `NAME:LEVEL` if the compressor has levels.
    fn from_str(text: &str) -> Result<Self, String> {
        let (name, level) = text.split_once(':').map_or((text, None), |(name, level)| (name, Some(level)));
        let Some(info) = REGISTRY.iter().find(|info| info.name == name) else {
            let forms: Vec<_> = REGISTRY.iter().map(Info::form).collect();
            return Err(format!("there is no compressor {name:?}; there is: {}", forms.join(", ")));
        };
        match (info.levels, level) {
            (_, None) => Ok(info.usual()),
            (None, Some(_)) => Err(format!("{name} has no levels")),
            (Some(Levels { all: (lowest, highest), .. }), Some(text)) => match text.parse() {
                Ok(level) if (lowest..=highest).contains(&level) => Ok(Self { id: info.id, level }),
                _ => Err(format!("{text:?} is no level of {name}: they go from {lowest} to {highest}")),
            },
        }
    }
}

impl Info {
    fn usual(&self) -> Compression {
        Compression { id: self.id, level: self.levels.map_or(0, |levels| levels.usual) }
    }

    /// The form in which users write the choice.
    fn form(&self) -> String {
        format!("{}{}", self.name, if self.levels.is_some() { "[:LEVEL]" } else { "" })
    }

    fn with_levels(&self) -> String {
        match self.levels {
            Some(Levels { all: (lowest, highest), .. }) => {
                format!("{} with a level from {lowest} to {highest}", self.form())
            }
            None => self.form(),
        }
    }

    /// Its clause in the man page.
    fn manual(&self) -> String {
        let default = if self.id == REGISTRY[0].id { ", the default," } else { "" };
        let levels = self.levels.map_or(String::new(), |Levels { all: (lowest, highest), usual, .. }| {
            format!(", with a level from {lowest} to {highest} ({usual} where none is given),")
        });
        format!("{}{default}{levels} {}", self.form(), self.help)
    }
}

/// `a`; `a, or b`; `a, b, or c`.
fn alternatives(mut texts: Vec<String>) -> String {
    if let [_, .., last] = &mut texts[..] {
        last.insert_str(0, "or ");
    }
    texts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_alternative_is_said_to_be_one() {
        let of = |texts: &[&str]| alternatives(texts.iter().map(ToString::to_string).collect());
        assert_eq!([of(&["a"]), of(&["a", "b"]), of(&["a", "b", "c"])], ["a", "a, or b", "a, b, or c"]);
    }
}
