/* SPDX-License-Identifier: Apache-2.0
 *
 * What the daemons' control plane does: it opens paths, learns of deaths, brings hosts and trainers back; and the timed
 * faults of the plan. Control messages are reliable and in order, as over TCP, and slow; a paused host hears them when
 * it resumes.
 *
 * A path is opened by the host with the lower index in the job: it calls, naming the connection id that it listens on,
 * and the answer names the other one. A host that comes back greets those with a lower index, so that they call.
 *
 * A path over which a host has said what cannot be is torn down and opened anew, later each time. The secret of a path
 * that stands is drawn anew from time to time by its receiver, which tells its sender.
 */
#include "sim/oracles/oracles.h"
#include "sim/world/epochs.h"
#include "sim/world/liar.h"
#include "sim/world/seal.h"
#include "sim/world/seats.h"

#include <stdlib.h>

enum { CONTROL_NS = 150000, RETRY_NS = 1000000, BROKEN_MOST = 7 /* doublings */ };

enum message_kind { HELLO = 1, CALL, ANSWER, ABSENT, RENEW, FRESH_DUE /* to itself */, FRESH };
typedef struct message {
    uint32_t kind, job;
    uint32_t from; /* host of the world */
    uint32_t from_life;
    uint32_t cid;
    uint64_t secret; /* of sealed packets under that id */
} message;

/* An id that a host listens to, and the secret of what is sent under it. */
typedef struct listening {
    uint32_t cid;
    uint64_t secret;
} listening;

static void tell(sim_world *w, const sim_host *from, uint32_t to, uint32_t job, uint32_t kind, listening l, ut_ns in)
{
    message *m = sim_alloc(sizeof *m);
    *m = (message){
        .kind = kind, .job = job, .from = from->index, .from_life = from->life, .cid = l.cid, .secret = l.secret};
    sim_push(w, w->now + in, SIM_EV_CONTROL, to, w->host[to].life, 0, 0, m);
}

static uint32_t index_in(const sim_world *w, uint32_t job, const sim_host *h)
{
    return w->job[job].index_of[h->index];
}

static ut_addr addr_of(const sim_host *h, uint32_t port)
{
    return (ut_addr){.len = 3, .bytes = {(uint8_t)h->index, (uint8_t)port, h->place[port]}};
}

static void connect_to(sim_world *w, sim_host *h, const message *m, uint32_t host)
{
    ut_addr data = addr_of(&w->host[m->from], UT_PORT_DATA), feedback = addr_of(&w->host[m->from], UT_PORT_FEEDBACK);
    sim_seal_connect(w, h, m->job, host, m->cid, m->secret);
    int error = ut_engine_peer_connect(h->engine, m->job, host, &data, &feedback, m->cid, sim_local(w, h));
    if (error)
        sim_fail(w, "connect", h->index, "job %u host %u: error %d", m->job, host, error);
    sim_seat *seat = &h->seat[m->job];
    seat->linked |= sim_bit(host);
    seat->linked_life[host] = m->from_life;
}

static listening listen_for(sim_world *w, sim_host *h, uint32_t job, uint32_t host)
{
    uint32_t cid;
    int error = ut_engine_peer_listen(h->engine, job, host, &cid);
    if (error)
        sim_fail(w, "listen", h->index, "job %u host %u: error %d", job, host, error);
    if (sim_cipher(w) && w->plan.new_secret)
        tell(w, &w->host[w->plan.job[job].host[host]], h->index, job, FRESH_DUE, (listening){.cid = cid},
             w->plan.new_secret);
    return (listening){cid, sim_seal_listen(w, h, job, host, cid)};
}

static void call(sim_world *w, sim_host *h, uint32_t job, uint32_t host)
{
    const sim_host *to = &w->host[w->plan.job[job].host[host]];
    sim_seat *seat = &h->seat[job];
    if (!to->alive || seat->called_life[host] == to->life)
        return;
    seat->called_life[host] = to->life;
    tell(w, h, to->index, job, CALL, listen_for(w, h, job, host), CONTROL_NS);
}

