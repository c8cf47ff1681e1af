//! A bounded queue of jobs for a set of threads. All its room is allocated when it is made: neither
//! pushing nor taking allocates.

use std::collections::VecDeque;
use std::sync::Condvar;

use uswap_core::{RankedMutex, ranks};

/// Jobs, in the order in which they came.
#[derive(Debug)]
pub struct Jobs<T> {
    state: RankedMutex<QueueState<T>>,
    arrived: Condvar,
    most: usize,
}

#[derive(Debug)]
struct QueueState<T> {
    queue: VecDeque<T>,
    closed: bool,
}

impl<T> Jobs<T> {
    /// A queue for at most this many jobs.
    pub fn new(most: usize) -> Self {
        let state = QueueState { queue: VecDeque::with_capacity(most), closed: false };
        Self { state: RankedMutex::new(ranks::JOBS, state), arrived: Condvar::new(), most }
    }

    /// Adds a job.
    ///
    /// # Errors
    /// The job, when there is no room or the queue is closed.
    pub fn push(&self, job: T) -> Result<(), T> {
        let mut state = self.state.lock();
        if state.closed || state.queue.len() == self.most {
            return Err(job);
        }
        state.queue.push_back(job);
        drop(state);
        self.arrived.notify_one();
        Ok(())
    }

    /// Waits for the oldest job. `None`: the queue is closed and empty.
    pub fn take(&self) -> Option<T> {
        let mut state = self.state.lock();
        loop {
            if let Some(job) = state.queue.pop_front() {
                return Some(job);
            }
            if state.closed {
                return None;
            }
            state = state.wait(&self.arrived);
        }
    }

    /// Number of jobs that no thread has taken yet.
    pub fn waiting(&self) -> usize {
        self.state.lock().queue.len()
    }

    /// Closes the queue: jobs that it holds are still done, then the threads end.
    pub fn close(&self) {
        self.state.lock().closed = true;
        self.arrived.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_is_done_before_the_threads_leave() {
        let jobs = Jobs::new(2);
        assert_eq!((jobs.push(1), jobs.push(2), jobs.push(3)), (Ok(()), Ok(()), Err(3)));
        assert_eq!(jobs.waiting(), 2);
        std::thread::scope(|scope| {
            let takers: Vec<_> =
                (0..3).map(|_| scope.spawn(|| std::iter::from_fn(|| jobs.take()).sum::<i32>())).collect();
            jobs.close();
            assert_eq!(takers.into_iter().map(|taker| taker.join().expect("a taker")).sum::<i32>(), 3);
        });
        assert_eq!((jobs.push(4), jobs.take()), (Err(4), None));
    }
}
