//! Places for busy programs, three for two processors, since even busy programs wait now and then.
//! The harness runs more tests than that at a time (`RUST_TEST_THREADS`, see the Makefile), because
//! many of them wait.
//!
//! Invariant: no more tests have a busy program at a time than there are places. A test takes one
//! place, however many programs it has, for as long as any of them is busy. Programs that wait need
//! none (`Launch::waits`, `Running::waits`): a place that was given up is not requested again,
//! because getting one can take longer than the time limit of a test.
//!
//! A test that holds a place must not call `alone()`: the holder of that lock may be waiting for a
//! place.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Number of places that are taken.
static TAKEN: Mutex<usize> = Mutex::new(0);
static GIVEN_UP: Condvar = Condvar::new();

thread_local! {
    /// Number of programs of this test that need its place: each test has a thread of its own.
    static PROGRAMS: Cell<usize> = const { Cell::new(0) };
}

fn taken() -> MutexGuard<'static, usize> {
    TAKEN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn take_one() {
    let places = std::thread::available_parallelism().map_or(1, usize::from) * 3 / 2;
    let free = GIVEN_UP.wait_while(taken(), |taken| *taken >= places);
    *free.unwrap_or_else(PoisonError::into_inner) += 1;
}

fn give_up_one() {
    *taken() -= 1;
    GIVEN_UP.notify_one();
}

/// A share in the place of its test, bound to the test's thread.
pub struct Place(PhantomData<*const ()>);

impl Place {
    /// Waits for a place, unless the test has one.
    pub fn take() -> Self {
        PROGRAMS.with(|programs| {
            if programs.get() == 0 {
                take_one();
            }
            programs.set(programs.get() + 1);
        });
        Self(PhantomData)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        PROGRAMS.with(|programs| {
            programs.set(programs.get() - 1);
            if programs.get() == 0 {
                give_up_one();
            }
        });
    }
}
