//! The grammar of swap specifications: accepted texts, each sentence that refuses a text, and texts
//! for another directory.

use proptest::prelude::*;

use super::*;

fn plain(place: &str) -> SwapSpec {
    let place = place.parse().expect("a place");
    SwapSpec { place, priority: 0, size: None, options: OptionValues::default(), mirror: None }
}

fn options(given: &[(&str, &str)]) -> OptionValues {
    let mut options = OptionValues::default();
    given.iter().for_each(|(name, value)| options.set(name, value).expect("an option").expect("a value"));
    options
}

fn error(text: &str) -> String {
    text.parse::<SwapSpec>().expect_err(text)
}

#[test]
fn swap_places_are_read_with_their_options() {
    let spec: SwapSpec = "/no/such/swap,prio=-3,size=1.5G".parse().expect("a spec");
    assert_eq!(spec, SwapSpec { priority: -3, size: Some(3 << 29), ..plain("/no/such/swap") });
    assert_eq!("ram".parse(), Ok(plain("ram")));
    for bad in ["", ",prio=1", "/", "http://host/x", "f,prio=", "f,prio=x", "f,size=50%", "f,size=x", "f,x=1", "f,"] {
        assert!(bad.parse::<SwapSpec>().is_err(), "{bad}");
    }
}

#[test]
fn servers_have_options_of_their_own() {
    let spec: SwapSpec = "nbd://host/x,timeout=5,prio=2,connections=3".parse().expect("a spec");
    let own = options(&[("timeout", "5"), ("connections", "3")]);
    assert_eq!(spec, SwapSpec { priority: 2, options: own, ..plain("nbd://host/x") });
    for bad in ["timeout=0", "timeout=x", "timeout=3601", "connections=0", "connections=17", "connections=x"] {
        assert!(format!("nbd://host/x,{bad}").parse::<SwapSpec>().is_err(), "{bad}");
    }
    let mirrored: SwapSpec = "/file,mirror=nbd://host/x,timeout=5".parse().expect("a spec");
    assert_eq!(mirrored.mirror, Some("nbd://host/x".parse().expect("a place")));
    for option in ["timeout=5", "connections=2", "mirror=", "mirror=/file", "mirror=/", "mirror=nbd://"] {
        assert!(format!("/file,{option}").parse::<SwapSpec>().is_err(), "{option}");
    }
}

#[test]
fn what_is_refused_is_told_in_a_sentence() {
    let unknown = "(prio=N, size=SIZE, timeout=SECONDS, connections=N, mirror=PLACE)";
    for (text, why) in [
        ("", "a place is missing"),
        (",prio=1", "a place is missing"),
        ("/", "that is a directory; name a file in it, or a block device"),
        ("7G", "that is a size; a place comes first: PATH,size=7G (a file of this name is ./7G)"),
        ("http://h", "unknown scheme \"http\": nbd, nbds, nbd+unix and nbds+unix are known"),
        ("f,prio=x", "prio=x is not a number"),
        ("f,size=50%", "size in bytes, please"),
        ("f,size=x", "\"x\" is not a size: write it like 512M, 1.5GiB or 80%"),
        ("f,timeout=0", "timeout=0: between 1 and 3600 seconds"),
        ("f,connections=17", "connections=17: between 1 and 16"),
        ("f,timeout=5", "timeout= and connections= are for NBD servers"),
        ("ram,mirror=f,connections=1", "timeout= and connections= are for NBD servers"),
        ("f,mirror=", "mirror=: a place is missing"),
        ("f,mirror=/", "mirror=/: that is a directory; name a file in it, or a block device"),
        ("f,mirror=f", "a mirror has two different places"),
        ("a/b,mirror=a//b", "a mirror has two different places"),
        ("ram,mirror=ram", "a mirror has two different places"),
        ("f,", &format!("unknown option \"\" {unknown}")),
        ("f,timeout", &format!("unknown option \"timeout\" {unknown}")),
        ("f,x=1,prio=x", &format!("unknown option \"x=1\" {unknown}")),
    ] {
        assert_eq!(error(text), why, "{text}");
    }
}

