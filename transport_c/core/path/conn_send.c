/* SPDX-License-Identifier: Apache-2.0
 *
 * The sender's side of a path. Every packet number remembers the slot it carried, so loss is decided here, by number,
 * and a lost repair is found as fast as a lost original. The receiver only says which numbers came. Deciding at the
 * receiver, by slot, would need a timer for every repair that is lost again; numbers are never reused, so there is
 * nothing to guess.
 */
#include "core/path/conn.h"

#include "core/base/bits.h"

enum {
    PROBE_PACKETS = 2,
    SENT_FOR_PROBES = UT_SILENT_PROBES * PROBE_PACKETS, /* memory for what was sent that is kept free for them */
    REORDER_FADES = 16, /* RFC 8985 forgets what it saw of reordering after 16 losses without more of it */
};

static ut_sent *sent_at(ut_conn *c, uint64_t pn)
{
    return &c->tx.sent[pn & (c->tx.room - 1)];
}

uint32_t ut_conn_may_send(const ut_conn *c, uint32_t bytes)
{
    assert(bytes > 0);
    if (c->state != UT_CONN_UP)
        return 0;
    uint64_t used = c->tx.bytes - c->tx.lost_bytes;
    assert(c->tx.lost_bytes <= c->tx.bytes && c->tx.next - c->tx.base <= c->tx.room);
    uint64_t left = c->tx.grant > used ? c->tx.grant - used : 0;
    /* A short packet that is lost gives back less credit than a full one needs. If all else is spent, on data of an op
     * that the peer keeps until it is through with this one, it must do for the repair. */
    uint64_t credit = UT_MAX2(left / bytes, (uint64_t)(left > 0 && c->tx.flying == 0));
    uint64_t memory = c->tx.room - (c->tx.next - c->tx.base), kept = c->tx.pto_doublings ? 0 : SENT_FOR_PROBES;
    memory -= UT_MIN2(memory, kept);
    uint64_t window = ut_cc_room(&c->cc, c->tx.flying_bytes) / bytes;
    /* A probe is not held back by what flies: perhaps none of that will ever come (RFC 9002, 7.5). */
    window = UT_MAX2(window, c->tx.pto_doublings ? PROBE_PACKETS : 0);
    return (uint32_t)UT_MIN2(UT_MIN2(UT_MIN2(credit, memory), window), UINT32_MAX);
}

uint64_t ut_conn_sending(ut_conn *c, const ut_sent *first, uint32_t packets, bool ask, ut_ns now)
{
    assert(c->tx.next - c->tx.base + packets <= c->tx.room);
    assert(packets > 0 && first->bytes > 0);
    const uint64_t pn = c->tx.next;
    ut_sent sent = *first;
    sent.time_us = (uint32_t)(now / UT_US);
    sent.state = UT_SENT_FLYING;
    for (uint32_t i = 0; i < packets; i++, sent.slot++)
        *sent_at(c, pn + i) = sent;
    c->tx.next += packets;
    c->tx.bytes += (uint64_t)packets * sent.bytes;
    c->tx.flying += packets;
    c->tx.flying_bytes += (uint64_t)packets * sent.bytes;
    c->tx.last = now;
    c->tx.asked = ask ? c->tx.next : c->tx.asked;
    c->tx.blocked_since = UT_NEVER;
    c->tx.stuck = false;
    return pn;
}

uint32_t ut_conn_asks_in(const ut_conn *c, uint32_t bytes)
{
    const uint64_t window = c->cc.ops ? c->cc.ops->window(&c->cc) / bytes : UINT64_MAX;
    const uint64_t most = UT_MIN2(window, (uint64_t)UT_ACK_BITS), part = most / UT_ASK_PART, half = most / 2;
    const uint64_t since = c->tx.next + 1 - c->tx.asked, flying = c->tx.flying + 1;
    return (uint32_t)UT_MAX2(part - UT_MIN2(since, part), half - UT_MIN2(flying, half));
}

ut_ns ut_conn_silence(const ut_conn *c)
{
    /* Who is stuck does not wait for a peer that takes its time: the probe is a repair, which asks. */
    ut_ns hold = c->tx.stuck || c->tx.asked > c->tx.acked ? (ut_ns)UT_TIMER_MIN_NS : ut_conn_hold(c);
    return c->tx.srtt ? UT_MAX2(c->tx.srtt + 4 * c->tx.rttvar + hold, (ut_ns)UT_TIMER_MIN_NS) : (ut_ns)UT_PTO_FIRST_NS;
}

ut_ns ut_conn_pto(const ut_conn *c)
{
    const ut_ns silence = ut_conn_silence(c);
    return UT_MIN2(silence << UT_MIN2(c->tx.pto_doublings, 10), UT_MAX2(2 * silence, (ut_ns)UT_PTO_MAX_NS));
}

