// brk_heap - the heap of brk grows, shrinks, and grows again: kept data survives, what was given back reads zeros.
//
// hazards.md, "Budget": the heap grows without any event; shrinking sends UNMAP. The same pages come back fresh, so a
// pager that missed the shrinking shows stale bytes there. A child of fork goes on with a heap of its own.
//
//   brk_heap [--memory MIB] [--rounds N]
#include "ballast.h"

#define KEPT ((size_t)2048)  // pages that stay
#define MORE ((size_t)6144)  // pages that come and go
#define REGION 15

static unsigned char *heap;

static void start_heap(void)
{
    uintptr_t end = (uintptr_t)sbrk(0);
    MUST(sbrk((intptr_t)(-end & (PAGE - 1))) != (void *)-1);
    heap = sbrk((intptr_t)(KEPT * PAGE));
    MUST(heap != (void *)-1);
    fill_pages(heap, 0, KEPT, REGION, 1);
}

static void one_round(uint32_t version)
{
    MUST(sbrk((intptr_t)(MORE * PAGE)) == heap + KEPT * PAGE);
    require_zero_pages(heap, KEPT + MORE / 2, MORE / 2, REGION, "fresh pages of a grown heap");
    fill_pages(heap, KEPT, MORE, REGION, version);
    ballast_walk();
    require_pages(heap, KEPT, MORE / 2, REGION, version, "heap after pressure");
    MUST(sbrk(-(intptr_t)(MORE / 2 * PAGE)) != (void *)-1);
    MUST(sbrk((intptr_t)(MORE / 2 * PAGE)) != (void *)-1);
    require_zero_pages(heap, KEPT + MORE / 2, MORE / 2, REGION, "heap given back and taken again");
    require_pages(heap, KEPT, MORE / 2, REGION, version, "heap below what was given back");
    require_pages(heap, 0, KEPT, REGION, 1, "the oldest part of the heap");
    MUST(sbrk(-(intptr_t)(MORE * PAGE)) != (void *)-1);
}

int main(int argc, char **argv)
{
    victim_begin(argc, argv, "--memory --rounds", 120);
    long rounds = option_number("--rounds", 3);
    start_heap();
    ballast_make(option_number("--memory", 160));
    phase("rounds");
    for (long i = 0; i < rounds; i++)
        one_round((uint32_t)i + 2);
    phase("rounds of a child");
    pid_t child = start_child();
    if (child == 0) {
        one_round(100);
        _exit(0);
    }
    one_round(200);
    wait_for_exit(child, 0, "child with a heap of its own");
    return succeed("%ld rounds of growing and shrinking, and a child's", rounds);
}
