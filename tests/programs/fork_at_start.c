// fork_at_start - children forked at the moment when the parent's memory becomes managed.
//
// The parent grows a MiB at a time and forks a child after each, so that one of the forks falls between the first
// registration of anything and the registration of the data. Such a child has a userfaultfd of its own, but its data is
// not registered in it: a page evicted from it would come back as zeros that the kernel made up, with nobody asked.
// Every child reads and writes all that it inherited once the parent's and its siblings' growth has made it cold.
//
//   fork_at_start [--memory MIB]
#include "ballast.h"

#define REGION 9
#define MOST_CHILDREN 24

static unsigned char *data;
static int started[2];

static void wait_for_the_parent(void)
{
    char byte;
    close(started[1]);
    MUST(read(started[0], &byte, 1) == 0);
}

static void child_checks(size_t pages)
{
    wait_for_the_parent();
    require_pages(data, 0, pages, REGION, 1, "inherited while the memory became managed");
    fill_pages(data, 0, pages, REGION, 2);
    require_pages(data, 0, pages, REGION, 2, "the child's own");
    _exit(0);
}

int main(int argc, char **argv)
{
    victim_begin(argc, argv, "--memory", 120);
    size_t steps = (size_t)option_number("--memory", 96), step = MIB / PAGE;
    pid_t children[MOST_CHILDREN];
    size_t count = 0;
    MUST(pipe(started) == 0);
    data = map_pages(steps * step);
    phase("growing and forking");
    for (size_t i = 0; i < steps; i++) {
        fill_pages(data, i * step, step, REGION, 1);
        if (i < steps / 2 && i % 2 == 1 && count < MOST_CHILDREN && (children[count++] = start_child()) == 0)
            child_checks((i + 1) * step);
    }
    phase("the children check");
    close(started[1]);
    for (size_t i = 0; i < count; i++)
        wait_for_exit(children[i], 0, "a child");
    require_pages(data, 0, steps * step, REGION, 1, "in the parent");
    return succeed("%zu children inherited what the parent had", count);
}
