/* SPDX-License-Identifier: Apache-2.0
 *
 * What the hosts of a job have agreed on: who owns, and the options that must be the same on all of them in an op. One
 * plan says what holds before an op and what holds from it on. Pure: no op, no connection; all that is asked of the job
 * comes as a ut_view_here, and as what this host would choose for each option.
 *
 * A host that is gone adds nothing up, so it must own no shard: its part of every bucket would be averaged by nobody.
 * And what some hosts transform, or cut otherwise, the others cannot add to theirs. So one host decides for all: the
 * lowest one that is up and knows where the job stands. It says what will hold, far enough ahead that all have heard
 * it when they get there. What it said may have reached few before it died, so everybody passes on what he knows, and
 * of two plans the later counts: plans only ever move forward, whoever decides next. Where hosts still differ, each
 * record and each data packet says under which view its sender opened the op (the tag), and what was made under another
 * one is refused: bytes are missing then, never wrong.
 *
 * A peer may lie, and it may be the one that decides. So a plan is believed for what it does, not for who says it:
 *
 *   leaving   of a host that the hearer itself does not see up, nobody else; never of the hearer. In the first 16
 *             ops of a new job a host that it has not met may be still to come, and does not leave either
 *   joining   always. A dead host in the set costs its own shard, as a host that sends nothing does
 *   options   each within its range. None can do more harm than a slow op, or one that lacks bytes
 *   when      at most 16 ops ahead; a change that is under way is put off by no more than that, and a plan that changes
 *             nothing moves nothing
 *
 * When a change is due by which a host leaves, and another that is up still holds it, all take it back: only a path was
 * broken. Each time that a host is taken in that one does not see, it stays for longer (8 ops, 16, ... 512); so does an
 * option that this host has just changed. And whoever waits for a change of owners in vain, 16 ops long, decides
 * himself, even while a plan is under way that changes options alone. So lies can keep dead hosts in the set, move
 * options to and fro, and make hosts differ for a few ops now and then; they can keep nobody out whom the others see,
 * and not for ever put off what they see.
 */
#ifndef UT_VIEW_H
#define UT_VIEW_H

#include "core/wire/packets.h"

/* What else is agreed on: places in ut_view_state.option. Each is a number from 0 to the `most` that the job gave. */
enum ut_view_option {
    UT_VIEW_CODEC, /* how contributions travel: enum ut_codec */
};

/* What the view asks of the job. Masks are of the other hosts. */
typedef struct ut_view_here {
    uint32_t self;
    uint64_t up, lost;  /* that are up; that were and are not */
    uint64_t next_open; /* op_seq that this host opens next */
} ut_view_here;

typedef struct ut_view_wait {
    uint64_t until; /* op_seq */
    uint8_t times;
} ut_view_wait;

typedef struct ut_view {
    ut_view_plan plan;
    uint16_t most[UT_VIEW_OPTIONS]; /* of each option */
    uint64_t all;                   /* the job's hosts */
    uint64_t sure_from;             /* before this op_seq a host that joined a running job knows nothing; 0 once told */
    uint64_t met;                   /* hosts that were ever up here */
    uint64_t missed_from;           /* and from it on a host that it never met is gone; UT_NEVER in a new job */
    uint64_t follow;                /* hosts that have opened an op in this life of theirs */
    uint64_t latest;                /* to what op the change that is under way may be put off */
    uint64_t wants_since;           /* op from which on this host would have other owners; UT_NEVER: it would not */
    uint8_t said[UT_HOSTS_MAX];     /* the decider in each host's newest word */
    uint64_t holds[UT_HOSTS_MAX], holds_at[UT_HOSTS_MAX]; /* whom that has for owners, 0 unknown; our next op then */
    ut_view_wait keep[UT_HOSTS_MAX];                      /* of one that was taken in unseen: when it may leave */
    ut_view_wait retry[UT_HOSTS_MAX];   /* of one that others held: when we try again to have it leave */
    ut_view_wait calm[UT_VIEW_OPTIONS]; /* of one that we changed: when we may change it again */
} ut_view;

/* |hosts| of the job. |first_op_seq|: where it stands; 0 for a new one, in which all own and the options are |first|.
 * |most|: of each option. */
void ut_view_init(ut_view *v, uint32_t hosts, uint64_t first_op_seq, const uint16_t most[UT_VIEW_OPTIONS],
                  const uint16_t first[UT_VIEW_OPTIONS]);
/* What holds in op |op_seq|, as far as is known. */
static inline const ut_view_state *ut_view_at(const ut_view *v, uint64_t op_seq)
{
    return op_seq < v->plan.from ? &v->plan.before : &v->plan.after;
}
/* It joined a running job, and nobody has told it what holds there. */
static inline bool ut_view_unsure(const ut_view *v, uint64_t next_open)
{
    return next_open < v->sure_from;
}
/* Names a state in 16 bits, 0 for the one in which all own and every option is 0. Two states that differ in five bits
 * or fewer, or in their owners among the lowest 16 hosts alone, have different tags. */
uint16_t ut_view_tag(const ut_view *v, const ut_view_state *state);
/* Op here->next_open is about to open. If it is this host that decides, those that are gone leave the owners, those
 * that are back and open ops join them, and whom another still holds; and options become as in |want|. */
void ut_view_decide(ut_view *v, const ut_view_here *here, const uint16_t want[UT_VIEW_OPTIONS]);
/* What a feedback says of it. */
ut_view_claim ut_view_say(const ut_view *v, const ut_view_here *here);
/* |host| sent |word|. What is not believed yet may be when it is said again. */
void ut_view_hear(ut_view *v, uint32_t host, const ut_view_claim *word, const ut_view_here *here);
/* |host| has opened an op, under whatever view. */
void ut_view_opens(ut_view *v, uint32_t host);
/* |host| is gone, or begins another life. */
void ut_view_forget(ut_view *v, uint32_t host);

#endif
