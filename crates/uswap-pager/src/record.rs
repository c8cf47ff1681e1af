//! Recording touches: the faults and soft faults of a run, as a trace for the lab.
//!
//! Touches of mapped pages are not seen, so the trace consists of the touches that miss in a memory
//! of the run's budget. It can be replayed for larger sizes; a run in little memory records nearly
//! all touches. While a run is recorded, no page is brought in before it is touched, so that each
//! touch shows. Pagers put touches into a list in the order in which they serve them; a thread
//! writes full lists. If it falls behind, lists are dropped and counted, since a pager never waits.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::space::id::SpaceId;

/// Number of touches that are written at a time.
const LIST: usize = 4096;
/// Maximum number of lists that wait to be written.
const WAITING: usize = 256;
/// How long the end of a run waits for the rest to be written.
const MAX_WRITE_OUT: Duration = Duration::from_secs(10);
/// Bits of a page number within its space: addresses have 47 bits.
const PAGE_BITS: u32 = 35;

/// Writes touches; an empty list is the end. Fails with a sentence for the user.
pub type Sink = dyn Fn(&[u64]) -> Result<(), String> + Send + Sync;

/// The sink of a recorded run.
#[derive(Clone)]
pub struct TouchRecord(pub Arc<Sink>);

impl std::fmt::Debug for TouchRecord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Record")
    }
}

/// The end of a recording into which pagers write.
pub struct Recorder {
    touches: Mutex<Vec<u64>>,
    full: SyncSender<Vec<u64>>,
    lost: AtomicU64,
}

/// The end of a recording from which its thread writes to the sink.
pub struct Tape {
    full: Receiver<Vec<u64>>,
    sink: TouchRecord,
}

impl Recorder {
    /// A recorder, and the tape for its thread.
    pub fn new(sink: TouchRecord) -> (Self, Tape) {
        let (sender, full) = sync_channel(WAITING);
        let touches = Mutex::new(Vec::with_capacity(LIST));
        (Self { touches, full: sender, lost: AtomicU64::new(0) }, Tape { full, sink })
    }

    /// Records that a page was touched that was not mapped.
    pub fn touch(&self, space: SpaceId, address: u64) {
        let mut touches = self.touches.lock().expect("touches");
        touches.push(u64::from(space) << PAGE_BITS | address >> 12);
        if touches.len() == LIST {
            let list = std::mem::replace(&mut *touches, Vec::with_capacity(LIST));
            if let Err(TrySendError::Full(list) | TrySendError::Disconnected(list)) = self.full.try_send(list) {
                self.lost.fetch_add(list.len() as u64, Relaxed);
            }
        }
    }

    /// Hands over the rest and the end mark. Returns how many touches were lost.
    pub fn end(&self) -> u64 {
        let rest = std::mem::take(&mut *self.touches.lock().expect("touches"));
        let begin = Instant::now();
        for mut list in [rest, Vec::new()] {
            while let Err(TrySendError::Full(back)) = self.full.try_send(list) {
                if begin.elapsed() > MAX_WRITE_OUT {
                    self.lost.fetch_add(back.len() as u64, Relaxed);
                    break;
                }
                std::thread::sleep(Duration::from_millis(1));
                list = back;
            }
        }
        self.lost.load(Relaxed)
    }
}

impl Tape {
    /// Writes until the end mark. Returns how many touches were written, or a sentence that says
    /// why writing failed.
    pub fn run(self) -> Result<u64, String> {
        let mut written = 0;
        loop {
            let list = self.full.recv().unwrap_or_default();
            // After an error nothing receives any more, and lists that pagers send are dropped.
            self.sink.0(&list)?;
            if list.is_empty() {
                return Ok(written);
            }
            written += list.len() as u64;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(
        touches: u64,
        sink: impl Fn(&[u64]) -> Result<(), String> + Send + Sync + 'static,
    ) -> (u64, Result<u64, String>) {
        let (recorder, tape) = Recorder::new(TouchRecord(Arc::new(sink)));
        let thread = std::thread::spawn(|| tape.run());
        (0..touches).for_each(|number| recorder.touch(3, number << 12));
        let lost = recorder.end();
        (lost, thread.join().expect("the tape's thread"))
    }

    #[test]
    fn all_touches_arrive_in_order_and_then_the_end() {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let told = seen.clone();
        let (lost, written) = record(10_000, move |list| {
            let mut seen = told.lock().expect("seen");
            seen.push(list.to_vec());
            Ok(())
        });
        assert_eq!((lost, written), (0, Ok(10_000)));
        let lists = seen.lock().expect("seen");
        assert!(lists.last().is_some_and(Vec::is_empty));
        let expected: Vec<u64> = (0..10_000).map(|page| 3 << PAGE_BITS | page).collect();
        assert_eq!(lists.concat(), expected);
    }

    #[test]
    fn a_sink_that_fails_is_told_and_holds_up_nobody() {
        let (lost, written) = record(LIST as u64 * 400, |_| Err("disk full".into()));
        assert_eq!(written, Err("disk full".into()));
        assert!(lost > 0);
    }
}
