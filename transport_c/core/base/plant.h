/* SPDX-License-Identifier: Apache-2.0
 *
 * Bugs that the core has on request, so that the simulator can show that it would find them. A canary is the simulator
 * around a core that was compiled with -DUT_PLANT=<one of these names>; in all other builds none is planted, each
 * question below is a constant, and the compiler drops what depends on it. `make canary` builds one for each name.
 */
#ifndef UT_PLANT_H
#define UT_PLANT_H

#include <stdbool.h>

/* Names with PARTIAL_ are found in worlds of partial jobs, those with SPARSE_ in worlds with sparse allreduces, those
 * with CODED_ in worlds with a coded job, those with TREE_ where that is a tree, those with HOSTILE_ where a host lies,
 * the others in all. Names with JUDGED_ make nothing wrong, only slow: rows of the matrix fail by them. */
enum ut_plant {
    UT_PLANT_NOTHING,
    UT_PLANT_ACCEPT_LATE,               /* data for a stage that has ended is folded */
    UT_PLANT_AGREE_WITH_HOLES,          /* an op of UT_SUBMIT_AGREE ends although a result has holes */
    UT_PLANT_ALL_RANKS_TOLD,            /* a host says that all its ranks are in its contribution */
    UT_PLANT_CODED_ENOUGH_EARLY,        /* an owner that has every slot but one calls off what is still to come */
    UT_PLANT_CODED_FOLDED_TWICE,        /* a second contribution of a group is added, too */
    UT_PLANT_CODED_HALF_A_SUM,          /* an owner sends what it has of a slot although a group is missing from it */
    UT_PLANT_CODED_OTHER_RESULT,        /* a call gets the newest result, whichever it asks for */
    UT_PLANT_CODED_OTHER_STEP,          /* what was given for a step that is over is taken by the next op */
    UT_PLANT_DOUBLE_FOLD,               /* a slot that came twice is folded twice */
    UT_PLANT_HOLES_NOT_IN_DIGEST,       /* what stands in the place of a missing result does not count for the digest */
    UT_PLANT_HOSTILE_CODED_TOLD,        /* what a host told of steps outlives it */
    UT_PLANT_HOSTILE_CODEC_UNTAGGED,    /* packets do not say which codec they travel in */
    UT_PLANT_HOSTILE_DECIDER,           /* a host that decides may take away owners that are up */
    UT_PLANT_HOSTILE_OWNERS,            /* any host may */
    UT_PLANT_JUDGED_FEEDBACK_LATE,      /* a host speaks of what has come 2 ms later than it should */
    UT_PLANT_JUDGED_POOL_GROWS,         /* the more is lost, the more may be on the way */
    UT_PLANT_LEAVES_EARLY,              /* a host ends its op although others wait for what goes through it */
    UT_PLANT_NO_CRC,                    /* no checksum is looked at */
    UT_PLANT_NO_TAIL_RULE,              /* a stage ends early before the tails were seen */
    UT_PLANT_OWNERS_COME_NOT_BACK,      /* a host that is back never owns a shard again */
    UT_PLANT_OWNERS_STAY,               /* a host that is gone keeps its shard */
    UT_PLANT_PARTIAL_ANYBODY_PICKED,    /* MAJORITY and SEEDED start an op by whoever is ready */
    UT_PLANT_PARTIAL_FREED_EARLY,       /* a trainer is told that a contribution is free which an op still reads */
    UT_PLANT_PARTIAL_LEFTOVERS_START,   /* what was given for an earlier op starts the next */
    UT_PLANT_PARTIAL_NEVER_OVERTAKEN,   /* what replaces a contribution is taken although that was in an op already */
    UT_PLANT_PARTIAL_NO_TAU,            /* a rank may be absent for any number of ops */
    UT_PLANT_PARTIAL_NULL_COUNTED,      /* the average is over all hosts, not over those that gave something */
    UT_PLANT_PARTIAL_QUORUM_OF_ONE,     /* QUORUM starts an op with one rank */
    UT_PLANT_PARTIAL_STALE_IS_FRESH,    /* what was given for an earlier op is said to be fresh */
    UT_PLANT_PARTIAL_TAKEN_TWICE,       /* a contribution stays in its slot after an op took it */
    UT_PLANT_SPARSE_ADDED_TWICE,        /* an owner adds the entries of a block twice */
    UT_PLANT_SPARSE_AGAIN_ADDED,        /* and once more when it is sent again */
    UT_PLANT_SPARSE_ANSWER_LOSES_RANK,  /* an answer says that a rank less is in it */
    UT_PLANT_SPARSE_ANY_IS_LAST,        /* nothing more is awaited when any block of a chunk has come */
    UT_PLANT_SPARSE_DIVIDED_BY_ENTRIES, /* a block without entries does not count its ranks in its range */
    UT_PLANT_SPARSE_HOLE_IS_ZERO,       /* where no answer came the result is zero */
    UT_PLANT_SPARSE_HOLE_NOT_DIVIDED,   /* or the sum of the host's own ranks, where it should be their average */
    UT_PLANT_SPARSE_ONE_GRANULE_OFF,    /* an answer is put one granule behind its place */
    UT_PLANT_SPARSE_OWNER_UNROUNDED,    /* an owner's own result is more exact than what it sends */
    UT_PLANT_SPARSE_RETURNS_COUNTED,    /* what the result holds is returned with what it lacks */
    UT_PLANT_TREE_OWN_LEFT_OUT,         /* in a tree a host sends up what those below gave, not its own */
    UT_PLANT_WRONG_DIVISOR,             /* the average is over the hosts that should be in it */
    UT_PLANT_WRONG_FORWARD,             /* where sums are forwarded, the own contribution alone is */
    UT_PLANT_WRONG_SIGN_KEY,            /* host 1 encodes with other signs */
};

#ifndef UT_PLANT
#define UT_PLANT UT_PLANT_NOTHING
#endif

static inline bool ut_planted(enum ut_plant bug)
{
    return UT_PLANT == bug;
}

#endif
