// core_dump - a program with evicted memory aborts: it must die of SIGABRT, soon, and leave the core it would leave.
//
// kernel-facts.md: a core dump holds zeros for evicted pages. That is a documented limit, so zeros are counted and not
// held against anybody; torn or foreign content in the core is a failure. Played in a child, in a folder of its own.
//
//   core_dump [--memory MIB] [--bare]      --bare: this process itself aborts (exit by signal 6)
#include "page_content.h"
#include <sys/resource.h>
#include <sys/stat.h>

#define REGION 21

__attribute__((noreturn)) static void fill_and_abort(size_t pages)
{
    struct rlimit all = { RLIM_INFINITY, RLIM_INFINITY };
    setrlimit(RLIMIT_CORE, &all);
    void *data = map_pages(pages);
    fill_pages(data, 0, pages, REGION, 1);
    require_pages(data, 0, pages, REGION, 1, "before the abort");
    abort();
}

// Segments of a core file begin at page borders, so whole pages can be found in it by their labels.
static void look_into_core(int core, size_t pages, size_t *whole, size_t *labelled)
{
    uint64_t block[PAGE / 8];
    *whole = *labelled = 0;
    for (off_t at = 0; pread(core, block, PAGE, at) == (ssize_t)PAGE; at += PAGE) {
        const struct page_label *label = (const struct page_label *)block;
        if (label->magic != LABEL_MAGIC || label->is.region != REGION || label->is.index >= pages)
            continue;
        if (!page_matches(block, &label->is))
            continue; // a scratch page of this program itself, half overwritten
        *whole += 1;
    }
    for (size_t i = 0; i < pages; i++)
        *labelled += usual_identity(REGION, (uint32_t)i, 1).kind > KIND_SAME_FILLED;
}

static void tell_of_core(const char *folder, size_t pages, char *sentence, size_t size)
{
    struct stat facts;
    size_t whole, labelled;
    int core = open("core", O_RDONLY);
    if (core < 0 || fstat(core, &facts) != 0) {
        snprintf(sentence, size, "no core file in %s", folder);
        return;
    }
    look_into_core(core, pages, &whole, &labelled);
    close(core);
    snprintf(sentence, size, "core of %lld MiB with %zu of %zu labelled pages whole", (long long)facts.st_size >> 20,
             whole, labelled);
}

int main(int argc, char **argv)
{
    victim_begin(argc, argv, "--memory --bare", 120);
    size_t pages = (size_t)option_number("--memory", 96) * (MIB / PAGE);
    char folder[] = "/var/tmp/core_dump.XXXXXX", sentence[200];
    if (option_given("--bare"))
        fill_and_abort(pages);
    MUST(mkdtemp(folder) && chdir(folder) == 0);
    phase("waiting for a child that dumps core");
    pid_t child = start_child();
    if (child == 0)
        fill_and_abort(pages);
    int status;
    MUST(waitpid(child, &status, 0) == child);
    tell_of_core(folder, pages, sentence, sizeof sentence);
    unlink("core");
    MUST(chdir("/") == 0);
    rmdir(folder);
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGABRT)
        fail("child that aborts: expected death by signal %d, found wait status %#x", SIGABRT, status);
    return succeed("died of SIGABRT%s; %s", WCOREDUMP(status) ? " and dumped core" : "", sentence);
}
