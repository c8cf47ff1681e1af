// last_thread_exits - main calls pthread_exit, the other threads end one by one, and the process must end.
//
// hazards.md: the agent left as the last thread keeps the process alive for ever, and it ignores SIGTERM. Played in a
// child, so that a hang is told in a sentence; then in this process itself.
//
//   last_thread_exits [--memory MIB] [--in-child-only]
#include "ballast.h"
#include <sys/prctl.h>

static void *end_late(void *argument)
{
    sleep_micros((long)(uintptr_t)argument);
    ballast_walk();
    return NULL;
}

// Threads that nobody joins; the last one ends after main has gone.
__attribute__((noreturn)) static void leave_by_pthread_exit(void)
{
    for (uintptr_t micros = 10000; micros <= 60000; micros += 25000) {
        pthread_t thread;
        MUST((errno = pthread_create(&thread, NULL, end_late, (void *)micros)) == 0);
        pthread_detach(thread);
    }
    pthread_exit(NULL);
}

// The last thread ends by the bare system call, as runtimes of other languages do.
static void *end_by_system_call(void *unused)
{
    sleep_micros(20000);
    syscall(SYS_exit, 0);
    return unused;
}

__attribute__((noreturn)) static void leave_by_system_call(void)
{
    pthread_t thread;
    MUST((errno = pthread_create(&thread, NULL, end_by_system_call, NULL)) == 0);
    ballast_walk();
    syscall(SYS_exit, 0);
    _exit(1);
}

static void must_end(void (*leave)(void), const char *who)
{
    pid_t child = start_child();
    if (child == 0)
        leave();
    int status = 0;
    double end = seconds_now() + 30;
    phase(who);
    while (waitpid(child, &status, WNOHANG) == 0) {
        if (seconds_now() > end) {
            kill(child, SIGKILL);
            fail("%s: pid %d still exists 30 s after its last thread should have ended", who, child);
        }
        sleep_micros(1000);
    }
    if (status != 0)
        fail("%s: expected exit status 0, found wait status %#x", who, status);
}

int main(int argc, char **argv)
{
    victim_begin(argc, argv, "--memory --in-child-only", 120);
    ballast_make(option_number("--memory", 192));
    ballast_walk();
    must_end(leave_by_pthread_exit, "child that leaves by pthread_exit");
    must_end(leave_by_system_call, "child that leaves by exit of each thread");
    succeed("processes end with their last thread; this one is about to");
    if (option_given("--in-child-only"))
        return 0;
    phase("main has called pthread_exit, waiting for the end of the process");
    leave_by_pthread_exit();
}
