/* SPDX-License-Identifier: Apache-2.0
 *
 * Among whom the bucket of an op is cut. A host that is gone adds nothing up, so it must own no shard: its part of
 * every bucket would be averaged by nobody. Pure: no op, no connection.
 *
 * All hosts must cut an op's bucket alike. As with the Hadamard switch one decides for all, the lowest host that is up
 * and knows where the job stands, and says so far enough ahead that all have heard it when they get there. What it said
 * may have reached few before it died, so everybody passes on what he knows, and of two plans the later counts: plans
 * only ever move forward, whoever decides next. Where hosts still differ, each record and each data packet says how its
 * sender cut (the tag), and what was cut otherwise is refused: bytes are missing then, never wrong.
 *
 * A peer may lie, and it may be the one that decides. So a plan is believed for what it does, not for who says it:
 *
 *   leaving   of a host that the hearer itself does not see up, nobody else; never of the hearer. In the first 16
 *             ops of a new job a host that it has not met may be still to come, and does not leave either
 *   joining   always. A dead host in the set costs its own shard, as a host that sends nothing does
 *   when      at most 16 ops ahead; a change that is under way is put off by no more than that, and a plan that changes
 *             nothing moves nothing
 *
 * When a change is due by which a host leaves, and another that is up still holds it, all take it back: only a path was
 * broken.
 * Each time that a host is taken in that one does not see, it stays for longer (8 ops, 16, ... 512). And whoever waits
 * for a change in vain, 16 ops long, decides himself. So lies can keep dead hosts in the set, and make hosts differ for
 * a few ops now and then; they can keep nobody out whom the others see, and not for ever put off what they see.
 */
#ifndef UT_OWNERS_H
#define UT_OWNERS_H

#include "core/base/ut.h"

/* Masks of hosts: the owners in ops below `from`, and from it on. Of two plans the one with the higher `from` counts,
 * of two with the same that with the larger masks. */
typedef struct ut_owners_plan {
    uint64_t before, after;
    uint64_t from; /* op_seq */
} ut_owners_plan;

enum { UT_DECIDER_NONE = 0xff };

/* What a feedback says of it. */
typedef struct ut_owners_word {
    ut_owners_plan plan;
    uint8_t decider; /* lowest host that decides, as far as the sender itself hears; NONE: it knows nothing yet */
} ut_owners_word;

typedef struct ut_owners_wait {
    uint64_t until; /* op_seq */
    uint8_t times;
} ut_owners_wait;

typedef struct ut_owners {
    ut_owners_plan plan;
    uint64_t all;               /* the job's hosts */
    uint64_t sure_from;         /* before this op_seq a host that joined a running job knows nothing; 0 once told */
    uint64_t met;               /* hosts that were ever up here */
    uint64_t missed_from;       /* and from it on a host that it never met is gone; UT_NEVER in a new job */
    uint64_t follow;            /* hosts that have opened an op in this life of theirs */
    uint64_t latest;            /* to what op the change that is under way may be put off */
    uint64_t wants_since;       /* op from which on this host would decide otherwise; UT_NEVER: it would not */
    uint8_t said[UT_HOSTS_MAX]; /* the decider in each host's newest word */
    uint64_t holds[UT_HOSTS_MAX], holds_at[UT_HOSTS_MAX]; /* whom that has for owners, 0 unknown; our next op then */
    ut_owners_wait keep[UT_HOSTS_MAX];                    /* of one that was taken in unseen: when it may leave */
    ut_owners_wait retry[UT_HOSTS_MAX]; /* of one that others held: when we try again to have it leave */
} ut_owners;

/* |hosts| of the job. |first_op_seq|: where it stands; 0 for a new one, in which all own. */
void ut_owners_init(ut_owners *o, uint32_t hosts, uint64_t first_op_seq);
static inline uint64_t ut_owners_of(const ut_owners *o, uint64_t op_seq)
{
    return op_seq < o->plan.from ? o->plan.before : o->plan.after;
}
/* It joined a running job, and nobody has told it who owns there. */
static inline bool ut_owners_unsure(const ut_owners *o, uint64_t next_open)
{
    return next_open < o->sure_from;
}
/* Names a set of owners in 16 bits, 0 for all: the hosts that own nothing, or of more than 16 hosts a hash of them. */
uint16_t ut_owners_tag(const ut_owners *o, uint64_t owners);
/* Op |next_open| is about to open on host |self|. If it is this host that decides, those that are gone leave the set,
 * and those that are back and open ops join it, and whom another still holds. |up|, |lost|: masks of the others that
 * are up; that were and are not. */
void ut_owners_decide(ut_owners *o, uint32_t self, uint64_t up, uint64_t lost, uint64_t next_open);
ut_owners_word ut_owners_say(const ut_owners *o, uint32_t self, uint64_t up, uint64_t next_open);
/* |host| sent |word|; host |self| sees |up|. What is not believed yet may be when it is said again. */
void ut_owners_hear(ut_owners *o, uint32_t self, uint32_t host, const ut_owners_word *word, uint64_t up,
                    uint64_t next_open);
/* |host| has opened an op, among whatever owners. */
void ut_owners_opens(ut_owners *o, uint32_t host);
/* |host| is gone, or begins another life. */
void ut_owners_forget(ut_owners *o, uint32_t host);

#endif
