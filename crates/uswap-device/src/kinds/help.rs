//! Texts about swap places and their options for the help and the man page, made from the registry.

use super::{KindOption, RegisteredKind, ShortForm, kinds};

/// An option that the grammar itself accepts, for every kind.
struct CommonOption {
    name: &'static str,
    value: &'static str,
    about: &'static str,
}

const PRIORITY: CommonOption =
    CommonOption { name: "prio", value: "N", about: "Higher priorities are filled first (default 0)." };
const SIZE: CommonOption = CommonOption { name: "size", value: "SIZE", about: "Use at most so much" };
const MIRROR: CommonOption = CommonOption {
    name: "mirror",
    value: "PLACE",
    about: "Write each page there too. The place that fails is left for good, the other has all.",
};

impl CommonOption {
    fn text(&self) -> String {
        format!("{}={}", self.name, self.value)
    }
}

impl KindOption {
    fn text(&self) -> String {
        format!("{}={}", self.name, self.value)
    }
}

/// Joins words to a list, with `last` in place of the comma before the last word.
pub(super) fn listed<S: AsRef<str>>(words: &[S], last: &str) -> String {
    let words: Vec<&str> = words.iter().map(AsRef::as_ref).collect();
    match words.split_last() {
        Some((end, begin)) if !begin.is_empty() => format!("{}{last}{end}", begin.join(", ")),
        _ => words.concat(),
    }
}

fn short_forms(word: fn(&ShortForm) -> &'static str) -> String {
    let forms = kinds().iter().flat_map(|kind| kind.forms).filter_map(|form| form.short.as_ref());
    listed(&forms.map(word).collect::<Vec<_>>(), ", or ")
}

/// List of the places as users write them.
pub fn written_places() -> String {
    short_forms(|form| form.written)
}

/// List of the places in words.
pub fn places_as_things() -> String {
    short_forms(|form| form.noun)
}

/// The options in one line: those of all places, then those of some kinds.
pub fn options_in_one_line() -> String {
    let [prio, size, mirror] = [PRIORITY, SIZE, MIRROR].map(|option| option.text());
    let common = format!("[,{prio}][,{size}] [,{mirror}]");
    let own = |kind: &RegisteredKind| {
        let options: String = kind.options.iter().map(|option| format!("[,{}]", option.text())).collect();
        format!(", of {} also {options}", kind.options_are_for)
    };
    common + &kinds().iter().filter(|kind| !kind.options.is_empty()).map(own).collect::<String>()
}

/// The options of all kinds, each name once.
fn options_of_kinds() -> Vec<&'static KindOption> {
    let mut options: Vec<&KindOption> = Vec::new();
    for option in kinds().iter().flat_map(|kind| kind.options) {
        if !options.iter().any(|known| known.name == option.name) {
            options.push(option);
        }
    }
    options
}

/// All options, as a list for the sentence that refuses an unknown one.
pub(crate) fn known_options() -> String {
    let own = options_of_kinds().into_iter().map(KindOption::text);
    let all = [PRIORITY.text(), SIZE.text()].into_iter().chain(own).chain([MIRROR.text()]);
    all.collect::<Vec<_>>().join(", ")
}

/// The entries of the man page: each form of a place and each option, with its description. `usual`
/// is the size that the run gives to places without one, in words.
pub fn manual_entries(usual: &str) -> Vec<(String, String)> {
    let forms = kinds().iter().flat_map(|kind| kind.forms).map(|form| (form.syntax.into(), form.about.into()));
    let sizes: String = kinds().iter().filter_map(|kind| kind.without_size).map(|of| format!("; {of}")).collect();
    let size = format!("{} (default for a place that is named: {usual}{sizes}).", SIZE.about);
    let common = [(PRIORITY, PRIORITY.about.into()), (SIZE, size), (MIRROR, MIRROR.about.into())];
    let common = common.into_iter().map(|(option, about): (CommonOption, String)| (option.text(), about));
    let own = options_of_kinds().into_iter().map(|option| (option.text(), option.about.into()));
    forms.chain(common.chain(own).map(|(text, about)| (format!(",{text}"), about))).collect()
}
