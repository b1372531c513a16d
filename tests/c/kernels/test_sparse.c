/* SPDX-License-Identifier: Apache-2.0
 *
 * The sparse kernels: every instruction set against a twin that is written differently here, round trips of any
 * support, and the examples of docs/papers.md, section 5.9. A lane too few or too many, a tie taken out of order, a
 * remainder that is off by the divisor, or a code that another host would read differently shows as another bit.
 */
#define _DEFAULT_SOURCE
#include "check.h"

#include <math.h>

#include "isas.h"
#include "kernels/kernels.h"
#include "kernels/sparse.h"

enum { N = 3000, ROUNDS = 150 };
static float add[N], first_kept[N], kept[N], velocity[N], first_velocity[N], values[N], want_kept[N], want_values[N];
static float want_velocity[N], norms[N], want_norms[N];
static uint32_t indices[N], want_indices[N], codes[N], want_codes[N], support[N], back[N];
static uint8_t packed[N * 16 + 64];

static uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* Few values, so that many tie; now and then NaN, Inf, a zero of either sign or a subnormal. */
static float coarse(void)
{
    static const float EDGES[] = {0, -0.0f, INFINITY, -INFINITY, NAN, 1e-42f, -1e-42f, 3e38f};
    const uint64_t draw = check_below(400);
    return draw < 8 ? EDGES[draw] : (float)((int)check_below(41) - 20) * 0.25f;
}

/* Ascending, each of [0, end) with a chance of |per_mille|. */
static size_t random_support(uint32_t *x, uint32_t end, unsigned per_mille)
{
    size_t n = 0;
    for (uint32_t i = 0; i < end; i++)
        if (check_below(1000) < per_mille)
            x[n++] = i;
    return n;
}

/* ---- selection ---- */

static size_t keep_twin(size_t n, uint32_t above, size_t ties, size_t room)
{
    size_t taken = 0;
    for (size_t i = 0; i < n; i++) {
        const uint32_t magnitude = bits_of(want_kept[i]) & 0x7fffffff;
        const bool tie = magnitude == above && ties > 0;
        if (taken < room && (magnitude > above || tie)) {
            want_indices[taken] = (uint32_t)i;
            want_values[taken++] = want_kept[i];
            want_kept[i] = 0;
            want_velocity[i] = 0;
            ties -= tie;
        }
    }
    return taken;
}

static void check_kept(const char *what, unsigned isa, size_t n, size_t got, size_t want)
{
    CHECK_MSG(got == want && memcmp(indices, want_indices, got * 4) == 0, "%s, isa %u, n %zu: %zu taken, want %zu",
              what, isa, n, got, want);
    CHECK_BYTES(values, want_values, want * 4);
    CHECK_BYTES(kept, want_kept, n * 4);
}

static void ut_keep__takes_what_its_twin_takes(void)
{
    for (unsigned round = 0; round < ROUNDS; round++) {
        const size_t n = check_below(round < 60 ? 70 : N), room = check_below(4) ? n : check_below(n + 1);
        const bool adding = check_below(2);
        for (size_t i = 0; i < n; i++) {
            add[i] = coarse();
            first_kept[i] = coarse();
            volatile const float sum = first_kept[i] + add[i]; /* in float32, whatever the compiler likes */
            want_kept[i] = adding ? sum : first_kept[i];
        }
        const uint32_t above = check_below(20) == 0 ? UINT32_MAX : check_below(20) == 0 ? 0 : bits_of(fabsf(coarse()));
        const size_t ties = check_below(3) ? check_below(n + 1) : 0;
        const size_t want = keep_twin(n, above, ties, room);
        FOR_EACH_ISA(isa)
        {
            memcpy(kept, first_kept, n * 4);
            const ut_selection s = {above, ties, indices, values, room};
            check_kept("keep", isa, n, ut_keep(kept, adding ? add : NULL, n, &s), want);
        }
    }
}

static void ut_keep_momentum__takes_what_its_twin_takes(void)
{
    for (unsigned round = 0; round < ROUNDS; round++) {
        const size_t n = check_below(N), room = check_below(3) ? n : check_below(n + 1);
        const float momentum = (float)check_below(1000) * 0.001f;
        for (size_t i = 0; i < n; i++) {
            add[i] = (float)(int64_t)check_random() * 0x1p-60f;
            first_kept[i] = coarse();
            first_velocity[i] = (float)(int64_t)check_random() * 0x1p-62f;
            const double product = (double)momentum * (double)first_velocity[i];
            volatile const double sum = product + (double)add[i];
            want_velocity[i] = (float)sum;
            want_kept[i] = first_kept[i] + want_velocity[i];
        }
        const uint32_t above = bits_of(fabsf(coarse()));
        const size_t ties = check_below(3), want = keep_twin(n, above, ties, room);
        FOR_EACH_ISA(isa)
        {
            memcpy(kept, first_kept, n * 4);
            memcpy(velocity, first_velocity, n * 4);
            const ut_selection s = {above, ties, indices, values, room};
            check_kept("keep_momentum", isa, n, ut_keep_momentum(kept, velocity, add, momentum, n, &s), want);
            CHECK_BYTES(velocity, want_velocity, n * 4);
        }
    }
}

