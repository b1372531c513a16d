/* SPDX-License-Identifier: Apache-2.0
 *
 * When the engine's thread moves to another CPU. The decision is a function of two durations; that the move itself
 * leaves the thread where it may be is checked on the machine at hand.
 */
#define _GNU_SOURCE
#include "check.h"

#include <sched.h>

#include "udp/cpu.h"

static void ut_cpu_decide__stays_while_it_runs(void)
{
    ut_cpu p = {.fd = -1, .random = 1, .interval = 1};
    for (int i = 0; i < 1000; i++) {
        CHECK(!ut_cpu_decide(&p, 500000, 124000)); /* waits less than a quarter of what it runs */
        CHECK(!ut_cpu_decide(&p, 99000, 5000000)); /* hardly ran: it slept, nothing to judge */
    }
}

static void ut_cpu_decide__moves_by_chance_and_backs_off(void)
{
    ut_cpu p = {.fd = -1, .random = 12345, .interval = 500000};
    int moved = 0;
    for (int i = 0; i < 1000; i++)
        moved += ut_cpu_decide(&p, 500000, 500000);
    CHECK_GE(moved, 400); /* about half, or two that share a CPU would leave it together */
    CHECK_LE(moved, 600);
    CHECK_EQ(p.interval, 100000000);
    CHECK(!ut_cpu_decide(&p, 500000, 0));
    CHECK_EQ(p.interval, 500000); /* it helped: attentive again */
}

static void ut_cpu_look__keeps_the_allowed_cpus(void)
{
    cpu_set_t before, after;
    ut_cpu p;
    CHECK_EQ(sched_getaffinity(0, sizeof before, &before), 0);
    ut_cpu_init(&p, 7);
    for (ut_ns now = 0; now < 50 * UT_MS; now += UT_MS) {
        p.ran_ns = p.waited_ns = 0; /* as if it had run and waited all its life since the last look */
        ut_cpu_look(&p, now);
    }
    CHECK_EQ(sched_getaffinity(0, sizeof after, &after), 0);
    CHECK(CPU_EQUAL(&before, &after));
    ut_cpu_free(&p);
    CHECK_EQ(p.fd, -1);
    CHECK(!ut_cpu_look(&p, UT_NEVER - 1)); /* and nothing happens any more */
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(ut_cpu_decide__stays_while_it_runs);
    RUN(ut_cpu_decide__moves_by_chance_and_backs_off);
    RUN(ut_cpu_look__keeps_the_allowed_cpus);
    return check_end();
}