/* An engine does not believe |host| any more. */
void sim_path_broken(sim_world *w, sim_host *h, uint32_t job, uint32_t host)
{
    sim_seat *seat = &h->seat[job];
    uint32_t self = index_in(w, job, h), to = w->plan.job[job].host[UT_MIN2(self, host)];
    sim_trace(w, SIM_TR_CONTROL, h->index, w->plan.job[job].host[host], RENEW, job, seat->broken[host]);
    ut_engine_peer_absent(h->engine, job, host, sim_local(w, h));
    ut_ns wait = (ut_ns)RETRY_NS << UT_MIN2(seat->broken[host], (uint32_t)BROKEN_MOST);
    seat->broken[host]++;
    message *m = sim_alloc(sizeof *m);
    *m = (message){.kind = RENEW,
                   .job = job,
                   .from = w->plan.job[job].host[UT_MAX2(self, host)],
                   .from_life = w->host[w->plan.job[job].host[UT_MAX2(self, host)]].life};
    sim_push(w, w->now + CONTROL_NS + wait, SIM_EV_CONTROL, to, w->host[to].life, 0, 0, m);
    w->cover[w->plan.partial ? SIM_PART_path_renewed : w->plan.sparse ? SIM_SPARSE_path_renewed : SIM_path_renewed]++;
}

/* Ranks join when every other host of the job is connected or known not to be there. */
static void seat_ranks(sim_world *w, sim_host *h, uint32_t job)
{
    const sim_job_plan *j = &w->plan.job[job];
    const sim_seat *seat = &h->seat[job];
    if (h->paused)
        return; /* when it resumes */
    for (uint32_t i = 0; i < j->hosts; i++)
        if (j->host[i] != h->index && w->host[j->host[i]].alive && !(seat->linked >> i & 1))
            return;
    for (uint32_t r = 0; r < w->job[job].ranks; r++) {
        sim_rank *rank = &w->job[job].rank[r];
        if (rank->host == h->index && rank->session == UINT32_MAX && !rank->dead)
            sim_kind_of(w, rank)->attach(w, rank);
    }
    sim_host_readable(w, h);
}

static void seat_everybody(sim_world *w, uint32_t job)
{
    for (uint32_t i = 0; i < w->plan.job[job].hosts; i++) {
        sim_host *h = &w->host[w->plan.job[job].host[i]];
        if (h->alive && h->seat[job].open)
            seat_ranks(w, h, job);
    }
}

/* What a host is told of secrets changes nothing about who is there, and goes with the next packet of its path: nobody
 * wakes up for it. */
static void take_secret(sim_world *w, sim_host *h, uint32_t host, const message *m)
{
    if (!h->seat[m->job].open)
        return;
    if (m->kind == FRESH) {
        sim_seal_drawn_again(w, h, m->job, host, m->cid, m->secret);
    } else if (sim_seal_listens(h, m->job, host, m->cid)) {
        uint64_t secret = sim_seal_draw_again(w, h, m->job, host, m->cid);
        if (secret)
            tell(w, h, m->from, m->job, FRESH, (listening){m->cid, secret}, CONTROL_NS);
        tell(w, &w->host[m->from], h->index, m->job, FRESH_DUE, (listening){.cid = m->cid}, w->plan.new_secret);
    }
}

static void take_message(sim_world *w, sim_host *h, const message *m)
{
    uint32_t host = index_in(w, m->job, &w->host[m->from]);
    sim_seat *seat = &h->seat[m->job];
    sim_trace(w, SIM_TR_CONTROL, h->index, m->from, m->kind, m->job, m->from_life);
    switch (m->kind) {
    case HELLO:
        if (m->from_life == w->host[m->from].life)
            call(w, h, m->job, host);
        break;
    case CALL:
        if (m->from_life != w->host[m->from].life)
            break;
        tell(w, h, m->from, m->job, ANSWER, listen_for(w, h, m->job, host), CONTROL_NS);
        connect_to(w, h, m, host);
        break;
    case ANSWER: /* a daemon waits for none of a host that is gone */
        if (m->from_life == w->host[m->from].life && m->from_life > seat->absent_life[host])
            connect_to(w, h, m, host);
        break;
    case RENEW:
        if (m->from_life == w->host[m->from].life) {
            seat->called_life[host] = 0;
            call(w, h, m->job, host);
        }
        break;
    case FRESH_DUE:
    case FRESH:
        take_secret(w, h, host, m);
        return;
    case ABSENT:
        if (seat->linked_life[host] > m->from_life)
            break; /* it is back already */
        ut_engine_peer_absent(h->engine, m->job, host, sim_local(w, h));
        seat->absent_life[host] = UT_MAX2(seat->absent_life[host], m->from_life);
        w->cover[SIM_absent_told]++;
        break;
    }
    seat_everybody(w, m->job);
    sim_host_readable(w, h);
}

