// late_maps - something small takes the place of a large mapping, and what is mapped beside it a moment later holds.
//
// Who looks at mappings first and has them watched afterwards, range by range, watches a hole: the large mapping was there
// when it looked, only the small one when the watch began, and nobody watches what is mapped into the rest of the range. A
// page taken from there is lost, as no fault tells that it is wanted.
//
// Each thread has places far from all other mappings. At a place it maps LARGE, unmaps it again, maps SMALL at its end and LATE in
// the middle, and goes on to the next place; it comes back when what it left there is cold.
//
//   late_maps [--memory MIB] [--seconds S] [--threads N] [--nap MICROS]
#include "ballast.h"

#define MOST_THREADS 16
#define PLACES 6
#define LARGE_PAGES (16 * MIB / PAGE)
#define SMALL_PAGES (MIB / 2 / PAGE)
#define LATE_PAGES (MIB / PAGE)
#define LATE_FIRST (LARGE_PAGES / 2)
#define BETWEEN_PAGES (2 * LARGE_PAGES)

struct place {
    unsigned char *base;
    uint32_t region, version; // version 0: nothing lies there
};

struct worker {
    pthread_t thread;
    struct place places[PLACES];
    uint64_t random;
    uint32_t rounds;
};

static struct worker workers[MOST_THREADS];
static double end;
static long nap;

static void *map_at(unsigned char *base, size_t first, size_t pages)
{
    void *wanted = base + first * PAGE;
    void *got = mmap(wanted, pages * PAGE, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
    MUST(got == wanted);
    return got;
}

static void rest(struct worker *worker)
{
    sleep_micros((long)random_below(&worker->random, (size_t)nap));
}

static void fill_place(struct worker *worker, struct place *place)
{
    void *large = map_at(place->base, 0, LARGE_PAGES);
    rest(worker);
    MUST(munmap(large, LARGE_PAGES * PAGE) == 0);
    map_at(place->base, LARGE_PAGES - SMALL_PAGES, SMALL_PAGES);
    rest(worker);
    void *late = map_at(place->base, LATE_FIRST, LATE_PAGES);
    fill_pages(late, 0, LATE_PAGES, place->region, ++place->version);
}

static void empty_place(struct place *place, const char *when)
{
    if (place->version == 0)
        return;
    unsigned char *late = place->base + LATE_FIRST * PAGE;
    require_pages(late, 0, LATE_PAGES, place->region, place->version, when);
    MUST(munmap(place->base, LARGE_PAGES * PAGE) == 0);
}

static void *fill_and_empty(void *argument)
{
    struct worker *worker = argument;
    for (; seconds_now() < end; worker->rounds++) {
        struct place *place = &worker->places[worker->rounds % PLACES];
        empty_place(place, "when the place was cold");
        fill_place(worker, place);
        sleep_micros(nap);
    }
    for (int i = 0; i < PLACES; i++)
        empty_place(&worker->places[i], "at the end");
    return NULL;
}

// Places far from one another and from all else: a reservation tells where there is room.
static void find_places(int threads)
{
    size_t bytes = (size_t)threads * PLACES * BETWEEN_PAGES * PAGE;
    unsigned char *base = mmap(NULL, bytes + 64 * MIB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    MUST(base != MAP_FAILED && munmap(base, bytes + 64 * MIB) == 0);
    for (int i = 0; i < threads * PLACES; i++) {
        struct place *place = &workers[i / PLACES].places[i % PLACES];
        *place = (struct place){ .base = base + (size_t)i * BETWEEN_PAGES * PAGE, .region = (uint32_t)i + 1 };
    }
}

int main(int argc, char **argv)
{
    victim_begin(argc, argv, "--memory --seconds --threads --nap", 120);
    end = seconds_now() + (double)option_number("--seconds", 4);
    int threads = (int)option_number("--threads", 4);
    nap = option_number("--nap", 4000);
    uint32_t rounds = 0;
    MUST(threads > 0 && threads <= MOST_THREADS && nap > 0);
    ballast_make(option_number("--memory", 96));
    ballast_walk_aside();
    find_places(threads);
    phase("places are filled and emptied");
    for (int i = 0; i < threads; i++) {
        workers[i].random = (uint64_t)i + 1;
        MUST((errno = pthread_create(&workers[i].thread, NULL, fill_and_empty, &workers[i])) == 0);
    }
    for (int i = 0; i < threads; i++) {
        MUST((errno = pthread_join(workers[i].thread, NULL)) == 0);
        rounds += workers[i].rounds;
    }
    ballast_rest();
    return succeed("%u places of %d threads kept what was mapped late", rounds, threads);
}
