/* SPDX-License-Identifier: Apache-2.0
 *
 * What a path makes of loss: which packets it takes for lost, and when, which credit comes back, and what is said
 * again.
 */
#include "one_path.h"

/* A grant that is lost is told again, ever more seldom, until data come. */
static void ut_conn__a_grant_is_repeated_until_data_come(void)
{
    fresh();
    rx.tx.srtt = 200 * UT_US;
    rx.tx.rttvar = 10 * UT_US;
    ut_ns due = ut_conn_grant_again(&rx, now), waits = due - now;
    CHECK_EQ(waits, 240 * UT_US);
    CHECK(!has_grant(&rx));
    for (unsigned i = 1; i < 6; i++) {
        now = due;
        due = ut_conn_grant_again(&rx, now);
        CHECK(has_grant(&rx));
        CHECK_EQ(due - now, waits << i);
        ut_grant g;
        ut_conn_fill_grant(&rx, &g);
        CHECK_EQ(g.grant, WINDOW);
        CHECK(!has_grant(&rx));
    }
    send_slots(0, 1, true);
    CHECK_EQ(ut_conn_grant_again(&rx, now) - now, waits);
}

/* Early data uses credit up; a repair of something older must still fit. */
static void ut_conn__lost_bytes_come_back_as_credit(void)
{
    fresh();
    uint32_t n = ut_conn_may_send(&tx, PACKET);
    uint8_t packet[PACKET] = {0};
    send_slots(0, 1, false);
    for (uint32_t i = 1; i < n; i++) {
        uint64_t pn =
            ut_conn_sending(&tx, &(ut_sent){.op_seq = 8, .step = 1 << 6, .slot = i, .bytes = PACKET}, 1, false, now);
        CHECK(ut_conn_stash(&rx, packet, PACKET));
        ut_conn_received(&rx, pn, &(ut_came){1, PACKET, 0, false, false}, now);
    }
    now += UT_MS;
    feedback();
    CHECK_EQ(lost_slots, 1);
    CHECK_EQ(last_lost, 0);
    CHECK_EQ(ut_conn_may_send(&tx, PACKET), 1); /* all else is stashed: credit for the repair alone */
}

/* The same of a short packet, which gives back less than a full one needs. */
static void ut_conn__a_short_lost_packet_has_credit_for_its_repair(void)
{
    enum { SHORT = 100 };
    fresh();
    uint8_t packet[PACKET] = {0};
    uint64_t early = 0;
    ut_conn_sending(&tx, &(ut_sent){.op_seq = 7, .step = 1 << 6, .slot = 0, .bytes = SHORT}, 1, false, now);
    for (uint32_t i = 1; ut_conn_may_send(&tx, PACKET); i++, early += PACKET) {
        uint64_t pn =
            ut_conn_sending(&tx, &(ut_sent){.op_seq = 8, .step = 1 << 6, .slot = i, .bytes = PACKET}, 1, false, now);
        CHECK(ut_conn_stash(&rx, packet, PACKET));
        ut_conn_received(&rx, pn, &(ut_came){1, PACKET, 0, false, false}, now);
    }
    now += UT_MS;
    feedback();
    CHECK_EQ(lost_slots, 1);
    CHECK(WINDOW - early >= SHORT && WINDOW - early < PACKET);
    CHECK_EQ(ut_conn_may_send(&tx, PACKET), 1);
    ut_conn_sending(&tx, &(ut_sent){.op_seq = 7, .step = 1 << 6, .slot = 0, .bytes = SHORT}, 1, false, now);
    CHECK_EQ(ut_conn_may_send(&tx, PACKET), 0); /* one at a time */
}

static void ut_conn__lost_when_overtaken(void)
{
    fresh();
    ut_ns at = now;
    send_slots(100, 1, false);
    now = at; /* all at once */
    send_slots(0, UT_REORDER_PACKETS - 1, true);
    feedback();
    CHECK_EQ(lost_slots, 0); /* the one sent 48 later has not come */
    now = at;
    send_slots(200, 1, true);
    feedback();
    CHECK_EQ(lost_slots, 1);
    CHECK_EQ(last_lost, 100);
}

