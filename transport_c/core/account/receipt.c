/* SPDX-License-Identifier: Apache-2.0
 *
 * The account of an op. It says only what this host knows: where the masks of a shard are not known, nobody is claimed
 * to be in it.
 */
#include "core/op/op.h"

static uint64_t all_hosts(const ut_job *j)
{
    return j->config.hosts == 64 ? UINT64_MAX : ut_bit(j->config.hosts) - 1;
}

static void account_receive(const ut_job *j, const ut_op *op, uint32_t i, ut_receipt *r)
{
    const ut_step *s = &op->plan.schedule.step[i];
    const ut_transfer *t = &op->plan.transfer[i];
    ut_receipt_peer *row = &r->peer[s->peer];
    uint64_t missing = ut_transfer_missing(t, j->payload);
    row->expected[s->stage - 1] += s->bytes;
    row->missing[s->stage - 1] += (uint32_t)missing;
    if (missing && row->why == UT_MISSING_NOTHING)
        row->why = t->why;
    if (s->stage == 1 && t->weight)
        row->weight = row->weight ? UT_MIN2(row->weight, t->weight) : t->weight;
    if (t->last)
        row->last_us = (uint32_t)UT_MAX2(row->last_us, (t->last - op->time.start) / UT_US);
    r->bytes_expected += s->bytes;
    r->bytes_missing += missing;
}

/* Hosts in some byte of |host|'s shard, as its record said; none if a later op's record has taken its place. */
static uint64_t any_of_shard(const ut_job *j, const ut_op *op, uint32_t host)
{
    const ut_record *r = &j->claims[host].record[op->seq % UT_OPS_MAX];
    return r->op_seq == op->seq && (r->flags & UT_RECORD_RESULT) ? r->any_mask & all_hosts(j) : 0;
}

/* Some slot of |chunk| holds all ranks. */
static bool has_whole_slot(const ut_job *j, const ut_op *op, uint32_t chunk)
{
    for (uint32_t g = op->fold.first[chunk]; g < op->fold.first[chunk + 1]; g++)
        if (op->fold.weight[g] == j->world)
            return true;
    return false;
}

/* The masks where results pass through other hands than their owner's: of what lacks ranks nobody knows which. All that
 * is sure is what all are in, whom our own chunk came from, and that we are in what was filled in here. */
static void account_forwarded_masks(const ut_job *j, const ut_op *op, ut_receipt *r)
{
    uint64_t full = all_hosts(j), any = 0;
    for (uint32_t c = 0; c < op->plan.schedule.chunks; c++) {
        uint32_t down = op->fold.down[c];
        if (op->fold.first[c] == op->fold.first[c + 1])
            continue;
        if (!(op->fold.thin >> c & 1)) {
            any = all_hosts(j);
            continue;
        }
        bool own = c == op->plan.schedule.own, filled = !own && op->plan.transfer[down].done == 0;
        full &= own ? op->peers.full_mask : filled ? ut_bit(j->config.self) : 0;
        any |= own ? op->peers.any_mask : ut_transfer_complete(&op->plan.transfer[down]) ? 0 : ut_bit(j->config.self);
        if (has_whole_slot(j, op, c))
            any = all_hosts(j);
    }
    r->full_mask = full;
    r->any_mask = any | full;
}

/* Hosts in every byte, and in some byte, of the result: over our shard and those of all others. */
static void account_masks(const ut_job *j, const ut_op *op, ut_receipt *r)
{
    bool own = op->plan.schedule.own_bytes > 0;
    uint64_t full = own ? op->peers.full_mask : all_hosts(j), any = own ? op->peers.any_mask : 0;
    if (!op->plan.schedule.direct) {
        account_forwarded_masks(j, op, r);
        return;
    }
    for (uint32_t h = 0; h < j->config.hosts; h++) {
        uint32_t i = op->plan.rx_of[1][h];
        if (i == UINT32_MAX || op->plan.transfer[i].slots == 0)
            continue;
        const ut_transfer *t = &op->plan.transfer[i];
        if (!ut_transfer_complete(t)) { /* our own value stands in for what is missing */
            full &= ut_bit(j->config.self);
            any |= ut_bit(j->config.self);
        }
        if (t->done && !(op->fold.short_hosts & ut_bit(h)))
            any |= all_hosts(j);
        else if (t->done && !(op->peers.peer_masks & ut_bit(h)))
            full = 0;
        if (t->done)
            any |= ut_bit(h); /* the owner is in all of its shard */
        if (ut_transfer_complete(t) && (op->peers.peer_masks & ut_bit(h)))
            any |= any_of_shard(j, op, h); /* of a part that came we do not know who is in it */
    }
    if (op->fold.short_hosts & op->peers.peer_masks)
        full &= op->peers.peer_full;
    r->full_mask = full;
    r->any_mask = any | full;
}

