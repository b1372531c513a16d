/* SPDX-License-Identifier: Apache-2.0
 *
 * One step's bytes, cut into slots of the job's payload size. A receiving transfer knows which slots came; a sending
 * one knows which were acknowledged, which are lost and must go again, and how far the fresh ones have got. A packet
 * says which slot it is, a bit says whether it is new: there is no reorder buffer.
 */
#ifndef UT_TRANSFER_H
#define UT_TRANSFER_H

#include "core/base/receipt.h"

typedef struct ut_transfer {
    uint32_t slots;      /* 0 for an empty range */
    uint32_t done;       /* bits set in `bits`: came, or acknowledged */
    uint32_t next;       /* send: the next slot that was never sent */
    uint32_t lost;       /* send: bits set in `again` */
    uint32_t lost_first; /* send: no bit below it is set in `again` */
    uint8_t closed;      /* 1: nothing more will come or go; what is missing stays missing */
    uint8_t why;         /* enum ut_missing, once closed with slots missing */
    uint8_t tail;        /* receive: a packet of the sender's last hundredth came */
    uint16_t weight;     /* receive: ranks in the payloads that came */
    uint32_t bytes_last; /* bytes of the last slot */
    ut_ns last;          /* receive: when the newest slot came; 0 for never */
    ut_ns open_at;       /* receive: when its sender got a window for it, where incast is gated; 0 for not yet */
    uint64_t *bits;
    uint64_t *again; /* send only */
} ut_transfer;

/* 64-bit words that a bitmap of |slots| needs. */
static inline size_t ut_transfer_words(uint32_t slots)
{
    return ((size_t)slots + 63) / 64;
}

static inline uint32_t ut_slots(uint64_t bytes, uint32_t payload)
{
    return (uint32_t)((bytes + payload - 1) / payload);
}

/* |bits| (and |again| for a sender, else NULL) hold ut_transfer_words(slots) each and are cleared here. */
void ut_transfer_init(ut_transfer *t, uint64_t bytes, uint32_t payload, uint64_t *bits, uint64_t *again);

static inline bool ut_transfer_complete(const ut_transfer *t)
{
    return t->done == t->slots;
}

/* Nothing more to wait for: complete or closed. */
static inline bool ut_transfer_over(const ut_transfer *t)
{
    return t->closed || t->done == t->slots;
}

static inline bool ut_transfer_has(const ut_transfer *t, uint32_t slot)
{
    return t->bits[slot / 64] >> (slot % 64) & 1;
}

static inline uint32_t ut_transfer_slot_bytes(const ut_transfer *t, uint32_t slot, uint32_t payload)
{
    return slot + 1 == t->slots ? t->bytes_last : payload;
}

/* Marks |slot| as come or acknowledged. False if it was already. */
bool ut_transfer_mark(ut_transfer *t, uint32_t slot);
/* Send: |slot| did not arrive; it goes again unless it was acknowledged by now. */
void ut_transfer_lose(ut_transfer *t, uint32_t slot);
/* Send: takes the lowest slot that must go again. False if there is none. */
bool ut_transfer_take_lost(ut_transfer *t, uint32_t *ret_slot);
/* Bytes of the slots that are missing. */
uint64_t ut_transfer_missing(const ut_transfer *t, uint32_t payload);

#endif
