/* SPDX-License-Identifier: Apache-2.0 */
#include "core/path/conn.h"

size_t ut_conn_stash_bytes(uint64_t window)
{
    /* The smallest datagram has 33 bytes and costs 2 more; half as much again covers that and one burst over. */
    return (size_t)(window + window / 2 + UT_PACKET_MAX);
}

static void reset_sending(ut_conn *c)
{
    c->say.number = 0;
    c->say.again = UT_NEVER;
    c->tx.next = c->tx.base = c->tx.acked = 0;
    c->tx.bytes = c->tx.lost_bytes = c->tx.flying = c->tx.flying_bytes = c->tx.grant = 0;
    c->tx.srtt = c->tx.rttvar = c->tx.reorder = 0;
    c->tx.asked = c->tx.short_to = c->tx.hurry_to = 0;
    c->tx.gap = (ut_sent_gap){0};
    c->tx.last = 0;
    c->tx.loss_at = c->tx.blocked_since = UT_NEVER;
    c->tx.stuck = false;
    c->tx.pto_doublings = 0;
    c->peer.ce = 0;
    memset(&c->cc, 0, sizeof c->cc);
    c->mtu = (ut_mtu){0};
    ut_parity_reset_sending(&c->parity);
    memset(c->tx.sent, 0, sizeof *c->tx.sent * c->tx.room);
}

static void reset_receiving(ut_conn *c)
{
    c->rx.next = c->rx.bytes = c->rx.packets = c->rx.granted = c->rx.reported = c->rx.told = 0;
    c->say.due.at[UT_DUE_CREDIT] = UT_NEVER;
    c->say.along = false;
    c->rx.gap_due = UT_NEVER;
    c->rx.again_at = 0;
    c->rx.repeats = 0;
    c->rx.ce = 0;
    c->rx.time_us = UINT32_MAX;
    c->rx.time_at = 0;
    c->rx.least_at = c->rx.waited = 0;
    c->peer.feedback = c->peer.came[0] = c->peer.came[1] = c->peer.overtaken = 0;
    c->peer.control = 0;
    memset(c->peer.control_bits, 0, sizeof c->peer.control_bits);
    c->heard = c->peer.incast = c->shut = 0;
    ut_parity_reset_receiving(&c->parity);
    c->rx.stash_len = 0;
    c->rx.stash_bytes = 0;
    memset(c->rx.bits, 0, sizeof c->rx.bits);
}

uint32_t ut_conn_sent_room(uint32_t peers)
{
    uint32_t room = UT_SENT_MAX;
    while (room > UT_SENT_MIN && (uint64_t)room * peers > UT_SENT_ALL)
        room /= 2;
    return room;
}

void ut_conn_init(ut_conn *c, uint8_t *stash, size_t stash_size, ut_sent *sent, uint32_t room)
{
    assert(stash || stash_size == 0);
    assert(sent && room > 0 && (room & (room - 1)) == 0);
    memset(c, 0, sizeof *c);
    c->tx.sent = sent;
    c->tx.room = room;
    c->rx.stash = stash;
    c->rx.stash_size = stash_size;
    ut_due_settle(&c->say.due);
    reset_sending(c);
    reset_receiving(c);
}

void ut_conn_listen(ut_conn *c, uint32_t cid)
{
    reset_receiving(c);
    c->rx_cid = cid;
    c->listening = 1;
}

void ut_conn_connect(ut_conn *c, const ut_addr *data, const ut_addr *feedback, uint32_t cid, ut_ns now)
{
    assert(data->len <= sizeof data->bytes && feedback->len <= sizeof feedback->bytes);
    reset_sending(c);
    c->at[UT_PORT_DATA] = *data;
    c->at[UT_PORT_FEEDBACK] = *feedback;
    for (unsigned port = 0; port < 2; port++)
        ut_move_begin(&c->move[port], &c->at[port]);
    c->routed = false;
    c->tx_cid = cid;
    c->state = UT_CONN_UP;
    c->say.ask = true;
    ut_conn_speak_at(c, now);
}

void ut_conn_absent(ut_conn *c)
{
    c->state = UT_CONN_ABSENT;
    for (unsigned port = 0; port < 2; port++)
        ut_move_begin(&c->move[port], &c->move[port].home);
    ut_due_settle(&c->say.due);
    reset_sending(c);
}

ut_ns ut_conn_next_wake(const ut_conn *c)
{
    if (c->state != UT_CONN_UP)
        return UT_NEVER;
    assert(c->tx.flying <= c->tx.room && c->tx.base <= c->tx.next);
    ut_ns wake = UT_MIN2(UT_MIN2(ut_due_next(&c->say.due, UT_DUE_CREDIT), c->say.again), c->tx.loss_at);
    wake = UT_MIN2(wake, UT_MIN2(ut_move_wake(&c->move[UT_PORT_DATA]), ut_move_wake(&c->move[UT_PORT_FEEDBACK])));
    if (c->tx.flying)
        wake = UT_MIN2(wake, c->tx.last + ut_conn_pto(c));
    if (c->tx.blocked_since != UT_NEVER)
        wake = UT_MIN2(wake, c->tx.blocked_since + ut_conn_pto(c));
    return wake;
}
