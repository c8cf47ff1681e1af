// foreign_reads - debuggers' ways into memory: /proc/self/mem and ptrace must give the right bytes or EIO, never others.
//
// hazards.md: both answer EIO on an evicted page (documented). What would be a failure is zeros or stale bytes; writes
// that were accepted must be seen. The numbers are printed, so the harness can watch the limit.
//
//   foreign_reads [--memory MIB]
#include "ballast.h"
#include <sys/ptrace.h>

#define PAGES ((size_t)1024)
#define REGION 23

static long right, refused;

static void through_proc_mem(unsigned char *data)
{
    uint64_t copy[PAGE / 8];
    int memory = open("/proc/self/mem", O_RDWR);
    MUST(memory >= 0);
    for (size_t page = 0; page < PAGES; page++) {
        struct page_identity is = usual_identity(REGION, (uint32_t)page, 1);
        ssize_t got = pread(memory, copy, PAGE, (off_t)(uintptr_t)(data + page * PAGE));
        if (got < 0 && errno == EIO) {
            refused++;
            continue;
        }
        MUST(got == (ssize_t)PAGE);
        page_require(copy, &is, "read through /proc/self/mem");
        right++;
    }
    for (size_t page = 0; page < PAGES; page += 2) {
        struct page_identity is = usual_identity(REGION, (uint32_t)page, 2);
        page_render(copy, &is);
        if (pwrite(memory, copy, PAGE, (off_t)(uintptr_t)(data + page * PAGE)) == (ssize_t)PAGE)
            require_pages(data, page, 1, REGION, 2, "written through /proc/self/mem");
    }
    close(memory);
}

// The child stops and is read word by word.
static void through_ptrace(unsigned char *data)
{
    int status;
    pid_t child = start_child();
    if (child == 0) {
        if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0)
            _exit(3);
        ballast_walk();
        raise(SIGSTOP);
        require_pages(data, 0, PAGES, REGION, 1, "in the child, after it was read by ptrace");
        _exit(0);
    }
    MUST(waitpid(child, &status, WUNTRACED) == child);
    if (!WIFSTOPPED(status))
        return; // tracing is not allowed here, or another tracer is there
    for (size_t page = 0; page < PAGES; page++) {
        struct page_identity is = usual_identity(REGION, (uint32_t)page, 1);
        uint64_t expected[PAGE / 8];
        page_render(expected, &is);
        errno = 0;
        uint64_t word = (uint64_t)ptrace(PTRACE_PEEKDATA, child, data + page * PAGE + 2048, NULL);
        if (errno == EIO || errno == EFAULT)
            refused++;
        else if (word != expected[256])
            fail("ptrace: word at %p of page %zu: expected %#llx, found %#llx", (void *)(data + page * PAGE + 2048), page,
                 (unsigned long long)expected[256], (unsigned long long)word);
        else
            right++;
    }
    MUST(ptrace(PTRACE_DETACH, child, NULL, NULL) == 0);
    wait_for_exit(child, 0, "child that was traced");
}

int main(int argc, char **argv)
{
    victim_begin(argc, argv, "--memory", 120);
    unsigned char *data = map_pages(PAGES);
    fill_pages(data, 0, PAGES, REGION, 1);
    ballast_make(option_number("--memory", 192));
    ballast_walk();
    phase("ptrace");
    through_ptrace(data);
    ballast_walk();
    phase("/proc/self/mem");
    through_proc_mem(data);
    return succeed("%ld foreign reads right, %ld refused with EIO", right, refused);
}
