/* SPDX-License-Identifier: Apache-2.0
 *
 * The end of an op: when a stage is over, what is missing, who gets the result, what is kept for peers that still need
 * it.
 */
#include "core/op/op.h"
#include "core/op/op_pause.h"

static void end_op(ut_job *j, ut_op *op, ut_ns now);

/* All that was needed of it has come. */
static bool has_all(const ut_transfer *t)
{
    return ut_transfer_complete(t) || ut_transfer_moot(t);
}

static bool all_over(const ut_op *op, unsigned stage, bool *ret_complete)
{
    *ret_complete = true;
    for (uint32_t i = 0; i < op->plan.schedule.steps; i++) {
        const ut_step *s = &op->plan.schedule.step[i];
        if (s->kind != UT_STEP_RECEIVE || s->stage != stage)
            continue;
        if (!ut_transfer_over(&op->plan.transfer[i]))
            return false;
        *ret_complete = *ret_complete && has_all(&op->plan.transfer[i]);
    }
    return true;
}

/* Nothing more will come. In best effort that may be so because the senders are through with what they sent. */
static unsigned incomplete_end(const ut_op *op, unsigned stage)
{
    for (uint32_t i = 0; i < op->plan.schedule.steps && !op->time.repairs; i++)
        if (op->plan.schedule.step[i].kind == UT_STEP_RECEIVE && op->plan.schedule.step[i].stage == stage &&
            op->plan.transfer[i].why == UT_MISSING_LOST)
            return UT_END_EARLY;
    return UT_END_ABSENT;
}

static void close_receives(ut_op *op, unsigned stage, unsigned why_if_some)
{
    for (uint32_t i = 0; i < op->plan.schedule.steps; i++) {
        ut_transfer *t = &op->plan.transfer[i];
        if (op->plan.schedule.step[i].kind != UT_STEP_RECEIVE || op->plan.schedule.step[i].stage != stage ||
            ut_transfer_over(t))
            continue;
        t->closed = 1;
        t->why = (uint8_t)(t->done ? why_if_some : UT_MISSING_SILENT);
    }
}

static void end_stage1(ut_job *j, ut_op *op, unsigned how, ut_ns now)
{
    assert(op->state == UT_OP_RUNNING && op->time.stage_end[0] == UT_END_NONE && how != UT_END_NONE);
    j->incast.stale = true;
    op->time.stage_end[0] = (uint8_t)how;
    op->time.stage_at[0] = now;
    close_receives(op, 1, UT_MISSING_LOST);
    op->work.unsettled = !ut_fold_settle(&op->fold, false);
    /* Of a contribution that was summed on the way only the last sender is known to be in it. */
    op->peers.full_mask = op->peers.any_mask = op->local.weight ? ut_bit(j->config.self) : 0;
    for (uint32_t i = 0; i < op->plan.schedule.steps; i++) {
        const ut_step *s = &op->plan.schedule.step[i];
        const ut_transfer *t = &op->plan.transfer[i];
        if (s->kind != UT_STEP_RECEIVE || s->stage != 1 || s->chunk != op->plan.schedule.own)
            continue;
        if (has_all(t) && (t->slots || !t->closed))
            op->peers.full_mask |= ut_bit(s->peer);
        if (t->done || (t->slots == 0 && !t->closed))
            op->peers.any_mask |= ut_bit(s->peer);
    }
    if (op->plan.schedule.own == UT_CHUNK_NONE || op->plan.schedule.placed) { /* all are in every sum of nothing */
        op->peers.full_mask = UINT64_MAX;
        op->peers.any_mask = op->plan.schedule.placed ? UINT64_MAX : 0;
    }
    op->peers.complete_masks = 1;
    ut_op_stage_measured(j, op, 0);
    if (ut_fold_is_sum(&op->fold) && !op->work.unsettled && op->peers.full_mask == op->peers.any_mask &&
        op->fold.result.weight_min == j->gathering->whole(j, op))
        return;
    ut_job_speak(j, now); /* the masks are news */
}

static void end_stage2(ut_job *j, ut_op *op, unsigned how, ut_ns now)
{
    assert(op->time.stage_end[0] != UT_END_NONE && op->time.stage_end[1] == UT_END_NONE && how != UT_END_NONE);
    op->time.stage_end[1] = (uint8_t)how;
    op->time.stage_at[1] = now;
    close_receives(op, 2, UT_MISSING_LOST);
    ut_op_stage_measured(j, op, 1);
}

