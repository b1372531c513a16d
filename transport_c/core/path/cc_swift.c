/* SPDX-License-Identifier: Apache-2.0
 *
 * Swift (SIGCOMM 2020) keeps the queueing that packets meet near a target. Here the receiver does so, for all its
 * senders at once: a sender's own law of delay starves beside a TCP that fills the queue until it drops, and what it
 * takes for a queue is often the bursts of its own host. What is left to the sender is what Swift does with marks: they
 * reduce the window by half of their part, as DCTCP does, and it grows by a step per round trip. The step is a part of
 * what it had and not a packet, for a collective is over before a packet per round trip comes to anything.
 */
#include "core/path/cc.h"

static void swift_init(ut_cc *cc)
{
    (void)cc;
}

static void swift_feedback(ut_cc *cc, const ut_cc_sample *s)
{
    ut_swift *w = &cc->as.swift;
    w->packets += s->packets;
    w->ce_packets += s->ce_packets;
    if (w->ce_packets == 0) {
        w->packets = 0;
        if (ut_cc_is_full(cc, s))
            ut_cc_grow_by(cc, s, cc->share / UT_CC_STEPS);
    } else if (ut_cc_may_cut(cc, s)) {
        ut_cc_cut_to(cc, s, cc->window - cc->window / 2 * w->ce_packets / w->packets);
        w->packets = w->ce_packets = 0;
    }
}

const ut_cc_ops ut_cc_swift = {"swift", swift_init, swift_feedback, ut_cc_quick_adapt, ut_cc_own_window};
