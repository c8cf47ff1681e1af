// guarded_heap - a heap in pieces with a guard below each, as PartitionAlloc, V8 and hardened allocators make them: it looks
// like the stacks of many threads, and is no stack.
//
//   guarded_heap [--memory MIB] [--piece KIB] [--fork 1]     fork: a child reads and writes all of it too
//
// Prints how much of it stayed in memory at the end.
#include "ballast.h"

static unsigned char **pieces;
static size_t count, pages;

static void fill(uint32_t generation)
{
    for (size_t i = 0; i < count; i++)
        fill_pages(pieces[i], 0, pages, (uint32_t)i + 1, generation);
}

static void require(uint32_t generation, const char *when)
{
    for (size_t i = 0; i < count; i++)
        require_pages(pieces[i], 0, pages, (uint32_t)i + 1, generation, when);
}

static size_t resident(void)
{
    unsigned char *there = malloc(pages);
    size_t all = 0;
    MUST(there);
    for (size_t i = 0; i < count; i++) {
        MUST(mincore(pieces[i], pages * PAGE, there) == 0);
        for (size_t page = 0; page < pages; page++)
            all += there[page] & 1;
    }
    free(there);
    return all;
}

int main(int argc, char **argv)
{
    victim_begin(argc, argv, "--memory --piece --fork", 120);
    pages = (size_t)option_number("--piece", 2016) / 4;
    count = (size_t)option_number("--memory", 192) * MIB / (pages * PAGE);
    MUST(pages > 0 && count > 0);
    pieces = calloc(count, sizeof *pieces);
    MUST(pieces);
    phase("filling pieces with guards");
    for (size_t i = 0; i < count; i++) {
        // A guard on both sides: no two pieces become one mapping.
        unsigned char *all = mmap(NULL, (pages + 8) * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        MUST(all != MAP_FAILED);
        pieces[i] = all + 4 * PAGE;
        MUST(mprotect(pieces[i], pages * PAGE, PROT_READ | PROT_WRITE) == 0);
        fill_pages(pieces[i], 0, pages, (uint32_t)i + 1, 1);
        sleep_micros(2000);
    }
    phase("reading and writing them");
    for (uint32_t round = 1; round <= 3; round++) {
        sleep_micros(300 * 1000);
        require(round, "in a piece with a guard");
        fill(round + 1);
    }
    if (option_number("--fork", 0)) {
        pid_t child = start_child();
        if (child == 0) {
            require(4, "in a child");
            fill(5);
            require(5, "written by a child");
            _exit(0);
        }
        require(4, "beside a child");
        wait_for_exit(child, 0, "child");
    }
    require(4, "at the end");
    return succeed("%zu pieces of %zu KiB, %zu of %zu MiB resident", count, pages * 4, resident() / 256, count * pages / 256);
}
