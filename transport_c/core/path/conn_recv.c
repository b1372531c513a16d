/* SPDX-License-Identifier: Apache-2.0 */
#include "core/path/conn.h"

#include "core/base/bits.h"

enum ut_pn ut_conn_check_pn(const ut_conn *c, uint32_t low, uint64_t *ret_pn)
{
    uint64_t pn = ut_expand32(c->rx.next, low);
    *ret_pn = pn;
    if (pn >= c->rx.next)
        return pn - c->rx.next < UT_PACKET_JUMP_MAX ? UT_PN_NEW : UT_PN_WILD;
    if (c->rx.next - pn > UT_REPLAY_BITS)
        return UT_PN_SEEN; /* too old to tell, so it is taken for a replay */
    uint64_t at = pn % UT_REPLAY_BITS;
    return c->rx.bits[at / 64] >> (at % 64) & 1 ? UT_PN_SEEN : UT_PN_NEW;
}

/* Sets the bits of |count| numbers from |first| on, in a window of |window| bits, or clears them. */
static void write_bits(uint64_t *bits, uint64_t window, uint64_t first, uint64_t count, bool set)
{
    count = UT_MIN2(count, window);
    for (uint64_t n = first, end = first + count; n < end;) {
        const uint64_t some = UT_MIN2(64 - n % 64, end - n), mask = ut_bits_below((uint32_t)some) << n % 64;
        uint64_t *word = &bits[n % window / 64];
        *word = set ? *word | mask : *word & ~mask;
        n += some;
    }
}

enum ut_pn ut_conn_check_control(const ut_conn *c, uint32_t low, uint64_t *ret_number)
{
    uint64_t n = *ret_number = ut_expand32(c->peer.control, low);
    if (n >= c->peer.control)
        return n - c->peer.control < UT_NUMBER_JUMP_MAX ? UT_PN_NEW : UT_PN_WILD;
    if (c->peer.control - n > UT_CONTROL_REPLAY_BITS)
        return UT_PN_SEEN; /* too old to tell */
    return c->peer.control_bits[n % UT_CONTROL_REPLAY_BITS / 64] >> n % 64 & 1 ? UT_PN_SEEN : UT_PN_NEW;
}

void ut_conn_control_came(ut_conn *c, uint64_t number)
{
    if (number >= c->peer.control) {
        write_bits(c->peer.control_bits, UT_CONTROL_REPLAY_BITS, c->peer.control, number - c->peer.control, false);
        c->peer.control = number + 1;
    }
    c->peer.control_bits[number % UT_CONTROL_REPLAY_BITS / 64] |= 1ULL << number % 64;
}

ut_ns ut_conn_hold_asked(const ut_conn *c)
{
    return c->tx.srtt ? UT_MIN2(c->tx.srtt / UT_ASK_PART, (ut_ns)UT_TIMER_MIN_NS) : (ut_ns)UT_TIMER_MIN_NS;
}

ut_ns ut_conn_hold(const ut_conn *c)
{
    return UT_MAX2(c->tx.srtt / UT_ASK_PART, (ut_ns)UT_HOLD_NS);
}

/* How much longer the newest packet was under way than the quickest of the last one to two spans. Clocks differ by any
 * time, and drift apart by some us in a second. */
static void note_delay(ut_conn *c, ut_ns now)
{
    const uint32_t delay = (uint32_t)(now / UT_US) - c->rx.time_us;
    const ut_ns lasted = now - c->rx.least_at;
    if (c->rx.least_at == 0 || lasted >= UT_CC_BASE_SPAN) {
        c->rx.least_us = c->rx.least_at == 0 || lasted >= 2 * UT_CC_BASE_SPAN ? delay : c->rx.next_us;
        c->rx.next_us = delay;
        c->rx.least_at = now;
    }
    c->rx.next_us = ut_time_after(delay, c->rx.next_us) < 0 ? delay : c->rx.next_us;
    c->rx.least_us = ut_time_after(delay, c->rx.least_us) < 0 ? delay : c->rx.least_us;
    c->rx.waited = (ut_ns)ut_time_after(delay, c->rx.least_us) * UT_US;
}

