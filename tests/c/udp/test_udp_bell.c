/* SPDX-License-Identifier: Apache-2.0
 *
 * How soon a bell is rung again: by how long the thread worked at it, never by how long it waited for a CPU.
 */
#include "check.h"

#include "udp/bell.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

static void bell__one_ring_that_took_long_only_raises_doubts(void)
{
    ut_bell b = {0};
    ut_bell_rung(&b, UT_SECOND, 30 * UT_MS, 0);
    CHECK(b.doubted);
    CHECK_EQ(b.at, 0);
}

/* It waited for a CPU, however long and how often. */
static void bell__a_thread_that_had_to_wait_is_not_the_bells_fault(void)
{
    ut_bell b = {.doubted = true};
    for (unsigned i = 0; i < 5; i++) {
        ut_bell_rung(&b, UT_SECOND, 30 * UT_MS, 2 * UT_US);
        CHECK(b.doubted);
        CHECK_EQ(b.at, 0);
    }
    ut_bell_rung(&b, UT_SECOND, 2 * UT_US, 2 * UT_US);
    CHECK(!b.doubted);
}

static void bell__a_slow_one_rests_for_as_long_as_it_deserves(void)
{
    ut_bell b = {.doubted = true};
    ut_bell_rung(&b, UT_SECOND, 500 * UT_US, 400 * UT_US);
    CHECK_EQ(b.at, UT_SECOND + UT_BELL_REST * 400 * UT_US);
    CHECK(b.doubted); /* so the next ring is measured as well */
    ut_bell_rung(&b, 2 * UT_SECOND, 500 * UT_US, UT_BELL_SLOW_NS);
    CHECK_EQ(b.at, 0);
}

/* What it does is told by what the other end hears; a full one and one that was shut are silent. */
static void bell__rings(void)
{
    int ends[2];
    char heard[4096];
    CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    ut_bell b = {.fd = ends[0]}, doubted = {.fd = ends[0], .doubted = true};
    ut_bell_ring(&b, UT_SECOND);
    ut_bell_ring(&doubted, UT_SECOND);
    CHECK_EQ(read(ends[1], heard, sizeof heard), 2);
    for (unsigned i = 0; i < 1 << 20 && send(ends[0], heard, sizeof heard, MSG_DONTWAIT) > 0; i++)
        ;
    ut_bell full = {.fd = ends[0], .at = 7};
    ut_bell_ring(&full, UT_SECOND);
    CHECK_EQ(full.at, 7);
    close(ends[1]);
    ut_bell_ring(&full, UT_SECOND);
    CHECK_EQ(full.at, 7);
    close(ends[0]);
}

/* A trainer whose end of the bell thousands watch: each ring is work for the one who rings. */
static void bell__that_thousands_watch_is_rung_seldom(void)
{
    enum { COPIES = 500, EPOLLS = 60 };
    int ends[2], copy[COPIES], watcher[EPOLLS];
    CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    for (unsigned i = 0; i < COPIES; i++)
        CHECK((copy[i] = dup(ends[1])) >= 0);
    for (unsigned k = 0; k < EPOLLS; k++) {
        CHECK((watcher[k] = epoll_create1(0)) >= 0);
        for (unsigned i = 0; i < COPIES; i++) {
            struct epoll_event e = {.events = EPOLLIN};
            CHECK_EQ(epoll_ctl(watcher[k], EPOLL_CTL_ADD, copy[i], &e), 0);
        }
    }
    ut_bell b = {.fd = ends[0]};
    for (unsigned rings = 0; rings < 100 && b.at == 0; rings++)
        ut_bell_ring(&b, UT_SECOND);
    CHECK_GE(b.at, UT_SECOND + UT_BELL_REST * UT_BELL_SLOW_NS);
    for (unsigned k = 0; k < EPOLLS; k++)
        close(watcher[k]);
    for (unsigned i = 0; i < COPIES; i++)
        close(copy[i]);
    close(ends[0]);
    close(ends[1]);
}

int main(void)
{
    RUN(bell__one_ring_that_took_long_only_raises_doubts);
    RUN(bell__a_thread_that_had_to_wait_is_not_the_bells_fault);
    RUN(bell__a_slow_one_rests_for_as_long_as_it_deserves);
    RUN(bell__rings);
    RUN(bell__that_thousands_watch_is_rung_seldom);
    return check_end();
}
