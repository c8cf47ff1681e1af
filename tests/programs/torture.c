// torture.c - the integrity torture program: everything a program may do to its memory, by threads and forked children,
// with every page checked against a shadow.
//
// Concerns all of "Silent corruption" in hazards.md at once, and most of "Hangs". When it fails, the small programs
// beside it tell which hazard it is.
//
//   torture [--seed N] [--seconds S | --ops N] [--memory MIB] [--threads T] [--processes P] [--ops-mask LIST]
//           [--mode counters] [--list] [--timeout SEC]
//
// SIGUSR1 to the first process ends its work as if the seconds were over: it verifies everything, and ends.
//
// --processes P: at most P children alive at a time (default 2). They share pages with their parent until one side
// writes, so the tree can need (P + 1) x memory in the end.
// --ops-mask: names with commas between. "write,verify" means only these; "-fork,-storm" means all but these.
//
// Deterministic per thread for a seed: the sequence of choices is; how the threads interleave is not.
#include "torture_channels.h"
#include "torture_counters.h"
#include "torture_state.h"
#include <sys/prctl.h>

struct worker {
    uint64_t random;
    struct channels channels;
    pthread_t thread;
    long operations_left; // -1: until the time is up
};

// An operation gets a random region with its lock held, or NULL if it needs none. False: it was refused, or it could
// not be done now.
typedef bool operation_body(struct worker *worker, struct region *region, int argument);

struct operation {
    const char *name;
    operation_body *body;
    int argument;
    int weight;
    bool without_region;
};

static long slot_limit;
static const char *own_path = "/proc/self/exe";

static struct region *second_region(struct worker *worker, const struct region *first)
{
    struct region *other = &self->regions[random_below(&worker->random, self->region_count)];
    if (other == first || pthread_mutex_trylock(&other->lock) != 0)
        return NULL;
    if (!other->is_heap)
        return other;
    pthread_mutex_unlock(&other->lock);
    return NULL;
}

// ---- reading and writing in user mode ------------------------------------------------------------------------------

static void write_pages(struct worker *worker, struct region *region, size_t first, size_t count)
{
    for (size_t i = first; i < first + count; i++) {
        struct page_identity is = note_next_version(region, i, next_random(&worker->random));
        page_render(page_at(region, i), &is);
    }
}

static bool do_write(struct worker *worker, struct region *region, int most)
{
    struct run run = pick_run(region, &worker->random, (size_t)most, 0, MARKS_UNWRITABLE);
    write_pages(worker, region, run.first, run.count);
    return run.count > 0;
}

static bool do_verify(struct worker *worker, struct region *region, int most)
{
    struct run run = pick_run(region, &worker->random, (size_t)most, 0, MARKS_UNREADABLE);
    verify_pages(region, run.first, run.count, "verify");
    return run.count > 0;
}

static bool do_verify_region(struct worker *worker, struct region *region, int unused)
{
    (void)worker, (void)unused;
    verify_pages(region, 0, region->pages, "verify a whole region");
    return true;
}

// Stores the bytes that are there already: the page is dirty and unchanged.
static bool do_rewrite_same(struct worker *worker, struct region *region, int most)
{
    struct run run = pick_run(region, &worker->random, (size_t)most, 0, MARKS_UNWRITABLE | MARK_FREED);
    for (size_t i = run.first; i < run.first + run.count; i++) {
        volatile unsigned char *byte = page_at(region, i) + random_below(&worker->random, PAGE);
        *byte = *byte;
        verify_page(region, i, "after storing a byte that was there");
    }
    return run.count > 0;
}

// One changed byte; the other 4095 must come back with it.
static bool do_poke(struct worker *worker, struct region *region, int unused)
{
    (void)unused;
    struct run run = pick_run(region, &worker->random, 1, 0, MARKS_UNWRITABLE | MARK_FREED);
    if (run.count == 0)
        return false;
    volatile unsigned char *byte = page_at(region, run.first) + random_below(&worker->random, PAGE);
    unsigned char before = *byte, poked = before ^ 0x5a;
    *byte = poked;
    sched_yield();
    if (*byte != poked)
        fail("poke: byte at %p (region %u, page %zu): expected %#x, found %#x", (void *)byte, region->id, run.first,
             poked, *byte);
    *byte = before;
    verify_page(region, run.first, "after a byte was changed and changed back");
    return true;
}

// ---- reading and writing by system calls ---------------------------------------------------------------------------

static bool do_carry_out(struct worker *worker, struct region *region, int channel)
{
    uint64_t copy[CHANNEL_PAGES][PAGE / 8];
    struct run run = pick_run(region, &worker->random, CHANNEL_PAGES, 0, MARKS_UNREADABLE | MARK_FREED);
    if (run.count == 0)
        return false;
    carry(&worker->channels, (enum channel_kind)channel, page_at(region, run.first), copy, run.count * PAGE);
    for (size_t i = 0; i < run.count; i++) {
        struct page_identity is = identity_of(region, run.first + i);
        if (!page_matches(copy[i], &is))
            fail("%s carried out page %p, and what arrived is wrong: %s", channel_names[channel],
                 (void *)page_at(region, run.first + i),
                 (page_require(copy[i], &is, channel_names[channel]), "then right"));
    }
    return true;
}

