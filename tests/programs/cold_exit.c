// cold_exit - threads that end without having touched their control blocks for long; pthread_join must return.
//
// hazards.md, "Hangs", row 1, at its sharpest: the kernel clears a dying thread's tid word and does not wait for a page
// that is missing. Each thread waits in a raw system call until its control block is cold and ends by another, so
// nothing brings the page back before. (Restartable sequences would: the kernel notes in the control block on which
// processor a thread wakes up. The program has the C library leave them out, as old ones and musl do.)
//
//   cold_exit [--memory MIB] [--threads N] [--stacks own|heap] [--young 1]
//
// young: the stacks are made after the memory that is walked over, so that they are not what is held of it.
// own: stacks as the C library makes them, with a guard below; heap: cut out of one large block, without guards.
#include "ballast.h"

#define STACK_BYTES ((size_t)512 * 1024)

static int gate[2];
static atomic_int waiting;

// Far below the control block, so that waking up touches another page; then read(2) and exit(2) without the C library.
static void *wait_and_end(void *unused)
{
    volatile char depth[8 * PAGE];
    depth[0] = 1;
    atomic_fetch_add(&waiting, 1);
    __asm__ volatile("xor %%eax, %%eax\n\tsyscall\n\tmov $60, %%eax\n\txor %%edi, %%edi\n\tsyscall"
                     :
                     : "D"((long)gate[0]), "S"(depth), "d"(1L)
                     : "rax", "rcx", "r11", "memory");
    return unused;
}

static void without_rseq(char **argv)
{
    if (getenv("GLIBC_TUNABLES"))
        return;
    MUST(setenv("GLIBC_TUNABLES", "glibc.pthread.rseq=0", 1) == 0);
    execv("/proc/self/exe", argv);
    fail("exec: %s", strerror(errno));
}

static void start(pthread_t *thread, unsigned char *stack)
{
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    if (stack)
        MUST((errno = pthread_attr_setstack(&attributes, stack, STACK_BYTES)) == 0);
    else
        pthread_attr_setstacksize(&attributes, STACK_BYTES);
    MUST((errno = pthread_create(thread, &attributes, wait_and_end, NULL)) == 0);
    pthread_attr_destroy(&attributes);
}

int main(int argc, char **argv)
{
    victim_begin(argc, argv, "--memory --threads --stacks --young", 60);
    without_rseq(argv);
    int count = (int)option_number("--threads", 24);
    bool heap = strcmp(option_text("--stacks", "own"), "heap") == 0;
    unsigned char *stacks = heap ? map_pages((size_t)count * STACK_BYTES / PAGE) : NULL;
    pthread_t *threads = calloc((size_t)count, sizeof *threads);
    MUST(threads && pipe(gate) == 0);
    bool young = option_number("--young", 0) != 0;
    if (young)
        ballast_make(option_number("--memory", 128));
    phase("starting threads");
    for (int i = 0; i < count; i++)
        start(&threads[i], heap ? stacks + (size_t)i * STACK_BYTES : NULL);
    while (atomic_load(&waiting) < count)
        sleep_micros(1000);
    phase("walking until their control blocks are cold");
    if (!young)
        ballast_make(option_number("--memory", 128));
    for (int i = 0; i < 3; i++)
        ballast_walk();
    phase("joining threads whose control blocks are cold");
    for (int i = 0; i < count; i++)
        MUST(write(gate[1], "", 1) == 1);
    for (int i = 0; i < count; i++)
        MUST((errno = pthread_join(threads[i], NULL)) == 0);
    ballast_walk();
    return succeed("%d threads ended cold and were joined", count);
}
