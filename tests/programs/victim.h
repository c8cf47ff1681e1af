// victim.h - what every test victim shares: options, the watchdog, the way to fail, children.
//
// A victim is an ordinary program that knows nothing of uswap. It passes when it is run plain, and it fails, with one
// precise sentence, when a page of it comes back wrong or when it hangs. The rules:
//   exit 0    one line "ok: ..." on stdout
//   exit 1    a sentence on stderr: which page, expected what, found what
//   exit 2    wrong arguments
//   exit 124  the watchdog fired: `--timeout SEC` (every victim has it), with the phase that hung
// Where even the watchdog's handler cannot run (a fault held in kernel mode), SIGKILL comes five seconds later.
//
// Include this first: it defines _GNU_SOURCE.
#ifndef VICTIM_H
#define VICTIM_H
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PAGE ((size_t)4096)
#define MIB ((size_t)1 << 20)

// Younger than the headers of Debian 12.
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif
#ifndef MADV_GUARD_INSTALL
#define MADV_GUARD_INSTALL 102
#define MADV_GUARD_REMOVE 103
#endif

static const char *victim_name = "victim";
static const char *volatile victim_phase = "start";
static double victim_deadline; // on CLOCK_MONOTONIC, in seconds
static void (*victim_before_failing)(void); // tells other processes of the same victim to stop

static inline double seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static inline void sleep_micros(long micros)
{
    struct timespec nap = { micros / 1000000, micros % 1000000 * 1000 };
    nanosleep(&nap, NULL);
}

// ---- the two endings -----------------------------------------------------------------------------------------------

// Formats into a buffer on the stack and writes it in one call: usable in signal handlers and in forked children.
static inline void say_to(int fd, const char *prefix, const char *format, va_list arguments)
{
    char line[1400];
    int length = snprintf(line, sizeof line - 2, "%s", prefix);
    length += vsnprintf(line + length, sizeof line - 2 - (size_t)length, format, arguments);
    if (length > (int)sizeof line - 2)
        length = (int)sizeof line - 2;
    line[length++] = '\n';
    if (write(fd, line, (size_t)length) < 0)
        _exit(1);
}

__attribute__((format(printf, 1, 2))) static inline void say(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    say_to(1, "", format, arguments);
    va_end(arguments);
}

__attribute__((noreturn, format(printf, 1, 2))) static inline void fail(const char *format, ...)
{
    char prefix[120];
    snprintf(prefix, sizeof prefix, "%s[%d] while \"%s\": ", victim_name, getpid(), victim_phase);
    va_list arguments;
    va_start(arguments, format);
    say_to(2, prefix, format, arguments);
    va_end(arguments);
    if (victim_before_failing)
        victim_before_failing();
    _exit(1);
}

__attribute__((format(printf, 1, 2))) static inline int succeed(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    say_to(1, "ok: ", format, arguments);
    va_end(arguments);
    return 0;
}

// A system call that must work. errno is part of the sentence.
#define MUST(call)                                                                                                     \
    do {                                                                                                               \
        if (!(call))                                                                                                   \
            fail("line %d: %s: %s", __LINE__, #call, strerror(errno));                                                 \
    } while (0)

static inline void phase(const char *what)
{
    victim_phase = what;
}

// ---- the watchdog --------------------------------------------------------------------------------------------------

static inline void watchdog_bites(int signal_number)
{
    (void)signal_number;
    char line[300];
    int length = snprintf(line, sizeof line, "%s[%d]: hung in phase \"%s\", ended by its own watchdog\n", victim_name,
                          getpid(), victim_phase);
    if (length > 0 && write(2, line, (size_t)length) < 0)
        _exit(125);
    _exit(124);
}

static inline void watchdog_timer(int signal_number, double after)
{
    struct sigevent event = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = signal_number };
    struct itimerspec when = { .it_value = { (time_t)after, 1 } };
    timer_t timer;
    MUST(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0);
    MUST(timer_settime(timer, 0, &when, NULL) == 0);
}