/* SIM_EV_CONTROL. Frees the message. */
void sim_control(sim_world *w, const sim_event *event)
{
    sim_host *h = &w->host[event->a];
    message *m = event->p;
    if (h->alive && h->paused) {
        sim_push(w, h->resumes, SIM_EV_CONTROL, event->a, event->b, 0, 0, m);
        return;
    }
    message copy = *m;
    free(m);
    if (h->alive && h->life == event->b)
        take_message(w, h, &copy);
}

/* ---- lives of daemons ---- */

/* Where the job stands, as the living hosts know. */
static uint64_t where_it_stands(const sim_world *w, uint32_t job)
{
    uint64_t seq = w->plan.job[job].base;
    for (uint32_t i = 0; i < w->plan.job[job].hosts; i++) {
        const sim_host *h = &w->host[w->plan.job[job].host[i]];
        if (h->alive && h->seat[job].open)
            seq = UT_MAX2(seq, ut_engine_next_op_seq(h->engine, job));
    }
    return sim_truly_called(w, job, seq);
}

static void open_seat(sim_world *w, sim_host *h, uint32_t job, const ut_engine_config *engine)
{
    const sim_job_plan *j = &w->plan.job[job];
    uint32_t self = index_in(w, job, h);
    ut_job_config config = {.hosts = j->hosts,
                            .self = self,
                            .local_ranks = j->local[self],
                            .packet_bytes = engine->packet_bytes,
                            .world = w->job[job].ranks,
                            .bucket_bytes_max = j->bucket_max,
                            .rate_bytes_per_s = j->rate,
                            .first_op_seq = where_it_stands(w, job),
                            .options = j->options,
                            .cipher = sim_cipher_of(w, h)};
    for (uint32_t i = 0; i < j->hosts; i++)
        config.ranks_of[i] = j->local[i];
    if (w->job[job].kind->opens)
        w->job[job].kind->opens(w, h, job, config.first_op_seq);
    sim_seat *seat = &h->seat[job];
    *seat = (sim_seat){.open = true};
    sim_seal_open_seat(w, h, job, j->hosts);
    size_t bytes = ut_job_bytes(engine, &config);
    if (bytes == 0)
        sim_fail(w, "start", h->index, "job %u: its configuration is refused", job);
    sim_guarded_make(w, &seat->memory, bytes);
    int error = ut_engine_job_add(h->engine, job, &config, seat->memory.mem);
    if (error)
        sim_fail(w, "start", h->index, "job %u: error %d", job, error);
    sim_epochs_open(w, h, job, config.first_op_seq);
    for (uint32_t i = 0; i < j->hosts; i++) {
        if (i == self || !w->host[j->host[i]].alive)
            continue;
        if (i > self)
            call(w, h, job, i);
        else
            tell(w, h, j->host[i], job, HELLO, (listening){0}, CONTROL_NS);
    }
    seat_ranks(w, h, job);
    if (w->job[job].kind->start)
        w->job[job].kind->start(w, h, job);
}

void sim_daemon_start(sim_world *w, sim_host *h)
{
    h->drops = h->given = h->given_spoilt = h->given_evil = h->given_foreign = h->given_old = h->sent_data =
        h->sent_feedback = h->sent_path = h->told_bytes = h->turns = h->wakeups = h->used_bytes = 0;
    memset(h->ended, 0, sizeof h->ended);
    h->sessions_removed = h->restless = false;
    h->sessions = 0;
    h->busy_until = w->now;
    h->service_at = UT_NEVER;
    h->cap = (ut_cap){.rate = w->plan.host_rate, .headers = SIM_CAP_HEADERS};
    h->cap_free = 0;
    ut_engine_config config = {.packet_bytes = w->plan.packet_bytes,
                               .segments_max = w->plan.segments_max,
                               .receive_buffer = w->plan.receive_buffer,
                               .seed = sim_mix(w->seed ^ sim_mix((uint64_t)h->index << 32 | h->life)),
                               .cap = w->plan.host_rate ? &h->cap : NULL};
    sim_guarded_make(w, &h->memory, ut_engine_bytes(&config));
    int error = ut_engine_init(h->memory.mem, &config, &h->engine);
    if (error)
        sim_fail(w, "start", h->index, "engine: error %d", error);
    for (uint32_t job = 0; job < w->plan.jobs; job++)
        if (index_in(w, job, h) != UINT32_MAX)
            open_seat(w, h, job, &config);
}

