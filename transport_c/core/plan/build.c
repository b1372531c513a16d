/* SPDX-License-Identifier: Apache-2.0
 *
 * Which builder fills the table of an algorithm. What the builders share is schedule.c's.
 */
#include "core/plan/schedule.h"

void ut_schedule_build(ut_schedule *ret, unsigned algorithm, uint32_t hosts, uint32_t self, uint32_t incast,
                       uint64_t op_seq, uint64_t owners, uint64_t count, size_t element_bytes)
{
    assert(hosts >= 1 && self < hosts);
    ret->placed = ret->apart = false;
    switch (algorithm) {
    case UT_RING:
        ut_schedule_ring(ret, hosts, self, op_seq, count, element_bytes);
        break;
    case UT_BCUBE:
        ut_schedule_bcube(ret, hosts, self, op_seq, count, element_bytes);
        break;
    case UT_PS:
        ut_schedule_ps(ret, hosts, self, count, element_bytes);
        break;
    default:
        ut_schedule_tar(ret, hosts, self, incast, op_seq, owners, count, element_bytes);
    }
    ret->lasting = !ret->direct;
    assert(ret->steps <= UT_STEPS_MAX && ret->chunks >= 1 && ret->chunks <= UT_HOSTS_MAX);
    assert(ret->from[ret->chunks] == count * element_bytes);
}
