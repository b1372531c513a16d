/* SPDX-License-Identifier: Apache-2.0
 *
 * Lays objects out one behind the other in one piece of memory that the caller owns. The same code first counts the
 * bytes and then lays the objects out, so that the two cannot differ.
 */
#ifndef UT_CARVE_H
#define UT_CARVE_H

#include "core/base/ut.h"

typedef struct ut_carver {
    uint8_t *at; /* 64-byte aligned; NULL while only counting */
    size_t used;
} ut_carver;

/* Returns the next |bytes|, 64-byte aligned; NULL while only counting. */
static inline void *ut_carve(ut_carver *c, size_t bytes)
{
    size_t from = (c->used + 63) & ~(size_t)63;
    c->used = from + bytes;
    return c->at ? c->at + from : NULL;
}

#endif
