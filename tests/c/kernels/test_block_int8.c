/* SPDX-License-Identifier: Apache-2.0
 *
 * Blocks whose values travel as int8: golden bytes, and round trips of any support on every instruction set. What comes
 * back is foretold from the values in their order by the definition of slots alone. A draw of another key, a value that
 * is one place off, a scale of the neighbour or a zero that is no longer one shows as another element.
 */
#include "check.h"

#include "kernels/block.h"
#include "kernels/half.h"
#include "kernels/kernels.h"
#include "kernels/quant.h"
#include "kernels/quant_slot.h"
#include "kernels/table.h"

enum { ELEMENTS = 24000, ROOM_MAX = 8928, NANS = 400 };

static float tensor[ELEMENTS], came[ELEMENTS], want[ELEMENTS];

/* A support of about |per_mille|; magnitudes of many octaves, now and then such as are flushed, or not finite. */
static void draw(const ut_block_shape *s, unsigned per_mille, bool nans)
{
    memset(tensor, 0, sizeof tensor);
    for (uint32_t u = 0; u < s->units; u++)
        for (uint32_t k = 0; k < s->group && check_below(1000) < per_mille; k++) {
            uint32_t bits = (uint32_t)check_random() & 0x80ffffff;
            bits |= (100 + (uint32_t)check_below(30)) << 23;
            if (check_below(50) == 0)
                bits = (bits & 0x807fffff) | (uint32_t)check_below(27) << 23; /* below 2^-100 */
            if (nans && check_below(NANS) == 0)
                bits = 0x7f800000 | (uint32_t)check_below(2) << 22;
            tensor[u * s->group + k] = ut_float_of_bits(bits);
        }
}

/* What the block says of its range, from what was to be said: all of it where it is dense, else the units that are not
 * all zero. Returns how many elements are not finite. */
static size_t foretell(const ut_block *b, const ut_block_shape *s)
{
    static float x[ELEMENTS];
    static uint32_t at[ELEMENTS];
    static uint8_t slot[2 * ROOM_MAX];
    uint32_t n = 0;
    ut_quant_told told;
    const uint32_t from = b->base * s->group, end = from + b->units * s->group;
    for (uint32_t u = from; u < end; u += s->group) {
        bool any = b->index == UT_INDEX_DENSE;
        for (uint32_t k = 0; k < s->group; k++)
            any = any || tensor[u + k] != 0;
        for (uint32_t k = 0; any && k < s->group; k++) {
            at[n] = u + k;
            x[n++] = tensor[u + k];
        }
    }
    for (uint32_t i = from; i < end; i++)
        want[i] = 0;
    if (n == 0)
        return 0;
    const ut_quant_rounding r = {.key = s->key, .divisor = 1};
    (void)ut_quant_plain.encode(UT_QUANT_INT8, slot, x, NULL, n, &r, &told);
    ut_quant_plain.decode(UT_QUANT_INT8, x, slot, n, false);
    for (uint32_t i = 0; i < n; i++)
        want[at[i]] = x[i];
    CHECK_DOUBLE(ut_block_error(b, s), told.error);
    return told.nonfinite;
}

static void blocks__come_back_as_foretold(void)
{
    static ut_block b;
    unsigned seen[UT_INDEXES_END] = {0};
    uint64_t bad = 0;
    for (unsigned round = 0; round < 400; round++) {
        const uint32_t groups[] = {1, 1, 1, 2, 3, 16, 24, 256};
        const unsigned rates[] = {0, 1, 10, 100, 500, 1000};
        ut_block_shape s = {.group = groups[check_below(8)], .form = UT_VALUE_INT8};
        s.units = 1 + (uint32_t)check_below(ELEMENTS / s.group);
        draw(&s, rates[check_below(6)], check_below(4) == 0);
        size_t least = ut_block_least(s.group, s.form), room = least + check_below(ROOM_MAX - least + 1);
        uint32_t first = 0, blocks = 0, all = ut_block_granules(&s), granules, other;
        uint64_t digest = 0;
        memset(came, 0xff, sizeof came);
        for (; first < all; first += granules, blocks++) {
            s.key = check_random();
            uint8_t *bytes = malloc(room), *again = malloc(room);
            (void)ut_kernels_init((enum ut_isa)check_below(UT_ISA_BEST + 1));
            size_t n = ut_block_encode(bytes, room, tensor, &s, first, 1, &granules);
            (void)ut_kernels_init((enum ut_isa)check_below(UT_ISA_BEST + 1));
            CHECK_EQ(ut_block_encode(again, room, tensor, &s, first, 1, &other), n);
            CHECK(other == granules && memcmp(bytes, again, n) == 0);
            CHECK(n <= room && granules > 0 && granules <= all - first);
            if (!CHECK_EQ(ut_block_open(&b, bytes, n, &s), UT_OK))
                break;
            seen[b.index]++;
            size_t nonfinite = ut_block_place(&b, &s, came, 0, &digest);
            bad += nonfinite;
            CHECK_EQ(nonfinite, foretell(&b, &s));
            for (uint32_t i = b.base * s.group; i < (b.base + b.units) * s.group; i++)
                if (!CHECK_HEX(ut_float_bits(came[i]), ut_float_bits(want[i])))
                    break;
            CHECK(ut_block_open(&b, bytes, n - 1, &s) == UT_ERR_MALFORMED);
            free(again);
            free(bytes);
        }
        CHECK(blocks <= ut_block_count_most(&s, room));
        CHECK_HEX(digest, ut_sparse_digest(came, (size_t)s.units * s.group, 0));
    }
    CHECK(bad > 100);
    for (unsigned i = 0; i < UT_INDEXES_END; i++)
        CHECK_MSG(seen[i] > 50, "index form %u was made %u times", i, seen[i]);
}

