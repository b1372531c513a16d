/* SPDX-License-Identifier: Apache-2.0
 *
 * The one mixer of the project: the end of splitmix64 (Steele, Lea and Flood, OOPSLA 2014; constants of Stafford's
 * variant 13). Every bit of the result depends on every bit of the input, and no two inputs give the same result. It is
 * no cipher: anybody who knows the input can compute the result.
 *
 * Hosts must mix alike (owners' tags, picks of ranks, signs, digests), so it belongs to the protocol: the client's
 * reference.py and torch/hadamard.py hold the same in Python, and test_mix.c has values that were not computed here.
 */
#ifndef UT_MIX_H
#define UT_MIX_H

#include <stdint.h>

/* 2^64 divided by the golden ratio: what splitmix64 adds from one number to the next. */
#define UT_MIX_STEP UINT64_C(0x9e3779b97f4a7c15)

/* Mixes |z|; 0 stays 0. */
static inline uint64_t ut_mix(uint64_t z)
{
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

/* splitmix64 as a generator: the next number after |state|. */
static inline uint64_t ut_mix_next(uint64_t *state)
{
    return ut_mix(*state += UT_MIX_STEP);
}

#endif
