// write_barrier - the habit of garbage collectors and databases: protect all, let SIGSEGV tell which pages are written.
//
// Every written page must trap exactly once per round, with its address, and no other page may; a pager that brings a
// page back writable, or mistakes the trap for a fault of its own, breaks the set. hazards.md: MOVE refuses read-only
// ranges and borders of mappings, and mprotect sends no event.
//
//   write_barrier [--memory MIB] [--rounds N]
#include "ballast.h"

#define PAGES ((size_t)4096)
#define REGION 25

static unsigned char *data;
static uint8_t trapped[PAGES];

static void on_trap(int signal_number, siginfo_t *info, void *unused)
{
    (void)unused;
    uintptr_t offset = (uintptr_t)info->si_addr - (uintptr_t)data;
    if (offset >= PAGES * PAGE)
        fail("signal %d at %p, which is not in the protected memory", signal_number, info->si_addr);
    size_t page = offset / PAGE;
    if (trapped[page]++)
        fail("page %p (page %zu) trapped twice in one round", (void *)(data + page * PAGE), page);
    MUST(mprotect(data + page * PAGE, PAGE, PROT_READ | PROT_WRITE) == 0);
}

static void write_runs(uint8_t *written, uint32_t version, uint64_t *random)
{
    for (size_t page = random_below(random, 40); page < PAGES; page += 1 + random_below(random, 40)) {
        fill_pages(data, page, 1, REGION, version);
        written[page] = 1;
    }
}

static void one_round(uint32_t *versions, uint32_t version, uint64_t *random)
{
    uint8_t written[PAGES] = { 0 };
    memset(trapped, 0, sizeof trapped);
    MUST(mprotect(data, PAGES * PAGE, PROT_READ) == 0);
    ballast_walk();
    write_runs(written, version, random);
    ballast_walk();
    for (size_t page = 0; page < PAGES; page++) {
        if (written[page] != trapped[page])
            fail("page %p (page %zu): %s written, %s trapped", (void *)(data + page * PAGE), page,
                 written[page] ? "was" : "was not", trapped[page] ? "was" : "was not");
        versions[page] = written[page] ? version : versions[page];
        require_pages(data, page, 1, REGION, versions[page], "behind a write barrier");
    }
}

int main(int argc, char **argv)
{
    victim_begin(argc, argv, "--memory --rounds", 120);
    static uint32_t versions[PAGES];
    long rounds = option_number("--rounds", 3);
    uint64_t random = 4;
    data = map_pages(PAGES);
    fill_pages(data, 0, PAGES, REGION, 0);
    struct sigaction action = { .sa_sigaction = on_trap, .sa_flags = SA_SIGINFO };
    sigaction(SIGSEGV, &action, NULL);
    ballast_make(option_number("--memory", 176));
    phase("rounds");
    for (long i = 1; i <= rounds; i++)
        one_round(versions, (uint32_t)i, &random);
    return succeed("%ld rounds behind a write barrier, every write was told once", rounds);
}
