// madv_free - MADV_FREE: a page holds its old bytes or zeros, never anything else; once written it keeps the new bytes.
//
// hazards.md: MADV_FREE sends REMOVE, but the pages stay and are written again without a fault. A pager that believes
// the event loses those writes.
//
// What was freed the kernel may take from wherever it lies by then, also from where a pager has put it. With --reclaim 1 it
// does, all the time: a thread asks for it (MADV_PAGEOUT) in all private memory of the process but where they were. The first pages are freed before
// there is a ballast, so before a pager has anything to do.
//
//   madv_free [--memory MIB] [--rounds N] [--reclaim 1] [--fork 1]
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

static void free_and_write(uint32_t version)
{
    MUST(madvise(data, PAGES * PAGE, MADV_FREE) == 0);
    write_after_free(version);
}

static void check(uint32_t version)
{
    for (size_t page = 0; page < PAGES; page++) {
        if (page % 2)
            require_old_or_zero(page, version);
        else
            require_pages(data, page, 1, REGION, version + 1, "page written after MADV_FREE");
    }
}

static void check_in_child(uint32_t version)
{
    pid_t child = start_child();
    if (child == 0) {
        ballast_walk();
        check(version);
        _exit(0);
    }
    ballast_walk();
    wait_for_exit(child, 0, "child");
}

static void one_round(uint32_t version, bool evict_before, bool forks)
{
    fill_pages(data, 0, PAGES, REGION, version);
    if (evict_before)
        ballast_walk();
    free_and_write(version);
    ballast_walk();
    if (forks)
        check_in_child(version);
    check(version);
}

static void reclaim_others(void)
{
    char line[300], rights[8];
    FILE *maps = fopen("/proc/self/maps", "r");
    MUST(maps);
    while (fgets(line, sizeof line, maps)) {
        unsigned long start, end, inode;
        MUST(sscanf(line, "%lx-%lx %7s %*s %*s %lu", &start, &end, rights, &inode) == 4);
        bool is_ours = start <= (uintptr_t)data && (uintptr_t)data < end;
        if (!strcmp(rights, "rw-p") && !inode && !is_ours)
            madvise((void *)start, end - start, MADV_PAGEOUT);
    }
    fclose(maps);
}

static void *reclaim_until_the_end(void *unused)
{
    for (;; sleep_micros(500))
        reclaim_others();
    return unused;
}

int main(int argc, char **argv)
{
    victim_begin(argc, argv, "--memory --rounds --reclaim --fork", 120);
    long rounds = option_number("--rounds", 4), forks = option_number("--fork", 0);
    pthread_t reclaimer;
    data = map_pages(PAGES);
    fill_pages(data, 0, PAGES, REGION, 1);
    free_and_write(1);
    ballast_make(option_number("--memory", 192));
    if (option_number("--reclaim", 0))
        MUST((errno = pthread_create(&reclaimer, NULL, reclaim_until_the_end, NULL)) == 0);
    phase("what was freed before");
    ballast_walk();
    check(1);
    phase("rounds");
    for (long i = 1; i <= rounds; i++)
        one_round((uint32_t)(10 * i + 1), i % 2, forks);
    return succeed("%ld freed pages kept their bytes, %ld became zero, all written ones hold", old_pages, zero_pages);
}