// Timers are not inherited by fork: a child calls this again (start_child does).
static inline void watchdog_arm(void)
{
    double left = victim_deadline - seconds_now();
    if (left < 1)
        left = 1;
    struct sigaction action = { .sa_handler = watchdog_bites };
    sigaction(SIGALRM, &action, NULL);
    watchdog_timer(SIGALRM, left);
    watchdog_timer(SIGKILL, left + 5);
}

// ---- options -------------------------------------------------------------------------------------------------------

static int option_count;
static char **option_words;

static inline const char *option_text(const char *name, const char *otherwise)
{
    for (int i = 1; i + 1 < option_count; i++)
        if (strcmp(option_words[i], name) == 0)
            return option_words[i + 1];
    return otherwise;
}

static inline long option_number(const char *name, long otherwise)
{
    const char *text = option_text(name, NULL);
    return text ? strtol(text, NULL, 0) : otherwise;
}

static inline bool option_given(const char *name)
{
    for (int i = 1; i < option_count; i++)
        if (strcmp(option_words[i], name) == 0)
            return true;
    return false;
}

static inline void options_reject_unknown(const char *known)
{
    char all[400], wanted[100];
    snprintf(all, sizeof all, " %s --timeout ", known);
    for (int i = 1; i < option_count; i++) {
        if (strncmp(option_words[i], "--", 2) != 0)
            continue;
        snprintf(wanted, sizeof wanted, " %s ", option_words[i]);
        if (!strstr(all, wanted)) {
            fprintf(stderr, "%s: unknown option %s; known:%s\n", victim_name, option_words[i], all);
            exit(2);
        }
    }
}

// The first line of every main. `known` lists the options, blank between them, as in "--memory --seed".
static inline void victim_begin(int argc, char **argv, const char *known, long default_timeout)
{
    const char *slash = strrchr(argv[0], '/');
    victim_name = slash ? slash + 1 : argv[0];
    option_count = argc;
    option_words = argv;
    options_reject_unknown(known);
    victim_deadline = seconds_now() + (double)option_number("--timeout", default_timeout);
    watchdog_arm();
}

// ---- children ------------------------------------------------------------------------------------------------------

static inline pid_t start_child(void)
{
    pid_t child = fork();
    MUST(child >= 0);
    if (child == 0)
        watchdog_arm();
    return child;
}

// The child must end by itself with this status.
static inline void wait_for_exit(pid_t child, int wanted, const char *who)
{
    int status;
    pid_t got;
    do
        got = waitpid(child, &status, 0);
    while (got < 0 && errno == EINTR);
    MUST(child < 0 ? got > 0 : got == child);
    if (WIFSIGNALED(status))
        fail("%s (pid %d): expected exit status %d, found death by signal %d (%s)", who, child, wanted,
             WTERMSIG(status), strsignal(WTERMSIG(status)));
    if (!WIFEXITED(status) || WEXITSTATUS(status) != wanted)
        fail("%s (pid %d): expected exit status %d, found wait status %#x", who, child, wanted, status);
}

// ---- memory and chance ---------------------------------------------------------------------------------------------

static inline unsigned char *map_pages(size_t pages)
{
    void *base = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(base != MAP_FAILED);
    return base;
}

// Memory that children see too: verdicts and counters live here, never the data under test.
static inline void *map_shared(size_t bytes)
{
    void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    MUST(base != MAP_FAILED);
    return base;
}

// splitmix64: one step of a generator, and a good hash of a number as well.
static inline uint64_t mix64(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static inline uint64_t next_random(uint64_t *state)
{
    *state += 0x9e3779b97f4a7c15u;
    return mix64(*state);
}

static inline size_t random_below(uint64_t *state, size_t limit)
{
    return limit ? (size_t)(next_random(state) % limit) : 0;
}

#endif
