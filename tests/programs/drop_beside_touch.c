// drop_beside_touch - one thread drops a large range with MADV_DONTNEED while another touches the end of it.
//
// hazards.md: what is served between the reading of the REMOVE event and the kernel's zap vanishes without notice. The zap
// goes over thousands of present pages before it reaches those at the end, which were evicted and are touched all the
// while. Such a page is believed resident and is missing: its next touch must be served, with zeros.
//
//   drop_beside_touch [--memory MIB] [--rounds N]
#include "ballast.h"
#include <pthread.h>
#include <stdatomic.h>

#define PAGES ((size_t)6144)
#define TOUCHED ((size_t)128) // at the end
#define REGION 2

static unsigned char *base;
static atomic_bool begun, done;

static bool is_zero(const unsigned char *page)
{
    const volatile uint64_t *words = (const volatile uint64_t *)page;
    return words[0] == 0 && words[PAGE / 16] == 0 && words[PAGE / 8 - 1] == 0;
}

static void *touch_the_end(void *unused)
{
    bool dropped[TOUCHED] = { false };
    for (bool last = false; !last; begun = true) {
        last = done;
        for (size_t i = 0; i < TOUCHED; i++) {
            bool zero = is_zero(base + (PAGES - TOUCHED + i) * PAGE);
            if (dropped[i] && !zero)
                fail("page %zu from the end had been dropped and is back", TOUCHED - i);
            dropped[i] = zero;
        }
    }
    return unused;
}

static void one_round(uint32_t version)
{
    pthread_t thread;
    fill_pages(base, PAGES - TOUCHED, TOUCHED, REGION, version);
    ballast_walk();
    fill_pages(base, 0, PAGES - TOUCHED, REGION, version);
    begun = done = false;
    MUST(pthread_create(&thread, NULL, touch_the_end, NULL) == 0);
    // Not before the other one runs; its first pass goes on meanwhile.
    while (!begun && version % 2 == 0)
        sleep_micros(50);
    MUST(madvise(base, PAGES * PAGE, MADV_DONTNEED) == 0);
    done = true;
    MUST(pthread_join(thread, NULL) == 0);
    require_zero_pages(base, 0, PAGES, REGION, "after MADV_DONTNEED");
}

int main(int argc, char **argv)
{
    victim_begin(argc, argv, "--memory --rounds", 120);
    long rounds = option_number("--rounds", 20);
    base = map_pages(PAGES);
    ballast_make(option_number("--memory", 64));
    phase("rounds");
    for (long i = 1; i <= rounds; i++)
        one_round((uint32_t)i);
    return succeed("%ld ranges dropped while they were touched", rounds);
}
