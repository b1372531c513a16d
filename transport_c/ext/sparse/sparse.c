/* SPDX-License-Identifier: Apache-2.0 */
#include "ext/sparse/sparse.h"

ut_block_shape ut_sparse_shape(const ut_sparse *p, uint32_t c, unsigned stage)
{
    uint64_t each = ut_granule_units(p->group);
    uint64_t first = UT_MIN2(p->from[c] * each, p->units), end = UT_MIN2(p->from[c + 1] * each, p->units);
    return (ut_block_shape){
        .units = (uint32_t)(end - first),
        .group = p->group,
        .form = stage == 1 ? p->form : ut_sparse_answer(p->form, p->down),
    };
}

uint64_t ut_sparse_bytes(const ut_sparse *p, uint32_t c, uint32_t first, uint32_t end)
{
    assert(c < UT_HOSTS_MAX && first <= end);
    uint64_t each = ut_granule_units(p->group), units = ut_sparse_shape(p, c, 1).units;
    return (UT_MIN2(end * each, units) - UT_MIN2(first * each, units)) * p->group * sizeof(float);
}

/* The most blocks of |units|, in whichever form they travel. */
static uint32_t blocks_most(uint32_t units, uint32_t group, uint8_t form, uint8_t down, uint32_t payload)
{
    ut_block_shape there = {.units = units, .group = group, .form = form}, back = there;
    back.form = ut_sparse_answer(form, down);
    uint32_t a = ut_block_count_most(&there, payload), b = ut_block_count_most(&back, payload);
    return UT_MAX2(a, b);
}

uint32_t ut_sparse_granules(uint32_t units, uint32_t group, uint8_t form, uint8_t down, uint32_t payload,
                            uint32_t hosts, uint64_t room)
{
    assert(group > 0 && hosts > 0);
    size_t there = ut_block_least(group, form), back = ut_block_least(group, ut_sparse_answer(form, down));
    if (UT_MAX2(there, back) > payload)
        return 0;
    uint64_t bytes = ((uint64_t)blocks_most(units, group, form, down, payload) + hosts) * payload;
    ut_block_shape all = {.units = units, .group = group, .form = form};
    return bytes <= UT_MIN2(room, (uint64_t)UT_BUCKET_MAX) ? ut_block_granules(&all) : 0;
}

/* Of single elements a sixth more than the bucket itself is needed where every granule lacks other hosts than the one
 * before, and what is left over at the end of a slot. Groups leave more there, half of a slot at worst: three eighths
 * more are set aside, and larger ones find their place in a job that allows larger buckets. */
uint64_t ut_sparse_bound(uint64_t bytes, uint32_t payload, uint32_t hosts)
{
    return bytes + bytes / 8 * 3 + ((uint64_t)hosts + 1) * payload;
}

size_t ut_sparse_words(uint64_t bytes, uint32_t hosts)
{
    uint64_t granules = bytes / (UT_GRANULE_ELEMENTS * sizeof(float)) + 1;
    return (size_t)((granules + 63) / 64 + 2) * (hosts + 1);
}

void ut_sparse_cut(ut_sparse *p, ut_schedule *s, uint32_t payload)
{
    for (uint32_t c = 0; c <= s->chunks; c++)
        p->from[c] = (uint32_t)s->from[c];
    for (uint32_t c = 0; c < s->chunks; c++) {
        uint32_t units = ut_sparse_shape(p, c, 1).units;
        s->from[c + 1] = s->from[c] + (uint64_t)blocks_most(units, p->group, p->form, p->down, payload) * payload;
    }
    for (uint32_t i = 0; i < s->steps; i++) {
        ut_step *x = &s->step[i];
        x->offset = s->from[x->chunk];
        x->bytes = s->from[x->chunk + 1] - s->from[x->chunk];
    }
    if (s->own != UT_CHUNK_NONE)
        ut_schedule_own(s, s->own);
    p->finished = p->told = p->made = 0;
    p->answered = 0;
    assert(s->own == UT_CHUNK_NONE || s->own < s->chunks);
}

void ut_sparse_transfers(ut_sparse *p, const ut_schedule *s, ut_transfer *t)
{
    uint64_t *bits = p->granules;
    for (uint32_t i = 0; i < s->steps; i++) {
        uint32_t c = s->step[i].chunk, granules = p->from[c + 1] - p->from[c];
        if (s->step[i].kind == UT_STEP_SEND && s->step[i].stage == 1) {
            t[i].slots = t[i].stop = p->blocks[c];
            t[i].bytes_last = p->tail[c];
        } else if (s->step[i].kind == UT_STEP_RECEIVE && t[i].slots) {
            t[i].granules = bits;
            t[i].whole = ut_sparse_bytes(p, c, 0, granules);
            memset(bits, 0, ut_transfer_words(granules) * sizeof *bits);
            bits += ut_transfer_words(granules);
        }
    }
    p->without = bits;
    p->lacks = false;
    memset(bits, 0, ut_transfer_words(p->from[s->chunks]) * sizeof *bits);
}

/* The bits of word |w| that lie in [|first|, |end|). */
static uint64_t part_of_word(uint32_t w, uint32_t first, uint32_t end)
{
    uint64_t low = w == first / 64 ? UINT64_MAX << (first % 64) : UINT64_MAX;
    uint64_t high = w == (end - 1) / 64 ? UINT64_MAX >> (63 - (end - 1) % 64) : UINT64_MAX;
    return low & high;
}

bool ut_sparse_any(const uint64_t *bits, uint32_t first, uint32_t end)
{
    for (uint32_t w = first / 64; first < end && w <= (end - 1) / 64; w++)
        if (bits[w] & part_of_word(w, first, end))
            return true;
    return false;
}

void ut_sparse_set(uint64_t *bits, uint32_t first, uint32_t end)
{
    for (uint32_t w = first / 64; first < end && w <= (end - 1) / 64; w++)
        bits[w] |= part_of_word(w, first, end);
}

uint32_t ut_sparse_run(const uint64_t *bits, uint32_t first, uint32_t end)
{
    assert(first < end);
    uint64_t is = bits[first / 64] >> (first % 64) & 1 ? UINT64_MAX : 0;
    for (uint32_t w = first / 64; w <= (end - 1) / 64; w++) {
        uint64_t other = (bits[w] ^ is) & part_of_word(w, first, end);
        if (other)
            return w * 64 + (unsigned)__builtin_ctzll(other) - first;
    }
    return end - first;
}
