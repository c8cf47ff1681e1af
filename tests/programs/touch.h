// touch.h - touches an address in user mode and says which signal that gave. One thread at a time.
#ifndef TOUCH_H
#define TOUCH_H
#include "victim.h"
#include <setjmp.h>

static sigjmp_buf touch_return;

static inline void touch_caught(int signal_number)
{
    siglongjmp(touch_return, signal_number);
}

static inline void touch_prepare(void)
{
    struct sigaction action = { .sa_handler = touch_caught };
    sigaction(SIGSEGV, &action, NULL);
    sigaction(SIGBUS, &action, NULL);
}

// 0, or the signal number.
static inline int touch_read(const void *address)
{
    int caught = sigsetjmp(touch_return, 1);
    if (caught == 0)
        (void)*(const volatile unsigned char *)address;
    return caught;
}

static inline int touch_write(void *address, unsigned char value)
{
    int caught = sigsetjmp(touch_return, 1);
    if (caught == 0)
        *(volatile unsigned char *)address = value;
    return caught;
}

// Every page of the range must answer with this signal (0: none), to reads and to writes.
static inline void touch_require(void *base, size_t first, size_t count, int on_read, const char *when)
{
    for (size_t i = first; i < first + count; i++) {
        int found = touch_read((char *)base + i * PAGE);
        if (found != on_read)
            fail("%s: reading page %p (page %zu): expected signal %d, found %d", when,
                 (void *)((char *)base + i * PAGE), i, on_read, found);
    }
}

#endif
