/* SPDX-License-Identifier: Apache-2.0
 *
 * Blocks: what travels of a sparse tensor. See block.h for the bytes. An encoder takes as many granules as fit, and
 * tells their indices in the smallest way; it reads each value of the tensor once, because trainers may write there.
 */
#include "block.h"

#include "half.h"
#include "kernels.h"
#include "sparse.h"

enum { LOW_BITS_MAX = 15, GRANULE_MAX = UT_BLOCK_GROUP_MAX };

static uint32_t load32(const uint8_t *p)
{
    return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static void store32(uint8_t *p, uint32_t x)
{
    for (unsigned i = 0; i < 4; i++)
        p[i] = (uint8_t)(x >> 8 * i);
}

/* ---- values ---- */

size_t ut_value_bytes(unsigned form)
{
    static const uint8_t bytes[UT_VALUE_FORMS_END] = {4, 2, 2, 1};
    return bytes[form];
}

/* Rounds to the nearest, ties to even; what is too large becomes 448, and what is not finite NaN. */
static uint8_t f8_of_float(float value)
{
    const uint32_t bits = ut_float_bits(value), magnitude = bits & 0x7fffffff;
    const uint8_t sign = (uint8_t)(bits >> 24 & 0x80);
    if (magnitude >= 0x7f800000)
        return sign | 0x7f;
    /* Below 2^-6 one unit is 2^-9, the last bit of 2^14: the adder rounds. */
    uint32_t small = ut_float_bits(ut_float_of_bits(magnitude) + 0x1p14f) - 0x46800000;
    uint32_t normal = (magnitude - (120u << 23) + 0x7ffff + (magnitude >> 20 & 1)) >> 20;
    uint32_t f8 = magnitude < 0x3c800000 ? small : normal;
    return (uint8_t)(sign | UT_MIN2(f8, 0x7e));
}

static float float_of_f8(uint8_t f8)
{
    const uint32_t sign = (uint32_t)(f8 & 0x80) << 24, magnitude = f8 & 0x7f;
    if (magnitude == 0x7f)
        return ut_float_of_bits(sign | 0x7fc00000);
    const float value = magnitude < 8 ? (float)magnitude * 0x1p-9f : ut_float_of_bits((magnitude << 20) + (120u << 23));
    return ut_float_of_bits(sign | ut_float_bits(value));
}

float ut_float8_scale(float most)
{
    const uint32_t bits = ut_float_bits(most) & 0x7fffffff;
    int exponent = (int)(bits >> 23) - 127 - 8 + ((bits & 0x7fffff) > 0x600000); /* 448 is 1.75 * 2^8 */
    return ut_float_of_bits((uint32_t)(UT_MAX2(exponent, -117) + 127) << 23);
}

float ut_largest_finite(const float *x, size_t n)
{
    uint32_t most = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, x + i, 4);
        bits &= 0x7fffffff;
        most = bits < 0x7f800000 && bits > most ? bits : most;
    }
    return ut_float_of_bits(most);
}

static inline void store_value(uint8_t *out, float x, unsigned form, float inverse)
{
    uint16_t half = form == UT_VALUE_FLOAT16 ? ut_f16_of_float(x) : ut_bf16_of_float(x);
    if (form == UT_VALUE_FLOAT32)
        memcpy(out, &x, 4);
    else if (form == UT_VALUE_FLOAT8)
        *out = f8_of_float(x * inverse);
    else
        memcpy(out, &half, 2);
}

static inline float load_value(const uint8_t *in, unsigned form, float scale)
{
    float x;
    uint16_t half;
    if (form == UT_VALUE_FLOAT8)
        return float_of_f8(*in) * scale;
    if (form == UT_VALUE_FLOAT32) {
        memcpy(&x, in, 4);
        return x;
    }
    memcpy(&half, in, 2);
    return form == UT_VALUE_FLOAT16 ? ut_float_of_f16(half) : ut_float_of_bf16(half);
}

