/* SPDX-License-Identifier: Apache-2.0
 *
 * The codec of sparse allreduces. A host's contribution lies scattered in a dense tensor of the job's memory when it is
 * encoded, chunk by chunk, into blocks (kernels/block.h). Owners add what comes there, and results are put there as
 * they come (core/fold/blocks.c), so all that is left to decode is to copy.
 */
#include "core/codec/codec.h"

#include "kernels/kernels.h"

/* What is sparse travels so; see check_sparse of core/face/submit.c for what fits. */
static bool fits(const ut_op_what *what, uint32_t hosts, unsigned algorithm)
{
    return what->group && what->bytes && hosts > 1 && algorithm == UT_TAR;
}

static bool encode(const ut_codec_op *c)
{
    ut_sparse *p = c->sparse;
    const ut_schedule *s = &c->plan->schedule;
    for (; c->way->index < s->chunks; c->way->index++, c->way->at = 0) {
        uint32_t chunk = c->way->index, granules = p->from[chunk + 1] - p->from[chunk], some;
        ut_block_shape shape = ut_sparse_shape(p, chunk, 1);
        if (c->way->at == 0)
            p->blocks[chunk] = p->tail[chunk] = 0;
        for (; c->way->at < granules && chunk != s->own; c->way->at += some) {
            uint8_t *to = c->memory->encoded + s->from[chunk] + (uint64_t)p->blocks[chunk] * c->payload;
            if (!ut_work_pass(c->turn, c->what->bytes, c->payload))
                return false;
            size_t len = ut_block_encode(to, c->payload, ut_sparse_chunk(p, chunk), &shape, (uint32_t)c->way->at,
                                         p->scale, &some);
            memset(to + len, 0, c->payload - len);
            p->tail[chunk] = (uint32_t)len;
            p->blocks[chunk]++;
        }
    }
    return true;
}

static bool decode(const ut_codec_op *c, uint8_t *dst, uint64_t *nonfinite)
{
    while (c->way->at < c->what->bytes) {
        uint64_t some = ut_work_take(c->turn, c->what->bytes, c->what->bytes - c->way->at);
        if (some == 0)
            return false;
        *nonfinite += ut_place(UT_FLOAT32, dst + c->way->at, c->sparse->dense + c->way->at, some / sizeof(float));
        c->way->at += some;
    }
    return true;
}

const ut_codec ut_codec_sparse = {.id = UT_CODEC_SPARSE, .fits = fits, .encode = encode, .decode = decode};
