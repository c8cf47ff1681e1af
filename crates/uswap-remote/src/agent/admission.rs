//! The lobby: a new program waits for room before it begins, as a fault does.
//!
//! What a program touches before its memory is registered comes without asking, a few MiB of it
//! while the governor looks. One program more or less is what the marks are made for; dozens that
//! are started while memory is already short are not. So an agent that says hello then is answered
//! when there is room again, one program after the other. Until its answer comes a program stands
//! before its first instruction, with no lock of anybody.
//!
//! Nobody waits longer than [`MAX_WAIT`], and nobody waits while nothing is under way that would
//! make room. Fork children do not wait: their memory is registered from the beginning.

pub mod admit;

use std::time::{Duration, Instant};

use crate::agent::link::AgentHello;

/// The longest that a program waits.
const MAX_WAIT: Duration = Duration::from_millis(250);
/// What is to be free for one that comes in: what it touches before it does anything, in pages.
const ENTRANCE: i64 = 256;
/// While memory is short they come in one after the other, so far apart that the first is seen
/// before the next.
const APART: Duration = Duration::from_millis(2);

/// Programs that wait, and when the last one came in.
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
