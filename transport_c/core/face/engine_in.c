/* SPDX-License-Identifier: Apache-2.0
 *
 * Packets in, and timers. Every datagram that comes in lands in exactly one class of ut_stats.
 */
#include "core/face/engine_impl.h"
#include "core/op/op_parity.h"
#include "core/op/op_pause.h"
#include "core/wire/pieces.h"
#include "core/wire/run.h"

static ut_conn *conn_of_cid(const ut_engine *e, uint32_t cid, ut_job **ret_job, uint32_t *ret_host)
{
    uint32_t host = cid & (UT_HOSTS_MAX - 1);
    ut_job *j = e->job[cid >> UT_CID_HOST_BITS & (UT_JOBS_MAX - 1)];
    if (!j || host >= j->config.hosts)
        return NULL;
    ut_conn *c = &j->conn[host];
    if (!c->listening || c->shut || c->rx_cid != cid)
        return NULL;
    assert(host != j->config.self); /* on its own path a host never listens */
    *ret_job = j;
    *ret_host = host;
    return c;
}

/* |host| has said what cannot be true, or somebody in its name: whatever else came this way may be false as well. The
 * path's id is void from here on, and the daemon makes a new path. */
static void violated(ut_engine *e, const ut_job *j, uint32_t host)
{
    j->conn[host].shut = 1;
    e->host.emit(e, &(ut_event){.kind = UT_EVENT_VIOLATION, .job = j->number, .session = UINT32_MAX, .host = host});
}

/* Opens a datagram of a sealed path, and takes the tag off |len|. False, and counted, if it came before or was not made
 * by the one at the path's other end; then nothing has changed. */
static bool open_packet(ut_engine *e, const ut_job *j, uint32_t host, uint8_t *packet, size_t *len, unsigned kind,
                        ut_ns now)
{
    ut_conn *c = &j->conn[host];
    bool data = ut_wire_is_data(kind) || kind == UT_KIND_PIECE;
    uint32_t low = ut_wire_number(packet);
    uint64_t number;
    enum ut_pn verdict = data ? ut_conn_check_pn(c, low, &number) : ut_conn_check_control(c, low, &number);
    if (verdict == UT_PN_SEEN) {
        e->stats.replayed++;
        return false;
    }
    *len = ut_seal_open(&c->seal, packet, *len, number, now);
    if (*len == 0) {
        e->stats.bad_checksum++;
        return false;
    }
    if (verdict != UT_PN_WILD && number >= (data ? c->rx.next : c->peer.control))
        ut_engine_came_from(e, j, host, now);
    if (data)
        return true;             /* it is noted when it is taken, see take_data */
    if (verdict == UT_PN_WILD) { /* noted, it would make of all true numbers others, with which nothing opens */
        e->stats.feedback_received++;
        violated(e, j, host);
        return false;
    }
    ut_conn_control_came(c, number);
    return true;
}

/* The path that a datagram names, from its first bytes alone; the datagram is opened if the path is sealed. NULL, and
 * counted, if it names none of ours or was not made by the one at its other end: garbage is turned away before anything
 * is computed from it. */
static ut_conn *conn_of_packet(ut_engine *e, uint8_t *packet, size_t *len, unsigned kind, ut_ns now, ut_job **ret_job,
                               uint32_t *ret_host)
{
    uint32_t cid;
    if (ut_wire_peek(packet, *len, kind, &cid)) {
        e->stats.malformed++;
        return NULL;
    }
    ut_conn *c = conn_of_cid(e, cid, ret_job, ret_host);
    if (!c) {
        e->stats.unknown++;
        return NULL;
    }
    return !c->seal.cipher || open_packet(e, *ret_job, *ret_host, packet, len, kind, now) ? c : NULL;
}

static void count_undecodable(ut_engine *e, int error)
{
    *(error == UT_ERR_CHECKSUM ? &e->stats.bad_checksum : &e->stats.malformed) += 1;
}

/* True if a data packet, or a piece of one, is new on its path; counted if it is not. */
static bool is_new(ut_engine *e, const ut_job *j, uint32_t host, uint32_t low, uint64_t *ret_pn)
{
    switch (ut_conn_check_pn(&j->conn[host], low, ret_pn)) {
    case UT_PN_NEW:
        return true;
    case UT_PN_SEEN:
        e->stats.replayed++;
        return false;
    default:
        e->stats.data_refused++;
        violated(e, j, host);
        return false;
    }
}

