/* SPDX-License-Identifier: Apache-2.0
 *
 * Blocks of sparse tensors: golden bytes, round trips of any support against a twin that reads the bytes bit by bit,
 * and random bytes into the decoder. An index told one bit off, a range that is too long, padding that is decoded or a
 * value rounded twice shows as another element.
 */
#include "check.h"

#include "core/base/mix.h"
#include "kernels/block.h"
#include "kernels/half.h"
#include "kernels/kernels.h"

#if defined(__SANITIZE_ADDRESS__)
enum { INPUTS = 10000000 };
#else
enum { INPUTS = 200000 };
#endif
enum { ELEMENTS = 24000, ROOM_MAX = 1440 };

static float tensor[ELEMENTS], came[ELEMENTS], sum[ELEMENTS];

/* A support of about |per_mille|, in runs now and then; values of few bits, so that all forms but float8 hold them. */
static void draw(const ut_block_shape *s, unsigned per_mille)
{
    memset(tensor, 0, sizeof tensor);
    for (uint32_t u = 0; u < s->units; u++)
        if (check_below(1000) < per_mille)
            for (uint32_t k = 0; k < s->group; k++)
                tensor[u * s->group + k] = (float)((int)check_below(15) - 7) * 0.5f;
}

/* What a block says, read by its definition. */
static void read_plainly(const uint8_t *b, const ut_block_shape *s, float *to)
{
    uint32_t first, granules, entries = b[2] | (uint32_t)b[3] << 8, each = (15 + s->group) / s->group;
    memcpy(&first, b + 4, 4);
    memcpy(&granules, b + 8, 4);
    uint32_t base = first * each, units = UT_MIN2(granules * each, s->units - base), low = b[1] >> 4, found = 0;
    const uint8_t *index = b + 12 + (s->form == UT_VALUE_FLOAT8 ? 4 : 0);
    float scale = 1;
    if (s->form == UT_VALUE_FLOAT8)
        memcpy(&scale, b + 12, 4);
    uint32_t low_bytes = (entries * low + 7) / 8, at[ROOM_MAX], high = 0;
    for (uint32_t bit = 0; (b[0] & 15) == UT_INDEX_ELIAS_FANO && found < entries; bit++)
        if (index[low_bytes + bit / 8] >> bit % 8 & 1) {
            uint32_t x = high << low;
            for (uint32_t l = 0; l < low; l++)
                x |= (uint32_t)(index[(found * low + l) / 8] >> (found * low + l) % 8 & 1) << l;
            at[found++] = x;
        } else {
            high++;
        }
    size_t bytes = 0;
    if ((b[0] & 15) == UT_INDEX_ELIAS_FANO)
        bytes = low_bytes + (entries ? (entries + ((units - 1) >> low) + 7) / 8 : 0);
    for (uint32_t u = 0; u < units && (b[0] & 15) != UT_INDEX_ELIAS_FANO; u++)
        if ((b[0] & 15) == UT_INDEX_DENSE || (index[u / 8] >> u % 8 & 1))
            at[found++] = u;
    if ((b[0] & 15) == UT_INDEX_BITMAP)
        bytes = (units + 7) / 8;
    for (uint32_t i = 0; i < found; i++)
        for (uint32_t k = 0; k < s->group; k++) {
            const uint8_t *v = index + bytes + (i * s->group + k) * ut_value_bytes(s->form);
            float x;
            uint16_t half;
            memcpy(&half, v, 2);
            memcpy(&x, v, 4);
            if (s->form == UT_VALUE_FLOAT8) {
                int e = *v >> 3 & 15, m = *v & 7;
                x = (e ? (float)(8 + m) * ut_float_of_bits((uint32_t)(e + 117) << 23) : (float)m * 0x1p-9f) * scale;
                x = *v & 0x80 ? -x : x;
            }
            to[(base + at[i]) * s->group + k] = s->form == UT_VALUE_FLOAT16    ? ut_float_of_f16(half)
                                                : s->form == UT_VALUE_BFLOAT16 ? ut_float_of_bf16(half)
                                                                               : x;
        }
}

static uint64_t plain_digest(const float *x, uint64_t n, uint64_t first)
{
    uint64_t digest = 0;
    for (uint64_t i = 0; i < n; i++)
        digest += x[i] == 0 ? 0 : ut_mix((uint64_t)ut_float_bits(x[i]) << 32 | (uint32_t)(first + i));
    return digest;
}

