/* SPDX-License-Identifier: Apache-2.0
 *
 * The kernels of one instruction set. fold_plain.c, fold_avx2.c and fold_avx512.c include this file once each, after
 * they have defined how LANES float32 lanes are loaded, computed and stored. The kernels of float32, float16 and
 * bfloat16 are built from those lanes. Those of float64 and of the integers (fold_loops.h) are plain loops that the
 * compiler vectorizes for the same target: it does that well, but it does not do the conversion of halves, the masked
 * tail and the aligned start well.
 *
 * All `unsigned` parameters of the inline functions are constants at every call: each table entry is its own loop
 * without a branch. The includer defines
 * - UT_TARGET, an attribute of every function, and UT_TABLE, the name of the table;
 * - vf, a vector of LANES float32; HEAD, the lanes of a shorter step that brings float32 output onto whole cache lines;
 *   TAIL, those of shorter steps after the last whole one, for sets that have no masks; 0: none;
 * - v_load(type, p, k): loads the first k elements of type (a float dtype) at p as float32; lanes beyond k are zero;
 * - v_store(p, v, k): stores the first k lanes as float32;
 * - v_result(type, p, v, k, seen): stores the first k lanes rounded to type, and notes in |seen| what they were;
 * - v_seen_none(), v_seen_bad(type, seen): an empty vseen; whether |seen| has noted a NaN or an Inf;
 * - v_set, v_add, v_mul, v_div: as their names say;
 * - v_min, v_max: a < b ? a : b (a > b ? a : b), and a where a is NaN;
 * - v_quotient(type, v, divide, by): v / by, or v * by for a power of two, such that v_result rounds the half right.
 */
#include "half.h"
#include "table.h"

#define UT_LEAF static inline __attribute__((always_inline)) UT_TARGET
#if defined(__clang__)
#define UT_NO_CARRIED_DEPENDENCE _Pragma("clang loop vectorize(assume_safety)")
#else
#define UT_NO_CARRIED_DEPENDENCE _Pragma("GCC ivdep")
#endif

/* How a result is divided: not at all; times the reciprocal, which is exact for a power of two; by true division. */
enum scaling { SCALE_NONE, SCALE_MULTIPLY, SCALE_DIVIDE };
#define DIVISOR_MAX (1u << 24) /* exact in float32 */
#define IS_POWER_OF_2(x) (((x) & ((x) - 1)) == 0)

UT_LEAF size_t float_bytes(unsigned type)
{
    return type == UT_FLOAT32 ? 4 : 2;
}

UT_LEAF vf v_apply(unsigned op, vf a, vf b)
{
    switch (op) {
    case UT_MIN:
        return v_min(a, b);
    case UT_MAX:
        return v_max(a, b);
    case UT_PROD:
        return v_mul(a, b);
    default:
        return v_add(a, b);
    }
}

UT_LEAF vf v_scale(unsigned dtype, unsigned scaling, vf v, double by)
{
    if (scaling == SCALE_NONE)
        return v;
    if (dtype != UT_FLOAT32)
        return v_quotient(dtype, v, scaling == SCALE_DIVIDE, by);
    return scaling == SCALE_DIVIDE ? v_div(v, v_set((float)by)) : v_mul(v, v_set((float)by));
}

/* Elements of a result that are NaN or Inf. */
#define COUNT_BAD(T, n, p, exponent)                                                                                   \
    for (size_t i = 0; i < n; i++) {                                                                                   \
        T bits;                                                                                                        \
        memcpy(&bits, p + i * sizeof(T), sizeof(T));                                                                   \
        bad += (bits & exponent) == exponent;                                                                          \
    }

/* NaN and Inf are rare: the loops below only notice that there are some, and then this counts them in what was written.
 */
static __attribute__((noinline, cold)) UT_TARGET size_t count_bad(unsigned dtype, const uint8_t *p, size_t n)
{
    const uint32_t exponent = dtype == UT_FLOAT32 ? 0x7f800000 : dtype == UT_FLOAT16 ? 0x7c00 : 0x7f80;
    size_t bad = 0;
    if (dtype == UT_FLOAT32)
        COUNT_BAD(uint32_t, n, p, exponent)
    else
        COUNT_BAD(uint16_t, n, p, exponent)
    return bad;
}

