// sparse_blocks - threads allocate blocks of up to gigabytes, write one byte to each, and free them, beside memory that
// goes out and comes back.
//
// Allocators map and unmap arenas all the time, and an arena's first page is what they can least do without. Nearly all
// of the address space is never touched: who looks through it page by page keeps every munmap waiting.
//
//   sparse_blocks [--memory MIB] [--threads N] [--rounds N]
#include "ballast.h"

#define MOST_THREADS 64
#define BLOCKS 40
#define LEAST_BITS 3
#define MOST_BITS 33

static int rounds;

static void use_blocks(uint64_t *random)
{
    unsigned char *blocks[BLOCKS];
    size_t at[BLOCKS];
    for (int i = 0; i < BLOCKS; i++) {
        size_t bytes = (size_t)1 << (LEAST_BITS + random_below(random, MOST_BITS - LEAST_BITS + 1));
        at[i] = random_below(random, bytes);
        blocks[i] = malloc(bytes);
        if (blocks[i] != NULL)
            blocks[i][at[i]] = (unsigned char)i;
    }
    for (int i = 0; i < BLOCKS; i++) {
        if (blocks[i] != NULL && blocks[i][at[i]] != (unsigned char)i)
            fail("byte %zu of a block at %p: expected %d, found %d", at[i], (void *)blocks[i], i, blocks[i][at[i]]);
        free(blocks[i]);
    }
}

static void *work(void *number)
{
    uint64_t random = (uintptr_t)number * 7919 + 1;
    for (int round = 0; round < rounds; round++)
        use_blocks(&random);
    return NULL;
}

int main(int argc, char **argv)
{
    victim_begin(argc, argv, "--memory --threads --rounds", 120);
    int count = (int)option_number("--threads", 16);
    rounds = (int)option_number("--rounds", 20);
    pthread_t threads[MOST_THREADS];
    MUST(count > 0 && count <= MOST_THREADS);
    ballast_make(option_number("--memory", 96));
    ballast_walk_aside();
    phase("blocks come and go");
    for (int i = 0; i < count; i++)
        MUST((errno = pthread_create(&threads[i], NULL, work, (void *)(uintptr_t)i)) == 0);
    for (int i = 0; i < count; i++)
        MUST((errno = pthread_join(threads[i], NULL)) == 0);
    ballast_rest();
    return succeed("%d threads used %d blocks each, %d times", count, BLOCKS, rounds);
}
