/* SPDX-License-Identifier: Apache-2.0 */
#include "core/codec/codec.h"

#include "core/base/digest.h"

#include "kernels/kernels.h"

static bool fits_all(const ut_op_what *what, uint32_t hosts, unsigned algorithm)
{
    (void)what, (void)hosts, (void)algorithm;
    return true;
}

static uint64_t nothing(uint64_t bytes)
{
    (void)bytes;
    return 0;
}

const ut_codec ut_codec_none = {.id = UT_CODEC_NONE, .linear = true, .fits = fits_all, .bound = nothing};

bool ut_codec_digest(const ut_codec_op *c, const uint8_t *dst, uint64_t *digest)
{
    const uint64_t *from = c->plan->schedule.from;
    for (; c->way->index < c->plan->schedule.chunks; c->way->index++, c->way->at = 0) {
        uint64_t bytes = from[c->way->index + 1] - from[c->way->index];
        for (; c->way->at < bytes; c->way->at += c->payload) {
            uint64_t at = from[c->way->index] + c->way->at;
            size_t len = UT_MIN2(bytes - c->way->at, (uint64_t)c->payload);
            if (!ut_work_pass(c->turn, c->what->bytes, len))
                return false;
            *digest += ut_digest_part(ut_crc32c(0, dst + at, len), at, len);
        }
    }
    return true;
}
