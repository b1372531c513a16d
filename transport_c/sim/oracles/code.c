/* SPDX-License-Identifier: Apache-2.0
 *
 * Fingerprint payloads. Rank r contributes unit * 4^r to each element of a sum, where the unit is a signed prime that
 * depends on job, op and element. A sum then reads like a base-4 number whose digits say how often each rank is in it:
 * digit 2 is a double fold, a remainder against the unit is data of another op or another place. An average is the same
 * sum over the number of ranks in it; it is read by looking for the set that gives exactly its bits.
 *
 * All values are exact in the dtype, so the order of folding cannot matter; that bounds the ranks of a job per dtype.
 * MIN, MAX and PROD take values from which the exact result is computed again.
 */
#include "sim/sim.h"

static const uint16_t prime[] = {5,   7,   11,  13,  17,  19,  23,  29,  31,  37,  41,  43,  47,  53,  59,  61,
                                 67,  71,  73,  79,  83,  89,  97,  101, 103, 107, 109, 113, 127, 131, 137, 139,
                                 149, 151, 157, 163, 167, 173, 179, 181, 191, 193, 197, 199, 211, 223, 227, 229};
enum { PRIMES = sizeof prime / sizeof prime[0] };

/* Bits of an integer that the dtype holds exactly. */
static unsigned exact_bits(unsigned dtype)
{
    switch (dtype) {
    case UT_FLOAT32:
        return 24;
    case UT_FLOAT64:
        return 53;
    case UT_FLOAT16:
        return 11;
    case UT_BFLOAT16:
        return 8;
    case UT_INT32:
        return 31;
    default:
        return 63;
    }
}

/* 64 values are summed, by every rank. */
static unsigned code_bits(const sim_code *code)
{
    return exact_bits(code->dtype) - (code->narrow ? 6 : 0);
}

/* Averages need the room that keeps two sets from rounding to the same quotient; sim_selftest proves these. */
uint32_t sim_code_ranks_max(unsigned dtype, unsigned redop)
{
    bool avg = redop == UT_AVG;
    switch (dtype) {
    case UT_FLOAT32:
        return avg ? 7 : 10;
    case UT_FLOAT64:
        return avg ? 10 : SIM_RANKS_DRAWN;
    case UT_FLOAT16:
        return 4;
    case UT_BFLOAT16:
        return avg ? 2 : 3;
    case UT_INT32:
        return avg ? 9 : 12;
    default:
        return avg ? 10 : SIM_RANKS_DRAWN;
    }
}

static uint64_t element_bits(const sim_code *code, uint64_t element)
{
    return sim_mix(code->seed ^ sim_mix(code->op_seq ^ (uint64_t)code->job << 56) ^ element * 0x9e3779b97f4a7c15u);
}

static int64_t unit_of(const sim_code *code, uint64_t element)
{
    uint64_t sum_max = 0;
    for (uint32_t r = 0; r < code->ranks; r++)
        sum_max = sum_max << 2 | 1;
    uint64_t limit = (UINT64_C(1) << code_bits(code)) / (sum_max ? sum_max : 1);
    uint64_t least = 0;
    if (code->redop == UT_AVG && (code->dtype == UT_INT32 || code->dtype == UT_INT64))
        least = (uint64_t)code->ranks * code->ranks;
    uint32_t first = 0, last = PRIMES;
    while (first + 1 < PRIMES && prime[first] <= least)
        first++;
    while (last > first + 1 && prime[last - 1] >= limit)
        last--;
    uint64_t bits = element_bits(code, element);
    int64_t unit = prime[first + bits % (last - first)];
    return bits >> 63 ? -unit : unit;
}

bool sim_code_nonfinite(const sim_code *code, uint64_t element)
{
    return code->nonfinite && code->dtype <= UT_BFLOAT16 && (element_bits(code, element) >> 20) % 13 == 0;
}

/* What rank r brings. */
static int64_t value_of(const sim_code *code, uint64_t element, uint32_t rank)
{
    switch (code->redop) {
    case UT_MIN:
    case UT_MAX:
        return (int64_t)(sim_mix(element_bits(code, element) + rank) % 255) - 127;
    case UT_PROD: {
        static const int64_t factor[4] = {1, -1, 2, -2};
        return factor[sim_mix(element_bits(code, element) + rank) % 4];
    }
    default:
        return unit_of(code, element) * (int64_t)(UINT64_C(1) << 2 * rank);
    }
}

