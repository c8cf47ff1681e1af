// copying_forks - children that write to all the memory their parent has left them, all at once, and the parent beside them.
//
// hazards.md, "Seen on real programs": what a write after a fork copies is growth that no event tells of. Together the copies need
// many times what there is; each process must see its own bytes and nobody else's, however they come.
//
// Each child goes over all pages --rounds times: one word is written in each, as a reference count is, then the whole page is
// checked and made the child's own version. Child 0 goes on in order, child 1 from behind, child 2 with gaps, and so on. The
// parent writes to every third page meanwhile, and a thread of it begins and ends.
//
//   copying_forks [--memory MIB] [--children N] [--rounds N]
#include "ballast.h"
#include <pthread.h>

#define REGION 5
#define MAX_CHILDREN 16

static unsigned char *data;
static size_t pages;

// The n-th page that process `who` goes to.
static size_t nth(size_t n, long who)
{
    switch (who % 3) {
    case 0:
        return n;
    case 1:
        return pages - 1 - n;
    default:
        return (n * 7 + (size_t)who) % pages; // `pages` is no multiple of 7
    }
}

// One word is another one for a moment: what is around it must be there.
static void touch_and_check(size_t page, uint32_t version, const char *when)
{
    volatile uint64_t *word = (volatile uint64_t *)(data + page * PAGE + 2048);
    uint64_t before = *word;
    *word = before + 1;
    *word = before;
    require_pages(data, page, 1, REGION, version, when);
}

__attribute__((noreturn)) static void child_copies(long who, long rounds)
{
    phase("copying in a child");
    for (long round = 0; round < rounds; round++)
        for (size_t n = 0; n < pages; n++) {
            size_t page = nth(n, who);
            uint32_t version = round == 0 ? 1 : (uint32_t)(100 * who + round + 10);
            touch_and_check(page, version, "in a child, before it wrote");
            fill_pages(data, page, 1, REGION, (uint32_t)(100 * who + round + 11));
        }
    require_pages(data, 0, pages, REGION, (uint32_t)(100 * who + rounds + 10), "in a child, at its end");
    _exit(0);
}

static void *short_life(void *unused)
{
    for (size_t page = 1; page < pages; page += 101)
        touch_and_check(page, page % 3 ? 1 : 2, "in a thread of the parent");
    return unused;
}

static void parent_writes(void)
{
    phase("writing in the parent");
    for (size_t page = 0; page < pages; page += 3) {
        touch_and_check(page, 1, "in the parent, before it wrote");
        fill_pages(data, page, 1, REGION, 2);
    }
    phase("a thread of the parent");
    pthread_t thread;
    MUST(pthread_create(&thread, NULL, short_life, NULL) == 0);
    MUST(pthread_join(thread, NULL) == 0);
}

int main(int argc, char **argv)
{
    victim_begin(argc, argv, "--memory --children --rounds", 120);
    long mib = option_number("--memory", 48), count = option_number("--children", 6), rounds = option_number("--rounds", 1);
    if (mib < 1 || count < 1 || count > MAX_CHILDREN || rounds < 1)
        return 2;
    pages = (size_t)mib * MIB / PAGE;
    pages -= pages % 7 == 0;
    data = map_pages(pages);
    phase("filling");
    fill_pages(data, 0, pages, REGION, 1);
    pid_t children[MAX_CHILDREN];
    for (long who = 0; who < count; who++)
        if ((children[who] = start_child()) == 0)
            child_copies(who, rounds);
    parent_writes();
    phase("waiting for the children");
    for (long who = 0; who < count; who++)
        wait_for_exit(children[who], 0, "child that copies");
    for (size_t page = 0; page < pages; page++)
        require_pages(data, page, 1, REGION, page % 3 ? 1 : 2, "in the parent, at the end");
    return succeed("%ld children copied %ld MiB each", count, mib);
}
