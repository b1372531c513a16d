/* SPDX-License-Identifier: Apache-2.0
 *
 * The tables: jobs, peers, sessions, events. Packets pass through engine_io.c.
 */
#include "core/base/mix.h"
#include "core/face/engine_impl.h"
#include "core/wire/pieces.h"

#include "kernels/kernels.h"

enum {
    CREDIT_BYTES = 3 << 20,       /* what all peers of a host may have in flight to it, or waiting in its memory */
    CREDIT_BYTES_MIN = 128 << 10, /* but each two bursts */
    WINDOW_PACKETS_MIN = 16,
};

/* ---- memory ---- */

typedef struct carver {
    uint8_t *at; /* NULL while only counting */
    size_t used;
} carver;

static void *carve(carver *c, size_t bytes)
{
    size_t from = (c->used + 63) & ~(size_t)63;
    c->used = from + bytes;
    return c->at ? c->at + from : NULL;
}

static uint64_t window_of(const ut_engine_config *engine, const ut_job_config *config)
{
    uint64_t share = engine->receive_buffer / 2 / UT_MAX2(config->hosts - 1, 1);
    uint64_t least = (uint64_t)WINDOW_PACKETS_MIN * config->packet_bytes;
    uint64_t window = UT_MAX2((uint64_t)CREDIT_BYTES / UT_MAX2(config->hosts - 1, 1), (uint64_t)CREDIT_BYTES_MIN);
    return UT_MAX2(UT_MIN2(share, window), least);
}

/* Lays the job out in |at|, or only counts when |at| is NULL. */
static size_t lay_out(const ut_engine_config *engine, const ut_job_config *config, uint8_t *at, ut_job **ret)
{
    carver c = {at, 0};
    ut_job *j = carve(&c, sizeof *j);
    ut_conn *conn = carve(&c, sizeof *conn * config->hosts);
    ut_claims *claims = carve(&c, sizeof *claims * config->hosts);
    ut_receipt *kept = carve(&c, sizeof *kept * UT_RECEIPTS_KEPT);
    uint64_t window = window_of(engine, config);
    ut_frame frame = {config->packet_bytes, ut_seal_overhead(config->cipher)};
    uint32_t payload = ut_wire_payload(frame.packet_bytes, frame.overhead);
    uint64_t shard = config->bucket_bytes_max / config->hosts + 16;
    /* The one chunk of a parameter server is the whole bucket; in TAR a shard is, when all others are gone. What is not
     * touched costs addresses alone. */
    unsigned algorithm = ut_options_algorithm(&config->options);
    bool whole = algorithm == UT_TAR || algorithm == UT_PS;
    size_t slots = (size_t)(config->bucket_bytes_max / payload + config->hosts + 1);
    size_t shard_words = (size_t)(shard / payload + 1 + 63) / 64, bucket_words = (slots + 63) / 64;
    size_t words = whole ? 3 * config->hosts * (bucket_words + 1) : 6 * shard_words * UT_MAX2(config->hosts - 1, 1);
    if (at) {
        j->conn = conn;
        j->claims = claims;
        j->frame = frame;
        j->payload = payload;
        j->account.kept = kept;
    }
    for (uint32_t h = 0; h < config->hosts; h++) {
        uint8_t *stash = carve(&c, ut_conn_stash_bytes(window));
        uint8_t *pieces = carve(&c, ut_pieces_memory(&frame));
        if (!at)
            continue;
        ut_conn_init(&conn[h], window, stash, ut_conn_stash_bytes(window));
        ut_claims_hurry(&claims[h]);
        conn[h].pieces = pieces;
        conn[h].seal.cipher = config->cipher;
    }
    /* What cannot be touched is not asked for, for all of it is in somebody's budget. A host that is alone in its job
     * folds nothing that comes and keeps nothing for others. Only TAR's ops are transformed, but none of partial jobs;
     * those alone go on without the trainer whose buffer they began with (ut_slot_gone). */
    bool apart = config->hosts > 1, partial = config->options.policy > UT_POLICY_NONE;
    bool transforms = apart && !partial && algorithm == UT_TAR;
    bool combines = config->local_ranks > 1 || partial;
    for (unsigned k = 0; k < UT_OPS_MAX; k++) {
        uint8_t *slot_state = carve(&c, slots);
        uint16_t *slot_weight = carve(&c, slots * 2);
        uint32_t *slot_crc = carve(&c, slots * 4);
        uint64_t *bitmaps = carve(&c, words * 8);
        uint8_t *held = apart ? carve(&c, config->bucket_bytes_max * 2) : NULL; /* floats of the halves are larger */
        uint8_t *encoded = transforms ? carve(&c, config->bucket_bytes_max) : NULL;
        uint8_t *orphan = apart && partial ? carve(&c, config->bucket_bytes_max) : NULL;
        uint8_t *bucket = combines ? carve(&c, config->bucket_bytes_max) : NULL;
        if (!at)
            continue;
        ut_op *op = &j->op[k];
        op->fold.state = slot_state;
        op->fold.weight = slot_weight;
        op->fold.crc = slot_crc;
        op->plan.bitmaps = bitmaps;
        op->plan.bitmap_words = words;
        op->memory.held = held;
        op->memory.bucket = bucket;
        op->memory.encoded = encoded;
        op->memory.orphan = orphan;
    }
    if (ret)
        *ret = j;
    return c.used;
}

