// lock_all - mlockall locks what the program has, no more, and evicted pages come back for it unharmed.
//
// The kernel counts reservations too. So the limit is set to a little more than what the program has: nothing that was
// put beside it may be counted, and to lock all is allowed without a privilege. With a limit below that it is refused,
// and nothing stays locked.
//
//   lock_all [--memory MIB]   MIB: what is evicted for a region of the same size that goes again before the lock
#include "ballast.h"
#include <linux/capability.h>
#include <sys/resource.h>

#define ALLOWED_KB 8192
#define SPARE_KB 16384 // stacks, libraries, what the measurement itself takes

static long status_kb(const char *name)
{
    char line[200];
    long value = -1;
    FILE *status = fopen("/proc/self/status", "r");
    MUST(status != NULL);
    while (fgets(line, sizeof line, status))
        if (strncmp(line, name, strlen(name)) == 0)
            value = atol(line + strlen(name));
    fclose(status);
    return value;
}

static void require_locked(long least, long most, const char *when)
{
    long locked = status_kb("VmLck:");
    if (locked < least || locked > most)
        fail("%s: %ld KiB are locked, expected %ld to %ld", when, locked, least, most);
}

// The hard limit stays: not everybody may raise it again.
static void allow(long kb)
{
    struct rlimit limit;
    MUST(getrlimit(RLIMIT_MEMLOCK, &limit) == 0);
    limit.rlim_cur = (rlim_t)kb << 10;
    MUST(setrlimit(RLIMIT_MEMLOCK, &limit) == 0);
}

static void give_up_privileges(void)
{
    struct __user_cap_header_struct header = { _LINUX_CAPABILITY_VERSION_3, 0 };
    struct __user_cap_data_struct data[2] = { { 0 } };
    MUST(syscall(SYS_capset, &header, data) == 0);
}

// In a child: capabilities do not come back. The limit that everybody has is 8 MiB, so it gives back the ballast.
static void without_privilege(void)
{
    MUST(munmap(ballast_base, ballast_pages * PAGE) == 0);
    give_up_privileges();
    allow(ALLOWED_KB);
    MUST(mlockall(MCL_CURRENT) == 0);
    require_locked(1, ALLOWED_KB, "with a limit that is enough");
    MUST(munlockall() == 0);
    allow(64);
    MUST(mlockall(MCL_CURRENT) == -1 && errno == ENOMEM);
    require_locked(0, 0, "after it was refused");
    allow(0);
    MUST(mlockall(MCL_CURRENT | MCL_FUTURE) == -1 && errno == EPERM);
    MUST(mlockall(MCL_ONFAULT) == -1 && errno == EINVAL);
    MUST(mlockall(0) == -1 && errno == EINVAL);
    MUST(mlockall(64) == -1 && errno == EINVAL);
}

static void everything_to_come(void)
{
    unsigned char present[16];
    MUST(mlockall(MCL_CURRENT | MCL_FUTURE) == 0);
    unsigned char *fresh = map_pages(sizeof present);
    MUST(mincore(fresh, sizeof present * PAGE, present) == 0);
    for (size_t i = 0; i < sizeof present; i++)
        if (!(present[i] & 1))
            fail("page %zu of what was mapped after MCL_FUTURE is not there", i);
    MUST(munlockall() == 0);
}

int main(int argc, char **argv)
{
    victim_begin(argc, argv, "--memory", 120);
    size_t mib = (size_t)option_number("--memory", 64);
    ballast_make((long)mib);
    unsigned char *pressure = map_pages(mib * (MIB / PAGE));
    fill_pages(pressure, 0, mib * (MIB / PAGE), 2, 1);
    require_pages(pressure, 0, mib * (MIB / PAGE), 2, 1, "what makes all else cold");
    MUST(munmap(pressure, mib * MIB) == 0);

    phase("all is locked");
    long memory_kb = (long)mib << 10;
    MUST(mlockall(MCL_CURRENT) == 0);
    require_locked(memory_kb, memory_kb + SPARE_KB, "with a privilege");
    if (status_kb("RssAnon:") > memory_kb + SPARE_KB)
        fail("%ld KiB of anonymous memory are there, expected at most %ld", status_kb("RssAnon:"), memory_kb + SPARE_KB);
    ballast_walk();
    MUST(munlockall() == 0);
    MUST(mlockall(MCL_CURRENT | MCL_ONFAULT) == 0);
    require_locked(memory_kb, memory_kb + SPARE_KB, "on fault");
    MUST(munlockall() == 0);
    everything_to_come();

    phase("without a privilege");
    pid_t child = start_child();
    if (child == 0) {
        without_privilege();
        _exit(0);
    }
    wait_for_exit(child, 0, "the child without a privilege");
    ballast_walk();
    return succeed("%zu MiB were locked, and nothing else", mib);
}
