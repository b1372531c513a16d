/* SPDX-License-Identifier: Apache-2.0
 *
 * An op of a partial job: what is different where not everybody contributes. Hosts say in their records how many ranks
 * they bring; who brings none sends nothing in stage 1, and owners strike it off instead of waiting. What a slot of the
 * result should hold is then not all ranks of the job, but all that were announced.
 */
#include "core/base/plant.h"
#include "core/partial/part.h"

uint32_t ut_op_announced(const ut_job *j, const ut_op *op, uint64_t *ret_hosts)
{
    uint64_t hosts = 0;
    uint32_t ranks = 0;
    for (uint32_t h = 0; h < j->config.hosts; h++) {
        uint32_t i = op->plan.rx_of[0][h], weight = op->partial.said[h].weight;
        if (weight == 0 && !op->partial.said[h].heard && h != j->config.self && i != UINT32_MAX)
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
    if (ut_planted(UT_PLANT_PARTIAL_UNHEARD_IS_NOTHING))
        return false;
    for (uint32_t h = 0; h < j->config.hosts; h++) {
        uint32_t i = op->plan.rx_of[0][h];
        if (h != j->config.self && ut_job_host_is_up(j, h) && !op->partial.said[h].heard &&
            (i == UINT32_MAX || op->plan.transfer[i].weight == 0))
            return true;
    }
    return false;
}

uint32_t ut_op_whole(const ut_job *j, const ut_op *op)
{
    uint64_t hosts;
    return op->partial.on && !somebody_is_unheard(j, op) ? ut_op_announced(j, op, &hosts) : j->world;
}

void ut_op_find_short(const ut_job *j, ut_op *op)
{
    uint32_t whole = ut_op_whole(j, op);
    op->fold.short_hosts = 0;
    for (uint32_t h = 0; h < j->config.hosts; h++)
        if (op->fold.least_of[h] < whole)
            op->fold.short_hosts |= ut_bit(h);
}

void ut_op_part(ut_job *j, ut_op *op, uint32_t host, const ut_record *r, ut_ns now)
{
    ut_part *part = &op->partial.said[host];
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
    for (uint32_t i = op->plan.rx_of[0][host]; i != UINT32_MAX; i = op->plan.rx_next[i]) {
        ut_transfer *t = &op->plan.transfer[i];
        if (t->done)
            t->why = t->closed ? t->why : UT_MISSING_LOST; /* the record is not true */
        bool none = t->done == 0 && t->slots && !t->closed;
        t->closed = 1;
        if (!none)
            continue;
        t->slots = 0;
        op->plan.schedule.step[i].bytes = 0;
        ut_fold_fewer(&op->fold, op->plan.schedule.step[i].chunk);
    }
    ut_op_check(j, op, now);
}

void ut_op_part_leaves(ut_job *j, ut_op *op, uint32_t place)
{
    ut_part *own = &op->partial.said[j->config.self];
    uint16_t bit = (uint16_t)(1u << place);
    j->partial.rank[place].in_op.there = false;
    own->weight -= ((own->fresh | own->stale) & bit) != 0;
    own->fresh &= (uint16_t)~bit;
    own->stale &= (uint16_t)~bit;
    ut_op_restart(op);
}

void ut_op_place_slots(ut_job *j, ut_op *op)
{
    const void *sources[UT_LOCAL_MAX];
    unsigned n = ut_slots_sources(j, sources);
    op->memory.src = n == 1 ? sources[0] : op->memory.bucket; /* where several were combined, and none is zero */
    op->memory.dst = op->memory.bucket;
    op->local.weight = (uint16_t)n;
}

void ut_op_announce(ut_job *j, const ut_op *op, ut_ns now)
{
    uint64_t children = ut_activation_children(j->config.hosts, j->config.self, op->partial.heard_from);
    for (uint32_t h = 0; h < j->config.hosts; h++) {
        if (h == j->config.self || !ut_job_host_is_up(j, h))
            continue;
        ut_conn *c = &j->conn[h];
        ut_claims_hurry(&j->claims[h]);
        bool at_once =
            (children & ut_bit(h)) || op->local.weight == 0; /* owners wait for the word that nothing comes */
        ut_conn_speak_at(c, at_once ? now : now + UT_ANNOUNCE_HOLD_NS);
    }
}

void ut_op_tell_part(const ut_job *j, const ut_op *op, ut_record *r)
{
    r->flags |= UT_RECORD_ACTIVE;
    r->fresh = op->partial.said[j->config.self].fresh;
    r->stale = op->partial.said[j->config.self].stale;
    r->oldest_step = op->partial.said[j->config.self].oldest_step;
    r->initiator = op->partial.initiator;
    r->policy = op->partial.policy;
    r->submitted = (uint8_t)((op->what.by_world ? UT_SUBMIT_WORLD : 0) | (op->time.adaptive ? UT_SUBMIT_ADAPTIVE : 0));
    r->attached = ut_slots_present(j);
}

void ut_op_receipt_parts(const ut_job *j, const ut_op *op, ut_receipt *r)
{
    uint8_t eta = j->config.options.eta;
    r->policy = op->partial.policy;
    r->initiator = op->partial.initiator;
    r->waited_ns = op->partial.waited;
    r->eta = eta ? eta : UT_ETA;
    for (uint32_t h = 0; h < j->config.hosts; h++) {
        const ut_part *part = &op->partial.said[h];
        r->peer[h].fresh = part->fresh;
        r->peer[h].stale = part->stale;
        r->peer[h].oldest_step = part->oldest_step;
        r->included = (uint16_t)(r->included + __builtin_popcount(part->fresh | part->stale));
    }
}
