/* SPDX-License-Identifier: Apache-2.0
 *
 * The Hadamard transform in C for any CPU: vectors of four lanes as GCC and Clang have them, which become what the CPU
 * has (SSE2, NEON), or four floats.
 */
#include "hadamard.h"

#define UT_TARGET
#define UT_HADAMARD_TABLE ut_hadamard_plain
#define PLAIN static inline __attribute__((always_inline))
enum { LANES = 4 };
typedef float vf __attribute__((vector_size(4 * LANES)));
typedef uint32_t vseen __attribute__((vector_size(4 * LANES)));

PLAIN vf v_load(const uint8_t *p, size_t k)
{
    vf v = {0};
    if (k == LANES)
        memcpy(&v, p, sizeof v);
    else
        memcpy(&v, p, k * sizeof(float));
    return v;
}

PLAIN void v_store(uint8_t *p, vf v, size_t k)
{
    if (k == LANES)
        memcpy(p, &v, sizeof v);
    else
        memcpy(p, &v, k * sizeof(float));
}

PLAIN vf v_set(float value)
{
    return (vf){value, value, value, value};
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

/* Few CPUs shift each lane by a number of its own, so the sixteen masks are looked up. */
PLAIN vf v_flip(vf v, uint64_t bits)
{
#define TOP(bit) (UINT32_C(bit) << 31)
#define PAIR(high, low)                                                                                                \
    {TOP(0), TOP(0), TOP(low), TOP(high)}, {TOP(1), TOP(0), TOP(low), TOP(high)},                                      \
        {TOP(0), TOP(1), TOP(low), TOP(high)},                                                                         \
    {                                                                                                                  \
        TOP(1), TOP(1), TOP(low), TOP(high)                                                                            \
    }
    static const uint32_t masks[16][LANES]
        __attribute__((aligned(16))) = {PAIR(0, 0), PAIR(0, 1), PAIR(1, 0), PAIR(1, 1)};
#undef PAIR
#undef TOP
    vseen flipped, mask;
    memcpy(&flipped, &v, sizeof v);
    memcpy(&mask, masks[bits & 15], sizeof mask);
    flipped ^= mask;
    memcpy(&v, &flipped, sizeof v);
    return v;
}

/* The top bit of a lane is set once an exponent was all ones. */
PLAIN vseen v_seen_none(void)
{
    return (vseen){0};
}

PLAIN void v_see(vseen *seen, vf v)
{
    vseen bits;
    memcpy(&bits, &v, sizeof bits);
    *seen |= (bits & 0x7fffffff) + 0x00800000;
}

PLAIN bool v_seen_bad(vseen seen)
{
    return (seen[0] | seen[1] | seen[2] | seen[3]) >> 31 != 0;
}

#include "hadamard_lanes.h"