static bool do_carry_in(struct worker *worker, struct region *region, int channel)
{
    uint64_t contents[CHANNEL_PAGES][PAGE / 8];
    struct run run = pick_run(region, &worker->random, CHANNEL_PAGES, 0, MARKS_UNWRITABLE);
    if (run.count == 0)
        return false;
    for (size_t i = 0; i < run.count; i++) {
        struct page_identity is = note_next_version(region, run.first + i, next_random(&worker->random));
        page_render(contents[i], &is);
    }
    carry(&worker->channels, (enum channel_kind)channel, contents, page_at(region, run.first), run.count * PAGE);
    verify_pages(region, run.first, run.count, channel_names[channel]);
    return true;
}

// ---- mremap --------------------------------------------------------------------------------------------------------

// Makes the region one mapping again, as far as marks split it. False if it has holes.
static bool make_uniform(struct region *region)
{
    if (region->is_heap || region_has_mark(region, MARK_HOLE))
        return false;
    if (!region_has_mark(region, MARKS_ANY))
        return true;
    size_t bytes = region->pages * PAGE;
    MUST(munlock(region->base, bytes) == 0);
    MUST(mprotect(region->base, bytes, PROT_READ | PROT_WRITE) == 0);
    MUST(madvise(region->base, bytes, MADV_KEEPONFORK) == 0);
    MUST(madvise(region->base, bytes, MADV_DOFORK) == 0);
    if (region_has_mark(region, MARK_GUARD))
        MUST(madvise(region->base, bytes, MADV_GUARD_REMOVE) == 0);
    for (size_t i = 0; i < region->pages; i++)
        if (note_of(region, i)->marks & MARK_LOCKED)
            atomic_fetch_sub(&self->pages_locked, 1);
    mark_pages(region, 0, region->pages, 0, MARKS_ANY);
    return true;
}

static void region_gains(struct region *region, size_t pages)
{
    memset(note_of(region, region->pages), 0, pages * sizeof(struct page_note));
    region->pages += pages;
    atomic_fetch_add(&self->pages_mapped, (long)pages);
}

static void region_loses(struct region *region, size_t pages)
{
    region->pages -= pages;
    atomic_fetch_sub(&self->pages_mapped, (long)pages);
}

// The regions together stay near the limit, or the pressure would go.
static long missing_pages(void)
{
    return memory_limit_pages - atomic_load(&self->pages_mapped);
}

static bool do_grow(struct worker *worker, struct region *region, int unused)
{
    (void)unused;
    size_t more = 1 + random_below(&worker->random, region->pages);
    if (region->pages + more > MAX_REGION_PAGES || !make_uniform(region) ||
        (long)more > missing_pages())
        return false;
    void *moved = mremap(region->base, region->pages * PAGE, (region->pages + more) * PAGE, MREMAP_MAYMOVE);
    if (moved == MAP_FAILED)
        return false;
    region->base = moved;
    region_gains(region, more);
    verify_pages(region, region->pages - more, more < 16 ? more : 16, "fresh pages after growing by mremap");
    write_pages(worker, region, region->pages - more, more);
    return true;
}

static bool do_shrink(struct worker *worker, struct region *region, int unused)
{
    (void)unused;
    size_t less = random_below(&worker->random, region->pages / 2);
    if (less == 0 || missing_pages() > memory_limit_pages / 8 || !make_uniform(region))
        return false;
    void *same = mremap(region->base, region->pages * PAGE, (region->pages - less) * PAGE, 0);
    if (same == MAP_FAILED)
        return false;
    region_loses(region, less);
    return true;
}

// Moves the region by a reservation of its own size somewhere else.
// An mremap over several mappings that fails may have moved the first of them (Linux 6.17 and later moves mapping by
// mapping and stops at one that is registered with a userfaultfd): the region gets fresh memory in its place.
static void begin_anew(struct worker *worker, struct region *region)
{
    size_t bytes = region->pages * PAGE;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    MUST(mmap(region->base, bytes, PROT_READ | PROT_WRITE, flags, -1, 0) == region->base);
    write_pages(worker, region, 0, region->pages);
}

