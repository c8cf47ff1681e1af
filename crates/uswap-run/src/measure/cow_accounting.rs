//! Pages that processes share with relatives since a fork, read by a separate thread.
//!
//! Pages that a fork left shared are counted in parent and child. Only smaps_rollup shows their
//! number (proc_pid_smaps(5)), and reading it takes the lock of the process's address space: if a
//! thread of that process holds the lock and waits for a processor, the reader waits too, for as
//! long as a hundred milliseconds beside thirty busy processes. The governor must not wait: it
//! sends questions to this thread, and goes on with the last answers.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::time::{Duration, Instant};

use uswap_sys::io::spares::{Spares, is_shortage};
use uswap_sys::process::is_gone;

use uswap_sys::process::thread::spawn;
use uswap_sys::procfs;

/// Reading walks page tables, so the thread then rests this many times as long as it has read.
const REST: u32 = 4;
/// The longest rest while answers differ, and after [`CALM`] rounds in a row with the same answers:
/// a page table with many file pages takes milliseconds to read, and a browser has dozens of them.
const LONGEST_REST: Duration = Duration::from_millis(20);
const LONGEST_CALM_REST: Duration = Duration::from_millis(250);
const CALM: u32 = 3;
/// Two answers for a process that differ by at most one part in this many, or this many pages,
/// count as the same.
const SAME: i64 = 64;

/// A question for the shared pages of a process, with the state of the process at that time.
#[derive(Clone, Copy, Debug, Default)]
pub struct CopiesAsked {
    pub pid: u32,
    /// A thread of it that is alive: by the id of a main thread that has ended nothing is shown.
    pub thread: u32,
    /// Identifies its image.
    pub family: usize,
    /// Number of births in its fork family so far.
    pub births: u32,
    /// How many pages its writes had copied.
    pub copied: u64,
}

/// The governor's end of the channels to the thread.
#[derive(Debug, Default)]
pub struct ForkShares {
    /// The thread; it starts with the first question, since most programs never fork.
    thread: Option<Ends>,
}

#[derive(Debug)]
struct Ends {
    questions: SyncSender<Vec<CopiesAsked>>,
    answers: Receiver<Vec<(CopiesAsked, i64)>>,
}

impl ForkShares {
    /// Starts the thread; it ends after the governor.
    fn start() -> std::io::Result<Ends> {
        let (questions, asked) = sync_channel(1);
        let (told, answers) = channel();
        spawn("shares".into(), move || read(&asked, &told))?;
        Ok(Ends { questions, answers })
    }

    /// Asks for these processes, in this order. `false`: the thread is still busy with others, or
    /// cannot be started (EAGAIN).
    pub fn ask(&mut self, processes: Vec<CopiesAsked>) -> bool {
        if processes.is_empty() {
            return true;
        }
        if self.thread.is_none() {
            self.thread = Self::start().ok();
        }
        self.thread.as_ref().is_some_and(|thread| thread.questions.try_send(processes).is_ok())
    }

    /// Pages shared with relatives, for each process that was read meanwhile. Processes that were
    /// asked for together are answered together, since a share that one process loses moves to its
    /// relatives.
    pub fn answers(&self) -> impl Iterator<Item = Vec<(CopiesAsked, i64)>> {
        self.thread.iter().flat_map(|thread| thread.answers.try_iter())
    }
}

/// Runs the thread. It holds a spare descriptor, for when there are no others.
fn read(asked: &Receiver<Vec<CopiesAsked>>, told: &Sender<Vec<(CopiesAsked, i64)>>) {
    let spare = Spares::hold(1).ok();
    let mut last = LastAnswers::default();
    while let Ok(processes) = asked.recv() {
        let begun = Instant::now();
        let read = |asked: CopiesAsked| Some((asked, shared_pages(asked.thread, spare.as_ref())?));
        let answers: Vec<_> = processes.into_iter().filter_map(read).collect();
        let longest = last.longest_rest(&answers);
        if told.send(answers).is_err() {
            return;
        }
        std::thread::sleep((begun.elapsed() * REST).min(longest));
    }
}

/// The last answers for each process, and in how many rounds in a row they have been the same.
#[derive(Debug, Default)]
struct LastAnswers {
    /// Births in the family, and shared pages.
    known: BTreeMap<u32, (u32, i64)>,
    calm_rounds: u32,
}

impl LastAnswers {
    /// Notes the answers of a round, and returns the longest rest after it.
    fn longest_rest(&mut self, answers: &[(CopiesAsked, i64)]) -> Duration {
        let mut is_calm = true;
        for (asked, pages) in answers {
            let before = self.known.insert(asked.pid, (asked.births, *pages));
            let is_same = |before: i64| (before - pages).abs() <= (before / SAME).max(SAME);
            is_calm &= before.is_some_and(|(births, before)| births == asked.births && is_same(before));
        }
        if !is_calm {
            // Processes that have ended are dropped.
            self.known.retain(|pid, _| answers.iter().any(|(asked, _)| asked.pid == *pid));
        }
        self.calm_rounds = if is_calm { self.calm_rounds + 1 } else { 0 };
        if self.calm_rounds < CALM { LONGEST_REST } else { LONGEST_CALM_REST }
    }
}

/// Reads the shared pages of a process. `None`: they cannot be known, and the last answer still
/// counts. Zero for a process that has just ended would be wrong: its memory may have been counted
/// a moment ago, so a tree of forks that is killed would seem many times as large as it was.
fn shared_pages(thread: u32, spare: Option<&Spares>) -> Option<i64> {
    let mut answer = procfs::shared_pages(thread);
    if answer.as_ref().is_err_and(is_shortage)
        && let Some(spare) = spare
    {
        spare.give_up_one();
        answer = procfs::shared_pages(thread);
        spare.fill(0);
    }
    match answer {
        Err(error) if is_shortage(&error) || is_gone(&error) => None,
        answer => Some(answer.unwrap_or(0)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rests_are_long_only_while_answers_stay_the_same() {
        let mut last = LastAnswers::default();
        let answer = |pid, births, pages| (CopiesAsked { pid, births, ..CopiesAsked::default() }, pages);
        let round = |pages| vec![answer(1, 4, 10_000), answer(2, 4, pages)];
        let rests: Vec<_> = (0..5).map(|_| last.longest_rest(&round(5_000))).collect();
        assert_eq!(rests, [LONGEST_REST, LONGEST_REST, LONGEST_REST, LONGEST_CALM_REST, LONGEST_CALM_REST]);
        assert_eq!(last.longest_rest(&round(5_050)), LONGEST_CALM_REST, "hardly another answer");
        assert_eq!(last.longest_rest(&round(4_000)), LONGEST_REST);
        (0..3).for_each(|_| _ = last.longest_rest(&round(4_000)));
        assert_eq!(last.longest_rest(&[answer(1, 5, 10_000), answer(2, 5, 4_000)]), LONGEST_REST, "a birth");
    }

    #[test]
    fn who_is_asked_for_is_told_but_not_who_is_gone() {
        let mut shares = ForkShares::default();
        assert!(shares.ask(Vec::new()));
        let own = std::process::id();
        let asked = |pid| CopiesAsked { pid, thread: pid, ..CopiesAsked::default() };
        assert!(shares.ask(vec![asked(u32::MAX), asked(own)]));
        let mut answers = Vec::new();
        for _ in 0..5000 {
            answers.extend(shares.answers().flatten());
            if !answers.is_empty() {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(answers.iter().map(|(asked, _)| asked.pid).collect::<Vec<_>>(), [own]);
        assert!(answers[0].1 >= 0, "{answers:?}");
    }
}
