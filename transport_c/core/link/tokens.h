/* SPDX-License-Identifier: Apache-2.0
 *
 * A token bucket: what one job may send now by its administrator's limit. It sends in quanta that keep GSO worth its
 * while and the thread from waking for every packet.
 */
#ifndef UT_TOKENS_H
#define UT_TOKENS_H

#include "core/base/ut.h"

enum {
    UT_TOKENS_QUANTUM_NS = 250 * 1000, /* how much is sent at once; with less the thread would only wake and sleep */
    UT_TOKENS_QUANTUM_PACKETS = 16,    /* the least that is sent at once */
    UT_TOKENS_MAX = 128 << 10,         /* bytes that a thread that woke late may make up for */
};

typedef struct ut_tokens {
    uint64_t limit; /* bytes per second that the administrator allows the job; 0: any */
    uint64_t bytes; /* that may go now */
    ut_ns at;       /* when they were counted */
    bool spent;     /* what may be sent at once is used up: the next quantum must be whole */
    bool held;      /* data waits for tokens alone */
} ut_tokens;

/* |limit|: bytes per second, 0 for none. */
void ut_tokens_init(ut_tokens *t, uint64_t limit);
/* Bytes for which it is worth waking, at |rate| bytes a second. */
uint64_t ut_tokens_quantum(uint64_t rate, uint32_t packet);
/* The engine begins to look for data to send. */
static inline void ut_tokens_look(ut_tokens *t)
{
    t->held = false;
}
/* Returns how many of |n| packets of |packet| bytes may be sent. If none may, the bucket remembers that data waits. */
uint32_t ut_tokens_take(ut_tokens *t, uint32_t n, uint32_t packet, ut_ns now);
void ut_tokens_sent(ut_tokens *t, uint32_t bytes);
/* When the data that waits may be sent; UT_NEVER if no data waits. */
ut_ns ut_tokens_wake(const ut_tokens *t, uint32_t packet);
/* For how long nothing is sent between two quanta, though data waits; 0 without a limit. */
ut_ns ut_tokens_pause(const ut_tokens *t, uint32_t packet);

#endif