/* Three calls narrow down the k-th largest magnitude, as Feedback does. */
/* NaN and the smallest subnormal are something, a zero of either sign is nothing. */
static void ut_nonzero__marks_what_is_something(void)
{
    for (unsigned round = 0; round < 4 * ROUNDS; round++) {
        const size_t n = check_below(65), from = check_below(8);
        uint64_t want = 0;
        for (size_t i = 0; i < n; i++) {
            add[from + i] = check_below(3) ? (check_below(2) ? 0 : -0.0f) : coarse();
            want |= (uint64_t)(isnan(add[from + i]) || add[from + i] < 0 || add[from + i] > 0) << i;
        }
        add[from + n] = 1; /* does not belong to it */
        FOR_EACH_ISA(isa)
        CHECK_HEX(ut_nonzero(add + from, n), want);
    }
}

static void ut_magnitudes__find_the_kth_largest(void)
{
    for (unsigned round = 0; round < 40; round++) {
        const size_t n = 1 + check_below(N - 1), k = 1 + check_below(n);
        for (size_t i = 0; i < n; i++)
            add[i] = round % 2 ? coarse() : (float)(int64_t)check_random() * 0x1p-62f;
        uint32_t prefix = 0;
        size_t left = k;
        static const unsigned SHIFTS[] = {20, 9, 0}, WIDTHS[] = {11, 11, 9};
        for (unsigned step = 0; step < 3; step++) {
            uint64_t counts[2048] = {0};
            ut_magnitudes(add, n, prefix, SHIFTS[step], WIDTHS[step], counts);
            uint32_t b = (1u << WIDTHS[step]) - 1;
            for (; counts[b] < left; b--)
                left -= counts[b];
            prefix = prefix << WIDTHS[step] | b;
        }
        size_t above = 0, same = 0;
        for (size_t i = 0; i < n; i++) {
            above += (bits_of(add[i]) & 0x7fffffff) > prefix;
            same += (bits_of(add[i]) & 0x7fffffff) == prefix;
        }
        CHECK_MSG(above < k && above + same >= k && left == k - above, "k %zu of %zu: %zu above, %zu equal, left %zu",
                  k, n, above, same, left);
    }
}

static void ut_scatter_add__adds_and_stops(void)
{
    float out[8] = {0};
    const uint32_t x[] = {1, 1, 7, 8, 2};
    const float v[] = {1, 2, 4, 8, 16};
    CHECK_EQ(ut_scatter_add(out, 8, x, v, 5), 3);
    CHECK(out[1] == 3 && out[7] == 4 && out[2] == 0);
}

/* ---- indices ---- */

static void ut_ascending__names_the_first_that_is_bad(void)
{
    static const struct {
        uint32_t x[4];
        size_t n, want;
        uint64_t end;
    } rows[] = {
        /* 0 */ {{0, 1, 2, 3}, 4, 4, 4},
        /* 1 */ {{0, 1, 1, 3}, 4, 2, 4},
        /* 2 */ {{0, 2, 1, 3}, 4, 2, 4},
        /* 3 */ {{0, 1, 2, 4}, 4, 3, 4},
        /* 4 */ {{4, 5, 6, 7}, 4, 0, 4},
        /* 5 */ {{0}, 0, 0, 0},
        /* 6 */ {{0}, 1, 0, 0},
        /* 7 */ {{UINT32_MAX}, 1, 1, 1ULL << 32},
    };
    for (size_t row = 0; row < sizeof rows / sizeof *rows; row++)
        CHECK_MSG(ut_ascending(rows[row].x, rows[row].n, rows[row].end) == rows[row].want, "row %zu", row);
}

static void check_back(const char *what, int error, size_t n, uint64_t end)
{
    CHECK_MSG(error == UT_OK && memcmp(back, support, n * 4) == 0, "%s: %zu of %llu: error %d", what, n,
              (unsigned long long)end, error);
}

