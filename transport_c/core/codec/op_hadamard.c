/* SPDX-License-Identifier: Apache-2.0
 *
 * The Hadamard transform of an op. When it opens, the host's contribution is encoded into memory of the job, and the op
 * runs on that alone: folds are linear, so sums and averages may be taken of what is encoded. When it ends, what came
 * is decoded into the trainer's buffer. Groups never cross the bounds of a shard, whose owner and fate they share.
 *
 * A packet that is missing in the broadcast is a row of zeros. With k of n rows missing the others count n / (n - k)
 * times, which is unbiased over the signs (SPEC 1a.7). A group of which nothing came holds the host's own value.
 */
#include "core/base/digest.h"
#include "core/base/plant.h"
#include "core/op/op.h"

#include "kernels/hadamard.h"
#include "kernels/kernels.h"

/* One shard and what has come of it. */
typedef struct shard {
    uint32_t index;
    uint64_t offset, bytes;
    uint32_t slots;
    bool short_last;
    const ut_transfer *came; /* NULL: all of it is there */
} shard;

static shard shard_at(const ut_job *j, const ut_op *op, uint32_t index)
{
    shard s = {.index = index, .offset = op->plan.schedule.from[index]};
    s.bytes = op->plan.schedule.from[index + 1] - s.offset;
    s.slots = ut_slots(s.bytes, j->payload);
    s.short_last = s.bytes % j->payload != 0;
    return s;
}

static shard shard_that_came(const ut_job *j, const ut_op *op, uint32_t index)
{
    shard s = shard_at(j, op, index);
    for (uint32_t i = 0; i < op->plan.schedule.steps; i++) {
        const ut_step *step = &op->plan.schedule.step[i];
        if (step->kind == UT_STEP_RECEIVE && step->stage == 2 && step->chunk == index &&
            !ut_transfer_complete(&op->plan.transfer[i]))
            s.came = &op->plan.transfer[i];
    }
    return s;
}

static uint64_t key_of(const ut_job *j, const ut_op *op, uint32_t shard, uint32_t group)
{
    bool wrong = ut_planted(UT_PLANT_WRONG_SIGN_KEY) && j->config.self == 1;
    return ut_hadamard_key(op->seq, shard, group) ^ wrong;
}

static ut_hadamard_block block_of(const ut_job *j, const ut_op *op, const shard *s, uint32_t group,
                                  const ut_hadamard_group *g, float scale)
{
    bool last = g->first + 1 == s->slots && s->short_last;
    uint32_t bytes = last ? (uint32_t)(s->bytes % j->payload) : j->payload;
    return (ut_hadamard_block){.rows = g->rows,
                               .columns = bytes / (uint32_t)sizeof(float),
                               .stride = (size_t)g->apart * j->payload,
                               .key = key_of(j, op, s->index, group),
                               .scale = scale};
}

bool ut_op_transforms(const ut_job *j, const ut_op *op)
{
    return op->what.dtype == UT_FLOAT32 && op->what.redop <= UT_AVG && op->what.mode != UT_RELIABLE &&
           j->config.hosts > 1 && ut_job_algorithm(j) == UT_TAR && ut_hadamard_is_on(&j->hadamard, op->seq);
}

static bool may_pass(ut_job *j, const ut_op *op, uint64_t bytes)
{
    return ut_work_pass(j->host->turn, op->what.bytes, bytes);
}

bool ut_op_encode(ut_job *j, ut_op *op)
{
    for (; op->work.index < j->config.hosts; op->work.index++, op->work.at = 0) {
        shard s = shard_at(j, op, op->work.index);
        for (uint32_t n = ut_hadamard_groups(s.slots, s.short_last); op->work.at < n; op->work.at++) {
            uint32_t k = (uint32_t)op->work.at;
            ut_hadamard_group g = ut_hadamard_group_of(s.slots, s.short_last, k);
            ut_hadamard_block b = block_of(j, op, &s, k, &g, ut_hadamard_encode_scale(g.rows));
            uint64_t at = s.offset + (uint64_t)g.first * j->payload;
            if (!may_pass(j, op, (uint64_t)g.rows * j->payload))
                return false;
            ut_hadamard_encode(op->memory.encoded + at, op->memory.own + at, &b);
        }
    }
    return true;
}

