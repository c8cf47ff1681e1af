// shared_torture - random use of one shared anonymous mapping by several processes and their children, each page checked.
//
// Three kinds of pages take turns in the mapping. *Content* pages are written and checked under a lock, with versions;
// *counter* pages are added to by all processes without a lock; *mutex* pages hold a mutex that all processes use, and
// what it guards. The notes about what must be in a page lie in a mapping of a file. Beside that each process drops its
// page tables (MADV_DONTNEED), takes pages out of the object (MADV_REMOVE), makes second mappings (mremap of size 0),
// moves its mapping in pieces, changes its protection, locks it, passes pages to system calls, forks, and executes.
//
//   shared_torture [--memory MIB] [--processes N] [--ops N] [--seed N]
#include "victim.h"
#include "page_content.h"
#include <pthread.h>
#include <stdatomic.h>

#define CHUNK ((size_t)64)
#define REGION 31
#define MOST_CHUNKS 4096
#define OPS_OF_A_CHILD 30

enum { CONTENT, COUNTERS, MUTEX };

struct note {
    atomic_int locked;
    uint32_t version;    // content: 0 is a page of zeros
    atomic_ullong added; // counters and mutex: what all processes have added
};

struct guarded {
    pthread_mutex_t mutex;
    uint64_t count;
    uint64_t twice; // always 2 * count, but for while the mutex is held
};

static struct note *notes;
static unsigned char *chunk_at[MOST_CHUNKS]; // where this process has the chunk
static size_t pages;
static uint64_t chance;
static int channel[2];

static int kind_of(size_t page)
{
    return page % 4 == 0 ? COUNTERS : page % 4 == 1 ? MUTEX : CONTENT;
}

static unsigned char *address_of(size_t page)
{
    return chunk_at[page / CHUNK] + page % CHUNK * PAGE;
}

static size_t any_page(int kind)
{
    size_t page;
    do
        page = random_below(&chance, pages);
    while (kind_of(page) != kind);
    return page;
}

static void lock_note(size_t page)
{
    while (atomic_exchange(&notes[page].locked, 1))
        sched_yield();
}

static void unlock_note(size_t page)
{
    atomic_store(&notes[page].locked, 0);
}

// ---- content ---------------------------------------------------------------------------------------------------------

static struct page_identity identity_of(size_t page)
{
    return usual_identity(REGION, (uint32_t)page, notes[page].version);
}

static void check_content(const unsigned char *at, size_t page, const char *when)
{
    struct page_identity is = identity_of(page);
    if (notes[page].version == 0)
        page_require_zero(at, REGION, (uint32_t)page, when);
    else
        page_require(at, &is, when);
}

static void write_content(size_t page)
{
    lock_note(page);
    check_content(address_of(page), page, "before it is written");
    notes[page].version++;
    struct page_identity is = identity_of(page);
    page_render(address_of(page), &is);
    unlock_note(page);
}

static void look_at_content(size_t page)
{
    lock_note(page);
    check_content(address_of(page), page, "read");
    unlock_note(page);
}

static void take_out(size_t page)
{
    lock_note(page);
    MUST(madvise(address_of(page), PAGE, MADV_REMOVE) == 0);
    notes[page].version = 0;
    if (random_below(&chance, 2))
        check_content(address_of(page), page, "after MADV_REMOVE");
    unlock_note(page);
}

// The page goes through a pipe: the kernel reads it, and writes it into another one.
static void pass_through_calls(size_t from, size_t to)
{
    static unsigned char copy[PAGE] __attribute__((aligned(4096)));
    lock_note(from);
    MUST(write(channel[1], address_of(from), PAGE) == (ssize_t)PAGE);
    MUST(read(channel[0], copy, PAGE) == (ssize_t)PAGE);
    check_content(copy, from, "written by a system call");
    unlock_note(from);
    lock_note(to);
    notes[to].version++;
    struct page_identity is = identity_of(to);
    page_render(copy, &is);
    MUST(write(channel[1], copy, PAGE) == (ssize_t)PAGE);
    MUST(read(channel[0], address_of(to), PAGE) == (ssize_t)PAGE);
    check_content(address_of(to), to, "read by a system call");
    unlock_note(to);
}

