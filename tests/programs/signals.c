// signals - handlers, interval timers and stops while page faults wait.
//
// kernel-facts.md: a faulting user thread waits interruptibly; hazards.md: with a signal pending a fault in a system
// call spins. So: a handler on an alternate stack that lies in cold heap memory; an interval timer that fires all the
// time while pages and system call buffers fault; a child that stops and continues this process in a loop.
//
//   signals [--memory MIB] [--seconds S]
#include "ballast.h"

#define PAGES ((size_t)1024)
#define REGION 14
#define STACK_BYTES ((size_t)1 << 20) // above 256 KiB: uswap may evict it between two signals

static unsigned char *heap_data;
static unsigned char *alternate_stack;
static volatile sig_atomic_t handled;
static volatile sig_atomic_t off_the_stack;

// Runs on the alternate stack and touches a page of data that may be evicted.
static void on_timer(int signal_number)
{
    (void)signal_number;
    unsigned char *here = (unsigned char *)&signal_number;
    if (here < alternate_stack || here >= alternate_stack + STACK_BYTES)
        off_the_stack = 1;
    size_t page = (size_t)handled * 7 % PAGES;
    struct page_identity is = usual_identity(REGION, (uint32_t)page, 1);
    page_require(heap_data + page * PAGE, &is, "in a signal handler");
    handled++;
}

static void handle_on_cold_stack(void)
{
    MUST(posix_memalign((void **)&alternate_stack, PAGE, STACK_BYTES) == 0);
    memset(alternate_stack, 0xaa, STACK_BYTES);
    stack_t stack = { .ss_sp = alternate_stack, .ss_size = STACK_BYTES };
    MUST(sigaltstack(&stack, NULL) == 0);
    struct sigaction action = { .sa_handler = on_timer, .sa_flags = SA_ONSTACK | SA_RESTART };
    MUST(sigaction(SIGUSR1, &action, NULL) == 0);
}

static timer_t timer_every(long micros)
{
    struct sigevent event = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1 };
    struct itimerspec when = { .it_interval = { 0, micros * 1000 }, .it_value = { 0, micros * 1000 } };
    timer_t timer;
    MUST(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0);
    MUST(timer_settime(timer, 0, &when, NULL) == 0);
    return timer;
}

// Cold buffers in system calls while signals are pending all the time.
static void write_cold_pages(int file)
{
    static unsigned char copy[16 * PAGE];
    for (size_t page = 0; page + 16 <= PAGES; page += 16) {
        ssize_t sent = pwrite(file, heap_data + page * PAGE, sizeof copy, 0);
        MUST(sent == (ssize_t)sizeof copy);
        MUST(pread(file, copy, sizeof copy, 0) == (ssize_t)sizeof copy);
        for (size_t i = 0; i < 16; i++) {
            struct page_identity is = usual_identity(REGION, (uint32_t)(page + i), 1);
            page_require(copy + i * PAGE, &is, "written to a file under a storm of signals");
        }
    }
}

static pid_t start_stopper(double seconds)
{
    pid_t victim = getpid(), child = start_child();
    if (child != 0)
        return child;
    double end = seconds_now() + seconds;
    for (long pause = 1000; seconds_now() < end; pause = pause % 20000 + 1777) {
        sleep_micros(pause);
        MUST(kill(victim, SIGSTOP) == 0);
        sleep_micros(pause / 2);
        MUST(kill(victim, SIGCONT) == 0);
    }
    _exit(0);
}

int main(int argc, char **argv)
{
    victim_begin(argc, argv, "--memory --seconds", 120);
    double seconds = (double)option_number("--seconds", 2);
    int file = memfd_create("signals", 0);
    heap_data = map_pages(PAGES);
    fill_pages(heap_data, 0, PAGES, REGION, 1);
    handle_on_cold_stack();
    ballast_make(option_number("--memory", 192));
    pid_t stopper = start_stopper(seconds);
    timer_t timer = timer_every(2000);
    phase("walking and writing under signals");
    for (double end = seconds_now() + seconds; seconds_now() < end;) {
        ballast_walk();
        write_cold_pages(file);
    }
    timer_delete(timer);
    wait_for_exit(stopper, 0, "child that stops its parent");
    if (handled == 0 || off_the_stack)
        fail("signals: %d handled, %s the alternate stack", (int)handled, off_the_stack ? "not on" : "on");
    return succeed("%d signals handled on a cold alternate stack, with stops between", (int)handled);
}
