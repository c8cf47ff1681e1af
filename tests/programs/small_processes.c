// small_processes - starts many short processes and prints what each costs: shells and make must not become slow.
//
// hazards.md, "Agent": exec costs 0.19 ms more when every process gets an agent; below 4 MiB it should stay away.
//
//   small_processes [--count N] [--program PATH] [--how fork|spawn] [--memory MIB]
//   --memory: what the parent itself holds (default 0); it is checked at the end.
#include "ballast.h"
#include <spawn.h>

extern char **environ;

static void run_one(const char *program, bool by_fork)
{
    char *arguments[] = { (char *)program, NULL };
    pid_t child;
    if (by_fork) {
        MUST((child = fork()) >= 0);
        if (child == 0) {
            execv(program, arguments);
            _exit(127);
        }
    } else {
        MUST((errno = posix_spawn(&child, program, NULL, NULL, arguments, environ)) == 0);
    }
    wait_for_exit(child, 0, program);
}

int main(int argc, char **argv)
{
    victim_begin(argc, argv, "--count --program --how --memory", 180);
    long count = option_number("--count", 300), mib = option_number("--memory", 0);
    const char *program = option_text("--program", "/bin/true");
    bool by_fork = strcmp(option_text("--how", "spawn"), "fork") == 0;
    if (mib)
        ballast_make(mib);
    phase("starting processes");
    double start = seconds_now();
    for (long i = 0; i < count; i++)
        run_one(program, by_fork);
    double each = (seconds_now() - start) / (double)count;
    if (mib)
        ballast_walk();
    return succeed("%ld times %s by %s, %.0f us each", count, program, by_fork ? "fork" : "spawn", each * 1e6);
}
