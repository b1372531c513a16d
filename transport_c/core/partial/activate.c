/* SPDX-License-Identifier: Apache-2.0
 *
 * Partial jobs: who starts the next op, and whom it tells first. Ops start one after the other on each host: by a rule
 * of the job's policy on what lies in the slots here (internal activation), or because a peer has started it (external
 * activation). An op starts once on a host whoever starts it, so several initiators do no harm.
 *
 * A host that is behind joins the lowest op that still runs anywhere it hears of. What has ended everywhere else it
 * leaves out: joining that would spend what its ranks have given on a result that nobody else gets.
 */
#include "core/base/mix.h"
#include "core/partial/intake.h"
#include "core/partial/picks.h"

/* ---- pure functions ---- */

enum { DRAWS = 256, RANKS = UT_HOSTS_MAX * UT_LOCAL_MAX }; /* the draw's number is the key's highest byte */

/* Gives all ranks, one after the other, in the order in which they are drawn; those never drawn come last. */
typedef struct draws {
    uint64_t key;
    uint32_t world, draw, rest;
    uint64_t seen[RANKS / 64];
} draws;

static draws draws_of(uint64_t seed, uint64_t op_seq, uint32_t world)
{
    return (draws){.key = seed ^ op_seq * 0xd1342543de82ef95ULL, .world = world};
}

static bool is_new(draws *d, uint32_t rank)
{
    bool seen = d->seen[rank / 64] >> (rank % 64) & 1;
    d->seen[rank / 64] |= 1ULL << (rank % 64);
    return !seen;
}

static bool next_draw(draws *d, uint32_t *ret)
{
    while (d->draw < DRAWS) {
        uint64_t x = ut_mix((d->key ^ (uint64_t)d->draw++ << 56) + UT_MIX_STEP);
        *ret = (uint32_t)((x >> 32) * d->world >> 32);
        if (is_new(d, *ret))
            return true;
    }
    while (d->rest < d->world) {
        *ret = d->rest++;
        if (is_new(d, *ret))
            return true;
    }
    return false;
}

void ut_picks(uint64_t seed, uint64_t op_seq, uint32_t world, uint32_t n, uint32_t *ret)
{
    draws d = draws_of(seed, op_seq, UT_MIN2(world, (uint32_t)RANKS));
    for (uint32_t i = 0; i < n && next_draw(&d, &ret[i]); i++)
        ;
}

/* ---- whether the next op starts ---- */

static bool trainer_of(const ut_job *j, uint32_t rank, uint32_t *ret_host, uint32_t *ret_place)
{
    uint32_t host = 0;
    for (; host < j->config.hosts && rank >= ut_job_ranks_of(j, host); host++)
        rank -= ut_job_ranks_of(j, host);
    *ret_host = host;
    *ret_place = rank;
    if (host == j->config.self)
        return ut_gifts_present(j) >> rank & 1;
    return host < j->config.hosts && ut_job_host_is_up(j, host) && (ut_ledger_attached(&j->ledger, host) >> rank & 1);
}

/* A rank of this host is among the |n| that are drawn of those that have a trainer, and it is ready. */
static bool is_picked(const ut_job *j, uint64_t seq, uint32_t n, uint16_t ready)
{
    draws d = draws_of(j->config.options.policy_seed, seq, j->world);
    uint32_t rank, host, place;
    for (uint32_t found = 0; found < n && next_draw(&d, &rank);) {
        if (!trainer_of(j, rank, &host, &place))
            continue;
        found++;
        if (host == j->config.self && (ready >> place & 1))
            return true;
    }
    return false;
}

/* Ranks that are ready on all hosts, against those that it takes. */
static bool is_quorum(const ut_job *j, uint64_t seq, uint32_t k, uint16_t ready)
{
    uint32_t sum = (uint32_t)__builtin_popcount(ready), alive = (uint32_t)__builtin_popcount(ut_gifts_present(j));
    for (uint32_t h = 0; h < j->config.hosts; h++) {
        const ut_record *r = ut_ledger_record(&j->ledger, h, seq);
        if (h == j->config.self || !ut_job_host_is_up(j, h))
            continue;
        uint16_t places = ut_job_places_of(j, h);
        alive += (uint32_t)__builtin_popcount(ut_ledger_attached(&j->ledger, h) & places);
        if (r)
            sum += (uint32_t)__builtin_popcount((r->fresh | r->stale) & places);
    }
    return ready && sum >= UT_MIN2(k, UT_MAX2(alive, 1));
}

