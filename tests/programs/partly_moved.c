// partly_moved - what mremap(2) of several mappings has moved before it fails is moved, and nothing is lost.
//
// Linux 6.17 and later move a range of several mappings one by one, and stop at one that is registered with a userfaultfd.
// Who takes that answer up again moves the first ones a second time: with MREMAP_DONTUNMAP these are there and empty, and what
// had been moved is replaced by zeros.
//
// A mapping is made read-only in its first part, which so is not managed, and moved as a whole. Each page of that part must be
// found at the one place or the other.
//
//   partly_moved [--memory MIB] [--rounds N]
#include "ballast.h"

#define FIRST_PAGES ((size_t)64)
#define PAGES (4 * MIB / PAGE)

static void move_as_a_whole(uint32_t round)
{
    unsigned char *base = map_pages(PAGES), *target = map_pages(PAGES);
    fill_pages(base, 0, FIRST_PAGES, 1, round);
    MUST(mprotect(base, FIRST_PAGES * PAGE, PROT_READ) == 0);
    fill_pages(base, FIRST_PAGES, PAGES - FIRST_PAGES, 1, round);
    ballast_walk_aside();
    sleep_micros(100000);
    int flags = MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP;
    bool is_moved = mremap(base, PAGES * PAGE, PAGES * PAGE, flags, target) != MAP_FAILED;
    MUST(is_moved || errno == EFAULT);
    for (size_t i = 0; i < FIRST_PAGES; i++) {
        struct page_identity identity = usual_identity(1, i, round);
        bool is_there = page_matches(target + i * PAGE, &identity);
        if (!is_there)
            require_pages(base, i, 1, 1, round, "neither moved nor left");
    }
    unsigned char *rest = is_moved ? target : base;
    require_pages(rest, FIRST_PAGES, PAGES - FIRST_PAGES, 1, round, is_moved ? "after the move" : "after it was refused");
    munmap(base, PAGES * PAGE);
    munmap(target, PAGES * PAGE);
}

int main(int argc, char **argv)
{
    victim_begin(argc, argv, "--memory --rounds", 120);
    size_t rounds = option_number("--rounds", 4);
    ballast_make(option_number("--memory", 96));
    ballast_walk_aside();
    phase("a range of two mappings is moved");
    for (size_t round = 1; round <= rounds; round++)
        move_as_a_whole((uint32_t)round);
    ballast_rest();
    return succeed("%zu ranges were moved or left", rounds);
}
