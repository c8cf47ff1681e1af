// patterned - memory with known contents, for whoever reads it from outside: every page is told by its number.
//
// Page N holds, by N modulo 5: zeros; one word; 16 words that repeat; words that do not compress; half of each. The test
// (tests/core.rs) makes the same words. Beside it lie memory that is left out of core files (MADV_DONTDUMP), memory
// that is protected after it was filled (PROT_NONE), and a large reservation of which one page in the middle is used.
//
// On stdout: `pages ADDRESS`, `left out ADDRESS`, `protected ADDRESS`, `reserved ADDRESS`, `child PID` where --fork is given,
// `ready PID`. It waits for a line on the pipe FOLDER/go, checks every page, and ends with 0. The child holds what
// it inherited, but for every seventh page, which it fills anew with that of number N + 1000000; it waits like its parent.
//
//   patterned --folder FOLDER [--memory MIB] [--threads N] [--fork]
#include "victim.h"
#include <pthread.h>
#include <sys/stat.h>

#define WORDS (PAGE / 8)
#define EXTRA 64 // pages that are left out, and pages that are protected
#define RESERVED ((size_t)1 << 40)

static size_t pages;
static uint64_t *data, *left_out, *protected;

static uint64_t word_of(uint64_t page, uint64_t word)
{
    uint64_t noise = mix64(page * WORDS + word);
    switch (page % 5) {
    case 0: return 0;
    case 1: return mix64(page);
    case 2: return mix64(page) ^ word % 16;
    case 3: return noise;
    default: return word < WORDS / 2 ? noise : mix64(page);
    }
}

static void fill(uint64_t *at, size_t first, size_t count)
{
    for (size_t page = 0; page < count; page++)
        for (size_t word = 0; word < WORDS; word++)
            at[page * WORDS + word] = word_of(first + page, word);
}

static void check(const uint64_t *at, size_t page, size_t number)
{
    for (size_t word = 0; word < WORDS; word++)
        if (at[page * WORDS + word] != word_of(number, word))
            fail("page %zu, word %zu: %#llx", page, word, (unsigned long long)at[page * WORDS + word]);
}

static void wait_for_go(const char *name)
{
    char path[400], line[8];
    snprintf(path, sizeof path, "%s/%s", option_text("--folder", "."), name);
    FILE *orders = fopen(path, "r");
    MUST(orders && fgets(line, sizeof line, orders));
    fclose(orders);
}

static void check_all(bool child)
{
    for (size_t page = 0; page < pages; page++)
        check(data, page, child && page % 7 == 0 ? page + 1000000 : page);
    MUST(mprotect(protected, EXTRA * PAGE, PROT_READ) == 0);
    for (size_t page = 0; page < EXTRA; page++) {
        check(left_out, page, page + 2000000);
        check(protected, page, page + 3000000);
    }
}

static void *sleep_long(void *unused)
{
    for (;;)
        sleep(1);
    return unused;
}

static pid_t fork_child(void)
{
    pid_t child = start_child();
    if (child != 0)
        return child;
    for (size_t page = 0; page < pages; page += 7)
        fill(data + page * WORDS, page + 1000000, 1);
    say("child %d", getpid());
    wait_for_go("go-child");
    check_all(true);
    _exit(0);
}

int main(int argc, char **argv)
{
    char path[400];
    victim_begin(argc, argv, "--folder --memory --threads --fork", 150);
    pages = (size_t)option_number("--memory", 96) * (MIB / PAGE);
    for (int n = 0; n < 2; n++) {
        snprintf(path, sizeof path, "%s/%s", option_text("--folder", "."), n ? "go-child" : "go");
        MUST(mkfifo(path, 0600) == 0);
    }
    left_out = (uint64_t *)map_pages(EXTRA);
    protected = (uint64_t *)map_pages(EXTRA);
    MUST(madvise(left_out, EXTRA * PAGE, MADV_DONTDUMP) == 0);
    fill(left_out, 2000000, EXTRA);
    fill(protected, 3000000, EXTRA);
    char *reserved = mmap(NULL, RESERVED, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    MUST(reserved != MAP_FAILED && mprotect(reserved + RESERVED / 2, PAGE, PROT_READ | PROT_WRITE) == 0);
    fill((uint64_t *)(reserved + RESERVED / 2), 4000003, 1);
    data = (uint64_t *)map_pages(pages);
    fill(data, 0, pages);
    MUST(mprotect(protected, EXTRA * PAGE, PROT_NONE) == 0);
    pthread_t thread;
    for (long n = option_number("--threads", 2); n > 0; n--)
        MUST(pthread_create(&thread, NULL, sleep_long, NULL) == 0);
    say("pages %p", (void *)data);
    say("left out %p", (void *)left_out);
    say("protected %p", (void *)protected);
    say("reserved %p", (void *)(reserved + RESERVED / 2));
    pid_t child = option_given("--fork") ? fork_child() : 0;
    say("ready %d", getpid());
    wait_for_go("go");
    check_all(false);
    if (child)
        wait_for_exit(child, 0, "the child");
    return succeed("%zu pages", pages);
}
