// dontfork_and_unmap - evicted memory of which a child gets all but some pages (MADV_DONTFORK), and that the parent unmaps or
// replaces right after the fork: the child has what it inherited.
//
// A pager that reads of fork and munmap together may ask the child which of them came first. That a page which no child
// gets is missing there says nothing.
//
//   dontfork_and_unmap [--memory MIB] [--rounds N]
#include "ballast.h"

#define PAGES ((size_t)256)
#define REGION 31
// What goes right after the fork; its first page is not inherited.
#define FIRST ((size_t)64)
#define COUNT ((size_t)32)

static void make_anew(unsigned char *data, size_t version)
{
    MUST(mmap(data, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == data);
    fill_pages(data, 0, PAGES, REGION, version);
    MUST(madvise(data + FIRST * PAGE, PAGE, MADV_DONTFORK) == 0);
}

static void take_away(unsigned char *data, size_t round)
{
    unsigned char *from = data + FIRST * PAGE;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    if (round % 2)
        MUST(munmap(from, COUNT * PAGE) == 0);
    else
        MUST(mmap(from, COUNT * PAGE, PROT_READ | PROT_WRITE, flags, -1, 0) == from);
}

int main(int argc, char **argv)
{
    victim_begin(argc, argv, "--memory --rounds", 120);
    size_t rounds = (size_t)option_number("--rounds", 20);
    ballast_make(option_number("--memory", 192));
    unsigned char *data = map_pages(PAGES);
    for (size_t round = 1; round <= rounds; round++) {
        make_anew(data, round);
        ballast_walk();
        pid_t child = start_child();
        if (child == 0) {
            require_pages(data, 0, FIRST, REGION, round, "inherited before the page that is not");
            require_pages(data, FIRST + 1, PAGES - FIRST - 1, REGION, round, "inherited behind the page that is not");
            _exit(0);
        }
        take_away(data, round);
        wait_for_exit(child, 0, "child whose parent went on");
        require_pages(data, 0, FIRST, REGION, round, "in the parent");
    }
    return succeed("%zu forks, each before the parent took memory away that the child has", rounds);
}
