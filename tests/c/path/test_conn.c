/* SPDX-License-Identifier: Apache-2.0
 *
 * One path, both directions, without ops: numbers, credit, acknowledgement, the replay window, the stash.
 */
#include "one_path.h"

static void ut_conn__credit_is_the_window(void)
{
    fresh();
    uint32_t n = ut_conn_may_send(&tx, PACKET);
    CHECK_EQ(n, WINDOW / PACKET);
    send_slots(0, n, true);
    CHECK_EQ(ut_conn_may_send(&tx, PACKET), 0);
    now += UT_MS;
    feedback();
    CHECK_EQ(ut_conn_may_send(&tx, PACKET), n);
    CHECK_EQ(acked_slots, n);
    CHECK_EQ(tx.tx.flying, 0);
}

/* What was granted and has not come: with early data, whose op nobody here has opened, and with loss. */
static void ut_conn__outstanding_is_what_has_not_come(void)
{
    fresh();
    CHECK_EQ(ut_conn_outstanding(&rx), WINDOW);
    send_slots(0, 2, false);
    send_slots(2, 3, true);
    CHECK_EQ(ut_conn_outstanding(&rx), WINDOW - 3 * PACKET);
    ut_conn_grant(&rx, 2 * PACKET, true, now); /* less than has come */
    CHECK_EQ(ut_conn_outstanding(&rx), 0);
}

/* A grant that nobody waits for goes with the next feedback, and that is due soon. */
static void ut_conn__a_grant_that_nobody_waits_for_is_told_in_time(void)
{
    fresh();
    CHECK_EQ(speaks_at(&rx), UT_NEVER);
    ut_conn_grant(&rx, 2 * WINDOW, false, now);
    CHECK(!has_grant(&rx));
    CHECK_EQ(speaks_at(&rx), now + UT_HOLD_NS);
    ut_conn_grant(&rx, 3 * WINDOW, true, now);
    ut_conn_grant(&rx, 4 * WINDOW, false, now);
    CHECK(has_grant(&rx)); /* somebody still waits for the one before */
}

/* What an honest peer's next feedback says, and how far from it a number is taken for a lie. */
static void ut_conn__what_no_peer_can_have_sent_is_wild(void)
{
    fresh();
    send_slots(0, 2, true);
    feedback();
    send_slots(2, 2, true);
    ut_feedback good;
    memset(&good, 0, sizeof good);
    ut_conn_fill_feedback(&rx, &good, now);
    CHECK(!ut_conn_feedback_is_wild(&tx, &good));
    struct {
        const char *what;
        uint64_t number;
        uint32_t highest;
        uint64_t grant;
        bool wild;
    } rows[] = {
        {"the last feedback that a long silence leaves", tx.peer.feedback + UT_NUMBER_JUMP_MAX, 3, good.grant, false},
        {"one more", tx.peer.feedback + UT_NUMBER_JUMP_MAX + 1, 3, good.grant, true},
        {"half of all numbers on", tx.peer.feedback + (1u << 31) - 1, 3, good.grant, true},
        {"the newest packet", good.number, 3, good.grant, false},
        {"one that was never sent", good.number, 4, good.grant, true},
        {"a large grant", good.number, 3, tx.tx.bytes + UT_GRANT_AHEAD_MAX, false},
        {"an absurd one", good.number, 3, tx.tx.bytes + UT_GRANT_AHEAD_MAX + 1, true},
        {"the largest", good.number, 3, UINT64_MAX, true},
    };
    for (unsigned i = 0; i < sizeof rows / sizeof *rows; i++) {
        ut_feedback f = good;
        f.number = rows[i].number;
        f.highest_pn = rows[i].highest;
        f.grant = rows[i].grant;
        CHECK_MSG(ut_conn_feedback_is_wild(&tx, &f) == rows[i].wild, "row %u: %s", i, rows[i].what);
    }
    /* Not one number, before the first feedback, is any number. */
    tx.peer.feedback = 0;
    good.number = UT_NUMBER_JUMP_MAX + 1;
    CHECK(ut_conn_feedback_is_wild(&tx, &good));
}

