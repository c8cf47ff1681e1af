// fork_cow - memory after fork: parent and child each see what they must, whoever writes, exits or execs first.
//
// hazards.md: evicted pages that exist only in the parent vanish for the child when the parent exits or execs; pages
// written by the parent after the fork must not reach the child. Scenes: both sides write; fork from a thread; fork of
// fork of fork; the parent exits first; the parent execs while the child lives; a daemon by double fork that writes its
// verdict into a file.
//
//   fork_cow [--memory MIB] [--scene NAME]
#include "ballast.h"

#define PAGES (32 * MIB / PAGE)
#define REGION 3

static unsigned char *data;
static atomic_int *orphan_verdict; // shared: 0 none yet, 1 all right

static void write_some(size_t start, uint32_t version)
{
    for (size_t i = start; i < PAGES; i += 3)
        fill_pages(data, i, 1, REGION, version);
}

// Pages start, start + 3, ... have one version, all others another one.
static void require_mixed(size_t start, uint32_t version, uint32_t others, const char *when)
{
    for (size_t i = 0; i < PAGES; i++)
        require_pages(data, i, 1, REGION, i % 3 == start ? version : others, when);
}

static void make_data_cold(void)
{
    fill_pages(data, 0, PAGES, REGION, 1);
    ballast_walk();
}

static void both_write(void)
{
    make_data_cold();
    pid_t child = start_child();
    size_t mine = child == 0 ? 0 : 1;
    uint32_t version = child == 0 ? 2 : 3;
    write_some(mine, version);
    require_mixed(mine, version, 1, child == 0 ? "in the child, both write" : "in the parent, both write");
    ballast_walk();
    require_mixed(mine, version, 1, child == 0 ? "in the child, cold again" : "in the parent, cold again");
    if (child == 0)
        _exit(0);
    wait_for_exit(child, 0, "child of both_write");
}

static void *fork_in_a_thread(void *unused)
{
    pid_t child = start_child();
    if (child == 0) {
        require_pages(data, 0, PAGES, REGION, 1, "in the child of a thread");
        write_some(0, 2);
        require_mixed(0, 2, 1, "in the child of a thread, after writing");
        _exit(0);
    }
    wait_for_exit(child, 0, "child of a thread");
    return unused;
}

static void from_a_thread(void)
{
    pthread_t thread;
    make_data_cold();
    MUST((errno = pthread_create(&thread, NULL, fork_in_a_thread, NULL)) == 0);
    for (int i = 0; i < 3; i++)
        require_pages(data, 0, PAGES, REGION, 1, "in the main thread while a thread forks");
    MUST((errno = pthread_join(thread, NULL)) == 0);
    require_pages(data, 0, PAGES, REGION, 1, "after the thread's child");
}

// Each generation writes its own version into every third page, forks, and checks after its child has ended.
static void generation(uint32_t depth)
{
    size_t mine = depth % 3;
    fill_pages(data, 0, PAGES, REGION, 10 * depth);
    write_some(mine, 10 * depth + 1);
    ballast_walk();
    if (depth == 4)
        return;
    pid_t child = start_child();
    if (child == 0) {
        require_mixed(mine, 10 * depth + 1, 10 * depth, "inherited by a grandchild");
        generation(depth + 1);
        _exit(0);
    }
    wait_for_exit(child, 0, "next generation");
    require_mixed(mine, 10 * depth + 1, 10 * depth, "after the next generation has ended");
}

static void fork_of_fork(void)
{
    generation(1);
}

static void require_orphan_verdict(const char *who)
{
    while (atomic_load(orphan_verdict) == 0)
        sleep_micros(2000); // the watchdog bounds this
    if (atomic_load(orphan_verdict) != 1)
        fail("%s: found its memory wrong, see its own sentence", who);
}

__attribute__((noreturn)) static void live_as_an_orphan(pid_t parent, uint32_t version, const char *when)
{
    while (getppid() == parent && parent != 0)
        sleep_micros(1000);
    ballast_walk();
    require_pages(data, 0, PAGES, REGION, version, when);
    write_some(0, 9);
    ballast_walk();
    require_mixed(0, 9, version, when);
    atomic_store(orphan_verdict, 1);
    _exit(0);
}

static void orphan_failed(void)
{
    atomic_store(orphan_verdict, 2);
}

static void parent_exits_first(void)
{
    make_data_cold();
    pid_t parent = start_child();
    if (parent == 0) {
        pid_t me = getpid();
        victim_before_failing = orphan_failed;
        if (start_child() == 0)
            live_as_an_orphan(me, 1, "in a child that outlived its parent");
        fill_pages(data, 0, PAGES / 8, REGION, 5); // must not reach the child
        _exit(0);
    }
    wait_for_exit(parent, 0, "parent that exits first");
    require_orphan_verdict("child that outlived its parent");
}

static void parent_execs(void)
{
    make_data_cold();
    pid_t parent = start_child();
    if (parent == 0) {
        victim_before_failing = orphan_failed;
        if (start_child() == 0)
            live_as_an_orphan(0, 1, "in a child whose parent called exec");
        execl("/bin/sleep", "sleep", "0.2", (char *)NULL);
        fail("exec of /bin/sleep: %s", strerror(errno));
    }
    wait_for_exit(parent, 0, "parent that execs");
    require_orphan_verdict("child whose parent called exec");
}

static void write_verdict(const char *path)
{
    int file = open(path, O_WRONLY);
    MUST(file >= 0 && write(file, "right", 5) == 5 && close(file) == 0);
}

static void daemon_by_double_fork(void)
{
    char path[] = "/tmp/fork_cow.verdict.XXXXXX", text[8] = "";
    int file = mkstemp(path);
    MUST(file >= 0);
    make_data_cold();
    pid_t middle = start_child();
    if (middle == 0) {
        victim_before_failing = orphan_failed;
        MUST(setsid() > 0);
        if (start_child() != 0)
            _exit(0);
        ballast_walk();
        require_pages(data, 0, PAGES, REGION, 1, "in the daemon");
        write_verdict(path);
        _exit(0);
    }
    wait_for_exit(middle, 0, "middle process of the double fork");
    while (pread(file, text, 5, 0) != 5 && atomic_load(orphan_verdict) != 2)
        sleep_micros(2000);
    unlink(path);
    if (strcmp(text, "right") != 0)
        fail("daemon: expected the verdict \"right\" in its file, found \"%s\"", text);
}

struct scene {
    const char *name;
    void (*play)(void);
};

static const struct scene scenes[] = {
    { "both_write", both_write },         { "from_a_thread", from_a_thread },
    { "fork_of_fork", fork_of_fork },     { "parent_exits_first", parent_exits_first },
    { "parent_execs", parent_execs },     { "daemon", daemon_by_double_fork },
};

int main(int argc, char **argv)
{
    victim_begin(argc, argv, "--memory --scene", 180);
    const char *only = option_text("--scene", NULL);
    int played = 0;
    data = map_pages(PAGES);
    orphan_verdict = map_shared(PAGE);
    ballast_make(option_number("--memory", 128));
    for (size_t i = 0; i < sizeof scenes / sizeof scenes[0]; i++) {
        if (only && strcmp(only, scenes[i].name) != 0)
            continue;
        phase(scenes[i].name);
        atomic_store(orphan_verdict, 0);
        scenes[i].play();
        played++;
    }
    if (played == 0)
        return 2;
    return succeed("%d fork scenes", played);
}
