// guard_pages - MADV_GUARD_INSTALL over memory that may be evicted: SIGSEGV on touch, zeros after the removal.
//
// hazards.md: no event tells of it. An evicted page that is brought back over a guard makes an overflow silent; one that
// is brought back after the guard was removed is stale.
//
//   guard_pages [--memory MIB]           prints "ok: ... not supported" on kernels before 6.13
#include "ballast.h"
#include "touch.h"

#define PAGES ((size_t)1024)
#define REGION 6

static unsigned char *data;

// Guards on every eighth group of 16 pages.
static void for_all_guards(int advice)
{
    for (size_t i = 0; i < PAGES; i += 128)
        MUST(madvise(data + i * PAGE, 16 * PAGE, advice) == 0);
}

static void require_guards(const char *when)
{
    for (size_t i = 0; i < PAGES; i += 128) {
        touch_require(data, i, 16, SIGSEGV, when);
        if (touch_write(data + i * PAGE, 1) != SIGSEGV)
            fail("%s: writing to guard page %zu at %p did not give SIGSEGV", when, i, (void *)(data + i * PAGE));
        require_pages(data, i + 16, 112, REGION, 1, when);
    }
}

static void one_round(void)
{
    fill_pages(data, 0, PAGES, REGION, 1);
    ballast_walk();
    for_all_guards(MADV_GUARD_INSTALL);
    require_guards("guards over evicted pages");
    ballast_walk();
    require_guards("guards after pressure");
    pid_t child = start_child();
    if (child == 0) {
        require_guards("guards inherited by a child");
        _exit(0);
    }
    wait_for_exit(child, 0, "child");
    for_all_guards(MADV_GUARD_REMOVE);
    for (size_t i = 0; i < PAGES; i += 128)
        require_zero_pages(data, i, 16, REGION, "after MADV_GUARD_REMOVE");
}

int main(int argc, char **argv)
{
    victim_begin(argc, argv, "--memory", 120);
    data = map_pages(PAGES);
    touch_prepare();
    if (madvise(data, PAGE, MADV_GUARD_INSTALL) != 0)
        return succeed("guard pages are not supported by this kernel: %s", strerror(errno));
    MUST(madvise(data, PAGE, MADV_GUARD_REMOVE) == 0);
    ballast_make(option_number("--memory", 192));
    phase("rounds");
    for (int round = 0; round < 2; round++)
        one_round();
    return succeed("guards hold over evicted memory and leave zeros");
}
