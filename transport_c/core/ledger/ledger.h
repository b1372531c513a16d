/* SPDX-License-Identifier: Apache-2.0
 *
 * The ledger: what each host of a job *claims*, how much of that is believed, and who has been told what.
 *
 * Claims are monotone: floors only rise, and a record of an older op never takes the place of a newer one. Whoever lies
 * can therefore claim too much, once, but never take a word back. A floor is an op_seq below which everything is over.
 *
 * What this host says to one peer is its *state* towards that peer: the receive floor, and the newest record of each of
 * the UT_OPS_MAX places of an op. The state has a *version*, which rises with each change. A feedback names the version
 * of its sender's state, and the newest version of the other's that its sender has taken in. Records that the peer has
 * seen are left out. Both counts begin anew with the path.
 *
 * The ledger knows no op, no path and no clock.
 */
#ifndef UT_LEDGER_H
#define UT_LEDGER_H

#include "core/base/bits.h"
#include "core/wire/packets.h"

enum {
    /* State that the peer may not have seen is said again after the time that an answer may take, then after times that
     * double up to this one. */
    UT_STATE_GAP_MAX_NS = 50 * 1000 * 1000,
    /* News that nobody waits for is answered with whatever is said next, and by itself only after so long: a training
     * step, as a rule, so that the next op takes it along. Until then it is not said again. */
    UT_STATE_SLACK_NS = 1000 * 1000 * 1000,
};

/* What this host has said to one peer, and what the peer has seen of that. */
typedef struct ut_said {
    uint64_t version;             /* of the state as it was said last; 0: nothing was said yet */
    uint64_t seen;                /* the newest version that the peer has taken in */
    ut_ns at;                     /* when `version` was said first */
    ut_ns gap;                    /* time between two repeats; 0: begin anew */
    uint64_t rx_floor;            /* the floor that was said last */
    uint64_t first[UT_OPS_MAX];   /* the version that brought the first record of its op; 0: there is none */
    uint64_t since[UT_OPS_MAX];   /* the version that brought the record; 0: there is none; UINT64_MAX: it is stale */
    ut_record record[UT_OPS_MAX]; /* by op_seq mod UT_OPS_MAX: the record that was said last */
} ut_said;

/* One row: the claims of one host, and what it was told. Of this host itself the row holds `spoken` alone. */
typedef struct ut_claims {
    uint64_t rx_floor;            /* op_seq below which the peer has ended every op */
    uint64_t tx_floor;            /* op_seq below which it sends nothing more */
    uint64_t spoken;              /* the newest op_seq that it spoke of, in any of its lives, plus one; 0 for none */
    uint64_t state;               /* the newest version of its state that was taken in */
    ut_record record[UT_OPS_MAX]; /* by op_seq mod UT_OPS_MAX: the newest record that came */
    bool seen[UT_OPS_MAX];        /* whether a record came */
    ut_ns first_at[UT_OPS_MAX];   /* when the peer first spoke of the record's op */
    ut_ns at[UT_OPS_MAX];         /* when the record came; its time left counts from then */
    ut_said said;
} ut_claims;

typedef struct ut_ledger {
    uint32_t hosts, self;
    uint64_t lag;   /* no two hosts are further apart, in ops */
    ut_claims *row; /* one for each host */
} ut_ledger;

/* What may be believed: numbers that each host claims and that only rise. */
enum ut_fact {
    UT_FACT_SPOKEN, /* the newest op that it spoke of, plus one */
    UT_FACT_ENDED,  /* the op below which it has ended every op */
};

/* |rows| is zeroed memory for |hosts| rows. */
void ut_ledger_init(ut_ledger *l, ut_claims *rows, uint32_t hosts, uint32_t self);

/* ---- hear ---- */

/* The path from |host| begins anew: what it claimed before is void, except how far it has come. */
void ut_ledger_forget(ut_ledger *l, uint32_t host);
/* |host| has spoken of op |seq|; for this host itself: its ranks have. */
static inline void ut_ledger_spoke(ut_ledger *l, uint32_t host, uint64_t seq)
{
    l->row[host].spoken = UT_MAX2(l->row[host].spoken, seq + 1);
}
/* No peer that speaks the truth has come to op |seq| while this host is about to open op |next|. */
static inline bool ut_ledger_is_too_far(const ut_ledger *l, uint64_t next, uint64_t seq)
{
    return seq > next && seq - next > l->lag;
}
/* |f| speaks of ops to which no peer can have come, takes back a floor, or has seen a version that was never said.
 * |begun|: this host has opened ops of the job; before that it may not know where the job is, and learns it soon.
 * Changes nothing. */
bool ut_ledger_is_wild(const ut_ledger *l, uint32_t host, const ut_feedback *f, uint64_t next, bool begun);
/* What is new in a part of a feedback that is not wild: OLDER, it is older than what is there, which stays; FIRST, an
 * op was not spoken of before, or has started since. */
