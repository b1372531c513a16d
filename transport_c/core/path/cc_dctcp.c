/* SPDX-License-Identifier: Apache-2.0
 *
 * DCTCP (SIGCOMM 2010, RFC 8257): the window shrinks by half of the share of packets that were marked, once per round
 * trip. For switches that mark above a low threshold. Until the first mark it doubles per round trip, then it grows by
 * a packet.
 */
#include "core/path/cc.h"

enum { ALPHA_ONE = 1024, GAIN_SHIFT = 4 }; /* g = 1/16 */

static void dctcp_init(ut_cc *cc)
{
    cc->as.dctcp.alpha = ALPHA_ONE; /* the first marks count in full */
}

static void dctcp_feedback(ut_cc *cc, const ut_cc_sample *s)
{
    ut_dctcp *d = &cc->as.dctcp;
    d->packets += s->packets;
    d->ce_packets += s->ce_packets;
    if (s->now - d->span_at >= s->srtt) {
        uint32_t share = (uint32_t)((uint64_t)d->ce_packets * ALPHA_ONE / d->packets);
        d->alpha += (share >> GAIN_SHIFT) - (d->alpha >> GAIN_SHIFT);
        d->packets = d->ce_packets = 0;
        d->span_at = s->now;
    }
    if (s->ce_packets) {
        d->marked = true;
        if (ut_cc_may_cut(cc, s))
            ut_cc_cut_to(cc, s, cc->window - cc->window * d->alpha / (2 * ALPHA_ONE));
    } else if (ut_cc_is_full(cc, s)) {
        if (d->marked)
            ut_cc_grow_by(cc, s, cc->packet);
        else
            ut_cc_grow(cc, s->acked);
    }
}

const ut_cc_ops ut_cc_dctcp = {"dctcp", dctcp_init, dctcp_feedback, ut_cc_quick_adapt, ut_cc_own_window};
