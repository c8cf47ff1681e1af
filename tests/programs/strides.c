// strides - walks over its pages in strides: forwards, backwards, several at once, and with changes in between.
//
// A pager that guesses which pages come next brings them before they are asked for: each must be the right one, also when
// the page was written, unmapped or given up meanwhile by another thread.
//
//   strides [--memory MIB] [--rounds N]
#include "page_content.h"
#include <pthread.h>

#define REGION 32

static unsigned char *data;
static size_t pages;
static uint32_t *versions; // 0: given up, reads as zeros

static void visit(size_t page, const char *how)
{
    struct page_identity is = usual_identity(REGION, (uint32_t)page, versions[page]);
    if (versions[page] == 0)
        is.kind = KIND_ZERO;
    page_require(data + page * PAGE, &is, how);
}

static void renew(size_t page)
{
    versions[page]++;
    struct page_identity is = usual_identity(REGION, (uint32_t)page, versions[page]);
    page_render(data + page * PAGE, &is);
}

// Each page once: all columns of a matrix of `stride` columns.
static void walk(long stride, const char *how, bool writes)
{
    size_t step = (size_t)(stride < 0 ? -stride : stride);
    for (size_t column = 0; column < step; column++) {
        size_t count = (pages - column + step - 1) / step;
        for (size_t n = 0; n < count; n++) {
            size_t page = column + (stride < 0 ? count - 1 - n : n) * step;
            visit(page, how);
            if (writes && page % 3 == 0)
                renew(page);
        }
    }
}

static void *walk_half(void *first)
{
    size_t half = (size_t)first, step = half ? 9 : 5;
    for (size_t column = 0; column < step; column++)
        for (size_t page = half * (pages / 2) + column; page < (half + 1) * (pages / 2); page += step)
            visit(page, "two threads, each in its stride");
    return NULL;
}

// Pages of a stride in progress are given up just ahead of the walk.
static void walk_into_holes(void)
{
    const size_t step = 8;
    for (size_t page = 0; page + 4 * step < pages; page += step) {
        visit(page, "with holes ahead");
        size_t ahead = page + 3 * step;
        if (page % 5 == 0) {
            MUST(madvise(data + ahead * PAGE, PAGE, MADV_DONTNEED) == 0);
            versions[ahead] = 0;
        } else if (page % 7 == 0) {
            MUST(munmap(data + ahead * PAGE, PAGE) == 0);
            MUST(mmap(data + ahead * PAGE, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
                      0) == data + ahead * PAGE);
            versions[ahead] = 0;
        }
    }
}

int main(int argc, char **argv)
{
    victim_begin(argc, argv, "--memory --rounds", 180);
    pages = (size_t)option_number("--memory", 128) * (MIB / PAGE);
    long rounds = option_number("--rounds", 1);
    data = map_pages(pages);
    versions = map_shared(pages * sizeof *versions);
    phase("fill");
    for (size_t page = 0; page < pages; page++)
        renew(page);
    for (long round = 0; round < rounds; round++) {
        phase("strides");
        static const long strides[] = { 16, -1, 3, -16, 2, 64 };
        for (size_t i = 0; i < sizeof strides / sizeof *strides; i++)
            walk(strides[i], "one thread, one stride", strides[i] % 2 == 0);
        phase("two threads");
        pthread_t threads[2];
        for (size_t half = 0; half < 2; half++)
            MUST(pthread_create(&threads[half], NULL, walk_half, (void *)half) == 0);
        for (size_t half = 0; half < 2; half++)
            MUST(pthread_join(threads[half], NULL) == 0);
        phase("holes");
        walk_into_holes();
        walk(1, "afterwards", true);
    }
    succeed("%ld rounds of strides over %zu pages", rounds, pages);
    return 0;
}
