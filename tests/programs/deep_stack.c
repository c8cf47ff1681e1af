// deep_stack - deep recursion on the main stack and on large thread stacks, under pressure.
//
// design.md, "Never managed": stacks. They must grow and hold all the same, be given back after the thread, and the
// guard at their end must still give SIGSEGV.
//
//   deep_stack [--memory MIB]
#include "ballast.h"

#define FRAME_BYTES 2048
#define MAIN_DEPTH 2500          // 5 MiB of the usual 8
#define THREAD_DEPTH 15000       // 30 MiB
#define THREAD_STACK (48 * MIB)

// Not inlined: its buffers would be in every frame.
static void __attribute__((noinline)) walk(void)
{
    ballast_walk();
}

static void __attribute__((noinline, noreturn)) tell(const volatile uint64_t *word, uint64_t depth, uint64_t expected)
{
    fail("word at %p of the frame of depth %llu: expected %#llx, found %#llx", (const void *)word,
         (unsigned long long)depth, (unsigned long long)expected, (unsigned long long)*word);
}

static uint64_t __attribute__((noinline)) descend(uint64_t depth, uint64_t seed)
{
    volatile uint64_t frame[FRAME_BYTES / 8];
    for (size_t i = 0; i < FRAME_BYTES / 8; i += 16)
        frame[i] = mix64(seed + depth + i);
    uint64_t below = depth ? descend(depth - 1, seed) : 0;
    if (depth == 0)
        walk(); // all frames above go cold
    for (size_t i = 0; i < FRAME_BYTES / 8; i += 16)
        if (frame[i] != mix64(seed + depth + i))
            tell(&frame[i], depth, mix64(seed + depth + i));
    return below + 1;
}

static void *in_a_thread(void *seed)
{
    return (void *)(uintptr_t)descend(THREAD_DEPTH, (uintptr_t)seed);
}

static void run_thread(uintptr_t seed)
{
    pthread_t thread;
    pthread_attr_t attributes;
    void *frames;
    pthread_attr_init(&attributes);
    MUST((errno = pthread_attr_setstacksize(&attributes, THREAD_STACK)) == 0);
    MUST((errno = pthread_create(&thread, &attributes, in_a_thread, (void *)seed)) == 0);
    MUST((errno = pthread_join(thread, &frames)) == 0);
    if ((uintptr_t)frames != THREAD_DEPTH + 1)
        fail("thread counted %lu frames, expected %d", (unsigned long)(uintptr_t)frames, THREAD_DEPTH + 1);
}

static void require_overflow_to_end(void)
{
    int status;
    pid_t child = start_child();
    if (child == 0) {
        descend(1000000, 5);
        _exit(0);
    }
    MUST(waitpid(child, &status, 0) == child);
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGSEGV)
        fail("child with endless recursion: expected death by signal %d, found wait status %#x", SIGSEGV, status);
}

int main(int argc, char **argv)
{
    victim_begin(argc, argv, "--memory", 120);
    ballast_make(option_number("--memory", 160));
    phase("main stack");
    descend(MAIN_DEPTH, 1);
    phase("thread stacks");
    for (uintptr_t seed = 2; seed < 5; seed++)
        run_thread(seed);
    phase("overflow");
    require_overflow_to_end();
    return succeed("deep frames held on the main stack and on thread stacks");
}
