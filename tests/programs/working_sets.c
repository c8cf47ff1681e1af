// working_sets - one process with several sets of pages, each read from one end to the other when it is told.
//
// For the tests of the thrash detection document (Weiner 2013): a new working set takes the place of the old one
// (wschange), a stream does not (wsprotect). All sets are filled at the start, the first one last.
//
//   working_sets --folder FOLDER --sets N --mib-1 MIB ... --mib-4 MIB
//
// Orders come from the pipe FOLDER/1, a number each; the answer on stdout is `set N read`. 0 ends it after a last check.
#include "page_content.h"
#include <sys/stat.h>

#define MOST_SETS 4

static unsigned char *sets[MOST_SETS];
static size_t pages[MOST_SETS];

static void read_set(long number)
{
    phase("reading a set");
    require_pages(sets[number - 1], 0, pages[number - 1], (uint32_t)number, 1, "in a working set");
}

int main(int argc, char **argv)
{
    victim_begin(argc, argv, "--folder --sets --mib-1 --mib-2 --mib-3 --mib-4", 120);
    static const char *sizes[MOST_SETS] = {"--mib-1", "--mib-2", "--mib-3", "--mib-4"};
    long count = option_number("--sets", 2), number = 0;
    MUST(count >= 1 && count <= MOST_SETS);
    for (long i = count - 1; i >= 0; i--) {
        pages[i] = (size_t)option_number(sizes[i], 16) * (MIB / PAGE);
        sets[i] = map_pages(pages[i]);
        fill_pages(sets[i], 0, pages[i], (uint32_t)(i + 1), 1);
    }
    char path[400];
    snprintf(path, sizeof path, "%s/1", option_text("--folder", "."));
    MUST(mkfifo(path, 0600) == 0);
    FILE *orders = fopen(path, "r+");
    MUST(orders);
    say("1 is %d", getpid());
    while (fscanf(orders, "%ld", &number) == 1 && number >= 1 && number <= count) {
        read_set(number);
        say("set %ld read", number);
    }
    for (long i = 1; i <= count; i++)
        read_set(i);
    return succeed("%ld sets", count);
}
