// io_uring_buffers - reads and writes by io_uring on evicted buffers, plain ones and registered ("fixed") ones.
//
// hazards.md: registered buffers are pinned, MOVE answers EBUSY, and they must be left alone: data that the kernel puts
// into a pinned page must be seen by the program. Raw system calls; "ok: ... not available" where io_uring is refused.
//
//   io_uring_buffers [--memory MIB] [--rounds N]
#include "ballast.h"
#include <linux/io_uring.h>
#include <sys/uio.h>

#define PAGES ((size_t)256)
#define REGION 13
#define ENTRIES 4

struct ring {
    int fd;
    _Atomic unsigned *sq_tail, *cq_head, *cq_tail;
    unsigned *sq_array, sq_mask, cq_mask;
    struct io_uring_sqe *sqes;
    struct io_uring_cqe *cqes;
};

static bool ring_open(struct ring *ring)
{
    struct io_uring_params params = { 0 };
    ring->fd = (int)syscall(SYS_io_uring_setup, ENTRIES, &params);
    if (ring->fd < 0)
        return false;
    size_t bytes = params.cq_off.cqes + params.cq_entries * sizeof(struct io_uring_cqe);
    int protection = PROT_READ | PROT_WRITE, flags = MAP_SHARED | MAP_POPULATE;
    char *rings = mmap(NULL, bytes, protection, flags, ring->fd, IORING_OFF_SQ_RING);
    size_t sqe_bytes = params.sq_entries * sizeof(struct io_uring_sqe);
    ring->sqes = mmap(NULL, sqe_bytes, protection, flags, ring->fd, IORING_OFF_SQES);
    MUST(rings != MAP_FAILED && ring->sqes != MAP_FAILED && (params.features & IORING_FEAT_SINGLE_MMAP));
    ring->sq_tail = (_Atomic unsigned *)(rings + params.sq_off.tail);
    ring->sq_mask = *(unsigned *)(rings + params.sq_off.ring_mask);
    ring->sq_array = (unsigned *)(rings + params.sq_off.array);
    ring->cq_head = (_Atomic unsigned *)(rings + params.cq_off.head);
    ring->cq_tail = (_Atomic unsigned *)(rings + params.cq_off.tail);
    ring->cq_mask = *(unsigned *)(rings + params.cq_off.ring_mask);
    ring->cqes = (struct io_uring_cqe *)(rings + params.cq_off.cqes);
    return true;
}

// One request, waited for.
static void ring_do(struct ring *ring, int opcode, int file, void *buffer, size_t bytes, const char *what)
{
    unsigned tail = atomic_load(ring->sq_tail), slot = tail & ring->sq_mask;
    ring->sqes[slot] = (struct io_uring_sqe){
        .opcode = (uint8_t)opcode, .fd = file, .addr = (uintptr_t)buffer, .len = (unsigned)bytes
    };
    ring->sq_array[slot] = slot;
    atomic_store(ring->sq_tail, tail + 1);
    while (syscall(SYS_io_uring_enter, ring->fd, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0) < 0)
        MUST(errno == EINTR);
    unsigned head = atomic_load(ring->cq_head);
    MUST(head != atomic_load(ring->cq_tail));
    int result = ring->cqes[head & ring->cq_mask].res;
    atomic_store(ring->cq_head, head + 1);
    if (result != (int)bytes)
        fail("%s of %zu bytes at %p: io_uring answered %d", what, bytes, buffer, result);
}

static void one_round(struct ring *ring, int file, unsigned char *out, unsigned char *in, bool fixed, uint32_t version)
{
    fill_pages(out, 0, PAGES, REGION, version);
    memset(in, 0xee, PAGES * PAGE);
    ballast_walk();
    ring_do(ring, fixed ? IORING_OP_WRITE_FIXED : IORING_OP_WRITE, file, out, PAGES * PAGE, "write");
    ballast_walk();
    ring_do(ring, fixed ? IORING_OP_READ_FIXED : IORING_OP_READ, file, in, PAGES * PAGE, "read");
    require_pages(in, 0, PAGES, REGION, version, fixed ? "read into a registered buffer" : "read into a buffer");
}

int main(int argc, char **argv)
{
    victim_begin(argc, argv, "--memory --rounds", 120);
    struct ring ring;
    if (!ring_open(&ring))
        return succeed("io_uring is not available: %s", strerror(errno));
    unsigned char *out = map_pages(PAGES), *in = map_pages(PAGES);
    int file = memfd_create("io_uring_buffers", 0);
    ballast_make(option_number("--memory", 192));
    long rounds = option_number("--rounds", 2);
    phase("plain buffers");
    for (long i = 0; i < rounds; i++)
        one_round(&ring, file, out, in, false, (uint32_t)(2 * i + 1));
    phase("registered buffers");
    // One index names one buffer: both requests use index 0, so it spans a mapping that holds both halves.
    unsigned char *both = map_pages(2 * PAGES);
    memset(both, 1, 2 * PAGES * PAGE);
    ballast_walk();
    struct iovec pinned = { both, 2 * PAGES * PAGE };
    if (syscall(SYS_io_uring_register, ring.fd, IORING_REGISTER_BUFFERS, &pinned, 1) != 0)
        return succeed("io_uring on plain buffers; registering was refused: %s", strerror(errno));
    for (long i = 0; i < rounds; i++)
        one_round(&ring, file, both, both + PAGES * PAGE, true, (uint32_t)(2 * i + 2));
    return succeed("io_uring on cold buffers, plain and registered");
}