size_t ut_engine_bytes(const ut_engine_config *config)
{
    return ut_engine_config_valid(config) ? sizeof(ut_engine) : 0;
}

size_t ut_job_bytes(const ut_engine_config *engine, const ut_job_config *config)
{
    return ut_engine_config_valid(engine) && ut_job_config_valid(engine, config) ? lay_out(engine, config, NULL, NULL)
                                                                                 : 0;
}

/* ---- what jobs ask and tell (core/base/host.h) ---- */

static void complete(void *engine, uint32_t session, const ut_receipt *receipt)
{
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
    if (e->events == UT_EVENTS_MAX) {
        e->stats.events_dropped++;
        return;
    }
    e->event[(e->event_first + e->events++) % UT_EVENTS_MAX] = *event;
}

static void tell(void *engine, uint32_t session, uint64_t taken, uint64_t freed, uint64_t results)
{
    const ut_engine *e = engine;
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

static ut_host host_of(ut_engine *e)
{
    return (ut_host){.context = e,
                     .counters = &e->stats,
                     .turn = &e->work,
                     .segments_max = e->config.segments_max,
                     .complete = complete,
                     .emit = emit,
                     .tell = tell,
                     .room = room,
                     .sessions_due = ut_engine_sessions_due,
                     .next_call = ut_engine_next_call,
                     .anyone_waits = ut_engine_anyone_waits};
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
    ut_work_begin_turn(&e->work);
    ut_kernels_init(UT_ISA_AVX512);
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
    ut_job *j;
    lay_out(&e->config, config, mem, &j);
    j->number = job;
    j->host = &e->host;
    j->config = *config;
    j->world = ut_world_of(config);
    ut_timing_init(&j->timing, config->hosts, config->self);
    ut_pace_init(&j->pace, config->rate_bytes_per_s);
    ut_job_incast_init(j);
    j->turn_until = UT_NEVER;
    j->next_open = j->rx_floor = j->heard_seq = config->first_op_seq;
    ut_hadamard_switch_init(&j->hadamard, config->options.hadamard, config->first_op_seq);
    ut_owners_init(&j->owners, config->hosts, config->first_op_seq);
    for (unsigned k = 0; k < UT_OPS_MAX; k++) {
        ut_op *op = &j->op[k];
        op->seq = UINT64_MAX;
        ut_fold_init(&op->fold, &op->what, &op->plan, &op->memory, &e->work, j->payload, j->world);
    }
    ut_slots_init(j);
    e->job[job] = j;
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

int ut_engine_job_tune(ut_engine *e, uint32_t job, const ut_job_options *options)
{
    ut_job *j = job_of(e, job);
    if (!j)
        return UT_ERR_UNKNOWN;
    ut_job_options before = j->config.options, next = *options;
    next.algorithm = before.algorithm;
    if (!ut_job_options_valid(&next, j->config.hosts, j->world) || (next.policy > UT_POLICY_NONE) != j->partial.on)
        return UT_ERR_ARGUMENT;
    j->config.options = next;
    if (j->partial.on)
        ut_policy_tune(j, &before);
    for (uint32_t h = 0; h < j->config.hosts; h++)
        if (j->conn[h].state == UT_CONN_UP)
            ut_cc_tune(&j->conn[h].cc, options->congestion, options->delay_target_ns);
    j->incast.stale = true;
    return UT_OK;
}

void ut_engine_job_remove(ut_engine *e, uint32_t job, ut_ns now)
{
    ut_job *j = job_of(e, job);
    if (!j)
        return;
    e->job[job] = NULL; /* first: a failing op must not take new submissions */
    for (unsigned k = 0; k < UT_OPS_MAX; k++)
        if (j->op[k].state != UT_OP_FREE && j->op[k].state != UT_OP_LINGERING)
            ut_op_fail(j, &j->op[k], UT_ERR_CLOSED, now);
    if (j->partial.on)
        ut_slots_close(j, now);
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
    ut_claims_forget(&e->job[job]->claims[host]);
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
    j->incast.stale = j->partial.stale = true;
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
    e->job[job]->partial.present_of[host] = 0xffff;
    ut_owners_forget(&e->job[job]->owners, host);
    if (c->state == UT_CONN_UP)
        ut_op_host_absent(e->job[job], host, now); /* what it had of open ops went with its other life */
    ut_conn_connect(c, data, feedback, cid, now);
    ut_claims_hurry(&e->job[job]->claims[host]);
    const ut_job_config *config = &e->job[job]->config;
    ut_cc_start(&c->cc, config->options.congestion, config->options.delay_target_ns, config->packet_bytes,
                config->hosts - 1, c->rx.window);
    ut_conn_expect(c, c->cc.share);
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
    ut_owners_forget(&e->job[job]->owners, host);
    members_changed(e->job[job]);
    ut_op_host_absent(e->job[job], host, now);
    e->stats.progress++;
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
                           .window_cuts = c->cc.cuts};
    return UT_OK;
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
    return j ? UT_MAX2(j->heard_seq, j->next_open) : 0;
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
    int error = j->partial.on ? ut_slot_attach(j, free_at, memory->place, &e->session[free_at].calls) : UT_OK;
    if (error)
        return error;
    e->session[free_at] = (ut_engine_session){.used = true,
                                              .job = job,
                                              .memory = *memory,
                                              .next_seq = first_op_seq,
                                              .taken = memory->submissions->head, /* nothing older counts */
                                              .written = memory->completions->head};
    memory->completions->submissions_taken = e->session[free_at].taken;
    memory->completions->results = j->partial.results;
    /* Ops below have no part in it; a job whose host joins late starts here. */
    if (n == 0 && j->next_open < first_op_seq && !j->partial.on) {
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
    if (j)
        ut_op_session_gone(j, session, now);
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
        for (uint32_t h = 0; j && h < j->config.hosts; h++) {
            ret->lost_packets += j->conn[h].tx.lost_packets;
            ret->spurious_losses += j->conn[h].tx.spurious_losses;
        }
    }
}

int ut_engine_receipt(const ut_engine *e, uint32_t job, uint32_t back, ut_receipt *ret)
{
    const ut_job *j = job_of(e, job);
    const ut_receipt *r = j ? ut_receipt_back(j, back) : NULL;
    if (!r)
        return UT_ERR_UNKNOWN;
    *ret = *r;
    return UT_OK;
}
