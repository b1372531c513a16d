/* SPDX-License-Identifier: Apache-2.0 */
#include "core/link/rate.h"

static void note_carried(ut_rate *r, uint64_t carried, bool idle)
{
    if (idle)
        return;
    r->carried[r->pulses++ % UT_RATE_MEAN] = carried;
    if (r->pulses < UT_RATE_MEAN)
        return;
    uint64_t sum = 0;
    for (unsigned i = 0; i < UT_RATE_MEAN; i++)
        sum += r->carried[i];
    r->means += r->means < UT_RATE_MEANS_MIN;
    r->most = UT_MAX2(r->most, sum / UT_RATE_MEAN);
}

/* The rate has passed what was known of the link. */
static void end_cycle(ut_rate *r)
{
    if (r->most >= r->most_before + r->most_before / UT_RATE_STEP)
        r->means = UT_RATE_MEANS_MIN - UT_RATE_FREE; /* and more came through: see how much it is */
    else
        r->most -= r->most / UT_RATE_FADE;
    r->most_before = r->most;
    r->lift = 0;
}

void ut_rate_pulse(ut_rate *r, uint64_t carried, bool idle, bool held)
{
    note_carried(r, carried, idle);
    r->lift += held;
    if (r->lift == UT_RATE_CYCLE)
        end_cycle(r);
    if (r->means < UT_RATE_MEANS_MIN)
        r->most_before = r->most;
    r->found = r->found || r->means == UT_RATE_MEANS_MIN;
    bool known = r->means == UT_RATE_MEANS_MIN && r->most <= UT_RATE_MBYTES_MAX * UINT64_C(1000000);
    r->rate = known ? r->most / 1024 * (UT_RATE_LEAST + r->lift) : 0;
}
