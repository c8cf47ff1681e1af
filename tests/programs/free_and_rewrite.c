// free_and_rewrite - memory given back with MADV_FREE and written again at once, as allocators do it (jemalloc, Go, musl).
//
// hazards.md: MADV_FREE sends REMOVE, but the pages stay and are written again without a fault. A pager that takes them
// for gone never evicts them: its program thrashes in what is left of its budget. The bytes are right in any case; how many
// of the pages are in memory after other memory was used tells, and is printed.
//
//   free_and_rewrite [--memory MIB] [--pages N] [--piece N] [--fork 1]
//
// PIECE pages at a time are written, freed, and written again. With --fork a child does it once more.
#include "ballast.h"

#define REGION 5
#define MOST 65536

static unsigned char *base;
static size_t pages, piece;

static void free_and_write(uint32_t version)
{
    phase("freeing and writing");
    for (size_t at = 0; at < pages; at += piece) {
        size_t count = pages - at < piece ? pages - at : piece;
        fill_pages(base, at, count, REGION, version - 1);
        MUST(madvise(base + at * PAGE, count * PAGE, MADV_FREE) == 0);
        fill_pages(base, at, count, REGION, version);
    }
}

static size_t pages_in_memory(void)
{
    static uint64_t words[MOST];
    int file = open("/proc/self/pagemap", O_RDONLY);
    MUST(file >= 0);
    MUST(pread(file, words, pages * 8, (off_t)((uintptr_t)base / PAGE * 8)) == (ssize_t)(pages * 8));
    MUST(close(file) == 0);
    size_t present = 0;
    for (size_t i = 0; i < pages; i++)
        present += words[i] >> 63;
    return present;
}

// Frees and writes, uses other memory, and looks.
static void one_round(const char *who, uint32_t version)
{
    free_and_write(version);
    phase("using other memory");
    ballast_walk();
    ballast_walk();
    size_t present = pages_in_memory();
    phase("reading back");
    require_pages(base, 0, pages, REGION, version, "written after MADV_FREE");
    say("%s: %zu of %zu pages stayed in memory", who, present, pages);
}

int main(int argc, char **argv)
{
    victim_begin(argc, argv, "--memory --pages --piece --fork", 120);
    pages = (size_t)option_number("--pages", 10240);
    piece = (size_t)option_number("--piece", 256);
    MUST(pages <= MOST && piece > 0);
    base = map_pages(pages);
    ballast_make(option_number("--memory", 96));
    one_round("parent", 3);
    if (option_number("--fork", 0)) {
        pid_t child = start_child();
        if (child == 0) {
            one_round("child", 5);
            _exit(0);
        }
        wait_for_exit(child, 0, "child");
        phase("reading back beside a child");
        require_pages(base, 0, pages, REGION, 3, "written by the parent");
    }
    return succeed("what was written after MADV_FREE holds");
}
