// syscall_buffers - system calls whose buffers are evicted pages: every byte must pass, in and out.
//
// hazards.md: a fault inside a system call is held in kernel mode; vmsplice pages move; O_DIRECT pins pages; a read by
// another process waits for a missing page or must answer. Each call is made on memory that a walk over a ballast has
// made cold, with one large buffer (2 MiB), so that one call takes hundreds of faults.
//
//   syscall_buffers [--memory MIB] [--call NAME]
#include "ballast.h"
#include <dirent.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>

#define PAGES ((size_t)512)
#define BYTES (PAGES * PAGE)
#define REGION 12

static unsigned char *out, *in; // cold buffers: `out` holds pages to be sent, `in` gets them
static uint32_t version;

static void make_cold(void)
{
    version++;
    fill_pages(out, 0, PAGES, REGION, version);
    memset(in, 0xee, BYTES);
    ballast_walk();
}

static void require_arrived(const char *when)
{
    require_pages(in, 0, PAGES, REGION, version, when);
    require_pages(out, 0, PAGES, REGION, version, when);
}

static int temporary_file(int flags)
{
    char path[] = "/var/tmp/syscall_buffers.XXXXXX";
    int file = mkostemp(path, flags);
    if (file >= 0)
        unlink(path);
    return file;
}

static void require_bytes(ssize_t got, size_t wanted, const char *call)
{
    if (got != (ssize_t)wanted)
        fail("%s: expected %zu bytes, found %zd (%s)", call, wanted, got, got < 0 ? strerror(errno) : "short");
}

static void call_file(int flags, const char *name)
{
    int file = temporary_file(flags);
    if (file < 0 && (flags & O_DIRECT))
        return; // this file system has none
    MUST(file >= 0);
    require_bytes(pwrite(file, out, BYTES, 0), BYTES, name);
    require_bytes(pread(file, in, BYTES, 0), BYTES, name);
    require_arrived(name);
    close(file);
}

static void call_read_write(void)
{
    call_file(0, "read and write of a file");
}

static void call_direct(void)
{
    call_file(O_DIRECT, "read and write with O_DIRECT");
}

// All odd pages first, then all even ones.
static void scatter(struct iovec *pieces, unsigned char *base)
{
    for (size_t i = 0; i < PAGES; i++) {
        size_t page = i < PAGES / 2 ? 2 * i + 1 : 2 * (i - PAGES / 2);
        pieces[i] = (struct iovec){ base + page * PAGE, PAGE };
    }
}

static void call_vectors(void)
{
    struct iovec from[PAGES], to[PAGES];
    int file = temporary_file(0);
    MUST(file >= 0);
    scatter(from, out);
    scatter(to, in);
    require_bytes(writev(file, from, PAGES), BYTES, "writev");
    require_bytes(preadv(file, to, PAGES, 0), BYTES, "preadv");
    require_arrived("writev and preadv");
    close(file);
}

struct streams {
    int from, to;
    bool splice;
};

static void *send_all(void *argument)
{
    struct streams *streams = argument;
    for (size_t done = 0; done < BYTES;) {
        struct iovec piece = { out + done, BYTES - done };
        struct msghdr message = { .msg_iov = &piece, .msg_iovlen = 1 };
        ssize_t sent = streams->splice ? vmsplice(streams->to, &piece, 1, 0) : sendmsg(streams->to, &message, 0);
        if (sent < 0 && errno == ENOTSOCK)
            sent = write(streams->to, piece.iov_base, piece.iov_len);
        if (sent <= 0)
            fail("sending from %p: %zd (%s)", piece.iov_base, sent, strerror(errno));
        done += (size_t)sent;
    }
    return NULL;
}

static void receive_all(struct streams *streams)
{
    for (size_t done = 0; done < BYTES;) {
        struct iovec piece = { in + done, BYTES - done };
        struct msghdr message = { .msg_iov = &piece, .msg_iovlen = 1 };
        ssize_t got = recvmsg(streams->from, &message, 0);
        if (got < 0 && errno == ENOTSOCK)
            got = read(streams->from, piece.iov_base, piece.iov_len);
        if (got <= 0)
            fail("receiving to %p: %zd (%s)", piece.iov_base, got, strerror(errno));
        done += (size_t)got;
    }
}

static void through_a_stream(const int ends[2], bool splice, const char *name)
{
    struct streams streams = { ends[0], ends[1], splice };
    pthread_t sender;
    MUST((errno = pthread_create(&sender, NULL, send_all, &streams)) == 0);
    receive_all(&streams);
    MUST((errno = pthread_join(sender, NULL)) == 0);
    require_arrived(name);
    close(ends[0]);
    close(ends[1]);
}

