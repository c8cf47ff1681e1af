//! The cases of the torture program: name, fault points, arguments. They are run by programs that
//! load the agent (torture.rs) and by static programs, to which uswap attaches (attach.rs).

// Each test binary uses only a part of the shared code.
#![allow(unused_macros, unused_imports)]

/// One test for each case; `$run` is the function that runs it.
macro_rules! torture_tests {
    ($run:ident: $($test:ident: $faults:literal, $arguments:literal;)*) => {
        $(#[test]
        fn $test() {
            need_userfaultfd!();
            $run($faults, $arguments);
        })*
    };
    (ignored $run:ident: $($test:ident: $faults:literal, $arguments:literal;)*) => {
        $(#[test]
        #[ignore = "its parts stand in others: make soak"]
        fn $test() {
            need_userfaultfd!();
            $run($faults, $arguments);
        })*
    };
}

/// The cases; `$run` takes fault points and arguments.
macro_rules! torture_cases {
    ($run:ident) => {
        $crate::common::torture_cases::torture_tests! {
            $run:
            seed_1: "", "--seed 1 --seconds 5 --memory 56";
            seed_4_without_forks: "", "--seed 4 --seconds 2 --memory 56 --processes 0 --ops-mask -fork,-spawn";
            reads_and_writes_only: "", "--seed 5 --seconds 2 --memory 56 --ops-mask write,verify,rewrite_same,poke";
            mappings_only: "", "--seed 6 --seconds 2 --memory 48 --ops-mask \
                write,verify,grow,shrink,move,dontunmap,move_onto,unmap,refill,map_over,renew,dontneed";
            counters: "", "--mode counters --seconds 2 --memory 48";

            all_slow: "delay-install=100,delay-gate=100,delay-store=500", "--seed 14 --seconds 2 --memory 39";
            kernel_answers_again: "again=5", "--seed 15 --seconds 2 --memory 39";
            store_is_full_at_times: "store-full=4", "--seed 16 --seconds 2 --memory 48";
            nothing_allocates: "no-alloc", "--seed 17 --seconds 2 --memory 48 --threads 4";
            slow_device_and_all_else: "no-alloc,delay-read=500,delay-write=500,delay-install=100,delay-gate=50,again=20",
                "--seed 19 --seconds 2 --memory 36 --threads 3";

            // Load control is forced on: processes take turns of 200 ms, one at a time, whether
            // memory is short or not.
            taking_turns: "crowd", "--seed 31 --seconds 2 --memory 48 --processes 4";
            taking_turns_all_slow: "crowd,delay-install=100,delay-gate=100,delay-store=500", "--seed 32 --seconds 2 --memory 39";
        }
    };
}

/// Cases whose parts all occur in other cases: they run only in `make soak`.
macro_rules! more_torture_cases {
    ($run:ident) => {
        $crate::common::torture_cases::torture_tests! {
            ignored $run:
            seed_2_one_thread: "", "--seed 2 --seconds 2 --memory 48 --threads 1 --processes 0";
            seed_3_four_threads: "", "--seed 3 --seconds 2 --memory 48 --threads 4";
            counters_with_four_threads: "", "--mode counters --seconds 2 --memory 56 --threads 4 --processes 1";
            slow_installation: "delay-install=200", "--seed 11 --seconds 2 --memory 39";
            slow_gate: "delay-gate=200", "--seed 12 --seconds 2 --memory 39";
            slow_store: "delay-store=2000", "--seed 13 --seconds 2 --memory 39";
            slow_device: "no-alloc,delay-read=1000,delay-write=1000", "--seed 18 --seconds 2 --memory 39 --threads 4";
            counters_slow_device: "no-alloc,delay-read=1000,delay-write=1000", "--mode counters --seconds 2 --memory 36";
            counters_slow_installation: "delay-install=200", "--mode counters --seconds 2 --memory 39";
            counters_slow_store: "delay-store=2000,again=7", "--mode counters --seconds 2 --memory 39";
            taking_turns_counters: "crowd,again=7", "--mode counters --seconds 2 --memory 39";
        }
    };
}

pub(crate) use {more_torture_cases, torture_cases, torture_tests};
