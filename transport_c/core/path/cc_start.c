/* SPDX-License-Identifier: Apache-2.0
 *
 * Which algorithm a path has. What the algorithms share is cc.c's.
 */
#include "core/path/cc.h"

static const ut_cc_ops *ops_of(unsigned congestion)
{
    static const ut_cc_ops *const table[UT_CC_END] = {
        [0] = &ut_cc_swift,           [UT_CC_SWIFT] = &ut_cc_swift,
        [UT_CC_DCTCP] = &ut_cc_dctcp, [UT_CC_TIMELY] = &ut_cc_timely,
        [UT_CC_NONE] = &ut_cc_none,
    };
    assert(congestion < UT_CC_END);
    return table[congestion];
}

void ut_cc_start(ut_cc *cc, unsigned congestion, ut_ns target, uint32_t packet, uint32_t peers, uint64_t credit)
{
    memset(cc, 0, sizeof *cc);
    cc->packet = packet;
    cc->peers = peers;
    cc->most = cc->share = cc->window = UT_MAX2(credit, (uint64_t)UT_CC_PACKETS_MIN * packet);
    cc->floor = peers > 1 ? cc->most : (uint64_t)UT_CC_PACKETS_MIN * packet;
    ut_cc_tune(cc, congestion, target);
}

void ut_cc_tune(ut_cc *cc, unsigned congestion, ut_ns target)
{
    cc->target = target;
    if (cc->ops == ops_of(congestion))
        return;
    cc->ops = ops_of(congestion);
    memset(&cc->as, 0, sizeof cc->as);
    cc->ops->init(cc);
}