float ut_value_rounded(float x, unsigned form, float scale)
{
    uint8_t bytes[4];
    if (form == UT_VALUE_FLOAT32)
        return x;
    store_value(bytes, x, form, 1 / scale);
    return load_value(bytes, form, scale);
}

/* Of -0 comes 0, for no entry is as much. Whole loops for each form, that the compiler may take several at once. */
static inline size_t finish_form(float *x, size_t n, unsigned form)
{
    size_t bad = 0;
    for (size_t i = 0; i < n; i++) {
        x[i] = ut_value_rounded(x[i], form, 1) + 0.0f;
        bad += (ut_float_bits(x[i]) & 0x7f800000) == 0x7f800000;
    }
    return bad;
}

size_t ut_sparse_finish(float *x, size_t n, uint32_t divisor, unsigned form)
{
    if (divisor > 1)
        (void)ut_finish(UT_FLOAT32, UT_AVG, 0, x, x, n, divisor);
    if (form == UT_VALUE_FLOAT32)
        return finish_form(x, n, UT_VALUE_FLOAT32);
    if (form == UT_VALUE_FLOAT16)
        return finish_form(x, n, UT_VALUE_FLOAT16);
    return finish_form(x, n, form);
}

size_t ut_sparse_scatter(float *out, const ut_block_shape *s, const void *x, const void *v, size_t n, float scale,
                         uint32_t more)
{
    const uint8_t *names = x, *values = v;
    uint32_t index[256];
    float row[UT_BLOCK_GROUP_MAX];
    for (size_t i = 0; i < n; i++) {
        if (i % 256 == 0)
            memcpy(index, names + 4 * i, 4 * UT_MIN2(n - i, (size_t)256));
        uint32_t at = index[i % 256];
        if (at >= s->units || at < more)
            return i;
        more = at + 1;
        memcpy(row, values + 4 * i * s->group, 4 * s->group);
        for (uint32_t k = 0; k < s->group; k++)
            out[(size_t)at * s->group + k] += ut_value_rounded(row[k], s->form, scale);
    }
    return n;
}

/* ---- sizes ---- */

uint32_t ut_granule_units(uint32_t group)
{
    return (UT_GRANULE_ELEMENTS + group - 1) / group;
}

uint32_t ut_block_granules(const ut_block_shape *s)
{
    uint32_t units = ut_granule_units(s->group);
    return (uint32_t)(((uint64_t)s->units + units - 1) / units);
}

static size_t head_bytes(unsigned form)
{
    return UT_BLOCK_HEADER + (form == UT_VALUE_FLOAT8 ? sizeof(float) : 0);
}

size_t ut_block_least(uint32_t group, unsigned form)
{
    return head_bytes(form) + (size_t)ut_granule_units(group) * group * ut_value_bytes(form);
}

uint32_t ut_block_count_most(const ut_block_shape *s, size_t payload)
{
    size_t granule = ut_block_least(s->group, s->form) - head_bytes(s->form);
    size_t each = (payload - head_bytes(s->form)) / granule;
    return (uint32_t)((ut_block_granules(s) + each - 1) / each);
}

/* The whole part of log2(units / entries), at most 15; found from |near|, that of a moment ago, without dividing. */
static unsigned low_bits(uint32_t entries, uint32_t units, unsigned near)
{
    if (entries == 0)
        return 0;
    while (near > 0 && (uint64_t)entries << near > units)
        near--;
    while (near < LOW_BITS_MAX && (uint64_t)entries << (near + 1) <= units)
        near++;
    return near;
}

/* Bits of the high part: a one for each entry, and room for the steps between. */
static uint64_t high_bits(uint32_t entries, uint32_t units, unsigned low)
{
    return entries ? (uint64_t)entries + ((units - 1) >> low) : 0;
}

static size_t index_bytes(unsigned index, uint32_t entries, uint32_t units, unsigned low)
{
    if (index == UT_INDEX_DENSE)
        return 0;
    if (index == UT_INDEX_BITMAP)
        return ((size_t)units + 7) / 8;
    return ((size_t)entries * low + 7) / 8 + (size_t)((high_bits(entries, units, low) + 7) / 8);
}

