/* SPDX-License-Identifier: Apache-2.0
 *
 * The Hadamard transform of an op. When it opens, the host's contribution is encoded into memory of the job, and the op
 * runs on that alone: folds are linear, so sums and averages may be taken of what is encoded. When it ends, what came
 * is decoded into the trainer's buffer. Groups never cross the bounds of a shard, whose owner and fate they share.
 *
 * A packet that is missing in the broadcast is a row of zeros. With k of n rows missing the others count n / (n - k)
 * times, which is unbiased over the signs (SPEC 1a.7). A group of which nothing came holds the host's own value.
 */
#include "op.h"

#include "../kernels/hadamard.h"
#include "../kernels/kernels.h"

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
    shard s = {.index = index, .offset = op->schedule.from[index]};
    s.bytes = op->schedule.from[index + 1] - s.offset;
    s.slots = ut_slots(s.bytes, j->payload);
    s.short_last = s.bytes % j->payload != 0;
    for (uint32_t i = 0; i < op->schedule.steps; i++) {
        const ut_step *step = &op->schedule.step[i];
        if (step->kind == UT_STEP_RECEIVE && step->stage == 2 && step->chunk == index &&
            !ut_transfer_complete(&op->transfer[i]))
            s.came = &op->transfer[i];
    }
    return s;
}

static uint64_t key_of(const ut_job *j, const ut_op *op, uint32_t shard, uint32_t group)
{
#ifdef UT_PLANT_WRONG_SIGN_KEY
    return ut_hadamard_key(op->seq, shard, group) ^ (j->config.self == 1);
#else
    (void)j;
    return ut_hadamard_key(op->seq, shard, group);
#endif
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

bool ut_op_encode(ut_job *j, ut_op *op)
{
    op->transformed = 0;
    op->own = op->src;
    if (op->dtype != UT_FLOAT32 || op->redop > UT_AVG || op->mode == UT_RELIABLE || j->config.hosts == 1 ||
        j->config.options.algorithm > UT_TAR || !ut_hadamard_is_on(&j->hadamard, op->seq))
        return false;
    op->transformed = 1;
    for (uint32_t i = 0; i < j->config.hosts; i++) {
        shard s = shard_at(j, op, i);
        for (uint32_t k = 0; k < ut_hadamard_groups(s.slots, s.short_last); k++) {
            ut_hadamard_group g = ut_hadamard_group_of(s.slots, s.short_last, k);
            ut_hadamard_block b = block_of(j, op, &s, k, &g, ut_hadamard_encode_scale(g.rows));
            uint64_t at = s.offset + (uint64_t)g.first * j->payload;
            ut_hadamard_encode(op->encoded_memory + at, op->own + at, &b);
        }
    }
    op->src = op->dst = op->encoded_memory;
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
            bad += ut_finish(op->dtype, op->redop, UT_A_IS_INPUT, dst + at + r * b.stride, op->own + at + r * b.stride,
                             b.columns, op->weight);
        return bad;
    }
    b.scale *= (float)g.rows / (float)n;
    return ut_hadamard_decode(dst + at, op->encoded_memory + at, &b, n < g.rows ? &present : NULL);
}

static uint64_t digest_of(const ut_job *j, const uint8_t *dst, shard s)
{
    uint64_t sum = 0;
    for (uint64_t from = 0; from < s.bytes; from += j->payload) {
        size_t len = UT_MIN2(s.bytes - from, (uint64_t)j->payload);
        sum += ut_replica_part(ut_crc32c(0, dst + s.offset + from, len), s.offset + from, len);
    }
    return sum;
}

void ut_op_decode(ut_job *j, ut_op *op)
{
    uint8_t *dst = NULL;
    for (unsigned i = op->calls; i-- > 0;)
        if (op->call[i].session != UINT32_MAX)
            dst = op->call[i].dst;
    if (!op->transformed || !dst)
        return;
    op->nonfinite = 0; /* until here it counted what is encoded */
    for (uint32_t i = 0; i < j->config.hosts; i++) {
        shard s = shard_at(j, op, i);
        for (uint32_t k = 0; k < ut_hadamard_groups(s.slots, s.short_last); k++)
            op->nonfinite += decode_group(j, op, &s, k, dst);
    }
    op->dst = dst;
    op->replica.digest = 0; /* nor is it of what is encoded: rows that are missing count for nothing there */
    for (uint32_t i = 0; i < j->config.hosts; i++)
        op->replica.digest += digest_of(j, dst, shard_at(j, op, i));
}

void ut_op_account_loss(ut_job *j, const ut_op *op)
{
    uint64_t missing = 0, expected = 0;
    for (uint32_t i = 0; i < op->schedule.steps; i++) {
        if (op->schedule.step[i].kind != UT_STEP_RECEIVE || op->transfer[i].done == 0)
            continue;
        missing += ut_transfer_missing(&op->transfer[i], j->payload);
        expected += op->schedule.step[i].bytes;
    }
    if (op->mode != UT_RELIABLE)
        ut_hadamard_lost(&j->hadamard, missing, expected);
}