/* Elements before the first whole vector. */
UT_LEAF size_t head_of(const uint8_t *out, size_t out_bytes, size_t n)
{
    const size_t head = HEAD;
    return out_bytes == sizeof(float) && ((uintptr_t)out & head * sizeof(float)) != 0 && n >= head ? head : 0;
}

UT_LEAF void fold_step(unsigned dtype, unsigned op, unsigned how, unsigned scaling, uint8_t *out, const uint8_t *a,
                       const uint8_t *in, size_t i, size_t k, double by, vseen *seen)
{
    const unsigned a_type = how & UT_A_IS_INPUT ? dtype : UT_FLOAT32;
    const vf v =
        v_apply(op, v_load(a_type, a + i * float_bytes(a_type), k), v_load(dtype, in + i * float_bytes(dtype), k));
    if (how & UT_OUT_IS_RESULT)
        v_result(dtype, out + i * float_bytes(dtype), v_scale(dtype, scaling, v, by), k, seen);
    else
        v_store(out + i * sizeof(float), v, k);
}

UT_LEAF size_t fold_float(unsigned dtype, unsigned op, unsigned how, unsigned scaling, uint8_t *out, const uint8_t *a,
                          const uint8_t *in, size_t n, double by)
{
    size_t i = head_of(out, how & UT_OUT_IS_RESULT ? float_bytes(dtype) : sizeof(float), n);
    const size_t end = n - (n - i) % LANES;
    vseen seen = v_seen_none();
    if (HEAD > 0 && i > 0)
        fold_step(dtype, op, how, scaling, out, a, in, 0, HEAD, by, &seen);
    UT_NO_CARRIED_DEPENDENCE
    for (; i < end; i += LANES)
        fold_step(dtype, op, how, scaling, out, a, in, i, LANES, by, &seen);
    for (; TAIL > 0 && i + TAIL <= n; i += TAIL)
        fold_step(dtype, op, how, scaling, out, a, in, i, TAIL, by, &seen);
    if (LANES > 1 && i < n)
        fold_step(dtype, op, how, scaling, out, a, in, i, n - i, by, &seen);
    return how & UT_OUT_IS_RESULT && v_seen_bad(dtype, seen) ? count_bad(dtype, out, n) : 0;
}

UT_LEAF void finish_step(unsigned dtype, unsigned a_type, unsigned scaling, uint8_t *dst, const uint8_t *a, size_t i,
                         size_t k, double by, vseen *seen)
{
    const vf v = v_load(a_type, a + i * float_bytes(a_type), k);
    v_result(dtype, dst + i * float_bytes(dtype), v_scale(dtype, scaling, v, by), k, seen);
}

UT_LEAF size_t finish_float(unsigned dtype, unsigned a_type, unsigned scaling, uint8_t *dst, const uint8_t *a, size_t n,
                            double by)
{
    size_t i = head_of(dst, float_bytes(dtype), n);
    const size_t end = n - (n - i) % LANES;
    vseen seen = v_seen_none();
    if (HEAD > 0 && i > 0)
        finish_step(dtype, a_type, scaling, dst, a, 0, HEAD, by, &seen);
    UT_NO_CARRIED_DEPENDENCE
    for (; i < end; i += LANES)
        finish_step(dtype, a_type, scaling, dst, a, i, LANES, by, &seen);
    for (; TAIL > 0 && i + TAIL <= n; i += TAIL)
        finish_step(dtype, a_type, scaling, dst, a, i, TAIL, by, &seen);
    if (LANES > 1 && i < n)
        finish_step(dtype, a_type, scaling, dst, a, i, n - i, by, &seen);
    return v_seen_bad(dtype, seen) ? count_bad(dtype, dst, n) : 0;
}

/* The averaging entries choose between the two scalings once per call; the others ignore the divisor. */
#define FOLD_FLOAT(D, DTYPE, NAME, OP, HOW)                                                                            \
    static UT_TARGET size_t fold_##D##_##NAME##_##HOW(void *out, const void *a, const void *in, size_t n,              \
                                                      uint32_t divisor)                                                \
    {                                                                                                                  \
        (void)divisor;                                                                                                 \
        return fold_float(DTYPE, OP, HOW, SCALE_NONE, out, a, in, n, 1);                                               \
    }
