// fork_after_move - a fork right after evicted memory was moved onto a mapping that became managed a moment ago.
//
// A child that was forked before a mapping became managed does not have it registered: what is believed of it there must
// not be trusted. What was moved there since is another matter: it was managed all the time, and the child has it.
//
//   fork_after_move [--memory MIB] [--rounds N]
#include "ballast.h"

#define REGION 27
#define PAGES ((size_t)1024)
#define REMAINS ((size_t)16) // of each target: its memory grows from round to round, or nobody would look

static unsigned char *data;

// The target grows until it is noticed, then the data takes its place.
static void move_onto_fresh(long micros)
{
    unsigned char *target = map_pages(PAGES + REMAINS);
    fill_pages(target, 0, PAGES, REGION + 1, 1);
    sleep_micros(micros);
    MUST(mremap(data, PAGES * PAGE, PAGES * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, target) == target);
    data = target;
}

static void one_round(long round)
{
    ballast_walk();
    move_onto_fresh(2000 << round % 6);
    pid_t child = start_child();
    if (child == 0) {
        require_pages(data, 0, PAGES, REGION, 1, "moved, then inherited");
        _exit(0);
    }
    wait_for_exit(child, 0, "child");
    require_pages(data, 0, PAGES, REGION, 1, "moved, in the parent");
}

int main(int argc, char **argv)
{
    victim_begin(argc, argv, "--memory --rounds", 120);
    long rounds = option_number("--rounds", 20);
    data = map_pages(PAGES);
    fill_pages(data, 0, PAGES, REGION, 1);
    ballast_make(option_number("--memory", 96));
    phase("rounds");
    for (long round = 0; round < rounds; round++)
        one_round(round);
    return succeed("%ld moves, each before a fork", rounds);
}