void ut_conn_received(ut_conn *c, uint64_t pn, const ut_came *came, ut_ns now)
{
    const uint32_t packets = came->packets;
    bool asked = came->asked;
    uint64_t end = pn + packets;
    assert(packets > 0 && (packets == 1 || pn >= c->rx.next));
    if (pn >= c->rx.next) {
        write_bits(c->rx.bits, UT_REPLAY_BITS, c->rx.next, pn - c->rx.next, false);
        if (pn > c->rx.next && c->rx.gap_due == UT_NEVER) {
            c->rx.gap_due = pn + UT_REORDER_PACKETS; /* so much later it is lost, however little time has passed */
            asked = true;
        }
        c->rx.next = end;
        c->rx.time_us = came->time_us;
        c->rx.time_at = now;
        note_delay(c, now);
    }
    assert(end <= c->rx.next && c->rx.reported <= c->rx.packets);
    const uint64_t fresh = c->rx.packets - c->rx.reported;
    write_bits(c->rx.bits, UT_REPLAY_BITS, pn, packets, true);
    c->rx.bytes += came->bytes;
    c->rx.packets += packets;
    c->rx.again_at = 0;
    c->rx.repeats = 0;
    c->rx.ce += came->ce ? packets : 0;
    bool due = c->rx.packets - c->rx.reported >= UT_FEEDBACK_PACKETS || c->rx.next >= c->rx.gap_due;
    if (fresh < UT_SAMPLE_PACKETS)
        c->say.due.at[UT_DUE_CAME] = now + ut_conn_hold(c);
    if (due || asked)
        ut_due_at(&c->say.due, UT_DUE_ASKED, due ? now : now + ut_conn_hold_asked(c));
}

bool ut_conn_stash(ut_conn *c, const uint8_t *packet, size_t len)
{
    assert(c->rx.stash_len <= c->rx.stash_size);
    if (len > UINT16_MAX || c->rx.stash_size - c->rx.stash_len < len + 2)
        return false;
    uint16_t len16 = (uint16_t)len;
    memcpy(c->rx.stash + c->rx.stash_len, &len16, 2);
    memcpy(c->rx.stash + c->rx.stash_len + 2, packet, len);
    c->rx.stash_len += len + 2;
    c->rx.stash_bytes += len;
    return true;
}

bool ut_conn_feedback_is_newer(const ut_conn *c, uint64_t number)
{
    return number > c->peer.feedback;
}

bool ut_conn_feedback_overtaken(ut_conn *c, uint64_t number, ut_ns now)
{
    if (c->peer.overtaken && number <= c->peer.overtaken_to)
        return false; /* a replay, or the network's doing */
    if (c->peer.overtaken++ == 0)
        c->peer.overtaken_since = now;
    c->peer.overtaken_to = number;
    return c->peer.overtaken > UT_OVERTAKEN_MAX && now - c->peer.overtaken_since > ut_conn_silence(c);
}

/* Bit i is bit 63 - i. */
static uint64_t mirrored(uint64_t x)
{
    x = (x >> 1 & 0x5555555555555555) | (x & 0x5555555555555555) << 1;
    x = (x >> 2 & 0x3333333333333333) | (x & 0x3333333333333333) << 2;
    x = (x >> 4 & 0x0f0f0f0f0f0f0f0f) | (x & 0x0f0f0f0f0f0f0f0f) << 4;
    return __builtin_bswap64(x);
}

/* Which of the 64 numbers up to highest - 64 |w| came: bit i, the one that is i below. */
static uint64_t ack_word(const ut_conn *c, uint64_t highest, unsigned w)
{
    const uint64_t words = UT_REPLAY_BITS / 64;
    if ((uint64_t)w * 64 > highest)
        return 0;
    uint64_t last = highest - (uint64_t)w * 64, at = last / 64 % words, above = 63 - last % 64;
    uint64_t bits = c->rx.bits[at] << above;
    if (above > 0 && last >= 64)
        bits |= c->rx.bits[(at + words - 1) % words] >> (64 - above);
    return mirrored(bits);
}