static bool do_move(struct worker *worker, struct region *region, int flags)
{
    if (!make_uniform(region))
        return false;
    unsigned char *target = map_pages(region->pages);
    unsigned char *old = region->base;
    size_t bytes = region->pages * PAGE;
    if (mremap(old, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED | flags, target) == MAP_FAILED) {
        munmap(target, bytes);
        begin_anew(worker, region);
        return false;
    }
    region->base = target;
    if (flags & MREMAP_DONTUNMAP) {
        size_t probe = random_below(&worker->random, region->pages);
        require_zero_pages(old, probe, 1, region->id, "what MREMAP_DONTUNMAP left behind");
        memset(old + probe * PAGE, 0xdd, PAGE);
        MUST(munmap(old, bytes) == 0);
    }
    struct run run = pick_run(region, &worker->random, 32, 0, 0);
    verify_pages(region, run.first, run.count, "after a move by mremap");
    return true;
}

static void both_regions_anew(struct region *a, struct region *b, size_t a_pages, size_t b_pages)
{
    munmap(a->base, a_pages * PAGE);
    munmap(b->base, b_pages * PAGE);
    region_loses(a, a_pages);
    region_loses(b, b_pages);
    region_create(a, NULL, a_pages);
    region_create(b, NULL, b_pages);
}

// The smaller region moves onto the larger one, which is mapped anew where the smaller one was.
static bool move_onto(struct worker *worker, struct region *small, struct region *large)
{
    unsigned char *old = small->base;
    size_t bytes = small->pages * PAGE, large_pages = large->pages;
    if (mremap(old, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, large->base) == MAP_FAILED) {
        both_regions_anew(small, large, small->pages, large_pages); // half of it may have happened
        return false;
    }
    small->base = large->base;
    if (large_pages > small->pages)
        MUST(munmap(large->base + bytes, large_pages * PAGE - bytes) == 0);
    region_loses(large, large_pages);
    region_create(large, old, large_pages);
    struct run moved = pick_run(small, &worker->random, 32, 0, 0);
    verify_pages(small, moved.first, moved.count, "after mremap onto another region");
    struct run fresh = pick_run(large, &worker->random, 8, 0, 0);
    verify_pages(large, fresh.first, fresh.count, "a fresh mapping where mremap moved a region away");
    write_pages(worker, large, 0, large->pages);
    return true;
}

static bool do_move_onto(struct worker *worker, struct region *region, int unused)
{
    (void)unused;
    struct region *other = second_region(worker, region);
    if (!other)
        return false;
    bool done = false;
    if (make_uniform(region) && make_uniform(other))
        done = region->pages <= other->pages ? move_onto(worker, region, other) : move_onto(worker, other, region);
    pthread_mutex_unlock(&other->lock);
    return done;
}

// ---- munmap and mmap -----------------------------------------------------------------------------------------------

static bool do_unmap_run(struct worker *worker, struct region *region, int most)
{
    struct run run = pick_run(region, &worker->random, (size_t)most, 0, MARK_HOLE | MARK_LOCKED);
    if (run.count == 0 || region->is_heap)
        return false;
    MUST(munmap(page_at(region, run.first), run.count * PAGE) == 0);
    mark_pages(region, run.first, run.count, MARK_HOLE, 0xff);
    return true;
}

static void verify_fresh_then_write(struct worker *worker, struct region *region, struct run run, const char *when)
{
    for (size_t i = run.first; i < run.first + run.count; i++)
        note_zero(region, i);
    if (random_below(&worker->random, 2))
        verify_pages(region, run.first, run.count, when);
    write_pages(worker, region, run.first, run.count);
    sched_yield();
    verify_pages(region, run.first, run.count, when);
}

static bool do_refill(struct worker *worker, struct region *region, int most)
{
    struct run run = pick_run(region, &worker->random, (size_t)most, MARK_HOLE, 0);
    if (run.count == 0)
        return false;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
    void *at = page_at(region, run.first);
    if (mmap(at, run.count * PAGE, PROT_READ | PROT_WRITE, flags, -1, 0) == MAP_FAILED) {
        if (errno != EEXIST)
            fail("mmap into a hole at %p: %s", at, strerror(errno));
        return false; // somebody else lives there now
    }
    mark_pages(region, run.first, run.count, 0, 0xff);
    verify_fresh_then_write(worker, region, run, "pages mapped into a hole");
    return true;
}

static bool do_map_over(struct worker *worker, struct region *region, int most)
{
    struct run run = pick_run(region, &worker->random, (size_t)most, 0, MARK_HOLE | MARK_LOCKED);
    if (run.count == 0 || region->is_heap)
        return false;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    MUST(mmap(page_at(region, run.first), run.count * PAGE, PROT_READ | PROT_WRITE, flags, -1, 0) != MAP_FAILED);
    mark_pages(region, run.first, run.count, 0, 0xff);
    verify_fresh_then_write(worker, region, run, "pages mapped over others by MAP_FIXED");
    return true;
}

// Another size or the same, more if the regions together have become small.
static size_t pages_for_renewal(struct worker *worker, size_t before)
{
    long missing = missing_pages();
    long wanted = (long)(random_below(&worker->random, 2) ? before : random_region_pages(&worker->random));
    if (missing - wanted > memory_limit_pages / 8)
        wanted += (long)random_below(&worker->random, (size_t)(missing - wanted));
    if (wanted > missing)
        wanted = missing;
    if (wanted > (long)MAX_REGION_PAGES)
        wanted = (long)MAX_REGION_PAGES;
    return wanted < 16 ? 16 : (size_t)wanted;
}

