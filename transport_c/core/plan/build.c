/* SPDX-License-Identifier: Apache-2.0
 *
 * Which builder fills the table of an algorithm. What the builders share is schedule.c's.
 */
#include "core/plan/schedule.h"

void ut_schedule_build(ut_schedule *ret, const ut_layout *l, unsigned algorithm, uint32_t incast, uint64_t op_seq,
                       uint64_t owners)
{
    assert(l->hosts >= 1 && l->self < l->hosts);
    ret->placed = ret->apart = false;
    switch (algorithm) {
    case UT_RING:
        ut_schedule_ring(ret, l, op_seq);
        break;
    case UT_BCUBE:
        ut_schedule_bcube(ret, l, op_seq);
        break;
    case UT_PS:
        ut_schedule_ps(ret, l);
        break;
    default:
        ut_schedule_tar(ret, l, incast, op_seq, owners);
    }
    ret->lasting = !ret->direct;
    assert(ret->steps <= UT_STEPS_MAX && ret->chunks >= 1 && ret->chunks <= UT_HOSTS_MAX);
    assert(ret->from[ret->chunks] == l->count * l->element_bytes);
}
