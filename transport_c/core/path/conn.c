/* SPDX-License-Identifier: Apache-2.0 */
#include "core/path/conn.h"

size_t ut_conn_stash_bytes(uint64_t window)
{
    /* The smallest datagram has 33 bytes and costs 2 more; half as much again covers that and one burst over. */
    return (size_t)(window + window / 2 + UT_PACKET_MAX);
}

static void reset_sending(ut_conn *c)
{
    c->feedback_number = 0;
    c->tx_next = c->tx_base = c->tx_acked = 0;
    c->tx_bytes = c->tx_lost_bytes = c->tx_flying = c->tx_flying_bytes = c->tx_grant = 0;
    c->srtt = c->rttvar = 0;
    c->tx_last = 0;
    c->loss_at = c->blocked_since = UT_NEVER;
    c->pto_doublings = 0;
    c->peer_ce = 0;
    memset(&c->cc, 0, sizeof c->cc);
    ut_pacer_reset(&c->pacer);
    c->mtu = (ut_mtu){0};
    memset(c->sent, 0, sizeof c->sent);
}

static void reset_receiving(ut_conn *c)
{
    c->rx_next = c->rx_bytes = c->rx_reported = 0;
    c->rx_gap_due = UT_NEVER;
    c->rx_ce = 0;
    c->rx_time_us = UINT32_MAX;
    c->rx_time_at = 0;
    c->peer_feedback = c->overtaken = 0;
    c->peer_rx_floor = c->peer_tx_floor = 0;
    c->heard = c->peer_incast = c->shut = 0;
    c->stash_len = 0;
    c->stash_bytes = 0;
    memset(c->rx_bits, 0, sizeof c->rx_bits);
    memset(c->peer_record_seen, 0, sizeof c->peer_record_seen);
}

void ut_conn_init(ut_conn *c, uint64_t window, uint8_t *stash, size_t stash_size)
{
    memset(c, 0, sizeof *c);
    c->stash = stash;
    c->stash_size = stash_size;
    c->rx_window = window;
    ut_conn_expect(c, window);
    c->feedback_at = UT_NEVER;
    c->record_gap = UT_HOLD_NS;
    reset_sending(c);
    reset_receiving(c);
}

void ut_conn_expect(ut_conn *c, uint64_t window)
{
    window = UT_MIN2(window, c->rx_window);
    c->rx_quantum = UT_MAX2(UT_MIN2(window / 4, 256u << 10), UT_MIN2(window / 2, UT_QUANTUM_BYTES));
}

void ut_conn_listen(ut_conn *c, uint32_t cid)
{
    reset_receiving(c);
    c->rx_cid = cid;
    c->listening = 1;
}

void ut_conn_connect(ut_conn *c, const ut_addr *data, const ut_addr *feedback, uint32_t cid, ut_ns now)
{
    reset_sending(c);
    c->data = *data;
    c->feedback = *feedback;
    c->tx_cid = cid;
    c->state = UT_CONN_UP;
    c->record_gap = UT_HOLD_NS;
    c->ask = true;
    ut_conn_speak_at(c, now);
}

void ut_conn_absent(ut_conn *c)
{
    c->state = UT_CONN_ABSENT;
    c->feedback_at = UT_NEVER;
    reset_sending(c);
}

ut_ns ut_conn_next_wake(const ut_conn *c)
{
    if (c->state != UT_CONN_UP)
        return UT_NEVER;
    ut_ns wake = UT_MIN2(UT_MIN2(c->feedback_at, c->loss_at), c->pacer.held_until);
    if (c->tx_flying)
        wake = UT_MIN2(wake, c->tx_last + ut_conn_pto(c));
    if (c->blocked_since != UT_NEVER)
        wake = UT_MIN2(wake, c->blocked_since + ut_conn_pto(c));
    return wake;
}
