/* SPDX-License-Identifier: Apache-2.0 */
#include "core/path/incast.h"

#include "core/base/bits.h"

void ut_incast_init(ut_incast *i, uint32_t hosts)
{
    *i = (ut_incast){.dynamic = (uint8_t)UT_MAX2(hosts - 1, 1), .look_at = UT_NEVER};
}

void ut_incast_learn(ut_incast *i, uint32_t hosts, const ut_incast_loss *l)
{
    assert(hosts >= 1 && i->dynamic >= 1);
    uint64_t missing = 0, most = 0;
    uint32_t slowest = 0;
    for (uint32_t h = 0; h < hosts; h++) {
        missing += l->missing[h];
        if (l->missing[h] > most) {
            most = l->missing[h];
            slowest = h;
        }
    }
    /* One of several that has most of what is missing has a trouble of its own. Nobody must wait for its turn to end.
     */
    bool one = hosts > 2 && most > missing / 3 * 2;
    i->slow = one ? ut_bit(slowest) : 0;
    if (one)
        return;
    if (l->lost > l->expected / 64)
        i->dynamic = (uint8_t)UT_MAX2(i->dynamic - 1, 1);
    else
        i->dynamic = (uint8_t)UT_MIN2(i->dynamic + 1u, UT_MAX2(hosts - 1, 1));
}

void ut_incast_look(ut_incast *i, uint32_t hosts, unsigned factor)
{
    i->turn = (ut_incast_turn){.factor = factor};
    i->stale = false;
    i->look_at = UT_NEVER;
    i->gated = factor + 1 < hosts;
}

/* A sender that is silent holds its credit. For one of them another is let in; for more of them only when nobody at all
 * is heard, one at a time: all that have their turn may speak up at once. */
static bool may_begin(const ut_incast_turn *t, uint32_t host)
{
    unsigned begun = ut_bits_count(t->begun | ut_bit(host)), heard = ut_bits_count(t->heard | ut_bit(host));
    return begun <= t->factor || (begun == t->factor + 1 && heard <= t->factor) || t->heard == 0;
}

bool ut_incast_begins(ut_incast *i, uint32_t host)
{
    i->turn.full = i->turn.full || (!ut_bits_have(i->slow, host) && !may_begin(&i->turn, host));
    return !i->turn.full;
}

void ut_incast_has_turn(ut_incast *i, uint32_t host, ut_ns silent_at, ut_ns now)
{
    assert(host < UT_HOSTS_MAX);
    if (ut_bits_have(i->slow, host))
        return;
    i->turn.begun |= ut_bit(host);
    if (now >= silent_at)
        return;
    i->turn.heard |= ut_bit(host);
    i->look_at = UT_MIN2(i->look_at, silent_at);
}