/* Where ranks are missing from a shard, the receipt waits for its owner's word on which. */
static bool masks_known(const ut_job *j, const ut_op *op)
{
    for (uint32_t h = 0; h < j->config.hosts; h++)
        if (ut_op_waits_for_masks(op, h) && ut_op_counts_on(j, op, h))
            return false;
    return true;
}

/* Stage 1 gave up on something of |host|. (That it needed no more of it is another thing: the host may be about to say
 * that it is in the op, and who is not waited for there gets no result.) */
static bool was_given_up(const ut_op *op, uint32_t host)
{
    for (uint32_t i = op->plan.rx_of[0][host]; i != UINT32_MAX; i = op->plan.peer_next[i]) {
        const ut_transfer *t = &op->plan.transfer[i];
        if (t->closed && !(t->slots && ut_transfer_moot(t)))
            return true;
    }
    return false;
}

static bool records_matched(const ut_job *j, const ut_op *op)
{
    for (uint32_t h = 0; h < j->config.hosts; h++)
        /* A host that closed the op without a word is not waited for, nor one whose contribution was given up. */
        if (h != j->config.self && ut_op_counts_on(j, op, h) &&
            !((op->peers.record_matched | op->peers.tx_done) & ut_bit(h)) && !was_given_up(op, h))
            return false;
    return true;
}

/* Nothing more comes to us, perhaps because a host is gone, but others still wait for what begins here or goes through
 * us. */
static bool has_sent(const ut_job *j, const ut_op *op)
{
    for (uint32_t i = 0; i < op->plan.schedule.steps && op->plan.schedule.lasting; i++) {
        const ut_step *s = &op->plan.schedule.step[i];
        if (s->kind == UT_STEP_SEND && s->stage == 1 && !ut_transfer_over(&op->plan.transfer[i]) &&
            ut_op_counts_on(j, op, s->peer))
            return false;
    }
    return true;
}

/* It moves data, and some of that will not come: there is no result, and nobody must wait for what we pass on. */
static bool is_broken(const ut_op *op)
{
    return op->what.collective != UT_ALLREDUCE &&
           (op->time.stage_end[0] > UT_END_COMPLETE || op->time.stage_end[1] > UT_END_COMPLETE);
}

/* Whether stage 1 may end now, for a reason of |over|. If it must not, because what its host makes of it would be no
 * result, the op may have failed. */
static bool may_end_stage1(ut_job *j, ut_op *op, enum ut_sum_over over, ut_ns now)
{
    int error = j->gathering->lacks(j, op, over);
    if (error < 0)
        ut_op_fail(j, op, error, now);
    return error == 0;
}

void ut_op_check(ut_job *j, ut_op *op, ut_ns now)
{
    bool complete;
    if (op->state != UT_OP_RUNNING)
        return;
    op->work.unsettled = !ut_fold_settle(&op->fold, false);
    if (op->time.stage_end[0] == UT_END_NONE) {
        bool over = all_over(op, 1, &complete);
        if (!may_end_stage1(j, op, over ? UT_SUM_ALL_CAME : UT_SUM_GOES_ON, now))
            return;
        if (over)
            end_stage1(j, op, complete ? UT_END_COMPLETE : incomplete_end(op, 1), now);
    }
    if (op->time.stage_end[0] == UT_END_NONE)
        return;
    if (op->time.stage_end[1] == UT_END_NONE && all_over(op, 2, &complete)) {
        end_stage2(j, op, complete ? UT_END_COMPLETE : incomplete_end(op, 2), now);
        if (op->what.agree && !complete) {
            ut_op_fail(j, op, UT_ERR_ABSENT, now);
            return;
        }
    }
    j->gathering->recount(j, op);
    bool broken = is_broken(op);
    if ((op->time.stage_end[1] == UT_END_NONE && !broken) || !records_matched(j, op))
        return; /* broken or not: who has called something else is the better reason */
    if (!broken && (!masks_known(j, op) || !has_sent(j, op)))
        return;
    uint64_t breakers = op->what.collective == UT_ALLREDUCE ? 0 : ut_witness_breakers(&op->account, op->peers.tx_done);
    if (broken || breakers) {
        op->peers.full_mask = op->peers.any_mask = ~breakers; /* whom others are told to blame */
        ut_op_fail(j, op, UT_ERR_ABSENT, now);
    } else {
        end_op(j, op, now);
    }
}

