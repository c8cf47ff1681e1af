// wipe_and_grow - MADV_WIPEONFORK memory that grows by mremap, or is moved by it before anybody can know of it: all of it is zero
// in the child, evicted or not.
//
// The advice goes along with the mapping, and the kernel tells nobody.
//
//   wipe_and_grow [--memory MIB] [--rounds N]
#include "ballast.h"

#define PAGES ((size_t)128)
#define REGION 37

static unsigned char *wiped_of(size_t pages)
{
    unsigned char *wiped = map_pages(pages);
    MUST(madvise(wiped, pages * PAGE, MADV_WIPEONFORK) == 0);
    return wiped;
}

// Twice as large, where it is or elsewhere; it was known before.
static unsigned char *grown(void)
{
    unsigned char *wiped = wiped_of(PAGES);
    fill_pages(wiped, 0, PAGES, REGION, 1);
    ballast_walk();
    unsigned char *now = mremap(wiped, PAGES * PAGE, 2 * PAGES * PAGE, MREMAP_MAYMOVE);
    MUST(now != MAP_FAILED);
    return now;
}

// Somewhere else before its first touch.
static unsigned char *moved(void)
{
    unsigned char *wiped = wiped_of(2 * PAGES), *place = map_pages(2 * PAGES);
    MUST(mremap(wiped, 2 * PAGES * PAGE, 2 * PAGES * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, place) == place);
    return place;
}

int main(int argc, char **argv)
{
    victim_begin(argc, argv, "--memory --rounds", 120);
    size_t rounds = (size_t)option_number("--rounds", 10);
    ballast_make(option_number("--memory", 192));
    for (size_t round = 0; round < rounds; round++) {
        unsigned char *wiped = round % 2 ? grown() : moved();
        fill_pages(wiped, 0, 2 * PAGES, REGION, 1);
        ballast_walk();
        pid_t child = start_child();
        if (child == 0) {
            require_zero_pages(wiped, 0, 2 * PAGES, REGION, round % 2 ? "wiped and grown" : "wiped and moved");
            _exit(0);
        }
        wait_for_exit(child, 0, "child");
        require_pages(wiped, 0, 2 * PAGES, REGION, 1, "in the parent");
        MUST(munmap(wiped, 2 * PAGES * PAGE) == 0);
    }
    return succeed("wiped memory is zero in children, however large it has become and wherever");
}
