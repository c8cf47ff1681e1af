// saboteur - a preloaded library that damages memory as a broken pager would: the test of the tests.
//
// A victim that passes under it proves nothing. Now and then it takes a page of a private anonymous mapping of at least
// 256 KiB and either drops it (zeros, as a lost page) or puts back what it held a while ago (a stale page).
//
//   cc -O1 -g -pthread -shared -fPIC saboteur.c -o saboteur.so
//   LD_PRELOAD=./saboteur.so SABOTEUR=zero|stale ./victim        must not exit 0
//
// SABOTEUR_MICROS: rest between two deeds (default 2000). SABOTEUR_MIB: mappings larger than this are left alone (for
// a look at what is tested beside the ballast; default none).
#include "victim.h"
#include <pthread.h>
#include <sys/uio.h>

#define SMALLEST ((size_t)256 * 1024)
#define THREAD_STACK ((size_t)8 << 20) // looks like a stack: left alone, as uswap does

static uint64_t chance = 1;
static long rest_micros = 2000;
static size_t largest = SIZE_MAX;
static bool stale;

static bool parse_mapping(const char *line, uintptr_t *start, uintptr_t *end)
{
    char rights[8], name[64] = "";
    unsigned long inode;
    unsigned long from, to;
    if (sscanf(line, "%lx-%lx %7s %*s %*s %lu %63s", &from, &to, rights, &inode, name) < 4)
        return false;
    *start = from;
    *end = to;
    bool heap_or_nameless = name[0] == 0 || strcmp(name, "[heap]") == 0;
    return strcmp(rights, "rw-p") == 0 && inode == 0 && heap_or_nameless && to - from >= SMALLEST &&
           to - from <= largest && to - from != THREAD_STACK;
}

// A random page out of all suitable mappings, each byte of them equally likely.
static unsigned char *pick_page(void)
{
    static char line[600];
    size_t seen = 0;
    unsigned char *picked = NULL;
    FILE *maps = fopen("/proc/self/maps", "re");
    while (maps && fgets(line, sizeof line, maps)) {
        uintptr_t start, end;
        if (!parse_mapping(line, &start, &end))
            continue;
        size_t pages = (end - start) / PAGE;
        seen += pages;
        if (random_below(&chance, seen) < pages)
            picked = (unsigned char *)start + random_below(&chance, pages) * PAGE;
    }
    if (maps)
        fclose(maps);
    return picked;
}

static bool copy_page(void *to, void *from)
{
    struct iovec local = { to, PAGE }, remote = { from, PAGE };
    return process_vm_readv(getpid(), &local, 1, &remote, 1, 0) == (ssize_t)PAGE;
}

static void put_back(unsigned char *page, void *copy)
{
    struct iovec local = { copy, PAGE }, remote = { page, PAGE };
    if (process_vm_writev(getpid(), &local, 1, &remote, 1, 0) < 0)
        return;
}

static void *sabotage(void *unused)
{
    static uint64_t copy[PAGE / 8];
    for (;;) {
        sleep_micros(rest_micros);
        unsigned char *page = pick_page();
        if (!page || !copy_page(copy, page))
            continue;
        if (stale) {
            sleep_micros(30000);
            put_back(page, copy);
        } else {
            madvise(page, PAGE, MADV_DONTNEED);
        }
    }
    return unused;
}

static void start_saboteur(void)
{
    pthread_t thread;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_create(&thread, NULL, sabotage, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

__attribute__((constructor)) static void load(void)
{
    const char *kind = getenv("SABOTEUR"), *micros = getenv("SABOTEUR_MICROS"), *mib = getenv("SABOTEUR_MIB");
    largest = mib ? (size_t)atol(mib) * MIB : SIZE_MAX;
    stale = kind && strcmp(kind, "stale") == 0;
    rest_micros = micros ? atol(micros) : rest_micros;
    chance = (uint64_t)getpid();
    pthread_atfork(NULL, NULL, start_saboteur);
    start_saboteur();
}
