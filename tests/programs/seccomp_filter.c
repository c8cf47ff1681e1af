// seccomp_filter - the program forbids itself most system calls, for all its threads (TSYNC): also for the agent's.
//
// hazards.md, "Agent" (TSYNC filters): the agent lives in the program and is bound by its filters. A sandboxed worker
// answers ioctl, userfaultfd, madvise and process_vm_readv with EPERM; it may then grow past the limit, but its memory
// must stay right, and evicted pages must come back.
//
//   seccomp_filter [--memory MIB] [--calls WHICH] [--kill]
//     --calls all | madvise: only the last, so that an agent moves pages and cannot give their memory back
//     --kill: those calls kill the process, as strict sandboxes have it (an agent that calls on kills the program)
#include "ballast.h"
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>

static void install_filter(uint32_t answer, bool only_madvise)
{
    const int others = only_madvise ? 1000000 : 0; // no system call has such a number
    struct sock_filter program[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_ioctl + others, 3, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_userfaultfd + others, 2, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv + others, 1, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_madvise, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, answer),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = { sizeof program / sizeof program[0], program };
    MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    long result = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &filter);
    if (result > 0)
        fail("seccomp with TSYNC: thread %ld could not be brought under the filter", result);
    MUST(result == 0);
}

int main(int argc, char **argv)
{
    victim_begin(argc, argv, "--memory --calls --kill", 120);
    ballast_make(option_number("--memory", 192));
    ballast_walk();
    phase("under a filter");
    bool only_madvise = strcmp(option_text("--calls", "all"), "madvise") == 0;
    install_filter(option_given("--kill") ? SECCOMP_RET_KILL_PROCESS : SECCOMP_RET_ERRNO | EPERM, only_madvise);
    for (int walk = 0; walk < 3; walk++)
        ballast_walk();
    pid_t child = start_child();
    ballast_walk();
    if (child == 0)
        _exit(0);
    wait_for_exit(child, 0, "child under the filter");
    return succeed("memory held under a filter");
}
