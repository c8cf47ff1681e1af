//! The kinds of places that swap can go to, and the registry of them.
//!
//! A kind is one file in this folder and one line in `device_kinds!`, at the end of this file. The
//! grammar of a swap specification (`spec.rs`), the help, the man page and the checks that every
//! kind passes (`checks.rs`) follow from the registry.
//!
//! The first kind of the registry takes each text that no other kind recognises. The later kinds
//! must recognise different texts: [`of`] asks the last one first.

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
    /// What the text of a place is read into, once.
    type Place: fmt::Debug + PartialEq + Send + Sync;

    /// How users write a place of this kind.
    const FORMS: &'static [PlaceForm];

    /// Options that this kind takes besides `prio=`, `size=` and `mirror=`. Kinds that share an
    /// option share its constant.
    const OPTIONS: &'static [KindOption] = &[];

    /// What the options are for, as in "timeout= is for NBD servers".
    const OPTIONS_ARE_FOR: &'static str = "";

    /// What is used of a place without `size=`, for the man page, where it is not the size that the
    /// run gives.
    const WITHOUT_SIZE: Option<&'static str> = None;

    /// The pages lie in memory of this process. The device is called by the text of its place then:
    /// the governor asks for what lies there by this name.
    const IS_MEMORY: bool = false;

    /// A place of this kind, for the checks.
    const EXAMPLE: &'static str;

    /// Whether a text means a place of this kind, a right one or a wrong one.
    fn recognises(text: &str) -> bool;

    /// Reads a text that this kind recognises. It is not empty and has no comma.
    ///
    /// # Errors
    /// For the user: what is wrong with it.
    fn read(text: &str) -> Result<Self::Place, String>;

    /// The text of the same place for a process in another directory than `directory`.
    fn absolute(text: &str, directory: &Path) -> String {
        let _ = directory;
        text.into()
    }

    /// Opens the place.
    ///
    /// # Errors
    /// For the user: why it cannot be swapped to.
    fn open(place: &Self::Place, request: &OpenRequest<'_>) -> Result<Box<dyn Device>, String>;

    /// The text of a place that can be opened in a test with this directory for its files.
    #[cfg(test)]
    fn for_tests(directory: &Path) -> String {
        Self::absolute(Self::EXAMPLE, directory)
    }
}

/// How users write a place.
#[derive(Clone, Copy, Debug)]
pub struct PlaceForm {
    /// As the man page shows it: `nbd://HOST[:PORT]/EXPORT`.
    pub syntax: &'static str,
    /// The man page's sentences.
    pub about: &'static str,
    /// What lists of places in one line call it. Without it they leave it out.
    pub short: Option<ShortForm>,
}

/// What lists of places call a form.
#[derive(Clone, Copy, Debug)]
pub struct ShortForm {
    /// Among texts: `PATH`.
    pub written: &'static str,
    /// Among things: `a file (made if missing)`.
    pub noun: &'static str,
}

/// An option that some kinds take, `NAME=NUMBER`. What is no number belongs into the text of the
/// place, as the query of a URI does.
#[derive(Debug)]
pub struct KindOption {
    /// Its name.
    pub name: &'static str,
    /// What help calls its value.
    pub value: &'static str,
    /// The values that it may have.
    pub range: RangeInclusive<u64>,
    /// What the value counts, after a blank, for the sentence that refuses another.
    pub unit: &'static str,
    /// The man page's sentences.
    pub about: &'static str,
}

impl KindOption {
    /// Reads its value.
    ///
    /// # Errors
    /// For the user: it is no number or out of its range.
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
    /// The value of an option that was given.
    pub fn get(&self, option: &KindOption) -> Option<u64> {
        self.0.get(option.name).copied()
    }

    /// Reads an option if some kind takes it; the last one of a name counts. `None`: no kind takes
    /// an option of this name.
    pub(crate) fn set(&mut self, name: &str, value: &str) -> Option<Result<(), String>> {
        let option = kinds().iter().flat_map(|kind| kind.options).find(|option| option.name == name)?;
        Some(option.read(value).map(|value| {
            self.0.insert(option.name, value);
        }))
    }

    /// Whether each was given to one of these kinds at least.
    ///
    /// # Errors
    /// For the user: which options are for other kinds, and for which.
    pub(crate) fn are_taken_by(&self, given: &[&RegisteredKind]) -> Result<(), String> {
        let Some(name) = self.0.keys().find(|name| !given.iter().any(|kind| kind.takes(name))) else { return Ok(()) };
        Err(kinds().iter().find(|kind| kind.takes(name)).map(RegisteredKind::whose_options).unwrap_or_default())
    }
}

/// What a place is opened with.
#[derive(Clone, Copy, Debug)]
pub struct OpenRequest<'a> {
    /// Most bytes to be used, if the user has said so.
    pub size: Option<u64>,
    /// The size that the run gives to places without one.
    pub usual: u64,
    /// Options of kinds; some may be for the other half of a mirror.
    pub options: &'a OptionValues,
}

impl OpenRequest<'_> {
    /// The size for a place that has none of its own.
    pub fn size_or_usual(&self) -> u64 {
        self.size.unwrap_or(self.usual)
    }
}

/// A place that was read.
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

    /// Why another kind is refused the options of this one.
    fn whose_options(&self) -> String {
        let names: Vec<_> = self.options.iter().map(|option| format!("{}=", option.name)).collect();
        let verb = if names.len() == 1 { "is" } else { "are" };
        format!("{} {verb} for {}", help::listed(&names, " and "), self.options_are_for)
    }
}

/// The kind that a text of a place means.
pub(crate) fn of(text: &str) -> &'static RegisteredKind {
    let (first, others) = KINDS.split_first().expect("a registry that is not empty");
    others.iter().rev().find(|kind| (kind.recognises)(text)).unwrap_or(first)
}

/// All kinds, in the order of help.
pub fn kinds() -> &'static [RegisteredKind] {
    KINDS
}

/// Declares each kind's file as a module, and its type as a line of the registry.
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
