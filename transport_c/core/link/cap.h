/* SPDX-License-Identifier: Apache-2.0
 *
 * The cap of a host: how many bytes a second it sends in all, for all of its jobs and lanes and for whoever it relays
 * packets for. tokens.h bounds one job; this bounds their sum.
 *
 * The host has one clock, which says when all that was let go so far will have gone at that rate (the virtual
 * scheduling of ITU-T I.371). Whoever sends, an engine or a relay, is a *taker*. It takes a quantum: that moves the
 * clock on by what those bytes need, and they may go once the clock has been reached. So takers are served in the order
 * in which they asked, and none has to know of another. What cannot wait (feedback, grants, path packets) goes at once,
 * and moves the clock as well: data then waits for it.
 *
 * Takers run in threads of their own. What they share are the words of ut_cap, each atomic by itself.
 */
#ifndef UT_CAP_H
#define UT_CAP_H

#include "core/base/ut.h"

/* Of a host. All zero: nothing is bounded. */
typedef struct ut_cap {
    uint64_t rate;    /* bytes a second; 0: any */
    uint64_t free_at; /* the clock */
    uint32_t takers;  /* that it has */
    uint32_t headers; /* bytes that the network adds to each packet, which count as well */
} ut_cap;

/* Of whoever sends. All zero: it has no cap. */
typedef struct ut_cap_taker {
    ut_cap *cap;
    uint64_t rate;  /* at which its quantum was taken */
    uint64_t bytes; /* that are left of it */
    ut_ns due;      /* when they may go */
    uint32_t users; /* that share it: jobs of an engine, each of which has a quantum in turn */
    bool held;      /* data waits for the cap alone */
} ut_cap_taker;

/* |cap| NULL: the taker is not bounded. */
void ut_cap_join(ut_cap_taker *p, ut_cap *cap);
void ut_cap_leave(ut_cap_taker *p);
/* From any thread; it is in force at once. |rate|: bytes a second, 0 for any. */
void ut_cap_set(ut_cap *cap, uint64_t rate, ut_ns now);
/* Somebody begins to look for data to send. */
static inline void ut_cap_look(ut_cap_taker *p)
{
    p->held = false;
}
/* Returns how many of |n| packets of |packet| bytes may be sent. If none may, the taker remembers that data waits.
 * |p| NULL: all. */
uint32_t ut_cap_take(ut_cap_taker *p, uint32_t n, uint32_t packet, ut_ns now);
/* So much was sent, whether it had been asked for or not. */
void ut_cap_sent(ut_cap_taker *p, uint32_t packets, uint64_t bytes, ut_ns now);
/* When the data that waits may be sent; UT_NEVER if no data waits. */
static inline ut_ns ut_cap_wake(const ut_cap_taker *p)
{
    return p->held ? p->due : UT_NEVER;
}
/* For how long a user of |p| sends nothing between two quanta, though its data waits, if all takers and users have
 * some; 0 without a cap. |p| NULL: 0. */
ut_ns ut_cap_pause(const ut_cap_taker *p, uint32_t packet);

#endif
