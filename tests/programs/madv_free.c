// madv_free - MADV_FREE: a page holds its old bytes or zeros, never anything else; once written it keeps the new bytes.
//
// hazards.md: MADV_FREE sends REMOVE, but the pages stay and are written again without a fault. A pager that believes
// the event loses those writes.
//
//   madv_free [--memory MIB] [--rounds N]
#include "ballast.h"

#define PAGES ((size_t)2048)
#define REGION 9

static unsigned char *data;
static long old_pages, zero_pages;

static void require_old_or_zero(size_t page, uint32_t version)
{
    struct page_identity old = usual_identity(REGION, (uint32_t)page, version);
    struct page_identity zero = { .region = REGION, .index = (uint32_t)page, .kind = KIND_ZERO };
    if (page_matches(data + page * PAGE, &old))
        old_pages++;
    else if (page_matches(data + page * PAGE, &zero))
        zero_pages++;
    else
        page_require(data + page * PAGE, &old, "freed page is neither old nor zero");
}

// Written straight after the free: no fault tells of it if the page was still there.
static void write_after_free(uint32_t version)
{
    for (size_t page = 0; page < PAGES; page += 2)
        fill_pages(data, page, 1, REGION, version + 1);
}

static void one_round(uint32_t version, bool evict_before)
{
    fill_pages(data, 0, PAGES, REGION, version);
    if (evict_before)
        ballast_walk();
    MUST(madvise(data, PAGES * PAGE, MADV_FREE) == 0);
    write_after_free(version);
    ballast_walk();
    for (size_t page = 0; page < PAGES; page++) {
        if (page % 2)
            require_old_or_zero(page, version);
        else
            require_pages(data, page, 1, REGION, version + 1, "page written after MADV_FREE");
    }
}

int main(int argc, char **argv)
{
    victim_begin(argc, argv, "--memory --rounds", 120);
    long rounds = option_number("--rounds", 4);
    data = map_pages(PAGES);
    ballast_make(option_number("--memory", 192));
    phase("rounds");
    for (long i = 0; i < rounds; i++)
        one_round((uint32_t)(10 * i + 1), i % 2);
    return succeed("%ld freed pages kept their bytes, %ld became zero, all written ones hold", old_pages, zero_pages);
}
