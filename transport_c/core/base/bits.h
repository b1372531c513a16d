/* SPDX-License-Identifier: Apache-2.0
 *
 * Sets of up to 64 things (hosts of a job, sessions of an engine, rows of a group) as the bits of a word.
 */
#ifndef UT_BITS_H
#define UT_BITS_H

#include <stdbool.h>
#include <stdint.h>

/* The set of |member| alone, which is below 64. */
static inline uint64_t ut_bit(uint32_t member)
{
    return UINT64_C(1) << member;
}

static inline bool ut_bits_have(uint64_t set, uint32_t member)
{
    return set >> member & 1;
}

/* The set of 0 to |n| - 1; |n| is 1 to 64. */
static inline uint64_t ut_bits_below(uint32_t n)
{
    return UINT64_MAX >> (64 - n);
}

static inline uint32_t ut_bits_count(uint64_t set)
{
    return (uint32_t)__builtin_popcountll(set);
}

/* The least member; |set| is not empty. */
static inline uint32_t ut_bits_first(uint64_t set)
{
    return (uint32_t)__builtin_ctzll(set);
}

/* Runs what follows once for each member, the least first, with its number in |member|:
 *
 *     UT_FOR_BITS(host, up)
 *         ask(host);
 *
 * |set| is evaluated once, so the body may change it. `break` and `continue` work as in any loop. */
#define UT_FOR_BITS(member, set)                                                                                       \
    for (uint64_t member##_rest = (set), member = member##_rest ? ut_bits_first(member##_rest) : 0; member##_rest;     \
         member##_rest &= member##_rest - 1, member = member##_rest ? ut_bits_first(member##_rest) : 0)

#endif
