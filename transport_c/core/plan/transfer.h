/* SPDX-License-Identifier: Apache-2.0
 *
 * The bytes of one step of a schedule, cut into slots of the job's payload size. A receiving transfer knows which slots
 * came. A sending transfer knows which slots were acknowledged, which are lost and must be sent again, and which was
 * the last one to be sent for the first time. A packet says which slot it carries, and one bit says whether that slot
 * is new: there is no reorder buffer.
 */
#ifndef UT_TRANSFER_H
#define UT_TRANSFER_H

#include "core/base/receipt.h"

typedef struct ut_transfer {
    uint32_t slots;      /* 0 for an empty range */
    uint32_t done;       /* bits set in `bits`: came, or acknowledged */
    uint32_t next;       /* send: slots that were sent for the first time, of which `start` was the first */
    uint32_t start;      /* send: the slot with which it begins; after the last one it goes on with slot 0 */
    uint32_t stop;       /* send: how many slots may be sent for the first time as yet */
    uint32_t lost;       /* send: bits set in `again` */
    uint32_t lost_first; /* send: no bit below it is set in `again` */
    uint8_t closed;      /* 1: nothing more will come or go; what is missing stays missing */
    uint8_t why;         /* enum ut_missing: why slots are missing, once it is closed without them */
    uint8_t tail;        /* receive: a packet of the sender's last hundredth came */
    uint16_t weight;     /* receive: ranks in the payloads that came */
    uint32_t bytes_last; /* bytes of the last slot */
    ut_ns last;          /* receive: when the newest slot came; 0 for never */
    ut_ns open_at;       /* receive: when its sender got credit for it, if incast is limited; 0 for not yet */
    uint64_t *bits;
    uint64_t *again; /* send only */
    /* Receive, of blocks alone (ext/sparse/sparse.h), whose slots are not known before the last one came. */
    uint64_t *granules;      /* a bit for each granule that came; NULL for all other transfers */
    uint64_t whole, covered; /* bytes of the dense chunk, and of what of it came */
    /* Receive, of slots that stand for more bytes than they have: how many a full one stands for. `whole` is then what
     * all of them stand for, and receipts count such bytes. 0 for all other transfers. */
    uint32_t stands_for;
} ut_transfer;

/* How many 64-bit words a bitmap of |slots| needs. */
static inline size_t ut_transfer_words(uint32_t slots)
{
    return ((size_t)slots + 63) / 64;
}

static inline uint32_t ut_slots(uint64_t bytes, uint32_t payload)
{
    return (uint32_t)((bytes + payload - 1) / payload);
}

/* The |n|-th slot that is sent for the first time. */
static inline uint32_t ut_transfer_nth(const ut_transfer *t, uint32_t n)
{
    assert(n < t->slots && t->start < t->slots);
    uint32_t slot = t->start + n;
    return slot < t->slots ? slot : slot - t->slots;
}

/* It was closed because what it still would bring is not needed: nothing of it is missing. */
static inline bool ut_transfer_moot(const ut_transfer *t)
{
    return t->closed && t->why == UT_MISSING_NOTHING;
}

/* |bits| (and |again| for a sender, else NULL) hold ut_transfer_words(slots) each and are cleared here. */
void ut_transfer_init(ut_transfer *t, uint64_t bytes, uint32_t payload, uint64_t *bits, uint64_t *again);

static inline bool ut_transfer_complete(const ut_transfer *t)
{
    return t->done == t->slots;
}

/* Whether there is nothing more to wait for: it is complete or closed. */
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
/* The same of |slots| from |slot| on; of some of them it may have been known. */
void ut_transfer_mark_run(ut_transfer *t, uint32_t slot, uint32_t slots);
/* How many slots from |slot| on, |most| at most, are not marked; all of these follow each other. */
uint32_t ut_transfer_absent(const ut_transfer *t, uint32_t slot, uint32_t most);
/* Send: |slot| did not arrive; it is sent again unless it was acknowledged meanwhile. */
void ut_transfer_lose(ut_transfer *t, uint32_t slot);
/* Send: takes the lowest slot that must be sent again. False if there is none. */
bool ut_transfer_take_lost(ut_transfer *t, uint32_t *ret_slot);
/* Bytes of the slots, or of the granules, that have not come, moot or not; and of those that are missing. */
uint64_t ut_transfer_outstanding(const ut_transfer *t, uint32_t payload);
uint64_t ut_transfer_missing(const ut_transfer *t, uint32_t payload);
/* Receive, of slots that are sent in order: bytes of those that did not come although one behind them did. They were
 * lost on the way, where what is missing behind the newest may only be late. Of blocks all that is missing. */
uint64_t ut_transfer_gaps(const ut_transfer *t, uint32_t payload);
/* Bytes of what is missing if nothing came, in a transfer of |bytes|. */
static inline uint64_t ut_transfer_expected(const ut_transfer *t, uint64_t bytes)
{
    return t->granules || t->stands_for ? t->whole : bytes;
}
/* Bytes that receipts count for |slot|, of which |len| came. */
static inline uint64_t ut_transfer_counts(const ut_transfer *t, uint32_t slot, size_t len)
{
    if (!t->stands_for)
        return len;
    return slot + 1 == t->slots ? t->whole - (uint64_t)slot * t->stands_for : t->stands_for;
}

#endif
