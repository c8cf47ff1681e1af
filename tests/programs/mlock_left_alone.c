// mlock_left_alone - an mlocked buffer stays resident, whatever the pressure: mincore says so at all times.
//
// design.md, "Never managed": programs lock what must not reach a disk (keys) or must not wait. A buffer that is locked
// after it was evicted must come back at once; one that is unlocked may go, and keeps its bytes.
//
//   mlock_left_alone [--memory MIB]
#include "ballast.h"

#define PAGES ((size_t)512)
#define LOCKED_FIRST ((size_t)128)
#define LOCKED ((size_t)128) // 512 KiB, below the default limit of 8 MiB
#define REGION 18

static unsigned char *data;
static atomic_bool walk_has_ended;

static void require_resident(const char *when)
{
    unsigned char present[LOCKED];
    MUST(mincore(data + LOCKED_FIRST * PAGE, LOCKED * PAGE, present) == 0);
    for (size_t i = 0; i < LOCKED; i++)
        if (!(present[i] & 1))
            fail("%s: locked page %p (page %zu): expected resident, mincore says it is not", when,
                 (void *)(data + (LOCKED_FIRST + i) * PAGE), LOCKED_FIRST + i);
}

static void *walk_twice(void *unused)
{
    ballast_walk();
    ballast_walk();
    atomic_store(&walk_has_ended, true);
    return unused;
}

static long watch_while_walking(const char *when)
{
    pthread_t walker;
    long looks = 0;
    atomic_store(&walk_has_ended, false);
    MUST((errno = pthread_create(&walker, NULL, walk_twice, NULL)) == 0);
    for (; !atomic_load(&walk_has_ended); looks++) {
        require_resident(when);
        sleep_micros(200);
    }
    MUST((errno = pthread_join(walker, NULL)) == 0);
    require_pages(data, 0, PAGES, REGION, 1, when);
    return looks;
}

int main(int argc, char **argv)
{
    victim_begin(argc, argv, "--memory", 120);
    data = map_pages(PAGES);
    fill_pages(data, 0, PAGES, REGION, 1);
    ballast_make(option_number("--memory", 192));
    ballast_walk();
    phase("locking what may be evicted");
    MUST(mlock(data + LOCKED_FIRST * PAGE, LOCKED * PAGE) == 0);
    require_resident("just after mlock");
    phase("pressure beside locked pages");
    long looks = watch_while_walking("locked, under pressure");
    phase("unlocked again");
    MUST(munlock(data + LOCKED_FIRST * PAGE, LOCKED * PAGE) == 0);
    ballast_walk();
    require_pages(data, 0, PAGES, REGION, 1, "unlocked, after pressure");
    return succeed("%ld looks, locked pages were resident at all of them", looks);
}
