// exec_from_thread - a thread that is not the first one calls exec while others run and memory is evicted.
//
// hazards.md: process_vm_readv after exec reads the new image (same pid, other program), and all other threads vanish
// in the midst of their faults. The new image fills the same amount of memory with other bytes and checks it; a stale
// eviction would mix the two. Several generations.
//
//   exec_from_thread [--memory MIB] [--generations N]
#include "ballast.h"

static char **words;
static long left;

static void *exec_now(void *unused)
{
    char generations[24], memory[24], timeout[24];
    snprintf(generations, sizeof generations, "%ld", left - 1);
    snprintf(memory, sizeof memory, "%ld", option_number("--memory", 128));
    snprintf(timeout, sizeof timeout, "%ld", (long)(victim_deadline - seconds_now()) + 1);
    sleep_micros(20000);
    execl("/proc/self/exe", words[0], "--memory", memory, "--generations", generations, "--timeout", timeout,
          "--later-image", (char *)NULL);
    fail("exec: %s", strerror(errno));
    return unused;
}

int main(int argc, char **argv)
{
    victim_begin(argc, argv, "--memory --generations --later-image", 120);
    words = argv;
    left = option_number("--generations", 4);
    pid_t me = getpid();
    uint32_t version = (uint32_t)left + 100;
    size_t pages = (size_t)option_number("--memory", 128) * (MIB / PAGE);
    unsigned char *data = map_pages(pages);
    phase("an image fills its memory");
    require_zero_pages(data, 0, pages / 8, 1, "fresh memory of a new image");
    fill_pages(data, 0, pages, 1, version);
    require_pages(data, 0, pages, 1, version, "memory of an image");
    if (left == 0)
        return succeed("pid %d, the last image, found its memory whole", me);
    pthread_t caller;
    MUST((errno = pthread_create(&caller, NULL, exec_now, NULL)) == 0);
    phase("waiting to be replaced by exec");
    for (;;) // this thread is faulting when the exec comes
        require_pages(data, 0, pages, 1, version, "memory while another thread calls exec");
}