static bool do_renew(struct worker *worker, struct region *region, int unused)
{
    (void)unused;
    if (region->is_heap)
        return false;
    unsigned char *old = region->base;
    size_t pages = region->pages;
    region_unmap(region);
    size_t wanted = pages_for_renewal(worker, pages);
    region_create(region, old, wanted);
    struct run some = pick_run(region, &worker->random, 16, 0, 0);
    verify_pages(region, some.first, some.count, "a new mapping at the same address");
    write_pages(worker, region, 0, region->pages);
    return true;
}

static bool do_heap(struct worker *worker, struct region *unused_region, int unused)
{
    (void)unused, (void)unused_region;
    struct region *heap = &self->regions[0];
    pthread_mutex_lock(&heap->lock);
    bool ours = sbrk(0) == heap->base + heap->pages * PAGE;
    size_t step = 16 + random_below(&worker->random, 512);
    bool grows = heap->pages <= 2 * step || (heap->pages + step < 4096 && random_below(&worker->random, 2));
    if (ours && grows && sbrk((intptr_t)(step * PAGE)) != (void *)-1) {
        region_gains(heap, step);
        verify_pages(heap, heap->pages - step, 4, "fresh pages of a grown heap");
        write_pages(worker, heap, heap->pages - step, step);
    } else if (ours && !grows && !region_has_mark(heap, MARK_LOCKED)) {
        MUST(sbrk(-(intptr_t)(step * PAGE)) != (void *)-1);
        region_loses(heap, step);
    } else {
        ours = false;
    }
    pthread_mutex_unlock(&heap->lock);
    return ours;
}

// ---- madvise -------------------------------------------------------------------------------------------------------

static bool do_dontneed(struct worker *worker, struct region *region, int most)
{
    struct run run = pick_run(region, &worker->random, (size_t)most, 0, MARK_HOLE | MARK_GUARD | MARK_LOCKED);
    if (run.count == 0)
        return false;
    MUST(madvise(page_at(region, run.first), run.count * PAGE, MADV_DONTNEED) == 0);
    for (size_t i = run.first; i < run.first + run.count; i++)
        note_zero(region, i);
    if (random_below(&worker->random, 2))
        verify_pages(region, run.first, run.count, "after MADV_DONTNEED");
    return true;
}

static bool do_free(struct worker *worker, struct region *region, int most)
{
    struct run run = pick_run(region, &worker->random, (size_t)most, 0, MARKS_UNWRITABLE | MARK_LOCKED);
    if (run.count == 0)
        return false;
    MUST(madvise(page_at(region, run.first), run.count * PAGE, MADV_FREE) == 0);
    mark_pages(region, run.first, run.count, MARK_FREED, 0);
    return true;
}

// Advice that changes no content.
static bool do_advise(struct worker *worker, struct region *region, int advice)
{
    struct run run = pick_run(region, &worker->random, 512, 0, MARKS_UNWRITABLE | MARK_LOCKED);
    if (run.count == 0)
        return false;
    bool taken = madvise(page_at(region, run.first), run.count * PAGE, advice) == 0;
    if (random_below(&worker->random, 4) == 0)
        verify_pages(region, run.first, run.count, "after advice that changes no content");
    return taken;
}

static bool do_advise_region(struct worker *worker, struct region *region, int advice)
{
    (void)worker;
    if (region->is_heap || region_has_mark(region, MARKS_ANY))
        return false;
    return madvise(region->base, region->pages * PAGE, advice) == 0;
}

// Advice that marks: bits 0-15 the advice, 16-23 the mark set, 24-30 whether it is taken away instead.
#define MARKING(advice, mark) ((advice) | (mark) << 16)
#define UNMARKING(advice, mark) ((advice) | (mark) << 16 | 1 << 24)

static bool do_advise_marking(struct worker *worker, struct region *region, int packed)
{
    int advice = packed & 0xffff, mark = packed >> 16 & 0xff;
    bool away = packed >> 24;
    int forbidden = MARK_HOLE | MARK_GUARD | MARK_LOCKED;
    struct run run = away ? pick_run(region, &worker->random, 256, mark, MARK_HOLE)
                          : pick_run(region, &worker->random, 64, 0, forbidden);
    if (run.count == 0 || madvise(page_at(region, run.first), run.count * PAGE, advice) != 0)
        return false;
    mark_pages(region, run.first, run.count, away ? 0 : mark, away ? mark : 0);
    return true;
}