/* Up to which number the next feedback reports. A shell may hand over more packets at once than one feedback reports
 * on: then several follow each other, each from the first one of which nothing was said. What no sender remembers any
 * more is left out. */
static uint64_t report_end(const ut_conn *c)
{
    uint64_t from = UT_MAX2(c->rx.told, c->rx.next - UT_MIN2(c->rx.next, (uint64_t)UT_SENT_MAX));
    while (from + UT_ACK_BITS < c->rx.next && !(c->rx.bits[from % UT_REPLAY_BITS / 64] >> from % 64))
        from = (from | 63) + 1; /* none of these has come */
    assert(from <= c->rx.next);
    return UT_MIN2(c->rx.next, from + UT_ACK_BITS);
}

void ut_conn_grant(ut_conn *c, uint64_t granted, bool urgent, ut_ns now)
{
    c->rx.granted = granted;
    ut_due_at(&c->say.due, urgent ? UT_DUE_CREDIT : UT_DUE_CAME, urgent ? now : now + ut_conn_hold(c));
}

ut_ns ut_conn_grant_again(ut_conn *c, ut_ns now)
{
    assert(c->rx.repeats <= 10);
    if (c->rx.again_at == 0) {
        ut_ns since = UT_MAX2(c->tx.srtt + 4 * c->tx.rttvar, (ut_ns)UT_TIMER_MIN_NS);
        c->rx.again_at = now + UT_MIN2((c->tx.srtt ? since : (ut_ns)UT_PTO_FIRST_NS) << c->rx.repeats,
                                       UT_MAX2(2 * since, (ut_ns)UT_PTO_MAX_NS));
    } else if (now >= c->rx.again_at) {
        c->rx.repeats += c->rx.repeats < 10;
        c->rx.again_at = 0;
        ut_due_at(&c->say.due, UT_DUE_CREDIT, now);
        return ut_conn_grant_again(c, now);
    }
    return c->rx.again_at;
}

void ut_conn_answer_along(ut_conn *c, ut_ns now)
{
    c->say.along = c->say.along || ut_conn_speaks_within(c, ut_conn_hold(c), now);
}

void ut_conn_fill_grant(ut_conn *c, ut_grant *ret)
{
    assert(c->state == UT_CONN_UP);
    *ret = (ut_grant){.cid = c->tx_cid, .number = ++c->say.number, .grant = c->rx.granted};
    c->say.due.at[UT_DUE_CREDIT] = UT_NEVER;
}

bool ut_conn_fill_feedback(ut_conn *c, ut_feedback *ret, ut_ns now)
{
    assert(c->state == UT_CONN_UP);
    const bool asks = c->say.ask;
    ret->cid = c->tx_cid;
    ret->number = ++c->say.number;
    ret->grant = c->rx.granted;
    ret->received = c->rx.bytes;
    ret->ce_packets = c->rx.ce;
    uint64_t to = report_end(c);
    assert(to >= c->rx.told);
    c->rx.told = to;
    ret->highest_pn = to ? (uint32_t)(to - 1) : 0;
    ret->echo_us = c->rx.time_us;
    ret->hold_us = (uint32_t)UT_MIN2((now - c->rx.time_at) / UT_US, UINT32_MAX);
    ret->ack_words = 0;
    if (to) {
        ret->ack_words = (uint16_t)UT_MIN2((to + 63) / 64, UT_ACK_WORDS);
        for (unsigned w = 0; w < ret->ack_words; w++)
            ret->ack[w] = ack_word(c, to - 1, w);
    }
    c->rx.reported = c->rx.packets;
    c->rx.gap_due = UT_NEVER;
    ut_due_settle(&c->say.due);
    if (to < c->rx.next)
        ut_due_at(&c->say.due, UT_DUE_ASKED, now);
    c->say.ask = c->say.along = false;
    return asks;
}
