/* SPDX-License-Identifier: Apache-2.0
 *
 * The other half of an instruction set's kernels, after fold_lanes.h: float64, int32, int64 and the copies that count
 * NaN and Inf, as plain loops for the compiler's vectorizer, and the table of all kernels. Each type brings three small
 * functions: _apply (one operation), _quotient (its average) and _bad (whether it is NaN or Inf).
 */

/* Elements wherever they lie: no alignment, no type-based aliasing. */
typedef double __attribute__((aligned(1), may_alias)) any_f64;
typedef int32_t __attribute__((aligned(1), may_alias)) any_i32;
typedef int64_t __attribute__((aligned(1), may_alias)) any_i64;
typedef uint16_t __attribute__((aligned(1), may_alias)) any_u16;
typedef uint64_t __attribute__((aligned(1), may_alias)) any_u64;

UT_LEAF double f64_apply(unsigned op, double a, double b)
{
    switch (op) {
    case UT_MIN:
        return a != a ? a : a < b ? a : b;
    case UT_MAX:
        return a != a ? a : a > b ? a : b;
    case UT_PROD:
        return a * b;
    default:
        return a + b;
    }
}

UT_LEAF uint64_t f64_bad(double v)
{
    uint64_t bits;
    memcpy(&bits, &v, sizeof bits);
    return (bits << 1) >= (uint64_t)0xffe0000000000000;
}

/* Unsigned inside: overflow wraps. */
#define INTEGER_LEAVES(D, T, U)                                                                                        \
    UT_LEAF T D##_apply(unsigned op, T a, T b)                                                                         \
    {                                                                                                                  \
        switch (op) {                                                                                                  \
        case UT_MIN:                                                                                                   \
            return a < b ? a : b;                                                                                      \
        case UT_MAX:                                                                                                   \
            return a > b ? a : b;                                                                                      \
        case UT_PROD:                                                                                                  \
            return (T)((U)a * (U)b);                                                                                   \
        default:                                                                                                       \
            return (T)((U)a + (U)b);                                                                                   \
        }                                                                                                              \
    }                                                                                                                  \
    UT_LEAF uint64_t D##_bad(T v)                                                                                      \
    {                                                                                                                  \
        (void)v;                                                                                                       \
        return 0;                                                                                                      \
    }
INTEGER_LEAVES(i32, int32_t, uint32_t)
INTEGER_LEAVES(i64, int64_t, uint64_t)

UT_LEAF double f64_quotient(unsigned scaling, double v, double by)
{
    return scaling == SCALE_DIVIDE ? v / by : v * by;
}

/* Exact: a quotient of 32-bit integers that is no whole number lies at least 2^-32 of itself away from the next one,
 * and a double tells 2^-52 apart; so truncating the rounded quotient truncates the true one. It vectorizes, integer
 * division does not. */
UT_LEAF int32_t i32_quotient(unsigned scaling, int32_t v, double by)
{
    return (int32_t)f64_quotient(scaling, v, by);
}

/* The divisor is a small positive number: no overflow, even of INT64_MIN. */
UT_LEAF int64_t i64_quotient(unsigned scaling, int64_t v, int64_t by)
{
    (void)scaling;
    return v / by;
}

#define TYPED_LEAVES(D, T, BY)                                                                                         \
    UT_LEAF size_t fold_##D(unsigned op, bool result, unsigned scaling, any_##D *out, const any_##D *a,                \
                            const any_##D *in, size_t n, BY by)                                                        \
    {                                                                                                                  \
        uint64_t bad = 0;                                                                                              \
        UT_NO_CARRIED_DEPENDENCE                                                                                       \
        for (size_t i = 0; i < n; i++) {                                                                               \
            T v = D##_apply(op, a[i], in[i]);                                                                          \
            if (scaling != SCALE_NONE)                                                                                 \
                v = D##_quotient(scaling, v, by);                                                                      \
            if (result)                                                                                                \
                bad += D##_bad(v);                                                                                     \
            out[i] = v;                                                                                                \
        }                                                                                                              \
        return (size_t)bad;                                                                                            \
    }                                                                                                                  \
    UT_LEAF size_t finish_##D(unsigned scaling, any_##D *dst, const any_##D *a, size_t n, BY by)                       \
    {                                                                                                                  \
        uint64_t bad = 0;                                                                                              \
        UT_NO_CARRIED_DEPENDENCE                                                                                       \
        for (size_t i = 0; i < n; i++) {                                                                               \
            const T v = D##_quotient(scaling, a[i], by);                                                               \
            bad += D##_bad(v);                                                                                         \
            dst[i] = v;                                                                                                \
        }                                                                                                              \
        return (size_t)bad;                                                                                            \
    }