static bool starts_here(const ut_job *j, uint64_t seq, const ut_policy_set *set)
{
    uint16_t ready = ut_gifts_ready(j, seq), attached = ut_gifts_attached(j);
    switch (set->policy) {
    case UT_POLICY_FULL:
        return ready && ready == attached;
    case UT_POLICY_SOLO:
    case UT_POLICY_CODED:
        return ready;
    case UT_POLICY_MAJORITY:
    case UT_POLICY_SEEDED:
        return ready && is_picked(j, seq, set->probes, ready);
    case UT_POLICY_QUORUM:
        return is_quorum(j, seq, set->quorum, ready);
    default: /* PROBE: the daemon decides */
        return false;
    }
}

/* A record of a quantised op, of forms that exist. */
static bool is_quantised(const ut_job *j, const ut_record *r)
{
    const ut_variant *variant = r->collective == UT_ALLREDUCE_QUANT ? ut_variant_of(r->collective) : NULL;
    const ut_submission op = {.count = r->count,
                              .dtype = r->dtype,
                              .redop = r->redop,
                              .mode = r->mode,
                              .collective = r->collective,
                              .alike = r->alike};
    return variant && variant->check(j, UINT64_MAX, &op) == UT_OK;
}

/* What a peer says of an op can be joined: it is possible at all, and it has time. */
static bool is_joinable(const ut_job *j, const ut_claims *c, unsigned k, ut_ns now)
{
    const ut_record *r = &c->record[k];
    if (!c->seen[k] || (r->flags & (UT_RECORD_ACTIVE | UT_RECORD_RX_DONE)) != UT_RECORD_ACTIVE)
        return false;
    if (r->dtype == 0 || r->dtype >= UT_DTYPES_END || (r->redop != UT_SUM && r->redop != UT_AVG) || r->mode == 0 ||
        r->mode >= UT_MODES_END || r->count > j->config.bucket_bytes_max / ut_dtype_bytes(r->dtype))
        return false;
    if (r->collective != UT_ALLREDUCE && !is_quantised(j, r))
        return false;
    return r->time_left_us == UINT32_MAX || now < c->at[k] + r->time_left_us * UT_US;
}

/* The lowest op from the next one on that runs on a peer, and who told it first. */
static bool runs_elsewhere(const ut_job *j, ut_ns now, uint64_t *ret_seq, uint32_t *ret_host)
{
    ut_ns at = UT_NEVER;
    *ret_seq = UINT64_MAX;
    for (uint32_t h = 0; h < j->config.hosts; h++) {
        const ut_claims *c = &j->ledger.row[h];
        for (unsigned k = 0; h != j->config.self && ut_job_host_is_up(j, h) && k < UT_OPS_MAX; k++) {
            uint64_t seq = c->record[k].op_seq;
            if (seq < j->next_open || seq - j->next_open > j->ledger.lag || seq > UT_MIN2(*ret_seq, UT_OP_SEQ_MAX) ||
                !is_joinable(j, c, k, now) || !j->partial->intake->joins(j, h, seq))
                continue;
            if (seq == *ret_seq && c->first_at[k] >= at)
                continue;
            *ret_seq = seq;
            *ret_host = h;
            at = c->first_at[k];
        }
    }
    return *ret_seq != UINT64_MAX;
}

void ut_partial_skip_to(ut_job *j, uint64_t seq, ut_ns now)
{
    if (seq <= j->next_open)
        return;
    j->next_open = seq;
    ut_job_raise_rx_floor(j);
    ut_job_speak(j, now);
}

/* While ops are held back the op cannot start here, so none of the ranks is ready for it then. */
static void tell_daemon(ut_job *j, uint64_t seq, uint16_t ready, ut_ns now)
{
    ut_partial *p = j->partial;
    uint16_t before = p->told_seq == seq ? p->told_daemon : 0;
    p->told_seq = seq;
    p->told_daemon = now < ut_epochs_open_at(&j->epochs, seq) ? 0 : ready;
    if (p->told_daemon != before)
        j->host->emit(j->host->context, &(ut_event){.kind = UT_EVENT_READY,
                                                    .job = j->number,
                                                    .session = UINT32_MAX,
                                                    .host = UINT32_MAX,
                                                    .op_seq = seq,
                                                    .a = p->told_daemon});
}