static void blocks__tile_a_chunk_and_come_back(void)
{
    static ut_block b;
    unsigned seen[UT_INDEXES_END] = {0};
    for (unsigned round = 0; round < 600; round++) {
        const uint32_t groups[] = {1, 1, 1, 2, 3, 16, 24, 256};
        ut_block_shape s = {.group = groups[check_below(8)], .form = (uint8_t)check_below(UT_VALUE_FORMS_END)};
        s.units = 1 + (uint32_t)check_below(ELEMENTS / s.group);
        const unsigned rates[] = {0, 1, 10, 100, 500, 1000};
        (void)ut_kernels_init((enum ut_isa)check_below(UT_ISA_BEST + 1));
        draw(&s, rates[check_below(6)]);
        float scale = ut_float8_scale(ut_largest_finite(tensor, (size_t)s.units * s.group));
        size_t least = ut_block_least(s.group, s.form), room = least + check_below(ROOM_MAX - least + 1);
        uint32_t first = 0, blocks = 0, all = ut_block_granules(&s), granules;
        uint64_t digest = 0;
        memset(came, 0xff, sizeof came);
        memset(sum, 0, sizeof sum);
        for (; first < all; first += granules, blocks++) {
            uint8_t *bytes = malloc(room + 4); /* read_plainly reads words */
            memset(bytes, 0xa5, room + 4);     /* padding of any kind */
            size_t n = ut_block_encode(bytes, room, tensor, &s, first, scale, &granules);
            CHECK(n <= room && granules > 0 && granules <= all - first);
            uint8_t *alone = malloc(n);
            memcpy(alone, bytes, n);
            if (!CHECK_EQ(ut_block_open(&b, alone, n, &s), UT_OK))
                break;
            CHECK(b.first == first && b.granules == granules && b.last == (first + granules == all));
            seen[b.index]++;
            (void)ut_block_place(&b, &s, came, 0, &digest);
            ut_block_add(&b, &s, sum);
            static float plain[ELEMENTS];
            memset(plain, 0, sizeof plain);
            read_plainly(bytes, &s, plain);
            for (uint32_t i = b.base * s.group; i < (b.base + b.units) * s.group; i++) {
                float want = tensor[i] == 0 ? 0 : ut_value_rounded(tensor[i], s.form, scale);
                if (!CHECK_DOUBLE(came[i], want) || !CHECK_DOUBLE(sum[i], want) || !CHECK_DOUBLE(plain[i], want))
                    break;
            }
            CHECK_EQ(ut_block_open(&b, bytes, room, &s), UT_OK); /* padded */
            if (n > UT_BLOCK_HEADER + 4)
                CHECK(ut_block_open(&b, alone, n - 1, &s) == UT_ERR_MALFORMED);
            free(alone);
            free(bytes);
        }
        CHECK(blocks <= ut_block_count_most(&s, room));
        CHECK_HEX(digest, plain_digest(came, (uint64_t)s.units * s.group, 0));
    }
    for (unsigned i = 0; i < UT_INDEXES_END; i++)
        CHECK_MSG(seen[i] > 50, "index form %u was made %u times", i, seen[i]);
}

