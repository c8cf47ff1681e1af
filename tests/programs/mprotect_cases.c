// mprotect_cases - protection over evicted pages: read-only reads and does not write, none does neither, and back.
//
// hazards.md: MOVE refuses read-only and PROT_NONE ranges and anything across a border, and mprotect sends no event: the
// pager finds out by refusals. A page that is brought back must not become writable by that.
//
//   mprotect_cases [--memory MIB] [--rounds N]
#include "ballast.h"
#include "touch.h"

#define PAGES ((size_t)1024)
#define PART ((size_t)256)
#define REGION 17

static unsigned char *data;

static void protect(size_t first, int protection)
{
    MUST(mprotect(data + first * PAGE, PART * PAGE, protection) == 0);
}

static void require_no_write(size_t first, const char *when)
{
    for (size_t page = first; page < first + PART; page += 3) {
        int found = touch_write(data + page * PAGE + 100, 0x77);
        if (found != SIGSEGV)
            fail("%s: writing to page %zu at %p: expected SIGSEGV, found signal %d", when, page,
                 (void *)(data + page * PAGE), found);
    }
}

// Part 0 stays as it is, 1 becomes read-only, 2 no access, 3 executable as well.
static void one_round(uint32_t version)
{
    fill_pages(data, 0, PAGES, REGION, version);
    ballast_walk();
    protect(PART, PROT_READ);
    protect(2 * PART, PROT_NONE);
    protect(3 * PART, PROT_READ | PROT_WRITE | PROT_EXEC);
    require_no_write(PART, "read-only after its eviction");
    require_pages(data, PART, PART, REGION, version, "read-only");
    touch_require(data, 2 * PART, PART, SIGSEGV, "no access");
    require_pages(data, 3 * PART, PART, REGION, version, "made executable");
    ballast_walk();
    require_no_write(PART, "read-only under pressure");
    touch_require(data, 2 * PART, PART, SIGSEGV, "no access, under pressure");
    protect(2 * PART, PROT_READ | PROT_WRITE);
    require_pages(data, 2 * PART, PART, REGION, version, "accessible again");
    protect(PART, PROT_READ | PROT_WRITE);
    protect(3 * PART, PROT_READ | PROT_WRITE);
    ballast_walk();
    require_pages(data, 0, PAGES, REGION, version, "all protections taken back");
}

int main(int argc, char **argv)
{
    victim_begin(argc, argv, "--memory --rounds", 120);
    long rounds = option_number("--rounds", 2);
    touch_prepare();
    data = map_pages(PAGES);
    ballast_make(option_number("--memory", 192));
    phase("rounds");
    for (long i = 1; i <= rounds; i++)
        one_round((uint32_t)i);
    return succeed("%ld rounds of protections over evicted pages", rounds);
}
