// env_clear - execs children with an empty environment, which lose the preload: they must run, unmanaged, and be right.
//
// hazards.md, "Agent": `env -i` and other uids lose LD_PRELOAD. Such a program is counted and named, and its memory is
// its own affair; its parent goes on under pressure. The child starts a grandchild with an environment again.
//
//   env_clear [--memory MIB]
#include "ballast.h"

static void exec_self(char *const environment[], long mib, long generation)
{
    char memory[24], left[24], timeout[24];
    snprintf(memory, sizeof memory, "%ld", mib);
    snprintf(left, sizeof left, "%ld", generation);
    snprintf(timeout, sizeof timeout, "%ld", (long)(victim_deadline - seconds_now()) + 1);
    char *arguments[] = { (char *)victim_name, (char *)"--memory",  memory,  (char *)"--generation", left,
                          (char *)"--timeout", timeout,             NULL };
    execve("/proc/self/exe", arguments, environment);
    fail("exec of this program: %s", strerror(errno));
}

static void start_and_check(char *const environment[], long mib, long generation, const char *who)
{
    pid_t child = start_child();
    if (child == 0)
        exec_self(environment, mib, generation);
    ballast_walk();
    wait_for_exit(child, 0, who);
    ballast_walk();
}

int main(int argc, char **argv)
{
    victim_begin(argc, argv, "--memory --generation", 120);
    char *nothing[] = { NULL };
    char *something[] = { (char *)"LANG=C", (char *)"PATH=/usr/bin:/bin", NULL };
    long mib = option_number("--memory", 192), generation = option_number("--generation", 0);
    extern char **environ;
    ballast_make(mib);
    ballast_walk();
    phase("waiting for a child");
    if (generation == 0)
        start_and_check(nothing, mib / 4, 1, "child with an empty environment");
    if (generation == 1 && environ[0])
        fail("the environment of the child: expected empty, found %s", environ[0]);
    if (generation == 1)
        start_and_check(something, mib, 2, "grandchild with another environment");
    return generation ? 0 : succeed("a child without and a grandchild with an environment ran");
}
