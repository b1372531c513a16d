/* SPDX-License-Identifier: Apache-2.0
 *
 * How an op opens: what the ranks of this host bring is combined, the bucket is cut among its owners, contributions are
 * encoded where they travel so; then packets may flow. Passes over the bucket go as far as each turn allows.
 */
#include "core/fold/ordered.h"
#include "core/fold/weighted.h"
#include "core/op/op.h"
#include "core/op/op_epoch.h"
#include "core/op/op_pause.h"

#include "kernels/kernels.h"

/* A contribution of a host that all know to be gone is not missing: the receipt says who is not in it. */
static bool expects_nothing(const ut_job *j, const ut_op *op, const ut_step *s)
{
    bool in = ut_bits_have(op->epoch.members, s->peer);
    return s->kind == UT_STEP_RECEIVE && s->stage == 1 && !(op->plan.owners & ut_bit(s->peer)) &&
           (!in || !ut_job_host_is_up(j, s->peer));
}

static void place_transfers(ut_job *j, ut_op *op)
{
    uint64_t *free_words = op->plan.bitmaps, *end = op->plan.bitmaps + op->plan.bitmap_words;
    memset(op->plan.rx_of, 0xff, sizeof op->plan.rx_of);
    memset(op->plan.tx_of, 0xff, sizeof op->plan.tx_of);
    for (uint32_t i = 0; i < op->plan.schedule.steps; i++) {
        ut_step *s = &op->plan.schedule.step[i];
        if (expects_nothing(j, op, s))
            s->bytes = 0;
        size_t words = ut_transfer_words(ut_slots(s->bytes, j->payload));
        uint64_t *bits = free_words, *again = NULL;
        free_words += words;
        if (s->kind == UT_STEP_SEND) {
            again = free_words;
            free_words += words;
        }
        assert(s->stage == 1 || s->stage == 2);
        assert(s->peer < j->config.hosts && s->peer != j->config.self);
        uint32_t *first =
            s->kind == UT_STEP_SEND ? &op->plan.tx_of[s->stage - 1][s->peer] : &op->plan.rx_of[s->stage - 1][s->peer];
        op->plan.peer_next[i] = *first;
        *first = i;
        assert(free_words <= end);
        ut_transfer_init(&op->plan.transfer[i], s->bytes, j->payload, bits, again);
        if (!ut_op_counts_on(j, op, s->peer)) {
            op->plan.transfer[i].closed = 1;
            op->plan.transfer[i].why = op->plan.transfer[i].slots ? UT_MISSING_ABSENT : UT_MISSING_NOTHING;
        }
    }
    (void)end;
}

/* Of halves that nobody else adds to, what the ranks of this host bring is divided before it is rounded: their sum may
 * be too large where their average is not. */
static bool averages_here(const ut_job *j, const ut_op *op)
{
    return op->what.redop == UT_AVG && op->what.acc_element != op->what.element && j->config.hosts == 1 &&
           j->gathering == &ut_gathering_ordinary && op->local.calls > 1;
}

/* The sum of the weights of those that have called. */
static uint32_t share_of(const ut_op *op)
{
    uint32_t share = 0;
    for (unsigned i = 0; i < op->local.calls && op->what.weighted; i++)
        share += ut_submission_weight(&op->local.call[i].submission);
    return share;
}

/* Makes the weighted mean of what the ranks of this host bring, if there are several. Where none weighs anything it is
 * the plain mean, which stands in holes of the result alone. */
static bool weigh(ut_job *j, ut_op *op)
{
    const double share = share_of(op);
    while (op->local.calls > 1 && op->work.at < op->what.bytes) {
        const void *sources[UT_LOCAL_MAX];
        double part[UT_LOCAL_MAX];
        unsigned n = 0;
        uint64_t some = ut_work_take(j->host->turn, op->what.bytes, op->what.bytes - op->work.at);
        if (some == 0)
            return false;
        for (unsigned i = 0; i < op->local.calls; i++) {
            const ut_call *call = &op->local.call[i];
            const uint32_t weight = share > 0 ? ut_submission_weight(&call->submission) : 1;
            if (weight == 0)
                continue;
            part[n] = weight;
            sources[n++] = call->src + op->work.at;
        }
        ut_weigh(op->what.dtype, op->memory.bucket + op->work.at, sources, part, n, some / op->what.element,
                 share > 0 ? share : n);
        op->work.at += some;
    }
    return true;
}

