/* SPDX-License-Identifier: Apache-2.0 */
#include "backlog.h"

uint64_t ut_backlog_mean(const ut_backlog *b)
{
    const uint64_t worth = UT_MIN2(b->rate / (UT_SECOND / UT_BACKLOG_WORTH_NS), (uint64_t)UT_BACKLOG_WORTH_BYTES);
    return UT_MAX2(UT_MAX2(b->rate / (UT_SECOND / UT_BACKLOG_NS), (uint64_t)UT_BACKLOG_BYTES), worth);
}

static uint64_t high(const ut_backlog *b)
{
    return ut_backlog_mean(b) * 3 / 2;
}

static uint64_t low(const ut_backlog *b)
{
    return ut_backlog_mean(b) / 2;
}

/* What is worth a system call. */
static uint64_t least(const ut_backlog *b)
{
    return ut_backlog_mean(b) / 4;
}

bool ut_backlog_due(ut_backlog *b, bool sent, ut_ns now)
{
    if (!sent)
        return b->queued > 0 && now >= (b->full ? ut_backlog_wake(b) : b->at + UT_BACKLOG_NS / 2);
    if (!b->bounded && b->empty >= UT_BACKLOG_UNSEEN && ++b->skips < UT_BACKLOG_SELDOM)
        return false;
    b->skips = 0;
    return true;
}

/* |bytes| have left in |ns|, at least. */
static void measure(ut_backlog *b, uint64_t bytes, ut_ns ns)
{
    b->pulse_bytes += bytes;
    b->pulse_ns += ns;
    if (b->pulse_ns < UT_BACKLOG_PULSE_NS || b->pulse_bytes < UT_BACKLOG_PULSE_BYTES)
        return;
    const uint64_t sample = b->pulse_bytes * (UT_SECOND / UT_US) / (b->pulse_ns / UT_US);
    b->rate = b->rate ? (b->rate + sample) / 2 : sample;
    b->pulse_bytes = b->pulse_ns = 0;
}

void ut_backlog_look(ut_backlog *b, uint64_t queued, bool sent, ut_ns now)
{
    if (!sent && b->queued > 0 && now > b->at) {
        const uint64_t left = b->queued - UT_MIN2(queued, b->queued);
        const ut_ns took = now - b->at;
        /* A full queue that ran dry did so at some moment in between, so its rate may be higher, but not lower. Little
         * that was gone in no time tells nothing: a shaper lets pass at once what it has saved up. */
        const bool faster = b->full && took >= UT_BACKLOG_NS && left * UT_SECOND / took > b->rate;
        if (queued > 0 || faster)
            measure(b, left, took);
    }
    b->empty = queued > 0 ? 0 : UT_MIN2(b->empty + sent, (uint32_t)UT_BACKLOG_GONE);
    b->bounded = b->empty < UT_BACKLOG_GONE && (b->bounded || queued > 0);
    if (!b->bounded)
        b->rate = b->pulse_bytes = b->pulse_ns = 0;
    if (b->rate && sent)
        b->most = UT_MAX2(b->most, queued);
    b->queued = queued;
    b->at = now;
    b->full = b->bounded && queued > (b->full ? low(b) : high(b) - least(b));
}

uint64_t ut_backlog_burst(const ut_backlog *b, uint64_t sent)
{
    if (!b->bounded)
        return UINT64_MAX;
    const uint64_t there = b->queued + sent;
    if (b->full || there > high(b) - least(b))
        return 0;
    return UT_MIN2(high(b) - there, low(b));
}

ut_ns ut_backlog_wake(const ut_backlog *b)
{
    if (!b->full)
        return UT_NEVER;
    /* Bursts leave whole, so what has not left yet may leave at any moment; it is not worth looking all the time. */
    const uint64_t over = UT_MAX2(b->queued - low(b), least(b));
    return b->at + (b->rate ? UT_MIN2(over * UT_SECOND / b->rate, (ut_ns)UT_BACKLOG_WAKE_MAX_NS) : UT_BACKLOG_NS);
}
