// watchful.c - a program that checks its memory all the time: every page holds what follows from its number and the round in
// which it was written. It says "ready", and at the end "good"; status 9: a page was wrong.
//
//   watchful MIB MILLISECONDS THREADS FORKS [ZEROS]
//
// ZEROS: so many MiB more, written with zeros and looked at again at the end.
// SIGTERM ends it before its time, with all checks.
// THREADS check and rewrite pages. With FORKS (and no threads) children are forked in turn, which check and rewrite theirs.
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { WORDS = 512 };

static uint64_t pages, threads;
static volatile int over;
static uint64_t *memory;

static uint64_t mix(uint64_t x)
{
    x ^= x >> 31;
    x *= 0x9e3779b97f4a7c15;
    x ^= x >> 29;
    return x * 0xbf58476d1ce4e5b9;
}

// A third of the words is noise, so that pages compress to about a half.
static uint64_t word(uint64_t page, uint64_t round, int i)
{
    return i % 3 ? round : mix(page * WORDS + i + round);
}

static void fill(uint64_t page, uint64_t round)
{
    uint64_t *at = memory + page * WORDS;
    for (int i = 1; i < WORDS; i++)
        at[i] = word(page, round, i);
    at[0] = round;
}

static void check(uint64_t page)
{
    const uint64_t *at = memory + page * WORDS;
    for (int i = 1; i < WORDS; i++) {
        if (at[i] != word(page, at[0], i)) {
            fprintf(stderr, "watchful: page %lu, word %d: %lx in round %lu\n", page, i, at[i], at[0]);
            _exit(9);
        }
    }
}

static void check_all(void)
{
    for (uint64_t page = 0; page < pages; page++)
        check(page);
}

// Written, so that they are memory and not only mapped.
static volatile char *make_zeros(uint64_t bytes)
{
    char *zeros = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (zeros == MAP_FAILED)
        _exit(2);
    memset(zeros, 0, bytes);
    return zeros;
}

static void check_zeros(const volatile char *zeros, uint64_t bytes)
{
    for (uint64_t i = 0; i < bytes; i++) {
        if (zeros[i]) {
            fprintf(stderr, "watchful: byte %lu is not zero\n", i);
            _exit(9);
        }
    }
}

static void *work(void *argument)
{
    uint64_t page = (uint64_t)argument;
    for (uint64_t round = 1; !over; round++) {
        check(page);
        if (mix(round) % 3 == 0)
            fill(page, round);
        page += threads;
        if (page >= pages)
            page = (uint64_t)argument;
    }
    return NULL;
}

static void fork_once(void)
{
    pid_t child = fork();
    if (child == 0) {
        signal(SIGTERM, SIG_IGN);
        for (uint64_t page = 0; page < pages; page++) {
            check(page);
            fill(page, 7);
        }
        check_all();
        _exit(0);
    }
    int status = 0;
    if (child > 0 && (waitpid(child, &status, 0) != child || status != 0)) {
        fprintf(stderr, "watchful: a child ended with %x\n", status);
        _exit(9);
    }
    check_all();
}

static void on_term(int number)
{
    (void)number;
    over = 1;
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e3 + t.tv_nsec / 1e6;
}

int main(int argc, char **argv)
{
    if (argc != 5 && argc != 6)
        return 2;
    pages = strtoul(argv[1], NULL, 10) * 256;
    threads = strtoul(argv[3], NULL, 10);
    memory = mmap(NULL, pages * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    pthread_t all[64];
    if (memory == MAP_FAILED || threads > 64)
        return 2;
    for (uint64_t page = 0; page < pages; page++)
        fill(page, 0);
    uint64_t zero_bytes = argc == 6 ? strtoul(argv[5], NULL, 10) << 20 : 0;
    volatile char *zeros = zero_bytes ? make_zeros(zero_bytes) : NULL;
    double end = now() + strtod(argv[2], NULL);
    signal(SIGTERM, on_term);
    printf("ready\n");
    fflush(stdout);
    for (uint64_t i = 0; i < threads; i++)
        pthread_create(&all[i], NULL, work, (void *)i);
    while (now() < end && !over) {
        if (atoi(argv[4]))
            fork_once();
        usleep(5000);
    }
    over = 1;
    for (uint64_t i = 0; i < threads; i++)
        pthread_join(all[i], NULL);
    check_all();
    check_zeros(zeros, zero_bytes);
    printf("good\n");
    return 0;
}
