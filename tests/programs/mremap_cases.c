// mremap_cases - mremap of evicted memory: grow, shrink, move, move onto an evicted range, MREMAP_DONTUNMAP, by pieces.
//
// hazards.md: mremap sends REMAP and then UNMAP of the old range, to be applied in order; without REMAP an evicted page
// reads zeros at its new address; MREMAP_DONTUNMAP sends REMAP only, and the old range must read zeros.
//
//   mremap_cases [--memory MIB] [--rounds N]
#include "ballast.h"

#define PAGES ((size_t)1024)
#define REGION 10
#define OTHER 11

static unsigned char *cold_region(size_t pages, uint32_t region, uint32_t version)
{
    unsigned char *base = map_pages(pages);
    fill_pages(base, 0, pages, region, version);
    return base;
}

static unsigned char *remap(void *from, size_t old_pages, size_t new_pages, int flags, void *to)
{
    void *got = mremap(from, old_pages * PAGE, new_pages * PAGE, flags, to);
    MUST(got != MAP_FAILED);
    return got;
}

// What realloc does with large blocks, again and again.
static void grows_and_shrinks(uint32_t version)
{
    unsigned char *data = cold_region(PAGES, REGION, version);
    size_t pages = PAGES;
    for (int step = 0; step < 4; step++) {
        ballast_walk();
        data = remap(data, pages, pages * 2, MREMAP_MAYMOVE, NULL);
        require_zero_pages(data, pages, 32, REGION, "fresh pages after growing");
        fill_pages(data, pages, pages, REGION, version);
        pages *= 2;
        require_pages(data, 0, pages, REGION, version, "after growing");
        data = remap(data, pages, pages * 3 / 4, 0, NULL);
        pages = pages * 3 / 4;
        require_pages(data, 0, pages, REGION, version, "after shrinking");
    }
    munmap(data, pages * PAGE);
}

static void moves(uint32_t version)
{
    unsigned char *data = cold_region(PAGES, REGION, version), *old = data;
    unsigned char *target = map_pages(PAGES);
    ballast_walk();
    data = remap(data, PAGES, PAGES, MREMAP_MAYMOVE | MREMAP_FIXED, target);
    MUST(mmap(old, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == old);
    require_zero_pages(old, 0, PAGES, OTHER, "fresh mapping at the address that was left");
    fill_pages(old, 0, PAGES, OTHER, version);
    ballast_walk();
    require_pages(data, 0, PAGES, REGION, version, "after a move");
    require_pages(old, 0, PAGES, OTHER, version, "new owner of the old address");
    munmap(data, PAGES * PAGE);
    munmap(old, PAGES * PAGE);
}

static void moves_onto_evicted(uint32_t version)
{
    unsigned char *victim = cold_region(2 * PAGES, OTHER, version);
    unsigned char *data = cold_region(PAGES, REGION, version);
    ballast_walk();
    remap(data, PAGES, PAGES, MREMAP_MAYMOVE | MREMAP_FIXED, victim + PAGES / 2 * PAGE);
    require_pages(victim + PAGES / 2 * PAGE, 0, PAGES, REGION, version, "moved onto an evicted range");
    require_pages(victim, 0, PAGES / 2, OTHER, version, "left of the pages that were replaced");
    require_pages(victim, 3 * PAGES / 2, PAGES / 2, OTHER, version, "right of the pages that were replaced");
    munmap(victim, 2 * PAGES * PAGE);
}

static void leaves_the_old_range(uint32_t version)
{
    unsigned char *data = cold_region(PAGES, REGION, version);
    ballast_walk();
    unsigned char *moved = remap(data, PAGES, PAGES, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL);
    require_zero_pages(data, 0, PAGES / 2, REGION, "old range after MREMAP_DONTUNMAP");
    fill_pages(data, PAGES / 4, PAGES / 2, OTHER, version);
    ballast_walk();
    require_pages(moved, 0, PAGES, REGION, version, "new range after MREMAP_DONTUNMAP");
    require_pages(data, PAGES / 4, PAGES / 2, OTHER, version, "old range, written again");
    require_zero_pages(data, 3 * PAGES / 4, PAGES / 4, REGION, "old range, never touched");
    munmap(data, PAGES * PAGE);
    munmap(moved, PAGES * PAGE);
}

// Three pieces out of the middle change places; the mapping is split at places the pager did not choose.
static void moves_pieces(uint32_t version)
{
    unsigned char *data = cold_region(PAGES, REGION, version), *target = map_pages(PAGES);
    ballast_walk();
    for (size_t piece = 0; piece < 8; piece++)
        remap(data + piece * 128 * PAGE, 128, 128, MREMAP_MAYMOVE | MREMAP_FIXED, target + (7 - piece) * 128 * PAGE);
    for (size_t i = 0; i < PAGES; i++) {
        size_t at = (7 - i / 128) * 128 + i % 128;
        struct page_identity is = usual_identity(REGION, (uint32_t)i, version);
        page_require(target + at * PAGE, &is, "moved in pieces");
    }
    munmap(target, PAGES * PAGE);
}

static void (*const cases[])(uint32_t) = { grows_and_shrinks, moves, moves_onto_evicted, leaves_the_old_range,
                                           moves_pieces };
static const char *const names[] = { "grows and shrinks", "moves", "moves onto an evicted range", "DONTUNMAP",
                                     "moves in pieces" };

int main(int argc, char **argv)
{
    victim_begin(argc, argv, "--memory --rounds", 180);
    long rounds = option_number("--rounds", 1);
    ballast_make(option_number("--memory", 192));
    for (long round = 1; round <= rounds; round++)
        for (size_t i = 0; i < 5; i++) {
            phase(names[i]);
            cases[i]((uint32_t)round);
        }
    return succeed("5 cases of mremap, %ld rounds", rounds);
}
