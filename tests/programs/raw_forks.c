// raw_forks - children of children by the bare system call, one after the other at once.
//
// No handler runs in such a child, so no agent starts: the engine has to find out by itself whose memory a userfaultfd
// speaks of, and what it has put into the memory of one generation to know it by is inherited by the next. A page that
// lay staged at the fork can be read only once that is known. Every generation reads and writes some of what it inherited.
//
//   raw_forks [--memory MIB] [--rounds N] [--depth N]
#include "page_content.h"
#include <sys/syscall.h>

#define REGION 26
#define STRIPE 16

static unsigned char *data;
static size_t pages;

static pid_t fork_bare(void)
{
    pid_t child = (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    MUST(child >= 0);
    return child;
}

// One page in STRIPE, the last first: nothing comes along with another.
static void stripe_checks(size_t first)
{
    for (size_t i = first % STRIPE; i < pages; i += STRIPE)
        require_pages(data, pages - 1 - i, 1, REGION, 1, "inherited through bare forks");
}

// Each generation forks the next when it has seen some of its memory, and sees the rest while that one does the same.
__attribute__((noreturn)) static void generation(size_t depth)
{
    watchdog_arm();
    stripe_checks(2 * depth);
    pid_t next = depth > 1 ? fork_bare() : -1;
    if (next == 0)
        generation(depth - 1);
    stripe_checks(2 * depth + 1);
    fill_pages(data, 0, pages / STRIPE, REGION, (uint32_t)depth + 2);
    require_pages(data, 0, pages / STRIPE, REGION, (uint32_t)depth + 2, "written in a generation of its own");
    if (next > 0)
        wait_for_exit(next, 0, "the next generation");
    _exit(0);
}

int main(int argc, char **argv)
{
    victim_begin(argc, argv, "--memory --rounds --depth", 60);
    long rounds = option_number("--rounds", 4), depth = option_number("--depth", 5);
    pages = (size_t)option_number("--memory", 96) * (MIB / PAGE);
    data = map_pages(pages);
    fill_pages(data, 0, pages, REGION, 1);
    for (long round = 0; round < rounds; round++) {
        phase("generations");
        require_pages(data, 0, pages, REGION, 1, "in the first process");
        pid_t child = fork_bare();
        if (child == 0)
            generation((size_t)depth);
        wait_for_exit(child, 0, "the first generation");
    }
    require_pages(data, 0, pages, REGION, 1, "in the first process at the end");
    return succeed("%ld rounds of %ld generations", rounds, depth);
}