static void indices__come_back(void)
{
    static const unsigned PER_MILLE[] = {0, 1, 10, 100, 500, 900, 999, 1000};
    for (unsigned round = 0; round < ROUNDS; round++) {
        const uint32_t end = (uint32_t)check_below(round < 60 ? 40 : N);
        const size_t n = random_support(support, end, PER_MILLE[check_below(8)]);
        memset(packed, 0, (end + 7) / 8);
        ut_bitmap_encode(packed, support, n);
        check_back("bitmap", ut_bitmap_decode(back, n, end, packed), n, end);
        size_t len = ut_gaps_encode(packed, support, n);
        check_back("gaps", ut_gaps_decode(back, n, end, packed, len), n, end);
        CHECK_MSG(len == 0 || ut_gaps_decode(back, n, end, packed, len - 1) == UT_ERR_MALFORMED, "gaps, cut");
        len = ut_runs_encode(packed, support, n, end);
        check_back("runs", ut_runs_decode(back, n, end, packed, len), n, end);
        CHECK_MSG(len == 0 || ut_runs_decode(back, n, end, packed, len - 1) == UT_ERR_MALFORMED, "runs, cut");
        const unsigned width = (unsigned)check_below(33);
        for (size_t i = 0; i < n; i++)
            support[i] = (uint32_t)(check_random() & ((1ULL << width) - 1));
        ut_bits_pack(packed, support, n, width);
        ut_bits_unpack(back, n, width, packed);
        check_back("bits", UT_OK, n, end);
    }
}

/* docs/papers.md, section 5.9: a 0, b 10, c 11. */
static void ut_prefix__spec_vector(void)
{
    static const char text[] = "aaaabaacaabaa";
    uint32_t code[256] = {['a'] = 1 << 16, ['b'] = 2 << 16 | 2, ['c'] = 2 << 16 | 3};
    const uint16_t table[4] = {1 << 8 | 'a', 1 << 8 | 'a', 2 << 8 | 'b', 2 << 8 | 'c'};
    uint8_t out[32], got[13];
    CHECK_EQ(ut_prefix_encode(out, code, (const uint8_t *)text, 13), 2);
    CHECK(out[0] == 0x08 && out[1] == 0xc8);
    CHECK_EQ(ut_prefix_decode(got, 13, table, 2, out, 2), UT_OK);
    CHECK_BYTES(got, (const uint8_t *)text, 13);
    CHECK_EQ(ut_prefix_decode(got, 13, table, 2, out, 1), UT_ERR_MALFORMED);
    CHECK_EQ(ut_prefix_decode(got, 4, table, 2, out, 2), UT_ERR_MALFORMED);  /* a byte too many */
    CHECK_EQ(ut_prefix_decode(got, 12, table, 2, out, 2), UT_OK);            /* the last code is a zero bit */
    CHECK_EQ(ut_prefix_decode(got, 10, table, 2, out, 2), UT_ERR_MALFORMED); /* bits left that are not zero */
    CHECK_EQ(ut_prefix_encode(out, code, (const uint8_t *)"ad", 2), UT_ERR_ARGUMENT);
}

/* ---- Bloom filters ---- */

static void ut_murmur3__known_answers(void)
{
    static const uint32_t want[2][4] = {{0x2362f9de, 0x78ed212d, 0x06dfadfc, 0x1ef30e51},
                                        {0x0e1bbb7e, 0x6bc871c0, 0x3585249e, 0xfcfc723a}};
    for (uint32_t seed = 0; seed < 4; seed++) {
        CHECK_HEX(ut_murmur3(0, seed), want[0][seed]);
        CHECK_HEX(ut_murmur3(5, seed), want[1][seed]);
    }
}

