// remap_same_address - munmap and mmap at the same address under eviction: the new mapping's data must survive.
//
// hazards.md, "Silent corruption", row 1: an eviction that was decided for the old mapping and carried out on the new
// one zeroes it (225 to 50,076 words in 4 s when it was tried).
//
//   remap_same_address [--memory MIB] [--seconds S] [--next-to-go 1]
//
// `--next-to-go 1`: one large region is walked in a circle, and what is replaced is always the part that has been
// resident for longest, for which evictions have most likely been decided.
#include "ballast.h"

#define PAGES ((size_t)256)

static void map_again(void *at, size_t pages, bool over)
{
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    if (!over)
        MUST(munmap(at, pages * PAGE) == 0);
    MUST(mmap(at, pages * PAGE, PROT_READ | PROT_WRITE, flags, -1, 0) == at);
}

// A second mapping at the address; checked several times, because an eviction may come late.
static void one_round(void *base, uint32_t version, uint64_t *random)
{
    fill_pages(base, 0, PAGES, 1, version);
    sleep_micros((long)random_below(random, 3000));
    require_pages(base, 0, PAGES, 1, version, "the first mapping");
    map_again(base, PAGES, random_below(random, 2));
    size_t untouched = random_below(random, PAGES);
    require_zero_pages(base, untouched, 1, 1, "an untouched page of the second mapping");
    fill_pages(base, 0, PAGES, 1, version + 1);
    for (int look = 0; look < 3; look++) {
        sleep_micros((long)random_below(random, 1000));
        require_pages(base, 0, PAGES, 1, version + 1, "the second mapping");
    }
}

#define WALKED 256
#define REPLACED ((size_t)512)

// The first resident page from `from` on: with a walk in a circle, the one that was touched longest ago.
static size_t longest_resident(unsigned char *base, size_t pages, size_t from, unsigned char *here)
{
    MUST(mincore(base, pages * PAGE, here) == 0);
    for (size_t i = 0; i < pages; i++)
        if (here[(from + i) % pages] & 1)
            return (from + i) % pages;
    return from;
}

static void replace(unsigned char *base, size_t first, uint32_t *versions, uint64_t *random)
{
    uint32_t version = ++versions[first];
    for (size_t i = first; i < first + REPLACED; i++)
        if (versions[i] > version)
            version = versions[i];
    map_again(base + first * PAGE, REPLACED, random_below(random, 2));
    for (size_t i = first; i < first + REPLACED; i++)
        versions[i] = version + 1;
    fill_pages(base, first, REPLACED, 1, version + 1);
    require_pages(base, first, REPLACED, 1, version + 1, "the new mapping");
}

static uint32_t replace_what_goes_next(size_t pages, double end)
{
    unsigned char *base = map_pages(pages), *here = malloc(pages);
    uint32_t *versions = calloc(pages, sizeof *versions);
    uint32_t rounds = 0;
    uint64_t random = 1;
    MUST(here && versions);
    fill_pages(base, 0, pages, 1, 0);
    for (size_t at = 0; seconds_now() < end; rounds++) {
        for (int i = 0; i < WALKED; i++, at = (at + 1) % pages)
            require_pages(base, at, 1, 1, versions[at], "the walk");
        size_t first = longest_resident(base, pages, at, here);
        replace(base, first + REPLACED <= pages ? first : pages - REPLACED, versions, &random);
    }
    return rounds;
}

int main(int argc, char **argv)
{
    victim_begin(argc, argv, "--memory --seconds --next-to-go", 120);
    double end = seconds_now() + (double)option_number("--seconds", 3);
    uint64_t random = 1;
    uint32_t rounds = 0;
    if (option_number("--next-to-go", 0)) {
        phase("replacing what goes next");
        rounds = replace_what_goes_next((size_t)option_number("--memory", 192) * (MIB / PAGE), end);
        return succeed("%u new mappings kept their data", rounds);
    }
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
