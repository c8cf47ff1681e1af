// seccomp_filter - the program forbids itself most system calls, for all its threads (TSYNC): also for the agent's.
//
// hazards.md, "Agent" (TSYNC filters): the agent lives in the program and is bound by its filters. A sandboxed worker
// answers ioctl, userfaultfd, madvise and process_vm_readv with EPERM; it may then grow past the limit, but its memory
// must stay right, and evicted pages must come back.
//
//   seccomp_filter [--memory MIB] [--kill]      --kill: those calls kill the process, as strict sandboxes have it
//                                               (an agent that calls on kills the program: to be documented or solved)
#include "ballast.h"
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>

static void install_filter(uint32_t answer)
{
    struct sock_filter program[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_ioctl, 3, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_userfaultfd, 2, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 1, 0),
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
    victim_begin(argc, argv, "--memory --kill", 120);
    ballast_make(option_number("--memory", 192));
    ballast_walk();
    phase("under a filter");
    install_filter(option_given("--kill") ? SECCOMP_RET_KILL_PROCESS : SECCOMP_RET_ERRNO | EPERM);
    ballast_walk();
    pid_t child = start_child();
    ballast_walk();
    if (child == 0)
        _exit(0);
    wait_for_exit(child, 0, "child under the filter");
    return succeed("memory held under a filter");
}