void sim_daemon_kill(sim_world *w, sim_host *h)
{
    sim_account_host(w, h);
    h->alive = false;
    for (uint32_t job = 0; job < w->plan.jobs; job++) {
        for (uint32_t r = 0; r < w->job[job].ranks; r++)
            if (w->job[job].rank[r].host == h->index)
                sim_trainer_detach(w, &w->job[job].rank[r], false);
        h->seat[job].open = false;
        sim_guarded_free(&h->seat[job].memory);
        sim_seal_close_seat(w, h, job);
    }
    sim_guarded_free(&h->memory);
    h->engine = NULL;
    for (unsigned port = 0; port < 2; port++) {
        while (h->queue[port]) {
            sim_packet *packet = h->queue[port];
            h->queue[port] = packet->next;
            w->books.lost_dead.packets++;
            w->books.lost_dead.bytes += packet->len;
            sim_packet_free(packet);
        }
        h->queue_end[port] = &h->queue[port];
        h->queued_bytes[port] = 0;
    }
}

/* ---- timed faults ---- */

static void resume(sim_world *w, sim_host *h)
{
    if (!h->paused)
        return;
    h->paused = false;
    sim_host_wake(w, h, w->now);
    for (uint32_t job = 0; job < w->plan.jobs; job++)
        if (h->alive && index_in(w, job, h) != UINT32_MAX)
            seat_ranks(w, h, job);
}

static void set_cut(sim_world *w, const sim_item *item, bool on)
{
    uint64_t others = sim_first(w->plan.hosts) & ~item->hosts;
    w->partitions += on ? 1 : UINT32_MAX;
    if (w->partitions == 0)
        memset(w->cut, 0, sizeof w->cut);
    for (uint32_t h = 0; on && h < w->plan.hosts; h++) {
        if (item->hosts >> h & 1)
            w->cut[h] |= others;
        else if (!item->one_way)
            w->cut[h] |= item->hosts;
    }
}

void sim_item_begin(sim_world *w, uint32_t index)
{
    const sim_item *item = &w->plan.item[index];
    sim_host *h = &w->host[item->host];
    if (!w->faults)
        return;
    switch (item->kind) {
    case SIM_PAUSE:
        if (h->paused)
            return;
        h->paused = true;
        h->resumes = w->now + item->lasts;
        sim_trace(w, SIM_TR_PAUSE, h->index, 0, item->lasts, 0, 0);
        w->cover[SIM_pause]++;
        break;
    case SIM_PARTITION:
        set_cut(w, item, true);
        sim_trace(w, SIM_TR_PARTITION, 0, item->one_way, item->hosts, 1, 0);
        w->cover[item->one_way ? SIM_partition_one_way : SIM_partition_both_ways]++;
        break;
    case SIM_TRAINER_DEATH: {
        sim_rank *r = &w->job[item->job].rank[item->rank];
        if (r->session == UINT32_MAX)
            return;
        sim_trace(w, SIM_TR_DEATH, r->host, item->job, item->rank, r->out, 0);
        w->cover[SIM_trainer_death]++;
        w->job[item->job].shaken[w->job[item->job].index_of[r->host]] = true;
        r->dead = true;
        r->planned_return = item->lasts != UT_NEVER;
        sim_trainer_detach(w, r, true);
        sim_host_readable(w, &w->host[r->host]);
        break;
    }
    case SIM_DAEMON_DEATH:
    case SIM_LEAVE:
        if (!h->alive || h->paused || (item->kind == SIM_LEAVE && sim_seats_leave(w, index)))
            return;
        sim_trace(w, SIM_TR_DEATH, h->index, UINT32_MAX, 0, 0, 0);
        w->cover[SIM_daemon_death]++;
        w->cover[SIM_SEATS_died] += w->plan.job[0].seats && item->kind == SIM_DAEMON_DEATH;
        w->cover[SIM_SEATS_empty_at_first] += w->plan.job[0].seats && item->at == 0 && h->life == 1;
        for (uint32_t job = 0; job < w->plan.jobs; job++) {
            uint32_t self = index_in(w, job, h);
            if (self == UINT32_MAX)
                continue;
            w->job[job].shaken[self] = true;
            for (uint32_t i = 0; item->told && i < w->plan.job[job].hosts; i++)
                if (i != self)
                    tell(w, h, w->plan.job[job].host[i], job, ABSENT, (listening){0}, item->told_after);
            for (uint32_t r = 0; r < w->job[job].ranks; r++)
                if (w->job[job].rank[r].host == h->index) {
                    w->job[job].rank[r].dead = true;
                    w->job[job].rank[r].planned_return = item->lasts != UT_NEVER;
                }
        }
        h->gone = item->for_good;
        sim_daemon_kill(w, h);
        for (uint32_t job = 0; job < w->plan.jobs; job++)
            if (index_in(w, job, h) != UINT32_MAX)
                seat_everybody(w, job);
        break;
    }
    if (item->lasts != UT_NEVER)
        sim_push(w, w->now + item->lasts, SIM_EV_ITEM_END, index, 0, 0, 0, NULL);
}

