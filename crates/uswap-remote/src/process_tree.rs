//! The processes of a run, and how they are killed.
//!
//! In `uswap run` these are the descendants of the engine, which is a subreaper, so that no
//! descendant gets away. In `uswap attach` they are the program, the processes that it forks from
//! then on and, with `--tree`, also those that it had forked before. The program is no child of the
//! engine: its orphaned descendants go to an unknown reaper. So the engine remembers each process
//! with its start time (process ids are reused), and looks for the children of each as long as it
//! lives.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use uswap_sys::process;

use uswap_sys::procfs::{self, OwnChildren, ProcessSeen};

/// A program to attach to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// Its process id.
    pub pid: u32,
    /// The processes that it has forked before belong to the run too.
    pub tree: bool,
}

const END_TIMEOUT: Duration = Duration::from_secs(10);

/// The processes of a run.
#[derive(Debug)]
pub enum Tree {
    /// The descendants of the calling process, which is keeper or engine.
    OfRun {
        /// Lists the children of this process without another descriptor.
        own: Option<OwnChildren>,
    },
    /// A program that was attached to.
    OfProgram {
        /// Process id of the program.
        root: u32,
        /// The processes that it had forked before belong to the run too.
        whole: bool,
        /// All processes of the run.
        members: Mutex<Members>,
    },
}

/// Processes, with the time at which each began.
#[derive(Debug, Default)]
pub struct Members {
    known: HashMap<u32, u64>,
    /// Processes that do not belong to the run, nor do their descendants.
    excluded: HashMap<u32, u64>,
}

impl Tree {
    /// The tree of a run that is about to begin. `keeper` does not belong to it, even if it is a
    /// descendant of the program.
    pub fn of(target: Option<Target>, keeper: u32) -> Self {
        let Some(target) = target else { return Self::OfRun { own: OwnChildren::open().ok() } };
        let mut members = Members::default();
        members.know(target.pid);
        for pid in procfs::children(target.pid).into_iter().chain([keeper]) {
            if let Some(born) = procfs::start_time(pid).filter(|_| !target.tree || pid == keeper) {
                members.excluded.insert(pid, born);
            }
        }
        Self::OfProgram { root: target.pid, whole: target.tree, members: Mutex::new(members) }
    }

    /// Whether the run was attached to a program.
    pub fn is_attached(&self) -> bool {
        matches!(self, Self::OfProgram { .. })
    }

    /// Whether the process is the only one that the user named: it gets an agent whatever its size.
    pub fn is_root(&self, pid: u32) -> bool {
        matches!(self, Self::OfProgram { root, whole: false, .. } if *root == pid)
    }

    /// A process with the same limits as all others: in `uswap run` the engine, whose limits the
    /// command inherits.
    pub fn first(&self) -> u32 {
        match self {
            Self::OfRun { .. } => std::process::id(),
            Self::OfProgram { root, .. } => *root,
        }
    }

    /// All processes of the tree that can be seen now.
    pub fn members(&self) -> Vec<u32> {
        self.look().pids
    }

    /// The processes of the tree, and whether that is all of them.
    pub fn look(&self) -> ProcessSeen {
        match self {
            Self::OfRun { .. } => procfs::descendants(std::process::id()),
            Self::OfProgram { members, .. } => members.lock().expect("members").look(),
        }
    }

    /// The same, with the children of this process in any case.
    fn look_hard(&self) -> ProcessSeen {
        let mut seen = self.look();
        if let (Self::OfRun { own: Some(own) }, false) = (self, seen.complete) {
            seen.pids.extend(own.read());
        }
        seen
    }

    /// Adds a process that turned out to belong to the tree: its parent had ended before it was
    /// seen.
    pub fn admit(&self, pid: u32) {
        if let Self::OfProgram { members, .. } = self {
            members.lock().expect("members").know(pid);
        }
    }

