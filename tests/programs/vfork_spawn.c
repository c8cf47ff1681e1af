// vfork_spawn - vfork, posix_spawn, system and popen from a process with evicted memory.
//
// kernel-facts.md: they share the memory until exec, so nothing may be copied, evicted wrongly or held; the child of
// vfork writes into the parent's memory. Environment and arguments of the new program lie in cold heap pages.
//
//   vfork_spawn [--memory MIB] [--rounds N]
#include "ballast.h"
#include <spawn.h>

#define PAGES ((size_t)512)
#define REGION 20

extern char **environ;

static unsigned char *data;

// The child writes into shared memory before it calls exec.
static void by_vfork(uint32_t version)
{
    volatile uint64_t *word = (volatile uint64_t *)(data + PAGES * PAGE);
    pid_t child = vfork();
    if (child == 0) {
        *word = version;
        execl("/bin/true", "true", (char *)NULL);
        _exit(127);
    }
    wait_for_exit(child, 0, "child of vfork");
    if (*word != version)
        fail("child of vfork wrote %u into %p, found %llu", version, (void *)word, (unsigned long long)*word);
}

// The script and its argument lie in a cold page.
static void by_posix_spawn(uint32_t version)
{
    char *cold = (char *)data + (PAGES + 2) * PAGE;
    snprintf(cold, PAGE, "test \"$0\" = number-%u", version);
    snprintf(cold + PAGE, PAGE, "number-%u", version);
    ballast_walk();
    char *arguments[] = { (char *)"sh", (char *)"-c", cold, cold + PAGE, NULL };
    pid_t child;
    MUST((errno = posix_spawn(&child, "/bin/sh", NULL, NULL, arguments, environ)) == 0);
    wait_for_exit(child, 0, "shell by posix_spawn with its script in a cold page");
}

static void by_popen(uint32_t version)
{
    char command[64];
    unsigned found = 0;
    snprintf(command, sizeof command, "echo %u", version);
    FILE *from = popen(command, "r");
    MUST(from && fscanf(from, "%u", &found) == 1);
    MUST(pclose(from) == 0 && system("exit 0") == 0);
    if (found != version)
        fail("popen: expected %u, found %u", version, found);
}

int main(int argc, char **argv)
{
    victim_begin(argc, argv, "--memory --rounds", 120);
    long rounds = option_number("--rounds", 3);
    data = map_pages(PAGES + 8);
    ballast_make(option_number("--memory", 192));
    for (uint32_t version = 1; version <= rounds; version++) {
        fill_pages(data, 0, PAGES, REGION, version);
        ballast_walk();
        phase("vfork");
        by_vfork(version);
        phase("posix_spawn");
        by_posix_spawn(version);
        phase("popen and system");
        by_popen(version);
        require_pages(data, 0, PAGES, REGION, version, "after children without a copy");
    }
    return succeed("%ld rounds of vfork, posix_spawn, popen and system", rounds);
}
