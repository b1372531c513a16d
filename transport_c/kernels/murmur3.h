/* SPDX-License-Identifier: Apache-2.0
 *
 * MurmurHash3_x86_32 (Austin Appleby, public domain) of exactly four bytes, in two parts: the first does not depend on
 * the seed, so that the many hashes of one number share it. A file for one instruction set defines UT_LANE, vu and the
 * u_ functions first and gets the same over lanes.
 */
#ifndef UT_KERNELS_MURMUR3_H
#define UT_KERNELS_MURMUR3_H

#include <stdint.h>

static inline uint32_t ut_murmur3_block(uint32_t x)
{
    x *= 0xcc9e2d51u;
    return (x << 15 | x >> 17) * 0x1b873593u;
}

static inline uint32_t ut_murmur3_end(uint32_t block, uint32_t seed)
{
    uint32_t h = seed ^ block;
    h = (h << 13 | h >> 19) * 5 + 0xe6546b64u;
    h ^= 4; /* bytes hashed */
    h = (h ^ h >> 16) * 0x85ebca6bu;
    h = (h ^ h >> 13) * 0xc2b2ae35u;
    return h ^ h >> 16;
}

static inline uint32_t ut_murmur3_of(uint32_t x, uint32_t seed)
{
    return ut_murmur3_end(ut_murmur3_block(x), seed);
}

#ifdef UT_LANE
UT_LANE vu u_rotate(vu v, int by)
{
    return u_or(u_left(v, by), u_right(v, 32 - by));
}

UT_LANE vu murmur3_block(vu x)
{
    return u_times(u_rotate(u_times(x, u_set(0xcc9e2d51u)), 15), u_set(0x1b873593u));
}

UT_LANE vu murmur3_end(vu block, uint32_t seed)
{
    vu h = u_xor(u_set(seed), block);
    h = u_add(u_times(u_rotate(h, 13), u_set(5)), u_set(0xe6546b64u));
    h = u_xor(h, u_set(4));
    h = u_times(u_xor(h, u_right(h, 16)), u_set(0x85ebca6bu));
    h = u_times(u_xor(h, u_right(h, 13)), u_set(0xc2b2ae35u));
    return u_xor(h, u_right(h, 16));
}
#endif

#endif
