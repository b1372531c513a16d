/* SPDX-License-Identifier: Apache-2.0
 *
 * The cap of a host (core/link/cap.h) as its daemon sets it, and what counts of what the driver sends by itself.
 */
#define _GNU_SOURCE
#include "loop.h"

void ut_driver_set_cap(ut_driver *d, uint64_t rate)
{
    if (!ut_driver_enter(d))
        return;
    ut_cap_set(&d->link->cap, rate, ut_driver_now());
    ut_driver_leave_poking(d, UT_OK); /* it may sleep for a time that the old rate would have taken */
}

struct ut_cap *ut_driver_cap(ut_driver *d)
{
    return &d->link->cap;
}

void ut_driver_count(ut_driver *d, uint32_t packets, uint64_t bytes)
{
    ut_cap_taker nobody = {.cap = &d->link->cap};
    ut_cap_sent(&nobody, packets, bytes, ut_driver_now());
}