/* What came is told once, each packet of it, whichever lie in a row, and whether their slots do. */
static void ut_conn__tells_the_fate_of_each(void)
{
    fresh();
    uint32_t came = 0, slot = 0;
    uint64_t sum = acked_sum;
    for (int round = 0; round < 300; round++) {
        for (uint32_t n = (uint32_t)check_below(90); n > 0; n--) {
            const uint32_t some = 1 + (uint32_t)check_below(4), bytes = check_below(20) ? PACKET : 100;
            slot = check_below(9) ? slot : (uint32_t)check_below(5000);
            const uint64_t pn = ut_conn_sending(
                &tx, &(ut_sent){.op_seq = 7 + (check_below(30) == 0), .step = 3, .slot = slot, .bytes = bytes}, some,
                false, now);
            for (uint32_t i = 0; i < some; i++, slot++) {
                if (check_below(12) == 0)
                    continue;
                ut_conn_received(&rx, pn + i, &(ut_came){1, bytes, 0, false, false}, now);
                sum += (uint64_t)slot * slot;
                came++;
            }
            now += 10 * UT_US;
        }
        now += 100 * UT_US;
        feedback();
        CHECK_EQ(acked_slots, came);
        CHECK_EQ(acked_sum, sum);
        CHECK_EQ(tx.tx.acked_packets, came);
        CHECK_EQ(tx.tx.bytes - tx.tx.lost_bytes - tx.tx.flying_bytes, rx.rx.bytes);
    }
}

/* Two feedbacks report on |count| packets that have come at once, for one reports on UT_ACK_BITS numbers. */
static void two_feedbacks(uint32_t count, ut_feedback *older, ut_feedback *newer)
{
    fresh();
    acked_sum = 0;
    tx.tx.srtt = 400 * UT_US;
    for (uint32_t i = 0; i < count; i++) {
        uint64_t pn =
            ut_conn_sending(&tx, &(ut_sent){.op_seq = 7, .step = 1 << 6, .slot = i, .bytes = PACKET}, 1, false, now);
        ut_conn_received(&rx, pn, &(ut_came){1, PACKET, (uint32_t)(now / UT_US) & 0xffffff, false, false}, now);
    }
    now += UT_MS; /* all were sent more than a round trip ago */
    ut_conn_fill_feedback(&rx, older, now);
    CHECK_EQ(speaks_at(&rx), now);
    ut_conn_fill_feedback(&rx, newer, now);
    CHECK_EQ(speaks_at(&rx), UT_NEVER);
}

/* The newer one comes first and says nothing of the first packets. These are not lost for that, and when the older one
 * comes after all they have come. */
static void ut_conn__what_an_overtaken_feedback_tells_is_not_lost(void)
{
    enum { MORE = 76, ALL = UT_ACK_BITS + MORE };
    static ut_feedback older, newer;
    two_feedbacks(ALL, &older, &newer);
    ut_conn_on_feedback(&tx, &newer, now, fate, NULL);
    CHECK_EQ(acked_slots, UT_ACK_BITS);
    CHECK_EQ(lost_slots, 0);
    CHECK_EQ(tx.tx.flying, MORE);
    const ut_ns rtt = tx.tx.srtt;
    ut_conn_on_old_feedback(&tx, &older, fate, NULL);
    CHECK_EQ(acked_slots, ALL);
    CHECK_EQ(acked_sum, (uint64_t)(ALL - 1) * ALL * (2 * ALL - 1) / 6); /* each of them once */
    CHECK_EQ(lost_slots, 0);
    CHECK_EQ(tx.tx.flying, 0);
    CHECK_EQ(tx.tx.acked, ALL);
    CHECK_EQ(tx.tx.srtt, rtt); /* when it was sent is no news */
    ut_conn_on_old_feedback(&tx, &older, fate, NULL);
    CHECK_EQ(acked_slots, ALL);
}

