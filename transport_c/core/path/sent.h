/* SPDX-License-Identifier: Apache-2.0
 *
 * What a sender remembers of the packets that it has numbered, until their fates are decided; and what a receiver notes
 * of those that came.
 */
#ifndef UT_SENT_H
#define UT_SENT_H

#include "core/base/ut.h"

/* What a packet number carried. */
typedef struct ut_sent {
    uint64_t op_seq;
    uint32_t slot;
    uint32_t time_us;   /* low 32 bits of the sender's clock */
    uint16_t bytes;     /* of the datagram */
    uint8_t step;       /* index in the op's schedule */
    uint8_t state : 2;  /* enum ut_sent_state */
    uint8_t pieces : 1; /* the packet went in pieces */
} ut_sent;
/* The slot of a parity packet, which has none: nothing is sent again for it. Its number is added, for each its own. */
#define UT_SENT_PARITY (UINT32_C(1) << 31)
enum { UT_SILENT_PROBES = 3 /* without an answer, after which all that flew is taken for lost */ };
/* LOST: others that were sent later came before it. SILENT: no answer came in time, to none of them. */
enum ut_sent_state { UT_SENT_NONE, UT_SENT_FLYING, UT_SENT_LOST, UT_SENT_SILENT };

/* The fate of |packets| is decided: |sent| and those with the next slots. Not |acked|: it is one, and lost. */
typedef void ut_sent_fn(void *context, const ut_sent *sent, uint32_t packets, bool acked);

/* Numbers |from| up to |to| of which no feedback had said anything when, |at| that time, one came that says more. */
typedef struct ut_sent_gap {
    uint64_t from, to;
    ut_ns at;
} ut_sent_gap;

/* Packets that came with numbers that follow each other. */
typedef struct ut_came {
    uint32_t packets;
    uint32_t bytes;   /* of all */
    uint32_t time_us; /* of the newest, on its sender's clock */
    bool ce;          /* the network says that it is full */
    bool asked;       /* the sender waits for a feedback */
} ut_came;

#endif
