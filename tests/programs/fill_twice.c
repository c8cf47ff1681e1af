// fill_twice - fills memory, then reads it back several times, and prints the seconds: the plain workload for speed.
//
// Every byte is checked on every pass, by a check cheap enough (about 0.5 us a page) to leave the paging visible. Each
// pass with --write also gives every page new bytes, so that clean copies cannot be kept.
//
//   fill_twice [MIB] [PATTERN] [--reads N] [--write 1]
//   PATTERN: seq (text, read in order) | random (text, read in random order) | zero | incompressible | half (read in
//            order) | zero-random | incompressible-random | half-random (read in random order)
#include "victim.h"

#define WORDS (PAGE / 8)

static uint64_t *data;
static size_t pages;

typedef uint64_t content(uint64_t page, uint64_t word, uint64_t version);

static uint64_t content_zero(uint64_t page, uint64_t word, uint64_t version)
{
    (void)page, (void)word, (void)version;
    return 0;
}

static uint64_t content_incompressible(uint64_t page, uint64_t word, uint64_t version)
{
    return mix64((page << 20 ^ version) * WORDS + word);
}

// Eight letters out of sixteen pieces; the page's own number is in every eighth word.
static uint64_t content_text(uint64_t page, uint64_t word, uint64_t version)
{
    static const char pieces[16][9] = { "the page", " of that", " region ", "is cold;", " faults ", "bring it",
                                        " back to", " memory ", "and when", " written", " it goes", " again, ",
                                        "slot by ", "slot or ", "in batch", " reads.." };
    uint64_t letters;
    if (word % 8 == 0)
        return page << 16 ^ version;
    memcpy(&letters, pieces[(page * 7 + word * 5 + (word >> 4) * version) & 15], 8);
    return letters;
}

static uint64_t content_half(uint64_t page, uint64_t word, uint64_t version)
{
    return word < WORDS / 2 ? content_incompressible(page, word, version) : content_text(page, word, version);
}

static void fill_page(content *make, size_t page, uint64_t version)
{
    for (size_t word = 0; word < WORDS; word++)
        data[page * WORDS + word] = make(page, word, version);
}

static void check_page(content *make, size_t page, uint64_t version)
{
    for (size_t word = 0; word < WORDS; word++) {
        uint64_t expected = make(page, word, version), found = data[page * WORDS + word];
        if (found != expected)
            fail("page %p (page %zu, word %zu): expected %#llx, found %#llx", (void *)&data[page * WORDS], page, word,
                 (unsigned long long)expected, (unsigned long long)found);
    }
}

// Visits every page once: n -> (n * odd + offset) modulo a power of two, places past the end are left out.
static bool nth_page(size_t n, size_t span, uint64_t pass, bool in_order, size_t *page)
{
    *page = in_order ? n : (size_t)(n * (mix64(pass) | 1) + mix64(pass + 77)) & (span - 1);
    return *page < pages;
}

static double one_pass(content *make, uint64_t pass, bool in_order, bool writes)
{
    size_t span = 1, page;
    while (span < pages)
        span *= 2;
    double start = seconds_now();
    for (size_t n = 0; n < (in_order ? pages : span); n++) {
        if (!nth_page(n, span, pass, in_order, &page))
            continue;
        if (pass > 0)
            check_page(make, page, writes ? pass - 1 : 0);
        if (pass == 0 || writes)
            fill_page(make, page, pass);
    }
    return seconds_now() - start;
}

struct pattern {
    const char *name;
    content *make;
    bool in_order;
};

static const struct pattern patterns[] = {
    { "seq", content_text, true },          { "random", content_text, false },
    { "zero", content_zero, true },         { "incompressible", content_incompressible, true },
    { "half", content_half, true },         { "incompressible-random", content_incompressible, false },
    { "half-random", content_half, false }, { "zero-random", content_zero, false },
};

static const struct pattern *find_pattern(const char *name)
{
    for (size_t i = 0; i < sizeof patterns / sizeof patterns[0]; i++)
        if (strcmp(patterns[i].name, name) == 0)
            return &patterns[i];
    fprintf(stderr, "fill_twice: no pattern is named %s\n", name);
    exit(2);
}

int main(int argc, char **argv)
{
    victim_begin(argc, argv, "--reads --write", 600);
    const char *words[2] = { "192", "seq" };
    for (int i = 1, found = 0; i < argc && found < 2; i++) {
        if (argv[i][0] == '-')
            i++;
        else
            words[found++] = argv[i];
    }
    const struct pattern *pattern = find_pattern(words[1]);
    long reads = option_number("--reads", 2);
    bool writes = option_number("--write", 0) != 0;
    pages = strtoul(words[0], NULL, 0) * (MIB / PAGE);
    data = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(data != MAP_FAILED);
    phase("fill");
    say("fill %.3f s", one_pass(pattern->make, 0, true, writes));
    phase("read");
    for (long pass = 1; pass <= reads; pass++) {
        double seconds = one_pass(pattern->make, (uint64_t)pass, pattern->in_order, writes);
        say("read %ld %.3f s %.2f us a page", pass, seconds, seconds * 1e6 / (double)pages);
    }
    return succeed("%zu MiB %s, %ld reads", pages * PAGE / MIB, pattern->name, reads);
}
