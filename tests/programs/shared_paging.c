// shared_paging - a pager for one shared anonymous mapping, in one file: what the kernel promises to those who page
// shared memory in user space. It knows nothing of uswap.
//
// A page goes out so: it is held (splice of the object into a pipe) · taken out of the object (a hole), which unmaps it
// from all processes · read from the pipe, where nobody can write to it any more. So whoever writes does so before the
// page is read, or has a fault. A touch is a missing fault of the process that touches; the page is put into the object
// once, and whoever waits is woken. Processes add to counters in the pages, drop their own mapping of pages, and fork,
// all at the same time; no increment may be lost. `--without held` reads the page before it is taken out, and loses some.
//
//   shared_paging [--rounds N] [--without held]
#include "victim.h"
#include <linux/falloc.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <sys/ioctl.h>

#define PAGES 8
#define WORKERS 3
#define MOST_SPACES 4096
#define WORDS (PAGE / sizeof(uint64_t))

static uint64_t (*pages)[WORDS];   // the memory that is paged
static uint64_t (*added)[PAGES];   // what each worker has added, in memory that is not
static volatile long *rounds_left; // for all processes
static const char *left_out;

static int spaces[MOST_SPACES]; // userfaultfds; a space that has gone is -1
static int space_count;
static char out[PAGES][PAGE];
static bool is_out[PAGES];
static pthread_mutex_t table = PTHREAD_MUTEX_INITIALIZER; // of what is out
static int object, held[2], own;
static volatile bool ended;

static int open_userfaultfd(void)
{
    uint64_t features = UFFD_FEATURE_EVENT_FORK | UFFD_FEATURE_MISSING_SHMEM;
    int device = open("/dev/userfaultfd", O_RDWR | O_CLOEXEC);
    int fd = device >= 0 ? ioctl(device, USERFAULTFD_IOC_NEW, O_CLOEXEC | O_NONBLOCK)
                         : (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
    struct uffdio_api api = { .api = UFFD_API, .features = features };
    return fd >= 0 && ioctl(fd, UFFDIO_API, &api) == 0 ? fd : -1;
}

static int open_object(void)
{
    char path[100];
    snprintf(path, sizeof path, "/proc/self/map_files/%lx-%lx", (unsigned long)(uintptr_t)pages,
             (unsigned long)(uintptr_t)pages + PAGES * PAGE);
    return open(path, O_RDWR | O_CLOEXEC);
}

static void evict(size_t page)
{
    pthread_mutex_lock(&table);
    if (!is_out[page]) {
        off_t offset = (off_t)(page * PAGE);
        bool reads_first = strcmp(left_out, "held") == 0;
        MUST(splice(object, &offset, held[1], NULL, PAGE, 0) == (ssize_t)PAGE);
        if (reads_first) {
            MUST(read(held[0], out[page], PAGE) == (ssize_t)PAGE);
            sleep_micros(200);
        }
        MUST(fallocate(object, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)(page * PAGE), (off_t)PAGE) == 0);
        if (!reads_first)
            MUST(read(held[0], out[page], PAGE) == (ssize_t)PAGE);
        is_out[page] = true;
    }
    pthread_mutex_unlock(&table);
}

// The page is put into this process's own mapping, and so into the object.
static void install(int space, size_t page)
{
    struct uffdio_range range = { (uintptr_t)pages[page], PAGE };
    struct uffdio_copy copy = { .dst = range.start, .src = (uintptr_t)out[page], .len = PAGE };
    pthread_mutex_lock(&table);
    if (is_out[page]) {
        while (ioctl(own, UFFDIO_COPY, &copy) != 0)
            MUST(errno == EAGAIN);
        is_out[page] = false;
    }
    pthread_mutex_unlock(&table);
    ioctl(space, UFFDIO_WAKE, &range);
}

static void serve(int space)
{
    struct uffd_msg message;
    while (read(space, &message, sizeof message) == (ssize_t)sizeof message) {
        if (message.event == UFFD_EVENT_FORK) {
            MUST(space_count < MOST_SPACES);
            spaces[space_count] = (int)message.arg.fork.ufd;
            space_count++;
            continue;
        }
        MUST(message.event == UFFD_EVENT_PAGEFAULT);
        install(space, (message.arg.pagefault.address - (uintptr_t)pages) / PAGE);
    }
}