/* Where the older one was lost itself, what it would have told is sent again soon: a reordering time later. */
static void ut_conn__what_no_feedback_tells_is_lost_in_time(void)
{
    enum { MORE = 76, ALL = UT_ACK_BITS + MORE };
    static ut_feedback older, newer;
    two_feedbacks(ALL, &older, &newer);
    ut_conn_on_feedback(&tx, &newer, now, fate, NULL);
    const ut_ns due = now + tx.tx.srtt / 4;
    CHECK_EQ(tx.tx.loss_at, due);
    CHECK(!ut_conn_tick(&tx, due - 1, fate, NULL));
    CHECK_EQ(lost_slots, 0);
    CHECK(!ut_conn_tick(&tx, due, fate, NULL));
    CHECK_EQ(lost_slots, MORE);
    CHECK_EQ(last_lost, MORE - 1);
    CHECK_EQ(tx.tx.lost_bytes, MORE * PACKET);
    ut_conn_on_old_feedback(&tx, &older, fate, NULL); /* too late: nothing is known of them any more */
    CHECK_EQ(acked_slots, UT_ACK_BITS);
}

/* One that was sent a quarter of the round trip later has come. When such a loss turns out to be none, the path
 * reorders packets, and more time is left to them. */
static void ut_conn__lost_when_overtaken_by_a_later_one(void)
{
    fresh();
    send_slots(0, 4, true);
    feedback();
    const ut_ns sent = now;
    uint64_t late =
        ut_conn_sending(&tx, &(ut_sent){.op_seq = 7, .step = 1 << 6, .slot = 100, .bytes = PACKET}, 1, false, now);
    now += tx.tx.srtt / 4 - 5 * UT_US;
    ut_ns at = now;
    send_slots(10, 1, true);
    feedback();
    CHECK_EQ(lost_slots, 0);
    now = at + 10 * UT_US;
    send_slots(11, 1, true);
    feedback();
    CHECK_EQ(lost_slots, 1);
    CHECK_EQ(last_lost, 100);
    ut_conn_received(&rx, late, &(ut_came){1, PACKET, 0, false, false}, now);
    feedback();
    CHECK_EQ(tx.tx.spurious_losses, 1);
    CHECK_GE(tx.tx.reorder, at + 10 * UT_US - sent); /* when what overtook it was sent, no sooner */
    CHECK_LE(tx.tx.reorder, 2 * tx.tx.srtt);
    ut_ns seen = tx.tx.reorder;
    for (uint32_t i = 0; i < 48; i++) { /* losses that were some: the path does not reorder any more */
        send_slots(200, 1, false);
        send_slots(300, UT_REORDER_PACKETS, true);
        feedback();
    }
    CHECK_EQ(lost_slots, 49);
    CHECK_LE(tx.tx.reorder, seen / 10);
}

/* A peer that was late answered a probe and what the probe stood for. Nothing overtook it, so nothing was learnt of the
 * order in which packets come: on a busy host real losses would be found a round trip or two later for ever. */
static void ut_conn__a_late_answer_is_no_reordering(void)
{
    fresh();
    send_slots(0, 4, true);
    feedback();
    for (unsigned silent = 1; silent <= 4; silent += 3) { /* one probe; probes until all that flies is given up */
        uint64_t first = tx.tx.next, spurious = tx.tx.spurious_losses;
        for (uint32_t i = 0; i < 6; i++)
            send_slots(100 + i, 1, false);
        for (unsigned k = 0; k < silent; k++) {
            now = UT_MAX2(now, tx.tx.last + ut_conn_pto(&tx));
            CHECK(ut_conn_tick(&tx, now, fate, NULL));
        }
        for (uint64_t pn = first; pn < first + 6; pn++)
            ut_conn_received(&rx, pn, &(ut_came){1, PACKET, 0, false, false}, now);
        feedback();
        CHECK_GE(tx.tx.spurious_losses, spurious + (silent == 1 ? 1 : 6));
        CHECK_EQ(tx.tx.reorder, 0);
    }
}

/* A short queue drops what follows each other closely: then bursts to that peer are short for a while, and the peers
 * take turns. A single loss shortens nothing, nor is there anybody to take turns with where the peer is the only one.
 */
