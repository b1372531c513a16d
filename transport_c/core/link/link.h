/* SPDX-License-Identifier: Apache-2.0
 *
 * What the lanes of one host tell each other of the link that they share. Each lane is an engine with a thread of its
 * own. The shell owns the memory and hands it to all of them (ut_engine_config.link); an engine that is alone has none.
 *
 * Each lane writes its own row alone and reads the rows of the others, every word by itself and without a lock: relaxed
 * loads and stores of 64 bits, which tear nowhere. No two words need to fit together, for all of them are measures that
 * are at most a turn old.
 */
#ifndef UT_LINK_H
#define UT_LINK_H

#include "core/base/ut.h"

typedef struct ut_link_row {
    _Alignas(64) uint64_t bytes; /* that came, since the lane's start */
    uint64_t packets;            /* that came */
    uint64_t numbers;            /* of packets that were sent, as far as the lane knows */
    uint64_t runs;               /* of those, lost in runs */
    uint64_t taken;              /* bytes of the host's pool that the lane's peers have outstanding (pool.h) */
    uint64_t told_at;            /* when the lane last told them: it does so in each of its turns */
} ut_link_row;

/* All zero: no lane has begun. */
typedef struct ut_link {
    ut_link_row lane[UT_LANES_MAX];
} ut_link;

#endif
