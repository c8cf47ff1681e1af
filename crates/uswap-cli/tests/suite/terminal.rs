//! `uswap run` on a terminal: interrupting, stopping and continuing, an interactive shell.

use crate::common;

use common::terminal::{CTRL_BACKSLASH, CTRL_C, CTRL_Z, play, shell, under_64m};
use common::victims::victim;
use common::{installed, skip};

macro_rules! need_python {
    () => {
        need_userfaultfd!();
        if !installed("python3") {
            return skip("python3 plays the terminal");
        }
    };
}

fn ours<'a>(command: &[&'a str]) -> Vec<&'a str> {
    under_64m().iter().chain(command).copied().collect()
}

/// The command gets the interrupt once: from the terminal, not from the keeper as well.
#[test]
fn ctrl_c() {
    need_python!();
    let script = "n=0; trap 'n=$((n+1))' INT; echo ready; while [ $n = 0 ]; do sleep 0.05; done; sleep 0.3; \
                  echo interrupts: $n; exit 5";
    let outcome = play(&ours(&["bash", "-c", script]), &[("ready", CTRL_C)]);
    outcome.expect(5);
    assert!(outcome.stdout.contains("interrupts: 1"), "{}", outcome.account());
}

#[test]
fn ctrl_c_ends_a_command_that_does_not_catch_it() {
    need_python!();
    let words = ours(&["bash", "-c", "echo ready; exec sleep 20"]);
    play(&words, &[("ready", CTRL_C)]).expect(128 + 2);
    play(&words, &[("ready", CTRL_BACKSLASH)]).expect(128 + 3);
}

/// The shell sees its job stop; `fg` and `bg` continue it.
#[test]
fn ctrl_z_and_fg() {
    need_python!();
    // Without a trap bash goes on if the interrupt comes when `sleep` has just ended by itself.
    let job = "trap \"exit 130\" INT; n=0; while [ $n -lt 400 ]; do n=$((n+1)); echo tick $n; sleep 0.05; done";
    let line = format!("'{}' bash -c '{job}'\n", under_64m().join("' '"));
    let outcome = play(
        &shell(),
        &[
            ("shell> ", &line),
            ("tick 5", CTRL_Z),
            ("Stopped", "fg\n"),
            ("tick 20", CTRL_Z),
            ("Stopped", "bg; sleep 0.5\n"),
            ("tick 30", "fg\n"),
            ("tick 50", CTRL_C),
            ("shell> ", "echo status=$?\n"),
            ("status=130", "exit 6\n"),
        ],
    );
    outcome.expect(6);
}

/// The same with a program whose memory is being paged.
#[test]
fn ctrl_z_while_paging() {
    need_python!();
    let program = victim("fill_twice");
    let line = format!("'{}' '{}' 128 --reads 20; echo ended=$?\n", under_64m().join("' '"), program.display());
    let outcome = play(
        &shell(),
        &[
            ("shell> ", &line),
            ("read 1 ", CTRL_Z),
            ("Stopped", "sleep 1; fg; echo again=$?\n"),
            ("again=0", "exit 0\n"),
        ],
    );
    outcome.expect(0);
}

#[test]
fn interactive_shell() {
    need_python!();
    let inner = shell();
    let shell = ours(&inner.each_ref().map(String::as_str));
    let steps = [
        ("shell> ", "echo $((6 * 7))\n"),
        ("42", "sleep 30\n"),
        ("sleep 30", CTRL_Z),
        ("Stopped", "kill %1; wait; python3 -c 'print(len(bytes(10**8)))'\n"),
        ("100000000", "exit 3\n"),
    ];
    let outcome = play(&shell, &steps);
    outcome.expect(3);
    assert!(!outcome.stdout.contains("no job control"), "{}", outcome.account());
}

/// The size of the terminal and its name are the program's to see.
#[test]
fn terminal_is_the_programs_own() {
    need_python!();
    let script = "test -t 0 && test -t 1 && test -t 2 && tty && stty -a >/dev/null && echo ready";
    let outcome = play(&ours(&["bash", "-c", script]), &[("ready", "")]);
    outcome.expect(0);
}
