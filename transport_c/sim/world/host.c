/* SPDX-License-Identifier: Apache-2.0
 *
 * One host's shell around its engine: what udp/loop.c does with sockets, in virtual time. A turn takes what has come,
 * in batches as GRO makes them, lets the engine look at its clock, sends, and hands out receipts. After each turn the
 * engine must have kept its word:
 *
 *   O1 deadline    no submission whose deadline has come is without a receipt, and the next wake-up is not after one
 *   O6 silence     a datagram that nobody may believe changes nothing: no packet goes out, no timer moves
 *   O7 honesty     no peer is ever called a liar, where all are honest, or none but the one that is
 *   O11 rest       the engine does not ask to be woken at once, again and again, without end
 */
#include "core/link/tokens.h"
#include "sim/oracles/oracles.h"
#include "sim/world/liar.h"
#include "sim/world/moving.h"
#include "sim/world/seal.h"

#include <stdlib.h>

enum {
    BURSTS_MAX = 20000,    /* in one turn: more would never end */
    IDLE_TICKS = 4,        /* at one moment, while something is due */
    SPINS_MAX = 20000,     /* wake-ups at the same time, or a microsecond later */
    KEYS_KEPT = 600000000, /* ns for which old keys are kept, PROTOCOL.md */
    DUE_AFTER = 1000,      /* ns: a wake-up that is already due comes so much later */
};

/* ---- receiving ---- */

static sim_packet *take(sim_host *h, unsigned port)
{
    sim_packet *packet = h->queue[port];
    h->queue[port] = packet->next;
    if (!h->queue[port])
        h->queue_end[port] = &h->queue[port];
    h->queued_bytes[port] -= packet->len;
    return packet;
}

static bool coalesces(const sim_packet *first, const sim_packet *last, const sim_packet *next)
{
    return next && last->len == first->len && next->len > 0 && next->len <= first->len && next->from == first->from &&
           next->from_place == first->from_place && next->ce == first->ce;
}

static void tell_from(sim_host *h, unsigned port, const sim_packet *packet)
{
    const ut_addr from = {.len = 3, .bytes = {(uint8_t)packet->from, (uint8_t)port, packet->from_place}};
    ut_engine_from(h->engine, &from);
}

static void send_all(sim_world *w, sim_host *h);
static bool send_blocked(const sim_world *w, const sim_host *h);

/* A datagram that must not be believed, alone. */
static void input_in_silence(sim_world *w, sim_host *h, unsigned port, const sim_packet *packet)
{
    ut_ns now = sim_local(w, h);
    send_all(w, h);
    if (w->plan
            .hostile) /* a look for what may go moves turns, and where a liar is given one nobody else may have any */
        send_all(w, h);
    if (send_blocked(w, h)) { /* it may have something to send in any case */
        ut_engine_input(h->engine, port, packet->bytes, packet->len, 0, packet->ce, now);
        return;
    }
    ut_ns wake = ut_engine_next_wake(h->engine);
    ut_stats before, after;
    ut_engine_stats(h->engine, &before);
    ut_engine_input(h->engine, port, packet->bytes, packet->len, 0, packet->ce, now);
    ut_burst burst;
    if (ut_engine_output(h->engine, now, &burst))
        sim_fail(
            w, "O6 silence", h->index, "a %s datagram of %u bytes on port %u was answered with %u packets to host %u",
            packet->flags & SIM_SPOILT ? "spoilt" : "foreign", packet->len, port, burst.segments, burst.to.bytes[0]);
    if (ut_engine_next_wake(h->engine) != wake)
        sim_fail(w, "O6 silence", h->index, "a datagram of %u bytes that nobody may believe moved a timer",
                 packet->len);
    ut_engine_stats(h->engine, &after);
    uint64_t refused =
        after.malformed + after.bad_checksum + after.unknown - before.malformed - before.bad_checksum - before.unknown;
    if (sim_cipher(w)) /* which looks for that first */
        refused += after.replayed - before.replayed;
    if (refused != 1)
        sim_fail(w, "O6 silence", h->index, "a %s datagram of %u bytes on port %u was taken in",
                 packet->flags & SIM_SPOILT ? "spoilt" : "foreign", packet->len, port);
    w->cover[SIM_silent_check]++;
}

