// scheduling - one thread faults all the time and looks at its own scheduling after each fault.
//
// A handler may place itself as it likes, but what a program asked for stays: processors, policy and niceness, its own
// and those a thread or a child inherits from it. With `--hogs N` so many threads compute beside it and never fault: a
// handler that gives way to them must still serve.
//
//   scheduling [--memory MIB] [--rounds N] [--hogs N]
#include "page_content.h"
#include <pthread.h>
#include <sys/resource.h>

#define REGION 31

static cpu_set_t processors;
static int policy, niceness;
static volatile bool over;

static void require_unchanged(const char *whose)
{
    cpu_set_t now;
    MUST(sched_getaffinity(0, sizeof now, &now) == 0);
    if (!CPU_EQUAL(&now, &processors))
        fail("%s: may run on %d processors, expected %d", whose, CPU_COUNT(&now), CPU_COUNT(&processors));
    if (sched_getscheduler(0) != policy)
        fail("%s: policy %d, expected %d", whose, sched_getscheduler(0), policy);
    if (getpriority(PRIO_PROCESS, 0) != niceness)
        fail("%s: niceness %d, expected %d", whose, getpriority(PRIO_PROCESS, 0), niceness);
}

static void *look(void *unused)
{
    require_unchanged("a new thread");
    return unused;
}

static void *compute(void *unused)
{
    uint64_t sum = 1;
    while (!over)
        for (int i = 0; i < 100000; i++)
            sum = mix64(sum);
    return sum == 0 ? &over : unused;
}

static void inherit(void)
{
    pthread_t thread;
    MUST(pthread_create(&thread, NULL, look, NULL) == 0 && pthread_join(thread, NULL) == 0);
    pid_t child = start_child();
    if (child == 0) {
        require_unchanged("a new child");
        _exit(0);
    }
    wait_for_exit(child, 0, "looking at its scheduling");
}

int main(int argc, char **argv)
{
    victim_begin(argc, argv, "--memory --rounds --hogs", 180);
    size_t pages = (size_t)option_number("--memory", 128) * (MIB / PAGE);
    long rounds = option_number("--rounds", 2), hogs = option_number("--hogs", 0);
    MUST(sched_getaffinity(0, sizeof processors, &processors) == 0);
    policy = sched_getscheduler(0);
    niceness = getpriority(PRIO_PROCESS, 0);
    unsigned char *data = map_pages(pages);
    phase("fill");
    for (size_t page = 0; page < pages; page++) {
        struct page_identity is = usual_identity(REGION, (uint32_t)page, 1);
        page_render(data + page * PAGE, &is);
    }
    pthread_t threads[64];
    MUST(hogs <= 64);
    for (long i = 0; i < hogs; i++)
        MUST(pthread_create(&threads[i], NULL, compute, NULL) == 0);
    phase("read at random");
    for (size_t visit = 0; visit < pages * (size_t)rounds; visit++) {
        size_t page = mix64(visit) % pages;
        struct page_identity is = usual_identity(REGION, (uint32_t)page, 1);
        page_require(data + page * PAGE, &is, "random visit");
        require_unchanged("after a fault");
        if (visit % 4096 == 0)
            inherit();
    }
    over = true;
    for (long i = 0; i < hogs; i++)
        MUST(pthread_join(threads[i], NULL) == 0);
    succeed("%zu random visits, scheduling as before", pages * (size_t)rounds);
    return 0;
}