/* The rows of |g| that came. Returns how many. */
static uint32_t rows_present(const shard *s, const ut_hadamard_group *g, uint64_t *ret)
{
    *ret = UINT64_MAX;
    if (!s->came)
        return g->rows;
    *ret = 0;
    for (uint32_t r = 0; r < g->rows; r++)
        *ret |= (uint64_t)ut_transfer_has(s->came, g->first + r * g->apart) << r;
    return (uint32_t)__builtin_popcountll(*ret);
}

static size_t decode_group(const ut_job *j, const ut_op *op, const shard *s, uint32_t group, uint8_t *dst)
{
    ut_hadamard_group g = ut_hadamard_group_of(s->slots, s->short_last, group);
    ut_hadamard_block b = block_of(j, op, s, group, &g, ut_hadamard_decode_scale(g.rows));
    uint64_t at = s->offset + (uint64_t)g.first * j->payload, present;
    uint32_t n = rows_present(s, &g, &present);
    if (n == 0) {
        size_t bad = 0;
        for (uint32_t r = 0; r < g.rows; r++)
            bad += ut_finish(op->what.dtype, op->what.redop, UT_A_IS_INPUT, dst + at + r * b.stride,
                             op->memory.own + at + r * b.stride, b.columns, op->local.weight);
        return bad;
    }
    b.scale *= (float)g.rows / (float)n;
    return ut_hadamard_decode(dst + at, op->memory.encoded + at, &b, n < g.rows ? &present : NULL);
}

/* The buffer of the first rank that still waits; NULL if none does. */
static uint8_t *buffer_of(const ut_op *op)
{
    for (unsigned i = 0; i < op->local.calls; i++)
        if (op->local.call[i].session != UINT32_MAX)
            return op->local.call[i].dst;
    return NULL;
}

bool ut_op_decode(ut_job *j, ut_op *op)
{
    uint8_t *dst = buffer_of(op);
    if (!op->memory.transformed || !dst)
        return true;
    if (op->work.index == 0 && op->work.at == 0)
        op->fold.nonfinite = 0; /* until here it counted what is encoded */
    for (; op->work.index < j->config.hosts; op->work.index++, op->work.at = 0) {
        shard s = shard_that_came(j, op, op->work.index);
        for (uint32_t n = ut_hadamard_groups(s.slots, s.short_last); op->work.at < n; op->work.at++) {
            if (!may_pass(j, op, (uint64_t)UT_HADAMARD_GROUP * j->payload))
                return false;
            op->fold.nonfinite += decode_group(j, op, &s, (uint32_t)op->work.at, dst);
        }
    }
    return true;
}

bool ut_op_digest(ut_job *j, ut_op *op)
{
    uint8_t *dst = buffer_of(op);
    if (!op->memory.transformed || !dst)
        return true;
    if (op->work.index == 0 && op->work.at == 0)
        op->fold.digest = 0; /* it was of what is encoded, where rows that are missing count for nothing */
    for (; op->work.index < j->config.hosts; op->work.index++, op->work.at = 0) {
        shard s = shard_at(j, op, op->work.index);
        for (; op->work.at < s.bytes; op->work.at += j->payload) {
            uint64_t at = s.offset + op->work.at;
            size_t len = UT_MIN2(s.bytes - op->work.at, (uint64_t)j->payload);
            if (!may_pass(j, op, len))
                return false;
            op->fold.digest += ut_digest_part(ut_crc32c(0, dst + at, len), at, len);
        }
    }
    op->memory.dst = dst;
    return true;
}

void ut_op_account_loss(ut_job *j, const ut_op *op)
{
    uint64_t missing = 0, expected = 0;
    for (uint32_t i = 0; i < op->plan.schedule.steps; i++) {
        if (op->plan.schedule.step[i].kind != UT_STEP_RECEIVE || op->plan.transfer[i].done == 0)
            continue;
        missing += ut_transfer_missing(&op->plan.transfer[i], j->payload);
        expected += op->plan.schedule.step[i].bytes;
    }
    if (op->what.mode != UT_RELIABLE)
        ut_hadamard_lost(&j->hadamard, missing, expected);
}
