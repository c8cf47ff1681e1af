// crowd - processes that each walk over their own memory again and again, all at once.
//
// hazards.md, "Load control": together they need more than there is, each alone would fit. Whoever lets them take turns brings
// back each page a few times; whoever lets all of them run, in every round.
//
//   crowd [--memory MIB] [--processes N] [--rounds N]      memory is the sum over the processes
#include "ballast.h"
#include <sys/prctl.h>

#define MAX_PROCESSES 16

__attribute__((noreturn)) static void child_walks(long rounds, long mib)
{
    MUST(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
    ballast_make(mib);
    for (long round = 0; round < rounds; round++)
        ballast_walk();
    _exit(0);
}

int main(int argc, char **argv)
{
    victim_begin(argc, argv, "--memory --processes --rounds", 120);
    long count = option_number("--processes", 8), rounds = option_number("--rounds", 20);
    if (count < 1 || count > MAX_PROCESSES)
        return 2;
    long mib = option_number("--memory", 128) / count;
    pid_t children[MAX_PROCESSES];
    for (long i = 0; i < count; i++)
        if ((children[i] = start_child()) == 0)
            child_walks(rounds, mib);
    phase("waiting for the processes");
    for (long i = 0; i < count; i++)
        wait_for_exit(children[i], 0, "process of the crowd");
    return succeed("%ld processes walked %ld times over %ld MiB each", count, rounds, mib);
}
