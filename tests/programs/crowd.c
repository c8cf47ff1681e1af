// crowd - processes that each walk over their own memory again and again, all at once.
//
// hazards.md, "Load control": together they need more than there is, each alone would fit. Whoever lets them take turns brings
// back each page a few times; whoever lets all of them run, in every round.
//
// With --nap they sleep for so many milliseconds before each walk, and begin one after another: seldom two want to run at once.
//
// With --seconds they go on for so long at least.
//
//   crowd [--memory MIB] [--processes N] [--rounds N] [--nap MS] [--seconds N]      memory is the sum over the processes
#include "ballast.h"
#include <sys/prctl.h>

#define MAX_PROCESSES 16

__attribute__((noreturn)) static void child_walks(long mib, long first_nap_micros)
{
    MUST(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
    long rounds = option_number("--rounds", 20), nap_micros = option_number("--nap", 0) * 1000;
    double end = seconds_now() + (double)option_number("--seconds", 0);
    sleep_micros(first_nap_micros);
    ballast_make(mib);
    for (long round = 0; round < rounds || seconds_now() < end; round++) {
        sleep_micros(nap_micros);
        ballast_walk();
    }
    _exit(0);
}

int main(int argc, char **argv)
{
    victim_begin(argc, argv, "--memory --processes --rounds --nap --seconds", 120);
    long count = option_number("--processes", 8), rounds = option_number("--rounds", 20);
    if (count < 1 || count > MAX_PROCESSES)
        return 2;
    long mib = option_number("--memory", 128) / count, nap = option_number("--nap", 0) * 1000;
    pid_t children[MAX_PROCESSES];
    for (long i = 0; i < count; i++)
        if ((children[i] = start_child()) == 0)
            child_walks(mib, nap * i / count);
    phase("waiting for the processes");
    for (long i = 0; i < count; i++)
        wait_for_exit(children[i], 0, "process of the crowd");
    return succeed("%ld processes walked %ld times or more over %ld MiB each", count, rounds, mib);
}
