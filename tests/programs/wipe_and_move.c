// wipe_and_move - MADV_WIPEONFORK memory that the parent moves, unmaps or replaces right after a fork: the child still
// reads zeros where it was wiped and the parent's bytes where it was not.
//
// hazards.md: no event tells of the advice, so the pager asks the kernel which ranges are wiped when it reads of the fork.
// By then the parent may have moved them on, and the child read the parent's bytes.
//
//   wipe_and_move [--memory MIB] [--rounds N]
#include "ballast.h"

#define PAGES ((size_t)64)
#define REGION 5

// What the parent does with the wiped pages while its fork is looked at. Returns where such pages are afterwards.
static unsigned char *change(unsigned char *wiped, size_t round)
{
    unsigned char *place = map_pages(PAGES);
    switch (round % 3) {
    case 0:
        MUST(mremap(wiped, PAGES * PAGE, PAGES * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, place) == place);
        return place;
    case 1:
        MUST(munmap(wiped, PAGES * PAGE) == 0);
        break;
    default:
        MUST(mmap(wiped, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == wiped);
        MUST(munmap(wiped, PAGES * PAGE) == 0);
    }
    fill_pages(place, 0, PAGES, REGION, 1);
    MUST(madvise(place, PAGES * PAGE, MADV_WIPEONFORK) == 0);
    return place;
}

int main(int argc, char **argv)
{
    victim_begin(argc, argv, "--memory --rounds", 120);
    size_t rounds = (size_t)option_number("--rounds", 30);
    ballast_make(option_number("--memory", 192));
    unsigned char *wiped = map_pages(PAGES);
    fill_pages(wiped, 0, PAGES, REGION, 1);
    MUST(madvise(wiped, PAGES * PAGE, MADV_WIPEONFORK) == 0);
    for (size_t round = 0; round < rounds; round++) {
        ballast_walk();
        pid_t child = start_child();
        if (child == 0) {
            require_zero_pages(wiped, 0, PAGES, REGION, "wiped page in the child");
            _exit(0);
        }
        wiped = change(wiped, round);
        wait_for_exit(child, 0, "child whose parent went on");
    }
    return succeed("wiped pages are zero in children, wherever the parent has moved on to");
}