/* Adds up what the ranks of this host bring, if there are several. */
static bool combine(ut_job *j, ut_op *op)
{
    const void *sources[UT_LOCAL_MAX];
    if (op->what.weighted)
        return weigh(j, op);
    if (op->variant && op->variant->combine)
        return op->variant->combine(j, op);
    unsigned n = j->gathering->sources(j, op, sources);
    if (n < 2 || op->what.collective == UT_BARRIER) /* to that whoever calls brings the same: nothing */
        return true;
    uint32_t divisor = averages_here(j, op) ? op->what.by_world ? j->world : n : 0;
    while (op->work.at < op->what.bytes) {
        uint64_t some = ut_work_take(j->host->turn, op->what.bytes, op->what.bytes - op->work.at);
        if (some == 0)
            return false;
        (void)j->gathering->sources(j, op, sources);
        for (unsigned i = 0; i < n; i++)
            sources[i] = (const uint8_t *)sources[i] + op->work.at;
        (void)ut_combine(op->what.dtype, op->what.redop, op->memory.bucket + op->work.at, sources, n,
                         some / op->what.element, divisor);
        op->work.at += some;
    }
    return true;
}

static const ut_codec *codec_of(const ut_job *j, const ut_op *op)
{
    if (op->variant && op->variant->codec->fits(&op->what, j->config.hosts, ut_job_algorithm(j)))
        return op->variant->codec;
    bool agreed = j->gathering->encodes && op->epoch.option[UT_EPOCH_CODEC] == j->codec->id;
    bool fits = agreed && j->codec->fits(&op->what, j->config.hosts, ut_job_algorithm(j));
    return fits ? j->codec : &ut_codec_none;
}

/* Where the host's contribution lies, and all that is made of it. */
static void place_buffers(ut_job *j, ut_op *op)
{
    j->gathering->place(j, op);
    op->memory.own = op->memory.src;
    if (op->variant)
        op->memory.src = op->memory.dst = op->variant->bucket(op);
    op->memory.src_from = op->what.collective == UT_ALL_GATHER ? op->plan.schedule.own_offset : 0;
    op->memory.dst_from = op->what.collective == UT_REDUCE_SCATTER ? op->plan.schedule.own_offset : 0;
    op->codec = codec_of(j, op);
    ut_op_epoch_tag(op);
    op->memory.travels_encoded = op->codec->id != UT_CODEC_NONE && j->config.hosts > 1;
    if (op->memory.travels_encoded)
        op->memory.src = op->memory.dst = op->memory.encoded;
    bool half = op->what.acc_element != op->what.element;
    op->memory.held_from = op->plan.schedule.direct ? op->plan.schedule.own_offset : 0;
    op->memory.acc = half ? op->memory.held : op->memory.dst + (op->memory.held_from - op->memory.dst_from);
    op->memory.out = op->memory.dst;
    op->memory.out_from = op->memory.dst_from;
}

/* A host that brings nothing still adds up its shard, from zero; a codec of blocks clears its own sums. */
static bool clear_own(ut_job *j, ut_op *op)
{
    uint64_t bytes = op->local.weight || op->memory.travels_encoded ? 0 : op->plan.schedule.own_bytes;
    while (op->work.at < bytes) {
        uint64_t some = ut_work_take(j->host->turn, op->what.bytes, bytes - op->work.at);
        if (some == 0)
            return false;
        memset(op->memory.bucket + op->plan.schedule.own_offset + op->work.at, 0, some);
        op->work.at += some;
    }
    return true;
}

/* Who sends what to whom, and from where. */
static void plan(ut_job *j, ut_op *op, ut_ns now)
{
    op->time.stage_end[0] = op->time.stage_end[1] = UT_END_NONE;
    op->time.stage_at[0] = op->time.stage_at[1] = 0;
    op->peers.complete_masks = 0;
    op->time.rounds_cut = 0;
    op->account.bytes_repaired = op->account.bytes_duplicate = 0;
    op->account.wire_sent = op->account.wire_received = 0;
    op->peers.record_matched = op->peers.rx_done = op->peers.tx_done = 0;
    op->peers.full_mask = op->peers.any_mask = op->peers.peer_masks = op->peers.masks_waived = 0;
    op->peers.peer_full = UINT64_MAX;
    ut_witness_begin(&op->account, ut_op_started(j, op), now);
    op->account.kernel_drops_before = j->host->counters->kernel_drops;
    ut_op_time_open(j, op, now);
    op->local.share = share_of(op);
    memset(op->fold.share, 0, sizeof op->fold.share);
    op->fold.share[j->config.self] = op->local.share;
    bool planned = op->variant && op->variant->plan(j, op);
    const ut_layout whole = {j->config.hosts, j->config.self, op->what.count, op->what.element};
    const ut_layout shards = {whole.hosts, whole.self, op->what.bytes / op->what.element, op->what.element};
    const uint32_t root = op->what.collective == UT_BROADCAST ? op->what.alike.root : 0;
    ut_schedule *schedule = &op->plan.schedule;
    if (planned)
        assert(schedule->chunks);
    else if (op->what.collective != UT_ALLREDUCE)
        ut_schedule_shard(schedule, &shards, op->what.collective, root, op->plan.incast);
    else if (ut_job_algorithm(j) == UT_TREE)
        ut_schedule_tree(schedule, &whole, j->config.options.children, op->plan.owners);
    else
        ut_schedule_build(schedule, &whole, ut_job_algorithm(j), op->plan.incast, op->seq, op->plan.owners);
    place_buffers(j, op);
}