static uint16_t half_bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, 4);
    uint32_t sign = u >> 16 & 0x8000, magnitude = u & 0x7fffffff;
    if (magnitude >= 0x7f800000)
        return (uint16_t)(sign | 0x7c00 | (magnitude > 0x7f800000 ? 0x200 : 0));
    if (magnitude < 0x38800000) { /* below 2^-14: a multiple of 2^-24 */
        float scaled = (sign ? -x : x) * 16777216.0f;
        uint32_t n = (uint32_t)scaled;
        float rest = scaled - (float)n;
        n += rest > 0.5f || (rest == 0.5f && (n & 1));
        return (uint16_t)(sign | n);
    }
    uint32_t n = (magnitude - 0x38000000) >> 13, rest = magnitude & 0x1fff;
    n += rest > 0x1000 || (rest == 0x1000 && (n & 1));
    return (uint16_t)(sign | UT_MIN2(n, 0x7c00u));
}

static uint16_t brain_bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, 4);
    uint32_t n = u >> 16, rest = u & 0xffff;
    if ((u & 0x7fffffff) < 0x7f800000)
        n += rest > 0x8000 || (rest == 0x8000 && (n & 1));
    return (uint16_t)n;
}

/* out = numerator / divisor as the dtype rounds it. */
void sim_code_put(unsigned dtype, int64_t numerator, int64_t divisor, void *out)
{
    float single = (float)numerator / (float)divisor;
    double twice = (double)numerator / (double)divisor;
    int64_t whole = numerator / divisor;
    int32_t narrow = (int32_t)whole;
    uint16_t half;
    switch (dtype) {
    case UT_FLOAT32:
        memcpy(out, &single, 4);
        break;
    case UT_FLOAT64:
        memcpy(out, &twice, 8);
        break;
    case UT_FLOAT16:
        half = half_bits(single);
        memcpy(out, &half, 2);
        break;
    case UT_BFLOAT16:
        half = brain_bits(single);
        memcpy(out, &half, 2);
        break;
    case UT_INT32:
        memcpy(out, &narrow, 4);
        break;
    default:
        memcpy(out, &whole, 8);
    }
}

static void put_infinite(unsigned dtype, void *out)
{
    static const float f32 = __builtin_inff();
    static const double f64 = __builtin_inf();
    static const uint16_t f16 = 0x7c00, b16 = 0x7f80;
    const void *from = dtype == UT_FLOAT32 ? (const void *)&f32 : dtype == UT_FLOAT64 ? (const void *)&f64 : &f16;
    memcpy(out, dtype == UT_BFLOAT16 ? &b16 : from, ut_dtype_bytes(dtype));
}

void sim_code_fill(const sim_code *code, uint32_t rank, void *out, uint64_t count)
{
    size_t bytes = ut_dtype_bytes(code->dtype);
    for (uint64_t i = 0; i < count; i++) {
        uint8_t *at = (uint8_t *)out + i * bytes;
        if (sim_code_nonfinite(code, i))
            put_infinite(code->dtype, at);
        else
            sim_code_put(code->dtype, value_of(code, i, rank), 1, at);
    }
}

static uint64_t spread(uint32_t ranks)
{
    uint64_t sum = 0;
    for (uint32_t r = 0; r < SIM_RANKS; r++)
        if (ranks >> r & 1)
            sum |= UINT64_C(1) << 2 * r;
    return sum;
}

void sim_code_expect(const sim_code *code, uint64_t element, uint32_t ranks, void *out)
{
    if (sim_code_nonfinite(code, element)) {
        put_infinite(code->dtype, out);
        return;
    }
    if (code->redop == UT_SUM || code->redop == UT_AVG) {
        int64_t sum = unit_of(code, element) * (int64_t)spread(ranks);
        sim_code_put(code->dtype, sum, code->redop == UT_AVG ? __builtin_popcount(ranks) : 1, out);
        return;
    }
    int64_t total = 0;
    bool first = true;
    for (uint32_t r = 0; r < SIM_RANKS; r++) {
        if (!(ranks >> r & 1))
            continue;
        int64_t x = value_of(code, element, r);
        if (first)
            total = x;
        else if (code->redop == UT_PROD)
            total *= x;
        else if (code->redop == UT_MIN ? x < total : x > total)
            total = x;
        first = false;
    }
    sim_code_put(code->dtype, total, 1, out);
}

