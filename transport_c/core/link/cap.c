/* SPDX-License-Identifier: Apache-2.0 */
#include "core/link/cap.h"
#include "core/link/tokens.h"

static uint64_t load(const uint64_t *p)
{
    return __atomic_load_n(p, __ATOMIC_RELAXED);
}

void ut_cap_join(ut_cap_taker *p, ut_cap *cap)
{
    *p = (ut_cap_taker){.cap = cap};
    if (cap)
        __atomic_fetch_add(&cap->takers, 1, __ATOMIC_RELAXED);
}

void ut_cap_leave(ut_cap_taker *p)
{
    if (p->cap)
        __atomic_fetch_sub(&p->cap->takers, 1, __ATOMIC_RELAXED);
    *p = (ut_cap_taker){.cap = NULL};
}

/* What was saved up or owed at the old rate says nothing of the new one. */
void ut_cap_set(ut_cap *cap, uint64_t rate, ut_ns now)
{
    if (load(&cap->rate) == rate)
        return;
    __atomic_store_n(&cap->free_at, now, __ATOMIC_RELAXED);
    __atomic_store_n(&cap->rate, rate, __ATOMIC_RELAXED);
}

static ut_ns time_of(uint64_t bytes, uint64_t rate)
{
    return (ut_ns)((double)bytes * 1e9 / (double)rate + 0.5);
}

/* Moves the clock on for |bytes|, and returns where it then stands. Who was silent has saved up what a thread that woke
 * late may make up for, and no more. */
static ut_ns advance(ut_cap *cap, uint64_t bytes, uint64_t rate, ut_ns now)
{
    const ut_ns cost = time_of(bytes, rate), saved = time_of(UT_TOKENS_MAX, rate);
    const ut_ns least = now > saved ? now - saved : 0;
    uint64_t at = load(&cap->free_at), next;
    do
        next = UT_MAX2(at, least) + cost;
    while (!__atomic_compare_exchange_n(&cap->free_at, &at, next, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    assert(next >= cost);
    return next;
}

uint32_t ut_cap_take(ut_cap_taker *p, uint32_t n, uint32_t packet, ut_ns now)
{
    const uint64_t rate = p && p->cap ? load(&p->cap->rate) : 0;
    if (rate == 0 || n == 0)
        return n;
    const uint32_t each = packet + p->cap->headers;
    if (p->rate != rate) {
        p->rate = rate;
        p->bytes = 0;
    }
    if (p->bytes < each) {
        const uint64_t more = ut_tokens_quantum(rate, each) - p->bytes;
        p->due = advance(p->cap, more, rate, now);
        p->bytes += more;
    }
    assert(p->bytes >= each && p->bytes <= UT_TOKENS_MAX);
    p->held = p->due > now;
    return p->held ? 0 : (uint32_t)UT_MIN2(n, p->bytes / each);
}

void ut_cap_sent(ut_cap_taker *p, uint32_t packets, uint64_t bytes, ut_ns now)
{
    const uint64_t rate = p->cap ? load(&p->cap->rate) : 0;
    if (rate == 0)
        return;
    const uint64_t all = bytes + (uint64_t)packets * p->cap->headers, own = UT_MIN2(all, p->bytes);
    p->bytes -= own;
    if (all > own)
        advance(p->cap, all - own, rate, now);
}

ut_ns ut_cap_pause(const ut_cap_taker *p, uint32_t packet)
{
    const uint64_t rate = p && p->cap ? load(&p->cap->rate) : 0;
    if (rate == 0)
        return 0;
    const uint32_t takers = __atomic_load_n(&p->cap->takers, __ATOMIC_RELAXED);
    const uint64_t quantum = ut_tokens_quantum(rate, packet + p->cap->headers);
    return time_of(quantum * UT_MAX2(takers, 1) * UT_MAX2(p->users, 1), rate);
}