static void ut_conn__bursts_are_short_after_losses_in_a_row(void)
{
    static const struct {
        uint32_t lost, peers;
        bool shortened;
    } rows[] = {{1, 3, false}, {2, 3, true}, {5, 3, true}, {2, 1, false}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        fresh();
        tx.cc.peers = rows[i].peers;
        CHECK_EQ(ut_conn_burst(&tx), UINT32_MAX);
        send_slots(0, 1, true);
        send_slots(1, rows[i].lost, false);
        now += UT_MS;
        send_slots(100, 1, true);
        feedback();
        CHECK_EQ(lost_slots, rows[i].lost);
        CHECK_EQ(ut_conn_burst(&tx), rows[i].shortened ? UT_BURST_SHORT : UINT32_MAX);
        for (uint32_t sent = 0; sent < UT_BURST_SPAN; sent += 64) {
            CHECK_EQ(ut_conn_burst(&tx), rows[i].shortened ? UT_BURST_SHORT : UINT32_MAX);
            send_slots(200, 64, true);
            feedback();
        }
        CHECK_EQ(ut_conn_burst(&tx), UINT32_MAX);
    }
}

/* For a second after a loss the peer is hurried, but not for one that was none. */
static void ut_conn__hurries_after_a_loss(void)
{
    for (unsigned late = 0; late <= 2; late++) { /* of two packets so many come after all */
        fresh();
        CHECK(now >= tx.tx.hurry_to);
        send_slots(0, 2, false);
        send_slots(2, 100, true);
        feedback();
        CHECK_EQ(lost_slots, 2);
        CHECK_EQ(tx.tx.hurry_to, now + UT_HURRY_NS);
        for (uint64_t pn = 0; pn < late; pn++)
            ut_conn_received(&rx, pn, &(ut_came){1, PACKET, 0, false, false}, now);
        feedback();
        CHECK_EQ(now < tx.tx.hurry_to, late < 2);
    }
    fresh(); /* a late one after a lost one changes nothing */
    send_slots(0, 1, false);
    send_slots(1, 100, true);
    feedback();
    now += UT_HURRY_NS / 2;
    send_slots(101, 1, false);
    send_slots(102, 100, true);
    feedback();
    ut_conn_received(&rx, 101, &(ut_came){1, PACKET, 0, false, false}, now);
    feedback();
    CHECK_EQ(tx.tx.spurious_losses, 1);
    CHECK_EQ(tx.tx.hurry_to, now + UT_HURRY_NS);
}

/* The last packets of a transfer are answered soon, so they are missed soon. */
static void ut_conn__the_tail_is_probed_sooner(void)
{
    fresh();
    send_slots(0, 40, true);
    feedback();
    send_slots(40, 1, false);
    ut_ns usual = ut_conn_pto(&tx);
    ut_conn_sending(&tx, &(ut_sent){.op_seq = 7, .step = 1 << 6, .slot = 41, .bytes = PACKET}, 1, true, now);
    CHECK(usual > UT_HOLD_NS);
    CHECK_EQ(ut_conn_pto(&tx), usual - UT_HOLD_NS + UT_TIMER_MIN_NS);
    rx.tx.srtt = 200 * UT_US;
    feedback();
    CHECK_EQ(speaks_at(&rx), UT_NEVER);
    ut_conn_received(&rx, 40, &(ut_came){1, PACKET, 0, false, false}, now);
    CHECK_EQ(speaks_at(&rx), now + UT_HOLD_NS);
    ut_conn_received(&rx, 41, &(ut_came){1, PACKET, 0, false, true}, now);
    CHECK_EQ(speaks_at(&rx), now + 50 * UT_US);
}

static void ut_conn__lost_by_time(void)
{
    fresh();
    ut_ns at = now;
    send_slots(100, 1, false);
    now = at; /* all at once */
    send_slots(0, 3, true);
    feedback();
    CHECK_EQ(lost_slots, 0);
    CHECK_NE(tx.tx.loss_at, UT_NEVER);
    now = tx.tx.loss_at;
    CHECK(!ut_conn_tick(&tx, now, fate, NULL)); /* not a probe */
    CHECK_EQ(lost_slots, 1);
    CHECK_EQ(last_lost, 100);
}

