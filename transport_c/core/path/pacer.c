/* SPDX-License-Identifier: Apache-2.0 */
#include "core/path/pacer.h"

void ut_pacer_reset(ut_pacer *p)
{
    *p = (ut_pacer){.held_until = UT_NEVER};
}

void ut_pacer_set(ut_pacer *p, uint64_t window, ut_ns srtt, uint32_t packet, uint64_t large)
{
    p->rate = 0;
    if (window >= large || srtt < UT_PACER_SRTT_MIN_NS)
        return;
    /* A quarter above the window's own rate: the window must stay what decides, or it could never grow. */
    uint64_t rate = window * 1250000 / (srtt / 1000);
    uint64_t burst = UT_MIN2(rate / (UT_SECOND / UT_PACER_BURST_NS), (uint64_t)UT_PACER_BURST_MAX);
    p->rate = rate;
    p->burst = UT_MAX2(burst, (uint64_t)UT_PACER_BURST_PACKETS_MIN * packet);
}

uint32_t ut_pacer_take(ut_pacer *p, uint32_t n, uint32_t packet, ut_ns now)
{
    if (p->rate == 0 || n == 0)
        return n;
    if (now < p->next) {
        p->held_until = p->next;
        return 0;
    }
    return (uint32_t)UT_MIN2((uint64_t)n, UT_MAX2(p->burst / packet, 1));
}

void ut_pacer_sent(ut_pacer *p, uint32_t bytes, ut_ns now)
{
    if (p->rate == 0)
        return;
    /* A thread that woke late makes up for it, by one burst at most. */
    ut_ns behind = p->burst * UT_SECOND / p->rate;
    ut_ns from = UT_MAX2(p->next, now - UT_MIN2(behind, now));
    /* A round trip that a pause or a full queue made long says nothing of the next packets: nobody waits long for it.
     */
    p->next = UT_MIN2(from + bytes * UT_SECOND / p->rate, now + UT_PACER_WAIT_MAX_NS);
}
