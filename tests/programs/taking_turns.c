// taking_turns - processes that wait for one another in every way go on while they are made to take turns.
//
// hazards.md, "Load control": a process that is held may have what a running one waits for. A token goes round
// through pipes, another by a futex in shared memory; whoever has it walks over all of its memory first. Meanwhile one
// child of each round is killed, wherever it waits, and one forks a child of its own and waits for it.
//
// With --listen 1 all of them inherit a socket that listens, as the workers of a server do: those are never held.
//
//   taking_turns [--memory MIB] [--processes N] [--rounds N] [--listen 1]      memory is the sum over the processes
#include "ballast.h"
#include <linux/futex.h>
#include <limits.h>
#include <netinet/in.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#define MAX_PROCESSES 16

static int token_in[MAX_PROCESSES], token_out[MAX_PROCESSES];
static _Atomic uint32_t *whose_turn;

static void await_turn(uint32_t turn)
{
    uint32_t now;
    while ((now = atomic_load(whose_turn)) != turn)
        syscall(SYS_futex, whose_turn, FUTEX_WAIT, now, NULL, NULL, 0);
}

static void pass_turn(uint32_t turn)
{
    atomic_store(whose_turn, turn);
    syscall(SYS_futex, whose_turn, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

// A child of the child walks over what it inherited while its parent waits.
static void fork_and_wait(void)
{
    pid_t child = start_child();
    if (child == 0) {
        ballast_walk();
        _exit(0);
    }
    wait_for_exit(child, 0, "child of a process that waits for it");
}

__attribute__((noreturn)) static void child_works(uint32_t number, uint32_t count, long rounds, long mib)
{
    MUST(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
    ballast_make(mib);
    for (uint32_t round = 0; round < (uint32_t)rounds; round++) {
        char token;
        MUST(read(token_in[number], &token, 1) == 1);
        ballast_walk();
        MUST(write(token_out[number], &token, 1) == 1);
        await_turn(round * count + number);
        ballast_walk();
        if (round % count == number)
            fork_and_wait();
        pass_turn(round * count + number + 1);
    }
    _exit(0);
}

static void kill_one(long mib)
{
    pid_t child = start_child();
    if (child == 0) {
        ballast_make(mib);
        for (;;)
            ballast_walk();
    }
    sleep_micros(150000);
    MUST(kill(child, SIGKILL) == 0);
    int status;
    MUST(waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

static void listen_on_loopback(void)
{
    struct sockaddr_in place = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    MUST(listener >= 0 && bind(listener, (struct sockaddr *)&place, sizeof place) == 0 && listen(listener, 1) == 0);
}

int main(int argc, char **argv)
{
    victim_begin(argc, argv, "--memory --processes --rounds --listen", 120);
    long count = option_number("--processes", 4), rounds = option_number("--rounds", 6);
    long mib = option_number("--memory", 128) / (count + 1);
    if (count < 2 || count > MAX_PROCESSES)
        return 2;
    if (option_number("--listen", 0))
        listen_on_loopback();
    whose_turn = map_shared(PAGE);
    pid_t children[MAX_PROCESSES];
    int pipes[MAX_PROCESSES][2];
    for (long i = 0; i < count; i++)
        MUST(pipe(pipes[i]) == 0);
    for (long i = 0; i < count; i++)
        token_in[i] = pipes[i][0], token_out[i] = pipes[(i + 1) % count][1];
    for (long i = 0; i < count; i++)
        if ((children[i] = start_child()) == 0)
            child_works((uint32_t)i, (uint32_t)count, rounds, mib);
    MUST(write(pipes[0][1], "t", 1) == 1);
    for (int killed = 0; killed < 5; killed++) {
        phase("killing a process that may be held");
        kill_one(mib);
    }
    phase("waiting for the processes");
    for (long i = 0; i < count; i++)
        wait_for_exit(children[i], 0, "process that took turns");
    return succeed("%ld processes waited for one another %ld times", count, rounds);
}
