/* SPDX-License-Identifier: Apache-2.0
 *
 * O9 incast: in a quiet world a host hears no more senders at once than the factor allows, by the packets that reach
 * it. A sender is heard from when a trickle has passed until its tail is there, unless it pauses. One more may be let
 * in for one that was silent, and at a change of turns two may overlap: so it is the mean over the packets that is held
 * against the factor, plus one.
 */
#include "core/wire/packets.h"
#include "sim/oracles/oracles.h"

enum { TRICKLE = 2 * 4 /* packets: before the op opens, and after */, LATELY = 200000 /* ns */ };

void sim_incast_note(sim_world *w, const sim_packet *packet)
{
    ut_data h;
    if (!w->plan.quiet || packet->port != UT_PORT_DATA || packet->flags || w->calming ||
        ut_data_decode(&h, packet->bytes, packet->len, UT_CHECK_NOTHING) < 0)
        return;
    sim_hearing *s = &w->hearing[packet->to][packet->from];
    uint64_t op_stage = (uint64_t)h.op_seq << 8 | h.stage;
    if (s->op_stage != op_stage)
        *s = (sim_hearing){.op_stage = op_stage};
    s->packets++;
    s->at = w->now;
    s->going = s->packets > TRICKLE && h.ultima.last == 0;
    if (!s->going)
        return;
    w->heard_packets++;
    for (uint32_t from = 0; from < w->plan.hosts; from++)
        w->heard_senders += w->hearing[packet->to][from].going && w->now - w->hearing[packet->to][from].at < LATELY;
}

void sim_healthy_note(sim_world *w, const sim_packet *packet)
{
    ut_data h;
    const sim_odd *odd = &w->plan.odd;
    if (!odd->rate_part || packet->to == odd->host || packet->from == odd->host || packet->port != UT_PORT_DATA ||
        packet->flags || ut_data_decode(&h, packet->bytes, packet->len, UT_CHECK_NOTHING) < 0)
        return;
    uint64_t op = h.op_seq - (uint32_t)w->plan.job[0].base;
    if (h.stage == 1 && op < w->plan.job[0].ops)
        w->healthy[op] = w->now;
}

void sim_incast_check(sim_world *w)
{
    uint64_t factor = w->plan.job[0].options.incast;
    if (w->heard_packets < 500)
        return;
    w->cover[SIM_incast_seen]++;
    if (w->heard_senders > (factor + 1) * w->heard_packets)
        sim_fail(w, "O9 incast", 0, "%" PRIu64 ".%02" PRIu64 " senders were heard at once, the factor is %" PRIu64,
                 w->heard_senders / w->heard_packets, w->heard_senders * 100 / w->heard_packets % 100, factor);
}
