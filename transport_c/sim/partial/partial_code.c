/* SPDX-License-Identifier: Apache-2.0
 *
 * Fingerprints of contributions to partial jobs. Each rank has some bits of a number for itself; what stands there
 * says which of its contributions it is, by a digit that differs from element to element. So a sum tells of each of its
 * elements who is in it and with what, whatever op it was given for. All values are exact in the dtype.
 */
#include "sim/partial/partial.h"

static unsigned exact_bits(unsigned dtype)
{
    static const uint8_t bits[] = {[UT_FLOAT32] = 24, [UT_FLOAT64] = 53, [UT_FLOAT16] = 11,
                                   [UT_BFLOAT16] = 8, [UT_INT32] = 31,   [UT_INT64] = 62};
    return bits[dtype];
}

/* Three bits less than are exact: then quotients of different sums differ, too. */
unsigned sim_gift_bits(unsigned dtype, unsigned redop, uint32_t ranks)
{
    bool whole = dtype == UT_INT32 || dtype == UT_INT64;
    if (redop == UT_AVG && whole)
        return 0;
    return UT_MIN2((exact_bits(dtype) - 3) / ranks, 6u);
}

sim_gift_code sim_gift_code_of(const sim_world *w, uint32_t job)
{
    const sim_part_plan *p = &w->plan.job[job].part;
    return (sim_gift_code){.seed = sim_mix(w->seed ^ sim_mix(job)),
                           .ranks = w->job[job].ranks,
                           .world = p->world ? w->job[job].ranks : 0,
                           .dtype = p->dtype,
                           .redop = p->redop};
}

static int64_t digit(const sim_gift_code *code, unsigned bits, uint64_t element, uint32_t rank, uint32_t number)
{
    uint64_t most = (UINT64_C(1) << bits) - 1;
    uint64_t shift = sim_mix(code->seed ^ element * 0x9e3779b97f4a7c15u ^ (uint64_t)rank << 56);
    return (int64_t)(1 + (number + shift % most) % most);
}

static int64_t sign(const sim_gift_code *code, uint64_t element)
{
    return sim_mix(code->seed + element) >> 63 ? -1 : 1;
}

void sim_gift_fill(const sim_gift_code *code, uint32_t rank, uint32_t number, void *out, uint64_t count)
{
    unsigned bits = sim_gift_bits(code->dtype, code->redop, code->ranks);
    size_t bytes = ut_dtype_bytes(code->dtype);
    for (uint64_t i = 0; i < count; i++) {
        int64_t value = digit(code, bits, i, rank, number) << bits * rank;
        sim_code_put(code->dtype, sign(code, i) * value, 1, (uint8_t *)out + i * bytes);
    }
}

static int64_t divisor(const sim_gift_code *code, uint32_t ranks)
{
    if (code->redop != UT_AVG)
        return 1;
    return code->world ? code->world : (uint32_t)__builtin_popcount(ranks);
}

static bool is_sum_of(const sim_gift_code *code, unsigned bits, const sim_part_op *op, uint64_t element,
                      const void *value, uint32_t ranks)
{
    int64_t sum = 0;
    for (uint32_t r = 0; r < code->ranks; r++)
        if (ranks >> r & 1)
            sum += digit(code, bits, element, r, op->gift[r] - 1) << bits * r;
    uint8_t expected[8];
    sim_code_put(code->dtype, sign(code, element) * sum, divisor(code, ranks), expected);
    return memcmp(expected, value, ut_dtype_bytes(code->dtype)) == 0;
}

/* The ranks of whom |sum| holds the digits, if it holds nothing else. */
static bool digits_of(const sim_gift_code *code, unsigned bits, const sim_part_op *op, uint64_t element, int64_t sum,
                      uint32_t *ret, const char **reason)
{
    *ret = 0;
    for (uint32_t r = 0; r < code->ranks; r++) {
        int64_t d = sum >> bits * r & ((1 << bits) - 1);
        if (d == 0)
            continue;
        bool now = op->gift[r] && d == digit(code, bits, element, r, op->gift[r] - 1);
        bool before = op->gift_before[r] && d == digit(code, bits, element, r, op->gift_before[r] - 1);
        if (!now && !before) {
            *reason = op->gift[r] ? "holds another contribution of a rank than that which its host put into this op"
                                  : "holds something of a rank whose host put nothing of it into this op";
            return false;
        }
        *ret |= 1u << r;
    }
    return true;
}

bool sim_gift_read(const sim_gift_code *code, const sim_part_op *op, uint64_t element, const void *value, uint32_t hint,
                   uint32_t *ret, const char **reason)
{
    unsigned bits = sim_gift_bits(code->dtype, code->redop, code->ranks);
    *ret = hint;
    if (hint && is_sum_of(code, bits, op, element, value, hint))
        return true;
    *ret = 0;
    double x = sim_code_real(code->dtype, value) * (double)sign(code, element);
    *reason = "is no sum of contributions";
    if (x == 0)
        return true;
    bool each = code->redop == UT_AVG && !code->world;
    for (uint32_t n = 1; n <= (each ? code->ranks : 1); n++) {
        int64_t by = each ? n : divisor(code, 0);
        double scaled = x * (double)by;
        int64_t sum = (int64_t)(scaled + 0.5);
        uint8_t again[8];
        if (!(scaled > 0.4 && scaled < 9e18) || sum >> bits * code->ranks)
            continue;
        if (code->dtype == UT_INT64) { /* more bits than a double has */
            memcpy(&sum, value, 8);
            sum *= sign(code, element);
        }
        sim_code_put(code->dtype, sign(code, element) * sum, by, again);
        if (memcmp(again, value, ut_dtype_bytes(code->dtype)) != 0)
            continue;
        if (digits_of(code, bits, op, element, sum, ret, reason) && (!each || (uint32_t)__builtin_popcount(*ret) == n))
            return true;
    }
    return false;
}