// ---- counters and mutexes --------------------------------------------------------------------------------------------

static void add_to_counters(size_t page)
{
    atomic_ullong *words = (atomic_ullong *)address_of(page);
    for (int i = 0; i < 8; i++)
        atomic_fetch_add(&words[random_below(&chance, PAGE / 8)], 1);
    atomic_fetch_add(&notes[page].added, 8);
}

static void add_under_mutex(size_t page)
{
    struct guarded *guarded = (struct guarded *)address_of(page);
    MUST((errno = pthread_mutex_lock(&guarded->mutex)) == 0);
    if (guarded->twice != 2 * guarded->count)
        fail("mutex page %zu: %lu is not twice %lu", page, guarded->twice, guarded->count);
    guarded->count++;
    if (random_below(&chance, 4) == 0)
        sched_yield();
    guarded->twice = 2 * guarded->count;
    MUST((errno = pthread_mutex_unlock(&guarded->mutex)) == 0);
    atomic_fetch_add(&notes[page].added, 1);
}

static uint64_t counted(size_t page)
{
    if (kind_of(page) == MUTEX)
        return ((struct guarded *)address_of(page))->count;
    uint64_t sum = 0;
    for (size_t i = 0; i < PAGE / 8; i++)
        sum += ((uint64_t *)address_of(page))[i];
    return sum;
}

// ---- mappings --------------------------------------------------------------------------------------------------------

static void make_second_mapping(size_t chunk)
{
    unsigned char *second = mremap(chunk_at[chunk], 0, CHUNK * PAGE, MREMAP_MAYMOVE);
    MUST(second != MAP_FAILED);
    size_t place = random_below(&chance, CHUNK), page = chunk * CHUNK + place;
    if (kind_of(page) == CONTENT) {
        lock_note(page);
        check_content(second + place * PAGE, page, "through a second mapping");
        notes[page].version++;
        struct page_identity is = identity_of(page);
        page_render(second + place * PAGE, &is);
        unlock_note(page);
    }
    if (random_below(&chance, 2)) {
        MUST(munmap(chunk_at[chunk], CHUNK * PAGE) == 0);
        chunk_at[chunk] = second;
    } else {
        MUST(munmap(second, CHUNK * PAGE) == 0);
    }
}