#[test]
fn relative_places_are_completed_and_others_left() {
    let absolute = |text| absolute(text, "/here".as_ref());
    assert_eq!(absolute("a/b,prio=1"), "/here/a/b,prio=1");
    assert_eq!(absolute("nbd://h/x,mirror=b"), "nbd://h/x,mirror=/here/b");
    for same in ["/a,size=1G", "ram", "ram,size=1M", "nbd://h/x", "", ",prio=1", "/a,mirror=,x"] {
        assert_eq!(absolute(same), same);
    }
    // Names of devices, and texts that are no specification.
    for (name, completed) in
        [("7G", "/here/7G"), ("tmp/(unnamed)", "/here/tmp/(unnamed)"), ("f,mirror=f", "/here/f,mirror=/here/f")]
    {
        assert_eq!(absolute(name), completed);
    }
}

/// Texts of places, no two of them equal, each with its text for another directory.
const PLACES: [[&str; 2]; 5] = [
    ["no-such/swap", "/here/no-such/swap"],
    ["/no/such/swap", "/no/such/swap"],
    ["./7G", "/here/./7G"],
    ["ram", "ram"],
    ["nbd://there/swap", "nbd://there/swap"],
];
/// The place of a server.
const SERVER: usize = 4;

#[derive(Clone, Debug)]
enum Part {
    Priority(i32),
    Size(u64),
    Own(&'static str, u64),
    Mirror(usize),
}

fn part() -> impl Strategy<Value = Part> {
    prop_oneof![
        any::<i32>().prop_map(Part::Priority),
        (0..1u64 << 50).prop_map(Part::Size),
        (1..=3600u64).prop_map(|seconds| Part::Own("timeout", seconds)),
        (1..=16u64).prop_map(|number| Part::Own("connections", number)),
        (0..PLACES.len()).prop_map(Part::Mirror),
    ]
}

/// The text of a specification; `from` chooses the directory.
fn written(place: usize, parts: &[Part], from: usize) -> String {
    parts.iter().fold(PLACES[place][from].to_string(), |text, part| match part {
        Part::Priority(priority) => format!("{text},prio={priority}"),
        Part::Size(size) => format!("{text},size={size}"),
        Part::Own(name, value) => format!("{text},{name}={value}"),
        Part::Mirror(place) => format!("{text},mirror={}", PLACES[*place][from]),
    })
}

/// The expected result of parsing: the last option of a name counts.
fn meant(place: usize, parts: &[Part], from: usize) -> Option<SwapSpec> {
    let (mut spec, mut mirror) = (plain(PLACES[place][from]), None);
    for part in parts {
        match *part {
            Part::Priority(priority) => spec.priority = priority,
            Part::Size(size) => spec.size = Some(size),
            Part::Own(name, value) => drop(spec.options.set(name, &value.to_string())),
            Part::Mirror(other) if other == place => return None,
            Part::Mirror(other) => mirror = Some(other),
        }
    }
    spec.mirror = mirror.map(|other| PLACES[other][from].parse().expect("a place"));
    let is_taken = spec.options == OptionValues::default() || [Some(place), mirror].contains(&Some(SERVER));
    is_taken.then_some(spec)
}

proptest! {
    #[test]
    fn a_specification_means_the_same_in_another_directory(
        place in 0..PLACES.len(),
        parts in prop::collection::vec(part(), 0..6),
    ) {
        let text = written(place, &parts, 0);
        prop_assert_eq!(text.parse().ok(), meant(place, &parts, 0), "{}", text);
        let elsewhere = absolute(&text, "/here".as_ref());
        prop_assert_eq!(&elsewhere, &written(place, &parts, 1));
        prop_assert_eq!(elsewhere.parse().ok(), meant(place, &parts, 1), "{}", elsewhere);
        prop_assert_eq!(absolute(&elsewhere, "/nowhere".as_ref()), elsewhere);
    }

    #[test]
    fn any_text_is_read_or_refused_with_a_sentence(text in "[a-z0-9=,:/.%M-]{0,24}") {
        match text.parse::<SwapSpec>() {
            Ok(spec) => prop_assert!(spec.places().all(|place| text.contains(&place.to_string()))),
            Err(sentence) => prop_assert!(!sentence.is_empty()),
        }
    }
}
