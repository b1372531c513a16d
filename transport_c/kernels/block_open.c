/* SPDX-License-Identifier: Apache-2.0
 *
 * Blocks that came: checked, then added to a sum or put in their place. See block.h.
 */
#include "block_form.h"
#include "quant.h"

static uint32_t load16(const uint8_t *p)
{
    return p[0] | (uint32_t)p[1] << 8;
}

static uint32_t load32(const uint8_t *p)
{
    return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/* The numbers of the ones among |bits| bits, at most |room| of them. Returns how many there are, or room + 1. */
static uint32_t ones(uint32_t *ret, uint32_t room, const uint8_t *in, uint64_t bits)
{
    uint32_t found = 0;
    uint64_t len = (bits + 7) / 8;
    for (uint64_t byte = 0; byte < len; byte += 8) {
        uint64_t word = 0;
        memcpy(&word, in + byte, UT_MIN2(len - byte, (uint64_t)8));
        uint64_t left = bits - byte * 8;
        if ((left < 64 && word >> left) || (uint32_t)__builtin_popcountll(word) > room - found)
            return room + 1;
        for (; word; word &= word - 1)
            ret[found++] = (uint32_t)(byte * 8) + (unsigned)__builtin_ctzll(word);
    }
    return found;
}

static bool get_index(ut_block *b, const uint8_t *in, unsigned low)
{
    if (b->index == UT_INDEX_BITMAP)
        return ones(b->at, b->entries, in, b->units) == b->entries;
    const uint8_t *high = in + ((size_t)b->entries * low + 7) / 8;
    if (ones(b->at, b->entries, high, ut_block_high_bits(b->entries, b->units, low)) != b->entries)
        return false;
    uint64_t bits = 0, least = 0;
    unsigned have = 0;
    for (uint32_t i = 0; i < b->entries; i++) {
        for (; have < low; have += 8)
            bits |= (uint64_t)*in++ << have;
        uint64_t at = (uint64_t)(b->at[i] - i) << low | (bits & ((1u << low) - 1));
        bits >>= low;
        have -= low;
        if (at >= b->units || at < least)
            return false;
        least = at + 1;
        b->at[i] = (uint32_t)at;
    }
    return true;
}

ut_block_run ut_block_run_at(const ut_block *b, uint32_t i)
{
    const uint8_t *at = b->who + (size_t)i * UT_BLOCK_RUN;
    return (ut_block_run){load16(at), load32(at + 2) | (uint64_t)load32(at + 6) << 32};
}

/* Who is in the block: |len| bytes from |in| on. */
static bool get_who(ut_block *b, const uint8_t *in, size_t len)
{
    uint32_t left = b->granules;
    if (len < 2)
        return false;
    b->runs = load16(in);
    b->who = in + 2;
    if (b->runs == 0 || ut_block_who_bytes(b->runs) > len)
        return false;
    for (uint32_t i = 0; i < b->runs; i++) {
        uint32_t some = ut_block_run_at(b, i).granules;
        if (some == 0 || some > left)
            return false;
        left -= some;
    }
    return left == 0;
}

int ut_block_open(ut_block *ret, const uint8_t *in, size_t len, const ut_block_shape *s)
{
    size_t head = ut_block_head(s->form);
    uint32_t each = ut_granule_units(s->group), all = ut_block_granules(s);
    if (len < head || (in[0] & 15) >= UT_INDEXES_END || in[0] >> 4 != s->form ||
        (in[1] & 15) > (UT_BLOCK_LAST | UT_BLOCK_WHO))
        return UT_ERR_MALFORMED;
    unsigned low = in[1] >> 4;
    ret->index = in[0] & 15;
    ret->last = in[1] & UT_BLOCK_LAST;
    ret->entries = load16(in + 2);
    ret->first = load32(in + 4);
    ret->granules = load32(in + 8);
    if (ret->first >= all || ret->granules == 0 || ret->granules > all - ret->first ||
        ret->last != (ret->first + ret->granules == all) || (ret->index != UT_INDEX_ELIAS_FANO && low))
        return UT_ERR_MALFORMED;
    ret->base = ret->first * each;
    ret->units = (uint32_t)UT_MIN2((uint64_t)ret->granules * each, s->units - ret->base);
    ret->runs = 0;
    if ((in[1] & UT_BLOCK_WHO) && !get_who(ret, in + head, len - head))
        return UT_ERR_MALFORMED;
    head += ut_block_who_bytes(ret->runs);
    if (ret->index == UT_INDEX_DENSE) {
        if (ret->entries)
            return UT_ERR_MALFORMED;
        ret->entries = ret->units;
    }
    size_t index = ut_block_index_bytes(ret->index, ret->entries, ret->units, low);
    if (ret->entries > ret->units || ret->entries > len || index > len - head)
        return UT_ERR_MALFORMED;
    const size_t n = (size_t)ret->entries * s->group, values = ut_values_bytes(s->form, n);
    if (values > len - head - index)
        return UT_ERR_MALFORMED;
    if (s->form == UT_VALUE_INT8 && n &&
        !ut_quant_takes(UT_QUANT_INT8, in + head + index, (uint32_t)values, (uint32_t)n))
        return UT_ERR_MALFORMED;
    ret->scale = 1;
    if (s->form == UT_VALUE_FLOAT8) {
        memcpy(&ret->scale, in + UT_BLOCK_HEADER, sizeof ret->scale);
        if (!(ret->scale > 0 && ret->scale < 0x1p127f))
            return UT_ERR_MALFORMED;
    }
    ret->values = in + head + index;
    return ret->index == UT_INDEX_DENSE || get_index(ret, in + head, low) ? UT_OK : UT_ERR_MALFORMED;
}

static uint32_t values_of(const ut_block *b, const ut_block_shape *s)
{
    return b->entries * s->group;
}

double ut_block_error(const ut_block *b, const ut_block_shape *s)
{
    const uint32_t n = values_of(b, s);
    return s->form == UT_VALUE_INT8 && n ? ut_quant_error(UT_QUANT_INT8, b->values, n) : 0;
}

static inline void add_form(const ut_block *b, uint32_t group, unsigned form, float *to)
{
    size_t value = ut_value_bytes(form);
    for (uint32_t i = 0; i < b->entries; i++) {
        float *unit = to + (size_t)(b->index == UT_INDEX_DENSE ? i : b->at[i]) * group;
        for (uint32_t k = 0; k < group; k++)
            unit[k] += ut_value_load(b->values + ((size_t)i * group + k) * value, form, b->scale);
    }
}

void ut_block_add(const ut_block *b, const ut_block_shape *s, float *chunk)
{
    float *to = chunk + (size_t)b->base * s->group;
    assert(s->form < UT_VALUE_FORMS_END);
    if (s->form == UT_VALUE_FLOAT32 && s->group == 1) /* each form by itself, that the compiler may make loops of it */
        add_form(b, 1, UT_VALUE_FLOAT32, to);
    else if (s->form == UT_VALUE_FLOAT32)
        add_form(b, s->group, UT_VALUE_FLOAT32, to);
    else if (s->form == UT_VALUE_FLOAT16)
        add_form(b, s->group, UT_VALUE_FLOAT16, to);
    else
        add_form(b, s->group, s->form, to);
}

static inline size_t place_form(const ut_block *b, const uint8_t *values, uint32_t group, unsigned form, float *to,
                                uint64_t start, uint64_t *digest)
{
    size_t bad = 0, value = ut_value_bytes(form);
    uint64_t sum = 0;
    for (uint32_t i = 0; i < b->entries; i++) {
        size_t unit = (size_t)(b->index == UT_INDEX_DENSE ? i : b->at[i]) * group;
        for (uint32_t k = 0; k < group; k++) {
            float x = ut_value_load(values + ((size_t)i * group + k) * value, form, b->scale);
            uint32_t bits = ut_float_bits(x);
            to[unit + k] = x;
            bad += (bits & 0x7f800000) == 0x7f800000;
            sum += ut_sparse_digest_part(bits, start + unit + k);
        }
    }
    *digest += sum;
    return bad;
}

/* All values of an int8 block are decoded, then placed. */
static size_t place_slot(const ut_block *b, const ut_block_shape *s, float *to, uint64_t start, uint64_t *digest)
{
    float x[UT_BLOCK_VALUES_MAX]; /* a value takes a byte and more */
    const uint32_t n = values_of(b, s);
    if (n)
        ut_quant_decode(UT_QUANT_INT8, x, b->values, n);
    return place_form(b, (const uint8_t *)x, s->group, UT_VALUE_FLOAT32, to, start, digest);
}

size_t ut_block_place(const ut_block *b, const ut_block_shape *s, float *chunk, uint64_t start, uint64_t *digest)
{
    float *to = chunk + (size_t)b->base * s->group;
    start += (uint64_t)b->base * s->group;
    memset(to, 0, (size_t)b->units * s->group * sizeof *to);
    if (s->form == UT_VALUE_INT8)
        return place_slot(b, s, to, start, digest);
    if (s->form == UT_VALUE_FLOAT32 && s->group == 1) /* as in ut_block_add */
        return place_form(b, b->values, 1, UT_VALUE_FLOAT32, to, start, digest);
    if (s->form == UT_VALUE_FLOAT32)
        return place_form(b, b->values, s->group, UT_VALUE_FLOAT32, to, start, digest);
    if (s->form == UT_VALUE_FLOAT16)
        return place_form(b, b->values, s->group, UT_VALUE_FLOAT16, to, start, digest);
    return place_form(b, b->values, s->group, s->form, to, start, digest);
}