static void call_sockets(void)
{
    int ends[2];
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    through_a_stream(ends, false, "sendmsg and recvmsg");
}

static void call_pipe(void)
{
    int ends[2];
    MUST(pipe(ends) == 0);
    through_a_stream(ends, false, "write and read of a pipe");
}

static void call_vmsplice(void)
{
    int ends[2];
    MUST(pipe(ends) == 0);
    through_a_stream(ends, true, "vmsplice into a pipe");
}

static void make_files(const char *folder, int count)
{
    char path[300];
    for (int i = 0; i < count; i++) {
        snprintf(path, sizeof path, "%s/file-with-a-long-name-%04d", folder, i);
        int file = open(path, O_CREAT | O_WRONLY, 0600);
        MUST(file >= 0 && close(file) == 0);
    }
}

static void remove_files(const char *folder, int count)
{
    char path[300];
    for (int i = 0; i < count; i++) {
        snprintf(path, sizeof path, "%s/file-with-a-long-name-%04d", folder, i);
        unlink(path);
    }
    rmdir(folder);
}

struct kernel_entry { // struct linux_dirent64
    uint64_t inode;
    int64_t offset;
    uint16_t length;
    uint8_t type;
    char name[];
};

static int count_entries(int folder, unsigned char *buffer)
{
    int entries = 0;
    long got;
    while ((got = syscall(SYS_getdents64, folder, buffer, BYTES)) > 0)
        for (long at = 0; at < got; entries++)
            at += ((struct kernel_entry *)(buffer + at))->length;
    MUST(got == 0);
    return entries;
}

static void call_getdents(void)
{
    char folder[] = "/tmp/syscall_buffers.XXXXXX";
    enum { FILES = 500 };
    MUST(mkdtemp(folder));
    make_files(folder, FILES);
    int fd = open(folder, O_RDONLY | O_DIRECTORY);
    int found = count_entries(fd, in);
    close(fd);
    remove_files(folder, FILES);
    if (found != FILES + 2)
        fail("getdents into a cold buffer: expected %d entries, found %d", FILES + 2, found);
}

static void call_other_process(void)
{
    unsigned char *taken = map_shared(BYTES);
    pid_t owner = getpid();
    pid_t child = start_child();
    if (child == 0) {
        // The child asks for the parent's memory; it does not look at its own copy.
        struct iovec local = { taken, BYTES }, remote = { out, BYTES };
        ssize_t got = process_vm_readv(owner, &local, 1, &remote, 1, 0);
        if (got < 0 && errno == EPERM)
            _exit(3); // yama does not let a child look at its parent
        require_bytes(got, BYTES, "process_vm_readv of the parent by a child");
        require_pages(taken, 0, PAGES, REGION, version, "what a child read from its parent");
        _exit(0);
    }
    int status;
    MUST(waitpid(child, &status, 0) == child);
    if (status != 0 && status != 3 << 8)
        fail("child that reads its parent: expected exit status 0, found wait status %#x", status);
    munmap(taken, BYTES);
}

static void call_poll(void)
{
    struct pollfd *list = (struct pollfd *)in;
    size_t count = 1000;
    int ends[2];
    MUST(pipe(ends) == 0 && write(ends[1], "x", 1) == 1);
    for (size_t i = 0; i < count; i++)
        list[i * 1] = (struct pollfd){ .fd = ends[0], .events = POLLIN };
    ballast_walk();
    int ready = poll(list, count, 5000);
    if (ready != (int)count)
        fail("poll with a cold list of %zu: found %d ready (%s)", count, ready, strerror(errno));
    close(ends[0]);
    close(ends[1]);
}

struct call {
    const char *name;
    void (*make)(void);
};

static const struct call calls[] = {
    { "read_write", call_read_write }, { "direct", call_direct },     { "vectors", call_vectors },
    { "sockets", call_sockets },       { "pipe", call_pipe },         { "vmsplice", call_vmsplice },
    { "getdents", call_getdents },     { "poll", call_poll },         { "other_process", call_other_process },
};

int main(int argc, char **argv)
{
    victim_begin(argc, argv, "--memory --call", 180);
    const char *only = option_text("--call", NULL);
    int made = 0;
    out = map_pages(PAGES);
    in = map_pages(PAGES);
    ballast_make(option_number("--memory", 192));
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        if (only && strcmp(only, calls[i].name) != 0)
            continue;
        phase(calls[i].name);
        make_cold();
        calls[i].make();
        made++;
    }
    return made ? succeed("%d system calls on cold buffers", made) : 2;
}
