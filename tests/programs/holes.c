// holes - threads that move their memory into the holes that other threads leave, beside forks.
//
// The kernel tells of a change only after it has let go of the lock, so the events of two threads can arrive in the
// wrong order: "moved there" before "there is nothing any more" of the thread that made the hole, "unmapped" before
// "forked" though the child has the mapping. Who believes that order forgets evicted pages.
//
// Every thread moves by growing: its neighbours are the other threads' memory, so it goes where there is a hole. A
// child looks at everything its parent had: what another thread was about to unmap or to move is there as a whole or not
// at all.
//
//   holes [--memory MIB] [--seconds S] [--threads N] [--forks 0]
#include "ballast.h"

#define MOST_THREADS 16
#define BLOCKS 10
#define LEAST_PAGES ((size_t)96)
#define MOST_PAGES ((size_t)512)

// At rest; the mapping is about to go away or to move; new pages are being filled.
enum { AT_REST, LEAVING, FILLING };

struct block {
    uint32_t region, version;
    unsigned char *base;
    size_t pages;
    atomic_int state;
    uint64_t random;
};

struct worker {
    pthread_t thread;
    struct block blocks[BLOCKS]; // most of them cold at any time
    uint32_t changes;
};

static struct worker workers[MOST_THREADS];
static double end;
static int probe[2];

static void renew(struct block *block)
{
    atomic_store(&block->state, LEAVING);
    MUST(munmap(block->base, block->pages * PAGE) == 0);
    atomic_store(&block->state, FILLING);
    block->pages = LEAST_PAGES + random_below(&block->random, MOST_PAGES / 2);
    block->base = map_pages(block->pages);
    fill_pages(block->base, 0, block->pages, block->region, ++block->version);
    atomic_store(&block->state, AT_REST);
}

static void resize(struct block *block, size_t pages)
{
    size_t before = block->pages;
    block->pages = pages < before ? pages : before; // what stays in any case
    atomic_store(&block->state, LEAVING);
    void *got = mremap(block->base, before * PAGE, pages * PAGE, MREMAP_MAYMOVE);
    MUST(got != MAP_FAILED);
    atomic_store(&block->state, FILLING);
    block->base = got;
    block->pages = pages;
    if (pages > before)
        fill_pages(got, before, pages - before, block->region, block->version);
    atomic_store(&block->state, AT_REST);
}

static void change(struct block *block)
{
    size_t choice = random_below(&block->random, 16);
    if (choice == 0 || block->pages + 32 > MOST_PAGES)
        renew(block);
    else if (choice < 4 && block->pages / 2 >= LEAST_PAGES)
        resize(block, block->pages / 2);
    else
        resize(block, block->pages + 1 + random_below(&block->random, 31));
}

static void *change_for_ever(void *argument)
{
    struct worker *worker = argument;
    for (int i = 0; i < BLOCKS; i++) {
        worker->blocks[i].base = map_pages(LEAST_PAGES);
        worker->blocks[i].pages = LEAST_PAGES;
        renew(&worker->blocks[i]);
    }
    uint64_t random = worker->blocks[0].region;
    for (; seconds_now() < end; worker->changes++) {
        struct block *block = &worker->blocks[random_below(&random, BLOCKS)];
        change(block);
        if (random_below(&random, 8) == 0)
            require_pages(block->base, 0, block->pages, block->region, block->version, "some time after a change");
    }
    for (int i = 0; i < BLOCKS; i++) {
        struct block *block = &worker->blocks[i];
        require_pages(block->base, 0, block->pages, block->region, block->version, "at the end");
    }
    return NULL;
}

// Whether the block still lies where it was: the kernel reads its first page for us, and that is the block's own. A
// hole can be another block's place already.
static bool is_there(struct block *block)
{
    struct page_identity first = usual_identity(block->region, 0, block->version);
    char byte;
    if (write(probe[1], block->base, 1) != 1)
        return false;
    MUST(read(probe[0], &byte, 1) == 1);
    return first.kind != KIND_ZERO && page_matches(block->base, &first);
}

// In a child nothing changes any more.
static void child_looks(int threads)
{
    for (int i = 0; i < threads * BLOCKS; i++) {
        struct block *block = &workers[i / BLOCKS].blocks[i % BLOCKS];
        int state = atomic_load(&block->state);
        if (state == AT_REST && block->version > 0)
            require_pages(block->base, 0, block->pages, block->region, block->version, "at rest, in a child");
        if (state == LEAVING && is_there(block))
            require_pages(block->base, 0, block->pages, block->region, block->version, "leaving, in a child");
    }
    _exit(0);
}

static void fork_until_end(int threads)
{
    while (seconds_now() < end) {
        pid_t child = start_child();
        if (child == 0)
            child_looks(threads);
        wait_for_exit(child, 0, "the child that looks");
    }
}

int main(int argc, char **argv)
{
    victim_begin(argc, argv, "--memory --seconds --threads --forks", 120);
    end = seconds_now() + (double)option_number("--seconds", 4);
    int threads = (int)option_number("--threads", 6);
    uint32_t changes = 0;
    MUST(threads > 0 && threads <= MOST_THREADS && pipe(probe) == 0);
    ballast_make(option_number("--memory", 96));
    ballast_walk_aside();
    phase("changes");
    for (int i = 0; i < threads; i++) {
        for (int k = 0; k < BLOCKS; k++) {
            uint32_t region = (uint32_t)(i * BLOCKS + k + 1);
            workers[i].blocks[k] = (struct block){ .region = region, .random = region };
        }
        MUST((errno = pthread_create(&workers[i].thread, NULL, change_for_ever, &workers[i])) == 0);
    }
    if (option_number("--forks", 0))
        fork_until_end(threads);
    for (int i = 0; i < threads; i++) {
        MUST((errno = pthread_join(workers[i].thread, NULL)) == 0);
        changes += workers[i].changes;
    }
    ballast_rest();
    return succeed("%u changes by %d threads kept every page", changes, threads);
}
