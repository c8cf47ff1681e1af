// shared_log - processes append records from cold pages to one log, while others create and look up files beside it.
//
// hazards.md, "Hangs": a fault held inside a system call holds that call's locks: a second writer of the log, creat and
// stat in that directory, the reader of a pipe, all stood in D state. All of them must get on, no record be torn.
//
// With --in-calls 1 all memory is touched by pwrite alone: who is held there holds the log's lock.
//
//   shared_log [--memory MIB] [--processes N] [--rounds N] [--in-calls 1]      memory is the sum over the processes
#include "ballast.h"
#include <sys/stat.h>

#define RECORDS ((size_t)256) // of one page each, in every round and process
#define MAX_PROCESSES 16

static char folder[] = "/var/tmp/shared_log.XXXXXX";
static int log_file, line[2]; // line: a pipe on which every record is announced
static bool in_calls;

static void append_records(unsigned char *records, uint32_t writer, uint32_t round)
{
    fill_pages(records, 0, RECORDS, writer, round);
    ballast_walk();
    for (size_t i = 0; i < RECORDS; i++) {
        struct page_identity is = { .region = writer, .index = (uint32_t)i, .version = round, .kind = KIND_TEXT };
        page_render(records + i * PAGE, &is);
    }
    ballast_walk();
    for (size_t i = 0; i < RECORDS; i++) {
        MUST(write(log_file, records + i * PAGE, PAGE) == (ssize_t)PAGE);
        MUST(write(line[1], records + i * PAGE, sizeof(struct page_label)) == sizeof(struct page_label));
    }
}

static void use_the_folder(uint32_t writer, uint32_t round)
{
    char path[100];
    struct stat facts;
    snprintf(path, sizeof path, "%s/%u-%u", folder, writer, round);
    int file = open(path, O_CREAT | O_WRONLY | O_EXCL, 0600);
    MUST(file >= 0 && close(file) == 0 && stat(path, &facts) == 0 && unlink(path) == 0);
}

// Each writer has a place of its own in the file, and all have one lock.
static void write_all_memory(uint32_t writer)
{
    uint64_t back[PAGE / 8];
    for (size_t i = 0; i < ballast_pages; i++) {
        MUST(pwrite(log_file, ballast_base + i * PAGE, PAGE, (off_t)(writer * PAGE)) == (ssize_t)PAGE);
        MUST(pread(log_file, back, PAGE, (off_t)(writer * PAGE)) == (ssize_t)PAGE);
        struct page_identity is = usual_identity(BALLAST_REGION, (uint32_t)i, 1);
        page_require(back, &is, "page written from cold memory");
    }
}

__attribute__((noreturn)) static void child_writes(uint32_t writer, uint32_t rounds, long mib)
{
    unsigned char *records = map_pages(RECORDS);
    close(line[0]);
    ballast_make(mib);
    for (uint32_t round = 1; round <= rounds; round++) {
        if (in_calls) {
            write_all_memory(writer);
        } else {
            append_records(records, writer, round);
            use_the_folder(writer, round);
        }
    }
    _exit(0);
}

// The announcements arrive whole: they are shorter than PIPE_BUF.
static size_t read_announcements(void)
{
    struct page_label label;
    size_t count = 0;
    close(line[1]);
    for (ssize_t got; (got = read(line[0], &label, sizeof label)) != 0; count++)
        if (got != sizeof label || label.magic != LABEL_MAGIC)
            fail("announcement %zu: expected %zu bytes with a label, found %zd", count, sizeof label, got);
    return count;
}

static size_t check_log(void)
{
    uint64_t record[PAGE / 8];
    size_t count = 0;
    for (; pread(log_file, record, PAGE, (off_t)(count * PAGE)) == (ssize_t)PAGE; count++) {
        struct page_identity is = ((struct page_label *)record)->is;
        page_require(record, &is, "record of the log");
    }
    return count;
}

int main(int argc, char **argv)
{
    victim_begin(argc, argv, "--memory --processes --rounds --in-calls", 180);
    long processes = option_number("--processes", 4), rounds = option_number("--rounds", 2);
    in_calls = option_number("--in-calls", 0);
    if (processes < 1 || processes > MAX_PROCESSES)
        return 2;
    char path[100];
    pid_t children[MAX_PROCESSES];
    MUST(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/log", folder);
    log_file = open(path, O_CREAT | O_RDWR | (in_calls ? 0 : O_APPEND), 0600);
    MUST(log_file >= 0 && pipe(line) == 0);
    if (in_calls) // nothing stays behind, however this ends
        MUST(unlink(path) == 0 && rmdir(folder) == 0);
    for (long i = 0; i < processes; i++)
        if ((children[i] = start_child()) == 0)
            child_writes((uint32_t)i + 1, (uint32_t)rounds, option_number("--memory", 192) / processes);
    phase("reading announcements");
    size_t announced = read_announcements();
    for (long i = 0; i < processes; i++)
        wait_for_exit(children[i], 0, "writer of the log");
    size_t wanted = in_calls ? 0 : RECORDS * (size_t)(processes * rounds), found = in_calls ? 0 : check_log();
    if (!in_calls)
        MUST(unlink(path) == 0 && rmdir(folder) == 0);
    if (found != wanted || announced != wanted)
        fail("expected %zu records, found %zu in the log and %zu announced", wanted, found, announced);
    return succeed("%zu records by %ld processes", found, processes);
}
