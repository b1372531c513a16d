/* SPDX-License-Identifier: Apache-2.0
 *
 * float16 and bfloat16: every value, every place where rounding turns, and averages that must be rounded once. Through
 * the definition in half.h and through every instruction set; against the compiler's own _Float16 where there is one.
 */
#include "kernels_check.h"

/* Results in a row through the public calls, checked against want[]; float32 in room_a. */
static void check_halves(unsigned dtype, unsigned redop, size_t n, uint32_t divisor)
{
    FOR_EACH_ISA(isa)
    {
        uint8_t *const out = room_out + FENCE;
        fence_build(out, n * 2);
        (void)ut_finish(dtype, redop, 0, out, room_a, n, divisor);
        check_elements("rounding", isa, dtype, redop, 0, dtype, out, n, divisor);
    }
}

/* All 65536 halves: to float32 exactly; and back from themselves, from the middle to the next one, and from beside that
 * middle. */
static void half__all_values(unsigned dtype)
{
    enum { STEP = 1024 };
    static const int32_t NUDGES[] = {0, -1, 1};
    float *const f = (float *)(void *)room_a;
    for (uint32_t base = 0; base < 0x10000; base += STEP) {
        for (uint32_t i = 0; i < STEP; i++) {
            const float ours =
                dtype == UT_FLOAT16 ? ut_float_of_f16((uint16_t)(base + i)) : ut_float_of_bf16((uint16_t)(base + i));
            element_put(dtype, room_in, i, base + i);
            want[i] = model_round(UT_FLOAT32, model_value(dtype, base + i));
            CHECK_MSG(model_same(UT_FLOAT32, ut_float_bits(ours), want[i]), "%s %x: %a", DTYPE_NAMES[dtype], base + i,
                      (double)ours);
        }
        /* 0 + x in float32: the way a half enters an accumulator. (-0 becomes 0 there.) */
        FOR_EACH_ISA(isa)
        {
            uint8_t *const out = room_out + FENCE;
            memset(room_a, 0, STEP * 4);
            fence_build(out, STEP * 4);
            (void)ut_fold(dtype, UT_MAX, 0, out, room_a, room_in, STEP, 1);
            for (size_t i = 0; i < STEP; i++) {
                const double x = model_value(dtype, base + i);
                want[i] = x != x ? 0x7fc00000 : ut_float_bits(x < 0 ? 0 : (float)x);
            }
            check_elements("widening", isa, dtype, UT_MAX, 0, UT_FLOAT32, out, STEP, 1);
        }
        for (size_t nudge = 0; nudge < 3; nudge++)
            for (int middle = 0; middle < 2; middle++) {
                for (uint32_t i = 0; i < STEP; i++) {
                    const double low = model_value(dtype, base + i), high = model_value(dtype, (base + i + 1) & 0xffff);
                    const float at = (float)(middle ? low + (high - low) / 2 : low);
                    const uint32_t bits =
                        ut_float_bits(at) + (at == 0 || !__builtin_isfinite(at) ? 0 : (uint32_t)NUDGES[nudge]);
                    f[i] = ut_float_of_bits(bits);
                    want[i] = model_round(dtype, (double)f[i]);
                    const uint16_t ours = dtype == UT_FLOAT16 ? ut_f16_of_float(f[i]) : ut_bf16_of_float(f[i]);
                    CHECK_MSG(model_same(dtype, ours, want[i]), "%s of %a: %x, want %llx", DTYPE_NAMES[dtype],
                              (double)f[i], ours, (unsigned long long)want[i]);
                }
                check_halves(dtype, UT_SUM, STEP, 1);
            }
    }
}

static void float16__all_values(void)
{
    half__all_values(UT_FLOAT16);
}

static void bfloat16__all_values(void)
{
    half__all_values(UT_BFLOAT16);
}

static void half__any_float32_bits(void)
{
    enum { STEP = 4096 };
    for (unsigned dtype = UT_FLOAT16; dtype <= UT_BFLOAT16; dtype++)
        for (int round = 0; round < 50; round++) {
            for (uint32_t i = 0; i < STEP; i++) {
                const uint32_t bits = (uint32_t)check_random();
                memcpy(room_a + 4 * i, &bits, 4);
                want[i] = model_round(dtype, (double)ut_float_of_bits(bits));
            }
            check_halves(dtype, UT_SUM, STEP, 1);
        }
}

/* Sums whose average falls beside the middle of two halves, by less than float32 can tell: dividing in float32 and
 * rounding again gets these wrong. Over all exponents, subnormals included. */
static void half__averages_round_once(void)
{
    enum { STEP = 4096 };
    size_t twice_differs = 0;
    for (unsigned dtype = UT_FLOAT16; dtype <= UT_BFLOAT16; dtype++)
        for (size_t d = 0; d < sizeof DIVISORS / sizeof *DIVISORS; d++) {
            for (uint32_t i = 0; i < STEP; i++) {
                const uint16_t half = (uint16_t)check_random();
                const double low = model_value(dtype, half), high = model_value(dtype, half + 1u);
                float sum = (float)((low + (high - low) / 2) * DIVISORS[d]);
                if (!__builtin_isfinite(sum))
                    sum = 1;
                sum = ut_float_of_bits(ut_float_bits(sum) + (uint32_t)check_below(3) - (sum != 0));
                memcpy(room_a + 4 * i, &sum, 4);
                want[i] = model_finish(dtype, UT_AVG, ut_float_bits(sum), DIVISORS[d]);
                twice_differs += !model_same(dtype, want[i], model_round(dtype, (double)(sum / (float)DIVISORS[d])));
            }
            check_halves(dtype, UT_AVG, STEP, DIVISORS[d]);
        }
    CHECK_MSG(twice_differs > 100, "only %zu cases where rounding twice would differ: the test has lost its teeth",
              twice_differs);
}

static void ut_float_odd_of_double__is_odd_or_exact(void)
{
    for (int i = 0; i < 300000; i++) {
        uint64_t bits = check_random();
        if (i % 3 == 0) /* into the range of float32 and its subnormals */
            bits = (bits & 0x800fffffffffffff) | (uint64_t)(1023 - 155 + check_below(290)) << 52;
        const double value = double_of_bits(bits);
        if (!(__builtin_fabs(value) <= 0x1.fffffep127))
            continue;
        const float odd = ut_float_odd_of_double(value);
        const uint32_t odd_bits = ut_float_bits(odd);
        const bool between = odd_bits % 2 == 1 &&
                             __builtin_fabs((double)ut_float_of_bits(odd_bits - 1)) < __builtin_fabs(value) &&
                             __builtin_fabs((double)ut_float_of_bits(odd_bits + 1)) > __builtin_fabs(value);
        CHECK_MSG((double)odd == value || between || (odd_bits & 0x7fffffff) == 0x7f7fffff, "%a rounds to %a", value,
                  (double)odd);
        CHECK_MSG(odd_bits >> 31 == bits >> 63, "%a rounds to %a", value, (double)odd);
    }
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(float16__all_values);
    RUN(bfloat16__all_values);
    RUN(half__any_float32_bits);
    RUN(half__averages_round_once);
    RUN(ut_float_odd_of_double__is_odd_or_exact);
    return check_end();
}
