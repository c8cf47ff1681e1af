// fork_storm - hundreds of children alive at the same time, each with a few pages of its own; then waves of short ones.
//
// hazards.md: every fork costs the engine a descriptor; reading a fork event with a full table leaves the parent
// blocked. And page tables, stacks and tasks of many processes cost memory nobody counted.
//
//   fork_storm [--memory MIB] [--processes N] [--waves N]
#include "page_content.h"
#include <stdatomic.h>

#define MAX_PROCESSES 4096
#define REGION 24

static unsigned char *data;
static size_t pages;
static atomic_bool *everyone_is_there;

// Every tenth page is looked at, every fiftieth is written.
__attribute__((noreturn)) static void child_lives(uint32_t number, bool waits)
{
    for (size_t page = number % 10; page < pages; page += 10)
        require_pages(data, page, 1, REGION, 1, "inherited by one of many");
    for (size_t page = number % 50; page < pages; page += 50)
        fill_pages(data, page, 1, REGION, number + 2);
    while (waits && !atomic_load(everyone_is_there))
        sleep_micros(5000);
    for (size_t page = number % 50; page < pages; page += 50)
        require_pages(data, page, 1, REGION, number + 2, "own page of one of many");
    _exit(0);
}

static void start_wave(pid_t *children, long count, bool waits)
{
    atomic_store(everyone_is_there, false);
    for (long i = 0; i < count; i++)
        if ((children[i] = start_child()) == 0)
            child_lives((uint32_t)i, waits);
    atomic_store(everyone_is_there, true);
    for (long i = 0; i < count; i++)
        wait_for_exit(children[i], 0, "one of many");
}

int main(int argc, char **argv)
{
    victim_begin(argc, argv, "--memory --processes --waves", 180);
    static pid_t children[MAX_PROCESSES];
    long count = option_number("--processes", 100), waves = option_number("--waves", 5);
    if (count < 1 || count > MAX_PROCESSES)
        return 2;
    pages = (size_t)option_number("--memory", 64) * (MIB / PAGE);
    data = map_pages(pages);
    everyone_is_there = map_shared(PAGE);
    fill_pages(data, 0, pages, REGION, 1);
    phase("many at the same time");
    start_wave(children, count, true);
    for (long i = 0; i < waves; i++) {
        phase("wave of short children");
        start_wave(children, 20, false);
    }
    require_pages(data, 0, pages, REGION, 1, "in the parent of many");
    return succeed("%ld children at a time, then %ld waves of 20", count, waves);
}
