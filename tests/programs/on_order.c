// on_order - processes that hold memory and do what they are told: a test decides who is touched when.
//
// Each process fills its memory, then reads one order a line from the pipe FOLDER/N (N from 1 on, made here) and answers a
// line on stdout when it is done: `N walk done`. At first `N is PID`.
//
//   walk     read and check every page            rewrite  give every page new bytes
//   noise    the same, of bytes that do not compress
//   thin     keep one MiB in four, give the others back
//   fork     a child checks every page and ends   stay     a child checks every page and waits: `N child PID`
//   lock     mlock the first 24 MiB               unlock   undo it
//   script   run `sh FOLDER/script`, which must exit with 0
//   end      check every page, end what waits, and end
//
//   on_order --folder FOLDER [--processes N] [--memory MIB]
#include "page_content.h"
#include <sys/stat.h>

#define LOCKED ((size_t)24 << 20)

static unsigned char *data;
static size_t pages;
static const char *folder;
static uint32_t number, version = 1;
static bool noise, thin;
static pid_t waiting;

#define BLOCK (MIB / PAGE)

static bool is_kept(size_t page)
{
    return !thin || page / BLOCK % 4 == 0;
}

static struct page_identity identity(size_t page)
{
    struct page_identity is = usual_identity(number, (uint32_t)page, version);
    if (noise)
        is.kind = KIND_RANDOM;
    return is;
}

static void check(const char *what)
{
    phase(what);
    for (size_t i = 0; i < pages; i++) {
        if (!is_kept(i))
            continue;
        struct page_identity is = identity(i);
        page_require(data + i * PAGE, &is, what);
    }
}

static void rewrite(bool with_noise)
{
    version++;
    noise = with_noise;
    for (size_t i = 0; i < pages; i++) {
        if (!is_kept(i))
            continue;
        struct page_identity is = identity(i);
        page_render(data + i * PAGE, &is);
    }
}

static void thin_out(void)
{
    thin = true;
    for (size_t i = 0; i < pages; i += BLOCK)
        if (!is_kept(i))
            MUST(munmap(data + i * PAGE, MIB) == 0);
}

static void check_in_child(bool stays)
{
    pid_t child = start_child();
    if (child == 0) {
        check("check in a child");
        while (stays)
            pause();
        _exit(0);
    }
    if (stays) {
        waiting = child;
        say("%u child %d", number, child);
    } else {
        wait_for_exit(child, 0, "the child");
    }
}

static void run_script(void)
{
    char command[420];
    snprintf(command, sizeof command, "sh '%s/script'", folder);
    MUST(system(command) == 0);
}

static void end(void)
{
    check("check at the end");
    if (waiting) {
        MUST(kill(waiting, SIGKILL) == 0);
        MUST(waitpid(waiting, NULL, 0) == waiting);
    }
    _exit(0);
}

static void obey(const char *order)
{
    if (strcmp(order, "walk") == 0)
        check("walk");
    else if (strcmp(order, "rewrite") == 0 || strcmp(order, "noise") == 0)
        rewrite(order[0] == 'n');
    else if (strcmp(order, "thin") == 0)
        thin_out();
    else if (strcmp(order, "fork") == 0 || strcmp(order, "stay") == 0)
        check_in_child(order[0] == 's');
    else if (strcmp(order, "lock") == 0)
        MUST(mlock(data, LOCKED) == 0);
    else if (strcmp(order, "unlock") == 0)
        MUST(munlock(data, LOCKED) == 0);
    else if (strcmp(order, "script") == 0)
        run_script();
    else if (strcmp(order, "end") == 0)
        end();
    else
        fail("no order is called %s", order);
    say("%u %s done", number, order);
}

// Never returns.
static void serve(void)
{
    char path[400], order[40];
    snprintf(path, sizeof path, "%s/%u", folder, number);
    data = map_pages(pages);
    fill_pages(data, 0, pages, number, version);
    MUST(mkfifo(path, 0600) == 0);
    FILE *orders = fopen(path, "r+");
    MUST(orders);
    say("%u is %d", number, getpid());
    while (fscanf(orders, "%39s", order) == 1)
        obey(order);
    fail("no more orders");
}

int main(int argc, char **argv)
{
    victim_begin(argc, argv, "--folder --processes --memory", 120);
    folder = option_text("--folder", ".");
    long processes = option_number("--processes", 2);
    pages = (size_t)option_number("--memory", 96) * (MIB / PAGE);
    for (long i = 1; i <= processes; i++) {
        number = (uint32_t)i;
        if (start_child() == 0)
            serve();
    }
    for (long i = 0; i < processes; i++)
        wait_for_exit(-1, 0, "a process");
    return succeed("%ld processes with %zu MiB each", processes, pages * PAGE / MIB);
}
