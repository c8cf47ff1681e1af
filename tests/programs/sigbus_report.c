// sigbus_report - reads all its pages with a SIGBUS handler and counts: good pages, and pages that gave SIGBUS.
//
// design.md, failure table: after a device read error or a bad checksum that page is poisoned and gives SIGBUS; all
// others go on. Wrong bytes are the failure. Run plain there is no SIGBUS. The harness reads "good" and "sigbus".
//
//   sigbus_report [--memory MIB] [--rounds N] [--kind incompressible|usual]
#include "page_content.h"
#include "touch.h"

#define REGION 22

static void *volatile bus_address;

static void caught_bus(int signal_number, siginfo_t *info, void *unused)
{
    (void)unused;
    bus_address = info->si_addr;
    siglongjmp(touch_return, signal_number);
}

static bool incompressible;

static struct page_identity identity_at(size_t page)
{
    struct page_identity is = usual_identity(REGION, (uint32_t)page, 1);
    if (incompressible)
        is.kind = KIND_RANDOM; // so that it is sent to the device rather than to the pool
    return is;
}

// True if it is good, false if it gave SIGBUS.
static bool read_page(unsigned char *data, size_t page)
{
    unsigned char *at = data + page * PAGE;
    if (touch_read(at + 64) == 0) {
        struct page_identity is = identity_at(page);
        page_require(at, &is, "page that gave no SIGBUS");
        return true;
    }
    if (((uintptr_t)bus_address & ~(PAGE - 1)) != (uintptr_t)at)
        fail("reading page %p gave SIGBUS with address %p", (void *)at, bus_address);
    return false;
}

int main(int argc, char **argv)
{
    victim_begin(argc, argv, "--memory --rounds --kind", 180);
    size_t pages = (size_t)option_number("--memory", 192) * (MIB / PAGE), good = 0, lost = 0;
    long rounds = option_number("--rounds", 2);
    incompressible = strcmp(option_text("--kind", "incompressible"), "usual") != 0;
    unsigned char *data = map_pages(pages);
    phase("fill");
    for (size_t page = 0; page < pages; page++) {
        struct page_identity is = identity_at(page);
        page_render(data + page * PAGE, &is);
    }
    struct sigaction action = { .sa_sigaction = caught_bus, .sa_flags = SA_SIGINFO };
    MUST(sigaction(SIGBUS, &action, NULL) == 0);
    say("filled");
    phase("read");
    for (long round = 0; round < rounds; round++) {
        good = lost = 0;
        for (size_t page = 0; page < pages; page++)
            *(read_page(data, page) ? &good : &lost) += 1;
        say("round %ld good %zu sigbus %zu", round + 1, good, lost);
    }
    return succeed("good %zu sigbus %zu of %zu pages", good, lost, pages);
}
