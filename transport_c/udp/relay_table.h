/* SPDX-License-Identifier: Apache-2.0
 *
 * Whose packets a relay forwards, and where to. Pure: no system call, no clock, no memory of its own.
 *
 * An *end* is one lane of one host of a job. It has two sockets, for data and for feedback, and the relay knows of each
 * from where its packets come. A *way* leads from one end to another: packets under one connection id, which the end
 * that receives them has chosen. A packet is forwarded only if its id has a way and it comes from one of the two
 * sockets of the way's first end; it goes to the socket of the other end that has the same part. So nothing that a
 * stranger sends goes anywhere, and nothing is ever sent to where no end has said, from there, that it is.
 */
#ifndef UT_UDP_RELAY_TABLE_H
#define UT_UDP_RELAY_TABLE_H

#include "core/wire/burst.h"

enum {
    UT_RELAY_ENDS = UT_JOBS_MAX * UT_LANES_MAX * 16, /* 16 hosts of each job, each with all lanes */
    UT_RELAY_WAYS = 8 * UT_RELAY_ENDS,               /* to 8 others, in the mean */
    UT_RELAY_HEADS = UT_RELAY_WAYS,
};

typedef struct ut_relay_end {
    bool used;
    ut_addr host;  /* only its address counts: from no other one this end may say where it is */
    ut_addr at[2]; /* by enum ut_port, as the relay sees it; len 0: not known */
    uint32_t ways; /* that begin or end here */
} ut_relay_end;

typedef struct ut_relay_way {
    bool used;
    uint32_t cid;
    uint32_t from, to; /* ends */
    uint32_t next;     /* way of the same head, and 1; 0: none */
    uint64_t packets, bytes;
} ut_relay_way;

typedef struct ut_relay_table {
    ut_relay_end end[UT_RELAY_ENDS];
    ut_relay_way way[UT_RELAY_WAYS];
    uint32_t head[UT_RELAY_HEADS];
} ut_relay_table;

/* Whether two socket addresses are of one host, whatever their ports. */
bool ut_relay_same_host(const ut_addr *a, const ut_addr *b);
/* Returns the number of a new end, or UT_ERR_FULL. */
int ut_relay_end_add(ut_relay_table *t, const ut_addr *host);
/* Ends its ways, too. UT_ERR_UNKNOWN if there is no such end. */
int ut_relay_end_remove(ut_relay_table *t, uint32_t end);
/* The end's socket |port| (enum ut_port) is at |at|. UT_ERR_UNKNOWN: there is no such end or port; UT_ERR_ARGUMENT:
 * that is another host than the end's. */
int ut_relay_end_is_at(ut_relay_table *t, uint32_t end, uint32_t port, const ut_addr *at);
/* Returns the number of a new way for packets under |cid|, or of the same one if it is there. UT_ERR_UNKNOWN: there are
 * no such two ends; UT_ERR_EXISTS: |from| sends under this id to another end; UT_ERR_FULL. */
int ut_relay_way_add(ut_relay_table *t, uint32_t from, uint32_t to, uint32_t cid);
int ut_relay_way_remove(ut_relay_table *t, uint32_t way);
/* The way of a packet under |cid| that comes from |from|, and in |ret_to| where it goes; NULL: nowhere. */
ut_relay_way *ut_relay_find(ut_relay_table *t, uint32_t cid, const ut_addr *from, const ut_addr **ret_to);

#endif