/* For the credit of the ops to come, which are mostly as large. */
static void note_largest(ut_job *j, const ut_op *op)
{
    uint32_t *largest = &j->largest[op->seq % UT_OPS_MAX];
    *largest = 0;
    for (uint32_t i = 0; i < op->plan.schedule.steps; i++)
        if (op->plan.schedule.step[i].kind == UT_STEP_RECEIVE)
            *largest = UT_MAX2(*largest, op->plan.transfer[i].slots);
}

/* How contributions are folded; NULL: as they come. */
static const ut_fold_rule *rule_of(const ut_job *j, const ut_op *op)
{
    const ut_ordered *ordered = j->ordered ? &j->ordered[op->seq % UT_OPS_MAX] : NULL;
    if (j->gathering->rule || (op->codec->rule && op->memory.travels_encoded))
        return j->gathering->rule ? j->gathering->rule : op->codec->rule;
    if (ordered && ut_op_reduces(op->what.collective) && ut_ordered_fits(ordered, &op->plan.schedule))
        return &ut_fold_ordered;
    return op->what.weighted ? &ut_fold_weighted : NULL;
}

/* All is in place: packets may flow. */
static void begin(ut_job *j, ut_op *op, ut_ns now)
{
    assert(op->state == UT_OP_OPENING && op->local.weight <= j->world);
    op->state = UT_OP_RUNNING;
    place_transfers(j, op);
    note_largest(j, op);
    for (uint32_t i = 0; i < op->plan.schedule.steps && op->local.weight == 0; i++)
        if (op->plan.schedule.step[i].kind == UT_STEP_SEND && op->plan.schedule.step[i].stage == 1)
            op->plan.transfer[i].closed = 1;
    op->fold.rule = rule_of(j, op);
    if (op->variant)
        op->fold.rule_memory = op->variant_memory;
    op->fold.seq = op->seq;
    op->fold.averaged =
        op->what.weighted || averages_here(j, op) || (op->variant && op->variant->result_alone && j->config.hosts == 1);
    ut_fold_open(&op->fold, op->local.weight, j->config.local_ranks - UT_MIN2(j->config.local_ranks, op->local.weight));
    j->gathering->announce(j, op, now);
    for (uint32_t h = 0; h < j->config.hosts && op->state == UT_OP_RUNNING; h++) {
        if (h == j->config.self || !ut_job_host_is_up(j, h))
            continue;
        ut_op_record(j, op, h, now);
        if (op->state == UT_OP_RUNNING)
            ut_op_unstash(j, h, now);
    }
    if (op->state == UT_OP_RUNNING)
        ut_op_check(j, op, now);
}

enum { OPEN_COMBINE, OPEN_PLAN, OPEN_CLEAR, OPEN_ENCODE };

void ut_op_open_on(ut_job *j, ut_op *op, ut_ns now)
{
    assert(op->state == UT_OP_OPENING);
    if (op->work.step == OPEN_COMBINE) {
        if (!combine(j, op))
            return;
        ut_op_next_step(op);
    }
    if (op->work.step == OPEN_PLAN) {
        plan(j, op, now);
        ut_op_next_step(op);
    }
    if (op->work.step == OPEN_CLEAR) {
        if (!clear_own(j, op))
            return;
        ut_op_next_step(op);
    }
    ut_codec_op c = ut_op_seen_by_codec(j, op);
    if (op->codec->encode && !op->codec->encode(&c))
        return;
    begin(j, op, now);
}

void ut_op_open(ut_job *j, ut_op *op, ut_ns now)
{
    assert(op->state == UT_OP_GATHERING || op->state == UT_OP_OPENING);
    if (op->state == UT_OP_GATHERING) {
        ut_op_epoch_take(j, op);
        ut_op_time_epoch(j, op);
    }
    op->state = UT_OP_OPENING;
    j->next_open = UT_MAX2(j->next_open, op->seq + 1);
    ut_op_restart(op);
    ut_op_open_on(j, op, now);
}
