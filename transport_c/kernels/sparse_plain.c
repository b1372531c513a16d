/* SPDX-License-Identifier: Apache-2.0
 *
 * The sparse kernels in portable C: one lane.
 */
#include "half.h"

#define UT_TARGET
#define UT_SPARSE_TABLE ut_sparse_plain
#define UT_LANE static inline __attribute__((always_inline))
typedef uint32_t vu;
typedef uint32_t v_divisor;
enum { LANES = 1 };

UT_LANE vu u_load(const float *p)
{
    return ut_float_bits(*p);
}

UT_LANE void u_store(float *p, vu v)
{
    *p = ut_float_of_bits(v);
}

UT_LANE vu f_add(vu a, vu b)
{
    return ut_float_bits(ut_float_of_bits(a) + ut_float_of_bits(b));
}

UT_LANE vu u_set(uint32_t value)
{
    return value;
}

UT_LANE vu u_count(void)
{
    return 0;
}

UT_LANE vu u_add(vu a, vu b)
{
    return a + b;
}

UT_LANE vu u_times(vu a, vu b)
{
    return a * b;
}

UT_LANE vu u_xor(vu a, vu b)
{
    return a ^ b;
}

UT_LANE vu u_or(vu a, vu b)
{
    return a | b;
}

UT_LANE vu u_left(vu v, int by)
{
    return v << by;
}

UT_LANE vu u_right(vu v, int by)
{
    return v >> by;
}

UT_LANE vu u_magnitude(vu v)
{
    return v & 0x7fffffff;
}

UT_LANE uint32_t u_above(vu a, vu b)
{
    return a > b;
}

UT_LANE v_divisor u_divisor(uint32_t m)
{
    return m;
}

UT_LANE vu u_mod(vu v, v_divisor m)
{
    return v % m;
}

UT_LANE uint32_t u_test(const uint8_t *bits, vu at)
{
    return bits[at >> 3] >> (at & 7) & 1;
}

#include "sparse_lanes.h"
