// refuse - executes a program to which a seccomp filter refuses system calls (EPERM), as containers do.
//
//   refuse userfaultfd|io_uring PROGRAM [ARGUMENT...]
//
// userfaultfd: the system call, and USERFAULTFD_IOC_NEW on a descriptor of /dev/userfaultfd.
#include "victim.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>

#define NUMBER BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr))
#define SECOND_ARGUMENT BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[1]))
#define REFUSE BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM)
#define ALLOW BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)
#define JUMP_UNLESS(value, steps) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, 0, steps)
#define NEW_USERFAULTFD 0xaa00

static struct sock_filter no_userfaultfd[] = {
    NUMBER, JUMP_UNLESS(SYS_userfaultfd, 1), REFUSE, JUMP_UNLESS(SYS_ioctl, 3), SECOND_ARGUMENT,
    JUMP_UNLESS(NEW_USERFAULTFD, 1), REFUSE, ALLOW,
};
static struct sock_filter no_io_uring[] = { NUMBER, JUMP_UNLESS(SYS_io_uring_setup, 1), REFUSE, ALLOW };

static void install(struct sock_filter *filter, size_t bytes)
{
    struct sock_fprog program = { .len = (unsigned short)(bytes / sizeof *filter), .filter = filter };
    MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    MUST(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
}

int main(int argc, char **argv)
{
    victim_name = "refuse";
    if (argc >= 3 && strcmp(argv[1], "userfaultfd") == 0)
        install(no_userfaultfd, sizeof no_userfaultfd);
    else if (argc >= 3 && strcmp(argv[1], "io_uring") == 0)
        install(no_io_uring, sizeof no_io_uring);
    else
        return 2;
    execv(argv[2], argv + 2);
    fail("%s: %s", argv[2], strerror(errno));
}
