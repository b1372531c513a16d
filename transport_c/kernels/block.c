/* SPDX-License-Identifier: Apache-2.0
 *
 * Blocks: what travels of a sparse tensor. See block.h for the bytes. An encoder takes as many granules as fit, and
 * tells their indices in the smallest way. Trainers may write where it reads entries: of a granule it reads each index
 * and each value once.
 */
#include "block_form.h"
#include "kernels.h"
#include "quant.h"
#include "sparse.h"

enum { LOW_BITS_MAX = 15, GRANULE_MAX = UT_BLOCK_GROUP_MAX };

/* ut_block_fit of the largest packet, the least granules and the smallest values that results have. */
_Static_assert(UT_BLOCK_RUNS_MAX >=
                   (UT_PACKET_MAX - UT_BLOCK_HEADER - 2) / (UT_GRANULE_ELEMENTS * UT_ANSWER_VALUE_BYTES + UT_BLOCK_RUN),
               "who is in a block has a run for each of its granules");

static void store16(uint8_t *p, uint32_t x)
{
    p[0] = (uint8_t)x;
    p[1] = (uint8_t)(x >> 8);
}

static void store32(uint8_t *p, uint32_t x)
{
    for (unsigned i = 0; i < 4; i++)
        p[i] = (uint8_t)(x >> 8 * i);
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

size_t ut_block_least(uint32_t group, unsigned form)
{
    return ut_block_head(form) + ut_block_who_bytes(1) + ut_values_bytes(form, (size_t)ut_granule_units(group) * group);
}

uint32_t ut_block_fit(uint32_t group, unsigned form, size_t payload)
{
    size_t once = ut_block_head(form) + 2 + (form == UT_VALUE_INT8 ? UT_QUANT_HEADER : 0);
    size_t granule = ut_block_least(group, form) - once; /* and its run, and of int8 scales of its own, which is more */
    return (uint32_t)((payload - once) / granule);
}

uint32_t ut_block_count_most(const ut_block_shape *s, size_t payload)
{
    uint32_t each = ut_block_fit(s->group, s->form, payload);
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

size_t ut_block_index_bytes(unsigned index, uint32_t entries, uint32_t units, unsigned low)
{
    if (index == UT_INDEX_DENSE)
        return 0;
    if (index == UT_INDEX_BITMAP)
        return ((size_t)units + 7) / 8;
    return ((size_t)entries * low + 7) / 8 + (size_t)((ut_block_high_bits(entries, units, low) + 7) / 8);
}

/* The smallest way to tell |entries| of |units|, with |low| bits of each apart in Elias-Fano, and the bytes of index
 * and values. */
static size_t smallest(const ut_block_shape *s, uint32_t entries, uint32_t units, unsigned low, unsigned *ret_index)
{
    size_t best = ut_values_bytes(s->form, (size_t)units * s->group);
    size_t values = ut_values_bytes(s->form, (size_t)entries * s->group);
    *ret_index = UT_INDEX_DENSE;
    for (unsigned index = UT_INDEX_BITMAP; index < UT_INDEXES_END; index++) {
        size_t bytes = ut_block_index_bytes(index, entries, units, low) + values;
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

/* What goes into a block: units in [0, units) of its range, and the values of those that have some. */
typedef struct content {
    uint32_t entries, units;
    size_t head;         /* bytes before the index */
    size_t spare;        /* bytes of the room that are certainly left */
    unsigned index, low; /* how indices are told; low bits of Elias-Fano for as many entries and units */
    size_t bytes;
    uint32_t at[UT_BLOCK_VALUES_MAX + GRANULE_MAX];
    float values[UT_BLOCK_VALUES_MAX + 2 * GRANULE_MAX];
} content;

static void start(content *c, size_t head)
{
    c->entries = c->units = c->low = 0;
    c->head = head;
    c->spare = 0;
}

/* The bytes of as many entries and units, and how they are told. */
static size_t measure(content *c, const ut_block_shape *s, uint32_t entries, uint32_t units)
{
    c->low = low_bits(entries, units, c->low);
    return c->head + smallest(s, entries, units, c->low, &c->index);
}

/* Whether |found| more entries and |some| more units fit into |room|; takes them in if so. It is measured only when it
 * could be too much. A bitmap or Elias-Fano grows by an entry's value, at most 15 low bits and a high one, and by a bit
 * for a unit at most; where the number of low bits changes the sizes meet. The rest is for rounding to whole bytes. But
 * a dense block grows by all of a unit, and the first entry of many units by all their high bits. */
static bool grow(content *c, const ut_block_shape *s, size_t room, uint32_t found, uint32_t some)
{
    size_t most = found * (s->group * ut_value_bytes(s->form) + 2) + some / 8 + 8;
    if (s->form == UT_VALUE_INT8) /* scales, and what comes before the first */
        most += (size_t)found * s->group / 64 + 1 + UT_QUANT_HEADER;
    if (most > c->spare) {
        size_t bytes = measure(c, s, c->entries + found, c->units + some);
        if (bytes > room)
            return false;
        c->spare = c->index == UT_INDEX_DENSE || c->entries + found == 0 ? 0 : room - bytes;
    } else
        c->spare -= most;
    c->entries += found;
    c->units += some;
    return true;
}

/* |who| as far as it tells of the block's |granules|; the block becomes smaller by the runs behind them. */
static void put_who(uint8_t *out, content *c, const ut_block_shape *s, const ut_block_who *who, uint32_t granules)
{
    uint8_t *at = out + ut_block_head(s->form) + 2;
    uint32_t runs = 0;
    for (uint32_t left = granules; left; runs++, at += UT_BLOCK_RUN) {
        uint32_t some = UT_MIN2(left, who->run[runs].granules);
        store16(at, some);
        store32(at + 2, (uint32_t)who->run[runs].hosts);
        store32(at + 6, (uint32_t)(who->run[runs].hosts >> 32));
        left -= some;
    }
    store16(out + ut_block_head(s->form), runs);
    out[1] |= UT_BLOCK_WHO;
    c->bytes -= (size_t)(who->runs - runs) * UT_BLOCK_RUN;
    c->head -= (size_t)(who->runs - runs) * UT_BLOCK_RUN;
}

/* Values of units that have none are zero: `values` becomes that of all units. */
static void spread(content *c, uint32_t group)
{
    const size_t row = group * sizeof(float);
    uint32_t next = c->units;
    for (uint32_t i = c->entries; i-- > 0; next = c->at[i]) {
        memmove(c->values + (size_t)c->at[i] * group, c->values + (size_t)i * group, row);
        memset(c->values + ((size_t)c->at[i] + 1) * group, 0, (next - c->at[i] - 1) * row);
    }
    memset(c->values, 0, next * row);
}

/* All values of a block as one slot. */
static void put_slot(uint8_t *to, content *c, const ut_block_shape *s)
{
    const ut_quant_rounding r = {.key = s->key, .divisor = 1};
    if (c->index == UT_INDEX_DENSE)
        spread(c, s->group);
    const uint32_t n = (c->index == UT_INDEX_DENSE ? c->units : c->entries) * s->group;
    if (n)
        (void)ut_quant_encode(UT_QUANT_INT8, to, c->values, NULL, n, &r, NULL);
}

static void put(uint8_t *out, content *c, const ut_block_shape *s, uint32_t first, uint32_t end,
                const ut_block_who *who, float scale)
{
    size_t value = ut_value_bytes(s->form);
    c->bytes = measure(c, s, c->entries, c->units);
    unsigned low = c->index == UT_INDEX_ELIAS_FANO ? c->low : 0;
    uint32_t told = c->index == UT_INDEX_DENSE ? 0 : c->entries;
    out[0] = (uint8_t)(c->index | s->form << 4);
    out[1] = (uint8_t)((end == ut_block_granules(s) ? UT_BLOCK_LAST : 0) | low << 4);
    store16(out + 2, told);
    store32(out + 4, first);
    store32(out + 8, end - first);
    if (s->form == UT_VALUE_FLOAT8)
        memcpy(out + UT_BLOCK_HEADER, &scale, sizeof scale);
    if (who)
        put_who(out, c, s, who, end - first);
    size_t head = c->head;
    size_t names = ut_block_index_bytes(c->index, c->entries, c->units, low);
    uint8_t *to = out + head + names;
    memset(out + head, 0, c->index == UT_INDEX_DENSE ? c->bytes - head : names);
    put_index(out + head, c->index, c->at, c->entries, low);
    if (s->form == UT_VALUE_INT8)
        put_slot(to, c, s);
    else if (c->index != UT_INDEX_DENSE && s->form == UT_VALUE_FLOAT32)
        memcpy(to, c->values, (size_t)c->entries * s->group * sizeof(float));
    else
        for (uint32_t i = 0; i < c->entries; i++) {
            uint8_t *unit = to + (c->index == UT_INDEX_DENSE ? c->at[i] : i) * s->group * value;
            for (uint32_t k = 0; k < s->group; k++)
                ut_value_store(unit + k * value, c->values[(size_t)i * s->group + k], s->form, 1 / scale);
        }
}

/* The dense chunk from granule |first| on, and below |end|. |who|: NULL where all hosts are in it. */
static size_t encode(uint8_t *out, size_t room, const float *chunk, const ut_block_shape *s, uint32_t first,
                     uint32_t end, const ut_block_who *who, float scale, uint32_t *ret_granules)
{
    content c; /* too large to be cleared */
    uint32_t each = ut_granule_units(s->group), granule = first;
    uint64_t seen = 0; /* of several granules of single elements */
    end = UT_MIN2(end, first + UT_BLOCK_ELEMENTS_MAX / (each * s->group));
    assert(first < end && end <= ut_block_granules(s));
    assert(room + ut_block_who_bytes(1) >= ut_block_least(s->group, s->form) && room <= UT_BLOCK_VALUES_MAX);
    start(&c, ut_block_head(s->form) + (who ? ut_block_who_bytes(who->runs) : 0));
    for (; granule < end; granule++) {
        uint32_t some = UT_MIN2(each, s->units - granule * each), found = 0;
        const float *from = chunk + (size_t)granule * each * s->group;
        if (s->group == 1) {
            unsigned turn = (granule - first) % (64 / UT_GRANULE_ELEMENTS) * UT_GRANULE_ELEMENTS;
            if (turn == 0)
                seen = ut_nonzero(from, UT_MIN2(s->units - granule * each, 64u));
            found = gather_single(from, seen >> turn & ((1u << UT_GRANULE_ELEMENTS) - 1), c.units, c.at + c.entries,
                                  c.values + c.entries);
        } else if (!all_zero(from, (size_t)some * s->group))
            found = gather(from, some, s->group, c.units, c.at + c.entries, c.values + (size_t)c.entries * s->group);
        if (!grow(&c, s, room, found, some))
            break;
    }
    assert(granule > first);
    put(out, &c, s, first, granule, who, scale);
    *ret_granules = granule - first;
    return c.bytes;
}

size_t ut_block_encode(uint8_t *out, size_t room, const float *chunk, const ut_block_shape *s, uint32_t first,
                       float scale, uint32_t *ret_granules)
{
    return encode(out, room, chunk, s, first, ut_block_granules(s), NULL, scale, ret_granules);
}

size_t ut_block_encode_who(uint8_t *out, size_t room, const float *chunk, const ut_block_shape *s, uint32_t first,
                           const ut_block_who *who, uint32_t *ret_granules)
{
    uint32_t end = first;
    for (uint32_t i = 0; i < who->runs; i++)
        end += who->run[i].granules;
    return encode(out, room, chunk, s, first, end, who, 1, ret_granules);
}

/* The entries of |e| from the next one on, of which |index| is the index that was read, to the end of its granule at
 * |end|; |base| is where the block begins. |e| goes on behind them. Returns how many have a value that is not zero.
 * Each index is read once: as they ascend from |index|, there are no more of them than the granule has units. */
static inline uint32_t gather_entries(content *c, ut_entries *e, uint32_t group, uint32_t base, uint32_t index,
                                      uint32_t end)
{
    uint32_t found = 0;
    for (; index != UINT32_MAX; index = e->next < e->n ? ut_entries_index(e, e->next, e->more, end) : UINT32_MAX) {
        uint32_t any = 0;
        float *row = c->values + (size_t)(c->entries + found) * group;
        memcpy(row, e->values + 4 * (size_t)e->next * group, 4 * group);
        for (uint32_t k = 0; k < group; k++)
            any |= ut_float_bits(row[k]) << 1;
        c->at[c->entries + found] = index - base;
        found += any != 0;
        e->next++;
        e->more = index + 1;
    }
    return found;
}

/* Goes from entry to entry; only where one does not fit any more it looks at the granules before that one by one. */
size_t ut_block_encode_entries(uint8_t *out, size_t room, ut_entries *e, const ut_block_shape *s, uint32_t base,
                               uint32_t first, float scale, uint32_t *ret_granules)
{
    content c;
    uint32_t each = ut_granule_units(s->group), all = ut_block_granules(s), granule = first;
    uint32_t from = base + first * each; /* the block's first unit */
    assert(first < all && room + ut_block_who_bytes(1) >= ut_block_least(s->group, s->form) &&
           room <= UT_BLOCK_VALUES_MAX);
    start(&c, ut_block_head(s->form));
    while (granule < all) {
        uint32_t index = UINT32_MAX;
        if (e->next < e->n)
            index = ut_entries_index(e, e->next, UT_MAX2(e->more, from + c.units), base + s->units);
        uint32_t with = index == UINT32_MAX ? all - 1 : (index - base) / each;
        uint32_t end = UT_MIN2((uint64_t)(with + 1) * each, s->units);
        ut_entries before = *e;
        uint32_t found = s->group == 1 ? gather_entries(&c, e, 1, from, index, base + end)
                                       : gather_entries(&c, e, s->group, from, index, base + end);
        if (grow(&c, s, room, found, base + end - from - c.units)) {
            granule = with + 1;
            continue;
        }
        *e = before;
        while (granule < with && grow(&c, s, room, 0, each))
            granule++;
        break;
    }
    put(out, &c, s, first, granule, NULL, scale);
    *ret_granules = granule - first;
    return c.bytes;
}
