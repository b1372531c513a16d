/* SPDX-License-Identifier: Apache-2.0
 *
 * What all takers of a cap send together stays within it over whatever time, is all that it lets go, and is shared
 * alike; what is sent unasked is in the count; and threads that take at once lose none of it.
 */
#include <pthread.h>

#include "check.h"

#include "core/link/cap.h"
#include "core/link/tokens.h"

enum { PACKET = 1472, HEADERS = 28, TAKERS = 3, TOLD = 130, QUANTA = 600, THREADS = 4, ROUNDS = 20000 };

static ut_cap cap;
static ut_cap_taker taker[TAKERS];
static double meter; /* ns: when all that was sent so far has gone at the cap's rate */
static double most;  /* bytes beyond the rate that somebody has seen who counts packets on the wire */

static void begin(uint64_t rate, uint32_t takers)
{
    cap = (ut_cap){.rate = rate, .headers = HEADERS};
    for (uint32_t i = 0; i < takers; i++)
        ut_cap_join(&taker[i], &cap);
    meter = most = 0;
}

static void see(uint64_t packets, uint64_t bytes, ut_ns now)
{
    const double byte = 1e9 / (double)cap.rate;
    meter = UT_MAX2(meter, (double)now) + (double)(bytes + packets * HEADERS) * byte;
    most = UT_MAX2(most, (meter - (double)now) / byte);
}

/* All takers have data all the time, wake |late| ns late at most, and one of them sends feedback beside it. */
static void busy(uint64_t rate, uint64_t late)
{
    const double quantum = (double)ut_tokens_quantum(rate, PACKET + HEADERS);
    const ut_ns start = UT_SECOND, end = start + (ut_ns)(QUANTA * quantum * 1e9 / (double)rate);
    uint64_t sent[TAKERS] = {0}, told = 0;
    ut_ns last[TAKERS] = {start, start, start}, longest = 0;
    begin(rate, TAKERS);
    for (ut_ns now = start; now < end;) {
        ut_ns wake = UT_NEVER;
        const uint64_t first = check_below(TAKERS);
        for (uint64_t k = 0; k < TAKERS; k++) {
            const uint64_t i = (first + k) % TAKERS;
            ut_cap_look(&taker[i]);
            for (uint32_t n; (n = ut_cap_take(&taker[i], 44, PACKET, now)) > 0; last[i] = now) {
                ut_cap_sent(&taker[i], n, (uint64_t)n * PACKET, now);
                sent[i] += (uint64_t)n * (PACKET + HEADERS);
                see(n, (uint64_t)n * PACKET, now);
                longest = UT_MAX2(longest, now - last[i]);
            }
            if (i == 0 && check_below(4) == 0) {
                ut_cap_sent(&taker[i], 1, TOLD, now);
                told += TOLD + HEADERS;
                see(1, TOLD, now);
            }
            wake = UT_MIN2(wake, ut_cap_wake(&taker[i]));
        }
        if (!CHECK_MSG(wake > now && wake != UT_NEVER, "wake %" PRIu64 " at %" PRIu64, wake, now))
            return;
        now = wake + check_below(late + 1);
    }
    const double due = (double)rate * (double)(end - start) / 1e9, all = (double)(sent[0] + sent[1] + sent[2] + told);
    CHECK_MSG(most <= UT_TOKENS_MAX + TAKERS * quantum, "rate %" PRIu64 ": %.0f bytes beyond", rate, most);
    CHECK_MSG(all >= 0.99 * due && all <= due + UT_TOKENS_MAX + (TAKERS + 1) * quantum,
              "rate %" PRIu64 ": %.0f of %.0f", rate, all, due);
    for (unsigned i = 0; i < TAKERS; i++)
        CHECK_MSG((double)sent[i] > 0.3 * all && (double)sent[i] < 0.37 * all, "rate %" PRIu64 ", taker %u: %.3f", rate,
                  i, (double)sent[i] / all);
    CHECK_MSG(longest <= ut_cap_pause(&taker[0], PACKET) + 2 * late + UT_US, "rate %" PRIu64 ": silent for %" PRIu64,
              rate, longest);
}

static void cap__holds_over_any_time_and_is_used_and_shared(void)
{
    busy(65536, 50 * UT_US);
    busy(10000000, 50 * UT_US);
    busy(125000000, 50 * UT_US);
    busy(12500000000, 0);
}

/* What others wait for goes when it must. Data has what that leaves, and nothing where it leaves nothing. */
static void cap__counts_what_is_sent_unasked(void)
{
    static const uint32_t told[] = {0, 5000, 12000}; /* in each millisecond, of 10000 bytes */
    for (unsigned row = 0; row < 3; row++) {
        uint64_t data = 0;
        begin(10000000, 1);
        for (ut_ns now = UT_SECOND; now < 3 * UT_SECOND; now += UT_MS) {
            if (told[row])
                ut_cap_sent(&taker[0], 1, told[row] - HEADERS, now);
            ut_cap_look(&taker[0]);
            for (uint32_t n; (n = ut_cap_take(&taker[0], 44, PACKET, now)) > 0;) {
                ut_cap_sent(&taker[0], n, (uint64_t)n * PACKET, now);
                data += (uint64_t)n * (PACKET + HEADERS);
            }
        }
        const uint64_t due = 2000 * (10000 - UT_MIN2(told[row], 10000u));
        CHECK_MSG(data + due / 100 >= due && data <= due + UT_TOKENS_MAX + 24000, "row %u: %" PRIu64 " of %" PRIu64,
                  row, data, due);
    }
}

