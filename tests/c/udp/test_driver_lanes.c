/* SPDX-License-Identifier: Apache-2.0
 *
 * Two hosts with two lanes each: the drivers of one host share its link, and tell each other without a lock what came
 * to them. Run under ThreadSanitizer as well (`make tsan`).
 */
#define _GNU_SOURCE
#include "cluster.h"
#include "udp/loop.h"

enum { HOSTS = 2, COUNT = 400000 };

static host *const first_lane = hosts, *const second_lane = hosts + HOSTS;

static void begin(void)
{
    lane_open(first_lane, HOSTS, false);
    lane_open(second_lane, HOSTS, true);
}

/* One op in each lane, both at once. */
static void all_reduce_in_both(uint64_t op_seq)
{
    ut_receipt r;
    for (uint32_t h = 0; h < 2 * HOSTS; h++) {
        for (uint64_t i = 0; i < COUNT; i++)
            hosts[h].trainer.arena[i] = value_of(h, i);
        submit(&hosts[h].trainer, op_seq, COUNT, PATIENCE_MS);
    }
    for (uint32_t h = 0; h < 2 * HOSTS; h++) {
        if (!wait_receipt(&hosts[h].trainer, &r))
            return;
        CHECK_MSG(r.status == UT_COMPLETE, "driver %u: status %u, error %d", h, r.status, r.error);
        const uint32_t lane = h / HOSTS * HOSTS;
        for (uint64_t i = 0; i < COUNT; i += 1009)
            CHECK_EQ((uint64_t)hosts[h].trainer.arena[i], (uint64_t)(value_of(lane, i) + value_of(lane + 1, i)));
    }
}

static uint64_t came(const host *h)
{
    const ut_driver *d = h->driver;
    return __atomic_load_n(&d->link->link.lane[d->engine_config.lane].bytes, __ATOMIC_RELAXED);
}

static void lanes__of_one_host_share_its_link(void)
{
    begin();
    for (uint32_t h = 0; h < HOSTS; h++) {
        CHECK(first_lane[h].driver->link == second_lane[h].driver->link);
        CHECK(first_lane[h].driver->engine_config.lane != second_lane[h].driver->engine_config.lane);
    }
    CHECK(hosts[0].driver->link != hosts[1].driver->link);
    for (uint64_t op = 0; op < 20; op++)
        all_reduce_in_both(op);
    for (uint32_t h = 0; h < 2 * HOSTS; h++) /* half of each bucket, and as much again in the second stage */
        CHECK_MSG(came(&hosts[h]) > 19ull * COUNT * 4, "driver %u told of %" PRIu64 " bytes", h, came(&hosts[h]));
    cluster_close(2 * HOSTS);
}

/* The link stays until the last of its drivers has gone, whichever that is, and a row can be used again. */
static void lanes__come_and_go(void)
{
    begin();
    all_reduce_in_both(0);
    const uint64_t before = came(&hosts[0]);
    ut_driver_close(hosts[0].driver);
    let_go(&hosts[0]);
    for (uint32_t h = HOSTS; h < 2 * HOSTS; h++)
        submit(&hosts[h].trainer, 1, COUNT, PATIENCE_MS);
    for (uint32_t h = HOSTS; h < 2 * HOSTS; h++) {
        ut_receipt r;
        CHECK(wait_receipt(&hosts[h].trainer, &r) && r.status == UT_COMPLETE);
    }
    hosts[0].driver = open_driver_beside(hosts[HOSTS].driver);
    CHECK_EQ(hosts[0].driver->engine_config.lane, 0);
    CHECK(came(&hosts[0]) >= before); /* what others have read stays counted */
    cluster_close(2 * HOSTS);
}

static void lanes__a_link_has_room_for_so_many(void)
{
    ut_driver *d[UT_LANES_MAX];
    char error[256];
    for (unsigned i = 0; i < UT_LANES_MAX; i++)
        d[i] = open_driver_beside(i ? d[i - 1] : NULL);
    CHECK(ut_driver_open(&(ut_driver_config){.bind = address, .beside = d[0]}, error, sizeof(error)) == NULL);
    CHECK_STR(error, "beside: 4 drivers share that link already");
    ut_driver_close(d[0]);
    d[0] = open_driver_beside(d[2]);
    for (unsigned i = 0; i < UT_LANES_MAX; i++)
        ut_driver_close(d[i]);
}

/* Bytes that the lanes of host |h| have sent as data, with headers. */
static uint64_t sent(uint32_t h)
{
    uint64_t bytes = 0;
    for (uint32_t lane = 0; lane < 2; lane++) {
        ut_driver_stats s;
        ut_driver_get_stats(hosts[h + lane * HOSTS].driver, &s);
        bytes += s.engine.data_sent_bytes + 28 * s.engine.data_sent;
    }
    return bytes;
}

/* A job in each lane, both at once: what may be sent is the host's, not the lane's, and it may change while they run.
 */
static void lanes__send_no_more_than_their_host_may(void)
{
    enum { MOST = 10000000, OPS = 2, TURNS = 4 };
    begin();
    all_reduce_in_both(0);
    for (uint32_t h = 0; h < HOSTS; h++)
        ut_driver_set_cap(second_lane[h].driver, MOST);
    double rate = 0;
    uint64_t op = 1;
    for (unsigned turn = 0; turn < TURNS && rate <= 0.6 * MOST; turn++) { /* a busy machine sends less now and then */
        const uint64_t before = sent(0), began = ut_driver_now();
        for (const uint64_t end = op + OPS; op < end; op++)
            all_reduce_in_both(op);
        const double took = (double)(ut_driver_now() - began) / 1e9;
        rate = (double)(sent(0) - before) / took;
        CHECK_MSG(rate < 1.06 * MOST, "%.0f bytes a second, in %.3f s", rate, took);
    }
    CHECK_MSG(rate > 0.6 * MOST, "%.0f bytes a second at most, in %u turns", rate, TURNS);
    for (uint32_t h = 0; h < HOSTS; h++) { /* two ops would take 98 s by the one, and the other lifts it */
        ut_driver_set_cap(first_lane[h].driver, 65536);
        ut_driver_set_cap(second_lane[h].driver, 0);
    }
    const uint64_t lifted = ut_driver_now();
    for (const uint64_t end = op + OPS; op < end; op++)
        all_reduce_in_both(op);
    const double then = (double)(ut_driver_now() - lifted) / 1e9;
    CHECK_MSG(then < 10, "%.3f s", then);
    cluster_close(2 * HOSTS);
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(lanes__of_one_host_share_its_link);
    RUN(lanes__come_and_go);
    RUN(lanes__a_link_has_room_for_so_many);
    RUN(lanes__send_no_more_than_their_host_may);
    return check_end();
}