    /// Kills all processes of the tree, and reaps those that are children of this process, again
    /// and again until none is left: a process can fork between look-up and kill. Returns the
    /// processes that were still there after ten seconds, in words. When the look-up fails for want
    /// of a descriptor, the processes of `uswap run` are found as children of this process, one
    /// after the other, since every orphaned descendant becomes its child. Then only the kernel's
    /// answer counts that no child is left.
    pub fn kill(&self) -> Option<String> {
        let begun = Instant::now();
        loop {
            let left = self.look_hard();
            for pid in &left.pids {
                // An error means that the process is gone already.
                let _ = process::kill(*pid, 9);
            }
            let childless = is_childless();
            let gone = if left.complete { left.pids.is_empty() } else { childless && !self.is_attached() };
            if gone {
                return None;
            }
            if begun.elapsed() > END_TIMEOUT {
                return Some(in_words(&left));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Reaps the children that have ended. Returns whether none is left.
fn is_childless() -> bool {
    loop {
        match process::wait_news(None) {
            Ok(Some(_)) => {}
            Ok(None) => return false,
            Err(_) => return true,
        }
    }
}

fn in_words(left: &ProcessSeen) -> String {
    let pids: Vec<String> = left.pids.iter().map(u32::to_string).collect();
    let more = if left.complete { "" } else { " (and what cannot be seen for want of descriptors)" };
    format!("not ended within {} seconds: processes {}{more}", END_TIMEOUT.as_secs(), pids.join(", "))
}

impl Members {
    fn know(&mut self, pid: u32) {
        if let Some(born) = procfs::start_time(pid) {
            self.known.insert(pid, born);
        }
    }

    /// The members that live, and all their descendants.
    fn look(&mut self) -> ProcessSeen {
        let mut complete = true;
        let mut lives = |pid: &u32, known: &mut u64| match procfs::born(*pid) {
            Ok(born) => born == Some(*known),
            Err(_) => {
                complete = false;
                true
            }
        };
        self.known.retain(&mut lives);
        self.excluded.retain(&mut lives);
        let mut pids: Vec<u32> = self.known.keys().copied().collect();
        let mut next = 0;
        while next < pids.len() {
            match procfs::children_seen(pids[next]) {
                Ok(below) => complete &= self.admit(below, &mut pids),
                Err(_) => complete = false,
            }
            next += 1;
        }
        ProcessSeen { pids, complete }
    }

    /// Adds the children `below` of a member as members, and to `pids`. Returns `false` if not all
    /// could be read.
    fn admit(&mut self, below: Vec<u32>, pids: &mut Vec<u32>) -> bool {
        let mut complete = true;
        for pid in below {
            if self.excluded.contains_key(&pid) || self.known.contains_key(&pid) {
                continue;
            }
            match procfs::born(pid) {
                Ok(Some(born)) => {
                    self.known.insert(pid, born);
                    pids.push(pid);
                }
                Ok(None) => {}
                Err(_) => complete = false,
            }
        }
        complete
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command};

    fn sleeper() -> Child {
        Command::new("sleep").arg("60").spawn().expect("a child")
    }

    fn tree(pid: u32, tree: bool) -> Members {
        let Tree::OfProgram { members, .. } = Tree::of(Some(Target { pid, tree }), 1) else { panic!("attached") };
        members.into_inner().expect("members")
    }

    /// Kills the children when the test ends, also by a panic.
    struct Ended(Vec<Child>);

    impl Drop for Ended {
        fn drop(&mut self) {
            for child in &mut self.0 {
                child.kill().and_then(|()| child.wait()).expect("our child");
            }
        }
    }

    #[test]
    fn children_from_before_belong_only_to_a_whole_tree() {
        let me = std::process::id();
        let mut children = Ended(vec![sleeper()]);
        let before = children.0[0].id();
        let (mut alone, mut whole) = (tree(me, false), tree(me, true));
        children.0.push(sleeper());
        let later = children.0[1].id();
        let (alone, whole) = (alone.look().pids, whole.look().pids);
        assert!(alone.contains(&me) && alone.contains(&later) && !alone.contains(&before), "{alone:?}");
        assert!([me, later, before].iter().all(|pid| whole.contains(pid)), "{whole:?}");
    }

    #[test]
    fn who_has_ended_is_forgotten_and_an_orphan_is_not() {
        // The shell ends, and its child goes to another reaper.
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 30 & echo $!; sleep 0.3"]).stdout(std::process::Stdio::piped());
        let mut shell = command.spawn().expect("a shell");
        let mut members = tree(shell.id(), true);
        let mut line = String::new();
        let output = shell.stdout.take().expect("a pipe");
        std::io::BufRead::read_line(&mut std::io::BufReader::new(output), &mut line).expect("a line");
        let orphan: u32 = line.trim().parse().expect("a number");
        assert!(members.look().pids.contains(&orphan));
        shell.wait().expect("our child");
        let left = members.look().pids;
        assert_eq!(left, [orphan]);
        process::kill(orphan, 9).expect("alive");
        let gone = (0..1000).any(|_| {
            std::thread::sleep(Duration::from_millis(2));
            members.look().pids.is_empty()
        });
        assert!(gone, "{:?}", members.look());
    }
}