static void block__golden_bytes(void)
{
    ut_block_shape s = {.units = 100, .group = 1};
    uint8_t out[200];
    uint32_t granules;
    memset(tensor, 0, sizeof tensor);
    tensor[3] = 1;
    tensor[40] = -2;
    tensor[99] = 0.5f;
    static const uint8_t elias_fano[] = {
        0x02, 0x51, 3,    0, 0, 0,    0,    0, 7, 0, 0,    0, /* low: 3, 8, 3; high: 0, 1, 3 */
        0x03, 0x0d, 0x25, 0, 0, 0x80, 0x3f, 0, 0, 0, 0xc0, 0, 0, 0, 0x3f};
    CHECK_EQ(ut_block_encode(out, sizeof out, tensor, &s, 0, 1, &granules), sizeof elias_fano);
    CHECK_EQ(granules, 7);
    CHECK_BYTES(out, elias_fano, sizeof elias_fano);
    s.units = 16;
    s.form = UT_VALUE_BFLOAT16;
    tensor[5] = tensor[6] = tensor[7] = tensor[8] = 3;
    static const uint8_t bitmap[] = {0x21, 0x01, 5,    0,    0,    0,    0,    0,    1,    0,    0,    0,
                                     0xe8, 0x01, 0x80, 0x3f, 0x40, 0x40, 0x40, 0x40, 0x40, 0x40, 0x40, 0x40};
    CHECK_EQ(ut_block_encode(out, sizeof out, tensor, &s, 0, 1, &granules), sizeof bitmap);
    CHECK_BYTES(out, bitmap, sizeof bitmap);
    s.units = 2;
    s.form = UT_VALUE_FLOAT8;
    tensor[0] = 448;
    tensor[1] = -0x1p-9f;
    static const uint8_t dense[] = {0x30, 0x01, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0x80, 0x3f, 0x7e, 0x81};
    CHECK_EQ(ut_block_encode(out, sizeof out, tensor, &s, 0, 1, &granules), sizeof dense);
    CHECK_BYTES(out, dense, sizeof dense);
    s.units = 33;
    s.form = UT_VALUE_FLOAT32;
    memset(tensor, 0, sizeof tensor);
    tensor[32] = 1;
    ut_block_who runs = {2, {{2, 0x8000000000000005}, {1, 0x06}}};
    static const uint8_t who[] = {0x02, 0x53, 1, 0,    0, 0, 0, 0, 3, 0, 0, 0, 2, 0, 2,    0,    5, 0, 0,    0,
                                  0,    0,    0, 0x80, 1, 0, 6, 0, 0, 0, 0, 0, 0, 0, 0x00, 0x02, 0, 0, 0x80, 0x3f};
    CHECK_EQ(ut_block_encode_who(out, sizeof out, tensor, &s, 0, &runs, &granules), sizeof who);
    CHECK_EQ(granules, 3);
    CHECK_BYTES(out, who, sizeof who);
}

/* Who is in results travels with them: as it was given, in as many blocks as room was set aside for, whatever the runs
 * are; and no block says it of a part of its range only. */
static void blocks__say_who_is_in_them(void)
{
    static ut_block b;
    for (unsigned round = 0; round < 400; round++) {
        const uint32_t groups[] = {1, 1, 1, 2, 3, 16, 24, 256};
        ut_block_shape s = {.group = groups[check_below(8)], .form = (uint8_t)check_below(UT_VALUE_FLOAT8)};
        s.units = 1 + (uint32_t)check_below(ELEMENTS / s.group);
        const unsigned rates[] = {0, 1, 10, 100, 500, 1000};
        draw(&s, rates[check_below(6)]);
        size_t least = ut_block_least(s.group, s.form), room = least + check_below(ROOM_MAX - least + 1);
        uint32_t all = ut_block_granules(&s), fit = ut_block_fit(s.group, s.form, room), longest, blocks = 0, granules;
        longest = 1 + (uint32_t)check_below(check_below(2) ? 3 : 200);
        uint64_t digest = 0;
        memset(came, 0xff, sizeof came);
        for (uint32_t first = 0; first < all; first += granules, blocks++) {
            ut_block_who who;
            who.runs = 0;
            for (uint32_t told = 0; told < fit && first + told < all; told += who.run[who.runs++].granules) {
                uint32_t run = 1 + (uint32_t)check_below(longest);
                who.run[who.runs] = (ut_block_run){UT_MIN2(run, all - first - told), check_random()};
            }
            uint8_t *bytes = malloc(room);
            memset(bytes, 0xa5, room);
            size_t n = ut_block_encode_who(bytes, room, tensor, &s, first, &who, &granules);
            if (!CHECK(n <= room) || !CHECK_EQ(ut_block_open(&b, bytes, n, &s), UT_OK) ||
                !CHECK(b.first == first && b.granules == granules && b.last == (first + granules == all)))
                return;
            uint32_t told = 0;
            for (uint32_t i = 0; i < b.runs; told += ut_block_run_at(&b, i++).granules) {
                CHECK_HEX(ut_block_run_at(&b, i).hosts, who.run[i].hosts);
                CHECK_EQ(ut_block_run_at(&b, i).granules, UT_MIN2(who.run[i].granules, granules - told));
            }
            CHECK_EQ(told, granules);
            (void)ut_block_place(&b, &s, came, 0, &digest);
            uint8_t *run = bytes + UT_BLOCK_HEADER + 2 + (b.runs - 1) * UT_BLOCK_RUN;
            run[0] += check_below(2) ? 1 : 255; /* one granule too many, or too few */
            CHECK_EQ(ut_block_open(&b, bytes, n, &s), UT_ERR_MALFORMED);
            bytes[UT_BLOCK_HEADER] = bytes[UT_BLOCK_HEADER + 1] = 0; /* no run at all */
            CHECK_EQ(ut_block_open(&b, bytes, n, &s), UT_ERR_MALFORMED);
            bytes[UT_BLOCK_HEADER + 1] = 0xff; /* more than the packet has */
            CHECK_EQ(ut_block_open(&b, bytes, n, &s), UT_ERR_MALFORMED);
            free(bytes);
        }
        CHECK(blocks <= ut_block_count_most(&s, room));
        for (uint32_t i = 0; i < s.units * s.group; i++)
            if (!CHECK_DOUBLE(came[i], tensor[i]))
                return;
    }
}

