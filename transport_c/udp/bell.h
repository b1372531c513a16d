/* SPDX-License-Identifier: Apache-2.0
 *
 * A bell wakes a trainer: a byte on a socket at whose other end it waits. A ring takes about a microsecond, but a
 * trainer may have made it slow, with thousands of watchers on its end. Then it is rung so seldom that it takes no more
 * than a share of the thread's time.
 *
 * What counts is the time for which the thread worked, not the time that passed: the ring wakes a trainer, which often
 * takes the CPU at once, so that the ring returns when it has done its own work. To ask how long a thread has worked is
 * a system call, so that is asked only of a bell whose last ring took long by the clock.
 */
#ifndef UT_UDP_BELL_H
#define UT_UDP_BELL_H

#include "core/base/ut.h"

enum {
    UT_BELL_SLOW_NS = 100000, /* of work: a bell that took this long is then left alone */
    UT_BELL_REST = 20,        /* for so many times as long */
};

typedef struct ut_bell {
    int fd;
    bool doubted; /* the last ring took long by the clock */
    ut_ns at;     /* the earliest time for the next ring; 0: at once */
} ut_bell;

/* Rings. A bell that nobody hears any more is silent. */
void ut_bell_ring(ut_bell *b, ut_ns now);
/* A ring that began at |now| has taken |took| by the clock. |worked|: of these the thread's own; 0 unless the bell was
 * doubted. */
void ut_bell_rung(ut_bell *b, ut_ns now, ut_ns took, ut_ns worked);

#endif