TYPED_LEAVES(f64, double, double)
TYPED_LEAVES(i32, int32_t, double)
TYPED_LEAVES(i64, int64_t, int64_t)

#define FOLD_TYPED(D, DTYPE, NAME, OP, HOW)                                                                            \
    static UT_TARGET size_t fold_##D##_##NAME##_##HOW(void *out, const void *a, const void *in, size_t n,              \
                                                      uint32_t divisor)                                                \
    {                                                                                                                  \
        (void)divisor;                                                                                                 \
        return fold_##D(OP, (HOW & UT_OUT_IS_RESULT) != 0, SCALE_NONE, out, a, in, n, 1);                              \
    }
#define AVG_TYPED(D, MULTIPLIES, RECIPROCAL)                                                                           \
    static UT_TARGET size_t fold_##D##_avg_2(void *out, const void *a, const void *in, size_t n, uint32_t divisor)     \
    {                                                                                                                  \
        assert(divisor > 0 && divisor <= DIVISOR_MAX);                                                                 \
        if (MULTIPLIES && IS_POWER_OF_2(divisor))                                                                      \
            return fold_##D(UT_SUM, true, SCALE_MULTIPLY, out, a, in, n, RECIPROCAL);                                  \
        return fold_##D(UT_SUM, true, SCALE_DIVIDE, out, a, in, n, divisor);                                           \
    }                                                                                                                  \
    static UT_TARGET size_t finish_##D##_avg_0(void *dst, const void *a, size_t n, uint32_t divisor)                   \
    {                                                                                                                  \
        assert(divisor > 0 && divisor <= DIVISOR_MAX);                                                                 \
        if (MULTIPLIES && IS_POWER_OF_2(divisor))                                                                      \
            return finish_##D(SCALE_MULTIPLY, dst, a, n, RECIPROCAL);                                                  \
        return finish_##D(SCALE_DIVIDE, dst, a, n, divisor);                                                           \
    }
AVG_TYPED(f64, true, 1.0 / divisor)
AVG_TYPED(i32, true, 1.0 / divisor)
AVG_TYPED(i64, false, divisor)
FOLD_OPS(FOLD_TYPED, f64, UT_FLOAT64, 0)
FOLD_OPS(FOLD_TYPED, f64, UT_FLOAT64, 2)
FOLD_OPS(FOLD_TYPED, i32, UT_INT32, 0)
FOLD_OPS(FOLD_TYPED, i64, UT_INT64, 0)

/* The count is as wide as the elements, so that both fit one vector register; a block is short enough not to overflow
 * it. */
#define PLACE_COUNTING(D, T, ANY, EXPONENT)                                                                            \
    static UT_TARGET size_t place_##D(void *dst, const void *src, size_t n)                                            \
    {                                                                                                                  \
        enum { BLOCK = 1 << 15 };                                                                                      \
        const T mask = (T)EXPONENT;                                                                                    \
        size_t bad = 0;                                                                                                \
        for (size_t base = 0; base < n; base += BLOCK) {                                                               \
            const size_t m = UT_MIN2(n - base, (size_t)BLOCK);                                                         \
            const ANY *const from = (const ANY *)src + base;                                                           \
            ANY *const to = (ANY *)dst + base;                                                                         \
            T count = 0;                                                                                               \
            UT_NO_CARRIED_DEPENDENCE                                                                                   \
            for (size_t i = 0; i < m; i++) {                                                                           \
                const T x = from[i];                                                                                   \
                count = (T)(count + ((x & mask) == mask));                                                             \
                to[i] = x;                                                                                             \
            }                                                                                                          \
            bad += count;                                                                                              \
        }                                                                                                              \
        return bad;                                                                                                    \
    }
