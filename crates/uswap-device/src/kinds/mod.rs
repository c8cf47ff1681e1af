//! The kinds of places that swap can go to, and their registry.
//!
//! A kind is one file in this folder and one line in `device_kinds!`, at the end of this file. The
//! grammar of a swap specification (`spec.rs`), the help, the man page and the checks that every
//! kind passes (`checks.rs`) follow from the registry.
//!
//! The first kind of the registry takes each text that no other kind recognises. The texts that the
//! other kinds recognise must not overlap: [`of`] asks the last kind first.

#[cfg(test)]
mod checks;
pub mod help;

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::Arc;

use crate::device::Device;

/// A kind of place for swapped pages.
pub trait DeviceKind: 'static {
    /// A place of this kind, parsed once from its text.
    type Place: fmt::Debug + PartialEq + Send + Sync;

    /// How users write a place of this kind.
    const FORMS: &'static [PlaceForm];

    /// Options that this kind accepts besides `prio=`, `size=` and `mirror=`. Kinds that share an
    /// option share its constant.
    const OPTIONS: &'static [KindOption] = &[];

    /// The purpose of the options, as in "timeout= is for NBD servers".
    const OPTIONS_ARE_FOR: &'static str = "";

    /// For the man page: how much of a place without `size=` is used, where this is not the size
    /// that the run gives.
    const WITHOUT_SIZE: Option<&'static str> = None;

    /// Whether the pages lie in memory of this process. The name of the device is then the text of
    /// its place: by this name the governor asks how much memory the device uses.
    const IS_MEMORY: bool = false;

    /// A place of this kind, for the checks.
    const EXAMPLE: &'static str;

    /// Whether a text is meant as a place of this kind, correctly written or not.
    fn recognises(text: &str) -> bool;

    /// Parses a text that this kind recognises. The text is not empty and has no comma.
    ///
    /// # Errors
    /// A message for the user: what is wrong with the text.
    fn read(text: &str) -> Result<Self::Place, String>;

    /// The text that names the same place for a process in a directory other than `directory`.
    fn absolute(text: &str, directory: &Path) -> String {
        let _ = directory;
        text.into()
    }

    /// Opens the place.
    ///
    /// # Errors
    /// A message for the user: why the place cannot be used for swap.
    fn open(place: &Self::Place, request: &OpenRequest<'_>) -> Result<Box<dyn Device>, String>;

    /// The text of a place that a test can open, with its files in this directory.
    #[cfg(test)]
    fn for_tests(directory: &Path) -> String {
        Self::absolute(Self::EXAMPLE, directory)
    }
}

/// How users write a place.
#[derive(Clone, Copy, Debug)]
pub struct PlaceForm {
    /// The syntax as the man page shows it: `nbd://HOST[:PORT]/EXPORT`.
    pub syntax: &'static str,
    /// The description in the man page.
    pub about: &'static str,
    /// The name of the form in one-line lists of places; such lists leave out a form without it.
    pub short: Option<ShortForm>,
}

/// The name of a form in one-line lists of places.
#[derive(Clone, Copy, Debug)]
pub struct ShortForm {
    /// In lists of texts: `PATH`.
    pub written: &'static str,
    /// In lists of words: `a file (made if missing)`.
    pub noun: &'static str,
}

/// An option that some kinds accept, `NAME=NUMBER`. A value that is not a number belongs into the
/// text of the place, as the query of a URI does.
#[derive(Debug)]
pub struct KindOption {
    /// The name of the option.
    pub name: &'static str,
    /// The placeholder for the value in the help.
    pub value: &'static str,
    /// The permitted values.
    pub range: RangeInclusive<u64>,
    /// The unit of the value, after a space, for the sentence that refuses a value out of range.
    pub unit: &'static str,
    /// The description in the man page.
    pub about: &'static str,
}

impl KindOption {
    /// Parses the value of the option.
    ///
    /// # Errors
    /// A message for the user: the value is no number or out of the range.
    fn read(&self, text: &str) -> Result<u64, String> {
        let (name, unit, range) = (self.name, self.unit, &self.range);
        let value = text.parse().ok().filter(|number| range.contains(number));
        value.ok_or_else(|| format!("{name}={text}: between {} and {}{unit}", range.start(), range.end()))
    }
}

/// The options of kinds in a specification.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OptionValues(BTreeMap<&'static str, u64>);

impl OptionValues {
    /// The value of an option, if it was given.
    pub fn get(&self, option: &KindOption) -> Option<u64> {
        self.0.get(option.name).copied()
    }

    /// Parses an option if some kind accepts it; the last one of a name counts. `None`: no kind
    /// accepts an option of this name.
    pub(crate) fn set(&mut self, name: &str, value: &str) -> Option<Result<(), String>> {
        let option = kinds().iter().flat_map(|kind| kind.options).find(|option| option.name == name)?;
        Some(option.read(value).map(|value| {
            self.0.insert(option.name, value);
        }))
    }

    /// Whether each option that was set is accepted by at least one of the kinds `given`.
    ///
    /// # Errors
    /// A message for the user: which options are for other kinds, and for which.
    pub(crate) fn are_taken_by(&self, given: &[&RegisteredKind]) -> Result<(), String> {
        let Some(name) = self.0.keys().find(|name| !given.iter().any(|kind| kind.takes(name))) else { return Ok(()) };
        Err(kinds().iter().find(|kind| kind.takes(name)).map(RegisteredKind::whose_options).unwrap_or_default())
    }
}