static float half_value(uint16_t h)
{
    uint32_t exponent = h >> 10 & 31, mantissa = h & 1023;
    float x;
    if (exponent == 0) {
        x = (float)mantissa / 16777216.0f;
    } else {
        uint32_t u = (exponent == 31 ? 255 : exponent + 112) << 23 | mantissa << 13;
        memcpy(&x, &u, 4);
    }
    return h & 0x8000 ? -x : x;
}

/* An element as a number. */
double sim_code_real(unsigned dtype, const void *value)
{
    float single;
    double x;
    uint16_t half;
    uint32_t u;
    int32_t narrow;
    int64_t whole;
    switch (dtype) {
    case UT_INT64:
        memcpy(&whole, value, 8);
        return (double)whole;
    case UT_INT32:
        memcpy(&narrow, value, 4);
        return narrow;
    case UT_FLOAT64:
        memcpy(&x, value, 8);
        return x;
    case UT_FLOAT32:
        memcpy(&single, value, 4);
        return single;
    case UT_FLOAT16:
        memcpy(&half, value, 2);
        return half_value(half);
    default:
        memcpy(&half, value, 2);
        u = (uint32_t)half << 16;
        memcpy(&single, &u, 4);
        return single;
    }
}

/* The element as an integer; false if it is none. */
static bool get_whole(unsigned dtype, const void *value, int64_t *ret)
{
    if (dtype == UT_INT64) {
        memcpy(ret, value, 8);
        return true;
    }
    double x = sim_code_real(dtype, value);
    if (!(x > -9.0e15 && x < 9.0e15))
        return false;
    *ret = (int64_t)x;
    return (double)*ret == x;
}

static uint32_t read_sum(const sim_code *code, uint64_t element, const void *value, const char **reason)
{
    int64_t x, unit = unit_of(code, element);
    if (!get_whole(code->dtype, value, &x) || x % unit != 0) {
        *reason = "is no multiple of this element's unit: data of another op, another place, or none";
        return 0;
    }
    int64_t digits = x / unit;
    if (digits < 0 || digits >> 2 * code->ranks != 0) {
        *reason = "holds what no rank of the job contributed";
        return 0;
    }
    uint32_t ranks = 0;
    for (uint32_t r = 0; r < code->ranks; r++) {
        unsigned digit = digits >> 2 * r & 3;
        if (digit > 1) {
            *reason = "holds a rank more than once";
            return 0;
        }
        ranks |= digit << r;
    }
    if (ranks == 0)
        *reason = "holds nobody's contribution";
    return ranks;
}

static bool matches(const sim_code *code, uint64_t element, const void *value, uint32_t ranks)
{
    uint8_t expected[8];
    sim_code_expect(code, element, ranks, expected);
    return memcmp(expected, value, ut_dtype_bytes(code->dtype)) == 0;
}

bool sim_code_near(const sim_code *code, uint64_t element, const void *value, uint32_t ranks)
{
    float expected, x;
    sim_code_expect(code, element, ranks, &expected);
    memcpy(&x, value, sizeof x);
    return x > expected - 0.5f && x < expected + 0.5f;
}

uint32_t sim_code_read(const sim_code *code, uint64_t element, const void *value, uint32_t hint, const char **reason)
{
    if (hint && matches(code, element, value, hint))
        return hint;
    if (code->redop == UT_SUM && !sim_code_nonfinite(code, element))
        return read_sum(code, element, value, reason);
    for (uint32_t ranks = (1u << code->ranks) - 1; ranks; ranks--)
        if (matches(code, element, value, ranks))
            return ranks;
    *reason = code->redop == UT_AVG ? "is the average of no set of ranks" : "is the result of no set of ranks";
    return 0;
}
