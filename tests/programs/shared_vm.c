// shared_vm - a process made by clone(CLONE_VM) without CLONE_THREAD goes on in an address space whose first process, and
// with it the agent, has ended or has become another program.
//
// Pages that are away must come back from wherever they are, staged ones too, although the process that they were
// staged in is gone; and nothing may be taken for them out of the program that now has its pid, nor read as zeros.
//
//   shared_vm [--memory MIB] [--scene parent_exits|parent_execs]
#include "ballast.h"
#include <sys/personality.h>

#define STACK_BYTES (16 * PAGE)

static int to_first[2], pulse[2];
static char **words;

// From this page on the ballast is left.
static size_t first_left;

static void require_left(unsigned version, const char *when)
{
    require_pages(ballast_base, first_left, ballast_pages - first_left, BALLAST_REGION, version, when);
}

// Says so on the pipe if all is well; its exit status reaches nobody.
static int outlive(void *unused)
{
    char byte;
    watchdog_arm();
    close(pulse[1]);
    phase("waiting for the parent's end");
    if (read(pulse[0], &byte, 1) != 0)
        fail("the parent's end: expected end of file");
    sleep_micros(1500000); // without a fault: whoever looks for this address space has to look well
    phase("the parent is gone");
    require_left(1, "memory after the parent's end");
    fill_pages(ballast_base, first_left, ballast_pages - first_left, BALLAST_REGION, 2);
    pid_t child = start_child();
    require_left(2, "memory written after the parent's end");
    if (child == 0)
        _exit(0);
    wait_for_exit(child, 0, "child forked after the parent's end");
    MUST(write(to_first[1], "k", 1) == 1);
    _exit(0);
    return unused != NULL;
}

static void be_the_parent(void)
{
    unsigned char *stack = map_pages(STACK_BYTES / PAGE);
    ballast_make(option_number("--memory", 80));
    ballast_walk();
    // What is resident stays so without an agent: half of it goes, mostly that. What came last is staged and away.
    first_left = ballast_pages / 2;
    MUST(munmap(ballast_base, first_left * PAGE) == 0);
    MUST(clone(outlive, stack + STACK_BYTES, CLONE_VM | SIGCHLD, NULL) > 0);
    if (strcmp(option_text("--scene", "parent_exits"), "parent_execs") == 0)
        execl("/proc/self/exe", words[0], "--later-image", "--memory", option_text("--memory", "80"), (char *)NULL);
    _exit(0);
}

// Every image has its memory at the same addresses, and so can be taken for another.
static void without_random_addresses(void)
{
    int now = personality(0xffffffff);
    if (now & ADDR_NO_RANDOMIZE || personality((unsigned long)now | ADDR_NO_RANDOMIZE) < 0)
        return;
    execv("/proc/self/exe", words);
    fail("exec: %s", strerror(errno));
}

// The other program: the same pid, its own pages at the same addresses.
static int be_another_program(void)
{
    ballast_make(option_number("--memory", 80));
    for (double end = seconds_now() + 4; seconds_now() < end;)
        ballast_walk();
    return 0;
}

int main(int argc, char **argv)
{
    victim_begin(argc, argv, "--memory --scene --later-image", 60);
    words = argv;
    if (option_given("--later-image"))
        return be_another_program();
    without_random_addresses();
    char byte = 0;
    MUST(pipe(to_first) == 0 && pipe2(pulse, O_CLOEXEC) == 0);
    pid_t parent = start_child();
    if (parent == 0) {
        close(to_first[0]);
        be_the_parent();
    }
    close(to_first[1]);
    close(pulse[0]);
    close(pulse[1]);
    phase("waiting for the word of the process that outlives its parent");
    if (read(to_first[0], &byte, 1) != 1 || byte != 'k')
        fail("the process that outlives its parent: expected its word, found end of file");
    wait_for_exit(parent, 0, "parent");
    return succeed("memory held after the end of the process it began in");
}
