/* SPDX-License-Identifier: Apache-2.0
 *
 * The (n, L)-regular tree of CodedReduce (docs/papers.md, section 4.2), numbered breadth first. The bucket is one
 * chunk, and host 0 is its owner. In stage 1 each host sends to its parent alone. In stage 2 the result comes down the
 * same way, but past hosts that are gone for good: a host without a parent cannot help any more, and still wants the
 * result.
 */
#include "core/plan/schedule.h"

enum { ROOT = 0 };

bool ut_tree_fills(uint32_t hosts, uint32_t children)
{
    uint32_t filled = 1;
    for (uint32_t layer = children; filled < hosts; layer *= children)
        filled += layer;
    return filled == hosts && hosts > 1;
}

/* From whom |host| gets the result: the nearest host above it that is not gone, or the root. */
static uint32_t giver(uint32_t host, uint32_t children, uint64_t owners)
{
    uint32_t above = ut_tree_parent(host, children);
    while (above != ROOT && !(owners >> above & 1))
        above = ut_tree_parent(above, children);
    return above;
}

void ut_schedule_tree(ut_schedule *ret, const ut_layout *l, uint32_t children, uint64_t owners)
{
    const uint32_t hosts = l->hosts, self = l->self;
    assert(hosts >= 1 && hosts <= UT_HOSTS_MAX && self < hosts && children >= 1);
    uint32_t below = ut_tree_below(self, children);
    ret->steps = 0;
    ret->rounds = 2; /* a host that lacks something sends nothing: nobody above is helped by giving up earlier here */
    ret->direct = ret->placed = ret->apart = false;
    ret->lasting = true;
    ut_schedule_cut(ret, 1, l->count, l->element_bytes);
    if (self == ROOT)
        ut_schedule_own(ret, 0);
    for (uint32_t h = below; h < hosts && h < below + children; h++)
        ret->step[ret->steps++] = ut_schedule_step(ret, UT_STEP_RECEIVE, 1, 0, h, 0);
    if (self != ROOT)
        ret->step[ret->steps++] = ut_schedule_step(ret, UT_STEP_SEND, 1, 0, ut_tree_parent(self, children), 0);
    for (uint32_t h = 1; h < hosts; h++)
        if (h != self && giver(h, children, owners) == self)
            ret->step[ret->steps++] = ut_schedule_step(ret, UT_STEP_SEND, 2, 1, h, 0);
    if (self != ROOT)
        ret->step[ret->steps++] = ut_schedule_step(ret, UT_STEP_RECEIVE, 2, 1, giver(self, children, owners), 0);
}
