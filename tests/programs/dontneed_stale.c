// dontneed_stale - after MADV_DONTNEED a page must read as zeros, however its eviction and its way back raced with it.
//
// hazards.md: a copy decided before and issued after the REMOVE event brought stale bytes in 212 of 2000 rounds. Here
// pages are evicted by a ballast, read in sequence (so that readahead brings neighbours), and dropped meanwhile.
//
//   dontneed_stale [--memory MIB] [--rounds N] [--nap MICROS]
//
// With --nap pages are dropped while a thread touches them, and looked at later: what was on its way has arrived.
#include "ballast.h"

#define PAGES ((size_t)2048)

static long nap;

static void *touch(void *page)
{
    (void)*(volatile unsigned char *)page;
    return NULL;
}

// The page and its neighbours are on their way from a device when they are dropped.
static void drop_what_is_under_way(unsigned char *base, size_t first, size_t count)
{
    pthread_t toucher;
    MUST((errno = pthread_create(&toucher, NULL, touch, base + first * PAGE)) == 0);
    sleep_micros(nap / 4);
    MUST(madvise(base + first * PAGE, count * PAGE, MADV_DONTNEED) == 0);
    MUST((errno = pthread_join(toucher, NULL)) == 0);
    sleep_micros(nap);
    require_zero_pages(base, first, count, 2, "dropped while it was brought");
}

static void drop_and_look(unsigned char *base, size_t first, size_t count)
{
    // A touch just before: with readahead, the neighbours are on their way in while they are dropped.
    (void)*(volatile unsigned char *)(base + first * PAGE);
    MUST(madvise(base + first * PAGE, count * PAGE, MADV_DONTNEED) == 0);
    require_zero_pages(base, first, count, 2, "just after MADV_DONTNEED");
}

static void one_round(unsigned char *base, uint32_t version, uint64_t *random)
{
    fill_pages(base, 0, PAGES, 2, version);
    ballast_walk();
    size_t at = 0;
    while (at + 64 < PAGES) {
        size_t kept = 1 + random_below(random, 32), dropped = 1 + random_below(random, 32);
        require_pages(base, at, kept, 2, version, "kept page between dropped ones");
        drop_and_look(base, at + kept, dropped);
        require_zero_pages(base, at + kept, dropped, 2, "a second look after MADV_DONTNEED");
        fill_pages(base, at + kept, dropped / 2, 2, version);
        at += kept + dropped;
    }
}

// Blocks in an order in which nothing is read ahead.
static void one_round_of_naps(unsigned char *base, uint32_t version)
{
    fill_pages(base, 0, PAGES, 2, version);
    ballast_walk();
    for (size_t i = 0; i < PAGES / 8; i++)
        drop_what_is_under_way(base, i * 37 % (PAGES / 8) * 8, 8);
}

int main(int argc, char **argv)
{
    victim_begin(argc, argv, "--memory --rounds --nap", 120);
    nap = option_number("--nap", 0);
    long rounds = option_number("--rounds", 8);
    uint64_t random = 2;
    unsigned char *base = map_pages(PAGES);
    ballast_make(option_number("--memory", 192));
    phase("rounds");
    for (long i = 1; i <= rounds; i++)
        if (nap)
            one_round_of_naps(base, (uint32_t)i);
        else
            one_round(base, (uint32_t)i, &random);
    return succeed("%ld rounds of MADV_DONTNEED, no stale page", rounds);
}