static bool foreign(const sim_host *h, const sim_packet *packet)
{
    return packet->flags & SIM_STRAY || packet->life != h->life;
}

static void note_input(sim_world *w, sim_host *h, const sim_packet *packet)
{
    w->books.delivered.packets++;
    w->books.delivered.bytes += packet->len;
    h->given++;
    h->given_spoilt += (packet->flags & SIM_SPOILT) != 0;
    h->given_evil += (packet->flags & SIM_EVIL) != 0;
    if (!(packet->flags & SIM_SPOILT) && foreign(h, packet)) {
        h->given_foreign++;
        w->cover[SIM_old_life] += packet->life != h->life;
    } else if (!(packet->flags & SIM_SPOILT)) {
        h->given_old += packet->flags & SIM_AGAIN || w->now - packet->at > KEYS_KEPT || w->plan.keys_restless;
    }
    w->longest_way = UT_MAX2(w->longest_way, packet->flags ? 0 : w->now - packet->at);
    sim_incast_note(w, packet);
    sim_healthy_note(w, packet);
    sim_trace_packet(w, SIM_TR_DELIVER, packet);
}

/* One receive call: a datagram, or a run of equal ones with perhaps a shorter last, in one buffer. */
static void receive_batch(sim_world *w, sim_host *h, unsigned port)
{
    sim_packet *batch[UT_SEGMENTS_MAX];
    unsigned n = 0, most = UT_MIN2(w->plan.batch_max, (uint32_t)UT_SEGMENTS_MAX);
    size_t bytes = 0;
    do {
        batch[n] = take(h, port);
        note_input(w, h, batch[n]);
        bytes += batch[n++]->len;
    } while (n < most && batch[0]->len > 0 && bytes + batch[0]->len <= UT_BURST_BYTES &&
             coalesces(batch[0], batch[n - 1], h->queue[port]));
    tell_from(h, port, batch[0]);
    if (n == 1) {
        if (batch[0]->flags & SIM_SPOILT || foreign(h, batch[0]))
            input_in_silence(w, h, port, batch[0]);
        else
            ut_engine_input(h->engine, port, batch[0]->bytes, batch[0]->len, 0, batch[0]->ce, sim_local(w, h));
    } else {
        uint8_t *joined = sim_room(bytes), *at = joined;
        for (unsigned i = 0; i < n; i++) {
            memcpy(at, batch[i]->bytes, batch[i]->len);
            at += batch[i]->len;
        }
        ut_engine_input(h->engine, port, joined, bytes, batch[0]->len, batch[0]->ce, sim_local(w, h));
        free(joined);
        w->cover[SIM_coalesced] += n;
    }
    h->busy_until +=
        w->plan.batch_cost + n * (w->plan.packet_cost + (w->plan.odd.host == h->index ? w->plan.odd.packet_cost : 0));
    while (n > 0)
        sim_packet_free(batch[--n]);
}

static void receive(sim_world *w, sim_host *h)
{
    ut_engine_kernel_drops(h->engine, h->drops);
    if (h->queue[UT_PORT_DATA])
        ut_engine_waited(h->engine, w->now - h->queued_at);
    uint32_t budget = w->faults ? w->plan.receive_budget : UINT32_MAX;
    for (unsigned port = 2; port-- > 0;) /* feedback first, as the driver does */
        for (uint32_t calls = 0; h->queue[port] && calls < budget; calls++)
            receive_batch(w, h, port);
}

/* ---- sending ---- */

/* A host with a cap has sent no more, over whatever time, than that lets go and what one that was silent may make up
 * for: twice as much, as a quantum and a burst may stand above it. */