/* A data packet in whose path and checksum we believe, without what a cipher adds, as one datagram or put together from
 * pieces. */
static void take_data(ut_engine *e, ut_job *j, uint32_t host, const ut_data *h, const uint8_t *packet, bool ce,
                      ut_ns now)
{
    const uint32_t len = ut_wire_packet((uint32_t)h->payload_len, 0), bytes = len + j->frame.overhead;
    ut_conn *c = &j->conn[host];
    uint64_t pn;
    if (c->shut) { /* since its datagram was looked at, by one that came with it */
        e->stats.unknown++;
        return;
    }
    if (!is_new(e, j, host, h->pn, &pn))
        return;
    c->rx.last = now;
    enum ut_taken taken = h->flags & UT_FLAG_PARITY ? ut_op_parity(j, host, h, now) : ut_op_data(j, host, h, now);
    if (taken == UT_TAKEN_AHEAD || (taken == UT_TAKEN_EARLY && !ut_conn_stash(c, packet, len))) {
        e->stats.data_refused++; /* not kept, or beyond its credit; not acknowledged, so nothing is lost but time */
        return;
    }
    ut_engine_came(e, 1, bytes, pn + 1 - UT_MIN2(c->rx.next, pn + 1));
    ut_conn_received(c, pn, &(ut_came){1, bytes, h->time_us, ce, h->flags & UT_FLAG_ASK}, now);
    ut_pool_waited(&e->pool, c->rx.waited, 1);
    if (h->flags & UT_FLAG_REPAIR && taken == UT_TAKEN_USED)
        e->stats.bytes_repaired += h->payload_len;
    if (taken == UT_TAKEN_LATE)
        ut_conn_speak_at(c, now + UT_HOLD_NS); /* our floors tell the peer that it may stop */
    ut_taken_count(&e->stats, taken, h->payload_len);
}

/* Packets of one datagram aggregate that wait to be taken in as one. */
typedef struct run {
    ut_job *job;
    uint32_t host;
    ut_data_run data; /* without packets: none waits */
} run;

/* What cannot be taken in as one is taken packet by packet, with the same outcome. */
static void take_run(ut_engine *e, run *r, bool ce, ut_ns now)
{
    const ut_data *first = &r->data.first;
    const uint32_t packets = r->data.packets;
    uint32_t n = 0;
    uint64_t pn;
    if (packets == 0)
        return;
    ut_conn *c = &r->job->conn[r->host];
    assert(packets <= UT_RUN_MOST);
    const uint32_t bytes = ut_wire_packet((uint32_t)first->payload_len, r->job->frame.overhead);
    if (packets > 1 && !c->shut && !(first->flags & UT_FLAG_REPAIR) &&
        ut_conn_check_pn(c, first->pn, &pn) == UT_PN_NEW && pn >= c->rx.next) {
        c->rx.last = now;
        n = ut_op_data_run(r->job, r->host, &r->data, now);
    }
    if (n > 0) {
        ut_engine_came(e, n, n * bytes, pn + n - c->rx.next);
        ut_conn_received(c, pn, &(ut_came){n, n * bytes, first->time_us, ce, first->flags & UT_FLAG_ASK}, now);
        ut_pool_waited(&e->pool, c->rx.waited, n);
        e->stats.data_used += n;
        e->stats.bytes_used += n * first->payload_len;
    }
    for (; n < packets; n++) {
        const ut_data h = ut_run_packet(&r->data, n);
        take_data(e, r->job, r->host, &h, r->data.packet + n * r->data.stride, ce, now);
    }
    r->data.packets = 0;
}

/* A data packet that may begin a run. |stride|: how far behind it the next one lies. */
static void input_data(ut_engine *e, run *r, uint8_t *packet, size_t len, size_t stride, bool ce, ut_ns now)
{
    ut_job *j;
    uint32_t host;
    ut_data h;
    /* Without a cipher it is on the path of the packet before it if its header says so. */
    bool same_path = r->data.packets > 0 && !r->job->conn[r->host].seal.cipher;
    if (!same_path || !ut_run_goes_on(&r->data, packet, len)) {
        if (!conn_of_packet(e, packet, &len, UT_KIND_DATA, now, &j, &host))
            return;
        same_path = r->data.packets > 0 && r->job == j && r->host == host;
    }
    if (same_path && ut_run_goes_on(&r->data, packet, len)) {
        if (ut_run_add(&r->data, ut_job_check(r->job)))
            count_undecodable(e, UT_ERR_CHECKSUM);
        return;
    }
    int error = ut_data_decode(&h, packet, len, ut_job_check(j));
    if (error) {
        count_undecodable(e, error);
        return;
    }
    take_run(e, r, ce, now);
    r->job = j;
    r->host = host;
    ut_run_begin(&r->data, &h, packet, stride);
}