/* 64 bits of which 32 travel: the count goes on where those are used up, and an old number stays old. */
static void ut_conn__feedback_numbers_do_not_wrap(void)
{
    fresh();
    tx.peer.feedback = UINT32_MAX - 2ull;
    for (uint64_t number = UINT32_MAX - 1ull; number < UINT32_MAX + 100ull; number += 7) {
        uint64_t full = ut_conn_feedback_number(&tx, (uint32_t)number);
        CHECK_HEX(full, number);
        CHECK(ut_conn_feedback_is_newer(&tx, full));
        tx.peer.feedback = full;
        CHECK(!ut_conn_feedback_is_newer(&tx, ut_conn_feedback_number(&tx, (uint32_t)number - 1)));
    }
    CHECK(tx.peer.feedback > UINT32_MAX);
}

/* A grant holds if it is the largest, whatever came before or comes again; one that nobody has room for is wild. */
static void ut_conn__grants_only_rise(void)
{
    fresh();
    ut_conn_on_grant(&tx, 700000);
    ut_conn_on_grant(&tx, 500000);
    CHECK_EQ(tx.tx.grant, 700000);
    ut_grant g = {.number = tx.peer.feedback + 1, .grant = tx.tx.bytes + UT_GRANT_AHEAD_MAX};
    CHECK(!ut_conn_grant_is_wild(&tx, &g));
    g.grant++;
    CHECK(ut_conn_grant_is_wild(&tx, &g));
    g = (ut_grant){.number = tx.peer.feedback + UT_NUMBER_JUMP_MAX + 1, .grant = 1000};
    CHECK(ut_conn_grant_is_wild(&tx, &g));
}

static void ut_conn__a_packet_number_far_ahead_is_wild(void)
{
    fresh();
    send_slots(0, 3, true);
    uint64_t pn;
    CHECK_EQ(ut_conn_check_pn(&rx, 3, &pn), UT_PN_NEW);
    CHECK_EQ(ut_conn_check_pn(&rx, 3 + UT_PACKET_JUMP_MAX - 1, &pn), UT_PN_NEW);
    CHECK_EQ(ut_conn_check_pn(&rx, 3 + UT_PACKET_JUMP_MAX, &pn), UT_PN_WILD);
    CHECK_EQ(ut_conn_check_pn(&rx, 1u << 31, &pn), UT_PN_WILD);
    CHECK_EQ(ut_conn_check_pn(&rx, 2, &pn), UT_PN_SEEN);
}

/* A forged number shuts out the true ones: they rise below it. Replays do not, nor does a burst that was overtaken. */
static void ut_conn__a_number_that_shuts_out_the_true_ones_is_found(void)
{
    fresh();
    tx.heard = 1;
    tx.peer.feedback = 60000;
    CHECK(!ut_conn_feedback_is_newer(&tx, 60000) && ut_conn_feedback_is_newer(&tx, 60001));
    for (uint32_t i = 0; i < 10 * UT_OVERTAKEN_MAX; i++, now += UT_MS)
        CHECK(!ut_conn_feedback_overtaken(&tx, 40 - i % 7, now));
    for (uint32_t i = 0; i < UT_OVERTAKEN_MAX - 1; i++)
        CHECK(!ut_conn_feedback_overtaken(&tx, 100 + i, now)); /* all at once: the network's doing */
    bool found = false;
    for (uint32_t i = 0; i < 2 * UT_OVERTAKEN_MAX && !found; i++, now += 2 * UT_MS)
        found = ut_conn_feedback_overtaken(&tx, 200 + i, now);
    CHECK(found);
}

