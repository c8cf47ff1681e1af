// cold_exit - threads that end without having touched their control blocks for long; pthread_join must return.
//
// hazards.md, "Hangs", row 1, at its sharpest: the kernel clears a dying thread's tid word and does not wait for a page
// that is missing. Each thread waits in a raw system call until its control block is cold and ends by another, so
// nothing brings the page back before. (Restartable sequences would: the kernel notes in the control block on which
// processor a thread wakes up. The program has the C library leave them out, as old ones and musl do.)
//
//   cold_exit [--memory MIB] [--threads N] [--stacks own|heap|kept] [--young 1]
//
// young: the stacks are made after the memory that is walked over, so that they are not what is held of it.
// own: stacks as the C library makes them, with a guard below; heap: cut out of one large block, without guards; kept: with
// a guard below, made and touched long before their threads begin, as the C library keeps the stacks of ended threads.
#include "ballast.h"

#define STACK_BYTES ((size_t)512 * 1024)
#define GUARD_BYTES ((size_t)4 * PAGE)

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
        MUST((errno = pthread_attr_setstack(&attributes, stack + GUARD_BYTES, STACK_BYTES - GUARD_BYTES)) == 0);
    else
        pthread_attr_setstacksize(&attributes, STACK_BYTES);
    MUST((errno = pthread_create(thread, &attributes, wait_and_end, NULL)) == 0);
    pthread_attr_destroy(&attributes);
}

static unsigned char *make_stacks(const char *how, size_t count)
{
    if (strcmp(how, "heap") == 0)
        return map_pages(count * STACK_BYTES / PAGE);
    if (strcmp(how, "kept") != 0)
        return NULL;
    unsigned char *all = mmap(NULL, count * STACK_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    MUST(all != MAP_FAILED);
    for (size_t i = 0; i < count; i++) {
        unsigned char *stack = all + i * STACK_BYTES + GUARD_BYTES;
        MUST(mprotect(stack, STACK_BYTES - GUARD_BYTES, PROT_READ | PROT_WRITE) == 0);
        memset(stack, 1, STACK_BYTES - GUARD_BYTES);
    }
    return all;
}

// Until what looks like a stack and has no thread has been managed for long.
static void walk_for_a_while(void)
{
    time_t begun = time(NULL);
    do {
        ballast_walk();
        sleep_micros(100 * 1000);
    } while (time(NULL) < begun + 3);
}

int main(int argc, char **argv)
{
    victim_begin(argc, argv, "--memory --threads --stacks --young", 60);
    without_rseq(argv);
    int count = (int)option_number("--threads", 24);
    const char *how = option_text("--stacks", "own");
    unsigned char *stacks = make_stacks(how, (size_t)count);
    pthread_t *threads = calloc((size_t)count, sizeof *threads);
    MUST(threads && pipe(gate) == 0);
    bool young = option_number("--young", 0) != 0;
    if (young)
        ballast_make(option_number("--memory", 128));
    if (strcmp(how, "kept") == 0)
        walk_for_a_while();
    phase("starting threads");
    for (int i = 0; i < count; i++)
        start(&threads[i], stacks ? stacks + (size_t)i * STACK_BYTES : NULL);
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
