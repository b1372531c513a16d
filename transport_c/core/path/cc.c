/* SPDX-License-Identifier: Apache-2.0 */
#include "core/path/cc.h"

#include "core/path/due.h"

static void note_rtt(ut_cc *cc, const ut_cc_sample *s)
{
    if (cc->base_rtt == 0 || s->now - cc->base_at >= UT_CC_BASE_SPAN) {
        cc->base_rtt = cc->base_rtt == 0 ? s->rtt : cc->base_next;
        cc->base_next = s->rtt;
        cc->base_at = s->now;
    }
    cc->base_next = UT_MIN2(cc->base_next, s->rtt);
    cc->base_rtt = UT_MIN2(cc->base_rtt, s->rtt);
}

static void begin_span(ut_cc *cc, const ut_cc_sample *s)
{
    cc->span_at = s->now;
    cc->span_sent = s->sent;
    cc->flew = s->flying;
    cc->span_bytes = cc->span_packets = cc->span_lost = 0;
}

/* A sender that runs dry, or whose turn it is not, does not measure the path: only spans count in which it sent. */
static void note_loss(ut_cc *cc, const ut_cc_sample *s)
{
    cc->flew = UT_MAX2(cc->flew, s->flying);
    cc->span_bytes += s->acked;
    cc->span_packets += s->packets + s->lost;
    cc->span_lost += s->lost;
    ut_ns lasted = s->now - cc->span_at;
    if (cc->span_packets >= UT_CC_SPAN_PACKETS && lasted >= s->srtt && s->srtt) {
        if (cc->span_lost >= UT_CC_SPAN_LOST && s->sent - cc->span_sent >= ut_cc_used(cc, s) &&
            (uint64_t)cc->span_lost * 100 > (uint64_t)cc->span_packets * UT_CC_LOSS_PERCENT)
            cc->ops->on_loss(cc, s, cc->span_bytes * (s->srtt + UT_HOLD_NS) / lasted);
        begin_span(cc, s);
    }
    if (s->idle)
        begin_span(cc, s);
}

void ut_cc_feedback(ut_cc *cc, const ut_cc_sample *s)
{
    if (!cc->ops)
        return;
    if (s->rtt)
        note_rtt(cc, s);
    if (s->ce_packets)
        ut_cc_settle(cc, s);
    if (s->packets)
        cc->ops->on_feedback(cc, s);
    note_loss(cc, s);
}

uint64_t ut_cc_own_window(const ut_cc *cc)
{
    return cc->window;
}

ut_ns ut_cc_target(const ut_cc *cc)
{
    return cc->target ? UT_MAX2(cc->target, (ut_ns)UT_CC_TARGET_MIN_NS) : (ut_ns)UT_CC_TARGET_NS;
}

ut_ns ut_cc_queueing(const ut_cc *cc, const ut_cc_sample *s)
{
    return s->rtt > cc->base_rtt ? s->rtt - cc->base_rtt : 0;
}

bool ut_cc_is_full(const ut_cc *cc, const ut_cc_sample *s)
{
    return s->flying >= cc->window / 2;
}

uint64_t ut_cc_used(const ut_cc *cc, const ut_cc_sample *s)
{
    uint64_t flew = UT_MAX2(cc->flew, s->flying);
    return UT_MIN2(cc->window, UT_MAX2(flew, (uint64_t)UT_CC_PACKETS_MIN * cc->packet));
}

void ut_cc_settle(ut_cc *cc, const ut_cc_sample *s)
{
    if (cc->window == cc->most)
        cc->window = cc->share = ut_cc_used(cc, s);
}

bool ut_cc_may_cut(const ut_cc *cc, const ut_cc_sample *s)
{
    return cc->reduced_at == 0 || s->sent_at > cc->reduced_at;
}

void ut_cc_grow(ut_cc *cc, uint64_t bytes)
{
    cc->window += bytes;
    if (cc->window >= cc->share)
        cc->window = cc->share = cc->most;
}

void ut_cc_grow_by(ut_cc *cc, const ut_cc_sample *s, uint64_t bytes)
{
    assert(cc->window > 0);
    ut_cc_grow(cc, UT_MAX2(bytes * UT_MIN2(s->acked, cc->window) / cc->window, 1));
}

void ut_cc_cut_to(ut_cc *cc, const ut_cc_sample *s, uint64_t window)
{
    uint64_t least = (uint64_t)UT_CC_PACKETS_MIN * cc->packet;
    cc->window = UT_MAX2(UT_MIN2(cc->window, window), least);
    cc->reduced_at = s->now;
    cc->reductions++;
    assert(cc->window >= least);
}

void ut_cc_cut_for_delay(ut_cc *cc, const ut_cc_sample *s, uint64_t window)
{
    ut_cc_cut_to(cc, s, UT_MAX2(window, cc->floor));
}

void ut_cc_quick_adapt(ut_cc *cc, const ut_cc_sample *s, uint64_t delivered)
{
    if (delivered >= ut_cc_used(cc, s) / UT_CC_ADAPT_BELOW || !ut_cc_may_cut(cc, s))
        return;
    ut_cc_settle(cc, s);
    cc->quick_adapts++;
    ut_cc_cut_to(cc, s, UT_MAX2(delivered, cc->window / 16)); /* a span is a rough measure */
}
