// reads_null_deref - a wild pointer must give SIGSEGV as ever: by default death by signal 11, with a handler the address.
//
// A pager that catches faults must not answer for addresses that are nobody's: NULL, an unmapped hole amid evicted
// memory, a kernel address.
//
//   reads_null_deref [--memory MIB] [--bare]      --bare: this process itself reads NULL and dies of signal 11
#include "ballast.h"
#include "touch.h"

static volatile unsigned char *volatile nobody; // NULL, unknown to the compiler
static void *volatile reported;
static volatile int reported_code;

static void note_address(int signal_number, siginfo_t *info, void *unused)
{
    (void)unused;
    reported = info->si_addr;
    reported_code = info->si_code;
    siglongjmp(touch_return, signal_number);
}

static void require_segv(unsigned char *address, int code, void *wanted_address, const char *what)
{
    int found = touch_read(address);
    if (found != SIGSEGV || reported != wanted_address || reported_code != code)
        fail("%s: expected signal %d code %d address %p, found signal %d code %d address %p", what, SIGSEGV, code,
             wanted_address, found, reported_code, reported);
}

static void require_death(void)
{
    pid_t child = start_child();
    int status;
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL);
        (void)*nobody;
        _exit(0);
    }
    MUST(waitpid(child, &status, 0) == child);
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGSEGV)
        fail("child that reads NULL: expected death by signal %d, found wait status %#x", SIGSEGV, status);
}

int main(int argc, char **argv)
{
    victim_begin(argc, argv, "--memory --bare", 120);
    ballast_make(option_number("--memory", 192));
    ballast_walk();
    if (option_given("--bare"))
        (void)*nobody;
    phase("default action");
    require_death();
    phase("with a handler");
    struct sigaction action = { .sa_sigaction = note_address, .sa_flags = SA_SIGINFO };
    sigaction(SIGSEGV, &action, NULL);
    unsigned char *hole = ballast_base + ballast_pages / 2 * PAGE;
    MUST(munmap(hole, 64 * PAGE) == 0);
    require_segv(NULL, SEGV_MAPERR, NULL, "NULL");
    require_segv(hole + 5 * PAGE + 7, SEGV_MAPERR, hole + 5 * PAGE + 7, "hole amid evicted memory");
    require_segv((unsigned char *)0xffffffff81000000u, SEGV_MAPERR, (void *)0xffffffff81000000u, "kernel address");
    require_pages(ballast_base, 0, ballast_pages / 2, BALLAST_REGION, 1, "below the hole");
    return succeed("wild pointers give SIGSEGV with their address");
}
