/* SPDX-License-Identifier: Apache-2.0 */
#include "core/codec/hadamard.h"

#include "core/base/mix.h"

/* ---- groups ---- */

static uint32_t full_slots(uint32_t slots, bool short_last)
{
    assert(slots > 0 || !short_last);
    return slots - short_last;
}

uint32_t ut_hadamard_groups(uint32_t slots, bool short_last)
{
    uint32_t full = full_slots(slots, short_last);
    return full / UT_HADAMARD_GROUP + (uint32_t)__builtin_popcount(full % UT_HADAMARD_GROUP) + short_last;
}

ut_hadamard_group ut_hadamard_group_of(uint32_t slots, bool short_last, uint32_t group)
{
    uint32_t full = full_slots(slots, short_last), big = full / UT_HADAMARD_GROUP;
    if (group < big)
        return (ut_hadamard_group){.first = group, .apart = big, .rows = UT_HADAMARD_GROUP};
    uint32_t first = big * UT_HADAMARD_GROUP, k = group - big;
    for (uint32_t rows = UT_HADAMARD_GROUP / 2; rows; rows /= 2) {
        if (!(full & rows))
            continue;
        if (k-- == 0)
            return (ut_hadamard_group){.first = first, .apart = 1, .rows = rows};
        first += rows;
    }
    assert(short_last && k == 0);
    return (ut_hadamard_group){.first = slots - 1, .apart = 1, .rows = 1};
}

void ut_hadamard_place_of(uint32_t slots, bool short_last, uint32_t slot, uint32_t *ret_group, uint32_t *ret_row)
{
    uint32_t big = full_slots(slots, short_last) / UT_HADAMARD_GROUP;
    assert(slot < slots);
    if (slot < big * UT_HADAMARD_GROUP) {
        *ret_group = slot % big;
        *ret_row = slot / big;
        return;
    }
    for (uint32_t g = big;; g++) {
        ut_hadamard_group at = ut_hadamard_group_of(slots, short_last, g);
        if (slot >= at.first + at.rows)
            continue;
        *ret_group = g;
        *ret_row = slot - at.first;
        return;
    }
}

/* ---- keys and scales ---- */

uint64_t ut_hadamard_key(uint64_t op_seq, uint32_t shard, uint32_t group)
{
    return ut_mix(ut_mix(op_seq + 0x756c74696d61ULL) ^ ((uint64_t)shard << 32 | group));
}

float ut_hadamard_encode_scale(uint32_t rows)
{
    return 1.0f / (float)(1u << __builtin_ctz(rows) / 2);
}

float ut_hadamard_decode_scale(uint32_t rows)
{
    return 1.0f / (float)(1u << (__builtin_ctz(rows) + 1) / 2);
}

/* ---- off, on, auto ---- */

enum {
    WORD_DECISION = 0x8000, /* else 15 bits of loss */
    WORD_ON = 0x4000,
    WORD_SEQ_BITS = 14,
    WORD_SEQ_MASK = (1 << WORD_SEQ_BITS) - 1,
    LOSS_SHIFT = 3,         /* a moving average of about eight ops */
    AHEAD = 2 * UT_OPS_MAX, /* no host can be that far ahead of another that still takes part */
    FARTHEST = 2 * AHEAD,   /* a change at a later op is not believed yet */
    CHANGES_MOST = 5,       /* 8 << 5 ops */
};

void ut_hadamard_switch_init(ut_hadamard_switch *s, unsigned option, uint64_t first_op_seq)
{
    *s =
        (ut_hadamard_switch){.on = option == UT_HADAMARD_ON, .sure_from = first_op_seq ? first_op_seq + UT_OPS_MAX : 0};
}

void ut_hadamard_lost(ut_hadamard_switch *s, uint64_t missing, uint64_t expected)
{
    if (expected == 0)
        return;
    int64_t sample = (int64_t)((double)missing / (double)expected * UT_HADAMARD_LOSS_UNIT);
    s->loss = (uint32_t)((int64_t)s->loss + (sample - (int64_t)s->loss) / (1 << LOSS_SHIFT));
}

static uint64_t below(uint32_t host)
{
    return (1ULL << host) - 1;
}

static bool decides(const ut_hadamard_switch *s, uint32_t self, uint64_t up, uint64_t next_open)
{
    return next_open >= s->sure_from && !(s->deciders & up & below(self));
}

/* After each change it stays so for a while, for twice as long if the last one was not long ago: the losses that ask
 * for one are what others say. */
static void change(ut_hadamard_switch *s, bool on, uint64_t next_open)
{
    uint64_t usual = (uint64_t)AHEAD << s->changes;
    s->changes = next_open > s->keep_until + usual ? 0 : (uint8_t)UT_MIN2(s->changes + 1, CHANGES_MOST);
    s->keep_until = next_open + ((uint64_t)AHEAD << s->changes);
    s->on = on;
    s->from = next_open + AHEAD;
}

void ut_hadamard_decide(ut_hadamard_switch *s, unsigned option, uint32_t self, uint64_t up, uint64_t next_open)
{
    if (s->from > next_open || next_open < s->keep_until || !decides(s, self, up, next_open))
        return; /* one change at a time */
    uint32_t worst = s->loss;
    for (uint32_t h = 0; h < UT_HOSTS_MAX; h++)
        if (up >> h & 1)
            worst = UT_MAX2(worst, (uint32_t)s->peer_loss[h]);
    bool want = option == UT_HADAMARD_ON;
    if (option == UT_HADAMARD_AUTO)
        want = worst > (uint32_t)(s->on ? UT_HADAMARD_OFF_BELOW : UT_HADAMARD_ON_ABOVE);
    if (want != s->on)
        change(s, want, next_open);
}

uint16_t ut_hadamard_word(const ut_hadamard_switch *s, uint32_t self, uint64_t up, uint64_t next_open,
                          uint64_t tx_floor)
{
    if (!decides(s, self, up, next_open))
        return (uint16_t)UT_MIN2(s->loss, (uint32_t)WORD_DECISION - 1);
    /* Of ops that are over here nobody needs to know; it keeps the number near enough for 14 bits. */
    uint64_t from = UT_MAX2(s->from, tx_floor);
    return (uint16_t)(WORD_DECISION | (s->on ? WORD_ON : 0) | (from & WORD_SEQ_MASK));
}

/* The number nearest to |expected| that ends in |low|. */
static uint64_t expand(uint64_t expected, uint64_t low)
{
    uint64_t half = (WORD_SEQ_MASK + 1) / 2, up = (low - expected) & WORD_SEQ_MASK;
    if (up < half || expected < WORD_SEQ_MASK + 1 - up)
        return expected + up;
    return expected + up - (WORD_SEQ_MASK + 1);
}

void ut_hadamard_hear(ut_hadamard_switch *s, uint32_t host, uint16_t word, uint32_t self, uint64_t up,
                      uint64_t next_open)
{
    uint64_t bit = 1ULL << host;
    if (!(word & WORD_DECISION)) {
        s->deciders &= ~bit;
        s->peer_loss[host] = word;
        return;
    }
    bool on = word & WORD_ON, unsure = next_open < s->sure_from;
    uint64_t from = expand(next_open, word & WORD_SEQ_MASK);
    s->deciders &= ~bit;
    if (from > next_open && from - next_open > FARTHEST)
        return;
    s->deciders |= bit;
    s->peer_loss[host] = 0;
    if ((s->deciders & up & below(host)) || (host > self && !unsure))
        return; /* not the one to listen to */
    s->sure_from = 0;
    s->from = on == s->on ? UT_MIN2(s->from, from) : from;
    s->on = on;
}
