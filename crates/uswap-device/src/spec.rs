//! A swap specification as users write it: `PLACE[,prio=N][,size=SIZE][,mirror=PLACE]`, and options
//! of its kind.
//!
//! Only this file reads that grammar. The registry of kinds (`kinds/mod.rs`) defines the possible
//! places and their own options. A specification is parsed once, into a [`SwapSpec`], which opens
//! its device. Only to another process is it sent as text ([`absolute`]).
//!
//! An option holds for all places of the specification: both servers of a mirror have the same
//! `timeout=`. An option that none of the places accepts is refused. If an option is given twice,
//! the last one counts.

use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use uswap_core::util::size::Size;

use crate::device::Device;
use crate::kinds::{self, OpenRequest, OptionValues, ReadPlace, RegisteredKind};
use crate::mirror::Mirror;

/// The character before each option; no place contains it.
const SEPARATOR: char = ',';
/// The option whose value is a place.
const MIRROR: &str = "mirror";

/// A place for swapped pages.
#[derive(Clone)]
pub struct SwapPlace {
    kind: &'static RegisteredKind,
    text: String,
    place: Arc<dyn ReadPlace>,
}

impl FromStr for SwapPlace {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Err("a place is missing".into());
        }
        let kind = kinds::of(text);
        Ok(Self { kind, text: text.into(), place: kind.read(text)? })
    }
}

impl SwapPlace {
    /// Whether the pages of the place lie in memory of the process that opens it. The name of the
    /// device is then the text of the place.
    pub fn is_memory(&self) -> bool {
        self.kind.is_memory()
    }
}

/// Formats the text from which the place was parsed.
impl fmt::Display for SwapPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for SwapPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.place.fmt(f)
    }
}

/// Two texts may name the same place: `a` and `./a` do not, `a/b` and `a//b` do.
impl PartialEq for SwapPlace {
    fn eq(&self, other: &Self) -> bool {
        self.place.is_same(&*other.place)
    }
}

impl Eq for SwapPlace {}

/// A place with its options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwapSpec {
    place: SwapPlace,
    /// Devices with a higher priority are used first.
    priority: i32,
    /// Maximum number of bytes used there.
    size: Option<u64>,
    /// Options that only some kinds accept.
    options: OptionValues,
    /// The place of the second copy of each page.
    mirror: Option<SwapPlace>,
}

impl FromStr for SwapSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut parts = text.split(SEPARATOR);
        let place = parts.next().unwrap_or_default().parse()?;
        let mut spec = Self { place, priority: 0, size: None, options: OptionValues::default(), mirror: None };
        parts.try_for_each(|option| spec.set(option))?;
        let kinds: Vec<_> = spec.places().map(|place| place.kind).collect();
        spec.options.are_taken_by(&kinds)?;
        Ok(spec)
    }
}

impl SwapSpec {
    /// Devices with a higher priority are used first.
    pub fn priority(&self) -> i32 {
        self.priority
    }

    /// The place, and that of the mirror.
    pub fn places(&self) -> impl Iterator<Item = &SwapPlace> {
        std::iter::once(&self.place).chain(&self.mirror)
    }

    /// Opens the device. A place that has no size of its own and was given none gets `usual` bytes.
    ///
    /// # Errors
    /// A message for the user: why the place cannot be used for swap.
    pub fn open(&self, usual: u64) -> Result<Box<dyn Device>, String> {
        let request = OpenRequest { size: self.size, usual, options: &self.options };
        let device = self.place.place.open(&request)?;
        match &self.mirror {
            None => Ok(device),
            Some(mirror) => Ok(Box::new(Mirror::new(device, mirror.place.open(&request)?))),
        }
    }

    fn set(&mut self, option: &str) -> Result<(), String> {
        let unknown = || format!("unknown option {option:?} ({})", kinds::help::known_options());
        let (name, value) = option.split_once('=').ok_or_else(unknown)?;
        match name {
            "prio" => self.priority = value.parse().map_err(|_| format!("prio={value} is not a number"))?,
            "size" => match value.parse() {
                Ok(Size::Bytes(bytes)) => self.size = Some(bytes),
                Ok(Size::Percent(_)) => return Err("size in bytes, please".into()),
                Err(error) => return Err(error.to_string()),
            },
            MIRROR => {
                let place = value.parse().map_err(|error| format!("{MIRROR}={value}: {error}"))?;
                if place == self.place {
                    return Err("a mirror has two different places".into());
                }
                self.mirror = Some(place);
            }
            _ => self.options.set(name, value).ok_or_else(unknown)??,
        }
        Ok(())
    }
}

/// The text of the same specification for a process in a directory other than `directory`: its
/// places become absolute, its options stay. The name of a device is treated as its places are; a
/// text that is neither is taken as a place.
pub fn absolute(spec: &str, directory: &Path) -> String {
    let complete = |place: &str| match place {
        "" => String::new(),
        place => kinds::of(place).absolute(place, directory),
    };
    let mut parts = spec.split(SEPARATOR);
    let mut text = complete(parts.next().unwrap_or_default());
    for option in parts {
        text.push(SEPARATOR);
        match option.split_once('=') {
            Some((MIRROR, place)) => text += &format!("{MIRROR}={}", complete(place)),
            _ => text += option,
        }
    }
    text
}

#[cfg(test)]
#[path = "spec_tests.rs"]
mod tests;