static bool do_guard(struct worker *worker, struct region *region, int advice)
{
    bool away = advice == MADV_GUARD_REMOVE;
    int forbidden = MARK_HOLE | MARK_LOCKED | MARK_WIPED | MARK_READ_ONLY | MARK_NO_ACCESS;
    struct run run = pick_run(region, &worker->random, 32, away ? MARK_GUARD : 0, forbidden);
    if (run.count == 0 || region->is_heap || madvise(page_at(region, run.first), run.count * PAGE, advice) != 0)
        return false;
    for (size_t i = run.first; i < run.first + run.count; i++)
        note_zero(region, i);
    mark_pages(region, run.first, run.count, away ? 0 : MARK_GUARD, away ? MARK_GUARD : 0);
    if (away)
        verify_pages(region, run.first, run.count, "after MADV_GUARD_REMOVE");
    return true;
}

// ---- protection and locking ----------------------------------------------------------------------------------------

static bool do_protect(struct worker *worker, struct region *region, int mark)
{
    struct run run = pick_run(region, &worker->random, 128, 0, MARKS_UNWRITABLE | MARK_LOCKED);
    int protection = mark == MARK_READ_ONLY ? PROT_READ : PROT_NONE;
    if (run.count == 0)
        return false;
    MUST(mprotect(page_at(region, run.first), run.count * PAGE, protection) == 0);
    mark_pages(region, run.first, run.count, mark, 0);
    verify_pages(region, run.first, run.count, "made read-only");
    return true;
}

static bool do_unprotect(struct worker *worker, struct region *region, int mark)
{
    struct run run = pick_run(region, &worker->random, 256, mark, 0);
    if (run.count == 0)
        return false;
    MUST(mprotect(page_at(region, run.first), run.count * PAGE, PROT_READ | PROT_WRITE) == 0);
    mark_pages(region, run.first, run.count, 0, mark);
    verify_pages(region, run.first, run.count, "made writable again");
    return true;
}

static bool do_lock(struct worker *worker, struct region *region, int most)
{
    struct run run = pick_run(region, &worker->random, (size_t)most, 0, MARKS_UNWRITABLE | MARK_LOCKED | MARK_FREED);
    if (run.count == 0 || atomic_load(&self->pages_locked) + (long)run.count > MAX_LOCKED_PAGES)
        return false;
    if (mlock(page_at(region, run.first), run.count * PAGE) != 0)
        return false;
    atomic_fetch_add(&self->pages_locked, (long)run.count);
    mark_pages(region, run.first, run.count, MARK_LOCKED, 0);
    verify_pages(region, run.first, run.count, "locked by mlock");
    return true;
}

static bool do_unlock(struct worker *worker, struct region *region, int most)
{
    struct run run = pick_run(region, &worker->random, (size_t)most, MARK_LOCKED, 0);
    if (run.count == 0)
        return false;
    MUST(munlock(page_at(region, run.first), run.count * PAGE) == 0);
    atomic_fetch_sub(&self->pages_locked, (long)run.count);
    mark_pages(region, run.first, run.count, 0, MARK_LOCKED);
    return true;
}

// ---- threads and processes -----------------------------------------------------------------------------------------

static void *short_life(void *argument)
{
    uint64_t random = (uint64_t)(uintptr_t)argument;
    struct worker worker = { .random = random };
    struct region *region = &self->regions[random_below(&worker.random, self->region_count)];
    pthread_mutex_lock(&region->lock);
    do_verify(&worker, region, 4);
    do_write(&worker, region, 2);
    pthread_mutex_unlock(&region->lock);
    return NULL;
}

static bool do_storm(struct worker *worker, struct region *unused_region, int threads)
{
    (void)unused_region;
    pthread_t storm[32];
    for (int round = 0; round < 4; round++) {
        for (int i = 0; i < threads; i++) {
            void *seed = (void *)(uintptr_t)(next_random(&worker->random) | 1);
            MUST((errno = pthread_create(&storm[i], NULL, short_life, seed)) == 0);
        }
        for (int i = 0; i < threads; i++)
            MUST((errno = pthread_join(storm[i], NULL)) == 0);
    }
    return true;
}

static bool do_fork(struct worker *worker, struct region *unused_region, int unused);
static bool do_spawn(struct worker *worker, struct region *unused_region, int unused);

