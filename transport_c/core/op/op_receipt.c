/* SPDX-License-Identifier: Apache-2.0
 *
 * The receipt of an op, of what its parts know. It says only what this host knows: where the masks of a shard are not
 * known, nobody is claimed to be in it.
 */
#include "core/op/op_epoch.h"
#include "core/op/ranks.h"

uint64_t ut_op_started(const ut_job *j, const ut_op *op)
{
    uint64_t hosts = 0;
    for (uint32_t h = 0; h < j->config.hosts; h++)
        hosts |= h != j->config.self && ut_op_record_of(j, op, h) ? ut_bit(h) : 0;
    return hosts;
}

static ut_account_facts facts_of(const ut_job *j, const ut_op *op, ut_ns now)
{
    ut_account_facts f = {.seq = op->seq,
                          .start = op->time.start,
                          .now = now,
                          .tx_done = op->peers.tx_done,
                          .contributors = j->gathering->contributors(j, op),
                          .started = ut_op_started(j, op),
                          .full_mask = op->peers.full_mask,
                          .any_mask = op->peers.any_mask,
                          .peer_full = op->peers.peer_full,
                          .peer_masks = op->peers.peer_masks,
                          .blamed = j->gathering->blames ? j->gathering->blames(j, op) : 0};
    for (uint32_t h = 0; h < j->config.hosts; h++) {
        f.record[h] = &j->ledger.row[h].record[op->seq % UT_OPS_MAX];
        f.first_at[h] = j->ledger.row[h].first_at[op->seq % UT_OPS_MAX];
    }
    return f;
}

/* Microseconds; 0 for none. */
static uint32_t in_force_us(ut_ns time)
{
    return time == UT_NEVER ? 0 : (uint32_t)UT_MIN2((time + UT_US - 1) / UT_US, UINT32_MAX);
}

/* The host of which data is missing; where none is, one of which ranks are. */
static void find_culprit(const ut_op *op, const ut_account_facts *f, ut_receipt *r)
{
    ut_witness_tell(&op->account, f, r);
    const bool known = r->culprit != 0xffff || r->error == UT_ERR_DESYNC || r->error == UT_ERR_CLOSED;
    if (r->status != UT_COMPLETE && !known)
        ut_op_ranks_blame(r);
}

/* What the op's parts know beside what came of which host. */
static void tell_parts(const ut_job *j, const ut_op *op, ut_receipt *r)
{
    r->bytes_repaired = op->account.bytes_repaired;
    r->bytes_duplicate = op->account.bytes_duplicate;
    r->wire_sent = op->account.wire_sent;
    r->wire_received = op->account.wire_received;
    if (op->variant)
        op->variant->account(op, r);
    r->nonfinite = op->fold.result.nonfinite;
    r->weight_min = op->fold.result.weight_min;
    r->hadamard = op->codec->id == UT_CODEC_HADAMARD;
    r->drops_host = j->host->counters->kernel_drops - op->account.kernel_drops_before;
    r->incast = op->plan.incast;
    r->t_b_us = in_force_us(op->time.learnt.t_b);
    for (unsigned stage = 0; stage < 2; stage++) {
        r->stage_end[stage] = op->time.stage_end[stage];
        r->stage_ns[stage] = op->time.stage_at[stage] ? op->time.stage_at[stage] - op->time.start : 0;
        r->t_c_us[stage] = in_force_us(op->time.learnt.t_c[stage]);
    }
}

static void find_status(const ut_job *j, const ut_op *op, ut_receipt *r)
{
    if (r->bytes_missing == 0 && op->fold.result.weight_min >= j->gathering->whole(j, op))
        r->status = UT_COMPLETE;
    else if (j->config.hosts > 1 ? r->bytes_used == 0 : op->local.weight <= 1)
        r->status = UT_INSUFFICIENT;
    else
        r->status = UT_PARTIAL;
    if (op->what.mode == UT_RELIABLE && r->status != UT_COMPLETE) {
        r->status = UT_FAILED;
        r->error = UT_ERR_ABSENT;
    }
}

/* What is known of every op, opened or not. */
static void identify(const ut_job *j, const ut_op *op, ut_ns now, ut_receipt *r)
{
    memset(r, 0, sizeof *r);
    r->op_seq = r->call_seq = op->seq;
    r->owners = op->plan.owners;
    r->view = op->epoch.number;
    r->members = op->epoch.members;
    r->relayed_mask = j->account.relayed;
    r->relays_mask = j->account.relays;
    r->portion = op->what.portion;
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
}

void ut_op_receipt(const ut_job *j, const ut_op *op, ut_ns now, ut_receipt *r)
{
    identify(j, op, now, r);
    if (op->plan.schedule.steps == 0 && op->account.failed) { /* it never opened */
        r->status = UT_FAILED;
        if (op->account.error == UT_ERR_TIMEOUT) { /* ranks of this very host have not called */
            r->culprit = r->self;
            r->trouble = UT_TROUBLE_SENDER;
        }
        return;
    }
    r->peer[j->config.self].weight = op->local.weight;
    ut_account_facts f = facts_of(j, op, now);
    ut_receipt_rows(&op->account, &f, r);
    for (uint32_t h = 0; h < j->config.hosts && op->what.weighted; h++)
        r->peer[h].share = op->fold.share[h];
    j->gathering->count(j, op, r);
    assert(ut_receipt_balances(r));
    tell_parts(j, op, r);
    if (op->account.failed) {
        r->status = UT_FAILED;
        find_culprit(op, &f, r);
        return;
    }
    if (op->what.collective == UT_ALLREDUCE)
        ut_receipt_masks(&op->account, &f, r);
    r->digest = op->fold.result.digest;
    r->agreed_seq = (uint32_t)(j->account.agreed ? j->account.agreed_seq : op->seq);
    r->differ_mask = j->account.agreed_differ;
    r->full_mask &= f.contributors;
    r->any_mask &= f.contributors;
    find_status(j, op, r);
    if (op->what.collective != UT_ALLREDUCE && r->status == UT_COMPLETE)
        r->full_mask = r->any_mask =
            op->what.collective == UT_BROADCAST ? ut_bit(op->what.alike.root) : ut_bits_below(j->config.hosts);
    find_culprit(op, &f, r);
    assert(!(r->full_mask & ~r->any_mask));
    assert(r->status != UT_COMPLETE || (r->bytes_missing == 0 && r->error == UT_OK));
    assert((r->status == UT_FAILED) == (r->error != UT_OK));
}

void ut_op_replica_heard(ut_job *j, uint32_t host, const ut_record *theirs)
{
    ut_op *op = ut_job_op(j, theirs->op_seq);
    if ((theirs->flags & UT_RECORD_DIGEST) && op->seq == theirs->op_seq && op->account.replica.known &&
        ut_op_epoch_is(op, theirs)) /* else it is another sum, whatever the bytes are */
        ut_replica_compare(&op->account, op->seq, host, theirs->digest);
}

void ut_op_replica_ended(ut_job *j, ut_op *op)
{
    ut_replica_ended(&op->account);
    for (uint32_t h = 0; h < j->config.hosts; h++)
        if (h != j->config.self && j->ledger.row[h].seen[op->seq % UT_OPS_MAX])
            ut_op_replica_heard(j, h, &j->ledger.row[h].record[op->seq % UT_OPS_MAX]);
}
