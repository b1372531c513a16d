/* SPDX-License-Identifier: Apache-2.0
 *
 * The network: each host has an up-link to one switch and a down-link from it, each with a rate and a bounded queue, so
 * incast fills the receiver's down-link as in life. What the plan wants lost, spoilt, copied or held back happens on
 * the way to the switch. Queues are not lists: a link is the time until which it is busy, and its backlog follows from
 * that.
 *
 * Every datagram that enters leaves by exactly one way, and is counted there (sim_net_books); account.c adds it up.
 */
#include "sim/world/moving.h"

#include "core/wire/packets.h"
#include "kernels/kernels.h"

#include <stdlib.h>

sim_packet *sim_packet_make(sim_world *w, uint32_t from, uint32_t to, uint32_t port, uint32_t len)
{
    uint32_t shift = (uint32_t)sim_below(&w->rng_net, 8);
    sim_packet *packet = sim_room(sizeof *packet + shift + len);
    *packet = (sim_packet){0};
    packet->bytes = (uint8_t *)(packet + 1) + shift;
    packet->len = len;
    packet->from = (uint16_t)from;
    packet->to = (uint16_t)to;
    packet->port = (uint8_t)port;
    packet->from_place = w->host[from].place[port];
    packet->to_place = w->host[to].place[port];
    packet->life = w->host[to].life;
    packet->age = (uint32_t)w->receipts;
    packet->at = w->now;
    return packet;
}

void sim_packet_free(sim_packet *packet)
{
    free(packet);
}

static sim_packet *copy_of(sim_world *w, const sim_packet *packet)
{
    sim_packet *copy = sim_packet_make(w, packet->from, packet->to, packet->port, packet->len);
    if (packet->len)
        memcpy(copy->bytes, packet->bytes, packet->len);
    copy->flags = packet->flags;
    copy->life = packet->life;
    copy->age = packet->age;
    copy->at = packet->at;
    copy->from_place = packet->from_place;
    copy->to_place = packet->to_place;
    return copy;
}

static void count(sim_tally *tally, const sim_packet *packet)
{
    tally->packets++;
    tally->bytes += packet->len;
}

static void drop(sim_world *w, sim_packet *packet, sim_tally *tally)
{
    count(tally, packet);
    sim_trace_packet(w, SIM_TR_DROP, packet);
    sim_packet_free(packet);
}

void sim_net_start(sim_world *w)
{
    const sim_plan *p = &w->plan;
    for (uint32_t a = 0; a < p->hosts; a++)
        for (uint32_t b = 0; b < p->hosts; b++)
            w->delay[a][b] = sim_between(&w->rng_net, p->delay_min, p->delay_max);
    sim_rival_start(w);
    if (p->inject_every)
        sim_push(w, w->now + p->inject_every, SIM_EV_INJECT, 0, 0, 0, 0, NULL);
}

static ut_ns wire_ns(uint64_t bytes, uint64_t rate)
{
    return bytes * UT_SECOND / rate;
}

/* Ethernet, IP and UDP headers, check sequence, preamble and gap around a datagram. */
static uint64_t on_wire(const sim_packet *packet)
{
    return packet->len + 66;
}

static uint64_t backlog(const sim_world *w, ut_ns free_at, uint64_t rate)
{
    return free_at > w->now ? (free_at - w->now) * (rate / 1000) / 1000000 : 0;
}

/* The rate of a host's link now, |whole| as a rule. */
static uint64_t rate_now(const sim_world *w, const sim_host *h, uint64_t whole)
{
    const sim_plan *p = &w->plan;
    bool slow = p->slow_hosts >> h->index & 1 && w->faults && w->now >= p->slow_from && w->now < p->slow_until;
    if (p->odd.rate_part && p->odd.host == h->index)
        whole /= p->odd.rate_part;
    return slow ? whole / p->slow_by : whole;
}

uint64_t sim_net_rate_up(const sim_world *w, const sim_host *h)
{
    return rate_now(w, h, w->plan.rate_up);
}