/* The replay window against a set that forgets nothing. */
static void ut_conn__replay_window_against_a_set(void)
{
    enum { TOP = 6000000, FAR = UT_REPLAY_BITS + 9000 };
    static bool seen[TOP];
    uint64_t old = 0;
    memset(seen, 0, sizeof seen);
    fresh();
    uint64_t head = 0;
    for (int k = 0; k < 100000; k++) {
        uint64_t near = check_below(20) ? 9000 : FAR;
        uint64_t back = check_below(near); /* not within the macro, which would draw twice */
        uint64_t pn = check_below(3) ? head + check_below(check_below(800) ? 3 : near) : head - UT_MIN2(head, back);
        if (pn >= TOP)
            break;
        uint64_t expanded;
        enum ut_pn verdict = ut_conn_check_pn(&rx, (uint32_t)pn, &expanded);
        CHECK_EQ(expanded, pn);
        bool too_old = rx.rx.next > UT_REPLAY_BITS && pn < rx.rx.next - UT_REPLAY_BITS;
        CHECK_MSG(verdict == (seen[pn] || too_old ? UT_PN_SEEN : UT_PN_NEW), "pn %zu head %zu", (size_t)pn,
                  (size_t)head);
        old += too_old;
        if (verdict == UT_PN_NEW) {
            ut_conn_received(&rx, pn, &(ut_came){1, 100, 0, false, false}, now);
            seen[pn] = true;
            head = pn + 1 > head ? pn + 1 : head;
        }
    }
    CHECK_GE(old, 10);
}

/* The same of the numbers of feedbacks and grants on a sealed path, whose window is shorter. */
static void ut_conn__control_replay_window_against_a_set(void)
{
    enum { TOP = 3000000, FAR = UT_CONTROL_REPLAY_BITS + 500 };
    static bool seen[TOP];
    uint64_t head = 1, old = 0, low = 1ULL << 33; /* their high bits do not travel */
    memset(seen, 0, sizeof seen);
    fresh();
    ut_conn_control_came(&rx, low);
    seen[0] = true;
    for (int k = 0; k < 100000; k++) {
        uint64_t back = check_below(FAR);
        uint64_t n = check_below(3) ? head + check_below(check_below(20) ? 3 : FAR) : head - UT_MIN2(head, back);
        if (n >= TOP)
            break;
        uint64_t expanded;
        enum ut_pn verdict = ut_conn_check_control(&rx, (uint32_t)(low + n), &expanded);
        CHECK_EQ(expanded, low + n);
        bool too_old = head > UT_CONTROL_REPLAY_BITS && n < head - UT_CONTROL_REPLAY_BITS;
        CHECK_MSG(verdict == (seen[n] || too_old ? UT_PN_SEEN : UT_PN_NEW), "n %zu head %zu", (size_t)n, (size_t)head);
        old += too_old;
        if (verdict == UT_PN_NEW) {
            ut_conn_control_came(&rx, expanded);
            seen[n] = true;
            head = UT_MAX2(head, n + 1);
        }
    }
    CHECK_GE(old, 100);
    uint64_t next = low + head, expanded;
    CHECK_EQ(ut_conn_check_control(&rx, (uint32_t)(next + UT_NUMBER_JUMP_MAX - 1), &expanded), UT_PN_NEW);
    CHECK_EQ(ut_conn_check_control(&rx, (uint32_t)(next + UT_NUMBER_JUMP_MAX), &expanded), UT_PN_WILD);
    CHECK_EQ(ut_conn_check_control(&rx, (uint32_t)(next + (1U << 31) - 1), &expanded), UT_PN_WILD);
}

static void ut_conn__feedback_says_what_came(void)
{
    fresh();
    static bool came[3000];
    memset(came, 0, sizeof came);
    uint64_t top = 0;
    for (int k = 0; k < 2000; k++) {
        uint64_t pn = check_below(3000), expanded;
        if (ut_conn_check_pn(&rx, (uint32_t)pn, &expanded) == UT_PN_SEEN)
            continue;
        ut_conn_received(&rx, pn, &(ut_came){1, 100, 0, false, false}, now);
        came[pn] = true;
        top = pn > top ? pn : top;
    }
    static ut_feedback f;
    uint64_t told = 0;
    for (unsigned n = 1; told <= top; n++) { /* as many as it takes: one reports on UT_ACK_BITS numbers */
        ut_conn_fill_feedback(&rx, &f, now);
        CHECK_EQ(f.highest_pn, UT_MIN2((uint64_t)n * UT_ACK_BITS - 1, top));
        CHECK_EQ(f.ack_words, UT_ACK_WORDS);
        for (uint64_t back = 0; back < UT_ACK_BITS; back++)
            CHECK_EQ(f.ack[back / 64] >> back % 64 & 1, back <= f.highest_pn && came[f.highest_pn - back]);
        told = f.highest_pn + 1ull;
        CHECK_EQ(speaks_at(&rx), told <= top ? now : UT_NEVER);
    }
}

