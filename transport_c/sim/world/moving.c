/* SPDX-License-Identifier: Apache-2.0
 *
 *   O19 path   nobody follows a peer to where the thief is
 *
 * That a peer is followed where it went, O10 tells: in the calm all ops are complete.
 */
#include "sim/world/moving.h"

#include "sim/world/seal.h"

enum { THIEF = 255 /* his place */ };

/* The thief is what may go wrong, and nothing else: whoever can make challenges vanish three times in a row may well
 * take a path over, and then he has it until the true address is heard. */
static void leave_alone_with_the_thief(sim_plan *p)
{
    p->loss = p->burst_enter = p->corrupt = p->resize = 0;
    p->inject_every = 0;
    p->items = 0;
    p->hole_bytes = 0;
    p->slow_hosts = 0;
    p->queue_up = p->queue_down = 64 << 20;
    p->receive_real = 64 << 20;
    p->wake_max = UT_MIN2(p->wake_max, UT_MS);
}

void sim_plan_draw_moving(sim_plan *p, uint64_t seed)
{
    sim_rng own = sim_rng_for(seed, 41), *rng = &own;
    if (p->hosts < 2 || p->evil || p->faultless || !ut_wire_packet_valid(p->packet_bytes, UT_TAG_BYTES))
        return;
    sim_moving *m = &p->moving;
    p->suite = p->suite ? p->suite : SIM_SUITE_TOY;
    m->host = (uint32_t)sim_below(rng, p->hosts);
    if (sim_chance(rng, 400000)) {
        m->thief_often = (uint32_t)sim_octaves(rng, 1000, 1000000);
        leave_alone_with_the_thief(p);
        return;
    }
    m->times = 1 + (uint32_t)sim_below(rng, SIM_MOVES);
    ut_ns at = 0;
    for (uint32_t i = 0; i < m->times; i++) {
        at += sim_octaves(rng, 300 * UT_US, i ? 2 * UT_SECOND : 60 * UT_MS);
        m->at[i] = at;
        m->ports[i] = (uint8_t)sim_between(rng, 1, 3);
    }
}

void sim_moving_start(sim_world *w)
{
    for (uint32_t i = 0; i < w->plan.moving.times; i++)
        sim_push(w, w->plan.moving.at[i], SIM_EV_PLACE, i, 0, 0, 0, NULL);
}

void sim_moving_event(sim_world *w, const sim_event *e)
{
    sim_host *h = &w->host[w->plan.moving.host];
    if (!w->faults)
        return;
    for (unsigned port = 0; port < 2; port++)
        if (w->plan.moving.ports[e->a] >> port & 1)
            h->place[port]++;
    w->cover[SIM_MOVING_changed]++;
}

static sim_packet *copy_of(sim_world *w, const sim_packet *packet)
{
    sim_packet *copy = sim_packet_make(w, packet->from, packet->to, packet->port, packet->len);
    memcpy(copy->bytes, packet->bytes, packet->len);
    copy->flags = packet->flags | SIM_AGAIN;
    copy->life = packet->life;
    copy->age = packet->age;
    copy->at = packet->at;
    copy->to_place = packet->to_place;
    copy->from_place = packet->from_place;
    w->books.injected.packets++;
    w->books.injected.bytes += packet->len;
    return copy;
}

sim_packet *sim_thief_sees(sim_world *w, const sim_packet *packet)
{
    const sim_moving *m = &w->plan.moving;
    if (!m->thief_often || !w->faults || packet->from != m->host || packet->len == 0 ||
        !sim_chance(&w->rng_liar, m->thief_often))
        return NULL;
    sim_packet *copy = copy_of(w, packet);
    copy->from_place = THIEF;
    w->cover[SIM_MOVING_stolen]++;
    return copy;
}

bool sim_moving_arrives(sim_world *w, sim_packet *packet)
{
    const sim_host *h = &w->host[packet->to];
    if (packet->to_place == h->place[packet->port])
        return true;
    if (packet->to_place == THIEF && ut_wire_kind(packet->bytes, packet->len) == UT_KIND_PATH) {
        w->cover[SIM_MOVING_handed_on]++;
        packet->to_place = h->place[packet->port];
        return true;
    }
    w->cover[SIM_MOVING_nobody_there]++; /* or the thief keeps it */
    return false;
}

void sim_moving_followed(sim_world *w, const sim_host *h, const ut_event *event)
{
    uint8_t at[sizeof event->b];
    memcpy(at, &event->b, sizeof at);
    if (at[0] != w->plan.job[event->job].host[event->host] || at[1] != event->a || at[2] == THIEF)
        sim_fail(w, "O19 path", h->index, "job %u: host %u is followed to host %u, port %u, place %u", event->job,
                 event->host, at[0], at[1], at[2]);
    w->cover[SIM_MOVING_followed]++;
}
