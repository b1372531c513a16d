/* SPDX-License-Identifier: Apache-2.0 */
#include "coalesce.h"

void ut_coalesce_came(ut_coalesce *c, uint64_t packets, uint64_t messages, ut_ns now)
{
    c->read = now;
    if (packets == 0)
        return;
    if (now - c->came > UT_COALESCE_PULSE_NS) {
        c->begin = now;
        c->packets = c->messages = 0; /* what was is still the best guess of the rate */
    }
    c->came = now;
    c->packets += packets;
    c->messages += messages;
    if (now - c->begin < UT_COALESCE_PULSE_NS)
        return;
    const bool gathered = c->packets >= UT_COALESCE_GATHERED * c->messages;
    c->rate = gathered ? 0 : c->packets * (UT_SECOND / UT_US) / ((now - c->begin) / UT_US);
    c->begin = now;
    c->packets = c->messages = 0;
}

ut_ns ut_coalesce_span(uint64_t rate, ut_ns slack)
{
    if (rate == 0)
        return 0;
    const ut_ns outlasted = slack / 4 * UT_COALESCE_SLACK_QUARTERS, paid = UT_COALESCE_PACKETS * UT_SECOND / rate;
    return UT_MIN2(UT_MIN2(outlasted, paid), (ut_ns)UT_COALESCE_SPAN_MAX_NS);
}

ut_ns ut_coalesce_until(const ut_coalesce *c, uint64_t awaited, ut_ns now)
{
    const ut_ns span = now - c->came <= UT_COALESCE_PULSE_NS ? ut_coalesce_span(c->rate, c->slack) : 0;
    if (span == 0 || now >= c->read + span || awaited < 2 * c->rate * span / UT_SECOND + 1)
        return 0;
    return c->read + span;
}

ut_ns ut_coalesce_join(const ut_coalesce *c, ut_ns until, ut_ns other)
{
    return until && other > until && other - until <= (until - c->read) / 2 ? other : until;
}
