/* SPDX-License-Identifier: Apache-2.0
 *
 * The tables: jobs, peers, sessions, events. Packets pass through engine_in.c and engine_out.c.
 */
#include "core/base/mix.h"
#include "core/face/engine_impl.h"
#include "core/op/op_pause.h"
#include "core/wire/pieces.h"

#include "kernels/kernels.h"

enum {
    EARLY_BYTES = 3 << 20,       /* what is kept of early packets of all peers of a job */
    EARLY_BYTES_MIN = 128 << 10, /* but of each two bursts */
    EARLY_PACKETS_MIN = 16,
};

/* ---- memory ---- */

static uint64_t early_of(const ut_engine_config *engine, const ut_job_config *config)
{
    uint64_t share = engine->receive_buffer / 2 / UT_MAX2(config->hosts - 1, 1);
    uint64_t least = (uint64_t)EARLY_PACKETS_MIN * config->packet_bytes;
    uint64_t early = UT_MAX2((uint64_t)EARLY_BYTES / UT_MAX2(config->hosts - 1, 1), (uint64_t)EARLY_BYTES_MIN);
    return UT_MAX2(UT_MIN2(share, early), least);
}

/* Lays the job out in |at|, or only counts when |at| is NULL. */
typedef struct layout {
    ut_job *job;
    ut_partial *partial;
    ut_op_partial *of_op;
    const ut_intake *intake;
    void *own;
} layout;

static size_t lay_out(const ut_engine_config *engine, const ut_job_config *config, uint8_t *at, layout *ret)
{
    ut_carver c = {at, 0};
    const ut_intake *intake = ut_intake_of(&config->options);
    *ret = (layout){.intake = intake};
    ret->job =
        ut_job_lay_out(&c, config, early_of(engine, config), intake ? intake->gathering : &ut_gathering_ordinary);
    if (intake) {
        ret->partial = ut_carve(&c, sizeof *ret->partial);
        ret->of_op = ut_carve(&c, sizeof *ret->of_op * UT_OPS_MAX);
        ret->own = intake->lay_out(&c, config);
    }
    return c.used;
}

size_t ut_engine_bytes(const ut_engine_config *config)
{
    return ut_engine_config_valid(config) ? sizeof(ut_engine) : 0;
}

size_t ut_job_bytes(const ut_engine_config *engine, const ut_job_config *config)
{
    layout l;
    if (!ut_engine_config_valid(engine) || !ut_job_config_valid(engine, config))
        return 0;
    return lay_out(engine, config, NULL, &l);
}

/* ---- what jobs ask and tell (core/base/host.h) ---- */

static void complete(void *engine, uint32_t session, const ut_receipt *receipt)
{
    assert(session < UT_SESSIONS_MAX && receipt->hosts <= UT_HOSTS_MAX);
    ut_engine *e = engine;
    ut_engine_session *s = &e->session[session];
    if (!s->used)
        return;
    /* A full ring is the trainer's own doing: it never lets more than the ring holds be outstanding. */
    if (ut_ring_complete(s->memory.submissions, s->memory.completions, &s->written, receipt) == UT_OK)
        e->wakeups |= 1ULL << session;
    else
        e->stats.receipts_dropped++;
}

static void emit(void *engine, const ut_event *event)
{
    ut_engine *e = engine;
    assert(e->events <= UT_EVENTS_MAX && e->event_first < UT_EVENTS_MAX);
    if (e->events == UT_EVENTS_MAX) {
        e->stats.events_dropped++;
        return;
    }
    e->event[(e->event_first + e->events++) % UT_EVENTS_MAX] = *event;
}

static void tell(void *engine, uint32_t session, uint64_t taken, uint64_t freed, uint64_t results)
{
    const ut_engine *e = engine;
    assert(session < UT_SESSIONS_MAX);
    ut_completion_ring *ring = e->session[session].memory.completions;
    __atomic_store_n(&ring->results, results, __ATOMIC_RELEASE);
    __atomic_store_n(&ring->taken, taken, __ATOMIC_RELEASE);
    __atomic_store_n(&ring->freed, freed, __ATOMIC_RELEASE);
}

static void room(void *engine)
{
    ut_engine *e = engine;
    for (uint32_t s = 0; s < UT_SESSIONS_MAX; s++)
        if (e->session[s].used)
            e->retry |= 1ULL << s;
}

static uint32_t place_of(void *engine, uint32_t session)
{
    assert(session < UT_SESSIONS_MAX);
    const ut_engine *e = engine;
    return e->session[session].memory.place;
}