static void check_cap(sim_world *w, sim_host *h, const ut_burst *burst)
{
    if (!w->plan.host_rate)
        return;
    const double byte = 1e9 / (double)w->plan.host_rate; /* ns */
    const uint64_t bytes = burst->bytes + (uint64_t)burst->segments * SIM_CAP_HEADERS;
    h->cap_free = UT_MAX2(h->cap_free, w->now) + (ut_ns)((double)bytes * byte + 0.5);
    const double beyond = (double)(h->cap_free - w->now) / byte;
    if (beyond > 2 * UT_TOKENS_MAX)
        sim_fail(w, "cap", h->index, "%.0f bytes beyond what its cap lets go", beyond);
}

static void put_on_wire(sim_world *w, sim_host *h, const ut_burst *burst)
{
    if (burst->segments == 0 || burst->to.len != 3 || burst->to.bytes[0] >= w->plan.hosts || burst->port > 1 ||
        burst->to.bytes[1] != burst->port)
        sim_fail(w, "burst", h->index, "%u segments to an address of %u bytes, host %u, port %u", burst->segments,
                 burst->to.len, burst->to.bytes[0], burst->port);
    check_cap(w, h, burst);
    bool pieces = burst->port == UT_PORT_DATA &&
                  ut_wire_kind(burst->memory, burst->bytes) == UT_KIND_PIECE; /* several of them make one packet */
    uint32_t most = pieces ? UT_SEGMENTS_MAX : w->plan.segments_max;
    uint64_t least = (uint64_t)(burst->segments - 1) * burst->segment_bytes;
    if (burst->bytes <= least || burst->bytes > least + burst->segment_bytes || burst->bytes > UT_BURST_BYTES ||
        (burst->segments > 1 && burst->segment_bytes > w->plan.packet_bytes) || burst->segments > most)
        sim_fail(w, "burst", h->index, "%u segments of %u bytes in %u bytes", burst->segments, burst->segment_bytes,
                 burst->bytes);
    for (uint32_t at = 0; at < burst->bytes; at += burst->segment_bytes) {
        uint32_t len = (uint32_t)UT_MIN2(burst->segment_bytes, burst->bytes - at);
        sim_packet *packet = sim_packet_make(w, h->index, burst->to.bytes[0], burst->port, len);
        packet->to_place = burst->to.bytes[2];
        memcpy(packet->bytes, burst->memory + at, len);
        if (ut_wire_kind(packet->bytes, len) == UT_KIND_PATH)
            h->sent_path++;
        else if (burst->port == UT_PORT_DATA)
            h->sent_data++;
        else
            h->sent_feedback++, h->told_bytes += len;
        sim_net_send(w, sim_lie(w, packet));
    }
    h->busy_until += w->plan.batch_cost + burst->segments * w->plan.sent_cost;
}

/* Bytes in the up-link at which a send blocks. */
static uint64_t send_buffer(const sim_world *w, const sim_host *h)
{
    uint64_t bytes = w->plan.send_buffer ? w->plan.send_buffer : SIM_SEND_BUFFER;
    if (!w->plan.send_time)
        return bytes;
    uint64_t timely = sim_net_rate_up(w, h) * w->plan.send_time / UT_SECOND;
    return UT_MIN2(UT_MAX2(timely, (uint64_t)SIM_SEND_LEAST), bytes);
}

static bool send_blocked(const sim_world *w, const sim_host *h)
{
    return w->plan.backpressure && sim_net_backlog(w, h) >= send_buffer(w, h);
}

static void send_all(sim_world *w, sim_host *h)
{
    ut_burst burst;
    ut_ns now = sim_local(w, h);
    bool more = true;
    for (unsigned n = 0; more; n++) {
        if (n > BURSTS_MAX)
            sim_fail(w, "O11 rest", h->index, "more than %d bursts in one turn", BURSTS_MAX);
        more = send_blocked(w, h) ? ut_engine_output_feedback(h->engine, now, &burst)
                                  : ut_engine_output(h->engine, now, &burst);
        if (more)
            put_on_wire(w, h, &burst);
    }
}