/* Microseconds; 0 for none. */
static uint32_t in_force_us(ut_ns time)
{
    return time == UT_NEVER ? 0 : (uint32_t)UT_MIN2((time + UT_US - 1) / UT_US, UINT32_MAX);
}

void ut_receipt_fill(const ut_job *j, const ut_op *op, ut_ns now, ut_receipt *r)
{
    memset(r, 0, sizeof *r);
    r->op_seq = r->call_seq = op->seq;
    r->owners = op->plan.owners;
    j->gathering->account(j, op, r);
    r->error = op->account.error;
    r->hosts = (uint16_t)j->config.hosts;
    r->self = (uint16_t)j->config.self;
    r->culprit = op->account.culprit;
    r->field = op->account.field;
    r->value_here = op->account.value_here;
    r->value_there = op->account.value_there;
    r->elapsed_ns = now - op->time.start;
    if (op->time.deadline != UT_NEVER && op->time.deadline > op->time.start)
        r->deadline_ns = op->time.deadline - op->time.start;
    if (op->plan.schedule.steps == 0 && op->account.failed) { /* it never opened */
        r->status = UT_FAILED;
        if (op->account.error == UT_ERR_TIMEOUT) { /* ranks of this very host have not called */
            r->culprit = r->self;
            r->trouble = UT_TROUBLE_SENDER;
        }
        return;
    }
    r->peer[j->config.self].weight = op->local.weight;
    for (uint32_t i = 0; i < op->plan.schedule.steps; i++)
        if (op->plan.schedule.step[i].kind == UT_STEP_RECEIVE)
            account_receive(j, op, i, r);
    r->bytes_used = r->bytes_expected - r->bytes_missing;
    r->bytes_repaired = op->account.bytes_repaired;
    r->bytes_duplicate = op->account.bytes_duplicate;
    r->nonfinite = op->fold.nonfinite;
    r->weight_min = op->fold.weight_min;
    r->hadamard = op->codec->id == UT_CODEC_HADAMARD;
    r->drops_host = j->host->counters->kernel_drops - op->account.kernel_drops_before;
    r->incast = op->plan.incast;
    r->t_b_us = in_force_us(op->time.learnt.t_b);
    for (unsigned stage = 0; stage < 2; stage++) {
        r->stage_end[stage] = op->time.stage_end[stage];
        r->stage_ns[stage] = op->time.stage_at[stage] ? op->time.stage_at[stage] - op->time.start : 0;
        r->t_c_us[stage] = in_force_us(op->time.learnt.t_c[stage]);
    }
    if (op->account.failed) {
        r->status = UT_FAILED;
        ut_witness_tell(j, op, now, r);
        return;
    }
    if (op->what.collective == UT_ALLREDUCE)
        account_masks(j, op, r);
    r->digest = op->fold.digest;
    r->agreed_seq = (uint32_t)(j->account.agreed ? j->account.agreed_seq : op->seq);
    r->differ_mask = j->account.agreed_differ;
    uint64_t contribute = j->gathering->contributors(j, op);
    r->full_mask &= contribute;
    r->any_mask &= contribute;
    if (r->bytes_missing == 0 && op->fold.weight_min >= j->gathering->whole(j, op))
        r->status = UT_COMPLETE;
    else if (r->bytes_used == 0 && j->config.hosts > 1)
        r->status = UT_INSUFFICIENT;
    else
        r->status = UT_PARTIAL;
    if (op->what.mode == UT_RELIABLE && r->status != UT_COMPLETE) {
        r->status = UT_FAILED;
        r->error = UT_ERR_ABSENT;
    }
    if (op->what.collective != UT_ALLREDUCE && r->status == UT_COMPLETE)
        r->full_mask = r->any_mask = op->what.collective == UT_BROADCAST ? ut_bit(op->what.root) : all_hosts(j);
    ut_witness_tell(j, op, now, r);
}

void ut_receipt_keep(ut_job *j, const ut_receipt *r)
{
    ut_receipt *to = &j->account.kept[j->account.kept_count++ % UT_RECEIPTS_KEPT];
    memcpy(to, r, offsetof(ut_receipt, peer) + r->hosts * sizeof *r->peer);
}

const ut_receipt *ut_receipt_back(const ut_job *j, uint32_t back)
{
    if (back >= UT_RECEIPTS_KEPT || back >= j->account.kept_count)
        return NULL;
    return &j->account.kept[(j->account.kept_count - 1 - back) % UT_RECEIPTS_KEPT];
}
