/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "bell.h"

#include "driver.h"

#include <sys/socket.h>
#include <time.h>

static ut_ns worked_so_far(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (ut_ns)t.tv_sec * UT_SECOND + (ut_ns)t.tv_nsec;
}

void ut_bell_ring(ut_bell *b, ut_ns now)
{
    const char one = 1;
    const ut_ns before = b->doubted ? worked_so_far() : 0;
    if (send(b->fd, &one, sizeof(one), MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
        return; /* it is full, or the trainer has shut it: either way there is nobody to wake */
    ut_bell_rung(b, now, ut_driver_now() - now, b->doubted ? worked_so_far() - before : 0);
}

void ut_bell_rung(ut_bell *b, ut_ns now, ut_ns took, ut_ns worked)
{
    b->at = worked > UT_BELL_SLOW_NS ? now + UT_BELL_REST * worked : 0;
    b->doubted = took > UT_BELL_SLOW_NS;
}
