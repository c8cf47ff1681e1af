// shmat_remap - shared memory attached by SHM_REMAP over evicted private memory: the segment's bytes are seen, and the
// private ones never again.
//
// hazards.md: shmat(SHM_REMAP) over managed memory sends no event, so the pager goes on believing in the old mapping.
//
//   shmat_remap [--memory MIB]
#include "ballast.h"
#include <sys/shm.h>

#define PAGES ((size_t)512)
#define SEGMENT_PAGES ((size_t)128)
#define REGION 7
#define SEGMENT 8

static void fill_segment(int id)
{
    void *elsewhere = shmat(id, NULL, 0);
    MUST(elsewhere != (void *)-1);
    fill_pages(elsewhere, 0, SEGMENT_PAGES, SEGMENT, 1);
    MUST(shmdt(elsewhere) == 0);
}

static void one_round(unsigned char *data, int id, uint32_t version)
{
    unsigned char *middle = data + SEGMENT_PAGES * PAGE;
    fill_segment(id);
    fill_pages(data, 0, PAGES, REGION, version);
    ballast_walk();
    // In half of it: evicted pages are replaced, and pages that the pager knows to be in memory.
    require_pages(data, SEGMENT_PAGES, SEGMENT_PAGES / 2, REGION, version, "private pages before the segment");
    MUST(shmat(id, middle, SHM_REMAP) == middle);
    require_pages(middle, 0, SEGMENT_PAGES, SEGMENT, 1, "segment attached over evicted pages");
    fill_pages(middle, 0, SEGMENT_PAGES, SEGMENT, 2);
    ballast_walk();
    require_pages(middle, 0, SEGMENT_PAGES, SEGMENT, 2, "segment after pressure");
    require_pages(data, 0, SEGMENT_PAGES, REGION, version, "private pages below the segment");
    require_pages(data, 2 * SEGMENT_PAGES, PAGES - 2 * SEGMENT_PAGES, REGION, version, "private pages above it");
    MUST(shmdt(middle) == 0);
    void *again = mmap(middle, SEGMENT_PAGES * PAGE, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    MUST(again == middle);
    require_zero_pages(middle, 0, SEGMENT_PAGES, REGION, "private mapping where the segment was");
    fill_pages(middle, 0, SEGMENT_PAGES, REGION, version);
    ballast_walk();
    require_pages(middle, 0, SEGMENT_PAGES, REGION, version, "private mapping where the segment was, after pressure");
}

int main(int argc, char **argv)
{
    victim_begin(argc, argv, "--memory", 120);
    unsigned char *data = map_pages(PAGES);
    int id = shmget(IPC_PRIVATE, SEGMENT_PAGES * PAGE, 0600);
    MUST(id >= 0);
    void *hold = shmat(id, NULL, 0);
    MUST(hold != (void *)-1);
    MUST(shmctl(id, IPC_RMID, NULL) == 0); // goes away with its last user, so a failure leaves nothing behind
    ballast_make(option_number("--memory", 192));
    phase("rounds");
    for (uint32_t version = 1; version <= 3; version++)
        one_round(data, id, version);
    return succeed("attached segments replace evicted pages, and private mappings replace segments");
}
