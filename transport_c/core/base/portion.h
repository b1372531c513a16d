/* SPDX-License-Identifier: Apache-2.0
 *
 * A large call may be split over the lanes of its job, so that as many threads work on it: each lane has a portion of
 * the bucket as an op of its own. Which one an op is travels in one byte, 0 for an op that is a whole call.
 */
#ifndef UT_PORTION_H
#define UT_PORTION_H

#include "core/base/ut.h"

/* Of a valid byte: into how many portions the call is split; and which of them it is, from 0. */
static inline unsigned ut_portions_of(uint8_t portion)
{
    return portion ? portion >> 4 : 1;
}
static inline unsigned ut_portion_at(uint8_t portion)
{
    return portion & 15;
}

static inline uint8_t ut_portion(unsigned at, unsigned portions)
{
    return (uint8_t)(portions << 4 | at);
}

static inline bool ut_portion_valid(uint8_t portion)
{
    unsigned portions = ut_portions_of(portion);
    return !portion || (portions >= 2 && portions <= UT_LANES_MAX && ut_portion_at(portion) < portions);
}

#endif
