// remap_same_address - munmap and mmap at the same address under eviction: the new mapping's data must survive.
//
// hazards.md, "Silent corruption", row 1: an eviction that was decided for the old mapping and carried out on the new
// one zeroes it (225 to 50,076 words in 4 s when it was tried).
//
//   remap_same_address [--memory MIB] [--seconds S]
#include "ballast.h"

#define PAGES ((size_t)256)

static void *map_again(void *at, bool over)
{
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    if (!over)
        MUST(munmap(at, PAGES * PAGE) == 0);
    void *got = mmap(at, PAGES * PAGE, PROT_READ | PROT_WRITE, flags, -1, 0);
    MUST(got == at);
    return got;
}

// A second mapping at the address; checked several times, because an eviction may come late.
static void one_round(void *base, uint32_t version, uint64_t *random)
{
    fill_pages(base, 0, PAGES, 1, version);
    sleep_micros((long)random_below(random, 3000));
    require_pages(base, 0, PAGES, 1, version, "the first mapping");
    map_again(base, random_below(random, 2));
    size_t untouched = random_below(random, PAGES);
    require_zero_pages(base, untouched, 1, 1, "an untouched page of the second mapping");
    fill_pages(base, 0, PAGES, 1, version + 1);
    for (int look = 0; look < 3; look++) {
        sleep_micros((long)random_below(random, 1000));
        require_pages(base, 0, PAGES, 1, version + 1, "the second mapping");
    }
}

int main(int argc, char **argv)
{
    victim_begin(argc, argv, "--memory --seconds", 120);
    double end = seconds_now() + (double)option_number("--seconds", 3);
    uint64_t random = 1;
    uint32_t rounds = 0;
    void *base = map_pages(PAGES);
    ballast_make(option_number("--memory", 192));
    ballast_walk_aside();
    phase("rounds");
    do
        one_round(base, 2 * ++rounds, &random);
    while (seconds_now() < end);
    ballast_rest();
    return succeed("%u mappings at the same address kept their data", 2 * rounds);
}
