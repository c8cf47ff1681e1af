// busy_child - children that change their mappings from their first moment on, without a pause.
//
// While a process waits for the reader of such an event the kernel installs nothing in its memory. The page by which
// the engine knows a fork child cannot be put there then; the child is to be found all the same, a moment later.
//
//   busy_child [--memory MIB] [--rounds N] [--micros N]
#include "page_content.h"

#define REGION 25
#define SCRATCH 64

static unsigned char *data, *scratch;
static size_t pages;

__attribute__((noreturn)) static void child_is_busy(long micros)
{
    double until = seconds_now() + (double)micros / 1e6;
    do {
        if (madvise(scratch, SCRATCH * PAGE, MADV_DONTNEED) != 0)
            _exit(3);
    } while (seconds_now() < until);
    require_zero_pages(scratch, 0, SCRATCH, REGION + 1, "dropped by the child");
    require_pages(data, 0, pages, REGION, 1, "inherited by a busy child");
    fill_pages(data, 0, pages / 4, REGION, 2);
    require_pages(data, 0, pages / 4, REGION, 2, "written by a busy child");
    _exit(0);
}

int main(int argc, char **argv)
{
    victim_begin(argc, argv, "--memory --rounds --micros", 60);
    long rounds = option_number("--rounds", 6), micros = option_number("--micros", 20000);
    pages = (size_t)option_number("--memory", 96) * (MIB / PAGE);
    data = map_pages(pages);
    scratch = map_pages(SCRATCH);
    fill_pages(data, 0, pages, REGION, 1);
    fill_pages(scratch, 0, SCRATCH, REGION + 1, 1);
    for (long round = 0; round < rounds; round++) {
        phase("a busy child");
        pid_t child = start_child();
        if (child == 0)
            child_is_busy(micros);
        wait_for_exit(child, 0, "busy child");
    }
    require_pages(data, 0, pages, REGION, 1, "in the parent of busy children");
    require_pages(scratch, 0, SCRATCH, REGION + 1, 1, "dropped by children only");
    return succeed("%ld busy children", rounds);
}
