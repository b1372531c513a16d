/* SPDX-License-Identifier: Apache-2.0
 *
 * The two rings of a session: what fits, what a trainer that breaks the rules can do to the engine's side (nothing),
 * and where a receipt is counted for which its ring has no room.
 */
#include "crew.h"

static ut_submission_ring submissions;
static ut_completion_ring completions;

static void clear(void)
{
    memset(&submissions, 0, sizeof submissions);
    memset(&completions, 0, sizeof completions);
}

static void ring__submissions_come_out_in_order_and_64_fit(void)
{
    clear();
    uint64_t taken = 0;
    ut_submission s = {0};
    for (unsigned lap = 0; lap < 3; lap++) {
        for (unsigned i = 0; i < UT_RING_ENTRIES; i++) {
            s.op_seq = lap * UT_RING_ENTRIES + i;
            CHECK_EQ(ut_ring_submit(&submissions, &completions, &s), UT_OK);
        }
        CHECK_EQ(ut_ring_submit(&submissions, &completions, &s), UT_ERR_FULL);
        for (unsigned i = 0; i < UT_RING_ENTRIES; i++) {
            CHECK_EQ(ut_ring_take_submission(&submissions, &completions, &taken, &s), 1);
            CHECK_EQ(s.op_seq, lap * UT_RING_ENTRIES + i);
        }
        CHECK_EQ(ut_ring_take_submission(&submissions, &completions, &taken, &s), 0);
        CHECK_EQ(completions.submissions_taken, taken);
        submissions.completions_taken = taken; /* and their receipts were read */
    }
}

/* Every submission ends in a receipt, which must find room. */
static void ring__unread_receipts_count_as_outstanding(void)
{
    clear();
    uint64_t taken = 0;
    ut_submission s = {0};
    for (unsigned i = 0; i < UT_RING_ENTRIES; i++) {
        CHECK_EQ(ut_ring_submit(&submissions, &completions, &s), UT_OK);
        CHECK_EQ(ut_ring_take_submission(&submissions, &completions, &taken, &s), 1);
    }
    CHECK_EQ(ut_ring_submit(&submissions, &completions, &s), UT_ERR_FULL);
    static ut_receipt r = {.op_seq = 9, .status = UT_PARTIAL};
    uint64_t written = 0;
    for (unsigned i = 0; i < UT_RING_ENTRIES; i++)
        CHECK_EQ(ut_ring_complete(&submissions, &completions, &written, &r), UT_OK);
    CHECK_EQ(ut_ring_complete(&submissions, &completions, &written, &r), UT_ERR_FULL);
    CHECK_EQ(written, UT_RING_ENTRIES);
    memset(&r, 0, sizeof r);
    CHECK_EQ(ut_ring_take_completion(&submissions, &completions, &r), 1);
    CHECK(r.op_seq == 9 && r.status == UT_PARTIAL);
    CHECK_EQ(ut_ring_submit(&submissions, &completions, &s), UT_OK);
    CHECK_EQ(ut_ring_complete(&submissions, &completions, &written, &r), UT_OK);
}

/* A head that runs away or goes backwards is a wild trainer's: nothing is read for it. */
static void ring__a_wild_head_is_nothing(void)
{
    static const uint64_t heads[] = {UT_RING_ENTRIES + 8, 6, UINT64_MAX, 1ULL << 63};
    clear();
    uint64_t taken = 7;
    ut_submission s;
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++) {
        submissions.head = heads[i];
        CHECK(!ut_ring_has_submission(&submissions, taken));
        CHECK_EQ(ut_ring_take_submission(&submissions, &completions, &taken, &s), 0);
        CHECK_EQ(taken, 7);
    }
    submissions.head = 8;
    CHECK(ut_ring_has_submission(&submissions, taken));
    submissions.head = 7 + UT_RING_ENTRIES;
    CHECK(ut_ring_has_submission(&submissions, taken));
}

/* The daemon empties the rings of a session that has ended: their heads read zero to a trainer that still looks. */
static void ring__an_emptied_ring_tells_nothing(void)
{
    clear();
    static ut_receipt r;
    submissions.completions_taken = 7;
    CHECK_EQ(ut_ring_take_completion(&submissions, &completions, &r), 0);
    CHECK_EQ(submissions.completions_taken, 7);
}

/* Against the rules, a trainer says that it has read receipts which it has not, and submits on. */
static void engine__a_receipt_without_room_is_counted_as_one(void)
{
    begin(1, 1, (ut_job_options){0});
    struct trainer *t = &trainers[0][0];
    for (unsigned i = 0; i < UT_RING_ENTRIES + 3; i++) {
        ut_submission one = words(0, 0);
        one.op_seq = i;
        t->submissions.completions_taken = i;
        CHECK_EQ(ut_ring_submit(&t->submissions, &t->completions, &one), UT_OK);
        t->submissions.completions_taken = 0;
        ut_engine_submissions(hosts[0].engine, t->session, now);
        run(UT_MS);
    }
    ut_stats s;
    ut_engine_stats(hosts[0].engine, &s);
    CHECK_EQ(t->completions.head, UT_RING_ENTRIES);
    CHECK_EQ(s.ops_complete, UT_RING_ENTRIES + 3);
    CHECK_EQ(s.receipts_dropped, 3);
    CHECK_EQ(s.events_dropped, 0);
    end();
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(ring__submissions_come_out_in_order_and_64_fit);
    RUN(ring__unread_receipts_count_as_outstanding);
    RUN(ring__an_emptied_ring_tells_nothing);
    RUN(ring__a_wild_head_is_nothing);
    RUN(engine__a_receipt_without_room_is_counted_as_one);
    return check_end();
}
