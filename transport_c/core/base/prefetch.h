/* SPDX-License-Identifier: Apache-2.0
 *
 * Asking for memory before it is needed. Buckets are larger than caches, and a host passes over them slot by slot: a
 * packet of one peer here, of another one there. The CPU's own prefetchers learn a stream from its first lines and stop
 * at the end of a page, so they are late for the half of a slot of 1,440 bytes, and each slot waits for memory anew. We
 * know what comes next: the slots of a transfer follow each other.
 *
 * It asks for the second-level cache. The first level has room for few requests at a time, and the memory that is
 * worked on now needs them.
 */
#ifndef UT_PREFETCH_H
#define UT_PREFETCH_H

#include <stddef.h>
#include <stdint.h>

enum {
    UT_CACHE_LINE = 64,
    /* How far ahead, in bytes: more than a core passes over while memory answers, and little beside a second-level
     * cache, even for many peers. 3 to 17 KB differed by 3 % at most. */
    UT_PREFETCH_AHEAD = 8 << 10,
};

/* Asks for the |len| bytes that lie UT_PREFETCH_AHEAD behind |p|, whether they are to be read or written.
 * They need not exist. */
static inline void ut_prefetch_ahead(const void *p, size_t len)
{
    const uintptr_t from = (uintptr_t)p + UT_PREFETCH_AHEAD;
    for (size_t at = 0; at < len; at += UT_CACHE_LINE)
        __builtin_prefetch((const void *)(from + at), 0, 2);
}

#endif
