/* SPDX-License-Identifier: Apache-2.0
 *
 * What one peer host has *claimed* of its ops, in the records and floors of its feedback, and how soon this host
 * repeats news that the peer may not know. A floor is an op_seq below which everything is over. op_recv.c fills these
 * fields in. The path over which the feedback came (path/conn.h) knows nothing of them.
 */
#ifndef UT_CLAIMS_H
#define UT_CLAIMS_H

#include "core/wire/packets.h"

enum {
    UT_CLAIM_GAP_NS = 1000 * 1000,          /* news that a peer may not know is first repeated after this time, ... */
    UT_CLAIM_GAP_MAX_NS = 50 * 1000 * 1000, /* ... then after longer times, but at least this often */
};

typedef struct ut_claims {
    uint64_t rx_floor;            /* op_seq below which the peer has ended every op */
    uint64_t tx_floor;            /* op_seq below which it sends nothing more */
    ut_ns gap;                    /* present time between two repeats; 0: begin anew */
    ut_record record[UT_OPS_MAX]; /* by op_seq mod UT_OPS_MAX: the newest record that came */
    bool seen[UT_OPS_MAX];        /* whether a record came */
    ut_ns first_at[UT_OPS_MAX];   /* when the peer first spoke of the record's op */
    ut_ns at[UT_OPS_MAX];         /* when the record came; its time left counts from then */
} ut_claims;

/* The peer begins another life: its earlier claims are void. */
static inline void ut_claims_forget(ut_claims *c)
{
    c->rx_floor = c->tx_floor = 0;
    memset(c->seen, 0, sizeof c->seen);
}

/* There is news for the peer: it is repeated soon. */
static inline void ut_claims_hurry(ut_claims *c)
{
    c->gap = UT_CLAIM_GAP_NS;
}

#endif