enum ut_heard { UT_HEARD_OLDER, UT_HEARD_NOTHING, UT_HEARD_NEWS, UT_HEARD_FIRST };
/* Takes one record. */
enum ut_heard ut_ledger_hear_record(ut_ledger *l, uint32_t host, const ut_record *r, ut_ns now);
/* Takes the floors of a feedback, and what it has seen of what this host said. */
enum ut_heard ut_ledger_hear_floors(ut_ledger *l, uint32_t host, const ut_feedback *f, uint64_t next);
/* The version that |f| says is new. */
bool ut_ledger_is_newer(const ut_ledger *l, uint32_t host, const ut_feedback *f);
/* All of a newer version was taken in: the next feedback to the host says so. */
void ut_ledger_took(ut_ledger *l, uint32_t host, const ut_feedback *f);

/* The newest record of |host| whose op has |seq|'s place, if it is of op |seq|; else NULL. */
static inline const ut_record *ut_ledger_record(const ut_ledger *l, uint32_t host, uint64_t seq)
{
    const ut_claims *c = &l->row[host];
    const unsigned at = seq % UT_OPS_MAX;
    return c->seen[at] && c->record[at].op_seq == seq ? &c->record[at] : NULL;
}

/* The local ranks of |host| whose trainer has not left, by its newest record; all where it has said nothing. */
uint16_t ut_ledger_attached(const ut_ledger *l, uint32_t host);

/* ---- say ---- */

/* The path to |host| begins anew: it has seen nothing. */
void ut_ledger_begin(ut_ledger *l, uint32_t host);
/* |f| holds the floors and records of all that this host has to say to |host| now. Gives it its version, a new one if
 * something has changed or |asks| wants an answer, which may take |answer|, and leaves out the records that |host| has
 * seen. A record of an
 * older op than the one that was said last in its place says nothing more. */
void ut_ledger_say(ut_ledger *l, uint32_t host, ut_feedback *f, bool asks, ut_ns answer, ut_ns now);
/* |host| asks, and so it hears this host: what is said to it is said again less soon. */
void ut_ledger_asked(ut_ledger *l, uint32_t host, ut_ns answer);
/* What this host says of op |seq| is about to change, if it has said anything: nobody has seen that yet. */
void ut_ledger_changes(ut_ledger *l, uint64_t seq);
/* What was said to |host| of op |seq|; NULL: nothing was. */
static inline const ut_record *ut_ledger_told(const ut_ledger *l, uint32_t host, uint64_t seq)
{
    const ut_said *s = &l->row[host].said;
    const unsigned at = seq % UT_OPS_MAX;
    return s->since[at] && s->record[at].op_seq == seq ? &s->record[at] : NULL;
}
/* The same as ut_ledger_attached() of this host, as |host| was told it last. */
uint16_t ut_ledger_told_attached(const ut_ledger *l, uint32_t host);
/* |host| has seen all that was said to it. */
static inline bool ut_ledger_is_seen(const ut_ledger *l, uint32_t host)
{
    return l->row[host].said.seen >= l->row[host].said.version;
}
/* |host| has seen what this host said last in one place; or has seen at least that this host is in that op. */
static inline bool ut_ledger_has_seen(const ut_ledger *l, uint32_t host, unsigned place)
{
    return l->row[host].said.since[place] <= l->row[host].said.seen;
}
static inline bool ut_ledger_has_met(const ut_ledger *l, uint32_t host, unsigned place)
{
    return l->row[host].said.first[place] <= l->row[host].said.seen;
}
/* |host| has seen that this host is in op |seq|, or in a later one that has its place. */
static inline bool ut_ledger_has_heard_of(const ut_ledger *l, uint32_t host, uint64_t seq)
{
    const ut_said *s = &l->row[host].said;
    const unsigned at = seq % UT_OPS_MAX;
    if (!s->since[at] || s->record[at].op_seq < seq)
        return false;
    return s->record[at].op_seq > seq || ut_ledger_has_met(l, host, at);
}
/* |host| has seen this host's record of op |seq| as it is now, or hears of a later op in its place. */
static inline bool ut_ledger_knows(const ut_ledger *l, uint32_t host, uint64_t seq)
{
    const ut_said *s = &l->row[host].said;
    const unsigned at = seq % UT_OPS_MAX;
    if (!s->since[at] || s->record[at].op_seq < seq)
        return false;
    return s->record[at].op_seq > seq || ut_ledger_has_seen(l, host, at);
}

/* ---- believe ---- */

/* How far |fact| has come by the word of the hosts |among|, a mask; this host's own word is |own|. Two hosts that claim
 * as much are believed, for at most one lies. The word of one host alone counts as far as |ahead| of |own|: one that
 * lies would else send all others out of reach. If |among| has one other host only, its word counts: nobody else can
 * say. Never less than |own|. */
uint64_t ut_ledger_believe(const ut_ledger *l, enum ut_fact fact, uint64_t among, uint64_t own, uint64_t ahead);
/* The same where a host that is farther need not have passed what lies between: the word of one alone counts up to
 * |alone|, and not at all beyond that. |only|: there is no other host, whether it is |among| them or not. */
uint64_t ut_ledger_confirmed(const ut_ledger *l, enum ut_fact fact, uint64_t among, bool only, uint64_t alone);

#endif
