/* SPDX-License-Identifier: Apache-2.0 */
#include "pace.h"

static int64_t refill_of(const ut_backlog *b)
{
    return (int64_t)ut_backlog_mean(b);
}

void ut_pace_sent(ut_pace *p, uint64_t bytes)
{
    p->room -= (int64_t)bytes;
}

bool ut_pace_count(ut_pace *p, const ut_backlog *b, ut_ns now)
{
    const int64_t refill = refill_of(b);
    const uint64_t worth = UT_BACKLOG_WORTH_BYTES * (UT_SECOND / UT_BACKLOG_WORTH_NS);
    const bool slow = p->rate ? p->rate < worth - worth / UT_PACE_SLOWER_PART : b->rate < worth;
    if (!b->rate || slow) {
        *p = (ut_pace){0};
        return false;
    }
    if (!p->rate) {
        *p = (ut_pace){.rate = b->rate, .room = -(int64_t)b->queued, .at = now, .waits = true};
        return false;
    }
    const double per_ns = (double)p->rate / 1e9;
    const int64_t most = UT_MAX2((int64_t)(per_ns * UT_PACE_ROOM_NS), 2 * refill);
    p->room = UT_MIN2(p->room + (int64_t)(per_ns * (double)(now - p->at)), most);
    p->at = now;
    const bool waited = p->waits;
    p->waits = p->room < refill;
    return waited && !p->waits;
}

void ut_pace_step(ut_pace *p, const ut_backlog *b)
{
    if (b->queued < ut_backlog_mean(b) / UT_PACE_STANDS_PART) {
        const uint32_t doubles = p->rises / UT_PACE_UP_DOUBLES;
        p->rate += (p->rate / UT_PACE_UP_PART) << UT_MIN2(doubles, (uint32_t)UT_PACE_UP_DOUBLES_MOST);
        p->rises++;
        return;
    }
    p->rises = 0;
    p->rate = UT_MAX2(p->rate - p->rate / UT_PACE_DOWN_PART, b->rate - b->rate / UT_PACE_FLOOR_PART);
    p->room -= (int64_t)b->queued; /* it was sent before, and goes first */
    p->waits = p->room < refill_of(b) / UT_PACE_WORTH_PART;
}

uint64_t ut_pace_room(const ut_pace *p)
{
    if (!p->rate)
        return UINT64_MAX;
    return p->waits || p->room <= 0 ? 0 : (uint64_t)p->room;
}

ut_ns ut_pace_wake(const ut_pace *p, const ut_backlog *b)
{
    if (ut_pace_room(p) > 0)
        return UT_NEVER;
    const int64_t lacks = UT_MAX2(refill_of(b) - p->room, (int64_t)1);
    return p->at + (ut_ns)((double)lacks * 1e9 / (double)p->rate) + 1;
}
