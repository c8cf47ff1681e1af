// attached.c - a program that must not notice that an agent is brought to it: every call that may not fail is checked, every
// signal is counted, floating point goes on, and memory keeps its bytes.
//
//   attached MIB MILLISECONDS THREADS
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile sig_atomic_t stop;
static volatile long received, next_value, alarms;

static void fail(const char *what)
{
    fprintf(stderr, "attached: %s: %s\n", what, strerror(errno));
    _exit(1);
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e3 + t.tv_nsec / 1e6;
}

static void on_value(int number, siginfo_t *info, void *context)
{
    (void)number, (void)context;
    if (info->si_value.sival_int != next_value)
        _exit(3);
    next_value++;
    received++;
}

static void on_alarm(int number)
{
    (void)number;
    alarms++;
}

static double compute(long rounds)
{
    double x = 0.5, y = 0;
    for (long i = 0; i < rounds; i++) {
        x = 3.7 * x * (1 - x);
        y += x;
    }
    return y;
}

static void *computes(void *unused)
{
    double expected = compute(20000);
    while (!stop)
        if (compute(20000) != expected)
            fail("floating point");
    return unused;
}

static void *sleeps(void *unused)
{
    while (!stop) {
        struct timespec t = { 0, 20000000 };
        double begun = now();
        if (nanosleep(&t, NULL) != 0)
            fail("nanosleep was interrupted");
        if (now() - begun < 19.9)
            fail("nanosleep was short");
    }
    return unused;
}

static void *waits(void *unused)
{
    int fd = epoll_create1(0);
    while (!stop) {
        struct epoll_event event;
        struct pollfd none = { -1, 0, 0 };
        if (epoll_wait(fd, &event, 1, 30) != 0)
            fail("epoll_wait was interrupted");
        if (poll(&none, 1, 10) != 0)
            fail("poll was interrupted");
    }
    close(fd);
    return unused;
}

static void *talks(void *unused)
{
    int ends[2];
    if (pipe(ends) != 0)
        fail("pipe");
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (;;) {
            usleep(5000);
            if (write(ends[1], "x", 1) != 1)
                _exit(0);
        }
    }
    while (!stop) {
        char byte;
        if (read(ends[0], &byte, 1) != 1 || byte != 'x')
            fail("read was interrupted");
    }
    kill(child, SIGKILL);
    close(ends[0]), close(ends[1]);
    return unused;
}

static void fill(uint64_t *words, size_t count, uint64_t seed)
{
    for (size_t i = 0; i < count; i++)
        words[i] = (i ^ seed) * 0x9e3779b97f4a7c15;
}

static void check(const uint64_t *words, size_t count, uint64_t seed)
{
    for (size_t i = 0; i < count; i++)
        if (words[i] != (i ^ seed) * 0x9e3779b97f4a7c15)
            fail("a word is wrong");
}

int main(int argc, char **argv)
{
    if (argc != 4)
        return 2;
    size_t count = ((size_t)atol(argv[1]) << 20) / 8;
    double end = now() + atol(argv[2]);
    int threads = atoi(argv[3]);
    uint64_t *words = mmap(NULL, count * 8, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (words == MAP_FAILED)
        fail("mmap");
    sigset_t all, none;
    sigfillset(&all), sigemptyset(&none);
    pthread_sigmask(SIG_SETMASK, &all, NULL);
    pthread_t *handles = calloc(threads, sizeof *handles);
    void *(*bodies[])(void *) = { sleeps, waits, computes, sleeps, waits, sleeps, waits, sleeps };
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 128 << 10);
    for (int i = 0; i < threads; i++)
        if (pthread_create(&handles[i], &small, i == 1 ? talks : bodies[i % 8], NULL) != 0)
            fail("pthread_create");
    struct sigaction values = { .sa_sigaction = on_value, .sa_flags = SA_SIGINFO };
    struct sigaction clock = { .sa_handler = on_alarm };
    sigaction(SIGRTMIN, &values, NULL), sigaction(SIGALRM, &clock, NULL);
    pthread_sigmask(SIG_SETMASK, &none, NULL);
    struct itimerval every = { { 0, 1000 }, { 0, 1000 } };
    setitimer(ITIMER_REAL, &every, NULL);
    long sent = 0;
    double expected = compute(1000);
    fill(words, count, 0);
    for (uint64_t round = 0; now() < end; round++) {
        check(words, count, round);
        fill(words, count, round + 1);
        for (int i = 0; i < 16; i++)
            if (sigqueue(getpid(), SIGRTMIN, (union sigval){ .sival_int = sent }) == 0)
                sent++;
        if (compute(1000) != expected)
            fail("floating point");
    }
    stop = 1;
    for (int i = 0; i < threads; i++)
        pthread_join(handles[i], NULL);
    setitimer(ITIMER_REAL, &(struct itimerval){ 0 }, NULL);
    if (received != sent || alarms == 0)
        fail("signals were lost");
    printf("ok: %ld signals in order, %ld alarms\n", received, alarms);
    return 0;
}
