// close_all_fds - a daemon's habit: closes every descriptor, counts those it has, expects the lowest numbers from open.
//
// hazards.md: the agent's descriptors live in a table of its own: the program sees no extra one and cannot close ours.
// After the closing, memory must still come back (an agent that lost its userfaultfd gives zeros).
//
//   close_all_fds [--memory MIB]
#include "ballast.h"
#include <dirent.h>

static int count_descriptors(void)
{
    int count = 0;
    DIR *folder = opendir("/proc/self/fd");
    MUST(folder);
    for (struct dirent *entry; (entry = readdir(folder));)
        count += entry->d_name[0] != '.';
    closedir(folder);
    return count - 1; // the folder itself
}

static void require_lowest(int wanted, const char *when)
{
    int got = open("/dev/null", O_RDWR);
    if (got != wanted)
        fail("%s: open: expected descriptor %d, found %d", when, wanted, got);
    close(got);
}

static void close_by_loop(void)
{
    for (int fd = 3; fd < 1024; fd++)
        close(fd);
}

static void close_by_range(void)
{
    MUST(close_range(3, ~0u, 0) == 0);
}

static void play(void (*close_all)(void), const char *how)
{
    phase(how);
    ballast_walk();
    int before = count_descriptors();
    int mine[2];
    MUST(pipe(mine) == 0);
    close_all();
    int after = count_descriptors();
    if (after > before || after != 3)
        fail("%s: expected 3 descriptors afterwards, found %d (%d before)", how, after, before);
    require_lowest(3, how);
    ballast_walk();
    ballast_walk();
    if (count_descriptors() != after)
        fail("%s: descriptors appeared under pressure: expected %d, found %d", how, after, count_descriptors());
    require_lowest(3, how);
}

int main(int argc, char **argv)
{
    victim_begin(argc, argv, "--memory", 120);
    // Started without 0, 1 or 2 it would count wrongly; the harness gives them.
    ballast_make(option_number("--memory", 192));
    play(close_by_loop, "closed one by one");
    play(close_by_range, "closed by close_range");
    pid_t child = start_child();
    if (child == 0) {
        play(close_by_range, "closed in a child");
        _exit(0);
    }
    wait_for_exit(child, 0, "child that closes all descriptors");
    // Even the standard ones, and other files get their numbers.
    phase("0, 1 and 2 closed as well");
    int keep = dup(1);
    MUST(keep == 3);
    close(0), close(1), close(2);
    int first = open("/dev/null", O_RDWR), second = open("/dev/null", O_RDWR), third = open("/dev/null", O_RDWR);
    ballast_walk();
    MUST(dup2(keep, 1) == 1 && dup2(keep, 2) == 2);
    if (first != 0 || second != 1 || third != 2)
        fail("after closing 0, 1, 2: expected open to give 0 1 2, found %d %d %d", first, second, third);
    return succeed("all descriptors closed, none unknown, memory whole");
}
