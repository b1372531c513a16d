/* SPDX-License-Identifier: Apache-2.0
 *
 * What one peer host has claimed of its ops, in the records and floors of its feedback, and how soon this host repeats
 * what that peer may not know. Filled by op_recv.c. The path that the feedback came over (path/conn.h) knows none of
 * it.
 */
#ifndef UT_CLAIMS_H
#define UT_CLAIMS_H

#include "core/wire/packets.h"

enum {
    UT_CLAIM_GAP_NS = 1000 * 1000,          /* what a peer may not know is repeated after this long at first, ... */
    UT_CLAIM_GAP_MAX_NS = 50 * 1000 * 1000, /* ... and then ever more seldom, but at least this often */
};

typedef struct ut_claims {
    uint64_t rx_floor;            /* op_seq below which the peer has ended every op */
    uint64_t tx_floor;            /* op_seq below which it sends nothing more */
    ut_ns gap;                    /* present distance between two repeats; 0: begin anew */
    ut_record record[UT_OPS_MAX]; /* by op_seq mod UT_OPS_MAX: the newest that came */
    bool seen[UT_OPS_MAX];        /* one came */
    ut_ns first_at[UT_OPS_MAX];   /* when its op was first heard of */
    ut_ns at[UT_OPS_MAX];         /* when the record came, and with it the time left */
} ut_claims;

/* The peer begins another life: what it claimed in the one before is void. */
static inline void ut_claims_forget(ut_claims *c)
{
    c->rx_floor = c->tx_floor = 0;
    memset(c->seen, 0, sizeof c->seen);
}

/* There is news for the peer: it is said soon. */
static inline void ut_claims_hurry(ut_claims *c)
{
    c->gap = UT_CLAIM_GAP_NS;
}

#endif
