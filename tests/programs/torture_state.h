// torture_state.h - what torture knows about its memory: processes, regions, one note per page.
//
// The notes (the shadow) live in MAP_SHARED memory, outside the memory under test, in one slot per process. A process
// that forks fills the slot of its child while it holds all its region locks, so shadow and memory agree at the fork.
// Lock order: a thread that holds a region lock takes a second one by trylock only; fork takes all, in order, holding none.
#ifndef TORTURE_STATE_H
#define TORTURE_STATE_H
#include "page_content.h"
#include <pthread.h>
#include <stdatomic.h>

#define MAX_REGIONS 64
#define MAX_REGION_PAGES (64 * MIB / PAGE)
#define MAX_SLOTS 16
#define MAX_OPERATIONS 64
#define MAX_LOCKED_PAGES 64
#define HISTORY 16 // operations that a region remembers

enum page_mark {
    MARK_HOLE = 1,          // unmapped
    MARK_GUARD = 2,         // MADV_GUARD_INSTALL
    MARK_READ_ONLY = 4,     // mprotect
    MARK_NO_ACCESS = 8,     // mprotect
    MARK_WIPED = 16,        // MADV_WIPEONFORK
    MARK_NOT_INHERITED = 32, // MADV_DONTFORK
    MARK_LOCKED = 64,       // mlock
    MARK_FREED = 128,       // MADV_FREE: holds its old content or zeros until it is written
};
#define MARKS_UNREADABLE (MARK_HOLE | MARK_GUARD | MARK_NO_ACCESS)
#define MARKS_UNWRITABLE (MARKS_UNREADABLE | MARK_READ_ONLY)
#define MARKS_ANY (0xff & ~MARK_FREED)

struct page_note {
    uint32_t version;
    uint16_t writer; // the serial number of the process that wrote it: contents of parent and child never look alike
    uint8_t kind;
    uint8_t marks;
};

struct region {
    pthread_mutex_t lock;
    unsigned char *base;
    size_t pages;
    uint32_t id; // new for every new mapping: what an old mapping left at the same address can be told
    bool is_heap;
    uint8_t history[HISTORY]; // the operations that were done last, by number, in a ring
    uint32_t operations;
};

struct process {
    atomic_int taken;
    int depth; // how many forks below the first process
    uint16_t serial;
    size_t region_count;
    atomic_long pages_mapped;
    atomic_long pages_locked;
    struct region regions[MAX_REGIONS];
    struct page_note notes[MAX_REGIONS][MAX_REGION_PAGES];
};

struct shared_state {
    atomic_bool failed;
    atomic_bool ordered_to_end;
    atomic_uint next_region_id;
    atomic_uint next_serial;
    atomic_long done[MAX_OPERATIONS];
    atomic_long refused[MAX_OPERATIONS];
    atomic_long pages_verified;
    struct process slots[MAX_SLOTS];
};

static struct shared_state *shared;
static struct process *self; // the slot of this process
static uint64_t run_seed;
static long memory_limit_pages;
static double end_of_work;

static inline void tell_the_others(void)
{
    atomic_store(&shared->failed, true);
}

static inline bool time_is_up(void)
{
    return atomic_load(&shared->failed) || atomic_load(&shared->ordered_to_end) || seconds_now() > end_of_work;
}

// ---- notes ---------------------------------------------------------------------------------------------------------

static inline struct page_note *note_of(const struct region *region, size_t index)
{
    return &self->notes[region - self->regions][index];
}

static inline struct page_identity identity_of(const struct region *region, size_t index)
{
    const struct page_note *note = note_of(region, index);
    return (struct page_identity){ .seed = run_seed << 16 | note->writer,
                                   .region = region->id,
                                   .index = (uint32_t)index,
                                   .version = note->version,
                                   .kind = note->kind };
}

static inline void note_zero(struct region *region, size_t index)
{
    struct page_note *note = note_of(region, index);
    note->version++;
    note->kind = KIND_ZERO;
    note->marks &= (uint8_t)~MARK_FREED;
}