/* A host that has only told others something has saved up nothing for its data, and owes what it told too much. */
static void cap__of_feedback_alone_saves_nothing_up(void)
{
    const ut_ns start = UT_SECOND, now = start + 100 * UT_MS;
    begin(10000000, 1);
    for (unsigned i = 0; i < 100; i++)
        ut_cap_sent(&taker[0], 1, 20000 - HEADERS, start + i * UT_MS);
    CHECK_EQ(ut_cap_take(&taker[0], 44, PACKET, now), 0);
    CHECK_EQ(ut_cap_wake(&taker[0]), start + 200 * UT_MS - UT_TOKENS_MAX * UINT64_C(100) + 2400 * UT_US);
}

static void cap__of_none_lets_all_go(void)
{
    ut_cap_taker nobody = {.cap = NULL};
    begin(0, 1);
    for (unsigned i = 0; i < 100; i++) {
        CHECK_EQ(ut_cap_take(&taker[0], 40, PACKET, UT_SECOND), 40);
        ut_cap_sent(&taker[0], 40, 40 * PACKET, UT_SECOND);
        CHECK_EQ(ut_cap_take(&nobody, 40, PACKET, UT_SECOND), 40);
        ut_cap_sent(&nobody, 40, 40 * PACKET, UT_SECOND);
        CHECK_EQ(ut_cap_take(NULL, 40, PACKET, UT_SECOND), 40);
    }
    CHECK_EQ(ut_cap_wake(&taker[0]), UT_NEVER);
    CHECK_EQ(ut_cap_pause(&taker[0], PACKET) + ut_cap_pause(&nobody, PACKET) + ut_cap_pause(NULL, PACKET), 0);
}

static void use_up(ut_ns now)
{
    for (uint32_t n; (n = ut_cap_take(&taker[0], 44, PACKET, now)) > 0;)
        ut_cap_sent(&taker[0], n, (uint64_t)n * PACKET, now);
}

/* Neither what was saved up nor what was owed at the old rate lasts; the same rate again changes nothing. */
static void ut_cap_set__is_in_force_at_once(void)
{
    const ut_ns now = 5 * UT_SECOND;
    begin(65536, 1);
    use_up(now);
    const ut_ns wake = ut_cap_wake(&taker[0]);
    CHECK(wake > now + 100 * UT_MS);
    ut_cap_set(&cap, 65536, now);
    CHECK_EQ(ut_cap_take(&taker[0], 1, PACKET, now), 0);
    CHECK_EQ(ut_cap_wake(&taker[0]), wake);
    ut_cap_set(&cap, 10000000, now);
    CHECK_EQ(ut_cap_take(&taker[0], 1, PACKET, now), 0); /* a quantum has to be waited for, and no more */
    CHECK_EQ(ut_cap_wake(&taker[0]), now + 2400 * UT_US);
    ut_cap_set(&cap, 0, now);
    CHECK_EQ(ut_cap_take(&taker[0], 44, PACKET, now), 44);
}

static void ut_cap_pause__is_a_quantum_of_each_who_may_come_before(void)
{
    begin(10000000, 2);
    CHECK_EQ(ut_cap_pause(&taker[0], PACKET), 2 * 2400 * UT_US); /* 16 packets of 1500 bytes each */
    taker[0].users = 3;
    CHECK_EQ(ut_cap_pause(&taker[0], PACKET), 6 * 2400 * UT_US);
    ut_cap_leave(&taker[1]);
    CHECK_EQ(ut_cap_pause(&taker[0], PACKET), 3 * 2400 * UT_US);
}

static void *send_much(void *arg)
{
    ut_cap_taker *t = arg;
    for (unsigned i = 0; i < ROUNDS; i++)
        ut_cap_sent(t, 1, 1000 - HEADERS, UT_SECOND);
    return NULL;
}

/* At 1 GB a second each of them moves the clock by exactly a microsecond. */
static void cap__loses_nothing_between_threads(void)
{
    static ut_cap_taker each[THREADS];
    pthread_t thread[THREADS];
    begin(1000000000, 0);
    for (unsigned i = 0; i < THREADS; i++) {
        ut_cap_join(&each[i], &cap);
        CHECK_EQ(pthread_create(&thread[i], NULL, send_much, &each[i]), 0);
    }
    for (unsigned i = 0; i < THREADS; i++)
        pthread_join(thread[i], NULL);
    CHECK_EQ(cap.free_at, UT_SECOND - UT_TOKENS_MAX + (uint64_t)THREADS * ROUNDS * UT_US);
    CHECK_EQ(cap.takers, THREADS);
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(cap__holds_over_any_time_and_is_used_and_shared);
    RUN(cap__counts_what_is_sent_unasked);
    RUN(cap__of_feedback_alone_saves_nothing_up);
    RUN(cap__of_none_lets_all_go);
    RUN(ut_cap_set__is_in_force_at_once);
    RUN(ut_cap_pause__is_a_quantum_of_each_who_may_come_before);
    RUN(cap__loses_nothing_between_threads);
    return check_end();
}