static void close_sends(ut_op *op, unsigned stage)
{
    for (uint32_t i = 0; i < op->plan.schedule.steps; i++)
        if (op->plan.schedule.step[i].kind == UT_STEP_SEND && op->plan.schedule.step[i].stage == stage)
            op->plan.transfer[i].closed = 1;
}

static void count_status(ut_stats *stats, uint32_t status)
{
    if (status == UT_COMPLETE)
        stats->ops_complete++;
    else if (status == UT_PARTIAL)
        stats->ops_partial++;
    else if (status == UT_INSUFFICIENT)
        stats->ops_insufficient++;
    else
        stats->ops_failed++;
}

/* The result into the buffers of those ranks that it was not made in. */
static bool copy_out(ut_job *j, ut_op *op)
{
    uint64_t bytes = op->what.collective == UT_REDUCE_SCATTER ? op->plan.schedule.own_bytes : op->what.bytes;
    for (; op->work.index < op->local.calls; op->work.index++, op->work.at = 0) {
        ut_call *call = &op->local.call[op->work.index];
        while (call->session != UINT32_MAX && op->memory.dst != call->dst && op->work.at < bytes) {
            uint64_t some = ut_work_take(j->host->turn, op->what.bytes, bytes - op->work.at);
            if (some == 0)
                return false;
            memcpy(call->dst + op->work.at, op->memory.dst + op->work.at, some);
            op->work.at += some;
        }
    }
    return true;
}

static void hand_out(ut_job *j, ut_op *op, ut_ns now)
{
    ut_receipt r;
    ut_op_receipt(j, op, now, &r);
    assert(r.status == UT_COMPLETE || r.status == UT_PARTIAL || r.status == UT_INSUFFICIENT || r.status == UT_FAILED);
    for (unsigned i = 0; i < op->local.calls; i++)
        if (op->local.call[i].session != UINT32_MAX)
            j->host->complete(j->host->context, op->local.call[i].session, &r);
    ut_receipt_keep(&j->account, &r);
    bool had = j->gathering->ended(j, op, &r, now);
    if (had && r.status != UT_FAILED && !op->plan.schedule.apart)
        ut_op_replica_ended(j, op);
    count_status(j->host->counters, r.status);
    j->host->emit(j->host->context, &(ut_event){.kind = UT_EVENT_OP_DONE,
                                                .job = j->number,
                                                .session = UINT32_MAX,
                                                .host = r.culprit == 0xffff ? UINT32_MAX : r.culprit,
                                                .op_seq = op->seq,
                                                .a = r.status,
                                                .b = r.elapsed_ns,
                                                .c = r.bytes_missing,
                                                .d = op->what.bytes,
                                                .e = ut_event_what(&op->what, r.trouble)});
    if (r.wire)
        j->host->emit(j->host->context, &(ut_event){.kind = UT_EVENT_QUANT,
                                                    .job = j->number,
                                                    .session = UINT32_MAX,
                                                    .host = UINT32_MAX,
                                                    .op_seq = op->seq,
                                                    .a = r.wire,
                                                    .b = r.wire_sent,
                                                    .c = r.wire_received,
                                                    .d = r.bytes_used});
}

static void settle(ut_job *j, ut_op *op, ut_ns now)
{
    assert(op->state != UT_OP_FREE && op->seq < j->next_open);
    op->state = UT_OP_LINGERING;
    ut_ledger_changes(&j->ledger, op->seq);
    j->incast.stale = true;
    op->local.calls = 0;
    ut_ns budget = op->time.deadline != UT_NEVER && op->time.deadline > op->time.start
                       ? op->time.deadline - op->time.start
                       : 10 * UT_SECOND;
    if (op->time.bounded_by_t_b)
        budget = UT_MIN2(budget, 2 * UT_MIN2(op->time.learnt.t_b, 10 * UT_SECOND));
    op->time.linger_until = now + UT_MIN2(budget, 10 * UT_SECOND);
    ut_job_raise_rx_floor(j);
    ut_job_speak(j, j->host->anyone_waits(j->host->context, j->number) ? now : now + UT_HOLD_NS);
    j->op_ended = true; /* of this op nothing more comes that could be told with what is due soon */
    j->host->room(j->host->context);
}