static void bring_back_daemon(sim_world *w, sim_host *h)
{
    if (h->alive || h->gone)
        return;
    w->cover[SIM_daemon_return]++;
    for (uint32_t job = 0; job < w->plan.jobs; job++)
        for (uint32_t r = 0; r < w->job[job].ranks; r++)
            if (w->job[job].rank[r].host == h->index)
                w->job[job].rank[r].dead = false;
    h->alive = true;
    h->life++;
    sim_daemon_start(w, h);
}

static void bring_back_trainer(sim_world *w, sim_rank *r)
{
    if (!r->dead || r->session != UINT32_MAX || !w->host[r->host].alive)
        return;
    w->cover[SIM_trainer_return]++;
    r->dead = false;
    seat_ranks(w, &w->host[r->host], r->job);
}

void sim_item_end(sim_world *w, uint32_t index)
{
    const sim_item *item = &w->plan.item[index];
    sim_host *h = &w->host[item->host];
    sim_rank *r;
    switch (item->kind) {
    case SIM_PAUSE:
        if (w->now >= h->resumes)
            resume(w, h);
        break;
    case SIM_PARTITION:
        set_cut(w, item, false);
        sim_trace(w, SIM_TR_PARTITION, 0, item->one_way, item->hosts, 0, 0);
        break;
    case SIM_TRAINER_DEATH:
        r = &w->job[item->job].rank[item->rank];
        if (w->host[r->host].paused)
            sim_push(w, w->host[r->host].resumes + RETRY_NS, SIM_EV_ITEM_END, index, 0, 0, 0, NULL);
        else
            bring_back_trainer(w, r);
        break;
    case SIM_DAEMON_DEATH:
    case SIM_LEAVE:
        bring_back_daemon(w, h);
        break;
    }
}

/* The hostile host's daemon is replaced by an honest one. */
static void reform(sim_world *w, sim_host *h)
{
    sim_trace(w, SIM_TR_DEATH, h->index, UINT32_MAX, 0, 0, 0);
    for (uint32_t job = 0; job < w->plan.jobs; job++)
        if (index_in(w, job, h) != UINT32_MAX)
            for (uint32_t i = 0; i < w->plan.job[job].hosts; i++)
                if (w->plan.job[job].host[i] != h->index)
                    tell(w, h, w->plan.job[job].host[i], job, ABSENT, (listening){0}, CONTROL_NS);
    sim_daemon_kill(w, h);
    bring_back_daemon(w, h);
}

/* The calm: all that was broken is mended, save hosts that are gone for good. */
void sim_faults_stop(sim_world *w)
{
    w->faults = false;
    memset(w->cut, 0, sizeof w->cut);
    for (uint32_t i = 0; i < w->plan.hosts; i++) {
        sim_host *h = &w->host[i];
        resume(w, h);
        bring_back_daemon(w, h);
    }
    if (w->plan.hostile)
        reform(w, &w->host[w->plan.liar.host]);
    sim_seats_stay(w);
    sim_epochs_calm(w);
    for (uint32_t job = 0; job < w->plan.jobs; job++)
        for (uint32_t r = 0; r < w->job[job].ranks; r++)
            bring_back_trainer(w, &w->job[job].rank[r]);
}