static const struct operation operations[] = {
    { "write", do_write, 32, 300, false },
    { "verify", do_verify, 64, 300, false },
    { "verify_region", do_verify_region, 0, 2, false },
    { "rewrite_same", do_rewrite_same, 16, 60, false },
    { "poke", do_poke, 0, 60, false },
    { "pipe_out", do_carry_out, CHANNEL_PIPE, 30, false },
    { "pipe_in", do_carry_in, CHANNEL_PIPE, 30, false },
    { "vmsplice_out", do_carry_out, CHANNEL_VMSPLICE, 20, false },
    { "socket_out", do_carry_out, CHANNEL_SOCKET, 30, false },
    { "socket_in", do_carry_in, CHANNEL_SOCKET, 30, false },
    { "file_out", do_carry_out, CHANNEL_FILE, 30, false },
    { "file_in", do_carry_in, CHANNEL_FILE, 30, false },
    { "vm_out", do_carry_out, CHANNEL_VM, 30, false },
    { "vm_in", do_carry_in, CHANNEL_VM, 30, false },
    { "grow", do_grow, 0, 8, false },
    { "shrink", do_shrink, 0, 8, false },
    { "move", do_move, 0, 10, false },
    { "dontunmap", do_move, MREMAP_DONTUNMAP, 8, false },
    { "move_onto", do_move_onto, 0, 4, false },
    { "unmap", do_unmap_run, 64, 12, false },
    { "refill", do_refill, 64, 40, false },
    { "map_over", do_map_over, 64, 12, false },
    { "renew", do_renew, 0, 4, false },
    { "heap", do_heap, 0, 8, true },
    { "dontneed", do_dontneed, 64, 30, false },
    { "free", do_free, 64, 15, false },
    { "cold", do_advise, MADV_COLD, 10, false },
    { "pageout", do_advise, MADV_PAGEOUT, 10, false },
    { "willneed", do_advise, MADV_WILLNEED, 10, false },
    { "populate_read", do_advise, MADV_POPULATE_READ, 10, false },
    { "populate_write", do_advise, MADV_POPULATE_WRITE, 10, false },
    { "hugepage", do_advise_region, MADV_HUGEPAGE, 3, false },
    { "nohugepage", do_advise_region, MADV_NOHUGEPAGE, 3, false },
    { "collapse", do_advise_region, MADV_COLLAPSE, 1, false },
    { "wipeonfork", do_advise_marking, MARKING(MADV_WIPEONFORK, MARK_WIPED), 6, false },
    { "keeponfork", do_advise_marking, UNMARKING(MADV_KEEPONFORK, MARK_WIPED), 10, false },
    { "dontfork", do_advise_marking, MARKING(MADV_DONTFORK, MARK_NOT_INHERITED), 6, false },
    { "dofork", do_advise_marking, UNMARKING(MADV_DOFORK, MARK_NOT_INHERITED), 10, false },
    { "guard", do_guard, MADV_GUARD_INSTALL, 8, false },
    { "unguard", do_guard, MADV_GUARD_REMOVE, 16, false },
    { "read_only", do_protect, MARK_READ_ONLY, 10, false },
    { "no_access", do_protect, MARK_NO_ACCESS, 10, false },
    { "unprotect_read_only", do_unprotect, MARK_READ_ONLY, 15, false },
    { "unprotect_no_access", do_unprotect, MARK_NO_ACCESS, 15, false },
    { "lock", do_lock, 8, 10, false },
    { "unlock", do_unlock, 8, 20, false },
    { "storm", do_storm, 8, 2, true },
    { "fork", do_fork, 0, 3, true },
    { "spawn", do_spawn, 0, 1, true },
};
#define OPERATION_COUNT (sizeof operations / sizeof operations[0])
_Static_assert(OPERATION_COUNT <= MAX_OPERATIONS, "the counters are too few");

static inline const char *operation_name(size_t number)
{
    return operations[number].name;
}

static bool operation_allowed[OPERATION_COUNT];
static int weight_of_all;

static size_t pick_operation(struct worker *worker)
{
    int left = (int)random_below(&worker->random, (size_t)weight_of_all);
    size_t chosen = 0;
    for (size_t i = 0; i < OPERATION_COUNT; i++) {
        if (!operation_allowed[i])
            continue;
        chosen = i;
        left -= operations[i].weight;
        if (left < 0)
            break;
    }
    return chosen;
}

static void do_one_operation(struct worker *worker)
{
    size_t chosen = pick_operation(worker);
    const struct operation *operation = &operations[chosen];
    struct region *region = NULL;
    phase(operation->name);
    if (!operation->without_region) {
        region = &self->regions[random_below(&worker->random, self->region_count)];
        pthread_mutex_lock(&region->lock);
    }
    bool done = operation->body(worker, region, operation->argument);
    if (region && done)
        region_remembers(region, chosen);
    if (region)
        pthread_mutex_unlock(&region->lock);
    atomic_fetch_add(done ? &shared->done[chosen] : &shared->refused[chosen], 1);
}

static void *work(void *argument)
{
    struct worker *worker = argument;
    channels_open(&worker->channels);
    while (!time_is_up() && worker->operations_left != 0) {
        do_one_operation(worker);
        if (worker->operations_left > 0)
            worker->operations_left--;
    }
    channels_close(&worker->channels);
    return NULL;
}

static void all_region_locks(int (*lock_or_unlock)(pthread_mutex_t *))
{
    for (size_t i = 0; i < self->region_count; i++)
        lock_or_unlock(&self->regions[i].lock);
}