uint64_t sim_net_backlog(const sim_world *w, const sim_host *h)
{
    return backlog(w, h->up_free, sim_net_rate_up(w, h));
}

/* Puts the packet on a link that is busy until |free_at|. Returns when it has left it. */
static ut_ns occupy(const sim_world *w, ut_ns *free_at, const sim_packet *packet, uint64_t rate)
{
    *free_at = UT_MAX2(*free_at, w->now) + wire_ns(on_wire(packet), rate);
    return *free_at;
}

/* The same for a host's own link. Feedback and grants overtake the data that wait there, as the driver sends them. */
static ut_ns occupy_up(const sim_world *w, sim_host *from, const sim_packet *packet, uint64_t rate)
{
    ut_ns left = occupy(w, &from->up_free, packet, rate), own = wire_ns(on_wire(packet), rate);
    ut_ns one = wire_ns(w->plan.packet_bytes, rate); /* the packet that is leaving */
    return packet->port == UT_PORT_FEEDBACK ? UT_MIN2(left, w->now + one + own) : left;
}

static void flip_bits(sim_world *w, sim_packet *packet)
{
    uint64_t flips = 1 + sim_below(&w->rng_net, 3); /* CRC32C sees up to three at any place in a datagram */
    uint64_t first = sim_below(&w->rng_net, packet->len * 8);
    for (uint64_t i = 0; i < flips; i++) {
        uint64_t bit = (first + i * (1 + first % 97)) % (packet->len * 8);
        packet->bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    packet->flags |= SIM_SPOILT;
    w->cover[SIM_corrupt]++;
}

/* Cuts the packet, or adds bytes to it. */
static sim_packet *resize(sim_world *w, sim_packet *packet)
{
    bool cut = packet->len > 0 && sim_chance(&w->rng_net, 600000);
    uint32_t len =
        cut ? (uint32_t)sim_below(&w->rng_net, packet->len) : packet->len + 1 + (uint32_t)sim_below(&w->rng_net, 64);
    sim_packet *other = sim_packet_make(w, packet->from, packet->to, packet->port, len);
    memcpy(other->bytes, packet->bytes, UT_MIN2(len, packet->len));
    for (uint32_t i = packet->len; i < len; i++)
        other->bytes[i] = (uint8_t)sim_next(&w->rng_net);
    other->flags = packet->flags | SIM_SPOILT;
    other->life = packet->life;
    other->age = packet->age;
    other->at = packet->at;
    other->from_place = packet->from_place;
    other->to_place = packet->to_place;
    if (cut)
        w->books.shrunk.bytes += packet->len - len;
    else
        w->books.grown.bytes += len - packet->len;
    w->cover[cut ? SIM_truncate : SIM_extend]++;
    sim_packet_free(packet);
    return other;
}

static bool lost_on_the_way(sim_world *w, const sim_packet *packet)
{
    const sim_plan *p = &w->plan;
    bool *bad = &w->burst_bad[packet->from][packet->to];
    if (p->burst_enter && sim_chance(&w->rng_net, *bad ? p->burst_leave : p->burst_enter))
        *bad = !*bad;
    if (*bad && sim_chance(&w->rng_net, p->burst_loss)) {
        w->cover[SIM_burst]++;
        return true;
    }
    if (sim_chance(&w->rng_net, p->loss)) {
        w->cover[SIM_loss]++;
        return true;
    }
    return false;
}

static void remember(sim_world *w, const sim_packet *packet)
{
    uint64_t at = w->saved_seen++ < SIM_SAVED ? w->saved_seen - 1 : sim_below(&w->rng_net, w->saved_seen * 2);
    if (at >= SIM_SAVED)
        return;
    if (w->saved[at])
        sim_packet_free(w->saved[at]);
    w->saved[at] = copy_of(w, packet);
}

/* Towards the switch, |late| after the usual time. Without |late| the order of a pair is kept. */
static void travel(sim_world *w, sim_packet *packet, ut_ns left, ut_ns late)
{
    ut_ns at = left + w->delay[packet->from][packet->to] + late;
    if (w->plan.jitter && w->faults) {
        at += sim_below(&w->rng_net, w->plan.jitter);
        w->cover[SIM_jitter]++;
    }
    ut_ns *last = &w->last_at[packet->from][packet->to];
    if (late == 0)
        *last = at = UT_MAX2(at, *last);
    sim_push(w, at, SIM_EV_SWITCH, 0, 0, 0, 0, packet);
}

void sim_net_send(sim_world *w, sim_packet *packet)
{
    const sim_plan *p = &w->plan;
    sim_host *from = &w->host[packet->from];
    count(&w->books.sent, packet);
    sim_trace_packet(w, SIM_TR_SEND, packet);
    if (!p->backpressure && sim_net_backlog(w, from) + packet->len > p->queue_up) {
        w->cover[SIM_link_queue_full]++;
        count(&w->books.overrun, packet);
        drop(w, packet, &w->books.lost);
        return;
    }
    uint64_t rate = sim_net_rate_up(w, from);
    w->cover[SIM_slow_link] += rate != p->rate_up;
    ut_ns left = occupy_up(w, from, packet, rate), late = 0;
    if (w->cut[packet->from] >> packet->to & 1) {
        drop(w, packet, &w->books.lost);
        return;
    }
    if (p->hole_bytes && packet->len > p->hole_bytes && p->hole_hosts >> packet->to & 1 && w->now >= p->hole_from &&
        w->now < p->hole_until) {
        w->cover[SIM_black_hole]++;
        drop(w, packet, &w->books.lost);
        return;
    }
    if (w->faults) {
        if (p->inject)
            remember(w, packet);
        if (lost_on_the_way(w, packet)) {
            drop(w, packet, &w->books.lost);
            return;
        }
        if (sim_chance(&w->rng_net, p->duplicate)) {
            sim_packet *again = copy_of(w, packet);
            again->flags |= SIM_AGAIN;
            count(&w->books.duplicated, again);
            w->cover[SIM_duplicate]++;
            travel(w, again, left, 1 + sim_below(&w->rng_net, 2 * p->delay_max));
        }
        if (packet->len && sim_chance(&w->rng_net, p->corrupt))
            flip_bits(w, packet);
        if (sim_chance(&w->rng_net, p->resize))
            packet = resize(w, packet);
        if (sim_chance(&w->rng_net, p->reorder)) {
            w->cover[SIM_reorder]++;
            late = 1 + sim_below(&w->rng_net, p->reorder_by);
        }
    }
    sim_packet *stolen = sim_thief_sees(w, packet);
    if (stolen) /* it goes ahead of what it was copied from, and through the same queues */
        travel(w, stolen, left, 0);
    travel(w, packet, left, late);
}

/* Bytes that fit into a queue of the switches. */
static uint64_t queue_room(const sim_world *w)
{
    return w->faults && !w->plan.faultless ? w->plan.queue_down : 64 << 20;
}

bool sim_net_take(sim_world *w, sim_host *to, uint64_t bytes, uint64_t wire_bytes, ut_ns *ret)
{
    uint64_t rate = rate_now(w, to, w->plan.rate_down);
    *ret = UT_MAX2(to->down_free, w->now);
    if (backlog(w, to->down_free, rate) + bytes > queue_room(w))
        return false;
    *ret = to->down_free = *ret + wire_ns(wire_bytes, rate);
    return true;
}

static void overrun(sim_world *w, sim_packet *packet)
{
    w->cover[SIM_link_queue_full]++;
    count(&w->books.overrun, packet);
    drop(w, packet, &w->books.lost);
}

static void mark(sim_world *w, sim_packet *packet, uint64_t waiting)
{
    if (waiting <= w->plan.mark_above)
        return;
    packet->ce = true;
    w->cover[SIM_congestion_mark]++;
}

/* On its way between groups of hosts: over the link of the sender's to the core, then over that of the receiver's. */
static bool crosses_core(sim_world *w, sim_packet *packet)
{
    const sim_plan *p = &w->plan;
    if (p->groups <= 1 || packet->hops == 2)
        return false;
    uint32_t from = packet->from * p->groups / p->hosts, to = packet->to * p->groups / p->hosts;
    if (from == to)
        return false;
    ut_ns *free_at = &w->core_free[packet->hops ? to : from][packet->hops];
    uint64_t waiting = backlog(w, *free_at, p->rate_core);
    if (waiting + packet->len > queue_room(w)) {
        overrun(w, packet);
        return true;
    }
    mark(w, packet, waiting);
    packet->hops++;
    sim_push(w, occupy(w, free_at, packet, p->rate_core), SIM_EV_SWITCH, 0, 0, 0, 0, packet);
    return true;
}

void sim_net_switch(sim_world *w, sim_packet *packet)
{
    sim_host *to = &w->host[packet->to];
    if (crosses_core(w, packet))
        return;
    uint64_t waiting = backlog(w, to->down_free, rate_now(w, to, w->plan.rate_down));
    ut_ns leaves;
    if (!sim_net_take(w, to, packet->len, on_wire(packet), &leaves)) {
        overrun(w, packet);
        return;
    }
    sim_rival_beside(w, packet->to, on_wire(packet));
    mark(w, packet, waiting);
    sim_push(w, leaves, SIM_EV_ARRIVE, 0, 0, 0, 0, packet);
}

void sim_net_arrive(sim_world *w, sim_packet *packet)
{
    sim_host *h = &w->host[packet->to];
    unsigned port = packet->port;
    if (!h->alive) {
        drop(w, packet, &w->books.lost_dead);
        return;
    }
    if (!sim_moving_arrives(w, packet)) {
        drop(w, packet, &w->books.lost);
        return;
    }
    uint64_t room = w->faults ? w->plan.receive_real : w->plan.receive_buffer;
    if (w->plan.odd.receive && w->plan.odd.host == h->index)
        room = w->plan.odd.receive;
    if (h->queued_bytes[port] + packet->len > room) {
        h->drops++;
        w->cover[SIM_host_queue_full]++;
        drop(w, packet, &w->books.lost_host);
        return;
    }
    packet->next = NULL;
    if (port == UT_PORT_DATA && !h->queue[port])
        h->queued_at = w->now;
    *h->queue_end[port] = packet;
    h->queue_end[port] = &packet->next;
    h->queued_bytes[port] += packet->len;
    sim_host_readable(w, h);
}

/* Changes a few bytes of a true packet and makes its check good again. */
static bool make_evil(sim_world *w, sim_packet *packet)
{
    enum { check = UT_CHECKSUM_AT };
    uint8_t kind = (uint8_t)(UT_WIRE_VERSION << 4 | (packet->port == UT_PORT_DATA ? UT_KIND_DATA : UT_KIND_FEEDBACK));
    if (packet->flags || packet->len <= ut_wire_packet(0, 0) || packet->bytes[0] != kind)
        return false;
    static const uint8_t tempting[] = {0, 1, 0x7f, 0x80, 0xff};
    for (uint64_t n = 1 + sim_below(&w->rng_net, 3); n > 0; n--) {
        /* In the header, or in records and acknowledgements too. */
        uint32_t reach = sim_chance(&w->rng_net, 700000) ? ut_wire_packet(0, 0) : 300;
        uint64_t at = sim_below(&w->rng_net, UT_MIN2(packet->len, reach));
        uint64_t to = sim_below(&w->rng_net, 10);
        if (at >= 4 && at < 8)
            continue; /* with another connection id it would be a stranger's */
        packet->bytes[at] = to < 5 ? tempting[to] : (uint8_t)sim_next(&w->rng_net);
    }
    memset(packet->bytes + check, 0, 4);
    uint32_t crc = ut_crc32c(0, packet->bytes, packet->len);
    for (unsigned i = 0; i < 4; i++)
        packet->bytes[check + i] = (uint8_t)(crc >> (24 - 8 * i));
    packet->flags |= SIM_EVIL;
    return true;
}

/* A datagram that no engine sent now. |kind| is one of those in sim_net_inject. */
static sim_packet *made_up(sim_world *w, uint32_t kind)
{
    sim_rng *rng = &w->rng_net;
    uint32_t hosts = w->plan.hosts;
    sim_packet *old = w->saved_seen ? w->saved[sim_below(rng, UT_MIN2(w->saved_seen, (uint64_t)SIM_SAVED))] : NULL;
    sim_packet *packet;
    uint32_t to = (uint32_t)sim_below(rng, hosts), from = (uint32_t)sim_below(rng, hosts),
             port = (uint32_t)sim_below(rng, 2);
    if (kind == SIM_empty) {
        packet = sim_packet_make(w, from, to, port, 0);
        packet->flags = SIM_SPOILT;
    } else if (kind == SIM_garbage) {
        static const uint32_t most[] = {40, 1472, 9216};
        packet = sim_packet_make(w, from, to, port, 1 + (uint32_t)sim_below(rng, most[sim_below(rng, 3)]));
        for (uint32_t i = 0; i < packet->len; i++)
            packet->bytes[i] = (uint8_t)sim_next(rng);
        packet->flags = SIM_SPOILT;
    } else if (!old) {
        return NULL;
    } else if (kind ==
               SIM_forged) { /* a true packet with some bytes of its header changed, and the check left as it was */
        packet = copy_of(w, old);
        uint32_t head = UT_MIN2(packet->len, ut_wire_packet(0, 0));
        if (head == 0) {
            sim_packet_free(packet);
            return NULL;
        }
        uint32_t at = (uint32_t)sim_below(rng, head);
        packet->bytes[at] ^= (uint8_t)(1 + sim_below(rng, 255));
        packet->flags |= SIM_SPOILT;
    } else if (kind == SIM_evil) {
        packet = copy_of(w, old);
        if (!make_evil(w, packet)) {
            sim_packet_free(packet);
            return NULL;
        }
    } else if (kind == SIM_misdeliver) {
        packet = copy_of(w, old);
        if (hosts > 1 && sim_chance(rng, 500000))
            packet->to = (uint16_t)((old->to + 1 + sim_below(rng, hosts - 1)) % hosts);
        else
            packet->port ^= 1;
        /* The data port takes feedback as well, and both take path packets. */
        const bool either = ut_wire_kind(packet->bytes, packet->len) == UT_KIND_PATH;
        const bool home = packet->to == old->to && (packet->port == UT_PORT_DATA || either);
        packet->flags |= home ? SIM_AGAIN : SIM_STRAY;
    } else {
        packet = copy_of(w, old);
        packet->flags |= SIM_AGAIN;
        if (packet->age != (uint32_t)w->receipts)
            w->cover[SIM_replay_old_op]++;
    }
    w->cover[kind]++;
    return packet;
}

void sim_net_inject(sim_world *w)
{
    if (!w->faults)
        return;
    static const uint32_t kinds[] = {SIM_replay, SIM_misdeliver, SIM_garbage, SIM_forged, SIM_empty, SIM_evil};
    uint32_t kind = kinds[sim_below(&w->rng_net, 6)];
    if (w->plan.inject >> kind & 1) {
        sim_packet *packet = made_up(w, kind);
        if (packet) {
            count(&w->books.injected, packet);
            sim_trace_packet(w, SIM_TR_INJECT, packet);
            sim_push(w, w->now + w->plan.delay_min, SIM_EV_SWITCH, 0, 0, 0, 0, packet);
        }
    }
    /* Rarer while nothing moves, so that a long wait is not filled with injections. */
    ut_ns wait = 1 + sim_below(&w->rng_net, 2 * w->plan.inject_every);
    sim_push(w, w->now + wait + wait * (w->books.injected.packets / 2000) * 20, SIM_EV_INJECT, 0, 0, 0, 0, NULL);
}