/* It was only late: takes its credit back, for the receiver counts it too. One that was overtaken says that the path
 * reorders. One that nobody overtook says that the peer was late, and that is in the round trips. |newest_us|: when the
 * newest packet was sent that had come by then. */
static void came_late(ut_conn *c, const ut_sent *s, uint32_t newest_us)
{
    assert(c->tx.lost_bytes >= s->bytes && c->tx.spurious_losses < c->tx.lost_packets);
    c->tx.lost_bytes -= s->bytes;
    c->tx.spurious_losses++;
    if (c->tx.lost_packets - c->tx.spurious_losses <= c->tx.lost_before)
        c->tx.hurry_to = 0; /* nothing has been lost since */
    ut_ns overtaken = (ut_ns)(uint32_t)(newest_us - s->time_us) * UT_US;
    if (s->state == UT_SENT_LOST)
        c->tx.reorder = UT_MIN2(UT_MAX2(overtaken, c->tx.reorder), 2 * c->tx.srtt);
}

/* |older| was sent right before |s|, and their fates are alike. */
static bool goes_with(const ut_sent *older, const ut_sent *s)
{
    return older->state == UT_SENT_FLYING && older->op_seq == s->op_seq && older->slot + 1 == s->slot &&
           older->step == s->step && older->bytes == s->bytes && older->pieces == s->pieces;
}

/* The |most| packets up to number |pn| have come. Takes those of them whose fate is that of |pn|, and returns how many.
 */
static uint32_t acknowledge(ut_conn *c, uint64_t pn, uint32_t most, uint32_t newest_us, ut_sent_fn *fate, void *context)
{
    assert(most > 0 && pn < c->tx.next && pn >= c->tx.base);
    ut_sent *s = sent_at(c, pn);
    uint32_t n = 1;
    if (s->state == UT_SENT_NONE)
        return 1; /* this was known */
    if (s->state == UT_SENT_FLYING) {
        for (ut_sent *older; n < most && goes_with(older = sent_at(c, pn - n), s); s = older, n++)
            s->state = UT_SENT_NONE;
        assert(n <= c->tx.flying && (uint64_t)n * s->bytes <= c->tx.flying_bytes);
        c->tx.flying -= n;
        c->tx.flying_bytes -= (uint64_t)n * s->bytes;
    } else {
        came_late(c, s, newest_us);
    }
    s->state = UT_SENT_NONE;
    c->tx.acked_packets += n;
    fate(context, s, n, true);
    return n;
}

static void lose(ut_conn *c, ut_sent *s, enum ut_sent_state as, ut_ns now, ut_sent_fn *fate, void *context)
{
    assert(s->state == UT_SENT_FLYING && c->tx.flying > 0 && c->tx.flying_bytes >= s->bytes);
    if (now >= c->tx.hurry_to)
        c->tx.lost_before = c->tx.lost_packets - c->tx.spurious_losses;
    c->tx.hurry_to = now + UT_HURRY_NS;
    s->state = (uint8_t)as & 3;
    c->tx.flying--;
    c->tx.flying_bytes -= s->bytes;
    c->tx.lost_bytes += s->bytes;
    c->tx.lost_packets++;
    fate(context, s, 1, false);
}

/* The round trip that the feedback shows, 0 if none. */
static ut_ns sample_rtt(ut_conn *c, const ut_feedback *f, ut_ns now)
{
    if (f->echo_us == UINT32_MAX)
        return 0;
    const int64_t elapsed = ut_time_after((uint32_t)(now / UT_US), f->echo_us);
    if (elapsed < f->hold_us)
        return 0;
    ut_ns rtt = UT_MAX2((ut_ns)(elapsed - f->hold_us), 1) * UT_US;
    if (c->tx.srtt == 0) {
        c->tx.srtt = rtt;
        c->tx.rttvar = rtt / 2;
        return rtt;
    }
    ut_ns error = rtt > c->tx.srtt ? rtt - c->tx.srtt : c->tx.srtt - rtt; /* RFC 6298 */
    c->tx.rttvar = (3 * c->tx.rttvar + error) / 4;
    c->tx.srtt = (7 * c->tx.srtt + rtt) / 8;
    return rtt;
}

/* Declares lost what was overtaken by UT_REORDER_PACKETS, by a packet that was sent a reordering time later, or at all
 * and a round trip and that time ago (RACK, RFC 8985). The reordering time is that by which one was overtaken that came
 * all the same, and fades with each loss. Where a feedback has left a gap, the one that tells of it was overtaken: it
 * has a reordering time to come. */