static void move_chunk(size_t chunk)
{
    unsigned char *place = mmap(NULL, CHUNK * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    MUST(place != MAP_FAILED);
    void *moved = mremap(chunk_at[chunk], CHUNK * PAGE, CHUNK * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, place);
    MUST(moved == place);
    chunk_at[chunk] = place;
}

static void protect_and_permit(size_t chunk)
{
    MUST(mprotect(chunk_at[chunk], CHUNK * PAGE, random_below(&chance, 2) ? PROT_NONE : PROT_READ) == 0);
    MUST(mprotect(chunk_at[chunk], CHUNK * PAGE, PROT_READ | PROT_WRITE) == 0);
}

static void lock_and_unlock(size_t page)
{
    if (mlock(address_of(page), PAGE) == 0)
        MUST(munlock(address_of(page), PAGE) == 0);
    else
        MUST(errno == EPERM || errno == ENOMEM || errno == EAGAIN);
}

// ---- processes -------------------------------------------------------------------------------------------------------

static void work(long ops, int depth);

static void fork_and_work(int depth)
{
    bool executes = random_below(&chance, 4) == 0;
    pid_t child = start_child();
    if (child == 0) {
        chance = mix64(chance ^ (uint64_t)getpid());
        close(channel[0]);
        close(channel[1]);
        MUST(pipe(channel) == 0);
        if (executes) {
            execl("/bin/true", "true", (char *)NULL);
            fail("exec of true: %s", strerror(errno));
        }
        work(OPS_OF_A_CHILD, depth + 1);
        _exit(0);
    }
    work(random_below(&chance, OPS_OF_A_CHILD), depth + 1);
    wait_for_exit(child, 0, "child");
}

static void step(int depth)
{
    size_t chunk = random_below(&chance, pages / CHUNK);
    switch (random_below(&chance, 40)) {
    case 0:
        MUST(madvise(chunk_at[chunk], CHUNK * PAGE, MADV_DONTNEED) == 0);
        break;
    case 1:
        take_out(any_page(CONTENT));
        break;
    case 2:
        make_second_mapping(chunk);
        break;
    case 3:
        move_chunk(chunk);
        break;
    case 4:
        protect_and_permit(chunk);
        break;
    case 5:
        lock_and_unlock(any_page(CONTENT));
        break;
    case 6:
    case 7:
        pass_through_calls(any_page(CONTENT), any_page(CONTENT));
        break;
    case 8:
        if (depth < 3)
            fork_and_work(depth);
        break;
    default:
        if (random_below(&chance, 2))
            add_to_counters(any_page(COUNTERS));
        else if (random_below(&chance, 3) == 0)
            add_under_mutex(any_page(MUTEX));
        else if (random_below(&chance, 2))
            write_content(any_page(CONTENT));
        else
            look_at_content(any_page(CONTENT));
    }
}

static void work(long ops, int depth)
{
    for (long i = 0; i < ops; i++)
        step(depth);
}

// ---- begin and end ---------------------------------------------------------------------------------------------------

static void make_memory(void)
{
    const char *folder = getenv("TMPDIR");
    int file = open(folder ? folder : "/var/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    MUST(file >= 0 && ftruncate(file, (off_t)(pages * sizeof *notes)) == 0);
    notes = mmap(NULL, pages * sizeof *notes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    MUST(notes != MAP_FAILED);
    unsigned char *base = map_shared(pages * PAGE);
    for (size_t chunk = 0; chunk < pages / CHUNK; chunk++)
        chunk_at[chunk] = base + chunk * CHUNK * PAGE;
    pthread_mutexattr_t shared;
    MUST(pthread_mutexattr_init(&shared) == 0 && pthread_mutexattr_setpshared(&shared, PTHREAD_PROCESS_SHARED) == 0);
    for (size_t page = 0; page < pages; page++)
        if (kind_of(page) == MUTEX)
            MUST((errno = pthread_mutex_init(&((struct guarded *)address_of(page))->mutex, &shared)) == 0);
        else if (kind_of(page) == CONTENT)
            write_content(page);
}

static void check_all(void)
{
    for (size_t page = 0; page < pages; page++)
        if (kind_of(page) == CONTENT)
            check_content(address_of(page), page, "at the end");
        else if (counted(page) != notes[page].added)
            fail("page %zu (%s) at %p: %llu were added, %lu are there", page,
                 kind_of(page) == MUTEX ? "mutex" : "counters", (void *)address_of(page), notes[page].added,
                 counted(page));
}

int main(int argc, char **argv)
{
    victim_begin(argc, argv, "--memory --processes --ops --seed", 120);
    pages = (size_t)option_number("--memory", 64) * MIB / PAGE;
    long processes = option_number("--processes", 4), ops = option_number("--ops", 20000);
    if (pages == 0 || pages / CHUNK > MOST_CHUNKS || processes < 1 || processes > 64) {
        fprintf(stderr, "%s: 1 to %zu MiB, 1 to 64 processes\n", victim_name, MOST_CHUNKS * CHUNK * PAGE / MIB);
        return 2;
    }
    chance = (uint64_t)option_number("--seed", 1);
    phase("the memory is filled");
    make_memory();
    phase("random use");
    for (long i = 0; i < processes; i++) {
        pid_t child = start_child();
        if (child != 0)
            continue;
        chance = mix64(chance + (uint64_t)i);
        MUST(pipe(channel) == 0);
        work(ops, 0);
        _exit(0);
    }
    for (long i = 0; i < processes; i++)
        wait_for_exit(-1, 0, "process");
    phase("all is looked at");
    check_all();
    return succeed("%zu pages shared by %ld processes are right", pages, processes);
}
