// small_mappings - a program that has its memory in many small mappings, as sanitizers and garbage collectors do; beside it
// a ballast that goes out and comes back.
//
//   small_mappings [--memory MIB] [--total MIB] [--kib N] [--guards 0|1]   N: of each mapping; between them lies a page
//                                                                          without access, or nothing
#include "ballast.h"

int main(int argc, char **argv)
{
    victim_begin(argc, argv, "--memory --total --kib --guards", 120);
    size_t pages = (size_t)option_number("--kib", 128) / 4;
    size_t count = (size_t)option_number("--total", 96) * MIB / (pages * PAGE);
    MUST(pages > 0 && count > 0);
    unsigned char *all = mmap(NULL, count * (pages + 1) * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    MUST(all != MAP_FAILED);
    ballast_make(option_number("--memory", 16));
    bool guards = option_number("--guards", 0) != 0;
    for (size_t i = 0; i < count; i++) {
        unsigned char *one = all + i * (pages + 1) * PAGE;
        MUST(guards || munmap(one + pages * PAGE, PAGE) == 0);
        MUST(mprotect(one, pages * PAGE, PROT_READ | PROT_WRITE) == 0);
        fill_pages(one, 0, pages, (uint32_t)i + 1, 1);
        if (i % 64 == 0)
            ballast_walk();
    }
    for (int walk = 0; walk < 2; walk++) {
        ballast_walk();
        for (size_t i = 0; i < count; i++)
            require_pages(all + i * (pages + 1) * PAGE, 0, pages, (uint32_t)i + 1, 1, "in a small mapping");
    }
    return succeed("%zu mappings of %zu KiB", count, pages * 4);
}
