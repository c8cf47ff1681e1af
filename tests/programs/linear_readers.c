// linear_readers - processes that map memory, fill it, and read all of it in order, pass after pass, checking every word.
//
// The test of swap over a network: the memory of all is several times what they may use, so that each page that is read
// pushes out another one. Prints the pages verified; with --progress each process prints a line for each pass.
//
//   linear_readers --processes N --memory MIB (of all) --passes N [--incompressible 1] [--timeout SECONDS]
#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, WORDS = PAGE / 8 };

static uint64_t mix(uint64_t x)
{
    x ^= x >> 30, x *= 0xbf58476d1ce4e5b9ull;
    x ^= x >> 27, x *= 0x94d049bb133111ebull;
    return x ^ x >> 31;
}

static bool noisy;

// Incompressible: every word its own number. Otherwise one word in eight, and text between.
static uint64_t content(uint64_t page, uint64_t word)
{
    return noisy || word % 8 == 0 ? mix(page * WORDS + word + 1) : 0x2065676170656874ull + word % 8;
}

static int one_process(unsigned number, size_t pages, unsigned passes)
{
    uint64_t *data = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED)
        return fprintf(stderr, "process %u: mmap: %s\n", number, strerror(errno)), 2;
    uint64_t first = (uint64_t)number << 32;
    for (size_t page = 0; page < pages; page++)
        for (size_t word = 0; word < WORDS; word++)
            data[page * WORDS + word] = content(first + page, word);
    for (unsigned pass = 0; pass < passes; pass++) {
        for (size_t page = 0; page < pages; page++)
            for (size_t word = 0; word < WORDS; word++)
                if (data[page * WORDS + word] != content(first + page, word))
                    return fprintf(stderr, "process %u, pass %u, page %zu, word %zu: %llx is wrong\n", number, pass, page,
                                   word, (unsigned long long)data[page * WORDS + word]), 1;
        printf("process %u pass %u\n", number, pass);
        fflush(stdout);
    }
    return 0;
}

static unsigned long option(int argc, char **argv, const char *name, unsigned long otherwise)
{
    for (int i = 1; i + 1 < argc; i++)
        if (!strcmp(argv[i], name))
            return strtoul(argv[i + 1], NULL, 10);
    return otherwise;
}

int main(int argc, char **argv)
{
    unsigned processes = option(argc, argv, "--processes", 8), passes = option(argc, argv, "--passes", 2);
    size_t pages = option(argc, argv, "--memory", 256) * 256 / processes;
    noisy = option(argc, argv, "--incompressible", 0);
    unsigned timeout = option(argc, argv, "--timeout", 0);
    for (unsigned number = 0; number < processes; number++) {
        pid_t pid = fork();
        if (pid < 0)
            return perror("fork"), 2;
        if (pid == 0) {
            alarm(timeout);
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            _exit(one_process(number, pages, passes));
        }
    }
    int worst = 0;
    for (unsigned n = 0; n < processes; n++) {
        int status;
        wait(&status);
        int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
        if (code > worst)
            worst = code;
    }
    printf("%s: %u processes, %zu pages each, %u passes\n", worst ? "FAILED" : "ok", processes, pages, passes);
    return worst;
}
