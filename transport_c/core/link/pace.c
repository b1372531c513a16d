/* SPDX-License-Identifier: Apache-2.0 */
#include "core/link/pace.h"

void ut_pace_init(ut_pace *p, uint64_t limit)
{
    *p = (ut_pace){.limit = limit};
}

static uint64_t in_force(const ut_pace *p)
{
    return p->rate && p->limit ? UT_MIN2(p->rate, p->limit) : UT_MAX2(p->rate, p->limit);
}

static void refill(ut_pace *p, uint64_t rate, ut_ns now)
{
    ut_ns elapsed = UT_MIN2(now - p->tokens_at, UT_SECOND);
    uint64_t more = (uint64_t)((double)rate * (double)elapsed / 1e9);
    if (more == 0)
        return;
    p->tokens = UT_MIN2(p->tokens + more, (uint64_t)UT_PACE_BURST_BYTES);
    p->tokens_at = now;
}

/* Bytes for which it is worth waking. */
static uint64_t quantum(uint64_t rate, uint32_t packet)
{
    uint64_t few = (uint64_t)UT_PACE_BURST_PACKETS * packet;
    return UT_MIN2(UT_MAX2(rate / (UT_SECOND / UT_PACE_BURST_NS), few), (uint64_t)UT_PACE_BURST_BYTES);
}

uint32_t ut_pace_take(ut_pace *p, uint32_t n, uint32_t packet, ut_ns now)
{
    uint64_t rate = in_force(p);
    if (rate == 0 || n == 0)
        return n;
    refill(p, rate, now);
    p->spent = p->tokens < (p->spent ? quantum(rate, packet) : packet);
    if (p->spent) {
        p->held = p->was_held = true;
        return 0;
    }
    return (uint32_t)UT_MIN2(n, p->tokens / packet);
}

void ut_pace_sent(ut_pace *p, uint32_t bytes)
{
    p->tokens -= UT_MIN2(p->tokens, bytes);
}

ut_ns ut_pace_wake(const ut_pace *p, uint32_t packet)
{
    uint64_t rate = in_force(p);
    if (!p->held || rate == 0)
        return UT_NEVER;
    uint64_t needed = quantum(rate, packet);
    uint64_t lacking = needed > p->tokens ? needed - p->tokens : 0;
    return p->tokens_at + (ut_ns)((double)lacking * 1e9 / (double)rate) + UT_US;
}

static void note_carried(ut_pace *p, uint64_t carried, bool idle)
{
    if (idle)
        return;
    p->carried[p->pulses++ % UT_PACE_MEAN] = carried;
    if (p->pulses < UT_PACE_MEAN)
        return;
    uint64_t sum = 0;
    for (unsigned i = 0; i < UT_PACE_MEAN; i++)
        sum += p->carried[i];
    p->means += p->means < UT_PACE_MEANS_MIN;
    p->most = UT_MAX2(p->most, sum / UT_PACE_MEAN);
}

/* The pace has passed what was known of the link. */
static void end_cycle(ut_pace *p)
{
    if (p->most >= p->most_before + p->most_before / UT_PACE_STEP)
        p->means = UT_PACE_MEANS_MIN - UT_PACE_FREE; /* and more came through: see how much it is */
    else
        p->most -= p->most / UT_PACE_FADE;
    p->most_before = p->most;
    p->lift = 0;
}

void ut_pace_pulse(ut_pace *p, uint64_t carried, bool idle)
{
    note_carried(p, carried, idle);
    p->lift += p->was_held;
    p->was_held = false;
    if (p->lift == UT_PACE_CYCLE)
        end_cycle(p);
    if (p->means < UT_PACE_MEANS_MIN)
        p->most_before = p->most;
    bool known = p->means == UT_PACE_MEANS_MIN && p->most <= UT_PACE_MBYTES_MAX * UINT64_C(1000000);
    p->rate = known ? p->most / 1024 * (UT_PACE_LEAST + p->lift) : 0;
}