enum { END_SETTLE, END_KEEP, END_RETURN, END_DECODE, END_DIGEST, END_COPY };

/* The buffer of the first rank that still waits; NULL if none does. */
static uint8_t *buffer_of(const ut_op *op)
{
    for (unsigned i = 0; i < op->local.calls; i++)
        if (op->local.call[i].session != UINT32_MAX)
            return op->local.call[i].dst;
    return NULL;
}

/* What came encoded into the buffer of the first rank that still waits. */
static bool decode(ut_job *j, ut_op *op)
{
    uint8_t *dst = buffer_of(op);
    if (!op->memory.travels_encoded || !dst || !op->codec->decode)
        return true;
    if (op->work.index == 0 && op->work.at == 0)
        op->fold.result.nonfinite = 0; /* until here it counted what is encoded */
    ut_codec_op c = ut_op_seen_by_codec(j, op);
    return op->codec->decode(&c, dst, &op->fold.result.nonfinite);
}

/* The digest of that, and the result is there from now on. */
static bool digest(ut_job *j, ut_op *op)
{
    uint8_t *dst = buffer_of(op);
    if (!op->memory.travels_encoded || !dst)
        return true;
    if (!op->codec->decode) {
        assert(op->variant);
        op->memory.dst = op->variant->bucket(op);
        return true;
    }
    if (op->work.index == 0 && op->work.at == 0)
        op->fold.result.digest = 0; /* it was of what is encoded, where rows that are missing count for nothing */
    ut_codec_op c = ut_op_seen_by_codec(j, op);
    if (!ut_codec_digest(&c, dst, &op->fold.result.digest))
        return false;
    op->memory.dst = dst;
    return true;
}

/* Adds to the job's losses what is missing of an op that ends. */
static void account_loss(ut_job *j, const ut_op *op)
{
    uint64_t missing = 0, expected = 0;
    for (uint32_t i = 0; i < op->plan.schedule.steps; i++) {
        if (op->plan.schedule.step[i].kind != UT_STEP_RECEIVE || op->plan.transfer[i].done == 0)
            continue;
        missing += ut_transfer_missing(&op->plan.transfer[i], j->payload);
        expected += ut_transfer_expected(&op->plan.transfer[i], op->plan.schedule.step[i].bytes);
    }
    assert(missing <= expected);
    if (op->what.mode != UT_RELIABLE)
        ut_hadamard_lost(&j->losses, missing, expected);
}

static bool end_step(ut_job *j, ut_op *op)
{
    switch (op->work.step) {
    case END_SETTLE:
        return ut_fold_settle(&op->fold, true);
    case END_KEEP: /* before the receipt: with it the buffer is the trainer's again */
        return ut_fold_keep(&op->fold, &op->work);
    case END_RETURN:
        return !op->variant || !op->variant->give_back || op->variant->give_back(j, op);
    case END_DECODE:
        return decode(j, op);
    case END_DIGEST:
        return digest(j, op);
    default:
        return copy_out(j, op);
    }
}

void ut_op_end_on(ut_job *j, ut_op *op, ut_ns now)
{
    assert(op->state == UT_OP_ENDING);
    for (; op->work.step <= END_COPY; ut_op_next_step(op))
        if (!end_step(j, op))
            return;
    account_loss(j, op);
    hand_out(j, op, now);
    settle(j, op, now);
    ut_op_linger(j, op, now); /* perhaps there is nobody to linger for */
}

void ut_op_end_again(ut_op *op)
{
    assert(op->state == UT_OP_ENDING);
    if (op->work.step < END_DECODE)
        return;
    op->work.step = END_DECODE;
    op->work.index = 0;
    op->work.at = 0;
}