static void values__round_as_defined(void)
{
    static const float ROWS[][2] = {
        {448, 448},          {17, 16},           {19, 20},     {1.0625f, 1}, {1.1875f, 1.25f}, {0x1p-10f, 0},
        {0x3p-10f, 0x1p-8f}, {0x1p-6f, 0x1p-6f}, {-240, -240}, {500, 448}};
    for (unsigned i = 0; i < sizeof ROWS / sizeof *ROWS; i++) {
        CHECK_DOUBLE(ut_value_rounded(ROWS[i][0], UT_VALUE_FLOAT8, 1), ROWS[i][1]);
        CHECK_DOUBLE(ut_value_rounded(ROWS[i][0] * 0x1p50f, UT_VALUE_FLOAT8, 0x1p50f), ROWS[i][1] * 0x1p50f);
    }
    CHECK_DOUBLE(ut_float8_scale(448), 1);
    CHECK_DOUBLE(ut_float8_scale(448.1f), 2);
    CHECK_DOUBLE(ut_float8_scale(0x1p-3f * 448), 0x1p-3f);
    CHECK_DOUBLE(ut_float8_scale(0), 0x1p-117f);
    float bad = ut_value_rounded(__builtin_inff(), UT_VALUE_FLOAT8, 1);
    CHECK(bad != bad);
    float sums[] = {9, -0.0f, 1e30f, -3};
    CHECK_EQ(ut_sparse_finish(sums, 4, 3, UT_VALUE_FLOAT16), 1);
    CHECK_DOUBLE(sums[0], 3);
    CHECK(ut_float_bits(sums[1]) == 0);
    CHECK_DOUBLE(sums[3], -1);
}

/* Results of any length and form, on all instruction sets: a quotient that is rounded once, and no -0. */
static void results__are_rounded_once(void)
{
    static float x[3000], want[3000];
    for (unsigned round = 0; round < 60; round++) {
        size_t n = check_below(3001), bad = 0;
        unsigned form = (unsigned)check_below(UT_VALUE_FLOAT8);
        uint32_t divisor = 1 + (uint32_t)check_below(9);
        (void)ut_kernels_init((enum ut_isa)check_below(UT_ISA_BEST + 1));
        for (size_t i = 0; i < n; i++) {
            x[i] = ut_float_of_bits((uint32_t)check_random() & (check_below(3) ? 0xc7ffffff : 0x80000000));
            double exact = (double)x[i] / divisor;
            float odd = ut_float_odd_of_double(exact);
            want[i] = (form ? ut_value_rounded(odd, form, 1) : (float)exact) + 0.0f;
            bad += (ut_float_bits(want[i]) & 0x7f800000) == 0x7f800000;
        }
        CHECK_EQ(ut_sparse_finish(x, n, divisor, form), bad);
        for (size_t i = 0; i < n; i++)
            if (!CHECK_MSG(ut_float_bits(x[i]) == ut_float_bits(want[i]) || (x[i] != x[i] && want[i] != want[i]),
                           "form %u, divisor %u, element %zu: %a, not %a", form, divisor, i, x[i], want[i]))
                return;
    }
}

static void scatter__adds_and_stops_at_a_bad_index(void)
{
    ut_block_shape s = {.units = 10, .group = 2};
    const float v[] = {1, 2, 3, 4, 5, 6};
    const uint32_t rows[][4] = {{0, 4, 9, 3}, {4, 4, 9, 1}, {4, 2, 9, 1}, {4, 10, 0, 1}, {10, 0, 0, 0}};
    for (unsigned i = 0; i < 5; i++) {
        memset(sum, 0, sizeof sum);
        ut_entries e = {.names = (const uint8_t *)rows[i], .values = (const uint8_t *)v, .n = 3}, passed = e;
        CHECK_EQ(ut_entries_add(&e, sum, &s, 0, 3, 1), rows[i][3]);
        CHECK_DOUBLE(sum[2 * (rows[i][0] % 10) + 1], rows[i][3] ? 2 : 0);
        CHECK_EQ(ut_entries_skip(&passed, 10, 3), rows[i][3]);
    }
}

