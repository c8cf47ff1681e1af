// reserve_terabytes - 2 TiB reserved with MAP_NORESERVE and touched sparsely, as Go, Java and sanitizers do.
//
// A pager that keeps a word per page, or registers and scans the whole reservation, dies here. Untouched pages must
// read zeros, touched ones must hold, and a fork must not take minutes.
//
//   reserve_terabytes [--memory MIB] [--gib GIB]      memory is the sum of the touched pages
#include "page_content.h"

#define REGION 16

static unsigned char *reservation;
static size_t all_pages, touched;

// Half of them single pages far apart, half of them in runs.
static size_t nth_touched(size_t n)
{
    uint64_t place = mix64(n % 2 ? n / 64 : n);
    return (size_t)((place % (all_pages - 64)) + (n % 2 ? n % 64 : 0));
}

// Two of the numbers may give the same place: the content depends on the place alone.
static struct page_identity identity_at(size_t page)
{
    return usual_identity(REGION + (uint32_t)(page >> 32), (uint32_t)page, 1);
}

static void require_all(const char *when)
{
    for (size_t n = 0; n < touched; n++) {
        struct page_identity is = identity_at(nth_touched(n));
        page_require(reservation + nth_touched(n) * PAGE, &is, when);
    }
}

int main(int argc, char **argv)
{
    victim_begin(argc, argv, "--memory --gib", 180);
    size_t bytes = (size_t)option_number("--gib", 2048) << 30;
    all_pages = bytes / PAGE;
    touched = (size_t)option_number("--memory", 128) * (MIB / PAGE);
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    reservation = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
    MUST(reservation != MAP_FAILED);
    phase("touching");
    for (size_t n = 0; n < touched; n++) {
        struct page_identity is = identity_at(nth_touched(n));
        page_render(reservation + nth_touched(n) * PAGE, &is);
    }
    phase("reading back");
    require_all("touched page of a sparse reservation");
    pid_t child = start_child();
    if (child == 0) {
        require_all("touched page, in a child");
        _exit(0);
    }
    wait_for_exit(child, 0, "child with a sparse reservation");
    phase("giving back");
    MUST(madvise(reservation, bytes / 2, MADV_DONTNEED) == 0);
    for (size_t n = 0; n < touched; n += 7)
        if (nth_touched(n) < all_pages / 2)
            page_require_zero(reservation + nth_touched(n) * PAGE, REGION, (uint32_t)n, "given back");
    MUST(munmap(reservation, bytes) == 0);
    return succeed("%zu pages of a reservation of %zu GiB", touched, bytes >> 30);
}
