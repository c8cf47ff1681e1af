// torture_channels.h - the ways by which torture lets the kernel read and write its pages.
//
// hazards.md, "Hangs": a fault inside a system call is another case than a fault in user mode. Each thread has its own
// channels; a child of fork closes what it inherited and opens its own.
#ifndef TORTURE_CHANNELS_H
#define TORTURE_CHANNELS_H
#include "torture_state.h"
#include <sys/socket.h>
#include <sys/uio.h>

#define CHANNEL_PAGES 8

enum channel_kind { CHANNEL_PIPE, CHANNEL_VMSPLICE, CHANNEL_SOCKET, CHANNEL_FILE, CHANNEL_VM };

struct channels {
    int pipe[2];
    int socket[2];
    int file;
};

static inline int open_nameless_file(void)
{
    const char *folder = getenv("TMPDIR");
    int file = open(folder ? folder : "/var/tmp", O_TMPFILE | O_RDWR, 0600);
    return file >= 0 ? file : memfd_create("torture", 0);
}

static inline void channels_open(struct channels *channels)
{
    MUST(pipe(channels->pipe) == 0);
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, channels->socket) == 0);
    MUST((channels->file = open_nameless_file()) >= 0);
}

static inline void channels_close(struct channels *channels)
{
    close(channels->pipe[0]);
    close(channels->pipe[1]);
    close(channels->socket[0]);
    close(channels->socket[1]);
    close(channels->file);
}

static inline ssize_t push_some(struct channels *channels, enum channel_kind kind, char *from, size_t bytes, size_t at)
{
    struct iovec piece = { from, bytes };
    switch (kind) {
    case CHANNEL_PIPE: return write(channels->pipe[1], from, bytes);
    case CHANNEL_VMSPLICE: return vmsplice(channels->pipe[1], &piece, 1, 0);
    case CHANNEL_SOCKET: return send(channels->socket[0], from, bytes, 0);
    case CHANNEL_FILE: return pwrite(channels->file, from, bytes, (off_t)at);
    default: return -1;
    }
}

static inline ssize_t pull_some(struct channels *channels, enum channel_kind kind, char *to, size_t bytes, size_t at)
{
    switch (kind) {
    case CHANNEL_PIPE:
    case CHANNEL_VMSPLICE: return read(channels->pipe[0], to, bytes);
    case CHANNEL_SOCKET: return recv(channels->socket[1], to, bytes, 0);
    case CHANNEL_FILE: return pread(channels->file, to, bytes, (off_t)at);
    default: return -1;
    }
}

static const char *const channel_names[] = { "pipe", "vmsplice", "socket", "file", "process_vm" };

static inline void require_progress(ssize_t moved, enum channel_kind kind, const char *direction, const void *at)
{
    if (moved <= 0)
        fail("%s by %s at %p: expected progress, the call returned %zd (%s)", direction, channel_names[kind], at, moved,
             strerror(errno));
}

// `from` goes to `to` through the channel; one of the two is memory under test.
static inline void carry(struct channels *channels, enum channel_kind kind, void *from, void *to, size_t bytes)
{
    struct iovec source = { from, bytes }, target = { to, bytes };
    if (kind == CHANNEL_VM) {
        ssize_t moved = process_vm_writev(getpid(), &source, 1, &target, 1, 0);
        if (moved != (ssize_t)bytes)
            fail("process_vm_writev from %p to %p: expected %zu bytes, found %zd (%s)", from, to, bytes, moved,
                 strerror(errno));
        return;
    }
    for (size_t done = 0; done < bytes;) {
        ssize_t moved = push_some(channels, kind, (char *)from + done, bytes - done, done);
        require_progress(moved, kind, "push", (char *)from + done);
        done += (size_t)moved;
    }
    for (size_t done = 0; done < bytes;) {
        ssize_t moved = pull_some(channels, kind, (char *)to + done, bytes - done, done);
        require_progress(moved, kind, "pull", (char *)to + done);
        done += (size_t)moved;
    }
}

#endif