/* Sums of packets before it. A cipher opens each of a few, and none of them is taken in as one with others. */
static void input_parity(ut_engine *e, uint8_t *packet, size_t len, bool ce, ut_ns now)
{
    ut_job *j;
    uint32_t host;
    ut_data h;
    if (!conn_of_packet(e, packet, &len, UT_KIND_PARITY, now, &j, &host))
        return;
    int error = ut_data_decode(&h, packet, len, ut_job_check(j));
    error ? count_undecodable(e, error) : take_data(e, j, host, &h, packet, ce, now);
}

static void input_piece(ut_engine *e, uint8_t *packet, size_t len, bool ce, ut_ns now)
{
    ut_piece p;
    ut_data h;
    ut_job *j;
    uint32_t host;
    uint64_t pn;
    ut_conn *c = conn_of_packet(e, packet, &len, UT_KIND_PIECE, now, &j, &host);
    if (!c)
        return;
    int error = ut_piece_decode(&p, packet, len, ut_job_check(j));
    if (error) {
        count_undecodable(e, error);
        return;
    }
    if (!is_new(e, j, host, p.pn, &pn))
        return;
    const uint8_t *whole = ut_pieces_put(c->pieces, &j->frame, &p, &error);
    if (error == UT_ERR_EXISTS)
        e->stats.replayed++;
    else if (error)
        count_undecodable(e, error);
    else if (!whole)
        e->stats.data_pieces++;
    else if ((error = ut_data_decode(&h, whole, p.whole, UT_CHECK_SUM)) || h.cid != p.cid || h.pn != p.pn ||
             h.flags & UT_FLAG_PARITY)
        count_undecodable(e, error ? error : UT_ERR_MALFORMED);
    else
        take_data(e, j, host, &h, whole, ce, now);
}

/* Credit that did not wait for a feedback. */
static void input_grant(ut_engine *e, uint32_t port, uint8_t *packet, size_t len, ut_ns now)
{
    ut_grant g;
    ut_job *j;
    uint32_t host;
    ut_conn *c = conn_of_packet(e, packet, &len, UT_KIND_GRANT, now, &j, &host);
    if (!c)
        return;
    int error = ut_grant_decode(&g, packet, len, ut_job_check(j));
    if (error) {
        count_undecodable(e, error);
        return;
    }
    c->peer.came[port]++;
    e->stats.feedback_received++;
    if (c->state != UT_CONN_UP)
        return; /* it speaks of what we sent in another life of the path */
    g.number = ut_conn_feedback_number(c, (uint32_t)g.number);
    if (ut_conn_grant_is_wild(c, &g)) {
        violated(e, j, host);
        return;
    }
    c->rx.last = now;
    ut_conn_on_grant(c, g.grant);
}

/* Whether a peer is where packets in its name come from. Only a sealed path knows such packets. */
static void input_path(ut_engine *e, uint8_t *packet, size_t len, ut_ns now)
{
    ut_path p;
    ut_job *j;
    uint32_t host;
    ut_conn *c = conn_of_packet(e, packet, &len, UT_KIND_PATH, now, &j, &host);
    if (!c)
        return;
    int error = c->seal.cipher ? ut_path_decode(&p, packet, len, ut_job_check(j)) : UT_ERR_MALFORMED;
    if (error) {
        count_undecodable(e, error);
        return;
    }
    e->stats.feedback_received++;
    ut_engine_path(e, j, host, &p, now);
}

