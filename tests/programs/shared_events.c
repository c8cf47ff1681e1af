// shared_events - which messages a userfaultfd gives about a shared anonymous mapping, as whoever pages shared memory has
// to understand them. It knows nothing of uswap.
//
//   mremap with an old size of 0   one message "remap" of length 0, and no "unmap": a second mapping, which is registered
//   MADV_DONTNEED, MADV_REMOVE     the same message "remove": the first leaves the object's pages, the second ends them
//   mremap that grows in place     no message; what was added is registered
//   munmap                         "unmap"
//   a hole made by descriptor      no message, and each mapping has a missing fault
#include "victim.h"
#include <linux/falloc.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <sys/ioctl.h>

#define PAGES ((size_t)16)
#define MOST 64

static struct uffd_msg seen[MOST]; // all but faults
static volatile int seen_count, faults;
static volatile uint64_t last_fault;
static int fd;

static void *serve(void *unused)
{
    struct uffd_msg message;
    static unsigned char filled[PAGE] __attribute__((aligned(4096)));
    memset(filled, 0x5a, sizeof filled);
    for (;;) {
        struct pollfd polled = { fd, POLLIN, 0 };
        if (poll(&polled, 1, 1000) <= 0 || read(fd, &message, sizeof message) != (ssize_t)sizeof message)
            continue;
        if (message.event != UFFD_EVENT_PAGEFAULT) {
            MUST(seen_count < MOST);
            seen[seen_count] = message;
            seen_count++;
            continue;
        }
        last_fault = message.arg.pagefault.address & ~(PAGE - 1);
        faults++;
        struct uffdio_copy copy = { .dst = last_fault, .src = (uintptr_t)filled, .len = PAGE };
        while (ioctl(fd, UFFDIO_COPY, &copy) != 0)
            MUST(errno == EAGAIN);
    }
    return unused;
}

// The one message since the last call, which must be of that kind.
static struct uffd_msg only(int event, const char *after)
{
    static int taken;
    for (int i = 0; i < 1000 && seen_count == taken; i++)
        sleep_micros(100);
    sleep_micros(1000);
    if (seen_count != taken + 1)
        fail("%s: %d messages, not one", after, seen_count - taken);
    struct uffd_msg message = seen[taken++];
    if (message.event != event)
        fail("%s: message %#x, not %#x", after, message.event, event);
    return message;
}

static void require_fault(unsigned char *page, const char *when)
{
    int before = faults;
    if (*(volatile unsigned char *)page != 0x5a)
        fail("%s: byte %#x, not what the fault was answered with", when, *page);
    if (faults != before + 1 || last_fault != (uintptr_t)page)
        fail("%s: %d faults, the last at %#lx, not one at %p", when, faults - before, last_fault, (void *)page);
}

static void require_byte(const unsigned char *page, unsigned char expected, const char *when)
{
    int before = faults;
    if (*(const volatile unsigned char *)page != expected || faults != before)
        fail("%s: byte %#x in %d faults, not %#x in none", when, *page, faults - before, expected);
}

static int open_object(unsigned char *base)
{
    char path[100];
    snprintf(path, sizeof path, "/proc/self/map_files/%lx-%lx", (unsigned long)(uintptr_t)base,
             (unsigned long)((uintptr_t)base + PAGES * PAGE));
    return open(path, O_RDWR | O_CLOEXEC);
}

static void make_hole(int object, size_t page)
{
    int mode = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
    MUST(fallocate(object, mode, (off_t)(page * PAGE), (off_t)PAGE) == 0);
}

int main(int argc, char **argv)
{
    victim_begin(argc, argv, "", 60);
    uint64_t features = UFFD_FEATURE_EVENT_FORK | UFFD_FEATURE_EVENT_REMAP | UFFD_FEATURE_EVENT_REMOVE |
                        UFFD_FEATURE_EVENT_UNMAP | UFFD_FEATURE_MISSING_SHMEM;
    struct uffdio_api api = { .api = UFFD_API, .features = features };
    fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 || ioctl(fd, UFFDIO_API, &api) != 0)
        return succeed("userfaultfd is not available here: %s", strerror(errno));
    unsigned char *base = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    MUST(base != MAP_FAILED);
    memset(base, 1, PAGES * PAGE);
    int object = open_object(base);
    if (object < 0)
        return succeed("shared memory cannot be paged here: %s", strerror(errno));
    struct uffdio_register range = { .range = { (uintptr_t)base, PAGES * PAGE }, .mode = UFFDIO_REGISTER_MODE_MISSING };
    MUST(ioctl(fd, UFFDIO_REGISTER, &range) == 0);
    pthread_t server;
    MUST((errno = pthread_create(&server, NULL, serve, NULL)) == 0);

    phase("a second mapping");
    unsigned char *second = mremap(base, 0, PAGES * PAGE, MREMAP_MAYMOVE);
    MUST(second != MAP_FAILED);
    struct uffd_msg remap = only(UFFD_EVENT_REMAP, "mremap with an old size of 0");
    if (remap.arg.remap.from != (uintptr_t)base || remap.arg.remap.to != (uintptr_t)second || remap.arg.remap.len != 0)
        fail("remap from %#llx to %#llx, length %llu", remap.arg.remap.from, remap.arg.remap.to, remap.arg.remap.len);
    require_byte(second, 1, "the second mapping");

    phase("a hole");
    make_hole(object, 2);
    require_fault(second + 2 * PAGE, "a hole, through the second mapping");
    require_byte(base + 2 * PAGE, 0x5a, "the same page, through the first mapping");

    phase("MADV_DONTNEED and MADV_REMOVE");
    MUST(madvise(base + 4 * PAGE, PAGE, MADV_DONTNEED) == 0);
    only(UFFD_EVENT_REMOVE, "MADV_DONTNEED");
    require_byte(base + 4 * PAGE, 1, "after MADV_DONTNEED");
    MUST(madvise(base + 4 * PAGE, PAGE, MADV_REMOVE) == 0);
    only(UFFD_EVENT_REMOVE, "MADV_REMOVE");
    require_fault(base + 4 * PAGE, "after MADV_REMOVE");

    phase("unmapping");
    MUST(munmap(second, PAGE) == 0);
    struct uffd_msg unmap = only(UFFD_EVENT_UNMAP, "munmap");
    if (unmap.arg.remove.start != (uintptr_t)second || unmap.arg.remove.end != (uintptr_t)second + PAGE)
        fail("unmap of %#llx to %#llx", unmap.arg.remove.start, unmap.arg.remove.end);
    require_byte(base, 1, "the first mapping of a page that the second one let go");
    return succeed("the messages are as expected");
}
