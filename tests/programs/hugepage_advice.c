// hugepage_advice - memory of transparent huge pages, collapsed and split, keeps its data.
//
// hazards.md: MOVE splits a huge page, and can report EEXIST after it moved up to 512 pages when something else changes
// the entries (MADV_COLD, collapse, compaction). Here the program itself collapses, cools and pages out while another
// thread writes.
//
//   hugepage_advice [--memory MIB] [--rounds N]
#include "ballast.h"

#define HUGE_PAGES ((size_t)512)
#define PAGES (16 * HUGE_PAGES)
#define REGION 19

static unsigned char *data;
static atomic_bool adviser_stops;
static atomic_long advised, refused;

static void *advise_all_the_time(void *unused)
{
    static const int advices[] = { MADV_COLD, MADV_COLLAPSE, MADV_PAGEOUT, MADV_COLD, MADV_WILLNEED };
    uint64_t random = 3;
    for (size_t i = 0; !atomic_load(&adviser_stops); i++) {
        size_t at = random_below(&random, PAGES / HUGE_PAGES) * HUGE_PAGES;
        bool taken = madvise(data + at * PAGE, HUGE_PAGES * PAGE, advices[i % 5]) == 0;
        atomic_fetch_add(taken ? &advised : &refused, 1);
        sleep_micros(500);
    }
    return unused;
}

static void one_round(uint32_t version)
{
    fill_pages(data, 0, PAGES, REGION, version);
    ballast_walk();
    require_pages(data, 0, PAGES, REGION, version, "huge pages under advice");
    // One page out of each huge one is dropped: it is split, the rest holds.
    for (size_t page = 5; page < PAGES; page += HUGE_PAGES)
        MUST(madvise(data + page * PAGE, PAGE, MADV_DONTNEED) == 0);
    ballast_walk();
    for (size_t page = 0; page < PAGES; page++)
        if (page % HUGE_PAGES == 5)
            require_zero_pages(data, page, 1, REGION, "dropped page of a huge one");
        else
            require_pages(data, page, 1, REGION, version, "rest of a huge page");
}

int main(int argc, char **argv)
{
    victim_begin(argc, argv, "--memory --rounds", 120);
    long rounds = option_number("--rounds", 3);
    pthread_t adviser;
    unsigned char *base = map_pages(PAGES + HUGE_PAGES);
    data = base + (-(uintptr_t)base & (HUGE_PAGES * PAGE - 1));
    bool huge = madvise(data, PAGES * PAGE, MADV_HUGEPAGE) == 0;
    ballast_make(option_number("--memory", 160));
    madvise(ballast_base, ballast_pages * PAGE, MADV_HUGEPAGE);
    MUST((errno = pthread_create(&adviser, NULL, advise_all_the_time, NULL)) == 0);
    phase("rounds");
    for (long i = 1; i <= rounds; i++)
        one_round((uint32_t)i);
    atomic_store(&adviser_stops, true);
    MUST((errno = pthread_join(adviser, NULL)) == 0);
    madvise(data, PAGES * PAGE, MADV_NOHUGEPAGE);
    require_pages(data, 6, 100, REGION, (uint32_t)rounds, "after MADV_NOHUGEPAGE");
    return succeed("huge pages %s, %ld pieces of advice taken, %ld refused", huge ? "advised" : "refused", advised,
                   refused);
}
