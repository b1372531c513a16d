/* SPDX-License-Identifier: Apache-2.0
 *
 * Jobs and lanes that share a link which carries 100 MB/s, without any op or path: a flow has a backlog or not, what it
 * sends is acknowledged at once, and the link drops nothing but carries no more than it can.
 */
#include "check.h"

#include "core/link/uplink.h"

enum { LANES = 3, PER_LANE = 3, FLOWS = LANES * PER_LANE, PACKET = 1472, STEP_NS = 500 * 1000 };

static const uint64_t LINK = 100 * 1000 * 1000;

static ut_link shared;
static ut_uplink uplink[LANES];
static ut_flow flow[FLOWS];
static uint64_t wanted[FLOWS]; /* bytes per second */
static uint64_t sent[FLOWS], backlog[FLOWS];
static ut_ns now;

/* |lanes| engines with |jobs| jobs each; flow f is job f / lanes of lane f % lanes. */
static void begin(unsigned lanes, unsigned jobs)
{
    memset(&shared, 0, sizeof shared);
    memset(wanted, 0, sizeof wanted);
    memset(backlog, 0, sizeof backlog);
    now = UT_SECOND;
    for (uint32_t lane = 0; lane < lanes; lane++)
        ut_uplink_init(&uplink[lane], lanes > 1 ? &shared : NULL, lane);
    for (uint32_t f = 0; f < lanes * jobs; f++)
        ut_uplink_join(&uplink[f % lanes], f / lanes, &flow[f], 0);
}

/* Sends for |time|; the link is shared in proportion to what is offered. */
static void run(unsigned flows, ut_ns time)
{
    memset(sent, 0, sizeof sent);
    for (ut_ns until = now + time; now < until; now += STEP_NS) {
        uint64_t offered[FLOWS] = {0}, all = 0, room = LINK / (UT_SECOND / STEP_NS);
        for (unsigned f = 0; f < flows; f++) {
            bool paused = backlog[f] == 0;
            backlog[f] += wanted[f] / (UT_SECOND / STEP_NS);
            backlog[f] = UT_MIN2(backlog[f], 4u << 20);
            if (paused && backlog[f])
                ut_flow_begin(&flow[f], now);
            ut_tokens_look(&flow[f].tokens);
            uint32_t n = ut_flow_take(&flow[f], (uint32_t)((backlog[f] + PACKET - 1) / PACKET), PACKET, now);
            offered[f] = UT_MIN2((uint64_t)n * PACKET, backlog[f]);
            all += offered[f];
        }
        for (unsigned f = 0; f < flows; f++) {
            uint64_t goes = all <= room ? offered[f] : offered[f] * room / all;
            flow[f].full = flow[f].full || goes < backlog[f];
            ut_tokens_sent(&flow[f].tokens, (uint32_t)goes);
            ut_flow_fate(&flow[f], (uint32_t)goes, true);
            backlog[f] -= goes;
            sent[f] += goes;
            ut_pulse p;
            ut_uplink_look(flow[f].uplink, true, backlog[f] == 0 && !flow[f].full, now, &p);
        }
    }
}

static void found(unsigned flows)
{
    for (unsigned f = 0; f < flows; f++)
        wanted[f] = 10 * LINK;
    run(flows, 2 * UT_SECOND);
}