#define FOLD_FLOAT_AVG(D, DTYPE, HOW)                                                                                  \
    static UT_TARGET size_t fold_##D##_avg_##HOW(void *out, const void *a, const void *in, size_t n, uint32_t divisor) \
    {                                                                                                                  \
        assert(divisor > 0 && divisor <= DIVISOR_MAX);                                                                 \
        if (IS_POWER_OF_2(divisor))                                                                                    \
            return fold_float(DTYPE, UT_SUM, HOW, SCALE_MULTIPLY, out, a, in, n, 1.0 / divisor);                       \
        return fold_float(DTYPE, UT_SUM, HOW, SCALE_DIVIDE, out, a, in, n, divisor);                                   \
    }
#define FINISH_FLOAT_AVG(D, DTYPE, A_TYPE, INPUT)                                                                      \
    static UT_TARGET size_t finish_##D##_avg_##INPUT(void *dst, const void *a, size_t n, uint32_t divisor)             \
    {                                                                                                                  \
        assert(divisor > 0 && divisor <= DIVISOR_MAX);                                                                 \
        if (IS_POWER_OF_2(divisor))                                                                                    \
            return finish_float(DTYPE, A_TYPE, SCALE_MULTIPLY, dst, a, n, 1.0 / divisor);                              \
        return finish_float(DTYPE, A_TYPE, SCALE_DIVIDE, dst, a, n, divisor);                                          \
    }
#define FINISH_FLOAT(D, DTYPE, A_TYPE, INPUT)                                                                          \
    static UT_TARGET size_t finish_##D##_sum_##INPUT(void *dst, const void *a, size_t n, uint32_t divisor)             \
    {                                                                                                                  \
        (void)divisor;                                                                                                 \
        return finish_float(DTYPE, A_TYPE, SCALE_NONE, dst, a, n, 1);                                                  \
    }
#define FOLD_OPS(FOLD, D, DTYPE, HOW)                                                                                  \
    FOLD(D, DTYPE, sum, UT_SUM, HOW)                                                                                   \
    FOLD(D, DTYPE, min, UT_MIN, HOW)                                                                                   \
    FOLD(D, DTYPE, max, UT_MAX, HOW)                                                                                   \
    FOLD(D, DTYPE, prod, UT_PROD, HOW)
#define HALF_KERNELS(D, DTYPE)                                                                                         \
    FOLD_OPS(FOLD_FLOAT, D, DTYPE, 0)                                                                                  \
    FOLD_OPS(FOLD_FLOAT, D, DTYPE, 1)                                                                                  \
    FOLD_OPS(FOLD_FLOAT, D, DTYPE, 2)                                                                                  \
    FOLD_OPS(FOLD_FLOAT, D, DTYPE, 3)                                                                                  \
    FOLD_FLOAT_AVG(D, DTYPE, 2)                                                                                        \
    FOLD_FLOAT_AVG(D, DTYPE, 3)                                                                                        \
    FINISH_FLOAT(D, DTYPE, UT_FLOAT32, 0)                                                                              \
    FINISH_FLOAT(D, DTYPE, DTYPE, 1)                                                                                   \
    FINISH_FLOAT_AVG(D, DTYPE, UT_FLOAT32, 0)                                                                          \
    FINISH_FLOAT_AVG(D, DTYPE, DTYPE, 1)

/* Where the accumulator is the dtype, what |a| holds makes no difference. */
FOLD_OPS(FOLD_FLOAT, f32, UT_FLOAT32, 0)
FOLD_OPS(FOLD_FLOAT, f32, UT_FLOAT32, 2)
FOLD_FLOAT_AVG(f32, UT_FLOAT32, 2)
FINISH_FLOAT(f32, UT_FLOAT32, UT_FLOAT32, 0)
FINISH_FLOAT_AVG(f32, UT_FLOAT32, UT_FLOAT32, 0)
HALF_KERNELS(f16, UT_FLOAT16)
HALF_KERNELS(bf16, UT_BFLOAT16)