static void end_op(ut_job *j, ut_op *op, ut_ns now)
{
    assert(op->state == UT_OP_RUNNING);
    assert(op->time.stage_end[0] != UT_END_NONE && op->time.stage_end[1] != UT_END_NONE);
    op->state = UT_OP_ENDING;
    op->work.step = END_SETTLE;
    op->work.index = 0;
    op->work.at = 0;
    ut_op_incast_learn(j, op);
    j->gathering->recount(j, op);
    close_sends(op, 1);
    ut_op_end_on(j, op, now);
}

/* If all hops gave up at the same time, what a host had gathered could go no further. So the first round has half of
 * the stage's time, for hosts that begin late, and the later ones follow in equal steps. */
ut_ns ut_op_round_cut_at(const ut_op *op)
{
    uint32_t rounds = op->plan.schedule.rounds / 2;
    if (op->plan.schedule.direct || op->time.cut == UT_NEVER || op->time.stage_end[0] != UT_END_NONE ||
        op->time.rounds_cut + 1u >= rounds)
        return UT_NEVER;
    ut_ns half = (op->time.cut - op->time.start) / 2;
    return op->time.start + half + half * op->time.rounds_cut / (rounds - 1);
}

void ut_op_cut_round(ut_job *j, ut_op *op, ut_ns now)
{
    for (; ut_op_round_cut_at(op) <= now; op->time.rounds_cut++)
        for (uint32_t i = 0; i < op->plan.schedule.steps; i++) {
            const ut_step *s = &op->plan.schedule.step[i];
            ut_transfer *t = &op->plan.transfer[i];
            if (s->kind != UT_STEP_RECEIVE || s->stage != 1 || s->round > op->time.rounds_cut || ut_transfer_over(t))
                continue;
            t->closed = 1;
            t->why = t->done ? UT_MISSING_LOST : UT_MISSING_SILENT;
        }
    ut_op_check(j, op, now);
}

/* A hole may be in it, and others have no hole there. */
static bool fails_for_holes(ut_job *j, ut_op *op, ut_ns now)
{
    if (op->what.agree)
        ut_op_fail(j, op, UT_ERR_TIMEOUT, now);
    return op->what.agree;
}

void ut_op_cut(ut_job *j, ut_op *op, unsigned how, ut_ns now)
{
    assert(op->state == UT_OP_RUNNING && op->time.stage_end[1] == UT_END_NONE);
    if (op->time.stage_end[0] == UT_END_NONE && !may_end_stage1(j, op, UT_SUM_IS_CUT, now))
        return;
    if (op->time.stage_end[0] == UT_END_NONE)
        end_stage1(j, op, how, now);
    else
        end_stage2(j, op, how, now);
    if (op->time.stage_end[1] != UT_END_NONE && fails_for_holes(j, op, now))
        return;
    ut_op_check(j, op, now);
}

void ut_op_deadline(ut_job *j, ut_op *op, ut_ns now)
{
    assert(op->state == UT_OP_RUNNING);
    if (op->time.stage_end[0] == UT_END_NONE && !may_end_stage1(j, op, UT_SUM_IS_CUT, now))
        return;
    if (op->time.stage_end[0] == UT_END_NONE)
        end_stage1(j, op, UT_END_DEADLINE, now);
    if (op->time.stage_end[1] == UT_END_NONE) {
        end_stage2(j, op, UT_END_DEADLINE, now);
        if (fails_for_holes(j, op, now))
            return;
    }
    end_op(j, op, now);
}

void ut_op_fail(ut_job *j, ut_op *op, int error, ut_ns now)
{
    assert(op->state != UT_OP_FREE && op->state != UT_OP_LINGERING && error != UT_OK);
    if (op->state == UT_OP_GATHERING || op->state == UT_OP_OPENING) {
        /* It never opened: peers still learn of its record while it lingers. */
        memset(op->plan.rx_of, 0xff, sizeof op->plan.rx_of);
        memset(op->plan.tx_of, 0xff, sizeof op->plan.tx_of);
        op->plan.schedule.steps = 0;
        op->peers.record_matched = op->peers.rx_done = op->peers.tx_done = 0;
        op->peers.complete_masks = 0;
        j->next_open = UT_MAX2(j->next_open, op->seq + 1);
    }
    op->account.failed = 1;
    op->account.error = error;
    hand_out(j, op, now);
    close_sends(op, 1);
    close_sends(op, 2);
    settle(j, op, now);
    ut_job_speak(j, now);
}