/* ---- the turn ---- */

static void hand_out(sim_world *w, sim_host *h)
{
    uint64_t due = ut_engine_take_wakeups(h->engine);
    if (h->sessions < UT_SESSIONS_MAX && due >> h->sessions)
        sim_fail(w, "wake-up", h->index, "sessions %#" PRIx64 " were woken, of %u", due, h->sessions);
    for (uint32_t s = 0; s < h->sessions; s++) {
        sim_rank *r = h->by_session[s];
        if (!r) {
            if (due >> s & 1)
                sim_fail(w, "wake-up", h->index, "session %u was woken, which is nobody's", s);
            continue;
        }
        bool news = r->completions->head != r->taken_seen;
        if (news && !(due >> s & 1))
            sim_fail(w, "O1 deadline", h->index, "rank %u of job %u has a receipt but was not woken", r->index, r->job);
        r->taken_seen = r->completions->head;
        if (news)
            sim_kind_of(w, r)->collect(w, r);
    }
}

static void take_events(sim_world *w, sim_host *h)
{
    ut_event event;
    while (ut_engine_poll_event(h->engine, &event)) {
        sim_trace(w, SIM_TR_EVENT, h->index, event.kind, event.op_seq, event.a, event.b);
        if (event.kind == UT_EVENT_VIOLATION) {
            const sim_job_plan *j = &w->plan.job[event.job];
            bool lies = sim_is_liar(w, h->index) || (event.host < j->hosts && sim_is_liar(w, j->host[event.host]));
            if (event.host >= j->hosts || !(lies || w->plan.evil))
                sim_fail(w, "O7 honesty", h->index, "job %u calls host %u a liar", event.job, event.host);
            sim_path_broken(w, h, event.job, event.host);
        }
        if (event.kind == UT_EVENT_PATH_MOVED)
            sim_moving_followed(w, h, &event);
        if (event.kind == UT_EVENT_PATH && event.a)
            w->cover[SIM_pieces]++;
        if (event.kind == UT_EVENT_DESYNC)
            w->cover[SIM_desync_named]++;
        const sim_kind *kind = w->job[event.job].kind;
        if (kind->event)
            kind->event(w, h, &event);
    }
}

void sim_host_look(sim_world *w, sim_host *h)
{
    if (w->plan.partial)
        take_events(w, h);
}

static ut_ns due_of(const sim_world *w, const sim_rank *r, const sim_ask *ask)
{
    return sim_kind_of(w, r)->due(w, r, ask);
}

/* The engine looks at its clock. Its passes over buckets take none of the world's time, so whatever is due is finished
 * before that goes on; the others are cut by turns, with packets in between. */
static void tick(sim_world *w, sim_host *h)
{
    ut_ns now = sim_local(w, h);
    bool due = false;
    ut_engine_tick(h->engine, now);
    for (uint32_t s = 0; s < h->sessions; s++)
        for (uint32_t i = 0; h->by_session[s] && i < h->by_session[s]->out; i++)
            due = due ||
                  (h->by_session[s]->ask[i].taken && due_of(w, h->by_session[s], &h->by_session[s]->ask[i]) <= now);
    /* What waited for an op to end is taken by the tick that ends it, and is over in one of the next. */
    for (unsigned idle = 0; due && idle < IDLE_TICKS && ut_engine_next_wake(h->engine) <= now;) {
        idle = ut_engine_has_work(h->engine) ? 0 : idle + 1;
        ut_engine_tick(h->engine, now);
    }
}

