/* SPDX-License-Identifier: Apache-2.0
 *
 * Linear codes: any n - s children decode, none more is needed, and what float32 loses on the wire stays small. That
 * the codes are those by which trainers compute is in tests/test_numbers.py.
 */
#include "check.h"

#include "core/base/bits.h"
#include "ext/coded/code.h"
#include "kernels/kernels.h"

#include <math.h>

enum { PARTS = 150 /* elements */ };

static ut_linear code;
static double encoding[64 * 64], coefficient[UT_CODE_CACHED * 64];
static uint64_t sets[UT_CODE_CACHED];

static void begin(uint32_t children, uint32_t late)
{
    ut_code_init(&code, children, late, encoding, sets, coefficient);
}

static uint64_t next_set(uint64_t set)
{
    uint64_t low = set & -set, over = set + low;
    return over | ((set ^ over) / low >> 2);
}

static const struct {
    uint32_t children, late;
} rows[] = {{1, 0}, {2, 1}, {3, 1}, {3, 2}, {4, 3}, {5, 0}, {5, 2}, {7, 3}, {9, 4}, {10, 3}, {11, 2}, {13, 4}};
enum { ROWS = sizeof rows / sizeof *rows };

static void decoding__gives_ones_for_each_set_that_is_enough(void)
{
    for (unsigned i = 0; i < ROWS; i++) {
        uint32_t n = rows[i].children, late = rows[i].late;
        begin(n, late);
        CHECK(ut_code_bears(n, late));
        for (uint64_t came = ut_bits_below(n - late); came < ut_bit(n); came = next_set(came)) {
            const double *a = ut_code_decoding(&code, came);
            CHECK_MSG(a, "(%u, %u): %" PRIx64 " does not decode", n, late, came);
            for (uint32_t part = 0; a && part < n; part++) {
                double sum = 0;
                for (uint32_t child = 0; child < n; child++) {
                    sum += a[child] * encoding[child * n + part];
                    CHECK((came >> child & 1) || a[child] == 0);
                }
                CHECK_MSG(fabs(sum - 1) < 1e-9, "(%u, %u) %" PRIx64 " part %u: %g", n, late, came, part, sum - 1);
            }
        }
    }
}

/* What a job is let in by looks at neighbours that are late alone. No other set is worse: whoever names a code that is
 * let in, no set of it goes beyond the limit. */
static void bears__is_what_all_sets_say(void)
{
    unsigned refused = 0;
    for (uint32_t n = 2; n <= 17; n++) {
        for (uint32_t late = 1; late < n; late++) {
            uint32_t beyond = 0;
            begin(n, late);
            for (uint64_t came = ut_bits_below(n - late); came < ut_bit(n); came = next_set(came))
                beyond += !ut_code_decoding(&code, came);
            CHECK_MSG(ut_code_bears(n, late) == !beyond, "(%u, %u): %u sets are beyond the limit", n, late, beyond);
            refused += beyond > 0;
        }
    }
    CHECK_MSG(refused > 5, "%u codes are refused", refused);
}

/* A part is held by late + 1 children, the same ones after each other. */
static void encoding__has_a_band(void)
{
    begin(7, 3);
    for (uint32_t child = 0; child < 7; child++)
        for (uint32_t part = 0; part < 7; part++)
            CHECK_EQ(encoding[child * 7 + part] != 0, (part + 7 - child) % 7 <= 3);
}

static void decoding__of_too_few_or_of_a_bad_code_is_none(void)
{
    begin(5, 2);
    CHECK(!ut_code_decoding(&code, 0x3));
    CHECK(ut_code_decoding(&code, 0x7));
    CHECK(!ut_code_bears(20, 6));
    CHECK(!ut_code_bears(40, 20));
    CHECK(ut_code_bears(64, 1));
    begin(20, 6);
    unsigned bad = 0;
    for (uint32_t first = 0; first <= 6; first++)
        bad += !ut_code_decoding(&code, ut_bits_below(14) << first);
    CHECK(bad > 0);
}

