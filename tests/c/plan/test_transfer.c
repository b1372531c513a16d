/* SPDX-License-Identifier: Apache-2.0
 *
 * Slots and bitmaps against a slow model, and the rings between a trainer and its engine.
 */
#include "check.h"

#include "core/face/ring.h"
#include "core/plan/transfer.h"

static void ut_transfer__spec_tail_sizes(void)
{
    /* docs/papers.md, section 1.9: 25 MiB over N hosts, 1400 B payload: packets of a shard. */
    CHECK_EQ(ut_slots(4369068, 1400), 3121);
    CHECK_EQ(ut_slots(6553600, 1448), 4526);
    CHECK_EQ(ut_slots(0, 1400), 0);
    CHECK_EQ(ut_slots(1, 1400), 1);
}

static void ut_transfer__against_a_model(void)
{
    static uint64_t bits[64], again[64];
    static bool came[4096], lost[4096];
    for (int round = 0; round < 60; round++) {
        uint32_t payload = 8 + 8 * (uint32_t)check_below(200);
        uint64_t bytes = check_below(4096ull * payload);
        ut_transfer t;
        ut_transfer_init(&t, bytes, payload, bits, again);
        memset(came, 0, sizeof came);
        memset(lost, 0, sizeof lost);
        for (int k = 0; k < 3000 && t.slots; k++) {
            uint32_t slot = (uint32_t)check_below(t.slots), taken, row = 0;
            switch (check_below(5)) {
            case 0:
                CHECK_EQ(ut_transfer_mark(&t, slot), !came[slot]);
                came[slot] = true;
                lost[slot] = false;
                break;
            case 1:
                ut_transfer_lose(&t, slot);
                lost[slot] = lost[slot] || !came[slot];
                break;
            case 2: {
                const uint32_t most = check_below(2) ? 200 : 3;
                const uint32_t slots = (uint32_t)check_below(UT_MIN2(t.slots - slot, most) + 1);
                ut_transfer_mark_run(&t, slot, slots);
                for (; row < slots; row++) {
                    came[slot + row] = true;
                    lost[slot + row] = false;
                }
                break;
            }
            case 3: {
                uint32_t most = (uint32_t)check_below(300);
                while (row < most && slot + row < t.slots && !came[slot + row])
                    row++;
                CHECK_EQ(ut_transfer_absent(&t, slot, most), row);
                break;
            }
            default: {
                uint32_t lowest = 0;
                while (lowest < t.slots && !lost[lowest])
                    lowest++;
                bool any = ut_transfer_take_lost(&t, &taken);
                CHECK_EQ(any, lowest < t.slots);
                if (any) {
                    CHECK_EQ(taken, lowest);
                    lost[taken] = false;
                }
            }
            }
        }
        uint64_t missing = 0, behind = 0; /* the newest that came */
        uint32_t done = 0;
        for (uint32_t s = 0; s < t.slots; s++) {
            CHECK_EQ(ut_transfer_has(&t, s), came[s]);
            done += came[s];
            behind = came[s] ? 0 : behind + UT_MIN2(payload, bytes - (uint64_t)s * payload);
            if (!came[s])
                missing += UT_MIN2(payload, bytes - (uint64_t)s * payload);
        }
        CHECK_EQ(t.done, done);
        CHECK_EQ(ut_transfer_missing(&t, payload), missing);
        CHECK_EQ(ut_transfer_gaps(&t, payload), missing - behind);
        CHECK_EQ(ut_transfer_complete(&t), missing == 0);
    }
}

static void ut_ring__order_and_limits(void)
{
    static ut_submission_ring s;
    static ut_completion_ring c;
    static ut_receipt r;
    ut_submission x = {0};
    uint64_t taken = 0, written = 0;
    for (uint64_t i = 0; i < UT_RING_ENTRIES; i++) {
        x.op_seq = i;
        CHECK_EQ(ut_ring_submit(&s, &c, &x), UT_OK);
    }
    CHECK_EQ(ut_ring_submit(&s, &c, &x), UT_ERR_FULL);
    for (uint64_t i = 0; i < UT_RING_ENTRIES; i++) {
        CHECK_EQ(ut_ring_take_submission(&s, &c, &taken, &x), 1);
        CHECK_EQ(x.op_seq, i);
        r.op_seq = i;
        CHECK_EQ(ut_ring_complete(&s, &c, &written, &r), UT_OK);
    }
    CHECK_EQ(ut_ring_take_submission(&s, &c, &taken, &x), 0);
    CHECK_EQ(ut_ring_complete(&s, &c, &written, &r), UT_ERR_FULL); /* nothing was read yet */
    CHECK_EQ(ut_ring_submit(&s, &c, &x), UT_ERR_FULL);             /* unread receipts are outstanding too */
    for (uint64_t i = 0; i < UT_RING_ENTRIES; i++) {
        CHECK_EQ(ut_ring_take_completion(&s, &c, &r), 1);
        CHECK_EQ(r.op_seq, i);
    }
    CHECK_EQ(ut_ring_take_completion(&s, &c, &r), 0);
    CHECK_EQ(ut_ring_submit(&s, &c, &x), UT_OK);
}

/* A wild trainer's head moves the engine by at most the ring's own entries, forwards or backwards. */
static void ut_ring__a_wild_head_is_ignored(void)
{
    static ut_submission_ring s;
    static ut_completion_ring c;
    ut_submission x;
    static const uint64_t heads[] = {65, 1000, UINT64_MAX, UINT64_MAX - 63, 1ull << 63};
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++) {
        uint64_t taken = 0;
        s.head = heads[i];
        CHECK_EQ(ut_ring_take_submission(&s, &c, &taken, &x), 0);
        CHECK_EQ(taken, 0);
    }
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(ut_transfer__spec_tail_sizes);
    RUN(ut_transfer__against_a_model);
    RUN(ut_ring__order_and_limits);
    RUN(ut_ring__a_wild_head_is_ignored);
    return check_end();
}
