/* SPDX-License-Identifier: Apache-2.0
 *
 * Both directions of one path, without ops: what one end sends the other takes, or loses.
 */
#ifndef UT_TEST_ONE_PATH_H
#define UT_TEST_ONE_PATH_H

#include "check.h"

#include "core/path/conn.h"

enum { WINDOW = 256 * 1024, PACKET = 1472, ROOM = 4096 };

static ut_conn tx, rx;
static uint8_t stash[2][512 * 1024];
static ut_sent sent[2][ROOM];
static uint32_t acked_slots, lost_slots, last_lost;
static uint64_t acked_sum; /* of the numbers of these slots, squared: of what was told and no other sum is likely */
static ut_ns now;

static void fate(void *context, const ut_sent *s, uint32_t packets, bool acked)
{
    (void)context;
    CHECK(packets >= 1 && (acked || packets == 1));
    if (acked) {
        acked_slots += packets;
        for (uint32_t i = 0; i < packets; i++)
            acked_sum += (uint64_t)(s->slot + i) * (s->slot + i);
    } else {
        lost_slots++;
        last_lost = s->slot;
    }
}

/* When an end has words for the other, UT_NEVER for none; whether it has a grant to tell. */
static ut_ns speaks_at(const ut_conn *c)
{
    return ut_due_next(&c->say.due, UT_DUE_FEEDBACK);
}

static bool has_grant(const ut_conn *c)
{
    return c->say.due.at[UT_DUE_CREDIT] != UT_NEVER;
}

static void feedback(void)
{
    static ut_feedback f;
    ut_conn_grant(&rx, rx.rx.bytes - rx.rx.stash_bytes + WINDOW, false, now);
    ut_conn_fill_feedback(&rx, &f, now);
    CHECK(!has_grant(&rx)); /* it says so, too */
    CHECK(!ut_conn_feedback_is_wild(&tx, &f));
    ut_conn_on_feedback(&tx, &f, now, fate, NULL);
    tx.heard = 1;
    tx.peer.feedback = f.number;
}

static void fresh(void)
{
    ut_addr a = {.len = 1};
    now = 5 * UT_SECOND;
    ut_conn_init(&tx, stash[0], ut_conn_stash_bytes(WINDOW), sent[0], ROOM);
    ut_conn_init(&rx, stash[1], ut_conn_stash_bytes(WINDOW), sent[1], ROOM);
    ut_conn_listen(&tx, 1);
    ut_conn_listen(&rx, 2);
    ut_conn_connect(&tx, &a, &a, 2, now);
    ut_conn_connect(&rx, &a, &a, 1, now);
    acked_slots = lost_slots = 0;
    feedback();
}

static void send_slots(uint32_t first, uint32_t count, bool arrive)
{
    for (uint32_t i = 0; i < count; i++) {
        CHECK(ut_conn_may_send(&tx, PACKET) > 0);
        uint64_t pn = ut_conn_sending(&tx, &(ut_sent){.op_seq = 7, .step = 1 << 6, .slot = first + i, .bytes = PACKET},
                                      1, false, now);
        if (arrive)
            ut_conn_received(&rx, pn, &(ut_came){1, PACKET, (uint32_t)(now / UT_US) & 0xffffff, false, false},
                             now + 100 * UT_US);
    }
    now += 100 * UT_US;
}

#endif
