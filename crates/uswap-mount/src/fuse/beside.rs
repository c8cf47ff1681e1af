//! Where a thread runs that serves requests: on the processor of the thread that it serves.
//!
//! The thread that asks waits for the answer, so both take turns anyhow. The kernel wakes the
//! serving thread on an idle processor if there is one, and that costs much more than the request
//! where a processor must be woken for it: in a virtual machine 25 microseconds each way instead of
//! 1.

use uswap_sys::process::affinity::Processors;
use uswap_sys::process::{processors, this_thread};
use uswap_sys::procfs::WhereThread;

/// Requests between two looks.
const LOOK: u32 = 32;

/// The processors of this thread, if it may be moved among them.
pub fn free_processors() -> Option<Processors> {
    let all = Processors::of(this_thread()).ok()?;
    (processors() > 1 && all.count() as usize >= processors()).then_some(all)
}

/// The place of one serving thread.
#[derive(Debug)]
pub struct Beside {
    /// The processors on which the thread may run; `None`: the user has confined the process, and
    /// the thread stays where it is put.
    all: Option<Processors>,
    here: Option<u32>,
    served: u32,
}

impl Beside {
    /// This thread may run on all of these processors at first. (It inherits the place of the
    /// thread that made it.)
    pub fn new(all: Option<Processors>) -> Self {
        if let Some(all) = all {
            // Where it may not be moved it runs as well.
            let _ = all.confine(this_thread());
        }
        Self { all, here: None, served: 0 }
    }

    /// This thread has served a request of that thread.
    pub fn served(&mut self, thread: u32) {
        self.served += 1;
        if self.served.is_multiple_of(LOOK) {
            self.look(thread);
        }
    }

    fn look(&mut self, thread: u32) {
        let Some(all) = &self.all else { return };
        let there = WhereThread::open(thread, thread).and_then(|stat| stat.processor());
        if there == self.here {
            return;
        }
        let set = there.and_then(Processors::only);
        // Where it may not be moved it runs as well.
        let moved = set.as_ref().unwrap_or(all).confine(this_thread()).is_ok();
        self.here = there.filter(|_| moved);
    }
}
