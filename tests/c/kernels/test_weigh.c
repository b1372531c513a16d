/* SPDX-License-Identifier: Apache-2.0
 *
 * Weighted sums and means: each instruction set against one element at a time in double, to the bit, for lengths around
 * those of vectors and blocks, and no byte beyond them is written or counts.
 */
#include "check.h"
#include "isas.h"

#include "kernels/half.h"

#include <math.h>

enum { MOST = 200, SOURCES = 3, ROOM = MOST * 8 + 64 };

static const unsigned dtypes[] = {UT_FLOAT32, UT_FLOAT64, UT_FLOAT16, UT_BFLOAT16};

static void put(unsigned dtype, uint8_t *at, double x)
{
    const float single = (float)x;
    const uint16_t half = dtype == UT_FLOAT16 ? ut_f16_of_float(single) : ut_bf16_of_float(single);
    const void *from = dtype == UT_FLOAT64 ? (const void *)&x : dtype == UT_FLOAT32 ? (const void *)&single : &half;
    memcpy(at, from, ut_dtype_bytes(dtype));
}

static double get(unsigned dtype, const uint8_t *at)
{
    double x;
    float single;
    uint16_t half;
    switch (dtype) {
    case UT_FLOAT64:
        return memcpy(&x, at, 8), x;
    case UT_FLOAT32:
        return memcpy(&single, at, 4), (double)single;
    default:
        memcpy(&half, at, 2);
        return (double)(dtype == UT_FLOAT16 ? ut_float_of_f16(half) : ut_float_of_bf16(half));
    }
}

/* Mostly near 1; some that no float16 holds, some that are subnormal there, infinities; no NaN, which may be another.
 */
static double any_value(void)
{
    const uint64_t kind = check_below(40);
    const double x = ((double)check_below(1u << 30) - 0x1p29) * 0x1p-29;
    return kind == 0 ? x * 0x1p40 : kind == 1 ? x * 0x1p-20 : kind == 2 ? 0 : kind == 3 ? copysign(INFINITY, x) : x;
}

static void fill(unsigned dtype, uint8_t *p, size_t n)
{
    memset(p, 0xff, ROOM); /* NaN, behind what is read */
    for (size_t i = 0; i < n; i++)
        put(dtype, p + i * ut_dtype_bytes(dtype), any_value());
}

static void check_same(unsigned dtype, size_t n, const uint8_t *got, const uint8_t *want, const char *isa,
                       const char *what)
{
    const size_t element = ut_dtype_bytes(dtype);
    for (size_t i = 0; i < n; i++) {
        const double a = get(dtype, got + i * element), b = get(dtype, want + i * element);
        CHECK_MSG(memcmp(got + i * element, want + i * element, element) == 0 || (isnan(a) && isnan(b)),
                  "%s, %s, dtype %u, element %zu of %zu: %.17g, not %.17g", isa, what, dtype, i, n, a, b);
    }
    for (size_t i = n * element; i < ROOM; i++)
        CHECK_MSG(got[i] == 0x5a, "%s, %s, dtype %u, %zu elements: byte %zu was written", isa, what, dtype, n, i);
}

static uint8_t sources[SOURCES][ROOM], acc[ROOM], before[ROOM], got[ROOM + 1], want[ROOM];
static const double weights[SOURCES] = {3, 1.0 / 7, 16777215};

static void check_weigh(unsigned dtype, size_t n, const char *isa)
{
    const void *from[SOURCES] = {sources[0], sources[1], sources[2]};
    const size_t element = ut_dtype_bytes(dtype);
    const double divisor = check_below(2) ? 3 : 1;
    for (size_t i = 0; i < n; i++) {
        double sum = 0;
        for (unsigned j = 0; j < SOURCES; j++)
            sum += weights[j] * get(dtype, sources[j] + i * element);
        put(dtype, want + i * element, divisor != 1 ? sum / divisor : sum);
    }
    memset(got, 0x5a, sizeof got);
    ut_weigh(dtype, got, from, weights, SOURCES, n, divisor);
    check_same(dtype, n, got, want, isa, "weigh");
}

static void check_in(unsigned dtype, size_t n, const char *isa)
{
    const unsigned kept = dtype == UT_FLOAT64 ? UT_FLOAT64 : UT_FLOAT32;
    const size_t element = ut_dtype_bytes(dtype), wide = ut_dtype_bytes(kept);
    const bool first = check_below(3) == 0;
    const double weight = check_below(4) ? (double)check_below(1 << 24) : 0;
    fill(kept, before, n);
    for (size_t i = 0; i < n; i++) {
        const double sum = first ? 0 : get(kept, before + i * wide);
        put(kept, want + i * wide, sum + weight * (weight != 0 ? get(dtype, sources[0] + i * element) : 0));
    }
    memset(got, 0x5a, sizeof got);
    memcpy(got, before, n * wide);
    ut_weigh_in(dtype, got, sources[0], weight, first, n);
    check_same(kept, n, got, want, isa, "weigh in");
}

static void check_out(unsigned dtype, size_t n, const char *isa)
{
    const unsigned kept = dtype == UT_FLOAT64 ? UT_FLOAT64 : UT_FLOAT32;
    const size_t element = ut_dtype_bytes(dtype), wide = ut_dtype_bytes(kept);
    size_t bad = 0;
    fill(kept, acc, n);
    for (size_t i = 0; i < n; i++) {
        put(dtype, want + i * element, get(kept, acc + i * wide) / 1234567);
        bad += !isfinite(get(dtype, want + i * element));
    }
    memset(got, 0x5a, sizeof got);
    CHECK_EQ(ut_weigh_out(dtype, got, acc, 1234567, n), bad);
    check_same(dtype, n, got, want, isa, "weigh out");
    memcpy(got, acc, n * wide); /* in place, where the two are of one type */
    if (kept == dtype) {
        (void)ut_weigh_out(dtype, got, got, 1234567, n);
        check_same(dtype, n, got, want, isa, "weigh out in place");
    }
}

static void weigh__same_bits_on_all(void)
{
    FOR_EACH_ISA(isa)
    for (unsigned d = 0; d < 4; d++)
        for (size_t n = 0; n <= MOST; n++) {
            for (unsigned j = 0; j < SOURCES; j++)
                fill(dtypes[d], sources[j], n);
            check_weigh(dtypes[d], n, ISA_NAMES[isa]);
            check_in(dtypes[d], n, ISA_NAMES[isa]);
            check_out(dtypes[d], n, ISA_NAMES[isa]);
        }
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(weigh__same_bits_on_all);
    return check_end();
}