/* The smallest way to tell |entries| of |units|, with |low| bits of each apart in Elias-Fano, and the bytes of index
 * and values. */
static size_t smallest(const ut_block_shape *s, uint32_t entries, uint32_t units, unsigned low, unsigned *ret_index)
{
    size_t value = s->group * ut_value_bytes(s->form), best = units * value;
    *ret_index = UT_INDEX_DENSE;
    for (unsigned index = UT_INDEX_BITMAP; index < UT_INDEXES_END; index++) {
        size_t bytes = index_bytes(index, entries, units, low) + entries * value;
        if (bytes < best) {
            best = bytes;
            *ret_index = index;
        }
    }
    return best;
}

/* ---- encode ---- */

/* The units of a granule that are not all zero: their numbers, from |base| on, and values. Returns how many. */
static uint32_t gather(const float *from, uint32_t units, uint32_t group, uint32_t base, uint32_t *at, float *values)
{
    uint32_t found = 0;
    for (uint32_t u = 0; u < units; u++) {
        uint32_t any = 0;
        for (uint32_t k = 0; k < group; k++) {
            float x = from[(size_t)u * group + k];
            values[(size_t)found * group + k] = x;
            any |= ut_float_bits(x) << 1;
        }
        at[found] = base + u;
        found += any != 0;
    }
    return found;
}

/* The same of units of one element. */
static uint32_t gather_single(const float *from, uint64_t mask, uint32_t base, uint32_t *at, float *values)
{
    uint32_t found = 0;
    for (; mask; mask &= mask - 1, found++) {
        at[found] = base + (unsigned)__builtin_ctzll(mask);
        values[found] = from[__builtin_ctzll(mask)];
    }
    return found;
}

static bool all_zero(const float *x, size_t n)
{
    for (size_t i = 0; i < n; i += 64)
        if (ut_nonzero(x + i, UT_MIN2(n - i, (size_t)64)))
            return false;
    return true;
}

static void put_bit(uint8_t *out, uint64_t at)
{
    out[at >> 3] |= (uint8_t)(1 << (at & 7));
}

/* |out| is all zero. */
static void put_index(uint8_t *out, unsigned index, const uint32_t *at, uint32_t entries, unsigned low)
{
    const uint64_t high = ((uint64_t)entries * low + 7) / 8 * 8;
    uint64_t bits = 0;
    unsigned n_bits = 0;
    if (index == UT_INDEX_BITMAP)
        for (uint32_t i = 0; i < entries; i++)
            put_bit(out, at[i]);
    if (index != UT_INDEX_ELIAS_FANO)
        return;
    for (uint32_t i = 0; i < entries; i++)
        put_bit(out, high + (at[i] >> low) + i);
    for (uint32_t i = 0; i < entries; i++) {
        bits |= (uint64_t)(at[i] & ((1u << low) - 1)) << n_bits;
        for (n_bits += low; n_bits >= 8; n_bits -= 8, bits >>= 8)
            *out++ = (uint8_t)bits;
    }
    if (n_bits)
        *out = (uint8_t)bits;
}