/* Oracle O1, after the engine has looked at its clock. Returns the earliest deadline that is still to come, local. */
static ut_ns check_deadlines(sim_world *w, sim_host *h)
{
    ut_ns now = sim_local(w, h), earliest = UT_NEVER;
    for (uint32_t s = 0; s < h->sessions; s++) {
        const sim_rank *r = h->by_session[s];
        for (uint32_t i = 0; r && i < r->out; i++) {
            const sim_ask *ask = &r->ask[i];
            if (!ask->taken || ask->expect_error)
                continue;
            ut_ns due = due_of(w, r, ask);
            if (due <= now)
                sim_fail(w, "O1 deadline", h->index,
                         "job %u rank %u op_seq %" PRIu64 " has no receipt %" PRIu64 " ns after its deadline", r->job,
                         r->index, ask->entry.op_seq, now - ask->deadline);
            earliest = UT_MIN2(earliest, due);
        }
    }
    return earliest;
}

static void plan_wake(sim_world *w, sim_host *h)
{
    ut_ns now = sim_local(w, h), earliest = check_deadlines(w, h), wake = ut_engine_next_wake(h->engine);
    if (wake > earliest)
        sim_fail(w, "O1 deadline", h->index, "the next wake-up is at %" PRIu64 ", after a deadline at %" PRIu64, wake,
                 earliest);
    h->stirring = h->queue[0] || h->queue[1];
    if (h->stirring)
        sim_host_wake(w, h, w->now + DUE_AFTER);
    bool blocked = send_blocked(w, h);
    sim_idle_note(h, blocked);
    if (blocked) {
        w->cover[SIM_send_blocked]++;
        ut_ns drained = (sim_net_backlog(w, h) - send_buffer(w, h) / 2) * UT_SECOND / sim_net_rate_up(w, h);
        sim_host_wake(w, h, w->now + UT_MAX2(drained, (ut_ns)DUE_AFTER));
        if (!ut_engine_has_work(h->engine)) /* the driver looks at its timers meanwhile, too */
            wake = UT_MAX2(wake, UT_MIN2(earliest, now + 100 * UT_US));
    }
    h->restless = h->stirring || wake <= now;
    if (wake == UT_NEVER)
        return;
    ut_ns in = wake > now ? wake - now : 0;
    h->spins = in <= DUE_AFTER && !blocked && !ut_engine_has_work(h->engine) ? h->spins + 1 : 0;
    if (h->spins > SPINS_MAX)
        sim_fail(w, "O11 rest", h->index, "woken %d times in a row with nothing to do", SPINS_MAX);
    sim_host_wake(w, h, sim_woken(w, w->now + UT_MAX2(in, (ut_ns)DUE_AFTER)));
}

void sim_host_service(sim_world *w, sim_host *h)
{
    h->service_at = UT_NEVER;
    h->stirring = false;
    if (!h->alive)
        return;
    if (h->paused) {
        sim_host_wake(w, h, h->resumes);
        return;
    }
    h->turns++;
    h->wakeups += !h->restless && w->now > h->busy_until;
    sim_idle_look(w, h);
    h->busy_until = w->now + w->plan.wake_cost;
    sim_trace(w, SIM_TR_SERVE, h->index, 0, h->given, h->sent_data, h->sent_feedback);
    receive(w, h);
    sim_host_look(w, h);
    for (uint32_t s = 0; s < h->sessions; s++) {
        sim_rank *r = h->by_session[s];
        if (!r || !r->rung)
            continue;
        r->rung = false;
        for (uint32_t i = 0; i < r->out; i++)
            r->ask[i].taken = true;
        if (sim_kind_of(w, r)->offer)
            sim_kind_of(w, r)->offer(w, r);
        ut_engine_submissions(h->engine, s, sim_local(w, h));
        sim_host_look(w, h);
    }
    tick(w, h);
    sim_host_look(w, h);
    send_all(w, h);
    hand_out(w, h);
    take_events(w, h);
    for (uint32_t s = 0; s < h->sessions; s++)
        if (h->by_session[s] && sim_kind_of(w, h->by_session[s])->words)
            sim_kind_of(w, h->by_session[s])->words(w, h->by_session[s]);
    plan_wake(w, h);
}
