/* SPDX-License-Identifier: Apache-2.0
 *
 * TIMELY (SIGCOMM 2015), which the paper names: the window follows the gradient of the round trip. Below T_low it
 * grows, above T_high it shrinks, in between it grows while the delay falls and shrinks with the slope at which it
 * rises. Rates are windows here, and thresholds are of queueing: T_high is the target, T_low a tenth of it, as the
 * paper's 50 and 500 us. The gradient has no fixed point of its own, which is why Swift is the default.
 */
#include "core/path/cc.h"

enum {
    ONE = 1024,
    EWMA = 471,    /* 0.46 */
    BETA = 266,    /* 0.26 */
    CUT_MAX = 512, /* never below half at once */
    FALLING = 5,   /* samples after which growth is hurried */
    HURRIED = 5,   /* packets per round trip then */
};

static void timely_init(ut_cc *cc)
{
    (void)cc;
}

/* |share| in 1/1024. */
static void reduce_by(ut_cc *cc, const ut_cc_sample *s, uint64_t share)
{
    if (!ut_cc_may_cut(cc, s))
        return;
    if (cc->floor < cc->most)
        ut_cc_settle(cc, s);
    ut_cc_cut_for_delay(cc, s, cc->window - cc->window * UT_MIN2(share, (uint64_t)CUT_MAX) / ONE);
}

static void timely_feedback(ut_cc *cc, const ut_cc_sample *s)
{
    ut_timely *t = &cc->as.timely;
    if (s->rtt == 0)
        return;
    ut_ns queueing = ut_cc_queueing(cc, s), high = ut_cc_target(cc), low = high / 10;
    int64_t difference = t->rtt ? (int64_t)s->rtt - (int64_t)t->rtt : 0;
    t->rtt = s->rtt;
    t->gradient += (difference - t->gradient) * EWMA / ONE;
    t->falling = t->gradient <= 0 ? t->falling + 1 : 0;
    if (queueing > high) {
        reduce_by(cc, s, BETA * (queueing - high) / queueing);
        return;
    }
    if (queueing >= low && t->gradient > 0) {
        reduce_by(cc, s, BETA * (uint64_t)t->gradient / UT_MAX2(cc->base_rtt, low)); /* a base of 0 has no slope */
        return;
    }
    if (ut_cc_is_full(cc, s))
        ut_cc_grow_by(cc, s, (t->falling >= FALLING ? HURRIED : 1) * (uint64_t)cc->packet);
}

const ut_cc_ops ut_cc_timely = {"timely", timely_init, timely_feedback, ut_cc_quick_adapt, ut_cc_own_window};
