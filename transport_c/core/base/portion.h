/* SPDX-License-Identifier: Apache-2.0
 *
 * A large call may be split over the lanes of its job, so that as many threads work on it: each lane has a portion of
 * the bucket as an op of its own. Which one an op is travels in one byte, 0 for an op that is a whole call.
 */
#ifndef UT_PORTION_H
#define UT_PORTION_H

#include "core/base/ut.h"

/* Calls take turns: op s of a job with n lanes is op s / n of lane s % n. Of the ops from |op_seq| on, the first one of
 * |lane|, by that lane's own count; and the job's number of the op that is number |seq| of its lane. */
static inline uint64_t ut_lane_seq(uint64_t op_seq, uint32_t lane, uint32_t lanes)
{
    return op_seq / lanes + (op_seq % lanes > lane);
}
static inline uint64_t ut_job_seq(uint64_t seq, uint32_t lane, uint32_t lanes)
{
    return seq * lanes + lane;
}

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
