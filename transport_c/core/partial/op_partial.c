/* SPDX-License-Identifier: Apache-2.0
 *
 * An op of a partial job: what is different where not everybody contributes. Hosts say in their records how many ranks
 * they bring; who brings none sends nothing in stage 1, and owners strike it off instead of waiting. What a slot of the
 * result should hold is then not all ranks of the job, but all that were announced.
 */
#include "core/partial/intake.h"

uint32_t ut_op_announced(const ut_job *j, const ut_op *op, uint64_t *ret_hosts)
{
    uint64_t hosts = 0;
    uint32_t ranks = 0;
    for (uint32_t h = 0; h < j->config.hosts; h++) {
        uint32_t i = op->plan.rx_of[0][h], weight = op->partial->said[h].weight;
        if (weight == 0 && !op->partial->said[h].heard && h != j->config.self && i != UINT32_MAX)
            weight = op->plan.transfer[i].weight; /* its data was quicker than its word */
        ranks += weight;
        hosts |= weight ? ut_bit(h) : 0;
    }
    *ret_hosts = hosts;
    return ranks;
}

/* A host that is there has said nothing of what it brings: less than all ranks may not be all. */
static bool somebody_is_unheard(const ut_job *j, const ut_op *op)
{
    for (uint32_t h = 0; h < j->config.hosts; h++) {
        uint32_t i = op->plan.rx_of[0][h];
        if (h != j->config.self && ut_bits_have(op->epoch.members, h) && ut_job_host_is_up(j, h) &&
            !op->partial->said[h].heard && (i == UINT32_MAX || op->plan.transfer[i].weight == 0))
            return true;
    }
    return false;
}

static uint32_t whole(const ut_job *j, const ut_op *op)
{
    uint64_t hosts;
    return somebody_is_unheard(j, op) ? j->world : ut_op_announced(j, op, &hosts);
}

static void recount(const ut_job *j, ut_op *op)
{
    uint32_t all = whole(j, op);
    op->fold.result.short_hosts = 0;
    for (uint32_t h = 0; h < j->config.hosts; h++)
        if (op->fold.result.least_of[h] < all)
            op->fold.result.short_hosts |= ut_bit(h);
}

static void record(ut_job *j, ut_op *op, uint32_t host, const ut_record *r, ut_ns now)
{
    ut_part *part = &op->partial->said[host];
    if (part->heard)
        return;
    uint16_t all = ut_job_places_of(j, host), fresh = r->fresh & all, stale = r->stale & all & (uint16_t)~fresh;
    *part = (ut_part){.heard = true,
                      .weight = UT_MIN2(r->weight, (uint16_t)__builtin_popcount(fresh | stale)),
                      .fresh = fresh,
                      .stale = stale,
                      .oldest_step = r->oldest_step};
    if (part->weight)
        return;
    for (uint32_t i = op->plan.rx_of[0][host]; i != UINT32_MAX; i = op->plan.peer_next[i]) {
        ut_transfer *t = &op->plan.transfer[i];
        if (t->done)
            t->why = t->closed ? t->why : UT_MISSING_LOST; /* the record is not true */
        bool none = t->done == 0 && t->slots && !t->closed;
        t->closed = 1;
        if (!none)
            continue;
        t->slots = 0;
        t->whole = 0;
        op->plan.schedule.step[i].bytes = 0;
        ut_fold_fewer(&op->fold, op->plan.schedule.step[i].chunk);
    }
    ut_op_check(j, op, now);
}

void ut_op_activate(ut_job *j, const ut_activation *a, ut_ns now)
{
    ut_op *op = ut_op_gather(j, &a->shape, now);
    op->partial->policy = a->policy;
    op->partial->initiator = a->initiator;
    op->partial->heard_from = a->from;
    op->partial->waited = now - UT_MIN2(a->since, now);
    op->partial->orphaned = false;
    op->partial->saved = 0;
    memset(op->partial->said, 0, sizeof op->partial->said);
    j->partial->intake->begin(j, op);
    ut_op_time_call(j, op, &a->shape, true);
    const ut_submission *other = ut_inboxes_take(j, op);
    const ut_part *own = &op->partial->said[j->config.self];
    j->host->emit(j->host->context, &(ut_event){.kind = UT_EVENT_ACTIVATED,
                                                .job = j->number,
                                                .session = UINT32_MAX,
                                                .host = a->initiator == 0xffff ? UINT32_MAX : a->initiator,
                                                .op_seq = op->seq,
                                                .a = own->fresh | own->stale,
                                                .b = op->what.step});
    const ut_submission asked = other ? ut_submission_asks(other) : (ut_submission){0};
    if (!other || ut_op_agrees_here(j, op, &asked, now))
        ut_op_open(j, op, now);
}

/* ---- what differs from ordinary jobs while an op runs (core/op/gathering.h) ---- */

static unsigned sources(const ut_job *j, const ut_op *op, const void **ret)
{
    (void)op;
    return ut_gifts_sources(j, ret);
}

static unsigned residuals(const ut_job *j, const ut_op *op, float **ret)
{
    (void)op;
    return ut_gifts_residuals(j, ret);
}

static void place(ut_job *j, ut_op *op)
{
    const void *from[UT_LOCAL_MAX];
    unsigned n = ut_gifts_sources(j, from);
    op->memory.src = n == 1 ? from[0] : op->memory.bucket; /* where several were combined, and none is zero */
    op->memory.dst = op->memory.bucket;
    op->local.weight = (uint16_t)n;
}

