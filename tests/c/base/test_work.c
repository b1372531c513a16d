/* SPDX-License-Identifier: Apache-2.0 */
#include "core/base/work.h"

#include "check.h"

enum { LARGE = UT_SMALL_BYTES + 1 };

static ut_work fresh(void)
{
    ut_work w = {0};
    ut_work_begin_turn(&w);
    return w;
}

static void work__a_turn_holds_what_it_says_and_asks_for_another(void)
{
    ut_work w = fresh();
    uint64_t done = 0, some, all = 10 * (uint64_t)UT_TURN_BYTES + 7;
    unsigned turns = 1;
    while (done < all) {
        some = ut_work_take(&w, all, all - done);
        CHECK(some <= UT_TURN_BYTES);
        CHECK(some % 64 == 0 || done + some == all);
        CHECK_EQ(w.waits, done + some < all); /* else nobody would come back */
        done += some;
        if (some == 0) {
            ut_work_begin_turn(&w);
            turns++;
        }
    }
    CHECK_EQ(turns, 11);
}

static void work__small_things_pass_when_large_ones_wait(void)
{
    ut_work w = fresh();
    CHECK_EQ(ut_work_take(&w, UINT64_MAX, UINT64_MAX), UT_TURN_BYTES);
    CHECK_EQ(ut_work_take(&w, LARGE, LARGE), 0);
    CHECK(!ut_work_pass(&w, LARGE, 1));
    CHECK_EQ(ut_work_take(&w, 64, 64), 64);
    CHECK(ut_work_pass(&w, UT_SMALL_BYTES, UT_SMALL_BYTES));
}

static void work__a_crowd_of_small_things_waits_too(void)
{
    ut_work w = fresh();
    unsigned passed = 0;
    while (ut_work_pass(&w, 0, UT_CALL_BYTES) && passed < 100000)
        passed++;
    CHECK(passed >= UT_TURN_BYTES / UT_CALL_BYTES && passed <= 2 * UT_TURN_BYTES / UT_CALL_BYTES + 1);
    CHECK(w.waits);
    ut_work_begin_turn(&w); /* what was overdrawn is paid back, and no more */
    CHECK(!w.waits && w.left > -(int64_t)UT_CALL_BYTES && w.left <= 0);
    for (unsigned i = 0; i < 10; i++)
        ut_work_begin_turn(&w);
    CHECK_EQ(w.left, UT_TURN_BYTES); /* idle turns save nothing up */
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(work__a_turn_holds_what_it_says_and_asks_for_another);
    RUN(work__small_things_pass_when_large_ones_wait);
    RUN(work__a_crowd_of_small_things_waits_too);
    return check_end();
}
