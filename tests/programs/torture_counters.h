// torture_counters.h - the lock-free mode of torture (`--mode counters`): no increment may be lost.
//
// Threads add to 64-bit counters at random pages without any lock around the memory, so faults, evictions and writes
// race freely; at the end the sum must be what was added. A page that is evicted with an old copy loses increments
// (hazards.md: write-protection as a "was it written meanwhile" check lost 999). A fork stops the adders between two
// batches, so the child knows the sum it must inherit; then both sides go on.
#ifndef TORTURE_COUNTERS_H
#define TORTURE_COUNTERS_H
#include "torture_state.h"

#define ADDS_PER_BATCH 512

static atomic_ullong *counter_memory;
static pthread_rwlock_t fork_gate = PTHREAD_RWLOCK_INITIALIZER; // adders read, who forks writes
static atomic_ullong added;
static double counters_end;

static inline unsigned long long counters_sum(void)
{
    unsigned long long sum = 0;
    for (long i = 0; i < memory_limit_pages * (long)(PAGE / 8); i++)
        sum += atomic_load_explicit(&counter_memory[i], memory_order_relaxed);
    return sum;
}

static inline void counters_require(unsigned long long expected, const char *when)
{
    phase(when);
    unsigned long long sum = counters_sum();
    if (sum != expected)
        fail("%s: sum of all counters of %ld pages at %p: expected %llu, found %llu", when, memory_limit_pages,
             (void *)counter_memory, expected, sum);
}

static inline void *counters_add(void *argument)
{
    uint64_t random = (uint64_t)(uintptr_t)argument;
    while (seconds_now() < counters_end && !atomic_load(&shared->failed)) {
        pthread_rwlock_rdlock(&fork_gate);
        for (int i = 0; i < ADDS_PER_BATCH; i++) {
            size_t page = random_below(&random, (size_t)memory_limit_pages);
            size_t word = random_below(&random, PAGE / 8);
            atomic_fetch_add_explicit(&counter_memory[page * (PAGE / 8) + word], 1, memory_order_relaxed);
        }
        atomic_fetch_add(&added, ADDS_PER_BATCH);
        pthread_rwlock_unlock(&fork_gate);
        sched_yield();
    }
    return NULL;
}

static inline void counters_run_threads(long threads, uint64_t seed, double until)
{
    pthread_t adders[64];
    counters_end = until;
    for (long i = 0; i < threads; i++) {
        void *argument = (void *)(uintptr_t)mix64(seed ^ (uint64_t)i);
        MUST((errno = pthread_create(&adders[i], NULL, counters_add, argument)) == 0);
    }
    for (long i = 0; i < threads; i++)
        MUST((errno = pthread_join(adders[i], NULL)) == 0);
}

__attribute__((noreturn)) static inline void counters_child(long threads, uint64_t seed)
{
    watchdog_arm();
    pthread_rwlock_init(&fork_gate, NULL);
    counters_require(atomic_load(&added), "counters inherited by a child");
    counters_run_threads(threads, seed, seconds_now() + 0.3);
    counters_require(atomic_load(&added), "counters at the end of a child");
    _exit(0);
}

struct counters_forker {
    long children;
    long threads;
};

static inline void *counters_fork(void *argument)
{
    struct counters_forker *plan = argument;
    for (uint64_t round = 0; plan->children > 0 && seconds_now() < counters_end; round++) {
        pid_t children[MAX_SLOTS];
        for (long i = 0; i < plan->children; i++) {
            sleep_micros(50000);
            pthread_rwlock_wrlock(&fork_gate);
            children[i] = fork();
            if (children[i] == 0)
                counters_child(plan->threads, mix64(run_seed + round * 100 + (uint64_t)i));
            pthread_rwlock_unlock(&fork_gate);
            MUST(children[i] > 0);
        }
        for (long i = 0; i < plan->children; i++)
            wait_for_exit(children[i], 0, "child with counters");
    }
    return NULL;
}

static inline int run_counters(long threads, long children, double seconds)
{
    struct counters_forker plan = { children, threads };
    pthread_t forker;
    counter_memory = (atomic_ullong *)map_pages((size_t)memory_limit_pages);
    counters_end = seconds_now() + seconds;
    phase("adding");
    MUST((errno = pthread_create(&forker, NULL, counters_fork, &plan)) == 0);
    counters_run_threads(threads, run_seed, counters_end);
    MUST((errno = pthread_join(forker, NULL)) == 0);
    counters_require(atomic_load(&added), "counters at the end");
    return succeed("counters: %llu increments by %ld threads, %ld children at a time, none lost",
                   (unsigned long long)added, threads, children);
}

#endif