size_t ut_block_encode(uint8_t *out, size_t room, const float *chunk, const ut_block_shape *s, uint32_t first,
                       float scale, uint32_t *ret_granules)
{
    uint32_t at[UT_BLOCK_VALUES_MAX + GRANULE_MAX];
    float values[UT_BLOCK_VALUES_MAX + 2 * GRANULE_MAX];
    uint32_t each = ut_granule_units(s->group), all = ut_block_granules(s), granule = first, entries = 0, units = 0;
    size_t head = head_bytes(s->form), bytes = head, value = ut_value_bytes(s->form);
    unsigned index = UT_INDEX_DENSE, low = 0;
    uint64_t seen = 0; /* of several granules of single elements */
    assert(first < all && room >= ut_block_least(s->group, s->form) && room <= UT_BLOCK_VALUES_MAX);
    for (; granule < all; granule++) {
        uint32_t some = UT_MIN2(each, s->units - granule * each), found = 0;
        const float *from = chunk + (size_t)granule * each * s->group;
        if (s->group == 1) {
            unsigned turn = (granule - first) % (64 / UT_GRANULE_ELEMENTS) * UT_GRANULE_ELEMENTS;
            if (turn == 0)
                seen = ut_nonzero(from, UT_MIN2(s->units - granule * each, 64u));
            found = gather_single(from, seen >> turn & ((1u << UT_GRANULE_ELEMENTS) - 1), units, at + entries,
                                  values + entries);
        } else if (!all_zero(from, (size_t)some * s->group))
            found = gather(from, some, s->group, units, at + entries, values + (size_t)entries * s->group);
        unsigned how;
        low = low_bits(entries + found, units + some, low);
        size_t size = head + smallest(s, entries + found, units + some, low, &how);
        if (size > room)
            break;
        bytes = size;
        index = how;
        entries += found;
        units += some;
    }
    low = index == UT_INDEX_ELIAS_FANO ? low_bits(entries, units, low) : 0;
    out[0] = (uint8_t)(index | s->form << 4);
    out[1] = (uint8_t)((granule == all ? UT_BLOCK_LAST : 0) | low << 4);
    uint32_t told = index == UT_INDEX_DENSE ? 0 : entries;
    out[2] = (uint8_t)told;
    out[3] = (uint8_t)(told >> 8);
    store32(out + 4, first);
    store32(out + 8, granule - first);
    if (s->form == UT_VALUE_FLOAT8)
        memcpy(out + UT_BLOCK_HEADER, &scale, sizeof scale);
    size_t names = index_bytes(index, entries, units, low);
    uint8_t *to = out + head + names;
    memset(out + head, 0, index == UT_INDEX_DENSE ? bytes - head : names);
    put_index(out + head, index, at, entries, low);
    if (index != UT_INDEX_DENSE && s->form == UT_VALUE_FLOAT32)
        memcpy(to, values, (size_t)entries * s->group * sizeof(float));
    else
        for (uint32_t i = 0; i < entries; i++) {
            uint8_t *unit = to + (index == UT_INDEX_DENSE ? at[i] : i) * s->group * value;
            for (uint32_t k = 0; k < s->group; k++)
                store_value(unit + k * value, values[(size_t)i * s->group + k], s->form, 1 / scale);
        }
    *ret_granules = granule - first;
    return bytes;
}

/* ---- decode ---- */

static uint32_t get_bits(const uint8_t *in, uint64_t at, unsigned n)
{
    uint32_t x = 0;
    const uint8_t *p = in + (at >> 3);
    unsigned skip = at & 7;
    for (unsigned got = 0; got < skip + n; got += 8)
        x |= (uint32_t)*p++ << got;
    return x >> skip & ((1u << n) - 1);
}

/* The numbers of the ones among |bits| bits, at most |room| of them. Returns how many there are, or room + 1. */
static uint32_t ones(uint32_t *ret, uint32_t room, const uint8_t *in, uint64_t bits)
{
    uint32_t found = 0;
    uint64_t len = (bits + 7) / 8;
    for (uint64_t byte = 0; byte < len; byte += 8) {
        uint64_t word = 0;
        for (uint64_t i = byte; i < UT_MIN2(len, byte + 8); i++)
            word |= (uint64_t)in[i] << 8 * (i - byte);
        for (; word; word &= word - 1) {
            uint64_t at = byte * 8 + (unsigned)__builtin_ctzll(word);
            if (found == room || at >= bits)
                return room + 1;
            ret[found++] = (uint32_t)at;
        }
    }
    return found;
}

