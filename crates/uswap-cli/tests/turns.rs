//! Processes that do not fit together take turns. Each of these tests has the machine for itself:
//! what load control sees is how long processes wait, for one another and for whatever else runs.

mod common;

use std::ffi::OsString;
use std::sync::{Mutex, MutexGuard, PoisonError};

use common::victims::victim;
use common::{Launch, Outcome, under};

fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn launch(ram: &str) -> Launch {
    under(ram).deadline(100).swap_file("3G")
}

fn words(name: &str, arguments: &str) -> Vec<OsString> {
    let mut all = vec![victim(name).into_os_string()];
    all.extend(arguments.split_whitespace().map(OsString::from));
    all.extend(["--timeout".into(), "90".into()]);
    all
}

/// A crowd in turns of three seconds, one process at a time, and its figures of load control.
fn in_long_turns(rule_off: &str, arguments: &str) -> (Outcome, serde_json::Value) {
    let outcome = launch("44M").faults(&format!("crowd,turn=3000,{rule_off}")).run(words("crowd", arguments));
    outcome.expect(0);
    let load = outcome.stats.as_ref().map(|stats| stats["load_control"].clone()).unwrap_or_default();
    (outcome, load)
}

/// Each of the processes needs most of the budget, and has to wait for whole turns of others: its
/// faults wait for a tenth of a second at a time.
#[test]
fn no_fault_is_held_for_long() {
    need_userfaultfd!();
    let _alone = alone();
    let longest = |rule_off| {
        let (outcome, load) = in_long_turns(rule_off, "--processes 3 --memory 99 --rounds 1 --seconds 4");
        outcome.paged();
        assert!(outcome.stat("held_faults") > 0, "nobody was held: {}", outcome.account());
        load["longest_hold_ms"].as_u64().unwrap_or_else(|| panic!("no longest hold in {load}"))
    };
    // Whoever is to serve it may be kept from the processor by others, but not each time.
    let mut with = Vec::new();
    while with.len() < 4 && with.last().is_none_or(|longest| *longest > 400) {
        with.push(longest(""));
    }
    let without = longest("long-hold");
    common::notice(&format!("the longest that a fault was held: {with:?} ms, without the rule {without} ms"));
    assert!(with.iter().any(|longest| (50..=400).contains(longest)), "{with:?} ms");
    assert!(without > 1000, "{without} ms without the rule");
}

/// Three processes that sleep most of the time, and a turn that is far longer than what they do in
/// between. Without the rule who wakes up would wait for the end of the turn of one that sleeps,
/// and be let go on by its faults only, a tenth of a second each.
#[test]
fn the_next_comes_in_when_nobody_who_is_in_wants_to_run() {
    need_userfaultfd!();
    let _alone = alone();
    let run = |rule_off| {
        let (outcome, load) = in_long_turns(rule_off, "--processes 3 --memory 51 --rounds 6 --nap 450");
        (outcome.stat("held_to_the_end"), outcome.stat("held_faults"), load["turns"].as_u64().unwrap_or(0))
    };
    // There are 18 walks, of which most share a turn, and hardly a fault is held, or none at all
    // where nobody wakes up while another walks. Beside other load walks take as long as naps, and
    // have to wait for one another, so the number of turns tells: 13 to 17 there.
    let goes_in_turns = |(_, _, turns): &(u64, u64, u64)| *turns >= 4;
    let mut with = Vec::new();
    while with.len() < 6 && !with.last().is_some_and(goes_in_turns) {
        with.push(run(""));
    }
    let without = run("idle-turns");
    common::notice(&format!("held to the end, held, turns: {with:?}, without the rule {without:?}"));
    assert!(with.last().is_some_and(goes_in_turns), "{with:?}");
    assert!(without.1 > 0 && without.0 * 5 >= without.1 * 4 && without.2 < 4, "{without:?} without the rule");
}

/// What turns are for: eight processes that each fit bring back much less in turns than all at
/// once.
#[test]
fn a_crowd_in_turns_carries_fewer_pages() {
    need_userfaultfd!();
    let _alone = alone();
    let brought_back = |turns| {
        let crowd = launch("64M").option("--load-control", turns).run(words("crowd", "--memory 192 --rounds 12"));
        crowd.expect(0).paged();
        assert_eq!(crowd.stat("held_faults") > 0, turns == "on", "{}", crowd.account());
        crowd.stat("zswpin") + crowd.stat("pswpin")
    };
    let (all_at_once, in_turns) = (brought_back("off"), brought_back("on"));
    // Without other load it is a tenth.
    assert!(in_turns * 4 < all_at_once * 3, "{in_turns} pages brought back in turns, {all_at_once} without");
}

/// What a process had before it had to wait comes back together when its turn begins, with the
/// right bytes (the program looks at each page), without a fault for each page.
#[test]
fn a_turn_begins_with_the_working_set() {
    need_userfaultfd!();
    let _alone = alone();
    let run = |faults: &str| {
        let launch = launch("64M").option("--load-control", "on").faults(faults);
        let crowd = launch.run(words("crowd", "--memory 192 --rounds 12"));
        crowd.expect(0).paged();
        assert_eq!(crowd.stat("checksum_errors") + crowd.stat("poisoned_pages"), 0, "{}", crowd.account());
        (crowd.stat("prepaged"), crowd.stat("pgmajfault"))
    };
    let ((without, by_faults), (prepaged, left)) = (run("no-prepaging"), run(""));
    common::notice(&format!(
        "{by_faults} faults without it; {prepaged} pages without a fault and {left} faults with it"
    ));
    assert!(without == 0 && prepaged > 2048, "{prepaged} pages, {left} and {by_faults} faults");
}
