/* SPDX-License-Identifier: Apache-2.0
 *
 * The ledger: what each host of a job has *claimed*, in the records and floors of its feedback, and how much of that is
 * believed. One row a host. Claims are monotone: floors only rise, and a record of an older op never takes the place of
 * a newer one. Whoever lies can therefore claim too much, once, but never take a word back.
 *
 * The ledger knows no op, no path and no clock. A floor is an op_seq below which everything is over.
 */
#ifndef UT_LEDGER_H
#define UT_LEDGER_H

#include "core/base/bits.h"
#include "core/wire/packets.h"

enum {
    UT_CLAIM_GAP_NS = 1000 * 1000,          /* news that a peer may not know is first repeated after this time, ... */
    UT_CLAIM_GAP_MAX_NS = 50 * 1000 * 1000, /* ... then after longer times, but at least this often */
};

/* One row: the claims of one host. Of this host itself the row holds `spoken` alone. */
typedef struct ut_claims {
    uint64_t rx_floor;            /* op_seq below which the peer has ended every op */
    uint64_t tx_floor;            /* op_seq below which it sends nothing more */
    uint64_t spoken;              /* the newest op_seq that it spoke of, in any of its lives, plus one; 0 for none */
    ut_ns gap;                    /* present time between two repeats; 0: begin anew */
    ut_record record[UT_OPS_MAX]; /* by op_seq mod UT_OPS_MAX: the newest record that came */
    bool seen[UT_OPS_MAX];        /* whether a record came */
    ut_ns first_at[UT_OPS_MAX];   /* when the peer first spoke of the record's op */
    ut_ns at[UT_OPS_MAX];         /* when the record came; its time left counts from then */
} ut_claims;

/* There is news for the peer: it is repeated soon. */
static inline void ut_claims_hurry(ut_claims *c)
{
    c->gap = UT_CLAIM_GAP_NS;
}

typedef struct ut_ledger {
    uint32_t hosts, self;
    ut_claims *row; /* one for each host */
} ut_ledger;

/* What may be believed: numbers that each host claims and that only rise. */
enum ut_fact {
    UT_FACT_SPOKEN, /* the newest op that it spoke of, plus one */
    UT_FACT_ENDED,  /* the op below which it has ended every op */
};

/* |rows| is zeroed memory for |hosts| rows. */
void ut_ledger_init(ut_ledger *l, ut_claims *rows, uint32_t hosts, uint32_t self);
/* |host| begins another life: what it claimed in the one before is void, except how far it has come. */
void ut_ledger_forget(ut_ledger *l, uint32_t host);

/* |host| has spoken of op |seq|; for this host itself: its ranks have. */
static inline void ut_ledger_spoke(ut_ledger *l, uint32_t host, uint64_t seq)
{
    l->row[host].spoken = UT_MAX2(l->row[host].spoken, seq + 1);
}
/* No peer that speaks the truth has come to op |seq| while this host is about to open op |next|. */
static inline bool ut_ledger_is_too_far(uint64_t next, uint64_t seq)
{
    return seq > next && seq - next > UT_LAG_MAX;
}
/* |f| speaks of ops to which no peer can have come, or takes back a floor. |begun|: this host has opened ops of the
 * job; before that it may not know where the job is, and learns it soon. Changes nothing. */
bool ut_ledger_is_wild(const ut_ledger *l, uint32_t host, const ut_feedback *f, uint64_t next, bool begun);
/* Takes the floors of a feedback that is not wild. */
void ut_ledger_hear_floors(ut_ledger *l, uint32_t host, const ut_feedback *f, uint64_t next);
/* Takes one record. False if it is older than what is there. */
bool ut_ledger_hear_record(ut_ledger *l, uint32_t host, const ut_record *r, ut_ns now);

/* The newest record of |host| whose op has |seq|'s place, if it is of op |seq|; else NULL. */
static inline const ut_record *ut_ledger_record(const ut_ledger *l, uint32_t host, uint64_t seq)
{
    const ut_claims *c = &l->row[host];
    const unsigned at = seq % UT_OPS_MAX;
    return c->seen[at] && c->record[at].op_seq == seq ? &c->record[at] : NULL;
}

/* How far |fact| has come by the word of the hosts |among|, a mask; this host's own word is |own|. Two hosts that claim
 * as much are believed, for at most one lies. The word of one host alone counts as far as |ahead| of |own|: one that
 * lies would else send all others out of reach. If |among| has one other host only, its word counts: nobody else can
 * say. Never less than |own|. */
uint64_t ut_ledger_believe(const ut_ledger *l, enum ut_fact fact, uint64_t among, uint64_t own, uint64_t ahead);

#endif