static ut_host host_of(ut_engine *e)
{
    return (ut_host){.context = e,
                     .counters = &e->stats,
                     .turn = &e->work,
                     .segments_max = e->config.segments_max,
                     .cap = &e->cap,
                     .complete = complete,
                     .emit = emit,
                     .tell = tell,
                     .room = room,
                     .sessions_due = ut_engine_sessions_due,
                     .next_call = ut_engine_next_call,
                     .place_of = place_of,
                     .anyone_waits = ut_engine_anyone_waits};
}

void ut_engine_limit_bursts(ut_engine *e, uint64_t packets)
{
    e->host.segments_max = (uint32_t)UT_MIN2(UT_MAX2(packets, 1), (uint64_t)e->config.segments_max);
}

int ut_engine_init(void *mem, const ut_engine_config *config, ut_engine **ret)
{
    if (!ut_engine_config_valid(config))
        return UT_ERR_ARGUMENT;
    ut_engine *e = mem;
    memset(e, 0, sizeof *e);
    e->config = *config;
    e->random = config->seed;
    e->host = host_of(e);
    ut_cap_join(&e->cap, config->cap);
    ut_engine_credit_init(e);
    ut_work_begin_turn(&e->work);
    ut_kernels_init(UT_ISA_BEST);
    *ret = e;
    return UT_OK;
}

/* ---- jobs ---- */

static ut_job *job_of(const ut_engine *e, uint32_t job)
{
    return job < UT_JOBS_MAX ? e->job[job] : NULL;
}

int ut_engine_job_add(ut_engine *e, uint32_t job, const ut_job_config *config, void *mem)
{
    if (job >= UT_JOBS_MAX || !ut_job_config_valid(&e->config, config))
        return UT_ERR_ARGUMENT;
    if (e->job[job])
        return UT_ERR_EXISTS;
    layout l;
    lay_out(&e->config, config, mem, &l);
    ut_job_init(l.job, job, config, &e->host);
    if (l.partial)
        ut_partial_init(l.job, l.partial, l.of_op, l.intake, l.own);
    e->job[job] = l.job;
    e->cap.users++;
    e->stats.progress++;
    return UT_OK;
}

uint32_t ut_engine_hosts(const ut_engine *e, uint32_t job)
{
    const ut_job *j = job_of(e, job);
    return j ? j->config.hosts : 0;
}

uint32_t ut_engine_world(const ut_engine *e, uint32_t job)
{
    const ut_job *j = job_of(e, job);
    return j ? j->world : 0;
}

static void add_losses(ut_stats *ret, const ut_job *j)
{
    for (uint32_t h = 0; h < j->config.hosts; h++) {
        ret->lost_packets += j->conn[h].tx.lost_packets;
        ret->spurious_losses += j->conn[h].tx.spurious_losses;
    }
}

void ut_engine_job_remove(ut_engine *e, uint32_t job, ut_ns now)
{
    ut_job *j = job_of(e, job);
    if (!j)
        return;
    e->job[job] = NULL; /* first: a failing op must not take new submissions */
    e->cap.users--;
    for (unsigned k = 0; k < UT_OPS_MAX; k++)
        if (j->op[k].state != UT_OP_FREE && j->op[k].state != UT_OP_LINGERING && !ut_op_is_held(&j->op[k]))
            ut_op_fail(j, &j->op[k], UT_ERR_CLOSED, now);
    if (j->partial)
        ut_inboxes_close(j, now);
    add_losses(&e->stats, j); /* counters never fall */
    for (uint32_t s = 0; s < UT_SESSIONS_MAX; s++)
        if (e->session[s].used && e->session[s].job == job)
            e->session[s].used = false;
    e->stats.progress++;
}

static ut_conn *conn_of(const ut_engine *e, uint32_t job, uint32_t host)
{
    ut_job *j = job_of(e, job);
    return j && host < j->config.hosts && host != j->config.self ? &j->conn[host] : NULL;
}

int ut_engine_peer_listen(ut_engine *e, uint32_t job, uint32_t host, uint32_t *ret_cid)
{
    ut_conn *c = conn_of(e, job, host);
    if (!c)
        return UT_ERR_UNKNOWN;
    uint32_t cid; /* unlikely to repeat, not secret: nothing is authenticated yet */
    do
        cid =
            (uint32_t)ut_mix_next(&e->random) << (UT_CID_JOB_BITS + UT_CID_HOST_BITS) | job << UT_CID_HOST_BITS | host;
    while (c->listening && cid == c->rx_cid);
    ut_conn_listen(c, cid);
    ut_ledger_forget(&e->job[job]->ledger, host);
    *ret_cid = cid;
    e->stats.progress++;
    return UT_OK;
}

int ut_engine_peer_keys(ut_engine *e, uint32_t job, uint32_t host, void *out, void *in)
{
    ut_conn *c = conn_of(e, job, host);
    if (!c)
        return UT_ERR_UNKNOWN;
    if (!c->seal.cipher || !out || !in)
        return UT_ERR_ARGUMENT;
    c->seal.keys_out = out;
    c->seal.keys_in = in;
    return UT_OK;
}