/* The window of what came is a ring, and a feedback may end at any bit of it. */
static void ut_conn__feedback_says_what_came_across_the_end_of_the_ring(void)
{
    enum { SPAN = 1 + UT_ACK_BITS - 64 }; /* so that one feedback reports on all */
    static bool came[SPAN];
    static ut_feedback f;
    for (unsigned round = 0; round < 200; round++) {
        fresh();
        const uint64_t first = UT_REPLAY_BITS * (1 + check_below(3)) - check_below(SPAN);
        memset(came, 0, sizeof came);
        for (unsigned k = 0; k < SPAN; k++) {
            const uint64_t i = check_below(SPAN);
            if (!came[i])
                ut_conn_received(&rx, first + i, &(ut_came){1, 100, 0, false, false}, now);
            came[i] = true;
        }
        while (speaks_at(&rx) != UT_NEVER)
            ut_conn_fill_feedback(&rx, &f, now);
        for (uint64_t back = 0; back < UT_ACK_BITS; back++) {
            const uint64_t pn = f.highest_pn - back;
            const bool has = pn >= first && pn < first + SPAN && came[pn - first];
            CHECK_MSG((f.ack[back / 64] >> back % 64 & 1) == has, "first %zu, %zu back", (size_t)first, (size_t)back);
        }
    }
}

/* However many packets are handed over between two feedbacks, none that came is taken for lost. */
static void ut_conn__no_number_is_left_out(void)
{
    fresh();
    ut_conn_on_grant(&tx, 64 << 20);
    for (uint32_t round = 0, count = 1, first = 0; count < ROOM; round++, first += count, count += 397) {
        acked_slots = lost_slots = 0;
        send_slots(first, count, true);
        unsigned said = 0;
        for (; speaks_at(&rx) <= now + UT_HOLD_NS; said++)
            feedback();
        CHECK_EQ(said, (count + UT_ACK_BITS - 1) / UT_ACK_BITS);
        CHECK_EQ(acked_slots, count);
        CHECK_EQ(lost_slots, 0);
    }
    /* But a sender that leaves out a million numbers gets no thousand answers. */
    ut_conn_received(&rx, rx.rx.next + UT_PACKET_JUMP_MAX - 1, &(ut_came){1, PACKET, 0, false, false}, now);
    static ut_feedback f;
    unsigned said = 0;
    for (; speaks_at(&rx) <= now + UT_HOLD_NS; said++)
        ut_conn_fill_feedback(&rx, &f, now);
    CHECK_EQ(said, 1);
}

static void ut_conn__stash_has_an_end(void)
{
    fresh();
    uint8_t packet[UT_PACKET_MAX] = {0};
    uint64_t kept = 0;
    while (ut_conn_stash(&rx, packet, 1 + kept % PACKET))
        kept++;
    CHECK_GE(rx.rx.stash_bytes, WINDOW);
    CHECK_LE(rx.rx.stash_len, ut_conn_stash_bytes(WINDOW));
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(ut_conn__credit_is_the_window);
    RUN(ut_conn__outstanding_is_what_has_not_come);
    RUN(ut_conn__a_grant_that_nobody_waits_for_is_told_in_time);
    RUN(ut_conn__what_no_peer_can_have_sent_is_wild);
    RUN(ut_conn__feedback_numbers_do_not_wrap);
    RUN(ut_conn__grants_only_rise);
    RUN(ut_conn__a_packet_number_far_ahead_is_wild);
    RUN(ut_conn__a_number_that_shuts_out_the_true_ones_is_found);
    RUN(ut_conn__replay_window_against_a_set);
    RUN(ut_conn__control_replay_window_against_a_set);
    RUN(ut_conn__feedback_says_what_came);
    RUN(ut_conn__feedback_says_what_came_across_the_end_of_the_ring);
    RUN(ut_conn__no_number_is_left_out);
    RUN(ut_conn__stash_has_an_end);
    return check_end();
}