/// The parameters of opening a place.
#[derive(Clone, Copy, Debug)]
pub struct OpenRequest<'a> {
    /// Maximum number of bytes to use, if the user gave one.
    pub size: Option<u64>,
    /// The size in bytes that the run gives to places without one.
    pub usual: u64,
    /// Options that only some kinds accept; some may be for the other half of a mirror.
    pub options: &'a OptionValues,
}

impl OpenRequest<'_> {
    /// The size of the place: the user's, or that of the run.
    pub fn size_or_usual(&self) -> u64 {
        self.size.unwrap_or(self.usual)
    }
}

/// A place whose text was parsed.
pub(crate) trait ReadPlace: Any + fmt::Debug + Send + Sync {
    /// As [`DeviceKind::open`].
    fn open(&self, request: &OpenRequest<'_>) -> Result<Box<dyn Device>, String>;

    /// Whether both are the same place of the same kind.
    fn is_same(&self, other: &dyn ReadPlace) -> bool;
}

/// A place of the kind `K`.
struct PlaceOf<K: DeviceKind> {
    place: K::Place,
    kind: PhantomData<fn() -> K>,
}

impl<K: DeviceKind> PlaceOf<K> {
    fn read(text: &str) -> Result<Arc<dyn ReadPlace>, String> {
        Ok(Arc::new(Self { place: K::read(text)?, kind: PhantomData }))
    }
}

impl<K: DeviceKind> fmt::Debug for PlaceOf<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.place.fmt(f)
    }
}

impl<K: DeviceKind> ReadPlace for PlaceOf<K> {
    fn open(&self, request: &OpenRequest<'_>) -> Result<Box<dyn Device>, String> {
        K::open(&self.place, request)
    }

    fn is_same(&self, other: &dyn ReadPlace) -> bool {
        (other as &dyn Any).downcast_ref::<Self>().is_some_and(|other| other.place == self.place)
    }
}

/// A [`DeviceKind`] as the registry holds it.
#[derive(Debug)]
pub struct RegisteredKind {
    forms: &'static [PlaceForm],
    options: &'static [KindOption],
    options_are_for: &'static str,
    without_size: Option<&'static str>,
    is_memory: bool,
    recognises: fn(&str) -> bool,
    read: fn(&str) -> Result<Arc<dyn ReadPlace>, String>,
    absolute: fn(&str, &Path) -> String,
    #[cfg(test)]
    example: &'static str,
    #[cfg(test)]
    for_tests: fn(&Path) -> String,
}

impl RegisteredKind {
    const fn new<K: DeviceKind>() -> Self {
        Self {
            forms: K::FORMS,
            options: K::OPTIONS,
            options_are_for: K::OPTIONS_ARE_FOR,
            without_size: K::WITHOUT_SIZE,
            is_memory: K::IS_MEMORY,
            recognises: K::recognises,
            read: PlaceOf::<K>::read,
            absolute: K::absolute,
            #[cfg(test)]
            example: K::EXAMPLE,
            #[cfg(test)]
            for_tests: K::for_tests,
        }
    }

    /// As [`DeviceKind::IS_MEMORY`].
    pub(crate) fn is_memory(&self) -> bool {
        self.is_memory
    }

    /// As [`DeviceKind::read`].
    pub(crate) fn read(&self, text: &str) -> Result<Arc<dyn ReadPlace>, String> {
        (self.read)(text)
    }

    /// As [`DeviceKind::absolute`].
    pub(crate) fn absolute(&self, text: &str, directory: &Path) -> String {
        (self.absolute)(text, directory)
    }

    fn takes(&self, name: &str) -> bool {
        self.options.iter().any(|option| option.name == name)
    }

    /// The sentence for a place of another kind that was given options of this kind.
    fn whose_options(&self) -> String {
        let names: Vec<_> = self.options.iter().map(|option| format!("{}=", option.name)).collect();
        let verb = if names.len() == 1 { "is" } else { "are" };
        format!("{} {verb} for {}", help::listed(&names, " and "), self.options_are_for)
    }
}

/// The kind that recognises a text.
pub(crate) fn of(text: &str) -> &'static RegisteredKind {
    let (first, others) = KINDS.split_first().expect("a registry that is not empty");
    others.iter().rev().find(|kind| (kind.recognises)(text)).unwrap_or(first)
}

/// All kinds, in the order of the help.
pub fn kinds() -> &'static [RegisteredKind] {
    KINDS
}

/// Declares the file of each kind as a module, and makes its type an entry of the registry.
macro_rules! device_kinds {
    ($($(#[$when:meta])* $file:ident::$kind:ident,)*) => {
        $($(#[$when])* mod $file;)*
        static KINDS: &[RegisteredKind] = &[$($(#[$when])* RegisteredKind::new::<$file::$kind>(),)*];
    };
}

device_kinds! {
    path::PathKind,
    nbd::NbdKind,
    ram::RamKind,
    #[cfg(test)] sparse::SparseKind,
}
