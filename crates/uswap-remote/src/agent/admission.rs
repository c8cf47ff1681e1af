//! The admission queue: a new program waits for room before it begins, as a fault does.
//!
//! Memory that a program touches before it is registered is taken without a fault: a few MiB until
//! the governor's next look. The marks of the budget have room for one such program, but not for
//! dozens that are started while memory is already short. So while memory is short the pager delays
//! its answers to the greetings of new agents until there is room again, and admits one program
//! after the other. A program that waits for the answer has not executed its first instruction, and
//! holds no lock.
//!
//! No program waits longer than [`MAX_WAIT`], and none waits while nothing is under way that would
//! make room. Fork children do not wait: their memory is registered from the beginning.

pub mod admit;

use std::time::{Duration, Instant};

use crate::agent::link::AgentHello;

/// The longest that a program waits.
const MAX_WAIT: Duration = Duration::from_millis(250);
/// Pages that must be free for a program to be admitted: about as many as it touches before it does
/// any work.
const ENTRANCE: i64 = 256;
/// While memory is short programs are admitted at least this far apart, so that the memory of the
/// first is measured before the next begins.
const APART: Duration = Duration::from_millis(2);

/// Programs that wait to be admitted, and when the last one was.
#[derive(Debug)]
pub struct AdmissionQueue {
    waiting: std::collections::VecDeque<(Instant, Box<AgentHello>)>,
    entered: Instant,
}

impl Default for AdmissionQueue {
    fn default() -> Self {
        Self { waiting: std::collections::VecDeque::new(), entered: Instant::now() }
    }
}
