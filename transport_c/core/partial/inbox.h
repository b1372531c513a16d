/* SPDX-License-Identifier: Apache-2.0
 *
 * Partial jobs: what a host's ranks have given and wait for (inbox.c), and who starts the next op (activate.c).
 *
 * A *gift* is a contribution that a rank leaves for the next op, whenever it has one. When an op starts, for whatever
 * reason, it takes the gifts of all ranks of this host at once; a gift that comes afterwards is for the next op. So no
 * other host waits for this one because a trainer here is slow: the host contributes something fresh, something stale
 * (given for an earlier op), or nothing, and serves its shard anyway.
 */
#ifndef UT_INBOX_H
#define UT_INBOX_H

#include "core/base/calls.h"
#include "core/base/receipt.h"

enum {
    UT_ANSWER_GRACE_NS = 10 * 1000000, /* a call whose gift is in an op that ends so soon waits for that op */
};

/* A gift. Its bytes stay in the rank's own arena. */
typedef struct ut_gift {
    bool there;
    bool spent;         /* it is sticky, and an op has taken it already */
    uint64_t number;    /* number of the submission that gave it */
    uint64_t given_for; /* the op that it was given for; in a later op it is stale */
    uint64_t arrived;   /* its rank is ready for ops up to this one */
    bool calls;         /* its call waits for an answer: its rank is ready for any op */
    bool tried;         /* an op has failed with it, and answered nobody */
    ut_ns at;
    const uint8_t *src;
    ut_submission said;
} ut_gift;

/* What one rank has given and waits for. */
typedef struct ut_inbox {
    uint32_t session; /* UINT32_MAX: no trainer is attached */
    ut_calls *calls;  /* calls of that session that wait for an answer */
    bool gone;        /* a trainer was attached and has left; false while none has come yet */
    uint32_t absent;  /* ops in a row without this rank, since an op last waited for it */
    uint64_t given;   /* number of its newest submission that gave anything, plus one */
    uint64_t taken;   /* number of its newest submission that an op has taken, plus one */
    uint8_t state;    /* enum ut_slot: what it had given to the newest op */
    uint8_t result;   /* enum ut_slot: what it had given to the newest op that has ended with a result */
    ut_gift waiting;  /* the gift that waits for an op */
    ut_gift in_op;    /* the gift that is in the op which is open here */
} ut_inbox;

/* Which op starts when, by the options of its epoch. */
typedef struct ut_policy_set {
    uint8_t policy, tau;
    uint32_t quorum, probes;
} ut_policy_set;

typedef struct ut_partial {
    const struct ut_intake *intake; /* how its ranks give (intake.h) */
    void *own;                      /* what the intake alone knows; NULL: nothing */
    bool stale;                     /* something happened: ut_partial_look must see whether the next op starts */
    bool held;                      /* the newest results still lie in the memory of their op */
    bool answering;                 /* answers to calls are still being copied: no op starts meanwhile */
    uint64_t results;               /* op_seq of the newest op that has ended here with a result, plus one */
    ut_receipt tried;     /* of the newest op that has failed and answered nobody; it is not among those kept */
    uint64_t result_kept; /* number of that op's receipt among those kept, from 0 */
    ut_ns look_at;        /* the latest time to look whether an op starts; UT_NEVER: only when something happens */
    uint64_t due_seq;     /* an op that was due and is held up by a rank that is waited for */
    ut_ns due_at;         /* since when it is due */
    uint64_t told_seq;    /* op of the newest UT_EVENT_READY */
    uint16_t told_daemon; /* the ranks that it said are ready */
    ut_inbox rank[UT_LOCAL_MAX];
} ut_partial;

#endif
