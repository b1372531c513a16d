/* SPDX-License-Identifier: Apache-2.0
 *
 * The codec of sparse allreduces. What one rank gives is encoded, chunk by chunk, into blocks (kernels/block.h) as it
 * lies in the trainer's memory; what several give lies added up in a dense tensor. Results are put into their place as
 * they come (ext/sparse/blocks.c), so nothing is left to decode.
 */
#include "ext/sparse/blocks.h"
#include "ext/sparse/variant.h"

/* What is sparse travels so; see variant.c for what fits. */
static bool fits(const ut_op_what *what, uint32_t hosts, unsigned algorithm)
{
    return what->told == UT_ALLREDUCE_SPARSE && what->bytes && hosts > 1 && algorithm == UT_TAR;
}

/* The own chunk begins as what this host gives of it: the bytes are cleared, then entries are added. */
static bool begin_sums(const ut_codec_op *c, uint32_t chunk)
{
    ut_sparse *p = c->variant;
    ut_block_shape shape = ut_sparse_shape(p, chunk, 1);
    uint64_t bytes = (uint64_t)shape.units * p->group * sizeof(float), each = 4 + 4 * (uint64_t)p->group, some;
    if (!p->listed)
        p->sums = (uint8_t *)ut_sparse_chunk(p, chunk);
    for (; p->listed && c->way->at < bytes; c->way->at += some) {
        some = ut_work_take(c->turn, c->what->bytes, bytes - c->way->at);
        if (some == 0)
            return false;
        memset(p->sums + c->way->at, 0, some);
    }
    for (bool more = p->listed; more;) {
        uint32_t most = (uint32_t)(ut_work_take(c->turn, c->what->bytes, (p->given.n - p->given.next) * each) / each);
        if (most == 0 && p->given.next < p->given.n)
            return false;
        more = ut_entries_add(&p->given, ut_sparse_sums(p), &shape, ut_sparse_base(p, chunk), most, p->scale) == most &&
               most;
    }
    return true;
}

static size_t encode_block(ut_sparse *p, uint32_t chunk, uint8_t *to, uint32_t payload, uint32_t first, uint32_t *ret)
{
    ut_block_shape shape = ut_sparse_shape(p, chunk, 1);
    if (p->listed)
        return ut_block_encode_entries(to, payload, &p->given, &shape, ut_sparse_base(p, chunk), first, p->scale, ret);
    return ut_block_encode(to, payload, ut_sparse_chunk(p, chunk), &shape, first, p->scale, ret);
}

static bool encode(const ut_codec_op *c)
{
    ut_sparse *p = c->variant;
    const ut_schedule *s = &c->plan->schedule;
    if (c->way->index == 0 && c->way->at == 0)
        p->given.next = p->given.more = 0;
    for (; c->way->index < s->chunks; c->way->index++, c->way->at = 0) {
        uint32_t chunk = c->way->index, granules = p->from[chunk + 1] - p->from[chunk], some;
        if (c->way->at == 0) {
            p->blocks[chunk] = p->tail[chunk] = 0;
            p->begins[chunk] = p->given.next;
        }
        if (chunk == s->own && !begin_sums(c, chunk))
            return false;
        for (; c->way->at < granules && chunk != s->own; c->way->at += some) {
            uint8_t *to = c->memory->encoded + s->from[chunk] + (uint64_t)p->blocks[chunk] * c->payload;
            if (!ut_work_pass(c->turn, c->what->bytes, c->payload))
                return false;
            size_t len = encode_block(p, chunk, to, c->payload, (uint32_t)c->way->at, &some);
            if (!p->listed) /* all of its range was looked at, and not its entries alone */
                ut_work_add(c->turn, ut_sparse_bytes(p, chunk, (uint32_t)c->way->at, (uint32_t)c->way->at + some));
            memset(to + len, 0, c->payload - len);
            p->tail[chunk] = (uint32_t)len;
            p->blocks[chunk]++;
        }
    }
    return true;
}

const ut_codec ut_codec_sparse = {.id = UT_CODEC_SPARSE, .rule = &ut_fold_blocks, .fits = fits, .encode = encode};
