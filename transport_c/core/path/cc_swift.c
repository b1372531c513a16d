/* SPDX-License-Identifier: Apache-2.0
 *
 * Swift (SIGCOMM 2020): keep the queueing that our packets meet near a target. Above it the window is reduced in
 * proportion, once per round trip; below it the window grows by a step per round trip, and the step is a part of the
 * path's share and not a packet, for a collective is over before a packet per round trip comes to anything. Marked
 * packets reduce it as DCTCP does.
 *
 * A law of delay alone starves beside a TCP that fills the queue until it drops: the delay stays above any target that
 * is smaller than that queue, however little we send. So when three reductions have not halved the delay, the queue is
 * not ours, and delay says nothing about us: we then compete as TCP does, a packet more per round trip, and 0.7 of the
 * window when packets are lost while the queue is near its deepest. The delay falling below the target ends that.
 */
#include "core/path/cc.h"

enum { REDUCTIONS_IN_VAIN = 3 };

static void swift_init(ut_cc *cc)
{
    (void)cc;
}

static void compete(ut_cc *cc, const ut_cc_sample *s, ut_ns queueing)
{
    ut_swift *w = &cc->as.swift;
    w->deepest = UT_MAX2(w->deepest, queueing);
    if (s->lost && queueing >= w->deepest / 4 * 3 && ut_cc_may_cut(cc, s)) {
        ut_cc_cut_to(cc, s, cc->window / 10 * 7);
        w->deepest -= w->deepest / 16; /* queues change */
    } else if (ut_cc_is_full(cc, s)) {
        ut_cc_grow_by(cc, s, cc->packet);
    }
}

/* Above the target. */
static void reduce(ut_cc *cc, const ut_cc_sample *s, ut_ns queueing, ut_ns target)
{
    ut_swift *w = &cc->as.swift;
    if (w->reductions >= REDUCTIONS_IN_VAIN && queueing > w->reduced_delay / 2 &&
        cc->window < cc->share / 4) { /* else it was hardly tried */
        w->competing = true;
        w->deepest = queueing;
        cc->window = UT_MAX2(cc->window, w->reduced_from / 2);
        return;
    }
    if (w->reductions == 0) {
        w->reduced_delay = queueing;
        w->reduced_from = cc->window;
    }
    w->reductions++;
    uint64_t less = cc->window / 5 * 4 * (queueing - target) / queueing;
    ut_cc_cut_for_delay(cc, s, cc->window - UT_MIN2(less, cc->window / 2));
}

static void swift_feedback(ut_cc *cc, const ut_cc_sample *s)
{
    ut_swift *w = &cc->as.swift;
    w->packets += s->packets;
    w->ce_packets += s->ce_packets;
    if (s->rtt == 0)
        return;
    ut_ns target = ut_cc_target(cc), newest = ut_cc_queueing(cc, s), queueing = UT_MIN2(newest, w->queueing);
    w->queueing = newest;
    if (queueing < target) {
        w->reductions = 0;
        w->competing = false;
    }
    if (w->ce_packets && ut_cc_may_cut(cc, s)) {
        ut_cc_cut_to(cc, s, cc->window - cc->window / 2 * w->ce_packets / w->packets);
        w->packets = w->ce_packets = 0;
    } else if (w->competing) {
        compete(cc, s, queueing);
    } else if (queueing >= target) {
        if (ut_cc_may_cut(cc, s))
            reduce(cc, s, queueing, target);
    } else if (ut_cc_is_full(cc, s)) {
        ut_cc_grow_by(cc, s, cc->share / UT_CC_STEPS);
    }
    if (w->ce_packets == 0)
        w->packets = 0;
}

const ut_cc_ops ut_cc_swift = {"swift", swift_init, swift_feedback, ut_cc_quick_adapt, ut_cc_own_window};
