/* SPDX-License-Identifier: Apache-2.0
 *
 * How an op opens: what the ranks of this host bring is combined, the bucket is cut among its owners, contributions are
 * encoded where they travel so; then packets may flow. Passes over the bucket go as far as each turn allows.
 */
#include "core/partial/part.h"

#include "kernels/kernels.h"

/* A contribution of a host that all know to be gone is not missing: the receipt says who is not in it. */
static bool expects_nothing(const ut_job *j, const ut_op *op, const ut_step *s)
{
    return s->kind == UT_STEP_RECEIVE && s->stage == 1 && !(op->owners & ut_bit(s->peer)) &&
           !ut_job_host_is_up(j, s->peer);
}

static void place_transfers(ut_job *j, ut_op *op)
{
    uint64_t *free_words = op->bitmaps, *end = op->bitmaps + op->bitmap_words;
    memset(op->rx_of, 0xff, sizeof op->rx_of);
    for (uint32_t i = 0; i < op->schedule.steps; i++) {
        ut_step *s = &op->schedule.step[i];
        if (expects_nothing(j, op, s))
            s->bytes = 0;
        size_t words = ut_transfer_words(ut_slots(s->bytes, j->payload));
        uint64_t *bits = free_words, *again = NULL;
        free_words += words;
        if (s->kind == UT_STEP_SEND) {
            again = free_words;
            free_words += words;
        } else {
            uint32_t *first = &op->rx_of[s->stage - 1][s->peer];
            op->rx_next[i] = *first;
            *first = i;
        }
        assert(free_words <= end);
        ut_transfer_init(&op->transfer[i], s->bytes, j->payload, bits, again);
        if (!ut_job_host_is_up(j, s->peer)) {
            op->transfer[i].closed = 1;
            op->transfer[i].why = op->transfer[i].slots ? UT_MISSING_ABSENT : UT_MISSING_NOTHING;
        }
    }
    (void)end;
}

/* Adds up what the ranks of this host bring, if there are several. */
static bool combine(ut_job *j, ut_op *op)
{
    const void *sources[UT_LOCAL_MAX];
    unsigned n = op->partial ? ut_slots_sources(j, sources) : op->calls;
    if (n < 2 || op->collective == UT_BARRIER) /* to that whoever calls brings the same: nothing */
        return true;
    while (op->work.at < op->bytes) {
        uint64_t some = ut_work_take(ut_engine_work(j->engine), op->bytes, op->bytes - op->work.at);
        if (some == 0)
            return false;
        if (op->partial)
            (void)ut_slots_sources(j, sources);
        for (unsigned i = 0; i < n; i++)
            sources[i] = (op->partial ? (const uint8_t *)sources[i] : op->call[i].src) + op->work.at;
        ut_combine(op->dtype, op->redop, op->bucket_memory + op->work.at, sources, n, some / op->element);
        op->work.at += some;
    }
    return true;
}

/* Where the host's contribution lies: the one rank's own buffers, or the combined ones. */
static void place_buffers(ut_job *j, ut_op *op)
{
    op->weight = op->calls;
    if (op->partial) {
        ut_op_place_slots(j, op);
    } else if (op->calls == 1) {
        op->src = op->call[0].src;
        op->dst = op->call[0].dst;
    } else {
        op->src = op->dst = op->bucket_memory;
        if (op->collective == UT_BARRIER)
            memset(op->dst, 0, op->bytes);
    }
    op->src_from = op->collective == UT_ALL_GATHER ? op->schedule.own_offset : 0;
    op->dst_from = op->collective == UT_REDUCE_SCATTER ? op->schedule.own_offset : 0;
    op->own = op->src;
    if (!op->partial)
        ut_hadamard_decide(&j->hadamard, j->config.options.hadamard, j->config.self, ut_job_up(j), op->seq);
    op->transformed = !op->partial && ut_op_transforms(j, op);
    if (op->transformed)
        op->src = op->dst = op->encoded_memory;
    bool half = op->acc_element != op->element;
    op->held_from = op->schedule.direct ? op->schedule.own_offset : 0;
    op->acc = half ? op->held_memory : op->dst + (op->held_from - op->dst_from);
    op->out = op->dst;
    op->out_from = op->dst_from;
}