/* The entries of a support, in memory of just their size that is not aligned. */
static ut_entries entries_of(const ut_block_shape *s, uint8_t **ret)
{
    uint32_t n = 0, i = 0;
    for (unsigned pass = 0; pass < 2; pass++) {
        for (uint32_t u = 0; u < s->units; u++) {
            bool any = false;
            for (uint32_t k = 0; k < s->group; k++)
                any = any || tensor[u * s->group + k] != 0;
            if (!any)
                continue;
            if (pass == 0) {
                n++;
                continue;
            }
            memcpy(*ret + 1 + 4 * i, &u, 4);
            memcpy(*ret + 1 + 4 * (n + (size_t)i * s->group), tensor + (size_t)u * s->group, 4 * s->group);
            i++;
        }
        *ret = pass ? *ret : malloc(1 + 4 * (size_t)n * (1 + s->group));
    }
    return (ut_entries){.names = *ret + 1, .values = *ret + 1 + 4 * (size_t)n, .n = n};
}

/* Blocks made of entries say what those say that are made of the tensor, chunk by chunk, and are no more. */
static void entries__become_the_same_blocks(void)
{
    static ut_block b;
    for (unsigned round = 0; round < 400; round++) {
        const uint32_t groups[] = {1, 1, 1, 2, 3, 16, 24, 256};
        const unsigned rates[] = {0, 1, 10, 100, 500, 1000};
        ut_block_shape s = {.group = groups[check_below(8)], .form = (uint8_t)check_below(UT_VALUE_FORMS_END)};
        s.units = 1 + (uint32_t)check_below(ELEMENTS / s.group);
        draw(&s, rates[check_below(6)]);
        float scale = ut_float8_scale(ut_largest_finite(tensor, (size_t)s.units * s.group));
        size_t least = ut_block_least(s.group, s.form), room = least + check_below(ROOM_MAX - least + 1);
        uint8_t *memory = NULL;
        ut_entries e = entries_of(&s, &memory);
        uint32_t n = e.n, each = ut_granule_units(s.group), all = ut_block_granules(&s);
        uint32_t cut = (uint32_t)check_below(all + 1) * each, blocks = 0, plain = 0, granules;
        cut = UT_MIN2(cut, s.units);
        memset(came, 0xff, sizeof came);
        for (unsigned part = 0; part < 2; part++) { /* two chunks */
            uint32_t base = part ? cut : 0, entries = e.next;
            ut_block_shape chunk = {.units = part ? s.units - cut : cut, .group = s.group, .form = s.form};
            for (uint32_t first = 0; first < ut_block_granules(&chunk); first += granules, blocks++) {
                uint8_t *bytes = malloc(room);
                size_t len = ut_block_encode_entries(bytes, room, &e, &chunk, base, first, scale, &granules);
                uint64_t digest = 0;
                if (!CHECK(len <= room && granules > 0) || !CHECK_EQ(ut_block_open(&b, bytes, len, &chunk), UT_OK) ||
                    !CHECK(b.first == first && b.granules == granules))
                    return;
                (void)ut_block_place(&b, &chunk, came + (size_t)base * s.group, (uint64_t)base * s.group, &digest);
                size_t at = (size_t)(base + b.base) * s.group;
                CHECK_HEX(digest, ut_sparse_digest(came + at, (size_t)b.units * s.group, at));
                free(bytes);
            }
            for (uint32_t first = 0; first < ut_block_granules(&chunk); first += granules, plain++) {
                uint8_t bytes[ROOM_MAX];
                (void)ut_block_encode(bytes, room, tensor + (size_t)base * s.group, &chunk, first, scale, &granules);
            }
            ut_entries again = {e.names, e.values, n, entries, 0};
            memset(sum, 0, sizeof sum);
            CHECK_EQ(ut_entries_add(&again, sum, &chunk, base, n, scale), e.next - entries);
            for (uint32_t i = 0; i < chunk.units * s.group; i++) {
                float x = tensor[(size_t)base * s.group + i], want = x == 0 ? 0 : ut_value_rounded(x, s.form, scale);
                if (!CHECK_DOUBLE(came[(size_t)base * s.group + i], want) || !CHECK_DOUBLE(sum[i], want))
                    return;
            }
        }
        CHECK_EQ(e.next, n);
        CHECK_MSG(blocks <= plain + plain / 50, "%u blocks of entries, %u of the tensor", blocks, plain);
        free(memory);
    }
}

