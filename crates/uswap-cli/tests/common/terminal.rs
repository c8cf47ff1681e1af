//! A program on its own terminal, driven by Python's pty module: it waits for some text, types some
//! keys, and so on.

use std::time::Duration;

use super::{Outcome, USWAP, plain};

const PLAYER: &str = r#"
import json, os, pty, select, signal, sys, time
steps = json.loads(sys.argv[1])
pid, terminal = pty.fork()
if pid == 0:
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    os.execvp(sys.argv[2], sys.argv[2:])
seen, whole, end = "", "", time.time() + float(os.environ["PATIENCE"])

def read_more():
    global seen, whole
    if time.time() > end:
        sys.stdout.write(whole)
        sys.stdout.flush()
        sys.stderr.write("the terminal did not show %r in time\n" % (step[0],))
        os.kill(pid, signal.SIGKILL)
        os._exit(99)
    if not select.select([terminal], [], [], 0.05)[0]:
        return True
    try:
        piece = os.read(terminal, 65536).decode(errors="replace")
    except OSError:
        piece = ""
    seen, whole = seen + piece, whole + piece
    return piece != ""

for step in steps:
    while step[0] not in seen:
        if not read_more():
            break
    seen = seen.split(step[0], 1)[-1]
    time.sleep(0.2)
    os.write(terminal, step[1].encode())
step = ["its end", ""]
while read_more():
    pass
status = os.waitpid(pid, 0)[1]
sys.stdout.write(whole)
sys.exit(os.waitstatus_to_exitcode(status) & 255)
"#;

/// An interactive shell with the prompt `shell> ` and without the user's configuration.
pub fn shell() -> [String; 4] {
    let file = super::place("shell.rc");
    std::fs::write(&file, "PS1='shell> '\n").expect("rc file");
    ["bash".into(), "--rcfile".into(), file.display().to_string(), "-i".into()]
}

/// Keys.
pub const CTRL_C: &str = "\x03";
pub const CTRL_Z: &str = "\x1a";
pub const CTRL_BACKSLASH: &str = "\x1c";

/// Runs a program and plays the steps (the text to wait for, the keys to type then); the outcome
/// has the program's status. Status 99 means that an expected text was not shown.
pub fn play<S: AsRef<str>>(program: &[S], steps: &[(&str, &str)]) -> Outcome {
    let steps: Vec<_> = steps.iter().map(|(shown, typed)| [shown, typed]).collect();
    let steps = serde_json::to_string(&steps).expect("steps");
    let patience = Duration::from_secs(30);
    let player = plain().deadline(patience.as_secs() + 10).env("PATIENCE", patience.as_secs().to_string());
    player.env("TERM", "dumb").run(["python3", "-c", PLAYER, &steps].into_iter().chain(program.iter().map(S::as_ref)))
}

/// The start of a command line under uswap.
pub fn under_64m() -> [&'static str; 6] {
    [USWAP, "run", "-q", "--ram", "64M", "--"]
}