static void ut_conn__late_arrival_undoes_the_loss(void)
{
    fresh();
    uint64_t pn =
        ut_conn_sending(&tx, &(ut_sent){.op_seq = 7, .step = 1 << 6, .slot = 5, .bytes = PACKET}, 1, false, now);
    send_slots(10, 60, true);
    feedback();
    CHECK_EQ(lost_slots, 1);
    uint64_t lost_bytes = tx.tx.lost_bytes;
    ut_conn_received(&rx, pn, &(ut_came){1, PACKET, 0, false, false}, now);
    feedback();
    CHECK_EQ(tx.tx.spurious_losses, 1);
    CHECK_EQ(tx.tx.lost_bytes, lost_bytes - PACKET);
    CHECK_EQ(acked_slots, 61);
    CHECK_EQ(ut_conn_may_send(&tx, PACKET), WINDOW / PACKET); /* credit is exact again */
}

static void ut_conn__tail_probe(void)
{
    fresh();
    send_slots(0, 3, false);
    ut_ns at = ut_conn_next_wake(&tx);
    CHECK_NE(at, UT_NEVER);
    ut_conn_tick(&tx, tx.tx.last + ut_conn_pto(&tx) - 1, fate, NULL);
    CHECK_EQ(lost_slots, 0);
    ut_ns first = ut_conn_pto(&tx);
    CHECK(ut_conn_tick(&tx, tx.tx.last + first, fate, NULL));
    CHECK_EQ(lost_slots, 1);
    CHECK_EQ(last_lost, 2); /* the newest: its answer tells of all before it */
    CHECK_EQ(ut_conn_pto(&tx), 2 * first);
    now = tx.tx.last;
    send_slots(2, 1, true);
    now += UT_SECOND;
    feedback();
    CHECK_EQ(lost_slots, 3);
    CHECK_EQ(tx.tx.flying, 0);
    CHECK_EQ(tx.tx.pto_doublings, 0);
}

/* What was taken for lost was only late, so its repair has used the same credit again: a probe must have some yet. */
static void ut_conn__a_probe_has_credit_after_losses_that_were_none(void)
{
    fresh();
    static ut_feedback f;
    const uint32_t n = ut_conn_may_send(&tx, PACKET) / 2 * 2;
    send_slots(0, n, false);
    while (lost_slots < n) {
        now = tx.tx.last + ut_conn_pto(&tx);
        CHECK(ut_conn_tick(&tx, now, fate, NULL));
    }
    send_slots(0, n, false);
    for (uint64_t pn = 0; pn < n / 2; pn++)
        ut_conn_received(&rx, pn, &(ut_came){1, PACKET, 0, false, false}, now);
    ut_conn_fill_feedback(&rx, &f, now); /* it grants nothing more */
    ut_conn_on_feedback(&tx, &f, now, fate, NULL);
    CHECK_EQ(acked_slots, n / 2);
    CHECK_EQ(ut_conn_may_send(&tx, PACKET), 0);
    lost_slots = 0;
    now = tx.tx.last + ut_conn_pto(&tx);
    CHECK(ut_conn_tick(&tx, now, fate, NULL));
    CHECK_EQ(lost_slots, n / 2 + 1);
    CHECK_EQ(ut_conn_may_send(&tx, PACKET), 1);
}

static void ut_conn__srtt_follows_rfc6298(void)
{
    fresh();
    uint64_t pn =
        ut_conn_sending(&tx, &(ut_sent){.op_seq = 7, .step = 1 << 6, .slot = 0, .bytes = PACKET}, 1, false, now);
    ut_conn_received(&rx, pn, &(ut_came){1, PACKET, (uint32_t)(now / UT_US) & 0xffffff, false, false}, now + 2 * UT_MS);
    now += 5 * UT_MS; /* 2 ms there, 3 ms held */
    feedback();
    CHECK_EQ(tx.tx.srtt, 2 * UT_MS);
    CHECK_EQ(tx.tx.rttvar, UT_MS);
    pn = ut_conn_sending(&tx, &(ut_sent){.op_seq = 7, .step = 1 << 6, .slot = 1, .bytes = PACKET}, 1, false, now);
    ut_conn_received(&rx, pn, &(ut_came){1, PACKET, (uint32_t)(now / UT_US) & 0xffffff, false, false},
                     now + 10 * UT_MS);
    now += 10 * UT_MS;
    feedback();
    CHECK_EQ(tx.tx.srtt, 3 * UT_MS);
    CHECK_EQ(tx.tx.rttvar, (3 * UT_MS + 8 * UT_MS) / 4);
}

