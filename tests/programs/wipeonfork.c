// wipeonfork - MADV_WIPEONFORK: the child reads zeros, also where the parent's page was evicted (random generators keep
// their state in such pages); the parent keeps its bytes.
//
// hazards.md: the evicted page came back in the child with the parent's bytes, and no event tells of the advice. The
// pages around it, which are not wiped, must be inherited. Given before the eviction and after it, taken back as well.
//
//   wipeonfork [--memory MIB]
#include "ballast.h"

#define PAGES ((size_t)1024)
#define REGION 5

struct part {
    size_t first, count;
    bool wiped;
};

static const struct part parts[] = { { 0, 256, false }, { 256, 256, true }, { 512, 256, false }, { 768, 256, true } };

static unsigned char *data;

static void advise_part(const struct part *part, int advice)
{
    MUST(madvise(data + part->first * PAGE, part->count * PAGE, advice) == 0);
}

static void child_checks(bool second_wiped)
{
    for (size_t i = 0; i < 4; i++) {
        const struct part *part = &parts[i];
        bool wiped = part->wiped && (i != 3 || second_wiped);
        if (wiped)
            require_zero_pages(data, part->first, part->count, REGION, "wiped page in the child");
        else
            require_pages(data, part->first, part->count, REGION, 1, "inherited page in the child");
    }
}

static void fork_and_check(bool second_wiped, const char *who)
{
    pid_t child = start_child();
    if (child == 0) {
        child_checks(second_wiped);
        fill_pages(data, 256, 256, REGION, 2);
        ballast_walk();
        require_pages(data, 256, 256, REGION, 2, "the child's own bytes in a wiped page");
        pid_t grandchild = start_child(); // the advice is inherited
        if (grandchild == 0) {
            require_zero_pages(data, 256, 256, REGION, "wiped page in the grandchild");
            _exit(0);
        }
        wait_for_exit(grandchild, 0, "grandchild");
        _exit(0);
    }
    wait_for_exit(child, 0, who);
    require_pages(data, 0, PAGES, REGION, 1, "in the parent, wiped or not");
}

int main(int argc, char **argv)
{
    victim_begin(argc, argv, "--memory", 120);
    data = map_pages(PAGES);
    ballast_make(option_number("--memory", 192));
    phase("advice before the eviction and after it");
    advise_part(&parts[1], MADV_WIPEONFORK);
    fill_pages(data, 0, PAGES, REGION, 1);
    ballast_walk();
    advise_part(&parts[3], MADV_WIPEONFORK);
    fork_and_check(true, "child, advice before and after");
    phase("advice taken back");
    ballast_walk();
    advise_part(&parts[3], MADV_KEEPONFORK);
    fork_and_check(false, "child, advice taken back");
    return succeed("wiped pages are zero in children, all others are inherited");
}
