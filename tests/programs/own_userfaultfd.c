// own_userfaultfd - the program uses a userfaultfd itself, on memory of its own (as postcopy migration and runtimes do).
//
// A range can be registered with one userfaultfd only (EBUSY): if the pager took it first, the program's own
// registration fails. A candidate for a documented limit; "ok: ... not available" where the call is refused anyway.
//
//   own_userfaultfd [--memory MIB]
#include "ballast.h"
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>

#define PAGES ((size_t)1024)
#define REGION 26

static unsigned char *data;
static int fault_fd;

static void *serve_faults(void *unused)
{
    uint64_t content[PAGE / 8];
    struct uffd_msg message;
    while (read(fault_fd, &message, sizeof message) == (ssize_t)sizeof message) {
        size_t page = (message.arg.pagefault.address - (uintptr_t)data) / PAGE;
        struct page_identity is = usual_identity(REGION, (uint32_t)page, 1);
        page_render(content, &is);
        struct uffdio_copy copy = { .dst = (uintptr_t)(data + page * PAGE), .src = (uintptr_t)content, .len = PAGE };
        if (ioctl(fault_fd, UFFDIO_COPY, &copy) != 0 && errno != EEXIST)
            fail("UFFDIO_COPY of the program's own page %zu at %p: %s", page, (void *)(data + page * PAGE),
                 strerror(errno));
    }
    return unused;
}

static bool open_own(void)
{
    fault_fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC);
    struct uffdio_api api = { .api = UFFD_API };
    return fault_fd >= 0 && ioctl(fault_fd, UFFDIO_API, &api) == 0;
}

int main(int argc, char **argv)
{
    victim_begin(argc, argv, "--memory", 120);
    pthread_t server;
    if (!open_own())
        return succeed("userfaultfd is not available here: %s", strerror(errno));
    data = map_pages(PAGES);
    ballast_make(option_number("--memory", 192));
    ballast_walk();
    struct uffdio_register range = { .range = { (uintptr_t)data, PAGES * PAGE }, .mode = UFFDIO_REGISTER_MODE_MISSING };
    if (ioctl(fault_fd, UFFDIO_REGISTER, &range) != 0)
        fail("registering %p with a userfaultfd of the program's own: %s", (void *)data, strerror(errno));
    MUST((errno = pthread_create(&server, NULL, serve_faults, NULL)) == 0);
    phase("faults served by the program itself");
    require_pages(data, 0, PAGES, REGION, 1, "served by the program's own userfaultfd");
    ballast_walk();
    require_pages(data, 0, PAGES, REGION, 1, "second look at what it served");
    return succeed("%zu pages served by the program's own userfaultfd", PAGES);
}
