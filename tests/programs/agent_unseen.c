// agent_unseen - what a program sees of the agent that moves its pages: nothing.
//
// The agent is a process of its own that shares the program's memory. Each scene does what such a process could spoil:
//
//   agent_unseen [--memory MIB] [--scene WHICH]
//     threads: one thread in /proc/self/task and status, no child for waitpid, a user namespace of one's own
//     filter: under a filter for all threads that forbids ioctl the memory goes on being evicted
//     privileges: threads on stacks in ordinary memory end and are joined after the program has given up root
//     reaper: pid 1 of a namespace, or a subreaper, waits for its children until there are none
//     sleep_of_children: a child is asleep when it sleeps in its own first call, not before fork returns
//     everybody: kill(-1, SIGTERM) in a pid namespace of its own, with SIGTERM ignored
#include "ballast.h"
#include <dirent.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <sys/prctl.h>

static int entries(const char *path)
{
    DIR *directory = opendir(path);
    MUST(directory != NULL);
    int count = 0;
    for (struct dirent *entry; (entry = readdir(directory)) != NULL;)
        count += entry->d_name[0] != '.';
    closedir(directory);
    return count;
}

static void no_child(const char *when)
{
    int status;
    pid_t pid = waitpid(-1, &status, WNOHANG);
    if (pid != -1 || errno != ECHILD)
        fail("%s: waitpid(-1) says %d (%s), expected no child", when, (int)pid, strerror(errno));
}

static void threads(void)
{
    phase("alone");
    int count = entries("/proc/self/task");
    if (count != 2) // the watchdog's timer has none; the walker is one
        fail("%d threads, expected 2", count);
    no_child("while memory goes out");
    ballast_rest();
    MUST(entries("/proc/self/task") == 1);
    pid_t child = start_child();
    if (child == 0) {
        no_child("a fork child");
        MUST(unshare(CLONE_NEWUSER) == 0);
        ballast_walk();
        _exit(0);
    }
    ballast_walk();
    wait_for_exit(child, 0, "child in a user namespace");
    MUST(unshare(CLONE_NEWUSER) == 0);
    ballast_walk();
}

static void filter(void)
{
    struct sock_filter program[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_ioctl, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog all = { sizeof program / sizeof program[0], program };
    phase("under a filter");
    MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    MUST(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &all) == 0);
    for (int walk = 0; walk < 4; walk++)
        ballast_walk();
}

static void *end_soon(void *seconds)
{
    sleep_micros(*(long *)seconds);
    return NULL;
}

static void privileges(void)
{
    phase("without root");
    MUST(setresgid(65534, 65534, 65534) == 0);
    MUST(setresuid(65534, 65534, 65534) == 0);
    enum { THREADS = 8 };
    const size_t stack = 64 * PAGE;
    unsigned char *stacks = map_pages(THREADS * stack / PAGE);
    for (int round = 0; round < 12; round++) {
        pthread_t all[THREADS];
        long naps[THREADS];
        for (int i = 0; i < THREADS; i++) {
            pthread_attr_t attributes;
            MUST(pthread_attr_init(&attributes) == 0);
            MUST(pthread_attr_setstack(&attributes, stacks + i * stack, stack) == 0);
            naps[i] = 20000 + 20000 * i;
            MUST(pthread_create(&all[i], &attributes, end_soon, &naps[i]) == 0);
        }
        ballast_walk();
        for (int i = 0; i < THREADS; i++)
            MUST(pthread_join(all[i], NULL) == 0);
    }
}

static void reap_until_none(void)
{
    enum { CHILDREN = 20 };
    for (int i = 0; i < CHILDREN; i++) {
        pid_t child = start_child();
        if (child == 0) {
            if (fork() == 0) // an orphan, soon
                sleep_micros(30000);
            _exit(0);
        }
    }
    ballast_walk();
    while (wait(NULL) > 0 || errno == EINTR)
        ;
    MUST(errno == ECHILD);
}

static void reaper(void)
{
    phase("reaping until there is nobody left");
    if (getpid() != 1)
        MUST(prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0);
    reap_until_none();
    ballast_walk();
}

static char state_of(pid_t pid)
{
    char path[64], text[512];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "r");
    size_t length = file ? fread(text, 1, sizeof text - 1, file) : 0;
    if (file)
        fclose(file);
    text[length] = 0;
    char *end = strrchr(text, ')');
    return end ? end[2] : '?';
}

static void sleep_of_children(void)
{
    phase("children that sleep in their first call");
    atomic_int *began = map_shared(PAGE);
    for (int i = 0; i < 100; i++) {
        atomic_store(began, 0);
        pid_t child = start_child();
        if (child == 0) {
            atomic_store(began, 1);
            pause();
            _exit(0);
        }
        while (state_of(child) != 'S')
            ;
        if (atomic_load(began) == 0)
            fail("child %d of 100 was asleep before fork returned in it", i + 1);
        MUST(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
    }
}

static void everybody(void)
{
    phase("a signal for everybody in the namespace");
    MUST(getpid() == 1);
    pid_t child = start_child();
    if (child == 0) {
        signal(SIGTERM, SIG_IGN);
        MUST(kill(-1, SIGTERM) == 0);
        for (int walk = 0; walk < 4; walk++)
            ballast_walk();
        _exit(0);
    }
    wait_for_exit(child, 0, "child that sends a signal to everybody");
    ballast_walk();
}

int main(int argc, char **argv)
{
    static const struct { const char *name; void (*act)(void); } scenes[] = {
        { "threads", threads }, { "filter", filter }, { "privileges", privileges }, { "reaper", reaper },
        { "everybody", everybody }, { "sleep_of_children", sleep_of_children },
    };
    victim_begin(argc, argv, "--memory --scene", 120);
    const char *wanted = option_text("--scene", "threads");
    ballast_make(option_number("--memory", 192));
    ballast_walk();
    if (strcmp(wanted, "threads") == 0)
        ballast_walk_aside();
    for (size_t i = 0; i < sizeof scenes / sizeof scenes[0]; i++)
        if (strcmp(wanted, scenes[i].name) == 0) {
            scenes[i].act();
            ballast_walk();
            return succeed("%s: nothing seen", wanted);
        }
    fail("unknown scene %s", wanted);
}
