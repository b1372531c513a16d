/* SPDX-License-Identifier: Apache-2.0 */
#include "core/plan/transfer.h"

#include "core/base/bits.h"

void ut_transfer_init(ut_transfer *t, uint64_t bytes, uint32_t payload, uint64_t *bits, uint64_t *again)
{
    assert(payload > 0 && (bits || bytes == 0));
    memset(t, 0, sizeof *t);
    t->slots = ut_slots(bytes, payload);
    t->bytes_last = t->slots ? (uint32_t)(bytes - (uint64_t)(t->slots - 1) * payload) : 0;
    t->stop = t->slots;
    t->bits = bits;
    t->again = again;
    memset(bits, 0, ut_transfer_words(t->slots) * 8);
    if (again)
        memset(again, 0, ut_transfer_words(t->slots) * 8);
    assert(t->bytes_last <= payload && (t->bytes_last > 0) == (t->slots > 0));
}

bool ut_transfer_mark(ut_transfer *t, uint32_t slot)
{
    assert(slot < t->slots);
    uint64_t bit = 1ULL << (slot % 64), *word = &t->bits[slot / 64];
    if (*word & bit)
        return false;
    *word |= bit;
    t->done++;
    assert(t->done <= t->slots);
    if (t->again && (t->again[slot / 64] & bit)) {
        assert(t->lost > 0);
        t->again[slot / 64] &= ~bit;
        t->lost--;
    }
    return true;
}

void ut_transfer_mark_run(ut_transfer *t, uint32_t slot, uint32_t slots)
{
    assert(slots <= t->slots && slot <= t->slots - slots);
    for (uint32_t end = slot + slots; slot < end;) {
        const uint32_t some = UT_MIN2(64 - slot % 64, end - slot);
        const uint64_t bits = ut_bits_below(some) << slot % 64, fresh = bits & ~t->bits[slot / 64];
        t->bits[slot / 64] |= bits;
        t->done += ut_bits_count(fresh);
        if (t->again) {
            assert(t->lost >= ut_bits_count(t->again[slot / 64] & bits));
            t->lost -= ut_bits_count(t->again[slot / 64] & bits);
            t->again[slot / 64] &= ~bits;
        }
        slot += some;
    }
    assert(t->done <= t->slots);
}

uint32_t ut_transfer_absent(const ut_transfer *t, uint32_t slot, uint32_t most)
{
    assert(slot <= t->slots);
    uint32_t absent = 0;
    most = UT_MIN2(most, t->slots - slot);
    while (absent < most) {
        const uint32_t at = slot + absent;
        const uint64_t marked = t->bits[at / 64] >> at % 64;
        if (marked)
            return UT_MIN2(absent + ut_bits_first(marked), most);
        absent += 64 - at % 64;
    }
    return most;
}

void ut_transfer_lose(ut_transfer *t, uint32_t slot)
{
    assert(slot < t->slots && t->again);
    uint64_t bit = 1ULL << (slot % 64);
    if ((t->bits[slot / 64] & bit) || (t->again[slot / 64] & bit))
        return;
    t->again[slot / 64] |= bit;
    t->lost_first = t->lost ? UT_MIN2(t->lost_first, slot) : slot;
    t->lost++;
    assert(t->lost <= t->slots - t->done);
}

bool ut_transfer_take_lost(ut_transfer *t, uint32_t *ret_slot)
{
    if (t->lost == 0)
        return false;
    assert(t->again && t->lost_first < t->slots);
    for (size_t w = t->lost_first / 64; w < ut_transfer_words(t->slots); w++) {
        if (t->again[w] == 0)
            continue;
        uint32_t slot = (uint32_t)(w * 64) + (uint32_t)__builtin_ctzll(t->again[w]);
        t->again[w] &= t->again[w] - 1;
        t->lost--;
        t->lost_first = slot;
        *ret_slot = slot;
        return true;
    }
    assert(!"a lost slot is counted but not marked");
    return false;
}

uint64_t ut_transfer_missing(const ut_transfer *t, uint32_t payload)
{
    return ut_transfer_moot(t) ? 0 : ut_transfer_outstanding(t, payload);
}

uint64_t ut_transfer_gaps(const ut_transfer *t, uint32_t payload)
{
    size_t w = ut_transfer_words(t->slots);
    if (t->granules || ut_transfer_moot(t))
        return ut_transfer_missing(t, payload);
    while (w > 0 && t->bits[w - 1] == 0)
        w--;
    const uint64_t newest = w ? w * 64 - (uint64_t)__builtin_clzll(t->bits[w - 1]) : 0;
    assert(newest >= t->done);
    return (newest - t->done) * (t->stands_for ? t->stands_for : payload);
}

uint64_t ut_transfer_outstanding(const ut_transfer *t, uint32_t payload)
{
    assert(t->done <= t->slots && payload > 0);
    uint32_t absent = t->slots - t->done;
    if (t->granules) {
        assert(t->covered <= t->whole);
        return t->whole - t->covered;
    }
    if (absent == 0)
        return 0;
    bool last_absent = !ut_transfer_has(t, t->slots - 1);
    uint64_t full = t->stands_for ? t->stands_for : payload, last = ut_transfer_counts(t, t->slots - 1, t->bytes_last);
    return (absent - last_absent) * full + (last_absent ? last : 0);
}