static void become_child_image(struct worker *worker, const char *path)
{
    char seed[32], timeout[32];
    snprintf(seed, sizeof seed, "%llu", (unsigned long long)next_random(&worker->random) >> 1);
    snprintf(timeout, sizeof timeout, "%ld", (long)(victim_deadline - seconds_now()) + 1);
    // What is masked is masked for the image too: a program without a C library must not guard evicted pages there either.
    const char *mask = option_text("--ops-mask", NULL);
    execl(path, victim_name, "--child-image", "--seed", seed, "--ops", "200", "--memory", "16", "--threads", "1",
          "--processes", "0", "--timeout", timeout, mask ? "--ops-mask" : (char *)NULL, mask, (char *)NULL);
    fail("exec of %s: %s", path, strerror(errno));
}

static void wait_for_all_children(void)
{
    int status;
    pid_t child;
    while ((child = waitpid(-1, &status, 0)) > 0 || errno == EINTR)
        if (child > 0 && status != 0)
            fail("child %d: expected exit status 0, found wait status %#x", child, status);
}

// A second thread in the child, so that a process of several threads is forked below the first one as well.
static void child_works(struct worker *worker)
{
    struct worker second = { .random = next_random(&worker->random), .operations_left = 100 };
    bool with_second = random_below(&worker->random, 3) == 0;
    if (with_second)
        MUST((errno = pthread_create(&second.thread, NULL, work, &second)) == 0);
    worker->operations_left = 50 + (long)random_below(&worker->random, 300);
    work(worker);
    if (with_second)
        MUST((errno = pthread_join(second.thread, NULL)) == 0);
}

// Several fates: exec at once, exec after work, end before its own children, end after them.
__attribute__((noreturn)) static void child_life(uint64_t random)
{
    struct worker worker = { .random = random };
    size_t fate = random_below(&worker.random, 8);
    close_range(3, ~0u, 0);
    if (fate != 0) {
        phase("the child verifies what it inherited");
        verify_everything("inherited by fork");
        child_works(&worker);
        phase("the child verifies everything at its end");
        verify_everything("at the end of a child");
    }
    if (fate >= 4) {
        phase("the child waits for its own children");
        wait_for_all_children();
    }
    slot_give_back(self);
    if (fate <= 1)
        become_child_image(&worker, own_path);
    _exit(atomic_load(&shared->failed) ? 1 : 0);
}

static bool do_fork(struct worker *worker, struct region *unused_region, int unused)
{
    (void)unused_region, (void)unused;
    struct process *slot = self->depth < 3 ? slot_take(slot_limit) : NULL;
    if (!slot)
        return false;
    uint64_t random = next_random(&worker->random);
    all_region_locks(pthread_mutex_lock);
    slot_describe_child(slot);
    pid_t child = fork();
    if (child == 0) {
        self = slot;
        watchdog_arm();
        child_life(random);
    }
    all_region_locks(pthread_mutex_unlock);
    MUST(child > 0);
    return true;
}

// vfork and exec, as shells and build tools do it.
static bool do_spawn(struct worker *worker, struct region *unused_region, int unused)
{
    (void)worker, (void)unused_region, (void)unused;
    pid_t child = vfork();
    if (child == 0) {
        execl("/bin/true", "true", (char *)NULL);
        _exit(127);
    }
    return child > 0;
}

// ---- start and end -------------------------------------------------------------------------------------------------

static void say_segv(int signal_number, siginfo_t *info, void *unused)
{
    (void)unused;
    for (size_t i = 0; self && i < self->region_count; i++) {
        const struct region *region = &self->regions[i];
        unsigned char *at = info->si_addr;
        if (at >= region->base && at < region->base + region->pages * PAGE)
            fail("signal %d (code %d) at %p, in region %u page %zu, marks %#x", signal_number, info->si_code,
                 info->si_addr, region->id, (size_t)(at - region->base) / PAGE,
                 note_of(region, (size_t)(at - region->base) / PAGE)->marks);
    }
    fail("signal %d (code %d) at %p, in no region", signal_number, info->si_code, info->si_addr);
}

static void allow_operations(const char *list)
{
    bool only = list && list[0] != '-';
    for (size_t i = 0; i < OPERATION_COUNT; i++)
        operation_allowed[i] = !only;
    char words[1000];
    snprintf(words, sizeof words, "%s", list ? list : "");
    for (char *word = strtok(words, ","); word; word = strtok(NULL, ",")) {
        size_t i = 0;
        const char *name = word + (word[0] == '-');
        while (i < OPERATION_COUNT && strcmp(operations[i].name, name) != 0)
            i++;
        if (i == OPERATION_COUNT) {
            fprintf(stderr, "torture: no operation is named %s; --list names them\n", name);
            exit(2);
        }
        operation_allowed[i] = word[0] != '-';
    }
    for (size_t i = 0; i < OPERATION_COUNT; i++)
        weight_of_all += operation_allowed[i] ? operations[i].weight : 0;
}