static void detect_loss(ut_conn *c, ut_ns now, ut_sent_fn *fate, void *context)
{
    uint32_t now_us = (uint32_t)(now / UT_US);
    ut_ns reorder = UT_MAX2(c->tx.srtt / 4, c->tx.reorder), patience = c->tx.srtt + reorder;
    uint32_t newest_us = c->tx.acked ? sent_at(c, c->tx.acked - 1)->time_us : 0;
    c->tx.loss_at = UT_NEVER;
    for (uint64_t pn = c->tx.base; pn < c->tx.acked; pn++) {
        ut_sent *s = sent_at(c, pn);
        if (s->state != UT_SENT_FLYING)
            continue;
        const bool gap = pn >= c->tx.gap.from && pn < c->tx.gap.to;
        ut_ns age = (ut_ns)(uint32_t)(now_us - s->time_us) * UT_US;
        ut_ns overtaken = (ut_ns)(uint32_t)(newest_us - s->time_us) * UT_US;
        ut_ns due = gap ? c->tx.gap.at + reorder : now + patience - UT_MIN2(age, patience);
        if (now >= due || (!gap && (pn + UT_REORDER_PACKETS < c->tx.acked || overtaken > reorder))) {
            lose(c, s, UT_SENT_LOST, now, fate, context);
            c->tx.reorder -= c->tx.reorder / REORDER_FADES;
            if (pn && sent_at(c, pn - 1)->state == UT_SENT_LOST)
                c->tx.short_to = c->tx.next + UT_BURST_SPAN;
        } else {
            c->tx.loss_at = UT_MIN2(c->tx.loss_at, due);
        }
    }
    /* The base stays within reach of a late acknowledgement, so that a spurious loss is recognised. */
    while (c->tx.base < c->tx.acked && sent_at(c, c->tx.base)->state != UT_SENT_FLYING &&
           (sent_at(c, c->tx.base)->state == UT_SENT_NONE || c->tx.base + UT_ACK_BITS < c->tx.acked))
        c->tx.base++;
    assert(c->tx.base <= c->tx.next && c->tx.acked <= c->tx.next);
}

static uint64_t delivered(const ut_conn *c)
{
    assert(c->tx.bytes >= c->tx.lost_bytes + c->tx.flying_bytes);
    return c->tx.bytes - c->tx.lost_bytes - c->tx.flying_bytes;
}

/* What the feedback means for the window. |s| holds the counters as they were before it. */
static void control_congestion(ut_conn *c, const ut_feedback *f, ut_cc_sample *s)
{
    s->acked = delivered(c) - s->acked;
    s->packets = (uint32_t)(c->tx.acked_packets - s->packets);
    s->lost = (uint32_t)(c->tx.lost_packets - s->lost);
    s->ce_packets = UT_MIN2(f->ce_packets - c->peer.ce, s->packets); /* a peer may tell anything */
    s->sent = c->tx.bytes;
    s->srtt = c->tx.srtt;
    s->idle = c->tx.flying == 0;
    c->peer.ce = f->ce_packets;
    c->tx.ce_packets += s->ce_packets;
    ut_cc_feedback(&c->cc, s);
}

/* Numbers count from 1 in each life of a path. */
static bool is_wild(const ut_conn *c, uint64_t number, uint64_t grant)
{
    return (number > c->peer.feedback && number - c->peer.feedback > UT_NUMBER_JUMP_MAX) ||
           grant > c->tx.bytes + UT_GRANT_AHEAD_MAX;
}

bool ut_conn_feedback_is_wild(const ut_conn *c, const ut_feedback *f)
{
    bool acks_unsent = f->ack_words && ut_expand32(c->tx.next, f->highest_pn) >= c->tx.next;
    return acks_unsent || is_wild(c, f->number, f->grant);
}

bool ut_conn_grant_is_wild(const ut_conn *c, const ut_grant *g)
{
    return is_wild(c, g->number, g->grant);
}

void ut_conn_on_grant(ut_conn *c, uint64_t grant)
{
    c->tx.grant = UT_MAX2(c->tx.grant, grant);
}

/* Takes what |f| says of packets up to |highest|; returns whether it is news of any. */
static bool take_acks(ut_conn *c, const ut_feedback *f, uint64_t highest, ut_sent_fn *fate, void *context)
{
    const uint64_t before = c->tx.acked_packets;
    const uint32_t newest_us = sent_at(c, highest)->time_us;
    for (unsigned w = 0; w < f->ack_words; w++) {
        for (uint64_t bits = f->ack[w]; bits;) {
            const uint32_t at = ut_bits_first(bits);
            const uint64_t back = (uint64_t)w * 64 + at, beyond = ~(bits >> at);
            if (back > highest || highest - back < c->tx.base)
                break; /* all further bits are older still */
            const uint64_t row = beyond ? ut_bits_first(beyond) : 64, left = highest - back - c->tx.base + 1;
            const uint32_t n = acknowledge(c, highest - back, (uint32_t)UT_MIN2(row, left), newest_us, fate, context);
            bits &= ~(ut_bits_below(n) << at);
        }
    }
    return c->tx.acked_packets != before;
}

