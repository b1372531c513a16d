/* SPDX-License-Identifier: Apache-2.0
 *
 * Which host is to blame for an op that misses something (the culprit), and what ails that host. One pure function of
 * what this host has seen.
 *
 * Which host: every host accuses the hosts whose contribution it lacks. This host knows its own count, and learns the
 * accusations of the others from the masks of their shards. The host that is accused most is the culprit. A host that
 * accuses nearly all others is itself in trouble, and its accusations count against it: from behind a slow link all
 * others look slow. So all hosts name the same culprit.
 *
 * What ails it: it is gone, if its silence lasts. It is a slow receiver, if the packets that were lost on the way to it
 * were dropped by its own kernel. It is a slow sender, if it began late or paused and nothing was lost meanwhile. In
 * all other cases the path to it is slow.
 *
 * With two hosts there is no third one to ask: each names the other.
 */
#ifndef UT_CULPRIT_H
#define UT_CULPRIT_H

#include "core/base/receipt.h"

/* What this host saw of one host during an op. In the row of this host itself only these are set: `opened`,
 * `opened_after`, `came`, `lost`, `drops` and `accuses` (the hosts whose data it lacks). */
typedef struct ut_witness {
    bool gone;   /* it is known to be absent, or was silent from the start to the end */
    bool opened; /* it has called the op */
    /* When this host heard that, counted from the op's start here. For this host: how long the last of the other hosts
     * had had the op open before it. */
    ut_ns opened_after;
    ut_ns quiet;      /* longest time in which it had the op open and nothing was heard of it */
    uint64_t came;    /* data packets that came from it; for this host: from all */
    uint64_t again;   /* repairs among those: packets whose data was sent before, and lost */
    uint64_t lost;    /* packets to it that were lost; for this host: repairs that came from all */
    uint64_t drops;   /* datagrams that its kernel dropped */
    uint64_t missing; /* bytes of it that are missing here */
    uint64_t accuses; /* hosts that are not in all of its shard, as it says itself */
} ut_witness;

typedef struct ut_verdict {
    uint16_t host;   /* 0xffff for nobody */
    uint8_t trouble; /* enum ut_trouble */
} ut_verdict;

/* |elapsed| is how long the op took here. |seen| has |hosts| rows. */
ut_verdict ut_culprit_find(const ut_witness *seen, uint32_t hosts, uint32_t self, ut_ns elapsed);
/* The same once the shell has found out that UDP does not get through because of the hosts |blocked|: then one of them
 * is to blame, if the op lacks anything of it or it lacks anything. If it is a single host, all hosts name that one. */
ut_verdict ut_culprit_blocked(ut_verdict verdict, const ut_witness *seen, uint32_t hosts, uint32_t self,
                              uint64_t blocked);
/* What ails |host|, if |host| is to blame. */
uint8_t ut_culprit_trouble(const ut_witness *seen, uint32_t host, ut_ns elapsed);

#endif