static void input_feedback(ut_engine *e, uint32_t port, uint8_t *packet, size_t len, ut_ns now)
{
    ut_feedback *f = &e->feedback;
    ut_job *j;
    uint32_t host;
    ut_conn *c = conn_of_packet(e, packet, &len, UT_KIND_FEEDBACK, now, &j, &host);
    if (!c)
        return;
    int error = ut_feedback_decode(f, packet, len, ut_job_check(j));
    if (error) {
        count_undecodable(e, error);
        return;
    }
    c->peer.came[port]++;
    f->number = ut_conn_feedback_number(c, (uint32_t)f->number);
    ut_fate fate = {j, host, now};
    bool up = c->state == UT_CONN_UP; /* else it may speak of what we sent in another life of the path */
    if (!ut_conn_feedback_is_newer(c, f->number)) {
        e->stats.feedback_old++;
        if (ut_conn_feedback_overtaken(c, f->number, now) || (up && ut_conn_feedback_is_wild(c, f)))
            violated(e, j, host);
        else if (up)
            ut_conn_on_old_feedback(c, f, ut_op_fate, &fate);
        return;
    }
    e->stats.feedback_received++;
    if ((up && ut_conn_feedback_is_wild(c, f)) || ut_op_feedback_is_wild(j, host, f)) {
        violated(e, j, host);
        return;
    }
    c->peer.overtaken = 0;
    if (!c->heard)
        ut_conn_speak_at(c, now); /* the path works: the peer needs our first grant */
    c->heard = 1;
    c->peer.feedback = f->number;
    c->peer.drops = f->kernel_drops;
    c->rx.last = now;
    if (!up)
        return;
    ut_job_host_heard(j, host);
    ut_conn_on_feedback(c, f, now, ut_op_fate, &fate);
    ut_op_feedback(j, host, f, now);
}

void ut_engine_input(ut_engine *e, uint32_t port, uint8_t *data, size_t len, size_t stride, bool ce, ut_ns now)
{
    assert(port <= UT_PORT_FEEDBACK);
    size_t at = 0;
    run r;
    e->port = port;
    r.data.packets = 0;
    if (stride == 0 || stride > len)
        stride = len;
    do {
        size_t n = UT_MIN2(stride, len - at);
        e->stats.packets_received++;
        unsigned kind = ut_wire_kind(data + at, n);
        at += n;
        if (port == UT_PORT_DATA && kind != UT_KIND_PIECE && kind != UT_KIND_PARITY && !ut_wire_is_feedback(kind)) {
            input_data(e, &r, data + at - n, n, stride, ce, now);
            continue;
        }
        take_run(e, &r, ce, now); /* what comes behind it may say that nothing more of it will be taken */
        if (kind == UT_KIND_PIECE && port == UT_PORT_DATA)
            input_piece(e, data + at - n, n, ce, now);
        else if (kind == UT_KIND_PARITY && port == UT_PORT_DATA)
            input_parity(e, data + at - n, n, ce, now);
        else if (kind == UT_KIND_GRANT)
            input_grant(e, port, data + at - n, n, now);
        else if (kind == UT_KIND_PATH)
            input_path(e, data + at - n, n, now);
        else
            input_feedback(e, port, data + at - n, n, now);
    } while (at < len);
    take_run(e, &r, ce, now);
    e->stats.progress++;
}

void ut_engine_kernel_drops(ut_engine *e, uint64_t drops)
{
    e->stats.kernel_drops = drops;
}

/* Passes over buckets, each job's first in turn. */
static void work_on(ut_engine *e, ut_ns now)
{
    uint32_t first = e->work.first;
    for (uint32_t n = 0; n < UT_JOBS_MAX; n++) {
        ut_job *j = e->job[(first + n) % UT_JOBS_MAX];
        int64_t before = e->work.left;
        for (unsigned k = 0; j && k < UT_OPS_MAX; k++) {
            ut_op *op = &j->op[(j->next_open + k) % UT_OPS_MAX]; /* the oldest first */
            if (ut_op_has_work(op))
                ut_op_work_on(j, op, now);
        }
        if (j)
            ut_partial_work_on(j, now);
        if (j && e->work.left < before)
            e->work.first = (j->number + 1) % UT_JOBS_MAX;
    }
}

/* Submissions that found no room when they were rung in, or no time in an earlier turn; another one first each time. */
static void retry_submissions(ut_engine *e, ut_ns now)
{
    uint64_t sessions = e->retry;
    uint32_t first = e->retry_first++ % UT_SESSIONS_MAX;
    e->retry = 0;
    for (uint32_t i = 0; i < UT_SESSIONS_MAX && sessions; i++) {
        uint32_t s = (first + i) % UT_SESSIONS_MAX;
        if (sessions >> s & 1)
            ut_engine_submissions(e, s, now);
        sessions &= ~(1ULL << s);
    }
}

