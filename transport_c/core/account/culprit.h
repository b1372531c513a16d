/* SPDX-License-Identifier: Apache-2.0
 *
 * Whom to blame for an op that misses something, and what ails that host: one pure function of what this host has seen.
 *
 * Whom: every host accuses those whose contribution it lacks, this host by its own count and the others by the masks of
 * their shards; the most accused is the culprit. A host that accuses (nearly) everybody is itself in trouble, and its
 * accusations count against it: from behind a slow link all others look slow. So all hosts name the same one.
 *
 * What: gone, if its silence lasts; receiver, if the losses on the way to it are those of its own kernel; sender, if it
 * began late or paused and nothing was lost meanwhile; otherwise the path.
 *
 * With two hosts there is nobody to ask: each names the other.
 */
#ifndef UT_CULPRIT_H
#define UT_CULPRIT_H

#include "core/base/receipt.h"

/* What this host saw of another during an op. Of itself: `opened_after`, `drops` and `accuses` (whose data it lacks).
 */
typedef struct ut_witness {
    bool gone;   /* known to be absent, or silent from the start to the end */
    bool opened; /* it has called the op */
    ut_ns
        opened_after; /* when that was heard, from the op's start here; of ourselves: after the first word of others */
    ut_ns quiet;      /* longest time without a word from it while it had the op open */
    uint64_t came;    /* data packets of it that came; of ourselves: of all */
    uint64_t again;   /* of those, repairs: sent before, and lost */
    uint64_t lost;    /* packets to it that were lost; of ourselves: `again` of all */
    uint64_t drops;   /* datagrams that its kernel dropped */
    uint64_t missing; /* bytes of it that are missing here */
    uint64_t accuses; /* hosts that are not in all of its shard, by its own word */
} ut_witness;

typedef struct ut_verdict {
    uint16_t host;   /* 0xffff for nobody */
    uint8_t trouble; /* enum ut_trouble */
} ut_verdict;

/* |elapsed|: how long the op took here. |seen| has |hosts| rows. */
ut_verdict ut_culprit_find(const ut_witness *seen, uint32_t hosts, uint32_t self, ut_ns elapsed);
/* What ails |host|, if it is to blame. */
uint8_t ut_culprit_trouble(const ut_witness *seen, uint32_t host, ut_ns elapsed);

#endif
