// thread_storm - thousands of threads are created and joined under memory pressure; pthread_join must always return.
//
// hazards.md, "Hangs", row 1: a thread that exits while the page of its control block is evicted never clears its tid
// word, and its joiner waits for ever; seen after 5 to 8 threads. Big stacks, small stacks, stacks out of the heap.
//
//   thread_storm [--memory MIB] [--threads N]
#include "ballast.h"

#define WAVE 16
#define HEAP_STACK_BYTES ((size_t)512 * 1024)

static unsigned char *heap_stacks;

// Uses some of its stack and of the heap, and leaves both dirty.
static void *short_life(void *argument)
{
    volatile unsigned char depth[20000];
    uint64_t number = (uint64_t)(uintptr_t)argument;
    for (size_t i = 0; i < sizeof depth; i += 1000)
        depth[i] = (unsigned char)(number + i);
    unsigned char *block = malloc(3000);
    MUST(block);
    memset(block, (int)number, 3000);
    for (size_t i = 0; i < sizeof depth; i += 1000)
        if (depth[i] != (unsigned char)(number + i))
            fail("stack byte at %p: expected %#x, found %#x", (void *)&depth[i], (unsigned char)(number + i), depth[i]);
    if (block[2999] != (unsigned char)number)
        fail("heap byte at %p: expected %#x, found %#x", (void *)&block[2999], (unsigned char)number, block[2999]);
    free(block);
    return (void *)(uintptr_t)mix64(number);
}

static void create(pthread_t *thread, long number, int slot)
{
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    if (number % 3 == 1)
        pthread_attr_setstacksize(&attributes, 64 * 1024);
    if (number % 3 == 2)
        pthread_attr_setstack(&attributes, heap_stacks + (size_t)slot * HEAP_STACK_BYTES, HEAP_STACK_BYTES);
    MUST((errno = pthread_create(thread, &attributes, short_life, (void *)(uintptr_t)number)) == 0);
    pthread_attr_destroy(&attributes);
}

static void one_wave(long number)
{
    pthread_t threads[WAVE];
    for (int i = 0; i < WAVE; i++)
        create(&threads[i], number + i, i);
    for (int i = 0; i < WAVE; i++) {
        void *result;
        MUST((errno = pthread_join(threads[i], &result)) == 0);
        if ((uintptr_t)result != mix64((uint64_t)(number + i)))
            fail("thread %ld: expected result %#llx, found %p", number + i,
                 (unsigned long long)mix64((uint64_t)(number + i)), result);
    }
}

int main(int argc, char **argv)
{
    victim_begin(argc, argv, "--memory --threads", 180);
    long wanted = option_number("--threads", 4000);
    size_t cold_step = 0;
    MUST(posix_memalign((void **)&heap_stacks, PAGE, WAVE * HEAP_STACK_BYTES) == 0);
    ballast_make(option_number("--memory", 192));
    ballast_walk_aside();
    for (long number = 0; number < wanted; number += WAVE) {
        phase("creating and joining");
        one_wave(number);
        if (++cold_step % 64 == 0) {
            phase("walking over the ballast between two waves");
            ballast_walk();
        }
    }
    ballast_rest();
    return succeed("%ld threads created and joined", wanted);
}