// The note of a content that is about to be written.
static inline struct page_identity note_next_version(struct region *region, size_t index, uint64_t chance)
{
    struct page_note *note = note_of(region, index);
    note->version++;
    note->writer = self->serial;
    note->kind = (uint8_t)usual_kind(chance);
    note->marks &= (uint8_t)~MARK_FREED;
    return identity_of(region, index);
}

static inline void mark_pages(struct region *region, size_t first, size_t count, int set, int clear)
{
    for (size_t i = first; i < first + count; i++) {
        struct page_note *note = note_of(region, i);
        note->marks = (uint8_t)((note->marks & ~clear) | set);
    }
}

static inline bool region_has_mark(const struct region *region, int marks)
{
    for (size_t i = 0; i < region->pages; i++)
        if (note_of(region, i)->marks & marks)
            return true;
    return false;
}

// A run of at most `most` pages that carry all of `wanted` and none of `forbidden`; starts at a random page.
struct run {
    size_t first;
    size_t count;
};

static inline bool page_fits(const struct region *region, size_t index, int wanted, int forbidden)
{
    int marks = note_of(region, index)->marks;
    return (marks & wanted) == wanted && !(marks & forbidden);
}

static inline struct run pick_run(const struct region *region, uint64_t *random, size_t most, int wanted, int forbidden)
{
    struct run run = { 0, 0 };
    if (region->pages == 0)
        return run;
    run.first = random_below(random, region->pages);
    for (size_t tried = 0; tried < 1024 && !page_fits(region, run.first, wanted, forbidden); tried++)
        run.first = (run.first + 1) % region->pages;
    size_t length = 1 + random_below(random, most);
    while (run.count < length && run.first + run.count < region->pages &&
           page_fits(region, run.first + run.count, wanted, forbidden))
        run.count++;
    return run;
}

static inline unsigned char *page_at(const struct region *region, size_t index)
{
    return region->base + index * PAGE;
}

// ---- checks --------------------------------------------------------------------------------------------------------

static inline bool freed_page_is_gone(struct region *region, size_t index)
{
    struct page_identity zero = { .kind = KIND_ZERO };
    if (!(note_of(region, index)->marks & MARK_FREED) || !page_matches(page_at(region, index), &zero))
        return false;
    note_zero(region, index);
    return true;
}

static inline void region_remembers(struct region *region, size_t operation)
{
    region->history[region->operations++ % HISTORY] = (uint8_t)operation;
}

static inline const char *operation_name(size_t number);

// What else is known of a region with a wrong page: how many are wrong, and what was done to it last.
static inline void region_tell(struct region *region, size_t index)
{
    size_t wrong = 0, last = index;
    for (size_t i = 0; i < region->pages; i++) {
        struct page_identity is = identity_of(region, i);
        if (note_of(region, i)->marks & (MARKS_UNREADABLE | MARK_FREED) || page_matches(page_at(region, i), &is))
            continue;
        wrong++, last = i;
    }
    fprintf(stderr, "torture[%d] region %u at %p: %zu of %zu pages are wrong, the last is %zu; marks %#x, depth %d; done:",
            (int)getpid(), region->id, (void *)region->base, wrong, region->pages, last, note_of(region, index)->marks,
            self->depth);
    uint32_t from = region->operations > HISTORY ? region->operations - HISTORY : 0;
    for (uint32_t i = from; i < region->operations; i++)
        fprintf(stderr, " %s", operation_name(region->history[i % HISTORY]));
    fprintf(stderr, "\n");
}

static inline void verify_page(struct region *region, size_t index, const char *when)
{
    if (note_of(region, index)->marks & MARKS_UNREADABLE)
        return;
    struct page_identity is = identity_of(region, index);
    if (page_matches(page_at(region, index), &is) || freed_page_is_gone(region, index))
        return;
    region_tell(region, index);
    page_fail(page_at(region, index), &is, when);
}

static inline void verify_pages(struct region *region, size_t first, size_t count, const char *when)
{
    for (size_t i = first; i < first + count; i++)
        verify_page(region, i, when);
    atomic_fetch_add(&shared->pages_verified, (long)count);
}

static inline void verify_everything(const char *when)
{
    for (size_t i = 0; i < self->region_count && !atomic_load(&shared->failed); i++) {
        struct region *region = &self->regions[i];
        pthread_mutex_lock(&region->lock);
        verify_pages(region, 0, region->pages, when);
        pthread_mutex_unlock(&region->lock);
    }
}