#define CHECK_ABOUT(got, expected, percent)                                                                            \
    CHECK_MSG((got) >= (expected) / 100 * (100 - (percent)) && (got) <= (expected) / 100 * (100 + (percent)),          \
              #got ": %zu, not %zu", (size_t)(got), (size_t)(expected))

static uint64_t sum(unsigned flows)
{
    uint64_t all = 0;
    for (unsigned f = 0; f < flows; f++)
        all += sent[f];
    return all;
}

static void uplink__finds_the_rate_of_a_link(void)
{
    begin(1, 1);
    found(1);
    CHECK_ABOUT(uplink[0].rate.rate, LINK, 4);
    CHECK_EQ(flow[0].tokens.part, uplink[0].rate.rate); /* alone, it has all of it */
    CHECK_ABOUT(flow[0].window, LINK / 1000 * 7 / 4, 4);
}

/* However jobs are spread over lanes: together they keep to what the link carries, and each has an equal part. */
static void uplink__flows_that_want_all_get_equal_parts(void)
{
    for (unsigned lanes = 1; lanes <= LANES; lanes++)
        for (unsigned jobs = 1; jobs <= PER_LANE; jobs++) {
            unsigned flows = lanes * jobs;
            begin(lanes, jobs);
            found(flows);
            run(flows, UT_SECOND);
            CHECK_ABOUT(sum(flows), LINK, 4);
            uint64_t parts = 0;
            for (unsigned f = 0; f < flows; f++) {
                CHECK_ABOUT(sent[f], LINK / flows, 10);
                parts += flow[f].tokens.part;
            }
            for (unsigned lane = 0; lane < lanes; lane++)
                CHECK_ABOUT(uplink[lane].meter.best, LINK / 50, 8); /* what all lanes sent, not its own jobs alone */
            CHECK_ABOUT(parts, LINK, 5);
        }
}

/* What one does not want the others have. */
static void uplink__what_one_does_not_want_others_have(void)
{
    for (unsigned lanes = 1; lanes <= 2; lanes++) {
        unsigned jobs = 2 / lanes;
        begin(lanes, jobs);
        found(2);
        wanted[1] = LINK / 10;
        run(2, UT_SECOND);
        run(2, UT_SECOND);
        CHECK_ABOUT(sent[1], LINK / 10, 5);
        CHECK_MSG(sent[0] > LINK / 100 * 80, "%u lanes: %zu", lanes, (size_t)sent[0]);
        wanted[1] = backlog[1] = 0;
        run(2, UT_SECOND / 5);
        run(2, UT_SECOND);
        CHECK_ABOUT(sent[0], LINK, 4);
        wanted[1] = 10 * LINK; /* it is back: within a few pulses it has its part */
        run(2, UT_SECOND / 5);
        run(2, UT_SECOND);
        CHECK_ABOUT(sent[1], LINK / 2, 10);
        CHECK_ABOUT(sent[0] + sent[1], LINK, 4);
    }
}

/* A job may be held to less by its administrator; the rest is the others'. */
static void uplink__a_limit_is_kept_and_the_rest_is_the_others(void)
{
    begin(1, 2);
    flow[0].tokens.limit = LINK / 5;
    found(2);
    run(2, UT_SECOND);
    CHECK_ABOUT(sent[0], LINK / 5, 5);
    CHECK_MSG(sent[1] > LINK / 100 * 70, "%zu", (size_t)sent[1]);
}

/* A lane that begins to send takes over what another has found. */
static void uplink__a_new_lane_knows_the_rate(void)
{
    begin(2, 1);
    found(1);
    CHECK_EQ(uplink[1].rate.rate, 0);
    wanted[1] = 10 * LINK;
    run(2, 60 * UT_MS);
    CHECK_ABOUT(flow[1].tokens.part, LINK / 2, 6);
}

/* A lane that has stopped without a word is not waited for. */
static void uplink__a_silent_lane_is_forgotten(void)
{
    begin(2, 1);
    found(2);
    CHECK_ABOUT(flow[0].tokens.part, LINK / 2, 6);
    run(1, UT_SECOND);
    CHECK_ABOUT(flow[0].tokens.part, LINK, 5);
}

static void uplink__one_that_leaves_takes_nothing_along(void)
{
    begin(1, 2);
    found(2);
    ut_uplink_leave(&uplink[0], 1);
    run(1, UT_SECOND / 10);
    run(1, UT_SECOND);
    CHECK_ABOUT(sent[0], LINK, 4);
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(uplink__finds_the_rate_of_a_link);
    RUN(uplink__flows_that_want_all_get_equal_parts);
    RUN(uplink__what_one_does_not_want_others_have);
    RUN(uplink__a_limit_is_kept_and_the_rest_is_the_others);
    RUN(uplink__a_new_lane_knows_the_rate);
    RUN(uplink__a_silent_lane_is_forgotten);
    RUN(uplink__one_that_leaves_takes_nothing_along);
    return check_end();
}
