// dontneed_stale - after MADV_DONTNEED a page must read as zeros, however its eviction and its way back raced with it.
//
// hazards.md: a copy decided before and issued after the REMOVE event brought stale bytes in 212 of 2000 rounds. Here
// pages are evicted by a ballast, read in sequence (so that readahead brings neighbours), and dropped meanwhile.
//
//   dontneed_stale [--memory MIB] [--rounds N]
#include "ballast.h"

#define PAGES ((size_t)2048)

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

int main(int argc, char **argv)
{
    victim_begin(argc, argv, "--memory --rounds", 120);
    long rounds = option_number("--rounds", 8);
    uint64_t random = 2;
    unsigned char *base = map_pages(PAGES);
    ballast_make(option_number("--memory", 192));
    phase("rounds");
    for (long i = 1; i <= rounds; i++)
        one_round(base, (uint32_t)i, &random);
    return succeed("%ld rounds of MADV_DONTNEED, no stale page", rounds);
}
