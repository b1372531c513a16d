/* SPDX-License-Identifier: Apache-2.0
 *
 * A token bucket lets through what it says, no more and no less, and wakes nobody in vain.
 */
#include "check.h"

#include "core/link/tokens.h"

enum { PACKET = 1472 };

static ut_tokens t;

static void ut_tokens_take__lets_through_what_it_says(void)
{
    static const struct {
        uint64_t limit, force;
    } rows[] = {{10000000, 10000000}, {119000000, 119000000}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ut_tokens_init(&t, rows[i].limit);
        ut_ns now = UT_SECOND;
        uint64_t sent = 0, wakes = 0;
        while (now < 3 * UT_SECOND) {
            ut_tokens_look(&t);
            uint32_t n = ut_tokens_take(&t, 44, PACKET, now);
            if (n) {
                CHECK(!t.held);
                CHECK_EQ(ut_tokens_wake(&t, PACKET), UT_NEVER);
                ut_tokens_sent(&t, n * PACKET);
                sent += n * PACKET;
                continue;
            }
            CHECK(t.held);
            ut_ns wake = ut_tokens_wake(&t, PACKET);
            CHECK(wake > now && wake < now + 5 * UT_MS);
            now = wake;
            wakes++;
        }
        uint64_t due = 2 * rows[i].force + UT_TOKENS_MAX;
        CHECK_MSG(sent <= due + 44 * PACKET && sent >= due - due / 200, "row %zu: %zu of %zu", i, (size_t)sent,
                  (size_t)due);
        CHECK_MSG(wakes <= 8100, "row %zu: %zu wakes in two seconds", i, (size_t)wakes); /* each 250 us at most */
    }
}

/* Data that went away must not leave a timer behind, or the thread would never sleep again. */
static void ut_tokens_wake__forgets_with_the_next_look(void)
{
    ut_tokens_init(&t, 1000000);
    while (ut_tokens_take(&t, 44, PACKET, UT_SECOND))
        ut_tokens_sent(&t, 44 * PACKET);
    CHECK(ut_tokens_wake(&t, PACKET) != UT_NEVER);
    ut_tokens_look(&t);
    CHECK_EQ(ut_tokens_wake(&t, PACKET), UT_NEVER);
}

/* Data that waits goes again after as long as the limit takes for a quantum, and never a pause longer. */
static void ut_tokens_pause__is_the_longest_between_two_quanta(void)
{
    static const uint64_t limits[] = {0, 1000000, 70000000, 125000000, 2000000000};
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        ut_ns last = UT_SECOND, longest = 0;
        ut_tokens_init(&t, limits[i]);
        for (ut_ns now = last; now < last + 100 * UT_MS && now < 2 * UT_SECOND; now += UT_US) {
            uint32_t some = ut_tokens_take(&t, 4, PACKET, now);
            longest = some ? UT_MAX2(longest, now - last) : longest;
            last = some ? now : last;
            for (uint32_t k = 0; some && k < 100; k++, some = ut_tokens_take(&t, 4, PACKET, now))
                ut_tokens_sent(&t, some * PACKET);
        }
        const ut_ns pause = ut_tokens_pause(&t, PACKET);
        CHECK_MSG(longest <= pause + 2 * UT_US && longest + pause / 8 + 2 * UT_US >= pause, "%zu: %zu, want %zu", i,
                  (size_t)longest, (size_t)pause);
    }
}

static void ut_tokens_take__without_a_bound_all_may_go(void)
{
    ut_tokens_init(&t, 0);
    for (ut_ns now = UT_SECOND; now < UT_SECOND + UT_MS; now += UT_US) {
        CHECK_EQ(ut_tokens_take(&t, 40, PACKET, now), 40);
        ut_tokens_sent(&t, 40 * PACKET);
    }
    CHECK(!t.held);
}

int main(void)
{
    RUN(ut_tokens_take__lets_through_what_it_says);
    RUN(ut_tokens_take__without_a_bound_all_may_go);
    RUN(ut_tokens_pause__is_the_longest_between_two_quanta);
    RUN(ut_tokens_wake__forgets_with_the_next_look);
    return check_end();
}