/* Who is in a block takes room of its values: each granule may hold others than the one before, and they still fit. */
static void blocks__say_who_is_in_them(void)
{
    static ut_block b;
    static ut_block_who who;
    for (unsigned round = 0; round < 100; round++) {
        const uint32_t groups[] = {1, 2, 16, 200};
        ut_block_shape s = {.group = groups[check_below(4)], .form = UT_VALUE_INT8, .key = round};
        s.units = ELEMENTS / s.group;
        draw(&s, 1000, false);
        size_t least = ut_block_least(s.group, s.form), room = least + check_below(ROOM_MAX - least + 1);
        uint32_t fit = ut_block_fit(s.group, s.form, room), granules, all = ut_block_granules(&s);
        uint8_t *bytes = malloc(room);
        uint64_t digest = 0;
        if (!CHECK(fit > 0 && fit <= UT_BLOCK_RUNS_MAX))
            break;
        for (who.runs = 0; who.runs < UT_MIN2(fit, all); who.runs++)
            who.run[who.runs] = (ut_block_run){1, check_random()};
        size_t n = ut_block_encode_who(bytes, room, tensor, &s, 0, &who, &granules);
        CHECK(n <= room && granules == who.runs);
        if (!CHECK_EQ(ut_block_open(&b, bytes, n, &s), UT_OK))
            break;
        CHECK_EQ(b.runs, who.runs);
        for (uint32_t i = 0; i < b.runs; i++)
            CHECK_HEX(ut_block_run_at(&b, i).hosts, who.run[i].hosts);
        (void)ut_block_place(&b, &s, came, 0, &digest);
        (void)foretell(&b, &s);
        CHECK(memcmp(came, want, (size_t)b.units * s.group * sizeof *came) == 0);
        free(bytes);
    }
}

/* PROTOCOL.md's block, and what is none. tests/dissector/test_block.py reads the same bytes. */
static void block__golden_bytes(void)
{
    static const uint8_t golden[] = {0x52, 0x31, 3,    0,    0,    0,
                                     0,    0,    2,    0,    0,    0,  /* Elias-Fano, three low bits, last */
                                     0xc3, 0x01, 0x25,                 /* 3, 0 and 7; then 0, 1 and 3 */
                                     5,    0x70, 0xf0, 0x7f, 0xc0, 0}; /* E = 112 and u = 240: a scale of 1 */
    static ut_block b;
    uint8_t bytes[64];
    uint32_t granules;
    uint64_t digest = 0;
    ut_block_shape s = {.units = 32, .group = 1, .form = UT_VALUE_INT8, .key = ut_quant_key(7, 1, 2, 0, 0)};
    memset(tensor, 0, sizeof tensor);
    tensor[3] = 127;
    tensor[8] = -64;
    tensor[31] = 0.25f; /* becomes 0 or 1, by the draw */
    size_t n = ut_block_encode(bytes, sizeof bytes, tensor, &s, 0, 1, &granules);
    CHECK_EQ(n, sizeof golden);
    CHECK(memcmp(bytes, golden, sizeof golden) == 0);
    s.key = ut_quant_key(9, 1, 2, 0, 0); /* of another op */
    CHECK_EQ(ut_block_encode(bytes, sizeof bytes, tensor, &s, 0, 1, &granules), n);
    CHECK_EQ(bytes[n - 1], 1);
    CHECK_EQ(ut_block_open(&b, bytes, n, &s), UT_OK);
    (void)ut_block_place(&b, &s, came, 0, &digest);
    CHECK_DOUBLE(came[3], 127);
    CHECK_DOUBLE(came[8], -64);
    CHECK_DOUBLE(came[31], 1);
    const struct {
        uint8_t at, as;
    } wrong[] = {{0, 0x02}, {0, 0x42}, {15, 4}, {15, 0x25}, {16, 240}, {2, 4}};
    for (unsigned i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        memcpy(bytes, golden, sizeof golden);
        bytes[wrong[i].at] = wrong[i].as;
        CHECK_MSG(ut_block_open(&b, bytes, n, &s) == UT_ERR_MALFORMED, "byte %u is %u", wrong[i].at, wrong[i].as);
    }
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(block__golden_bytes);
    RUN(blocks__come_back_as_foretold);
    RUN(blocks__say_who_is_in_them);
    return check_end();
}
