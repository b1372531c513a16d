/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/parity.h"

#include <string.h>

enum { POLYNOMIAL = 0x1d }; /* what is left of it beyond x^8 */

/* Eight bytes at a time, each times x. */
static uint64_t doubled(uint64_t v)
{
    const uint64_t ones = UINT64_C(0x0101010101010101), high = v >> 7 & ones;
    return (v & ~(ones << 7)) << 1 ^ high * POLYNOMIAL;
}

static uint64_t times(uint64_t v, uint8_t factor)
{
    uint64_t sum = 0;
    for (; factor; factor >>= 1, v = doubled(v))
        sum ^= v & -(uint64_t)(factor & 1);
    return sum;
}

uint8_t ut_gf_mul(uint8_t a, uint8_t b)
{
    return (uint8_t)times(a, b);
}

/* The group has 255 elements: a to the 254th. */
uint8_t ut_gf_inverse(uint8_t a)
{
    uint8_t power = 1, square = ut_gf_mul(a, a);
    for (unsigned bit = 1; bit < 8; bit++, square = ut_gf_mul(square, square))
        power = ut_gf_mul(power, square);
    return power;
}

void ut_gf_add(uint8_t *to, const uint8_t *from, size_t len, uint8_t factor)
{
    size_t at = 0;
    for (uint64_t a, b; at + 8 <= len; at += 8) {
        memcpy(&a, to + at, 8);
        memcpy(&b, from + at, 8);
        a ^= factor == 1 ? b : times(b, factor);
        memcpy(to + at, &a, 8);
    }
    for (; at < len; at++)
        to[at] ^= ut_gf_mul(from[at], factor);
}