static void heap_region_create(struct region *heap)
{
    void *volatile first = malloc(1 << 16); // malloc takes its first piece of the heap before we add ours
    free(first);
    uintptr_t end = (uintptr_t)sbrk(0);
    MUST(sbrk((intptr_t)(-end & (PAGE - 1))) != (void *)-1);
    void *base = sbrk((intptr_t)(256 * PAGE));
    MUST(base != (void *)-1);
    heap->is_heap = true;
    region_is_new(heap, base, 256);
}

static void create_regions(struct worker *first)
{
    for (size_t i = 0; i < MAX_REGIONS; i++) {
        struct region *region = &self->regions[i];
        if (atomic_load(&self->pages_mapped) >= memory_limit_pages)
            break;
        pthread_mutex_init(&region->lock, NULL);
        if (i == 0)
            heap_region_create(region);
        else
            region_create(region, NULL, random_region_pages(&first->random));
        self->region_count = i + 1;
        write_pages(first, region, 0, region->pages);
    }
}

// Children are reaped here as they end, orphans of theirs too: this process is their subreaper.
static bool reap_without_waiting(void)
{
    int status;
    pid_t child = waitpid(-1, &status, WNOHANG);
    if (child > 0 && status != 0)
        fail("child %d: expected exit status 0, found wait status %#x", child, status);
    return child > 0;
}

static void run_workers(struct worker *workers, long threads)
{
    for (long i = 0; i < threads; i++)
        MUST((errno = pthread_create(&workers[i].thread, NULL, work, &workers[i])) == 0);
    for (long i = 0; i < threads; i++)
        while (pthread_tryjoin_np(workers[i].thread, NULL) != 0)
            if (!reap_without_waiting())
                sleep_micros(2000);
}

static void print_counts(void)
{
    for (size_t i = 0; i < OPERATION_COUNT; i++)
        if (shared->done[i] || shared->refused[i])
            say("  %-20s %8ld done %8ld refused", operations[i].name, shared->done[i], shared->refused[i]);
}

static void end_by_order(int unused)
{
    (void)unused;
    atomic_store(&shared->ordered_to_end, true);
}

static void listen_for_the_end(void)
{
    struct sigaction action = { .sa_handler = end_by_order, .sa_flags = SA_RESTART };
    MUST(sigaction(SIGUSR1, &action, NULL) == 0);
}

static int run_torture(long threads, long operations_each)
{
    struct worker workers[64] = { { 0 } };
    for (long i = 0; i < threads; i++) {
        workers[i].random = mix64(run_seed ^ (uint64_t)i << 32);
        workers[i].operations_left = operations_each;
    }
    phase("first writing of all pages");
    create_regions(&workers[0]);
    end_of_work = operations_each < 0 ? seconds_now() + (double)option_number("--seconds", 5) : victim_deadline;
    run_workers(workers, threads);
    phase("waiting for the last children");
    wait_for_all_children();
    phase("verifying everything at the end");
    verify_everything("at the end");
    if (atomic_load(&shared->failed))
        fail("another process of this run failed");
    if (option_given("--child-image"))
        return 0;
    print_counts();
    return succeed("torture seed %llu: %zu regions, %ld MiB, %u processes, %ld pages verified",
                   (unsigned long long)run_seed, self->region_count, self->pages_mapped / 256, shared->next_serial,
                   shared->pages_verified);
}

static int list_operations(void)
{
    for (size_t i = 0; i < OPERATION_COUNT; i++)
        say("%s", operations[i].name);
    return 0;
}

int main(int argc, char **argv)
{
    victim_begin(argc, argv,
                 "--seed --seconds --ops --memory --threads --processes --ops-mask --mode --list --child-image",
                 60 + 10 * 5);
    if (option_given("--list"))
        return list_operations();
    shared = map_shared(sizeof *shared);
    listen_for_the_end();
    victim_before_failing = tell_the_others;
    run_seed = (uint64_t)option_number("--seed", 1);
    memory_limit_pages = option_number("--memory", 192) * (long)(MIB / PAGE);
    slot_limit = 1 + option_number("--processes", 2);
    long threads = option_number("--threads", 2);
    if (threads < 1 || threads > 64 || slot_limit > MAX_SLOTS || memory_limit_pages < 1024) {
        fprintf(stderr, "torture: --threads 1..64, --processes 0..15, --memory from 4\n");
        return 2;
    }
    struct sigaction action = { .sa_sigaction = say_segv, .sa_flags = SA_SIGINFO };
    sigaction(SIGSEGV, &action, NULL);
    sigaction(SIGBUS, &action, NULL);
    MUST(prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0);
    if (strcmp(option_text("--mode", "regions"), "counters") == 0)
        return run_counters(threads, slot_limit - 1, (double)option_number("--seconds", 5));
    allow_operations(option_text("--ops-mask", NULL));
    self = slot_take(slot_limit);
    self->serial = (uint16_t)atomic_fetch_add(&shared->next_serial, 1);
    return run_torture(threads, option_number("--ops", -1));
}
