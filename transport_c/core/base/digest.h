/* SPDX-License-Identifier: Apache-2.0
 *
 * A digest of a bucket: the sum, in any order, of one 64-bit number for each of its slots. Equal digests mean equal
 * bytes, except for one pair of buckets in 2^64. Packets carry the CRC32C of a slot anyway, so the digest costs only
 * one mixing step per slot.
 */
#ifndef UT_DIGEST_H
#define UT_DIGEST_H

#include "core/base/mix.h"

#include <stddef.h>

/* The number of one slot. |crc| is the CRC32C of the |len| bytes at |offset| of the bucket. */
static inline uint64_t ut_digest_part(uint32_t crc, uint64_t offset, size_t len)
{
    return ut_mix(((uint64_t)crc << 32 | (uint32_t)offset) + len * UT_MIX_STEP);
}

/* The 32 bits of a digest that travel in a record. */
static inline uint32_t ut_digest_brief(uint64_t digest)
{
    return (uint32_t)(digest ^ digest >> 32);
}

#endif
