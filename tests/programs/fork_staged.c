// fork_staged - fork in the midst of evictions: the child sees the memory as it was at the fork, not later, not zeros.
//
// hazards.md: a page the parent writes after the fork and that is evicted before the fork event is read must not reach
// the child; a page in staging at the fork must exist in the child, even after the parent has gone. Another thread
// writes all the time, with a counter per page that only grows, so "later than the fork" can be told.
//
//   fork_staged [--memory MIB] [--rounds N]
#include "ballast.h"

#define PAGES ((size_t)4096)
#define WORDS (PAGE / 8)

static uint64_t *data;
static pthread_mutex_t writing = PTHREAD_MUTEX_INITIALIZER;
static _Atomic uint64_t generation = 1;
static atomic_bool writer_stops;
static pthread_t writer;
static atomic_int *verdict; // shared with the children: 0 none yet, 1 right, 2 wrong

static void tell_failure(void)
{
    atomic_store(verdict, 2);
}

static uint64_t word_of(size_t page, uint64_t number)
{
    return mix64(page) ^ number;
}

// First and last word and two between tell what generation the page is of.
static void stamp(size_t page, uint64_t number)
{
    for (size_t word = 0; word < WORDS; word += WORDS / 4 - 1)
        data[page * WORDS + word] = word_of(page, number);
}

static void require_stamp(size_t page, uint64_t number, const char *when)
{
    for (size_t word = 0; word < WORDS; word += WORDS / 4 - 1) {
        uint64_t found = data[page * WORDS + word];
        if (found != word_of(page, number))
            fail("%s: page %p (page %zu) word %zu: expected generation %llu, found generation %lld (word %#llx)", when,
                 (void *)&data[page * WORDS], page, word, (unsigned long long)number,
                 (long long)(found ^ mix64(page)), (unsigned long long)found);
    }
}

static void *write_generations(void *unused)
{
    while (!atomic_load(&writer_stops)) {
        pthread_mutex_lock(&writing);
        uint64_t number = atomic_fetch_add(&generation, 1) + 1;
        for (size_t page = 0; page < PAGES; page++)
            stamp(page, number);
        pthread_mutex_unlock(&writing);
        sched_yield();
    }
    return unused;
}

// The fork happens between two generations, then the writer goes on at once in the parent.
static pid_t fork_between_generations(uint64_t *at_fork)
{
    pthread_mutex_lock(&writing);
    *at_fork = atomic_load(&generation);
    pid_t child = start_child();
    if (child != 0)
        pthread_mutex_unlock(&writing);
    return child;
}

static void child_checks(uint64_t at_fork)
{
    for (int look = 0; look < 2; look++)
        for (size_t page = 0; page < PAGES; page++)
            require_stamp(page, at_fork, look ? "in the child, second look" : "in the child, first look");
    for (size_t page = 0; page < PAGES; page += 2)
        stamp(page, 7);
    for (size_t page = 0; page < PAGES; page++)
        require_stamp(page, page % 2 ? at_fork : 7, "in the child after its own writes");
}

// In half of the rounds the one who forked leaves at once: what only it had staged would be gone with it.
static void one_round(bool parent_leaves)
{
    uint64_t at_fork;
    atomic_store(verdict, 0);
    pid_t child = fork_between_generations(&at_fork);
    if (child == 0) {
        victim_before_failing = tell_failure;
        if (parent_leaves && start_child() != 0)
            _exit(0);
        child_checks(at_fork);
        atomic_store(verdict, 1);
        _exit(0);
    }
    wait_for_exit(child, 0, "child");
    while (atomic_load(verdict) == 0)
        sleep_micros(1000); // the watchdog bounds this
    if (atomic_load(verdict) != 1)
        fail("a grandchild whose parent left found its memory wrong, see its own sentence");
}

int main(int argc, char **argv)
{
    victim_begin(argc, argv, "--memory --rounds", 180);
    long rounds = option_number("--rounds", 20);
    data = (uint64_t *)map_pages(PAGES);
    verdict = map_shared(PAGE);
    for (size_t page = 0; page < PAGES; page++)
        stamp(page, 1);
    ballast_make(option_number("--memory", 128));
    phase("rounds");
    ballast_walk_aside();
    MUST((errno = pthread_create(&writer, NULL, write_generations, NULL)) == 0);
    for (long i = 0; i < rounds; i++) {
        sleep_micros(5000 + i % 7 * 3000);
        one_round(i % 2);
    }
    atomic_store(&writer_stops, true);
    MUST((errno = pthread_join(writer, NULL)) == 0);
    ballast_rest();
    return succeed("%ld forks amid writes, every child saw the moment of its fork", rounds);
}
