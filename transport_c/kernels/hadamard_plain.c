/* SPDX-License-Identifier: Apache-2.0
 *
 * The Hadamard transform in portable C: one lane, which the compiler may vectorize.
 */
#include "hadamard.h"
#include "half.h"

#define UT_TARGET
#define UT_HADAMARD_TABLE ut_hadamard_plain
#define PLAIN static inline __attribute__((always_inline))
typedef float vf;
typedef uint32_t vseen;
enum { LANES = 1 };

PLAIN vf v_load(const uint8_t *p, size_t k)
{
    vf v;
    (void)k;
    memcpy(&v, p, sizeof v);
    return v;
}

PLAIN void v_store(uint8_t *p, vf v, size_t k)
{
    (void)k;
    memcpy(p, &v, sizeof v);
}

PLAIN vf v_set(float value)
{
    return value;
}

PLAIN vf v_add(vf a, vf b)
{
    return a + b;
}

PLAIN vf v_sub(vf a, vf b)
{
    return a - b;
}

PLAIN vf v_mul(vf a, vf b)
{
    return a * b;
}

PLAIN vf v_flip(vf v, uint64_t bits)
{
    const uint32_t flipped = ut_float_bits(v) ^ (uint32_t)bits << 31;
    memcpy(&v, &flipped, sizeof v);
    return v;
}

/* The top bit is set once an exponent was all ones. */
PLAIN vseen v_seen_none(void)
{
    return 0;
}

PLAIN void v_see(vseen *seen, vf v)
{
    *seen |= (ut_float_bits(v) & 0x7fffffff) + 0x00800000;
}

PLAIN bool v_seen_bad(vseen seen)
{
    return seen >> 31 != 0;
}

#include "hadamard_lanes.h"