static void ut_bloom__spec_vectors(void)
{
    static const uint32_t s[] = {0, 5, 8, 9, 14}, positives[] = {0, 3, 4, 5, 7, 8, 9, 11, 14};
    static const uint8_t fine[3] = {0xc9, 0x5e, 0x62}, small[2] = {0x7a, 0x0e};
    FOR_EACH_ISA(isa)
    {
        uint8_t bits[4] = {0};
        ut_bloom_insert(bits, 24, 4, s, 5);
        CHECK_BYTES(bits, fine, 3);
        CHECK_EQ(ut_bloom_members(bits, 24, 4, 16, back, N), 5);
        CHECK_BYTES(back, s, sizeof s);
        memset(bits, 0, sizeof bits);
        ut_bloom_insert(bits, 13, 2, s, 5);
        CHECK_BYTES(bits, small, 2);
        CHECK_EQ(ut_bloom_members(bits, 13, 2, 16, back, 4), 9);
        CHECK_BYTES(back, positives, 4 * 4);
        CHECK_EQ(ut_bloom_members(bits, 13, 2, 16, back, N), 9);
        CHECK_BYTES(back, positives, sizeof positives);
    }
    /* The sets of docs/papers.md, section 5.9: 8 and 0 stand alone, and 9 and 14 follow whatever is drawn. */
    uint32_t scratch[200];
    unsigned others[16] = {0};
    CHECK(ut_bloom_choose_words(9, 13, 2) <= 200);
    for (uint64_t seed = 0; seed < 200; seed++) {
        uint8_t chosen[9];
        unsigned count = 0;
        ut_bloom_choose(chosen, positives, 9, 13, 2, 5, seed, scratch);
        for (unsigned i = 0; i < 9; i++)
            if (chosen[i]) {
                count++;
                others[positives[i]]++;
            }
        CHECK_EQ(count, 5);
    }
    CHECK(others[0] == 200 && others[8] == 200 && others[9] == 200 && others[14] == 200);
    CHECK(others[7] == 0 && others[11] == 0 && others[3] > 50 && others[4] + others[5] > 50);
    CHECK_EQ(others[3] + others[4] + others[5], 200);
}

static void ut_bloom__members_are_those_of_the_definition(void)
{
    static uint8_t bits[1024];
    static const uint32_t SIZES[] = {1, 2, 3, 31, 32, 33, 64, 1000, 8191, 8192};
    for (unsigned round = 0; round < 60; round++) {
        const uint32_t m = SIZES[check_below(10)], k = 1 + (uint32_t)check_below(UT_BLOOM_HASHES_MAX);
        const uint32_t end = (uint32_t)check_below(N);
        memset(bits, 0, sizeof bits);
        const size_t n = random_support(support, end, 20);
        ut_bloom_insert(bits, m, k, support, n);
        size_t want = 0;
        for (uint32_t x = 0; x < end; x++) {
            bool in = true;
            for (uint32_t i = 0; i < k; i++) {
                const uint32_t bit = ut_murmur3(x, i) % m;
                in &= bits[bit / 8] >> bit % 8 & 1;
            }
            if (in)
                want_indices[want++] = x;
        }
        CHECK(want >= n);
        FOR_EACH_ISA(isa)
        {
            const size_t got = ut_bloom_members(bits, m, k, end, back, N);
            CHECK_MSG(got == want && memcmp(back, want_indices, want * 4) == 0, "isa %u, m %u, k %u, end %u: %zu, %zu",
                      isa, m, k, end, got, want);
        }
    }
}

/* The remainder by a product with the inverse, where it is nearest to failing: multiples of the divisor. */
static void ut_bloom__remainders_are_exact(void)
{
    static uint8_t bits[1 << 17];
    memset(bits, 0, sizeof bits);
    /* For these, q * m * (1 / m) falls short of q for some q. */
    static const uint32_t SHORT[] = {49, 98, 103, 107, 161, 187, 197, 206};
    for (unsigned round = 0; round < 20; round++) {
        const uint32_t m = round < 8 ? SHORT[round] : 2 + (uint32_t)check_below((1 << 20) - 2);
        size_t want = 0;
        memset(bits, 0, sizeof bits);
        bits[0] = 1; /* only a hash that m divides is a member */
        for (uint32_t x = 0; x < 60000; x++)
            if (ut_murmur3(x, 0) % m == 0 && want < N)
                want_indices[want++] = x;
        FOR_EACH_ISA(isa)
        {
            const size_t got = UT_MIN2(ut_bloom_members(bits, m, 1, 60000, back, N), (size_t)N);
            CHECK_MSG(got == want && memcmp(back, want_indices, want * 4) == 0, "isa %u, m %u", isa, m);
        }
    }
}

/* One set with all members: nothing may be quadratic, for a hostile filter looks so. */
static void ut_bloom_choose__all_in_one_set(void)
{
    enum { MANY = 200000 };
    static uint32_t p[MANY], scratch[3 + MANY * 2 + 2];
    static uint8_t chosen[MANY];
    for (uint32_t i = 0; i < MANY; i++)
        p[i] = i;
    ut_bloom_choose(chosen, p, MANY, 1, 1, MANY - 1, 7, scratch);
    size_t count = 0;
    for (size_t i = 0; i < MANY; i++)
        count += chosen[i];
    CHECK_EQ(count, MANY - 1);
}

/* ---- QSGD ---- */