/* What the coefficients of one set are must not be taken for those of another. */
static void decoding__remembers_by_set(void)
{
    double first[64];
    begin(13, 4);
    uint64_t came = ut_bits_below(9);
    memcpy(first, ut_code_decoding(&code, came), 13 * sizeof *first);
    for (uint64_t other = next_set(came); other < ut_bit(13); other = next_set(other))
        CHECK(ut_code_decoding(&code, other)[__builtin_ctzll(~other)] == 0);
    CHECK_BYTES(ut_code_decoding(&code, came), first, 13 * sizeof *first);
}

/* Gradients of all parts, encoded, rounded to float32, decoded by the kernel: against their sum in double. */
static void wire__costs_less_than_4e_6(void)
{
    static float sent[13][PARTS], got[PARTS];
    static double gradient[13][PARTS];
    for (unsigned i = 0; i < ROWS; i++) {
        uint32_t n = rows[i].children, late = rows[i].late;
        double square = 0, wrong = 0;
        begin(n, late);
        for (uint32_t part = 0; part < n; part++)
            for (unsigned e = 0; e < PARTS; e++)
                gradient[part][e] = (double)check_below(2001) / 1000 - 1;
        for (uint32_t child = 0; child < n; child++)
            for (unsigned e = 0; e < PARTS; e++) {
                double sum = 0;
                for (uint32_t part = 0; part < n; part++)
                    sum += encoding[child * n + part] * gradient[part][e];
                sent[child][e] = (float)sum;
            }
        for (uint64_t came = ut_bits_below(n - late); came < ut_bit(n); came = next_set(came)) {
            const double *a = ut_code_decoding(&code, came);
            const void *from[13];
            double weight[13];
            unsigned k = 0;
            for (uint32_t child = 0; child < n; child++)
                if (came >> child & 1)
                    from[k] = sent[child], weight[k++] = a[child];
            ut_weigh(UT_FLOAT32, got, from, weight, k, PARTS, 1);
            double error = 0;
            square = 0;
            for (unsigned e = 0; e < PARTS; e++) {
                double sum = 0;
                for (uint32_t part = 0; part < n; part++)
                    sum += gradient[part][e];
                error += ((double)got[e] - sum) * ((double)got[e] - sum);
                square += sum * sum;
            }
            wrong = UT_MAX2(wrong, error / square);
        }
        CHECK_MSG(wrong < 4e-6 * 4e-6, "(%u, %u): %g", n, late, sqrt(wrong));
    }
}

static void weigh__any_count_and_both_types(void)
{
    for (unsigned count = 0; count < 200; count++) {
        float singles[2][200], single[201];
        double doubles[2][200], whole[201], weight[] = {0.5, -3};
        for (unsigned i = 0; i < count; i++)
            for (unsigned k = 0; k < 2; k++)
                doubles[k][i] = singles[k][i] = (float)check_below(1000);
        single[count] = 7;
        whole[count] = 7;
        ut_weigh(UT_FLOAT32, single, (const void *[]){singles[0], singles[1]}, weight, 2, count, 1);
        ut_weigh(UT_FLOAT64, whole, (const void *[]){doubles[0], doubles[1]}, weight, 2, count, 1);
        for (unsigned i = 0; i < count; i++) {
            CHECK_DOUBLE(whole[i], doubles[0][i] / 2 - 3 * doubles[1][i]);
            CHECK_DOUBLE((double)single[i], whole[i]);
        }
        CHECK(single[count] == 7 && whole[count] == 7);
    }
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(decoding__gives_ones_for_each_set_that_is_enough);
    RUN(bears__is_what_all_sets_say);
    RUN(encoding__has_a_band);
    RUN(decoding__of_too_few_or_of_a_bad_code_is_none);
    RUN(decoding__remembers_by_set);
    RUN(wire__costs_less_than_4e_6);
    RUN(weigh__any_count_and_both_types);
    return check_end();
}
