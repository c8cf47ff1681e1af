// shared_memory - what is not private anonymous memory stays right beside it: shared, memfd and private file mappings.
//
// design.md, "Never managed": shared and file-backed memory. A pager that took such a page would break the sharing:
// here a child and its parent see each other's writes, and a private file mapping keeps what was written into it.
//
//   shared_memory [--memory MIB]
#include "ballast.h"

#define PAGES ((size_t)1024)

static void *map_file(int file, int sharing)
{
    void *base = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, sharing, file, 0);
    MUST(base != MAP_FAILED);
    return base;
}

static void require_seen(const void *base, uint32_t region, uint32_t version, const char *when)
{
    ballast_walk();
    require_pages(base, 0, PAGES, region, version, when);
}

int main(int argc, char **argv)
{
    victim_begin(argc, argv, "--memory", 120);
    int file = memfd_create("shared_memory", 0);
    MUST(file >= 0 && ftruncate(file, (off_t)(PAGES * PAGE)) == 0);
    void *anonymous = map_shared(PAGES * PAGE), *shared = map_file(file, MAP_SHARED);
    void *private = map_file(file, MAP_PRIVATE);
    ballast_make(option_number("--memory", 192));
    fill_pages(anonymous, 0, PAGES, 1, 1);
    fill_pages(shared, 0, PAGES, 2, 1);
    require_seen(private, 2, 1, "private mapping of a file that another mapping wrote");
    fill_pages(private, 0, PAGES, 3, 1);
    phase("a child writes into shared memory");
    pid_t child = start_child();
    if (child == 0) {
        require_seen(private, 3, 1, "private file mapping, in a child");
        fill_pages(anonymous, 0, PAGES, 1, 2);
        fill_pages(shared, 0, PAGES, 2, 2);
        fill_pages(private, 0, PAGES, 3, 2);
        require_seen(private, 3, 2, "private file mapping, written in a child");
        _exit(0);
    }
    ballast_walk();
    wait_for_exit(child, 0, "child that writes into shared memory");
    require_seen(anonymous, 1, 2, "shared memory that a child wrote");
    require_seen(shared, 2, 2, "shared file mapping that a child wrote");
    require_seen(private, 3, 1, "private file mapping, after a child wrote its own");
    return succeed("shared and file-backed memory is as it was");
}