/* What a peer's record says of an op, as a submission would. */
static ut_submission shape_of(const ut_job *j, uint32_t host, uint64_t seq)
{
    const ut_claims *c = &j->ledger.row[host];
    unsigned k = seq % UT_OPS_MAX;
    const ut_record *r = &c->record[k];
    return (ut_submission){.op_seq = seq,
                           .count = r->count,
                           .deadline_ns = r->time_left_us == UINT32_MAX ? UT_NEVER : c->at[k] + r->time_left_us * UT_US,
                           .dtype = r->dtype,
                           .redop = r->redop,
                           .mode = r->mode,
                           .collective = r->collective,
                           .alike = r->alike,
                           .flags = r->submitted & (UT_SUBMIT_WORLD | UT_SUBMIT_ADAPTIVE)};
}

static void start(ut_job *j, const ut_submission *shape, uint32_t from, const ut_policy_set *set, ut_ns since,
                  ut_ns now)
{
    const ut_record *r = &j->ledger.row[from].record[shape->op_seq % UT_OPS_MAX];
    uint16_t self = (uint16_t)j->config.self, initiator = from == self ? self : r->initiator;
    if (set->policy == UT_POLICY_FULL || initiator >= j->config.hosts)
        initiator = 0xffff;
    ut_activation a = {.shape = *shape, .from = from, .initiator = initiator, .policy = set->policy, .since = since};
    ut_op_activate(j, &a, now);
}

void ut_partial_look(ut_job *j, ut_ns now)
{
    ut_partial *p = j->partial;
    p->stale = false;
    p->look_at = UT_NEVER;
    p->intake->look(j, now);
    while (!ut_partial_busy(j)) {
        uint64_t seq = 0;
        uint32_t from = j->config.self;
        bool external = runs_elsewhere(j, now, &seq, &from);
        if (external)
            ut_partial_skip_to(j, seq, now);
        seq = p->intake->next(j, external, now);
        ut_policy_set set = ut_policy_of(j, seq);
        tell_daemon(j, seq, ut_gifts_ready(j, seq), now);
        ut_partial_tell_ready(j, now);
        external = external && set.policy != UT_POLICY_FULL;
        if ((!external && !starts_here(j, seq, &set)) || now < ut_epochs_open_at(&j->epochs, seq) ||
            seq > UT_OP_SEQ_MAX)
            return;
        if (p->due_seq != seq) {
            p->due_seq = seq;
            p->due_at = now;
        }
        ut_submission shape;
        if (!external)
            shape = ut_gifts_shape(j, now);
        else
            shape = shape_of(j, from, seq);
        shape.op_seq = seq;
        p->look_at = p->intake->waits_until(j, seq, p->due_at, shape.deadline_ns);
        if (now < p->look_at)
            return;
        p->look_at = UT_NEVER;
        ut_ns since = ut_gifts_since(j, p->due_at);
        if (external)
            ut_gifts_reshape(j, &shape);
        start(j, &shape, external ? from : j->config.self, &set, since, now);
    }
}

int ut_partial_activate(ut_job *j, uint64_t seq, ut_ns now)
{
    if (!j->partial)
        return UT_ERR_ARGUMENT;
    ut_partial_look(j, now); /* perhaps it runs elsewhere already */
    if (seq < j->next_open)
        return UT_OK;
    if (seq != j->next_open || seq > UT_OP_SEQ_MAX || ut_partial_busy(j) || now < ut_epochs_open_at(&j->epochs, seq))
        return UT_ERR_SEQUENCE;
    if (!ut_gifts_ready(j, seq))
        return UT_ERR_ABSENT;
    ut_policy_set set = ut_policy_of(j, seq);
    ut_submission shape = ut_gifts_shape(j, now);
    shape.op_seq = seq;
    start(j, &shape, j->config.self, &set, ut_gifts_since(j, now), now);
    ut_partial_look(j, now);
    return UT_OK;
}
