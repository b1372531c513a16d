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

enum { LOSS_SHIFT = 3 /* a moving average of about eight ops */ };

void ut_hadamard_lost(ut_hadamard_losses *l, uint64_t missing, uint64_t expected)
{
    if (expected == 0)
        return;
    int64_t sample = (int64_t)((double)missing / (double)expected * UT_HADAMARD_LOSS_UNIT);
    l->own = (uint32_t)((int64_t)l->own + (sample - (int64_t)l->own) / (1 << LOSS_SHIFT));
}

bool ut_hadamard_wanted(const ut_hadamard_losses *l, unsigned option, bool on, uint64_t up)
{
    if (option != UT_HADAMARD_AUTO)
        return option == UT_HADAMARD_ON;
    uint32_t worst = l->own;
    for (; up; up &= up - 1)
        worst = UT_MAX2(worst, (uint32_t)l->of[__builtin_ctzll(up)]);
    return worst > (uint32_t)(on ? UT_HADAMARD_OFF_BELOW : UT_HADAMARD_ON_ABOVE);
}