static void members_changed(ut_job *j)
{
    ut_timing_reset(&j->timing);
    j->incast.stale = true;
    ut_partial_members_changed(j);
}

int ut_engine_peer_connect(ut_engine *e, uint32_t job, uint32_t host, const ut_addr *data, const ut_addr *feedback,
                           uint32_t cid, ut_ns now)
{
    ut_conn *c = conn_of(e, job, host);
    if (!c)
        return UT_ERR_UNKNOWN;
    if (!c->listening || data->len > sizeof data->bytes || feedback->len > sizeof feedback->bytes ||
        (c->seal.cipher && !c->seal.keys_out))
        return UT_ERR_ARGUMENT;
    if (c->state == UT_CONN_UP)
        ut_op_host_absent(e->job[job], host, now); /* what it had of open ops went with its other life */
    ut_conn_connect(c, data, feedback, cid, now);
    ut_ledger_begin(&e->job[job]->ledger, host);
    ut_op_host_back(e->job[job], host, now);
    e->job[job]->back |= e->job[job]->awaited & ut_bit(host);
    const ut_job_config *config = &e->job[job]->config;
    const ut_job_options *options = ut_job_options_now(e->job[job]);
    ut_cc_start(&c->cc, options->congestion, options->delay_target_ns, config->packet_bytes, config->hosts - 1,
                UT_GRANT_AHEAD_MAX);
    members_changed(e->job[job]);
    e->stats.progress++;
    return UT_OK;
}

void ut_engine_peer_absent(ut_engine *e, uint32_t job, uint32_t host, ut_ns now)
{
    ut_conn *c = conn_of(e, job, host);
    if (!c || c->state != UT_CONN_UP)
        return;
    ut_conn_absent(c);
    members_changed(e->job[job]);
    ut_op_host_absent(e->job[job], host, now);
    e->stats.progress++;
}

int ut_engine_peer_await(ut_engine *e, uint32_t job, uint32_t host, bool on, ut_ns now)
{
    const ut_conn *c = conn_of(e, job, host);
    if (!c)
        return UT_ERR_UNKNOWN;
    ut_job *j = e->job[job];
    j->awaited = on && !j->partial ? j->awaited | ut_bit(host) : j->awaited & ~ut_bit(host);
    j->back &= ~ut_bit(host);
    if (!on && c->state != UT_CONN_UP)
        ut_op_host_absent(j, host, now);
    e->stats.progress++;
    return UT_OK;
}

int ut_engine_job_hold(ut_engine *e, uint32_t job, ut_ns now)
{
    ut_job *j = job_of(e, job);
    if (!j)
        return UT_ERR_UNKNOWN;
    ut_job_hold(j, j->partial == NULL, now);
    return UT_OK;
}

int ut_engine_job_place(const ut_engine *e, uint32_t job, uint64_t *ret_floor, uint32_t *ret_unsettled)
{
    const ut_job *j = job_of(e, job);
    if (!j)
        return UT_ERR_UNKNOWN;
    *ret_floor = j->rx_floor;
    *ret_unsettled = ut_job_unsettled(j);
    return UT_OK;
}

int ut_engine_peer_stats(const ut_engine *e, uint32_t job, uint32_t host, ut_peer_stats *ret)
{
    const ut_conn *c = conn_of(e, job, host);
    if (!c)
        return UT_ERR_UNKNOWN;
    *ret = (ut_peer_stats){.up = c->state == UT_CONN_UP,
                           .srtt_ns = c->tx.srtt,
                           .sent_bytes = c->tx.bytes,
                           .received_bytes = c->rx.bytes,
                           .lost_bytes = c->tx.lost_bytes,
                           .window_bytes = c->cc.ops ? c->cc.ops->window(&c->cc) : UINT64_MAX,
                           .base_rtt_ns = c->cc.base_rtt,
                           .ce_packets = c->tx.ce_packets,
                           .window_cuts = c->cc.reductions,
                           .sent_packets = c->tx.next,
                           .feedbacks_sent = c->say.number,
                           .feedbacks_heard = c->peer.came[UT_PORT_FEEDBACK],
                           .feedbacks_beside = c->peer.came[UT_PORT_DATA]};
    return UT_OK;
}

void ut_engine_peers_blocked(ut_engine *e, uint32_t job, uint64_t mask)
{
    ut_job *j = job_of(e, job);
    if (j)
        j->account.blocked = mask;
}

int ut_engine_activate(ut_engine *e, uint32_t job, uint64_t op_seq, ut_ns now)
{
    ut_job *j = job_of(e, job);
    e->stats.progress++;
    return j ? ut_partial_activate(j, op_seq, now) : UT_ERR_UNKNOWN;
}