static void ut_qsgd__spec_vector(void)
{
    const float v[2] = {3, -4};
    FOR_EACH_ISA(isa)
    {
        ut_qsgd_encode(norms, codes, v, 2, 512, 8, 1);
        CHECK(norms[0] == 5);
        const unsigned a = codes[0], b = codes[1] & 127;
        CHECK_MSG((a == 76 || a == 77) && (b == 101 || b == 102) && codes[1] >> 7 == 1, "%u %u", a, b);
        codes[0] = 76;
        codes[1] = 128 | 102;
        ut_qsgd_decode(values, norms, codes, 2, 512, 8);
        CHECK(fabsf(values[0] - 2.992126f) < 1e-6f && fabsf(values[1] + 4.015748f) < 1e-6f);
    }
}

static void ut_qsgd__all_instruction_sets_alike(void)
{
    for (unsigned round = 0; round < 60; round++) {
        const size_t n = check_below(N), bucket = 1 + check_below(700);
        const unsigned bits = 2 + (unsigned)check_below(15);
        const uint32_t seed = (uint32_t)check_random();
        for (size_t i = 0; i < n; i++)
            add[i] = check_below(50) ? (float)(int64_t)check_random() * 0x1p-60f : 0;
        (void)ut_kernels_init(UT_ISA_PLAIN);
        ut_qsgd_encode(want_norms, want_codes, add, n, bucket, bits, seed);
        ut_qsgd_decode(want_values, want_norms, want_codes, n, bucket, bits);
        const float most = (float)((1 << (bits - 1)) - 1);
        for (size_t i = 0; i < n; i++) {
            const float unit = want_norms[i / bucket] / most;
            CHECK_MSG(fabsf(want_values[i] - add[i]) <= unit * 1.001f, "value %zu", i);
        }
        FOR_EACH_ISA(isa)
        {
            ut_qsgd_encode(norms, codes, add, n, bucket, bits, seed);
            ut_qsgd_decode(values, norms, codes, n, bucket, bits);
            CHECK_BYTES(norms, want_norms, (n + bucket - 1) / bucket * 4);
            CHECK_BYTES(codes, want_codes, n * 4);
            CHECK_BYTES(values, want_values, n * 4);
        }
    }
}

/* A value that is its bucket's norm has the highest level, and a rounding up beyond it would turn its sign. */
static void ut_qsgd__the_norm_itself_keeps_its_sign(void)
{
    for (size_t i = 0; i < N; i++)
        add[i] = 1.0f + (float)check_below(1 << 20) * 0x1p-20f;
    FOR_EACH_ISA(isa)
    {
        ut_qsgd_encode(norms, codes, add, N, 1, 16, 5);
        ut_qsgd_decode(values, norms, codes, N, 1, 16);
        for (size_t i = 0; i < N; i++)
            CHECK_MSG(fabsf(values[i] - add[i]) < 1e-4f, "isa %u, value %zu: %g of %g", isa, i, (double)values[i],
                      (double)add[i]);
    }
}

/* The mean over seeds is the value itself. */
static void ut_qsgd__is_unbiased(void)
{
    enum { SEEDS = 4000 };
    const float v[4] = {0.3f, -0.9f, 0.01f, 0.5f};
    double mean[4] = {0};
    for (uint32_t seed = 0; seed < SEEDS; seed++) {
        ut_qsgd_encode(norms, codes, v, 4, 4, 3, seed);
        ut_qsgd_decode(values, norms, codes, 4, 4, 3);
        for (unsigned i = 0; i < 4; i++)
            mean[i] += (double)values[i] / SEEDS;
    }
    for (unsigned i = 0; i < 4; i++)
        CHECK_MSG(fabs(mean[i] - (double)v[i]) < 0.02, "value %u: %.4f", i, mean[i]);
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(ut_keep__takes_what_its_twin_takes);
    RUN(ut_keep_momentum__takes_what_its_twin_takes);
    RUN(ut_nonzero__marks_what_is_something);
    RUN(ut_magnitudes__find_the_kth_largest);
    RUN(ut_scatter_add__adds_and_stops);
    RUN(ut_ascending__names_the_first_that_is_bad);
    RUN(indices__come_back);
    RUN(ut_prefix__spec_vector);
    RUN(ut_murmur3__known_answers);
    RUN(ut_bloom__spec_vectors);
    RUN(ut_bloom__members_are_those_of_the_definition);
    RUN(ut_bloom__remainders_are_exact);
    RUN(ut_bloom_choose__all_in_one_set);
    RUN(ut_qsgd__spec_vector);
    RUN(ut_qsgd__all_instruction_sets_alike);
    RUN(ut_qsgd__the_norm_itself_keeps_its_sign);
    RUN(ut_qsgd__is_unbiased);
    return check_end();
}