static void *serve_all(void *unused)
{
    struct pollfd polled[MOST_SPACES];
    while (!ended) {
        int count = space_count;
        for (int i = 0; i < count; i++)
            polled[i] = (struct pollfd){ spaces[i], POLLIN, 0 };
        if (poll(polled, (nfds_t)count, 10) > 0)
            for (int i = 0; i < count; i++)
                if (polled[i].revents & POLLIN)
                    serve(spaces[i]);
    }
    return unused;
}

static void *evict_all(void *unused)
{
    for (size_t turn = 0; !ended; turn++) {
        evict(turn * 5 % PAGES);
        sleep_micros(100);
    }
    return unused;
}

// ---- the processes that use the memory -------------------------------------------------------------------------------

static void add(int worker, uint64_t *random)
{
    size_t page = next_random(random) % PAGES;
    __atomic_add_fetch(&pages[page][next_random(random) % WORDS], 1, __ATOMIC_SEQ_CST);
    __atomic_add_fetch(&added[worker][page], 1, __ATOMIC_SEQ_CST);
}

static void work(int worker)
{
    uint64_t random = (uint64_t)worker + 7;
    while (__atomic_sub_fetch(rounds_left, 1, __ATOMIC_SEQ_CST) > 0) {
        add(worker, &random);
        if (next_random(&random) % 8 == 0)
            MUST(madvise(pages[next_random(&random) % PAGES], PAGE, MADV_DONTNEED) == 0);
        if (next_random(&random) % 64 != 0)
            continue;
        pid_t child = fork();
        MUST(child >= 0);
        for (int i = 0; i < 20; i++)
            add(worker, &random);
        if (child == 0)
            _exit(0);
        MUST(waitpid(child, NULL, 0) == child);
    }
    _exit(0);
}

static uint64_t sum(size_t page)
{
    uint64_t total = 0;
    for (size_t i = 0; i < WORDS; i++)
        total += pages[page][i];
    return total;
}

static void *look(void *unused)
{
    for (size_t page = 0; page < PAGES; page++) {
        uint64_t expected = 0, found = sum(page);
        for (int worker = 0; worker < WORKERS; worker++)
            expected += added[worker][page];
        if (found != expected)
            fail("page %zu: %lu increments were made, %lu are there", page, expected, found);
    }
    return unused;
}

static void *map_memory(size_t bytes)
{
    void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    MUST(base != MAP_FAILED);
    return base;
}

int main(int argc, char **argv)
{
    victim_begin(argc, argv, "--rounds --without", 120);
    left_out = option_text("--without", "");
    pages = map_memory(PAGES * PAGE);
    added = map_memory(WORKERS * sizeof *added);
    rounds_left = map_memory(PAGE);
    *rounds_left = option_number("--rounds", 20000);
    memset(pages, 0, PAGES * PAGE);
    if ((own = open_userfaultfd()) < 0 || (object = open_object()) < 0)
        return succeed("shared memory cannot be paged here: %s", strerror(errno));
    MUST(pipe(held) == 0);
    spaces[0] = own;
    space_count = 1;
    struct uffdio_register range = { .range = { (uintptr_t)pages, PAGES * PAGE },
                                     .mode = UFFDIO_REGISTER_MODE_MISSING };
    MUST(ioctl(own, UFFDIO_REGISTER, &range) == 0);
    pthread_t server, evictor, looker;
    MUST((errno = pthread_create(&server, NULL, serve_all, NULL)) == 0);
    phase("processes add to pages that go out");
    pid_t children[WORKERS];
    for (int worker = 0; worker < WORKERS; worker++) {
        children[worker] = fork();
        MUST(children[worker] >= 0);
        if (children[worker] == 0)
            work(worker);
    }
    MUST((errno = pthread_create(&evictor, NULL, evict_all, NULL)) == 0);
    for (int worker = 0; worker < WORKERS; worker++)
        MUST(waitpid(children[worker], NULL, 0) == children[worker]);
    phase("sums");
    MUST((errno = pthread_create(&looker, NULL, look, NULL)) == 0);
    MUST((errno = pthread_join(looker, NULL)) == 0);
    ended = true;
    return succeed("%d spaces, no increment lost", space_count);
}