// ---- regions come and go -------------------------------------------------------------------------------------------

static inline void region_is_new(struct region *region, unsigned char *base, size_t pages)
{
    region->base = base;
    region->pages = pages;
    region->id = atomic_fetch_add(&shared->next_region_id, 1);
    memset(note_of(region, 0), 0, pages * sizeof(struct page_note));
    atomic_fetch_add(&self->pages_mapped, (long)pages);
}

// Maps at `wish` if nothing is there, else anywhere.
static inline unsigned char *map_at_or_anywhere(unsigned char *wish, size_t pages)
{
    int flags = MAP_PRIVATE | MAP_ANONYMOUS;
    void *base = MAP_FAILED;
    if (wish)
        base = mmap(wish, pages * PAGE, PROT_READ | PROT_WRITE, flags | MAP_FIXED_NOREPLACE, -1, 0);
    return base == MAP_FAILED ? map_pages(pages) : base;
}

static inline void region_create(struct region *region, unsigned char *wish, size_t pages)
{
    region_is_new(region, map_at_or_anywhere(wish, pages), pages);
}

// A region may have holes in which somebody else mapped something since: only what is ours is unmapped.
static inline void region_unmap(struct region *region)
{
    size_t start = 0;
    while (start < region->pages) {
        size_t end = start;
        bool hole = note_of(region, start)->marks & MARK_HOLE;
        while (end < region->pages && hole == !!(note_of(region, end)->marks & MARK_HOLE)) {
            if (note_of(region, end)->marks & MARK_LOCKED)
                atomic_fetch_sub(&self->pages_locked, 1);
            end++;
        }
        if (!hole)
            MUST(munmap(page_at(region, start), (end - start) * PAGE) == 0);
        start = end;
    }
    atomic_fetch_sub(&self->pages_mapped, (long)region->pages);
    region->pages = 0;
}

static inline size_t random_region_pages(uint64_t *random)
{
    size_t most = (size_t)memory_limit_pages / 6;
    if (most > MAX_REGION_PAGES)
        most = MAX_REGION_PAGES;
    if (random_below(random, 8) == 0)
        return 16 + random_below(random, 48); // below 256 KiB, which uswap leaves alone
    size_t pages = 128;
    while (pages < most && random_below(random, 5))
        pages += pages / 2 + random_below(random, pages);
    return pages < most ? pages : most;
}

// ---- slots ---------------------------------------------------------------------------------------------------------

static inline struct process *slot_take(long slots)
{
    for (long i = 0; i < slots && i < MAX_SLOTS; i++) {
        int free_slot = 0;
        if (atomic_compare_exchange_strong(&shared->slots[i].taken, &free_slot, 1))
            return &shared->slots[i];
    }
    return NULL;
}

static inline void slot_give_back(struct process *slot)
{
    atomic_store(&slot->taken, 0);
}

static inline void note_after_fork(struct page_note *note)
{
    if (note->marks & MARK_NOT_INHERITED)
        note->marks = MARK_HOLE;
    else if (note->marks & MARK_WIPED)
        *note = (struct page_note){ .version = note->version + 1, .kind = KIND_ZERO, .marks = note->marks };
    note->marks &= (uint8_t)~MARK_LOCKED;
}

// What a child of this process will find. The caller holds all region locks.
static inline void slot_describe_child(struct process *child)
{
    child->depth = self->depth + 1;
    child->serial = (uint16_t)atomic_fetch_add(&shared->next_serial, 1);
    child->region_count = self->region_count;
    atomic_store(&child->pages_mapped, atomic_load(&self->pages_mapped));
    atomic_store(&child->pages_locked, 0);
    for (size_t r = 0; r < self->region_count; r++) {
        child->regions[r] = self->regions[r];
        pthread_mutex_init(&child->regions[r].lock, NULL);
        memcpy(child->notes[r], self->notes[r], self->regions[r].pages * sizeof(struct page_note));
        for (size_t i = 0; i < self->regions[r].pages; i++)
            note_after_fork(&child->notes[r][i]);
    }
}

#endif
