// sigstop_tree - a tree of processes is stopped while it works, rests, and goes on: nothing is lost, nothing hangs.
//
// hazards.md: SIGSTOP stops the agent too; a stopped program cannot be evicted, and an eviction that was under way when
// the stop came must not hold up the others. While half of the tree is stopped, the rest works under pressure.
//
//   sigstop_tree [--memory MIB] [--processes N]      memory is the sum over the processes
#include "ballast.h"
#include <sys/prctl.h>

#define MAX_PROCESSES 16

static _Atomic long *rounds_done; // one for each process, shared
static atomic_bool *finish;
static atomic_bool *child_failed;

static void tell_failure(void)
{
    atomic_store(child_failed, true);
}

__attribute__((noreturn)) static void child_works(int number, long mib)
{
    victim_before_failing = tell_failure;
    MUST(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0); // works on for ever otherwise
    ballast_make(mib);
    while (!atomic_load(finish)) {
        ballast_walk();
        atomic_fetch_add(&rounds_done[number], 1);
    }
    _exit(0);
}

static void wait_for_rounds(int number, long more, const char *what)
{
    long wanted = atomic_load(&rounds_done[number]) + more;
    phase(what);
    while (atomic_load(&rounds_done[number]) < wanted) { // the watchdog bounds this
        if (atomic_load(child_failed))
            fail("a process of the tree failed, see its own sentence");
        sleep_micros(1000);
    }
}

// The stopped ones must stand still, the others must get on.
static void stop_half(const pid_t *children, int count, int offset)
{
    long before[MAX_PROCESSES];
    for (int i = offset; i < count; i += 2)
        MUST(kill(children[i], SIGSTOP) == 0);
    sleep_micros(20000);
    for (int i = offset; i < count; i += 2)
        before[i] = atomic_load(&rounds_done[i]);
    for (int i = 1 - offset; i < count; i += 2)
        wait_for_rounds(i, 1, "waiting for a running process beside stopped ones");
    for (int i = offset; i < count; i += 2) {
        if (atomic_load(&rounds_done[i]) != before[i])
            fail("process %d of the tree is stopped and went on", i);
        MUST(kill(children[i], SIGCONT) == 0);
    }
    for (int i = offset; i < count; i += 2)
        wait_for_rounds(i, 1, "waiting for a process that was continued");
}

int main(int argc, char **argv)
{
    victim_begin(argc, argv, "--memory --processes", 180);
    int count = (int)option_number("--processes", 4);
    if (count < 2 || count > MAX_PROCESSES)
        return 2;
    pid_t children[MAX_PROCESSES];
    rounds_done = map_shared(PAGE);
    finish = map_shared(PAGE);
    child_failed = map_shared(PAGE);
    for (int i = 0; i < count; i++)
        if ((children[i] = start_child()) == 0)
            child_works(i, option_number("--memory", 192) / count);
    for (int i = 0; i < count; i++)
        wait_for_rounds(i, 1, "first round of every process");
    for (int round = 0; round < 4; round++)
        stop_half(children, count, round % 2);
    atomic_store(finish, true);
    for (int i = 0; i < count; i++)
        wait_for_exit(children[i], 0, "process of the tree");
    return succeed("%d processes were stopped and continued, none lost a page", count);
}