/* Entries that a trainer spoils while they are read make a block all the same, of what could still be believed. */
static void entries__may_change_while_they_are_read(void)
{
    static ut_block b;
    for (unsigned round = 0; round < 2000; round++) {
        uint32_t names[40], granules;
        ut_block_shape s = {.units = 1 + (uint32_t)check_below(700), .group = 1, .form = UT_VALUE_FLOAT32};
        for (unsigned i = 0; i < 40; i++)
            names[i] = check_below(6) ? 17 * i : (uint32_t)check_random();
        float values[40];
        for (unsigned i = 0; i < 40; i++)
            values[i] = 1;
        uint32_t base = (uint32_t)check_below(3) * 16;
        ut_entries e = {(const uint8_t *)names, (const uint8_t *)values, 40, (uint32_t)check_below(40), base};
        for (uint32_t first = 0; first < ut_block_granules(&s); first += granules) {
            uint8_t bytes[120];
            size_t n = ut_block_encode_entries(bytes, sizeof bytes, &e, &s, base, first, 1, &granules);
            if (!CHECK_EQ(ut_block_open(&b, bytes, n, &s), UT_OK) || !CHECK(b.first == first))
                return;
        }
    }
}

static void decoder__random_bytes(void)
{
    static ut_block b;
    uint64_t accepted = 0;
    uint8_t valid[96];
    for (unsigned i = 0; i < INPUTS; i++) {
        static ut_block_shape s;
        static size_t n;
        if (i % 64 == 0) {
            const uint32_t groups[] = {1, 1, 2, 5};
            s = (ut_block_shape){.group = groups[check_below(4)], .form = (uint8_t)check_below(UT_VALUE_FORMS_END)};
            s.units = 1 + (uint32_t)check_below(400);
            draw(&s, (unsigned)check_below(300));
            uint32_t granules;
            ut_block_who who = {1, {{ut_block_granules(&s), 5}}};
            if (s.group < 5 && check_below(2))
                n = ut_block_encode_who(valid, sizeof valid - 4, tensor, &s, 0, &who, &granules);
            else
                n = ut_block_encode(valid, sizeof valid - 4, tensor, &s, 0, 1, &granules);
        }
        size_t len = check_below(8) ? n : check_below(n + 8);
        uint8_t *in = malloc(len ? len : 1);
        bool mutate = check_below(4) != 0;
        for (size_t k = 0; k < len; k++)
            in[k] = mutate && k < n ? valid[k] : (uint8_t)check_random();
        for (uint64_t flips = check_below(4); mutate && len && flips; flips--)
            in[check_below(check_below(2) ? len : UT_MIN2(len, (size_t)12))] ^= (uint8_t)(1u << check_below(8));
        if (ut_block_open(&b, in, len, &s) == UT_OK) {
            accepted++;
            uint64_t digest = 0;
            (void)ut_block_place(&b, &s, came, 0, &digest);
            ut_block_add(&b, &s, came);
            bool sound = b.base + b.units <= s.units && b.granules > 0;
            uint32_t told = 0;
            for (uint32_t k = 0; k < b.runs; k++)
                told += ut_block_run_at(&b, k).granules;
            sound = sound && (b.runs == 0 || told == b.granules);
            for (uint32_t k = 0; k < b.entries && b.index != UT_INDEX_DENSE; k++)
                sound = sound && b.at[k] < b.units && (k == 0 || b.at[k] > b.at[k - 1]);
            CHECK(sound);
        }
        free(in);
    }
    CHECK_MSG(accepted > INPUTS / 20, "accepted %llu inputs", (unsigned long long)accepted);
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    (void)ut_kernels_init(UT_ISA_BEST);
    RUN(block__golden_bytes);
    RUN(blocks__say_who_is_in_them);
    RUN(values__round_as_defined);
    RUN(results__are_rounded_once);
    RUN(entries__become_the_same_blocks);
    RUN(entries__may_change_while_they_are_read);
    RUN(scatter__adds_and_stops_at_a_bad_index);
    RUN(blocks__tile_a_chunk_and_come_back);
    RUN(decoder__random_bytes);
    return check_end();
}
