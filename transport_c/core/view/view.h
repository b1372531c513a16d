/* SPDX-License-Identifier: Apache-2.0
 *
 * What the hosts of a job have agreed on: which hosts own a shard, and the options that must be the same on all hosts
 * in an op. One plan says what holds before a certain op and what holds from that op on. The view is pure: it knows no
 * op and no connection. All that it asks of the job comes as a ut_view_here, and as this host's choice for each option.
 *
 * A host that is gone adds nothing up, so it must own no shard: nobody would average its part of a bucket. And what
 * some hosts transform, or cut otherwise, the others cannot add to their own. So one host decides for all: the lowest
 * one that is up and knows where the job stands. It announces what will hold, so far ahead that all hosts have heard of
 * it when they get there. If it dies, few may have heard its last plan; therefore every host passes on what it knows,
 * and of two plans the later one counts: plans only move forward, whoever decides next. While hosts still differ, each
 * record and each data packet names the view under which its sender opened the op (the tag). What was made under
 * another view is refused: then bytes are missing, and no value is wrong.
 *
 * A peer may lie, and it may be the one that decides. So a plan is believed for what it does, not for who sends it:
 *
 *   leaving   A plan may take out a host that the hearer itself does not see up, and no other host; never the hearer.
 *             In the first 16 ops of a new job, a host that the hearer has not met may be still to come, and stays.
 *   joining   is always believed. A dead host among the owners costs its own shard, as a host that sends nothing does.
 *   options   are believed within their ranges. None of their values does more harm than a slow op, or missing bytes.
 *   when      A plan holds at most 16 ops ahead. A later plan puts off a change that is under way by no more than that,
 *             and a plan that changes nothing puts off nothing.
 *
 * When a change is due by which a host leaves, and another host that is up still holds it, all hosts take the change
 * back: only a path was broken. Each time that a host which this one does not see is taken in, it stays for
 * longer (8 ops, 16, ... 512), and so does an option that this host has just changed. A host that has waited 16 ops in
 * vain for a change of owners decides itself, even while a plan is under way that changes options alone. So lies can
 * keep dead hosts among the owners, move options to and fro, and make hosts differ for a few ops now and then. Lies
 * cannot keep a host out that the others see, and cannot put off for ever what the others see.
 */
#ifndef UT_VIEW_H
#define UT_VIEW_H

#include "core/wire/packets.h"

/* What else is agreed on: places in ut_view_state.option. Each is a number from 0 to the `most` that the job gave. */
enum ut_view_option {
    UT_VIEW_CODEC, /* how contributions travel: enum ut_codec */
};

/* What the view asks of the job. The masks are of the other hosts. */
typedef struct ut_view_here {
    uint32_t self;
    uint64_t up, lost;  /* hosts that are up; hosts that were up and are not */
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
    bool joined;                    /* this host came to a running job */
    bool told;                      /* and has heard there what holds */
    uint8_t opened;                 /* ops that it has opened, counted up to UT_OPS_MAX */
    uint64_t met;                   /* hosts that were ever up here */
    uint64_t follow;                /* hosts that have opened an op in this life of theirs */
    uint64_t latest;                /* the op to which the change that is under way may be put off */
    uint64_t wants_since;           /* op from which on this host would have other owners; UT_NEVER: it would not */
    uint8_t said[UT_HOSTS_MAX];     /* the decider in each host's newest word */
    uint64_t holds[UT_HOSTS_MAX], holds_at[UT_HOSTS_MAX]; /* each host's owners, 0: unknown; our next op then */
    ut_view_wait keep[UT_HOSTS_MAX];                      /* when a host that was taken in unseen may leave */
    ut_view_wait retry[UT_HOSTS_MAX];                     /* when we ask again to have a host leave that others held */
    ut_view_wait calm[UT_VIEW_OPTIONS];                   /* when we may change an option again that we changed */
} ut_view;

/* Begins the view of a job of |hosts| that stands at op |first_op_seq|. In a new job (0) all hosts own a shard and the
 * options are |first|. |most|: the largest value of each option. */
void ut_view_init(ut_view *v, uint32_t hosts, uint64_t first_op_seq, const uint16_t most[UT_VIEW_OPTIONS],
                  const uint16_t first[UT_VIEW_OPTIONS]);
/* Returns what holds in op |op_seq|, as far as this host knows. */
static inline const ut_view_state *ut_view_at(const ut_view *v, uint64_t op_seq)
{
    return op_seq < v->plan.from ? &v->plan.before : &v->plan.after;
}
/* Returns whether this host joined a running job, has not yet been told what holds there, and has not yet opened
 * UT_OPS_MAX ops in vain. Those are counted, not told by their op_seq: the job runs on while the host comes to it. */
static inline bool ut_view_unsure(const ut_view *v)
{
    return v->joined && !v->told && v->opened < UT_OPS_MAX;
}
/* Names a state in 16 bits, 0 for the one in which all own and every option is 0. Two states that differ in five bits
 * or fewer, or in their owners among the lowest 16 hosts alone, have different tags. */
uint16_t ut_view_tag(const ut_view *v, const ut_view_state *state);
/* Op here->next_open is about to open. If this host decides, hosts that are gone leave the owners; hosts that are back
 * and open ops join them, and so do hosts that another one still holds; and options become as in |want|. */
void ut_view_decide(ut_view *v, const ut_view_here *here, const uint16_t want[UT_VIEW_OPTIONS]);
/* This host has opened an op. */
void ut_view_opened(ut_view *v);
/* Returns what a feedback of this host says of the view. */
ut_view_claim ut_view_say(const ut_view *v, const ut_view_here *here);
/* |host| sent |word|. What this host does not believe yet it may believe when it is said again. */
void ut_view_hear(ut_view *v, uint32_t host, const ut_view_claim *word, const ut_view_here *here);
/* |host| has opened an op, under whatever view. */
void ut_view_opens(ut_view *v, uint32_t host);
/* |host| is gone, or begins another life. */
void ut_view_forget(ut_view *v, uint32_t host);

#endif
