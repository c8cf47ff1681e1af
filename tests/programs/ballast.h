// ballast.h - memory pressure by an ordinary program: a big region that is walked again and again.
//
// One walk over the ballast (larger than the RAM the victim is given) makes everything else cold, so that the pages
// under test are evicted between two steps of a test. The ballast is checked on every walk: it is under test as well.
#ifndef BALLAST_H
#define BALLAST_H
#include "page_content.h"
#include <pthread.h>
#include <stdatomic.h>

#define BALLAST_REGION 0xba11u

static unsigned char *ballast_base;
static size_t ballast_pages;
static pthread_t ballast_walker;
static atomic_bool ballast_walker_stops;

static inline void ballast_make(long mib)
{
    ballast_pages = (size_t)mib * (MIB / PAGE);
    ballast_base = map_pages(ballast_pages);
    fill_pages(ballast_base, 0, ballast_pages, BALLAST_REGION, 1);
}

// Makes what was not touched lately cold.
static inline void ballast_walk(void)
{
    require_pages(ballast_base, 0, ballast_pages, BALLAST_REGION, 1, "walk over the ballast");
}

static inline void *ballast_walk_until_told(void *unused)
{
    for (size_t i = 0; !atomic_load(&ballast_walker_stops); i = (i + 1) % ballast_pages)
        require_pages(ballast_base, i, 1, BALLAST_REGION, 1, "walk over the ballast beside the test");
    return unused;
}

// Pressure beside the test: a thread that walks until ballast_rest().
static inline void ballast_walk_aside(void)
{
    atomic_store(&ballast_walker_stops, false);
    MUST((errno = pthread_create(&ballast_walker, NULL, ballast_walk_until_told, NULL)) == 0);
}

static inline void ballast_rest(void)
{
    atomic_store(&ballast_walker_stops, true);
    MUST((errno = pthread_join(ballast_walker, NULL)) == 0);
}

#endif