/* All peers are told, the activation tree's first. */
static void announce(ut_job *j, ut_op *op, ut_ns now)
{
    uint64_t children = ut_activation_children(j->config.hosts, j->config.self, op->partial->heard_from);
    for (uint32_t h = 0; h < j->config.hosts; h++) {
        if (h == j->config.self || !ut_job_host_is_up(j, h))
            continue;
        ut_conn *c = &j->conn[h];
        bool at_once =
            (children & ut_bit(h)) || op->local.weight == 0; /* owners wait for the word that nothing comes */
        ut_conn_speak_at(c, at_once ? now : now + UT_TIMER_MIN_NS);
    }
}

static void tell(const ut_job *j, const ut_op *op, ut_record *r)
{
    r->flags |= UT_RECORD_ACTIVE;
    r->fresh = op->partial->said[j->config.self].fresh;
    r->stale = op->partial->said[j->config.self].stale;
    r->oldest_step = op->partial->said[j->config.self].oldest_step;
    r->initiator = op->partial->initiator;
    r->policy = op->partial->policy;
    r->submitted = (uint8_t)((op->what.by_world ? UT_SUBMIT_WORLD : 0) | (op->time.adaptive ? UT_SUBMIT_ADAPTIVE : 0));
    r->attached = ut_gifts_present(j);
}

static void account(const ut_job *j, const ut_op *op, ut_receipt *r)
{
    uint8_t eta = op->epoch.options.eta;
    r->policy = op->partial->policy;
    r->initiator = op->partial->initiator;
    r->waited_ns = op->partial->waited;
    r->eta = eta ? eta : UT_ETA;
    for (uint32_t h = 0; h < j->config.hosts; h++) {
        const ut_part *part = &op->partial->said[h];
        r->peer[h].fresh = part->fresh;
        r->peer[h].stale = part->stale;
        r->peer[h].oldest_step = part->oldest_step;
        r->included = (uint16_t)(r->included + __builtin_popcount(part->fresh | part->stale));
    }
}

static uint64_t contributors(const ut_job *j, const ut_op *op)
{
    uint64_t hosts;
    ut_op_announced(j, op, &hosts);
    return hosts;
}

static bool ended(ut_job *j, const ut_op *op, const ut_receipt *r, ut_ns now)
{
    if (r->status != UT_FAILED) {
        j->partial->results = op->seq + 1;
        j->partial->result_kept = j->account.kept_count - 1;
        j->partial->held = true;
    }
    ut_inboxes_ended(j, op, r, now);
    return true;
}

/* What |host| takes for granted, where it was told nothing else: all trainers are there, and no rank is ready. Only a
 * quorum counts ranks that are ready before an op starts. */
bool ut_partial_readiness(const ut_job *j, uint32_t host, ut_record *ret)
{
    if (ut_partial_busy(j))
        return false;
    const uint16_t ready = ut_gifts_ready(j, j->next_open), here = ut_job_places_of(j, j->config.self);
    const bool counts = ut_policy_of(j, j->next_open).policy == UT_POLICY_QUORUM && ready;
    const bool differs = (ut_ledger_told_attached(&j->ledger, host) ^ ut_gifts_present(j)) & here;
    if (!counts && !differs && !ut_ledger_told(&j->ledger, host, j->next_open))
        return false;
    *ret = (ut_record){.op_seq = j->next_open,
                       .weight = (uint16_t)__builtin_popcount(ready),
                       .algorithm = (uint8_t)ut_job_algorithm(j),
                       .time_left_us = UINT32_MAX,
                       .fresh = ready,
                       .initiator = 0xffff,
                       .policy = ut_policy_of(j, j->next_open).policy,
                       .attached = ut_gifts_present(j)};
    return true;
}

void ut_partial_tell_ready(ut_job *j, ut_ns now)
{
    ut_record next;
    for (uint32_t h = 0; h < j->config.hosts; h++) {
        if (h == j->config.self || !ut_job_host_is_up(j, h) || !ut_partial_readiness(j, h, &next))
            continue;
        const ut_record *told = ut_ledger_told(&j->ledger, h, next.op_seq);
        if (!told || !ut_record_is_same(told, &next))
            ut_conn_speak_at(&j->conn[h], now);
    }
}

bool ut_partial_hear(ut_job *j, uint32_t host, const ut_record *r)
{
    (void)j, (void)host;
    return r->flags & UT_RECORD_ACTIVE;
}

const ut_gathering ut_gathering_partial = {.keeps = true,
                                           .record_flags = UT_RECORD_ACTIVE,
                                           .starts_together = true,
                                           .early = UT_LAG_MAX + 1,
                                           .sources = sources,
                                           .residuals = residuals,
                                           .place = place,
                                           .announce = announce,
                                           .record = record,
                                           .whole = whole,
                                           .lacks = ut_gathering_lacks_nothing,
                                           .recount = recount,
                                           .contributors = contributors,
                                           .account = account,
                                           .count = ut_gathering_counts_all,
                                           .ended = ended,
                                           .tell = tell,
                                           .readiness = ut_partial_readiness,
                                           .hear = ut_partial_hear,
                                           .heard = ut_partial_look,
                                           .gone = ut_inbox_gone};
