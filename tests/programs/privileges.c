// privileges - a program that drops its rights and moves into other namespaces goes on with its memory.
//
// hazards.md, "Agent": with CLONE_FS setns(mnt) fails; setuid does not reach the agent; chroot and new namespaces must
// not cut the way to the engine. unshare(CLONE_NEWUSER) is not tried: any second thread makes it fail (documented).
//
// A child that is forked in such a place cannot reach the engine as others do, and its memory must go out and come back
// all the same. `--evicted 1` demands that pages of each child are seen to be away (not true of a plain run).
//
//   privileges [--memory MIB] [--evicted 1] [--small-parent 1]
//
// `--small-parent 1`: the rights are given up while there is no memory to speak of, and children then make theirs.
// What needs root is left out and said, when run without.
#include "ballast.h"
#include <grp.h>
#include <sys/prctl.h>

static long memory;
static bool small_parent;

static size_t pages_away(void)
{
    unsigned char *here = malloc(ballast_pages);
    MUST(here && mincore(ballast_base, ballast_pages * PAGE, here) == 0);
    size_t away = 0;
    for (size_t i = 0; i < ballast_pages; i++)
        away += !(here[i] & 1);
    free(here);
    return away;
}

// A walk has just touched everything: what is away was evicted from this very process since.
static void require_evictions(const char *when)
{
    double deadline = seconds_now() + 10;
    size_t away = 0;
    for (; seconds_now() < deadline; sleep_micros(20000)) {
        ballast_walk();
        away = pages_away();
        if (away >= ballast_pages / 16)
            return;
    }
    fail("%s: expected pages of the child to be evicted, found %zu of %zu away", when, away, ballast_pages);
}

static void require_memory(const char *when)
{
    phase(when);
    if (!small_parent)
        ballast_walk();
    pid_t child = start_child();
    if (child == 0) {
        if (small_parent)
            ballast_make(memory);
        if (option_number("--evicted", 0))
            require_evictions(when);
        else
            ballast_walk();
        _exit(0);
    }
    wait_for_exit(child, 0, when);
}

static atomic_bool *permitted;

// Root of a container may lack the right.
static void probe_rights(void)
{
    atomic_store(permitted, unshare(CLONE_NEWNS) == 0);
}

static void go_and_come_back(void)
{
    int home = open("/proc/self/ns/mnt", O_RDONLY);
    MUST(home >= 0);
    MUST(unshare(CLONE_NEWNS) == 0);
    require_memory("in another mount namespace");
    if (setns(home, CLONE_NEWNS) != 0)
        fail("setns back into the mount namespace: %s", strerror(errno));
    close(home);
    require_memory("back in the first mount namespace");
}

// The first child of a new pid namespace is its init; it may have children as long as it lives.
static void be_init_of_a_pid_namespace(void)
{
    MUST(unshare(CLONE_NEWPID) == 0);
    pid_t init = start_child();
    if (init == 0) {
        MUST(getpid() == 1);
        require_memory("as the first process of a pid namespace");
        _exit(0);
    }
    wait_for_exit(init, 0, "first process of a pid namespace");
}

static void play_in_a_child(void (*play)(void), const char *who)
{
    pid_t child = start_child();
    if (child == 0) {
        play();
        _exit(0);
    }
    wait_for_exit(child, 0, who);
}

// A folder that is removed while we stand in it: nothing can be found there, and nothing is left behind.
static void enter_an_empty_root(void)
{
    char folder[] = "/tmp/privileges.XXXXXX";
    MUST(mkdtemp(folder) && chdir(folder) == 0 && rmdir(folder) == 0);
    MUST(chroot(".") == 0);
    if (access("/proc", F_OK) == 0)
        fail("the new root: expected it to be empty, found /proc");
}

static void live_without_rights(void)
{
    MUST(unshare(CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS) == 0);
    require_memory("in new network, ipc and uts namespaces");
    enter_an_empty_root();
    require_memory("in an empty root");
    MUST(setgroups(0, NULL) == 0 && setresgid(65534, 65534, 65534) == 0 && setresuid(65534, 65534, 65534) == 0);
    MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    require_memory("as another user, in an empty root");
    MUST(prctl(PR_SET_DUMPABLE, 0) == 0);
    require_memory("not dumpable any more");
}

int main(int argc, char **argv)
{
    victim_begin(argc, argv, "--memory --evicted --small-parent", 120);
    permitted = map_shared(PAGE);
    memory = option_number("--memory", 96);
    small_parent = option_number("--small-parent", 0);
    if (!small_parent)
        ballast_make(memory);
    require_memory("before anything");
    if (geteuid() != 0)
        return succeed("memory held; namespaces and setuid were left out, not root");
    play_in_a_child(probe_rights, "child that tries whether namespaces are permitted");
    if (!atomic_load(permitted))
        return succeed("memory held; namespaces were left out, not permitted");
    play_in_a_child(go_and_come_back, "child that leaves its mount namespace and comes back");
    play_in_a_child(be_init_of_a_pid_namespace, "child with a pid namespace");
    play_in_a_child(live_without_rights, "child without rights");
    require_memory("at the end");
    return succeed("memory held in other namespaces, an empty root and under another user");
}
