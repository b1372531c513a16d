/* SPDX-License-Identifier: Apache-2.0
 *
 * A parameter server: a baseline. Every host sends its whole bucket to host 0, which folds and sends the result to all.
 *
 * The server stays the same for all ops: what one wants to see of this schedule is what a server's one link does to it.
 * Taking turns by op would spread the load of overlapping ops over all links, which is half of the way to TAR.
 */
#include "core/plan/schedule.h"

void ut_schedule_ps(ut_schedule *ret, const ut_layout *l)
{
    const uint32_t hosts = l->hosts, self = l->self;
    assert(hosts >= 1 && hosts <= UT_HOSTS_MAX && self < hosts);
    ret->steps = 0;
    ret->rounds = hosts > 1 ? 2 : 0;
    ret->direct = true;
    ut_schedule_cut(ret, 1, l->count, l->element_bytes);
    if (self == UT_PS_SERVER)
        ut_schedule_own(ret, 0);
    for (uint32_t h = 0; h < hosts; h++) {
        if (h == self || (self != UT_PS_SERVER && h != UT_PS_SERVER))
            continue;
        enum ut_step_kind first = self == UT_PS_SERVER ? UT_STEP_RECEIVE : UT_STEP_SEND;
        enum ut_step_kind then = self == UT_PS_SERVER ? UT_STEP_SEND : UT_STEP_RECEIVE;
        ret->step[ret->steps++] = ut_schedule_step(ret, first, 1, 0, h, 0);
        ret->step[ret->steps++] = ut_schedule_step(ret, then, 2, 1, h, 0);
    }
}
