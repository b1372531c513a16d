/* SPDX-License-Identifier: Apache-2.0
 *
 * Whose turn it is to send, without any op or path: a look is a row of calls, one for each transfer.
 */
#include "core/path/incast.h"

#include "check.h"

enum { HOSTS = 6 };

static void incast__as_many_begin_as_the_factor_says(void)
{
    for (unsigned factor = 1; factor < HOSTS; factor++) {
        ut_incast i;
        unsigned begun = 0;
        ut_incast_init(&i, HOSTS);
        ut_incast_look(&i, HOSTS, factor);
        CHECK_EQ(i.gated, factor + 1 < HOSTS);
        for (uint32_t h = 1; h < HOSTS; h++)
            if (ut_incast_begins(&i, h)) {
                begun++;
                ut_incast_has_turn(&i, h, 100 + h, 50);
            }
        CHECK_EQ(begun, factor);
        CHECK_EQ(i.look_at, 101); /* the first of them may fall silent then */
    }
}

/* Once one has to wait, all behind it in the schedule wait too, although some of them have a turn in another op. */
static void incast__keeps_the_order(void)
{
    ut_incast i;
    ut_incast_init(&i, HOSTS);
    ut_incast_look(&i, HOSTS, 1);
    ut_incast_has_turn(&i, 2, 100, 50);
    CHECK(ut_incast_begins(&i, 2)); /* another transfer of the same sender */
    CHECK(!ut_incast_begins(&i, 3));
    CHECK(!ut_incast_begins(&i, 2));
}

static void incast__lets_one_in_for_the_silent_and_ignores_the_slow(void)
{
    ut_incast i;
    ut_incast_init(&i, HOSTS);
    ut_incast_look(&i, HOSTS, 2);
    ut_incast_has_turn(&i, 1, 100, 200); /* silent since 100 */
    ut_incast_has_turn(&i, 2, 300, 200);
    CHECK(ut_incast_begins(&i, 3));
    ut_incast_has_turn(&i, 3, 300, 200);
    CHECK(!ut_incast_begins(&i, 4));

    ut_incast_look(&i, HOSTS, 1);
    ut_incast_has_turn(&i, 1, 100, 200); /* nobody at all is heard: one more, whoever it is */
    ut_incast_has_turn(&i, 2, 100, 200);
    CHECK(ut_incast_begins(&i, 3));
    CHECK_EQ(i.look_at, UT_NEVER);

    i.slow = 1ULL << 4;
    ut_incast_look(&i, HOSTS, 1);
    ut_incast_has_turn(&i, 4, 300, 200);
    CHECK(ut_incast_begins(&i, 1)); /* the slow one's turn is not counted, ... */
    ut_incast_has_turn(&i, 1, 300, 200);
    CHECK(!ut_incast_begins(&i, 2));
    ut_incast_look(&i, HOSTS, 1);
    ut_incast_has_turn(&i, 1, 300, 200);
    CHECK(ut_incast_begins(&i, 4)); /* ... nor does it wait for one */
}

static void incast__a_dynamic_factor_falls_with_trouble_and_recovers(void)
{
    ut_incast i;
    ut_incast_init(&i, HOSTS);
    CHECK_EQ(i.dynamic, HOSTS - 1);
    const ut_incast_loss fine = {.expected = 6400, .lost = 100}, lossy = {.expected = 6400, .lost = 101};
    const ut_incast_loss one = {.expected = 6400, .lost = 3000, .missing = {[3] = 2900, [4] = 100}};
    ut_incast_learn(&i, HOSTS, &fine);
    CHECK_EQ(i.dynamic, HOSTS - 1); /* there are no more */
    ut_incast_learn(&i, HOSTS, &lossy);
    ut_incast_learn(&i, HOSTS, &lossy);
    CHECK_EQ(i.dynamic, HOSTS - 3);
    ut_incast_learn(&i, HOSTS, &one);
    CHECK(i.dynamic == HOSTS - 3 && i.slow == 1ULL << 3);
    ut_incast_learn(&i, HOSTS, &fine);
    CHECK(i.dynamic == HOSTS - 2 && i.slow == 0);
    for (unsigned n = 0; n < HOSTS; n++)
        ut_incast_learn(&i, HOSTS, &lossy);
    CHECK_EQ(i.dynamic, 1);
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(incast__as_many_begin_as_the_factor_says);
    RUN(incast__keeps_the_order);
    RUN(incast__lets_one_in_for_the_silent_and_ignores_the_slow);
    RUN(incast__a_dynamic_factor_falls_with_trouble_and_recovers);
    return check_end();
}
