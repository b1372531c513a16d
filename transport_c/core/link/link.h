/* SPDX-License-Identifier: Apache-2.0
 *
 * What the lanes of one host tell each other of the link that they share. Each lane is an engine with a thread of its
 * own. The shell owns the memory and hands it to all of them (ut_engine_config.link); an engine that is alone has none.
 *
 * Each lane writes its own row alone and reads the rows of the others, every word by itself and without a lock: relaxed
 * loads and stores of 64 bits, which tear nowhere. No two words need to fit together, for all of them are measures that
 * are at most a pulse old.
 */
#ifndef UT_LINK_H
#define UT_LINK_H

#include "core/base/ut.h"

typedef struct ut_link_row {
    _Alignas(64) uint64_t acked; /* bytes that peers acknowledged, since the lane's start */
    uint64_t gone;               /* the same and those known to be lost: what the link carried of this lane */
    uint64_t told_at;            /* when the lane last told the following; it holds for UT_LINK_FRESH_NS */
    uint64_t hungry;             /* jobs that would send more than they may */
    uint64_t sated;              /* jobs that send, and no more than they want to */
    uint64_t asked;              /* bytes per second that those want, together */
    uint64_t rate;               /* bytes per second that this lane found for the whole host; 0: none */
} ut_link_row;

enum { UT_LINK_FRESH_NS = 80 * 1000 * 1000 }; /* four pulses: a lane that is silent for longer sends nothing */

/* All zero: no lane has begun. */
typedef struct ut_link {
    ut_link_row lane[UT_LANES_MAX];
} ut_link;

#endif
