/* SPDX-License-Identifier: Apache-2.0
 *
 * Blocks of sparse tensors: golden bytes, round trips of any support against a twin that reads the bytes bit by bit,
 * and random bytes into the decoder. An index told one bit off, a range that is too long, padding that is decoded or a
 * value rounded twice shows as another element.
 */
#include "check.h"

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

static void blocks__tile_a_chunk_and_come_back(void)
{
    static ut_block b;
    unsigned seen[UT_INDEXES_END] = {0};
    for (unsigned round = 0; round < 600; round++) {
        const uint32_t groups[] = {1, 1, 1, 2, 3, 16, 24, 256};
        ut_block_shape s = {.group = groups[check_below(8)], .form = (uint8_t)check_below(UT_VALUE_FORMS_END)};
        s.units = 1 + (uint32_t)check_below(ELEMENTS / s.group);
        const unsigned rates[] = {0, 1, 10, 100, 500, 1000};
        (void)ut_kernels_init((enum ut_isa)check_below(UT_ISA_AVX512 + 1));
        draw(&s, rates[check_below(6)]);
        float scale = ut_float8_scale(ut_largest_finite(tensor, (size_t)s.units * s.group));
        size_t least = ut_block_least(s.group, s.form), room = least + check_below(ROOM_MAX - least + 1);
        uint32_t first = 0, blocks = 0, all = ut_block_granules(&s), granules;
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
            (void)ut_block_place(&b, &s, came);
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

static void scatter__adds_and_stops_at_a_bad_index(void)
{
    ut_block_shape s = {.units = 10, .group = 2};
    const float v[] = {1, 2, 3, 4, 5, 6};
    const uint32_t rows[][4] = {{0, 4, 9, 3}, {4, 4, 9, 1}, {4, 2, 9, 1}, {4, 10, 0, 1}, {10, 0, 0, 0}};
    for (unsigned i = 0; i < 5; i++) {
        memset(sum, 0, sizeof sum);
        CHECK_EQ(ut_sparse_scatter(sum, &s, rows[i], v, 3, 1, 0), rows[i][3]);
        CHECK_DOUBLE(sum[2 * (rows[i][0] % 10) + 1], rows[i][3] ? 2 : 0);
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
            (void)ut_block_place(&b, &s, came);
            ut_block_add(&b, &s, came);
            bool sound = b.base + b.units <= s.units && b.granules > 0;
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
    (void)ut_kernels_init(UT_ISA_AVX512);
    RUN(block__golden_bytes);
    RUN(values__round_as_defined);
    RUN(scatter__adds_and_stops_at_a_bad_index);
    RUN(blocks__tile_a_chunk_and_come_back);
    RUN(decoder__random_bytes);
    return check_end();
}
