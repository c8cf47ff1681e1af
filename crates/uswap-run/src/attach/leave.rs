//! Detaching from a program, phase by phase ([`uswap_remote::detach`]): how a detach begins, when
//! the next phase begins, and when the detach is given up.

use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use uswap_core::util::size::human;

use crate::attach::eligibility;
use crate::shared::RunShared;
use uswap_remote::detach::{BRINGING_BACK, DetachAsked, LEAVING, LETTING_GO, STAYING};
use uswap_remote::{EngineContext, Message};

/// Time without any page coming back after which the detach is given up.
const PROGRESS_TIMEOUT: Duration = Duration::from_secs(30);
/// How long agents may take to end.
const AGENTS_TIMEOUT: Duration = Duration::from_secs(10);

/// Begins a detach. Returns how many pages are to come back.
///
/// # Errors
/// For the user: the pages do not fit into memory, a detach is under way, or the run was not
/// attached to a program. Nothing is changed then.
pub fn begin(shared: &EngineContext) -> Result<u64, String> {
    if !shared.of_memory.tree.is_attached() {
        return Err("it began with its command and ends with it; detach is for programs that were attached to".into());
    }
    let leaving = &shared.of_memory.leaving;
    let mut outcome = leaving.outcome.lock().expect("outcome");
    if leaving.is_under_way() {
        return Err("it is letting go of its program already".into());
    }
    let pages = pages_away(shared);
    eligibility::check_room(pages << 12, room(shared))?;
    let limit_before = (shared.budget.limit() as u64) << 12;
    *outcome = Some(DetachAsked {
        pages,
        limit_before,
        order_before: RunShared::of(shared).orders.limit.load(SeqCst),
        error: None,
    });
    let lifted = (shared.budget.usage().max(0) as u64) + pages + (1 << 28);
    RunShared::of(shared).orders.limit.store(lifted << 12, SeqCst);
    shared.budget.set_limit(lifted << 12);
    leaving.begin(BRINGING_BACK);
    wake(shared);
    Ok(pages)
}

/// Bytes for which each process of the program has room.
fn room(shared: &EngineContext) -> u64 {
    shared.of_memory.tree.members().into_iter().map(eligibility::room_for).min().unwrap_or(u64::MAX)
}

/// Pages that are not present in the program's memory.
fn pages_away(shared: &EngineContext) -> u64 {
    let managed = shared.managed.all();
    managed.values().map(|process| process.stored + process.staged).sum()
}

fn wake(shared: &EngineContext) {
    for mailbox in &shared.mailboxes {
        mailbox.post(Message::Balance);
    }
}

/// The main thread's state of a detach.
#[derive(Debug, Default)]
pub struct LeaveProgress {
    least: Option<(u64, Instant)>,
    last: Option<Instant>,
}

impl LeaveProgress {
    /// Begins the next phase if it can begin. Returns `true` when the detach is done.
    pub fn go_on(&mut self, shared: &EngineContext) -> bool {
        let leaving = &shared.of_memory.leaving;
        match leaving.phase() {
            BRINGING_BACK => self.bring_back(shared),
            LETTING_GO if leaving.spaces_left() == Some(0) => {
                self.last = Some(Instant::now());
                if let Some(asked) = leaving.outcome.lock().expect("outcome").as_ref() {
                    // The budget gets its former value back, so that the summary at the end names
                    // the one that the user chose.
                    shared.budget.set_limit(asked.limit_before);
                }
                leaving.begin(LEAVING);
            }
            LETTING_GO => wake(shared),
            LEAVING => {
                let late = self.last.is_some_and(|since| since.elapsed() > AGENTS_TIMEOUT);
                if late {
                    shared
                        .notice("agents are slow to go; their mappings may be left behind, and hold no memory".into());
                }
                return late || leaving.agents_gone.load(SeqCst);
            }
            _ => {}
        }
        false
    }

    fn bring_back(&mut self, shared: &EngineContext) {
        wake(shared);
        let Some(away) = shared.of_memory.leaving.away() else { return };
        if away == 0 {
            *self = Self::default();
            return shared.of_memory.leaving.begin(LETTING_GO);
        }
        if self.least.is_none_or(|(least, _)| away < least) {
            self.least = Some((away, Instant::now()));
        }
        let stuck = self.least.is_some_and(|(_, at)| at.elapsed() > PROGRESS_TIMEOUT);
        if stuck {
            self.give_up(shared, format!("the last {} do not come back", human(away << 12)));
        } else if let Err(error) = eligibility::check_room(away << 12, room(shared)) {
            self.give_up(shared, error);
        }
    }

    /// Gives the detach up: the run goes on as before.
    fn give_up(&mut self, shared: &EngineContext, error: String) {
        *self = Self::default();
        let mut outcome = shared.of_memory.leaving.outcome.lock().expect("outcome");
        if let Some(asked) = outcome.as_mut() {
            RunShared::of(shared).orders.limit.store(asked.order_before, SeqCst);
            shared.budget.set_limit(asked.limit_before);
            asked.error = Some(error.clone());
        }
        shared.of_memory.leaving.begin(STAYING);
        shared.alarm(format!("detach was given up: {error}"));
    }
}
