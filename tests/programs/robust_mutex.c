// robust_mutex - robust and priority-inheriting mutexes in heap memory that goes cold; their owners die.
//
// hazards.md, "Hangs": the kernel walks the robust list of a dying thread without waiting for evicted pages, so such a
// mutex stays locked for ever; FUTEX_LOCK_PI on an evicted word answers EFAULT (documented; glibc aborts on it).
// The robust ones must pass. `--pi 0` leaves the PI ones out.
//
//   robust_mutex [--memory MIB] [--pi 0|1] [--rounds N]
#include "ballast.h"

#define MUTEXES 64
#define SPREAD (64 * PAGE) // apart from each other, so that each has a page of its own and the mapping is large

static unsigned char *heap;

static pthread_mutex_t *mutex_at(int index)
{
    return (pthread_mutex_t *)(heap + (size_t)index * SPREAD + 128);
}

static void make_mutexes(int robust, int protocol)
{
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setrobust(&attributes, robust);
    pthread_mutexattr_setprotocol(&attributes, protocol);
    for (int i = 0; i < MUTEXES; i++)
        MUST((errno = pthread_mutex_init(mutex_at(i), &attributes)) == 0);
}

// Dies with all locks held, after they had time to go cold.
static void *lock_all_and_die(void *with_walk)
{
    for (int i = 0; i < MUTEXES; i++)
        MUST((errno = pthread_mutex_lock(mutex_at(i))) == 0);
    if (with_walk)
        ballast_walk();
    return NULL;
}

static void require_owner_died(int index)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 20;
    int result = pthread_mutex_timedlock(mutex_at(index), &until);
    if (result != EOWNERDEAD)
        fail("robust mutex %d at %p: its owner has died, expected EOWNERDEAD, found %d (%s)", index,
             (void *)mutex_at(index), result, strerror(result));
    MUST((errno = pthread_mutex_consistent(mutex_at(index))) == 0);
    MUST((errno = pthread_mutex_unlock(mutex_at(index))) == 0);
}

static void owner_dies(bool walk_before_death)
{
    pthread_t owner;
    MUST((errno = pthread_create(&owner, NULL, lock_all_and_die, walk_before_death ? heap : NULL)) == 0);
    MUST((errno = pthread_join(owner, NULL)) == 0);
    if (!walk_before_death)
        ballast_walk();
    for (int i = 0; i < MUTEXES; i++)
        require_owner_died(i);
}

static void *lock_and_count(void *count)
{
    for (int round = 0; round < 200; round++)
        for (int i = 0; i < MUTEXES; i++) {
            MUST((errno = pthread_mutex_lock(mutex_at(i))) == 0);
            ++*(volatile long *)count;
            MUST((errno = pthread_mutex_unlock(mutex_at(i))) == 0);
        }
    return NULL;
}

// Contended, so that the kernel is called on the words.
static void pi_mutexes(void)
{
    pthread_t threads[3];
    long counts[3] = { 0 };
    make_mutexes(PTHREAD_MUTEX_STALLED, PTHREAD_PRIO_INHERIT);
    ballast_walk();
    for (int i = 0; i < 3; i++)
        MUST((errno = pthread_create(&threads[i], NULL, lock_and_count, &counts[i])) == 0);
    for (int i = 0; i < 3; i++)
        MUST((errno = pthread_join(threads[i], NULL)) == 0);
    for (int i = 0; i < 3; i++)
        if (counts[i] != 200 * MUTEXES)
            fail("thread %d counted %ld under PI mutexes, expected %d", i, counts[i], 200 * MUTEXES);
}

int main(int argc, char **argv)
{
    victim_begin(argc, argv, "--memory --pi --rounds", 180);
    heap = malloc(MUTEXES * SPREAD);
    MUST(heap);
    memset(heap, 0x11, MUTEXES * SPREAD);
    ballast_make(option_number("--memory", 192));
    for (long round = 0; round < option_number("--rounds", 2); round++) {
        phase("owners of robust mutexes die");
        make_mutexes(PTHREAD_MUTEX_ROBUST, PTHREAD_PRIO_NONE);
        owner_dies(false);
        owner_dies(true);
        phase("priority-inheriting mutexes");
        if (option_number("--pi", 1))
            pi_mutexes();
    }
    return succeed("%d robust mutexes told of their owners' death each time", MUTEXES);
}
