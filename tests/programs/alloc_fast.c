// alloc_fast - threads touch fresh memory as fast as they can, then check it: the test of the budget.
//
// hazards.md, "Budget": heap and mappings grow without any event; first touch runs at about 1.9 MiB per ms and thread,
// so a limit that is watched too rarely is overrun. The harness compares ram_peak_bytes with the limit.
//
//   alloc_fast [--memory MIB] [--threads T] [--piece KIB] [--how mmap|malloc|brk]
#include "victim.h"
#include <pthread.h>

#define WORDS (PAGE / 8)
#define MAX_THREADS 64

static size_t pages_each, piece_pages;
static const char *how;
static pthread_barrier_t all_touched;
static pthread_mutex_t growing = PTHREAD_MUTEX_INITIALIZER;

static unsigned char *take_piece(void)
{
    if (strcmp(how, "mmap") == 0) {
        void *piece = mmap(NULL, piece_pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        return piece == MAP_FAILED ? NULL : piece;
    }
    if (strcmp(how, "malloc") == 0)
        return aligned_alloc(PAGE, piece_pages * PAGE);
    pthread_mutex_lock(&growing);
    void *piece = sbrk((intptr_t)(piece_pages * PAGE));
    pthread_mutex_unlock(&growing);
    return piece == (void *)-1 ? NULL : piece;
}

static uint64_t mark_of(uint64_t thread, uint64_t page)
{
    return mix64(thread << 48 ^ page);
}

static void check_page(const uint64_t *words, uint64_t mark, size_t page)
{
    if (words[0] != mark)
        fail("page %p (page %zu): expected mark %#llx, found %#llx", (const void *)words, page,
             (unsigned long long)mark, (unsigned long long)words[0]);
    for (size_t i = 1; i < WORDS; i++)
        if (words[i] != 0)
            fail("page %p (page %zu) word %zu: never written, found %#llx", (const void *)words, page, i,
                 (unsigned long long)words[i]);
}

// malloc may give memory that was used before only if it was freed, and nothing is freed here before the check.
static void *touch_then_check(void *argument)
{
    uint64_t thread = (uint64_t)(uintptr_t)argument;
    size_t pieces = (pages_each + piece_pages - 1) / piece_pages;
    unsigned char **taken = calloc(pieces, sizeof *taken);
    MUST(taken);
    for (size_t piece = 0; piece < pieces; piece++) {
        MUST((taken[piece] = take_piece()));
        for (size_t i = 0; i < piece_pages; i++)
            *(uint64_t *)(taken[piece] + i * PAGE) = mark_of(thread, piece * piece_pages + i);
    }
    pthread_barrier_wait(&all_touched);
    for (size_t page = 0; page < pieces * piece_pages; page++)
        check_page((uint64_t *)(taken[page / piece_pages] + page % piece_pages * PAGE), mark_of(thread, page), page);
    return NULL;
}

int main(int argc, char **argv)
{
    victim_begin(argc, argv, "--memory --threads --piece --how", 180);
    pthread_t threads[MAX_THREADS];
    long count = option_number("--threads", 2), mib = option_number("--memory", 256);
    how = option_text("--how", "mmap");
    piece_pages = (size_t)option_number("--piece", 4096) * 1024 / PAGE;
    if (count < 1 || count > MAX_THREADS || piece_pages == 0)
        return 2;
    pages_each = (size_t)mib * (MIB / PAGE) / (size_t)count;
    pthread_barrier_init(&all_touched, NULL, (unsigned)count + 1);
    phase("touching as fast as possible");
    double start = seconds_now();
    for (long i = 0; i < count; i++)
        MUST((errno = pthread_create(&threads[i], NULL, touch_then_check, (void *)(uintptr_t)i)) == 0);
    pthread_barrier_wait(&all_touched);
    double touched = seconds_now();
    phase("checking");
    for (long i = 0; i < count; i++)
        MUST((errno = pthread_join(threads[i], NULL)) == 0);
    return succeed("%ld MiB touched by %ld threads in %.3f s, checked in %.3f s", mib, count, touched - start,
                   seconds_now() - touched);
}