PLACE_COUNTING(f64, uint64_t, any_u64, 0x7ff0000000000000)
PLACE_COUNTING(f16, uint16_t, any_u16, 0x7c00)
PLACE_COUNTING(bf16, uint16_t, any_u16, 0x7f80)

static UT_TARGET size_t place_f32(void *dst, const void *src, size_t n)
{
    return finish_float(UT_FLOAT32, UT_FLOAT32, SCALE_NONE, dst, src, n, 1);
}

static UT_TARGET size_t place_i32(void *dst, const void *src, size_t n)
{
    if (dst != src) /* a sum that finishes where it stands */
        memcpy(dst, src, n * sizeof(int32_t));
    return 0;
}

static UT_TARGET size_t place_i64(void *dst, const void *src, size_t n)
{
    return place_i32(dst, src, 2 * n);
}

#define FINISH_PLACE(D)                                                                                                \
    static UT_TARGET size_t finish_##D##_sum_0(void *dst, const void *a, size_t n, uint32_t divisor)                   \
    {                                                                                                                  \
        (void)divisor;                                                                                                 \
        return place_##D(dst, a, n);                                                                                   \
    }
FINISH_PLACE(f64)
FINISH_PLACE(i32)
FINISH_PLACE(i64)

/* What a dtype's folds are for each ut_fold_how; H1, H2, H3 (and A3 of an average) say which of the functions stand for
 * it. */
#define FOLD_ROW(D, NAME, H1, H2, H3)                                                                                  \
    {fold_##D##_##NAME##_0, fold_##D##_##NAME##_##H1, fold_##D##_##NAME##_##H2, fold_##D##_##NAME##_##H3}
#define FOLD_ROWS(D, H1, H2, H3, A3)                                                                                   \
    {                                                                                                                  \
        [UT_SUM] = FOLD_ROW(D, sum, H1, H2, H3),                                                                       \
        [UT_MIN] = FOLD_ROW(D, min, H1, H2, H3),                                                                       \
        [UT_MAX] = FOLD_ROW(D, max, H1, H2, H3),                                                                       \
        [UT_PROD] = FOLD_ROW(D, prod, H1, H2, H3),                                                                     \
        [UT_AVG] = {fold_##D##_sum_0, fold_##D##_sum_##H1, fold_##D##_avg_2, fold_##D##_avg_##A3},                     \
    }
#define FINISH_ROWS(D, INPUT)                                                                                          \
    {                                                                                                                  \
        {finish_##D##_sum_0, finish_##D##_sum_##INPUT},                                                                \
        {finish_##D##_avg_0, finish_##D##_avg_##INPUT},                                                                \
    }

const ut_kernels UT_TABLE = {
    .fold =
        {
            [UT_FLOAT32] = FOLD_ROWS(f32, 0, 2, 2, 2),
            [UT_FLOAT64] = FOLD_ROWS(f64, 0, 2, 2, 2),
            [UT_FLOAT16] = FOLD_ROWS(f16, 1, 2, 3, 3),
            [UT_BFLOAT16] = FOLD_ROWS(bf16, 1, 2, 3, 3),
            [UT_INT32] = FOLD_ROWS(i32, 0, 0, 0, 2),
            [UT_INT64] = FOLD_ROWS(i64, 0, 0, 0, 2),
        },
    .finish =
        {
            [UT_FLOAT32] = FINISH_ROWS(f32, 0),
            [UT_FLOAT64] = FINISH_ROWS(f64, 0),
            [UT_FLOAT16] = FINISH_ROWS(f16, 1),
            [UT_BFLOAT16] = FINISH_ROWS(bf16, 1),
            [UT_INT32] = FINISH_ROWS(i32, 0),
            [UT_INT64] = FINISH_ROWS(i64, 0),
        },
    .place =
        {
            [UT_FLOAT32] = place_f32,
            [UT_FLOAT64] = place_f64,
            [UT_FLOAT16] = place_f16,
            [UT_BFLOAT16] = place_bf16,
            [UT_INT32] = place_i32,
            [UT_INT64] = place_i64,
        },
};
