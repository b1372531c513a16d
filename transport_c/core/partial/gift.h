/* SPDX-License-Identifier: Apache-2.0
 *
 * Partial jobs: what a host's ranks have given and wait for (gift.c), and who starts the next op (activate.c).
 *
 * A rank gives to its slot whenever it has something. When an op starts, for whatever reason, it takes what lies in the
 * slots of this host, all at once; what is given afterwards is for the next one. So a host is never waited for because
 * a trainer of it is slow: it contributes something fresh, something stale, or nothing, and serves its shard anyway.
 */
#ifndef UT_SLOT_H
#define UT_SLOT_H

#include "core/base/calls.h"

enum {
    UT_ANNOUNCE_HOLD_NS = 100 * 1000,  /* who is nobody's child in the activation tree is told this much later */
    UT_ANSWER_GRACE_NS = 10 * 1000000, /* a call whose contribution is in an op that ends so soon waits for that */
};

/* Something that a rank has given. Its bytes stay in the rank's own arena. */
typedef struct ut_gift {
    bool there;
    bool spent;         /* sticky, and an op has taken it already */
    uint64_t number;    /* of its submission */
    uint64_t given_for; /* an op; in a later one it is stale */
    uint64_t arrived;   /* its rank is ready for ops up to this one */
    bool calls;         /* its call waits for an answer: its rank is ready for whatever comes */
    ut_ns at;
    const uint8_t *src;
    ut_submission said;
} ut_gift;

typedef struct ut_rank_slot {
    uint32_t session; /* UINT32_MAX: no trainer is attached */
    ut_calls *calls;  /* of that session, that wait for an answer */
    bool gone;        /* one was, and has left; who has never come is still to come */
    uint32_t absent;  /* ops in a row that it was not in, since it was last waited for */
    uint64_t given;   /* number of its newest submission that gave anything, plus one */
    uint64_t taken;   /* and of the newest that an op has taken */
    uint8_t state;    /* enum ut_slot: in the newest op */
    uint8_t result;   /* and in the newest one that has ended with a result */
    ut_gift waiting;  /* in the slot */
    ut_gift in_op;    /* in the op that is open here */
} ut_rank_slot;

/* What may change while a job runs, at an op that all hosts know. */
typedef struct ut_policy_set {
    uint8_t policy, tau;
    uint32_t quorum, probes;
} ut_policy_set;

typedef struct ut_partial {
    bool on;
    bool announce;  /* trainers came or went since the last op started: peers are told who there is */
    bool stale;     /* somebody must look whether the next op starts */
    bool held;      /* its results lie in the memory of their op still */
    bool answering; /* calls are owed an answer that is not yet copied: no op starts meanwhile */
    uint8_t dtype;  /* of the results */
    uint64_t count;
    uint64_t results;     /* op_seq of the newest op that has ended here with a result, plus one */
    uint64_t result_kept; /* number of its receipt among those kept, from 0 */
    ut_ns look_at;        /* when to look at the latest; UT_NEVER: only when something happens */
    uint64_t due_seq;     /* an op that was due and is held up */
    ut_ns due_at;         /* since when */
    uint64_t told_seq;    /* the newest UT_EVENT_READY */
    uint16_t told_ready;
    ut_policy_set before;    /* in force below options.policy_from */
    uint16_t present_of[64]; /* per host: places whose trainer has not left, as far as is known */
    ut_rank_slot rank[UT_LOCAL_MAX];
} ut_partial;
_Static_assert(UT_HOSTS_MAX == 64, "of ut_partial.present_of");

#endif