/* Nothing comes back for thousands of packets: memory of what flew is given up, sending goes on. */
static void ut_conn__long_silence_does_not_wedge(void)
{
    fresh();
    tx.tx.grant = UINT64_MAX / 2;
    for (uint32_t i = 0; i < ROOM; i++)
        ut_conn_sending(&tx, &(ut_sent){.op_seq = 7, .step = 1 << 6, .slot = i, .bytes = 40}, 1, false, now);
    CHECK_EQ(ut_conn_may_send(&tx, 40), 0);
    now += UT_SECOND;
    CHECK(ut_conn_tick(&tx, now, fate, NULL));
    CHECK_EQ(lost_slots, ROOM);
    CHECK_EQ(ut_conn_may_send(&tx, 40), ROOM);
    send_slots(0, 1, true);
    feedback();
    CHECK_EQ(acked_slots, 1);
}

/* A fast link has thousands of packets on the way when its peer's thread does not run for a while. A probe is enough.
 */
static void ut_conn__a_peer_that_sleeps_has_lost_nothing(void)
{
    fresh();
    tx.tx.grant = UINT64_MAX / 2;
    uint32_t most = ut_conn_may_send(&tx, 40);
    CHECK_GE(most, ROOM * 9 / 10);
    for (uint32_t i = 0; i < most; i++)
        ut_conn_sending(&tx, &(ut_sent){.op_seq = 7, .step = 1 << 6, .slot = i, .bytes = 40}, 1, false, now);
    CHECK_EQ(ut_conn_may_send(&tx, 40), 0);
    for (unsigned probes = 1; probes <= 2; probes++) {
        now = tx.tx.last + ut_conn_pto(&tx);
        CHECK(ut_conn_tick(&tx, now, fate, NULL));
        CHECK_EQ(lost_slots, probes);
        CHECK_GE(ut_conn_may_send(&tx, 40), 1); /* its memory was kept for it */
        ut_conn_sending(&tx, &(ut_sent){.op_seq = 7, .step = 1 << 6, .slot = last_lost, .bytes = 40}, 1, true, now);
    }
    for (uint64_t pn = 0; pn < tx.tx.next; pn++)
        ut_conn_received(&rx, pn, &(ut_came){1, 40, 0, false, false}, now);
    while (speaks_at(&rx) <= now)
        feedback();
    CHECK_EQ(lost_slots, 2);
    CHECK_EQ(acked_slots, most + 2);
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(ut_conn__a_grant_is_repeated_until_data_come);
    RUN(ut_conn__lost_bytes_come_back_as_credit);
    RUN(ut_conn__a_short_lost_packet_has_credit_for_its_repair);
    RUN(ut_conn__lost_when_overtaken);
    RUN(ut_conn__tells_the_fate_of_each);
    RUN(ut_conn__lost_when_overtaken_by_a_later_one);
    RUN(ut_conn__what_an_overtaken_feedback_tells_is_not_lost);
    RUN(ut_conn__what_no_feedback_tells_is_lost_in_time);
    RUN(ut_conn__a_late_answer_is_no_reordering);
    RUN(ut_conn__bursts_are_short_after_losses_in_a_row);
    RUN(ut_conn__the_tail_is_probed_sooner);
    RUN(ut_conn__hurries_after_a_loss);
    RUN(ut_conn__lost_by_time);
    RUN(ut_conn__late_arrival_undoes_the_loss);
    RUN(ut_conn__tail_probe);
    RUN(ut_conn__a_probe_has_credit_after_losses_that_were_none);
    RUN(ut_conn__srtt_follows_rfc6298);
    RUN(ut_conn__long_silence_does_not_wedge);
    RUN(ut_conn__a_peer_that_sleeps_has_lost_nothing);
    return check_end();
}
