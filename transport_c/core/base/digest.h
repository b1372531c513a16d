/* SPDX-License-Identifier: Apache-2.0
 *
 * A digest of a bucket: the sum over its slots, in any order, of one word of each. Equal digests mean equal bytes, but
 * for one pair in 2^64. A slot's CRC32C is there anyway, for packets carry it, so that the digest costs one mixing step
 * a slot.
 */
#ifndef UT_DIGEST_H
#define UT_DIGEST_H

#include "core/base/mix.h"

#include <stddef.h>

/* One slot's part of a digest. |crc|: CRC32C of the |len| bytes at |offset| of the bucket. */
static inline uint64_t ut_digest_part(uint32_t crc, uint64_t offset, size_t len)
{
    return ut_mix(((uint64_t)crc << 32 | (uint32_t)offset) + len * UT_MIX_STEP);
}

/* The 32 bits of a digest that travel. */
static inline uint32_t ut_digest_word(uint64_t digest)
{
    return (uint32_t)(digest ^ digest >> 32);
}

#endif