uint64_t ut_engine_next_op_seq(const ut_engine *e, uint32_t job)
{
    const ut_job *j = job_of(e, job);
    return j ? ut_job_next_op(j) : 0;
}

/* ---- sessions ---- */

int ut_engine_session_add(ut_engine *e, uint32_t job, const ut_session_memory *memory, uint64_t first_op_seq,
                          uint32_t *ret_session)
{
    ut_job *j = job_of(e, job);
    if (!j)
        return UT_ERR_UNKNOWN;
    uint32_t n = 0, free_at = UT_SESSIONS_MAX;
    for (uint32_t s = UT_SESSIONS_MAX; s-- > 0;) {
        n += e->session[s].used && e->session[s].job == job;
        if (!e->session[s].used)
            free_at = s;
    }
    if (n >= j->config.local_ranks || free_at == UT_SESSIONS_MAX)
        return UT_ERR_FULL;
    if (memory->place >= j->config.local_ranks)
        return UT_ERR_ARGUMENT;
    if (j->attached & ut_bit(memory->place))
        return UT_ERR_EXISTS;
    if (j->partial)
        ut_inbox_attach(j, free_at, memory->place, &e->session[free_at].calls);
    j->attached |= (uint16_t)ut_bit(memory->place);
    e->session[free_at] = (ut_engine_session){
        .used = true,
        .job = job,
        .memory = *memory,
        .next_seq = first_op_seq,
        .taken = __atomic_load_n(&memory->submissions->head, __ATOMIC_RELAXED), /* nothing older counts */
        .written = memory->completions->head};
    memory->completions->submissions_taken = e->session[free_at].taken;
    memory->completions->results = j->partial ? j->partial->results : 0;
    /* Ops below have no part in it; a job whose host joins late starts here. */
    if (n == 0 && j->next_open < first_op_seq && !j->partial) {
        bool idle = true;
        for (unsigned k = 0; k < UT_OPS_MAX; k++)
            idle = idle && (j->op[k].state == UT_OP_FREE || j->op[k].state == UT_OP_LINGERING);
        if (idle)
            j->next_open = j->rx_floor = first_op_seq;
    }
    *ret_session = free_at;
    e->stats.progress++;
    return UT_OK;
}

void ut_engine_session_remove(ut_engine *e, uint32_t session, ut_ns now)
{
    if (session >= UT_SESSIONS_MAX || !e->session[session].used)
        return;
    e->session[session].used = false;
    e->wakeups &= ~(1ULL << session);
    ut_job *j = job_of(e, e->session[session].job);
    if (j) {
        j->attached &= (uint16_t)~ut_bit(e->session[session].memory.place);
        j->gathering->gone(j, session, now);
    }
    e->stats.progress++;
}

/* ---- outwards ---- */

bool ut_engine_poll_event(ut_engine *e, ut_event *ret)
{
    if (e->events == 0)
        return false;
    *ret = e->event[e->event_first];
    e->event_first = (e->event_first + 1) % UT_EVENTS_MAX;
    e->events--;
    return true;
}

uint64_t ut_engine_take_wakeups(ut_engine *e)
{
    uint64_t wakeups = e->wakeups;
    e->wakeups = 0;
    return wakeups;
}

void ut_engine_stats(const ut_engine *e, ut_stats *ret)
{
    *ret = e->stats;
    ret->oldest_open_ns = ret->oldest_deadline_ns = UT_NEVER;
    ret->arrival_rate = e->pool.rate;
    ret->receive_wanted = 2 * e->pool.beyond; /* half of the buffer is for what is outstanding */
    for (uint32_t n = 0; n < UT_JOBS_MAX; n++) {
        const ut_job *j = e->job[n];
        for (unsigned k = 0; j && k < UT_OPS_MAX; k++) {
            const ut_op *op = &j->op[k];
            if (op->state == UT_OP_FREE || op->state == UT_OP_LINGERING || op->time.start >= ret->oldest_open_ns)
                continue;
            /* What takes the engine's own time alone is not late: it waits for its turn. */
            bool works = op->state == UT_OP_OPENING || op->state == UT_OP_ENDING;
            ret->oldest_open_ns = op->time.start;
            ret->oldest_deadline_ns = works ? UT_NEVER : op->time.deadline;
        }
        if (j)
            add_losses(ret, j);
    }
}

int ut_engine_receipt(const ut_engine *e, uint32_t job, uint32_t back, ut_receipt *ret)
{
    const ut_job *j = job_of(e, job);
    const ut_receipt *r = j ? ut_receipt_back(&j->account, back) : NULL;
    if (!r)
        return UT_ERR_UNKNOWN;
    *ret = *r;
    return UT_OK;
}