static bool get_index(ut_block *b, const uint8_t *in, unsigned low)
{
    if (b->index == UT_INDEX_BITMAP)
        return ones(b->at, b->entries, in, b->units) == b->entries;
    const uint8_t *high = in + ((size_t)b->entries * low + 7) / 8;
    if (ones(b->at, b->entries, high, high_bits(b->entries, b->units, low)) != b->entries)
        return false;
    for (uint32_t i = 0; i < b->entries; i++) {
        uint64_t at = (uint64_t)(b->at[i] - i) << low | get_bits(in, (uint64_t)i * low, low);
        if (at >= b->units || (i > 0 && at <= b->at[i - 1]))
            return false;
        b->at[i] = (uint32_t)at;
    }
    return true;
}

int ut_block_open(ut_block *ret, const uint8_t *in, size_t len, const ut_block_shape *s)
{
    size_t head = head_bytes(s->form), value = s->group * ut_value_bytes(s->form);
    uint32_t each = ut_granule_units(s->group), all = ut_block_granules(s);
    if (len < head || (in[0] & 15) >= UT_INDEXES_END || in[0] >> 4 != s->form || (in[1] & 15) > UT_BLOCK_LAST)
        return UT_ERR_MALFORMED;
    unsigned low = in[1] >> 4;
    ret->index = in[0] & 15;
    ret->last = in[1] & UT_BLOCK_LAST;
    ret->entries = in[2] | (uint32_t)in[3] << 8;
    ret->first = load32(in + 4);
    ret->granules = load32(in + 8);
    if (ret->first >= all || ret->granules == 0 || ret->granules > all - ret->first ||
        ret->last != (ret->first + ret->granules == all) || (ret->index != UT_INDEX_ELIAS_FANO && low))
        return UT_ERR_MALFORMED;
    ret->base = ret->first * each;
    ret->units = (uint32_t)UT_MIN2((uint64_t)ret->granules * each, s->units - ret->base);
    if (ret->index == UT_INDEX_DENSE) {
        if (ret->entries)
            return UT_ERR_MALFORMED;
        ret->entries = ret->units;
    }
    size_t index = index_bytes(ret->index, ret->entries, ret->units, low);
    if (ret->entries > ret->units || ret->entries > len || index > len - head ||
        ret->entries * value > len - head - index)
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

static inline void add_form(const ut_block *b, uint32_t group, unsigned form, float *to)
{
    size_t value = ut_value_bytes(form);
    for (uint32_t i = 0; i < b->entries; i++) {
        float *unit = to + (size_t)(b->index == UT_INDEX_DENSE ? i : b->at[i]) * group;
        for (uint32_t k = 0; k < group; k++)
            unit[k] += load_value(b->values + ((size_t)i * group + k) * value, form, b->scale);
    }
}

void ut_block_add(const ut_block *b, const ut_block_shape *s, float *chunk)
{
    float *to = chunk + (size_t)b->base * s->group;
    if (s->form == UT_VALUE_FLOAT32 && s->group == 1) /* each form by itself, that the compiler may make loops of it */
        add_form(b, 1, UT_VALUE_FLOAT32, to);
    else if (s->form == UT_VALUE_FLOAT32)
        add_form(b, s->group, UT_VALUE_FLOAT32, to);
    else if (s->form == UT_VALUE_FLOAT16)
        add_form(b, s->group, UT_VALUE_FLOAT16, to);
    else
        add_form(b, s->group, s->form, to);
}

size_t ut_block_place(const ut_block *b, const ut_block_shape *s, float *chunk)
{
    size_t bad = 0, value = ut_value_bytes(s->form);
    float *to = chunk + (size_t)b->base * s->group;
    memset(to, 0, (size_t)b->units * s->group * sizeof *to);
    for (uint32_t i = 0; i < b->entries; i++) {
        float *unit = to + (size_t)(b->index == UT_INDEX_DENSE ? i : b->at[i]) * s->group;
        for (uint32_t k = 0; k < s->group; k++) {
            unit[k] = load_value(b->values + ((size_t)i * s->group + k) * value, s->form, b->scale);
            bad += (ut_float_bits(unit[k]) & 0x7f800000) == 0x7f800000;
        }
    }
    return bad;
}