void ut_conn_on_feedback(ut_conn *c, const ut_feedback *f, ut_ns now, ut_sent_fn *fate, void *context)
{
    ut_conn_on_grant(c, f->grant);
    if (f->ack_words == 0)
        return;
    uint64_t highest = ut_expand32(c->tx.next, f->highest_pn);
    assert(highest < c->tx.next);
    ut_ns rtt = sample_rtt(c, f, now), held = rtt + (ut_ns)f->hold_us * UT_US;
    ut_cc_sample sample = {.now = now,
                           .rtt = rtt,
                           .sent_at = now - UT_MIN2(held, now),
                           .flying = c->tx.flying_bytes,
                           .acked = delivered(c),
                           .packets = (uint32_t)c->tx.acked_packets,
                           .lost = (uint32_t)c->tx.lost_packets};
    if (take_acks(c, f, highest, fate, context)) {
        const uint64_t from = highest + 1 - UT_MIN2((uint64_t)f->ack_words * 64, highest + 1);
        if (from > c->tx.acked)
            c->tx.gap = (ut_sent_gap){c->tx.acked, from, now};
        c->tx.acked = UT_MAX2(c->tx.acked, highest + 1);
        c->tx.pto_doublings = 0;
        c->tx.last = now;
    }
    detect_loss(c, now, fate, context);
    control_congestion(c, f, &sample);
}

void ut_conn_on_old_feedback(ut_conn *c, const ut_feedback *f, ut_sent_fn *fate, void *context)
{
    if (f->ack_words)
        (void)take_acks(c, f, ut_expand32(c->tx.next, f->highest_pn), fate, context);
}

static void lose_all(ut_conn *c, ut_ns now, ut_sent_fn *fate, void *context)
{
    for (uint64_t old = c->tx.base; old < c->tx.next; old++)
        if (sent_at(c, old)->state == UT_SENT_FLYING)
            lose(c, sent_at(c, old), UT_SENT_SILENT, now, fate, context);
}

/* Of what was lost to the old address nothing is to be concluded: neither that the path is silent, nor that packets are
 * too large for it. */
void ut_conn_data_moved(ut_conn *c, ut_ns now, ut_sent_fn *fate, void *context)
{
    lose_all(c, now, fate, context);
    c->tx.pto_doublings = 0;
    c->tx.last = now;
    c->mtu.pieces = c->mtu.told;
    c->mtu.lost = c->mtu.came = 0;
}

bool ut_conn_tick(ut_conn *c, ut_ns now, ut_sent_fn *fate, void *context)
{
    if (c->state != UT_CONN_UP)
        return false;
    if (now >= c->tx.loss_at)
        detect_loss(c, now, fate, context);
    if (c->tx.blocked_since != UT_NEVER && now >= c->tx.blocked_since + ut_conn_pto(c)) {
        c->say.ask = true;
        c->tx.blocked_since = now;
        c->tx.pto_doublings += c->tx.pto_doublings < 10;
        ut_conn_speak_at(c, now);
    }
    if (c->tx.flying == 0 || now < c->tx.last + ut_conn_pto(c))
        return false;
    /* That much may fly on a fast link. A peer that only was not awake for a while has it all. */
    bool full = c->tx.next - c->tx.base == c->tx.room;
    if (full || c->tx.pto_doublings >= UT_SILENT_PROBES) {
        /* The path has been silent for long: nothing that flew has come. Its credit, of which there may be little, and
         * if need be its memory are free to try again. */
        lose_all(c, now, fate, context);
        c->tx.base = c->tx.next - c->tx.base > c->tx.room / 2 ? c->tx.next : c->tx.base;
        c->tx.last = now;
        c->tx.pto_doublings += c->tx.pto_doublings < 10;
        return true;
    }
    uint64_t pn = c->tx.next;
    uint32_t probe;
    bool parity;
    do { /* nothing is sent again for parity; more than one if losses were taken back since: their bytes are used twice,
            and a probe may have no credit */
        while (sent_at(c, --pn)->state != UT_SENT_FLYING)
            assert(pn > c->tx.base);
        probe = sent_at(c, pn)->bytes;
        parity = sent_at(c, pn)->slot >= UT_SENT_PARITY;
        lose(c, sent_at(c, pn), UT_SENT_SILENT, now, fate, context);
    } while (c->tx.flying && (parity || c->tx.grant < c->tx.bytes - c->tx.lost_bytes + probe));
    c->tx.last = now;
    c->tx.pto_doublings += c->tx.pto_doublings < 10;
    return true;
}