/* A host that brings nothing still adds up its shard, from zero. */
static bool clear_own(ut_job *j, ut_op *op)
{
    uint64_t bytes = op->weight ? 0 : op->schedule.own_bytes;
    while (op->work.at < bytes) {
        uint64_t some = ut_work_take(ut_engine_work(j->engine), op->bytes, bytes - op->work.at);
        if (some == 0)
            return false;
        memset(op->bucket_memory + op->schedule.own_offset + op->work.at, 0, some);
        op->work.at += some;
    }
    return true;
}

/* A reliable op cannot do without anybody, so it need not be cut otherwise. */
static void find_owners(ut_job *j, ut_op *op)
{
    if (ut_job_algorithm(j) != UT_TAR)
        return;
    ut_owners_decide(&j->owners, j->config.self, ut_job_up(j), ut_job_lost(j), op->seq);
    if (op->collective == UT_ALLREDUCE && op->mode != UT_RELIABLE)
        op->owners = ut_owners_of(&j->owners, op->seq);
    op->owners_tag = ut_owners_tag(&j->owners, op->owners);
    op->owns_nothing = !(op->owners & ut_bit(j->config.self));
}

/* Who sends what to whom, and from where. */
static void plan(ut_job *j, ut_op *op, ut_ns now)
{
    op->stage_end[0] = op->stage_end[1] = UT_END_NONE;
    op->stage_at[0] = op->stage_at[1] = 0;
    op->complete_masks = 0;
    op->rounds_cut = 0;
    op->nonfinite = op->bytes_repaired = op->bytes_duplicate = 0;
    op->record_matched = op->record_known = op->rx_done = op->tx_done = 0;
    op->full_mask = op->any_mask = op->peer_masks = op->short_hosts = op->masks_waived = 0;
    op->peer_full = UINT64_MAX;
    ut_witness_begin(j, op, now);
    op->weight_min = j->world;
    op->kernel_drops_before = ut_engine_counters(j->engine)->kernel_drops;
    ut_op_time_open(j, op, now);
    ut_window_begin(j, now);
    find_owners(j, op);
    if (op->collective == UT_ALLREDUCE)
        ut_schedule_build(&op->schedule, ut_job_algorithm(j), j->config.hosts, j->config.self, op->incast, op->seq,
                          op->owners, op->count, op->element);
    else
        ut_schedule_shard(&op->schedule, op->collective, op->root, j->config.hosts, j->config.self, op->incast,
                          op->bytes / op->element, op->element);
    place_buffers(j, op);
}

/* All is in place: packets may flow. */
static void begin(ut_job *j, ut_op *op, ut_ns now)
{
    op->state = UT_OP_RUNNING;
    place_transfers(j, op);
    for (uint32_t i = 0; i < op->schedule.steps && op->weight == 0; i++)
        if (op->schedule.step[i].kind == UT_STEP_SEND && op->schedule.step[i].stage == 1)
            op->transfer[i].closed = 1;
    ut_op_slots_open(j, op);
    if (op->partial)
        ut_op_announce(j, op, now);
    for (uint32_t h = 0; h < j->config.hosts && !op->partial; h++) {
        if (h == j->config.self || !ut_job_host_is_up(j, h))
            continue;
        ut_conn *c = &j->conn[h];
        c->record_gap = UT_HOLD_NS;
        ut_conn_speak_at(c, now);
    }
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
    if (op->transformed && !ut_op_encode(j, op))
        return;
    begin(j, op, now);
}

void ut_op_open(ut_job *j, ut_op *op, ut_ns now)
{
    op->state = UT_OP_OPENING;
    j->next_open = UT_MAX2(j->next_open, op->seq + 1);
    ut_op_restart(op);
    ut_op_open_on(j, op, now);
}
