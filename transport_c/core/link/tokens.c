/* SPDX-License-Identifier: Apache-2.0 */
#include "core/link/tokens.h"

void ut_tokens_init(ut_tokens *t, uint64_t limit)
{
    *t = (ut_tokens){.limit = limit};
}

static void refill(ut_tokens *t, uint64_t rate, ut_ns now)
{
    ut_ns elapsed = UT_MIN2(now - t->at, UT_SECOND);
    uint64_t more = (uint64_t)((double)rate * (double)elapsed / 1e9);
    if (more == 0)
        return;
    t->bytes = UT_MIN2(t->bytes + more, (uint64_t)UT_TOKENS_MAX);
    t->at = now;
    assert(t->bytes <= UT_TOKENS_MAX);
}

uint64_t ut_tokens_quantum(uint64_t rate, uint32_t packet)
{
    uint64_t few = (uint64_t)UT_TOKENS_QUANTUM_PACKETS * packet;
    return UT_MIN2(UT_MAX2(rate / (UT_SECOND / UT_TOKENS_QUANTUM_NS), few), (uint64_t)UT_TOKENS_MAX);
}

uint32_t ut_tokens_take(ut_tokens *t, uint32_t n, uint32_t packet, ut_ns now)
{
    assert(packet > 0);
    uint64_t rate = t->limit;
    if (rate == 0 || n == 0)
        return n;
    refill(t, rate, now);
    t->spent = t->bytes < (t->spent ? ut_tokens_quantum(rate, packet) : packet);
    if (t->spent) {
        t->held = true;
        return 0;
    }
    return (uint32_t)UT_MIN2(n, t->bytes / packet);
}

void ut_tokens_sent(ut_tokens *t, uint32_t bytes)
{
    t->bytes -= UT_MIN2(t->bytes, bytes);
}

ut_ns ut_tokens_pause(const ut_tokens *t, uint32_t packet)
{
    return t->limit ? (ut_ns)((double)ut_tokens_quantum(t->limit, packet) * 1e9 / (double)t->limit) : 0;
}

ut_ns ut_tokens_wake(const ut_tokens *t, uint32_t packet)
{
    uint64_t rate = t->limit;
    if (!t->held || rate == 0)
        return UT_NEVER;
    uint64_t needed = ut_tokens_quantum(rate, packet);
    uint64_t lacking = needed > t->bytes ? needed - t->bytes : 0;
    return t->at + (ut_ns)((double)lacking * 1e9 / (double)rate) + UT_US;
}