/* Where one peer is told something now, or an op has ended, those soon to be told are told with it: in one turn. */
static void speak_together(ut_engine *e, ut_ns now)
{
    bool due = false;
    for (unsigned pass = 0; pass < 2; pass++)
        for (uint32_t n = 0; n < UT_JOBS_MAX; n++) {
            ut_job *j = e->job[n];
            due = due || (j && j->op_ended);
            for (uint32_t h = 0; j && h < j->config.hosts; h++)
                if (pass == 0)
                    due = due || ut_conn_speaks_within(&j->conn[h], 0, now);
                else if (due && ut_conn_speaks_within(&j->conn[h], UT_TIMER_MIN_NS, now))
                    ut_conn_speak_at(&j->conn[h], now);
            if (j && pass == 1)
                j->op_ended = false;
        }
}

void ut_engine_tick(ut_engine *e, ut_ns now)
{
    ut_work_begin_turn(&e->work);
    for (uint32_t n = 0; n < UT_JOBS_MAX; n++) {
        ut_job *j = e->job[n];
        if (!j)
            continue;
        if (ut_job_hold_over(j, now))
            ut_partial_members_changed(j);
        for (unsigned k = 0; k < UT_OPS_MAX; k++)
            if (now >= ut_op_next_wake(j, &j->op[k]))
                ut_op_tick(j, &j->op[k], now);
        for (uint32_t h = 0; h < j->config.hosts; h++) {
            ut_fate fate = {j, h, now};
            const ut_ns sent = j->conn[h].tx.last;
            if (h == j->config.self)
                continue;
            const bool probed = ut_conn_tick(&j->conn[h], now, ut_op_fate, &fate);
            e->stats.probes_sent += probed;
            ut_engine_path_tick(e, j, h, probed ? sent : UT_NEVER, now);
            if (now >= j->conn[h].say.again)
                ut_op_say_again(j, h, now);
        }
    }
    work_on(e, now);
    retry_submissions(e, now);
    ut_engine_expire(e, now);
    for (uint32_t n = 0; n < UT_JOBS_MAX; n++) {
        ut_job *j = e->job[n];
        if (!j)
            continue;
        ut_partial_tick(j, now);
        ut_job_incast_tick(j, now);
    }
    ut_engine_credit_tick(e, now);
    speak_together(e, now);
}

bool ut_engine_has_work(const ut_engine *e)
{
    return e->work.waits;
}

bool ut_engine_has_let_go(const ut_engine *e, uint32_t job)
{
    return job >= UT_JOBS_MAX || !e->job[job] || ut_partial_has_let_go(e->job[job]);
}

uint64_t ut_engine_awaited(const ut_engine *e)
{
    uint64_t least = UINT64_MAX;
    for (uint32_t n = 0; n < UT_JOBS_MAX; n++)
        for (unsigned k = 0; e->job[n] && k < UT_OPS_MAX; k++) {
            const uint64_t awaited = ut_op_awaited(&e->job[n]->op[k]);
            least = awaited ? UT_MIN2(least, awaited) : least;
        }
    return least == UINT64_MAX ? 0 : least;
}

ut_ns ut_engine_next_wake(const ut_engine *e)
{
    ut_ns wake = e->retry || ut_engine_has_work(e) ? 0 : ut_engine_next_expiry(e);
    for (uint32_t n = 0; n < UT_JOBS_MAX; n++) {
        const ut_job *j = e->job[n];
        if (!j)
            continue;
        for (unsigned k = 0; k < UT_OPS_MAX; k++)
            wake = UT_MIN2(wake, ut_op_next_wake(j, &j->op[k]));
        for (uint32_t h = 0; h < j->config.hosts; h++)
            if (h != j->config.self)
                wake = UT_MIN2(wake, ut_conn_next_wake(&j->conn[h]));
        wake = UT_MIN2(UT_MIN2(wake, ut_tokens_wake(&j->tokens, j->config.packet_bytes)), ut_job_incast_next_wake(j));
        wake = UT_MIN2(UT_MIN2(wake, ut_partial_next_wake(j)), ut_epochs_hold_ends(&j->epochs));
    }
    return UT_MIN2(UT_MIN2(wake, e->credit_at), ut_cap_wake(&e->cap));
}
