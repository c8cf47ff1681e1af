// replaced_and_moved - a larger mapping takes the place of one that was there when mappings were looked at, and is moved at once.
//
// Who reads the list of mappings and registers one of them afterwards can find a larger mapping there, and cuts it in two or
// three. mremap(2) refuses a range of several mappings (EFAULT), though the program made one.
//
// Each thread maps SMALL in the middle of a place of its own, and replaces it a moment later by LARGE, which covers it on both
// sides. LARGE is filled, grown by a page (which may move it) a few times, and has to hold what was written.
//
//   replaced_and_moved [--memory MIB] [--seconds S] [--threads N] [--nap MICROS]
#include "ballast.h"

#define MOST_THREADS 16
#define SMALL_PAGES (2 * MIB / PAGE)
#define LARGE_PAGES (4 * MIB / PAGE)
#define FILLED_PAGES ((size_t)24)
#define GROWN 6
#define FAR ((size_t)1 << 40)

struct worker {
    pthread_t thread;
    unsigned char *place;
    uint64_t random;
    uint32_t region, rounds;
};

static struct worker workers[MOST_THREADS];
static double end;
static long nap;

static void *map_at(unsigned char *wanted, size_t pages, int how)
{
    void *got = mmap(wanted, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | how, -1, 0);
    MUST(got != MAP_FAILED);
    return got;
}

static void rest(struct worker *worker)
{
    sleep_micros((long)random_below(&worker->random, (size_t)nap));
}

static void replace_and_move(struct worker *worker)
{
    uint32_t version = ++worker->rounds;
    map_at(worker->place + SMALL_PAGES / 2 * PAGE, SMALL_PAGES, MAP_FIXED_NOREPLACE);
    rest(worker);
    unsigned char *base = map_at(worker->place, LARGE_PAGES, MAP_FIXED);
    fill_pages(base, 0, FILLED_PAGES, worker->region, version);
    for (size_t grown = 0; grown < GROWN; grown++) {
        size_t pages = LARGE_PAGES + grown;
        void *got = mremap(base, pages * PAGE, (pages + 1) * PAGE, MREMAP_MAYMOVE);
        MUST(got != MAP_FAILED);
        base = got;
        rest(worker);
    }
    require_pages(base, 0, FILLED_PAGES, worker->region, version, "after it was moved");
    MUST(munmap(base, (LARGE_PAGES + GROWN) * PAGE) == 0);
}

static void *replace_for_ever(void *argument)
{
    struct worker *worker = argument;
    while (seconds_now() < end)
        replace_and_move(worker);
    return NULL;
}

// Far below all other mappings, where the kernel puts nothing by itself: a place is a hole while its mapping is elsewhere.
static void find_places(int threads)
{
    unsigned char *known = mmap(NULL, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(known != MAP_FAILED);
    for (int i = 0; i < threads; i++)
        workers[i].place = known - FAR - (size_t)(i + 1) * 2 * LARGE_PAGES * PAGE;
}

int main(int argc, char **argv)
{
    victim_begin(argc, argv, "--memory --seconds --threads --nap", 120);
    end = seconds_now() + (double)option_number("--seconds", 4);
    nap = (long)option_number("--nap", 3000);
    int threads = (int)option_number("--threads", 4);
    MUST(threads > 0 && threads <= MOST_THREADS && nap > 0);
    ballast_make(option_number("--memory", 96));
    ballast_walk_aside();
    find_places(threads);
    phase("mappings are replaced and moved");
    for (int i = 0; i < threads; i++) {
        workers[i].region = (uint32_t)i + 1;
        workers[i].random = (uint64_t)i + 1;
        MUST((errno = pthread_create(&workers[i].thread, NULL, replace_for_ever, &workers[i])) == 0);
    }
    uint32_t rounds = 0;
    for (int i = 0; i < threads; i++) {
        MUST((errno = pthread_join(workers[i].thread, NULL)) == 0);
        rounds += workers[i].rounds;
    }
    ballast_rest();
    return succeed("%u mappings of %d threads were moved and kept what they had", rounds, threads);
}
