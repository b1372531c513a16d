/* SPDX-License-Identifier: Apache-2.0
 *
 * The Hadamard transform of an op. When it opens, the host's contribution is encoded into memory of the job, and the op
 * runs on that alone: folds are linear, so sums and averages may be taken of what is encoded. When it ends, what came
 * is decoded into the trainer's buffer. Groups never cross the bounds of a shard, whose owner and fate they share.
 *
 * A packet that is missing in the broadcast is a row of zeros. With k of n rows missing the others count n / (n - k)
 * times, which is unbiased over the signs (docs/papers.md, section 1.7). A group of which nothing came holds the host's
 * own value.
 */
#include "core/codec/codec.h"
#include "core/codec/hadamard.h"

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

static shard shard_at(const ut_codec_op *c, uint32_t index)
{
    shard s = {.index = index, .offset = c->plan->schedule.from[index]};
    s.bytes = c->plan->schedule.from[index + 1] - s.offset;
    s.slots = ut_slots(s.bytes, c->payload);
    s.short_last = s.bytes % c->payload != 0;
    return s;
}

static shard shard_that_came(const ut_codec_op *c, uint32_t index)
{
    shard s = shard_at(c, index);
    for (uint32_t i = 0; i < c->plan->schedule.steps; i++) {
        const ut_step *step = &c->plan->schedule.step[i];
        if (step->kind == UT_STEP_RECEIVE && step->stage == 2 && step->chunk == index &&
            !ut_transfer_complete(&c->plan->transfer[i]))
            s.came = &c->plan->transfer[i];
    }
    return s;
}

static uint64_t key_of(const ut_codec_op *c, uint32_t shard, uint32_t group)
{
    return ut_hadamard_key(c->seq, shard, group);
}

static ut_hadamard_block block_of(const ut_codec_op *c, const shard *s, uint32_t group, const ut_hadamard_group *g,
                                  float scale)
{
    bool last = g->first + 1 == s->slots && s->short_last;
    uint32_t bytes = last ? (uint32_t)(s->bytes % c->payload) : c->payload;
    return (ut_hadamard_block){.rows = g->rows,
                               .columns = bytes / (uint32_t)sizeof(float),
                               .stride = (size_t)g->apart * c->payload,
                               .key = key_of(c, s->index, group),
                               .scale = scale};
}

/* Not a reliable op: it misses nothing, so there is nothing to spread. */
static bool fits(const ut_op_what *what, uint32_t hosts, unsigned algorithm)
{
    return what->dtype == UT_FLOAT32 && what->redop <= UT_AVG && what->mode != UT_RELIABLE && hosts > 1 &&
           algorithm == UT_TAR;
}

/* Rows are mixed in place: as many bytes as before. */
static uint64_t bound(uint64_t bytes)
{
    return bytes;
}

static bool may_pass(const ut_codec_op *c, uint64_t bytes)
{
    return ut_work_pass(c->turn, c->what->bytes, bytes);
}

static bool encode(const ut_codec_op *c)
{
    for (; c->way->index < c->hosts; c->way->index++, c->way->at = 0) {
        shard s = shard_at(c, c->way->index);
        for (uint32_t n = ut_hadamard_groups(s.slots, s.short_last); c->way->at < n; c->way->at++) {
            uint32_t k = (uint32_t)c->way->at;
            ut_hadamard_group g = ut_hadamard_group_of(s.slots, s.short_last, k);
            ut_hadamard_block b = block_of(c, &s, k, &g, ut_hadamard_encode_scale(g.rows));
            uint64_t at = s.offset + (uint64_t)g.first * c->payload;
            if (!may_pass(c, (uint64_t)g.rows * c->payload))
                return false;
            ut_hadamard_encode(c->memory->encoded + at, c->memory->own + at, &b);
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

static size_t decode_group(const ut_codec_op *c, const shard *s, uint32_t group, uint8_t *dst)
{
    ut_hadamard_group g = ut_hadamard_group_of(s->slots, s->short_last, group);
    ut_hadamard_block b = block_of(c, s, group, &g, ut_hadamard_decode_scale(g.rows));
    uint64_t at = s->offset + (uint64_t)g.first * c->payload, present;
    uint32_t n = rows_present(s, &g, &present);
    if (n == 0) {
        size_t bad = 0;
        for (uint32_t r = 0; r < g.rows; r++)
            bad += ut_finish(c->what->dtype, c->what->redop, UT_A_IS_INPUT, dst + at + r * b.stride,
                             c->memory->own + at + r * b.stride, b.columns, c->ranks);
        return bad;
    }
    b.scale *= (float)g.rows / (float)n;
    return ut_hadamard_decode(dst + at, c->memory->encoded + at, &b, n < g.rows ? &present : NULL);
}

static bool decode(const ut_codec_op *c, uint8_t *dst, uint64_t *nonfinite)
{
    for (; c->way->index < c->hosts; c->way->index++, c->way->at = 0) {
        shard s = shard_that_came(c, c->way->index);
        for (uint32_t n = ut_hadamard_groups(s.slots, s.short_last); c->way->at < n; c->way->at++) {
            if (!may_pass(c, (uint64_t)UT_HADAMARD_GROUP * c->payload))
                return false;
            *nonfinite += decode_group(c, &s, (uint32_t)c->way->at, dst);
        }
    }
    return true;
}

const ut_codec ut_codec_hadamard = {
    .id = UT_CODEC_HADAMARD, .linear = true, .fits = fits, .bound = bound, .encode = encode, .decode = decode};
