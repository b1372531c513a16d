/* SPDX-License-Identifier: Apache-2.0
 *
 * The lanes of a job from the trainer's side: how calls are numbered, split and spread, and how receipts become those
 * of the calls. The engines are played here, so that they can end ops in any order.
 */
#include "check.h"

#include "core/base/portion.h"
#include "core/face/lanes.h"

enum { HOSTS = 3, CALLS = 400 };

static ut_submission_ring submissions[UT_LANES_MAX];
static ut_completion_ring completions[UT_LANES_MAX];
static uint64_t memory[1 << 17];

/* The engine of a lane: what it has taken and not ended, and its own counts. */
static struct played {
    uint64_t taken, written, next;
    ut_submission open[UT_RING_ENTRIES];
    unsigned count;
} engine[UT_LANES_MAX];

static ut_lanes *begin(uint32_t lanes, uint32_t portions, uint64_t first)
{
    memset(submissions, 0, sizeof submissions);
    memset(completions, 0, sizeof completions);
    memset(engine, 0, sizeof engine);
    CHECK(ut_lanes_bytes(portions, HOSTS) <= sizeof memory);
    ut_lanes *l = ut_lanes_init(memory, lanes, portions, HOSTS, first);
    for (uint32_t i = 0; i < lanes; i++) {
        ut_lanes_ring(l, i, &submissions[i], &completions[i]);
        engine[i].next = ut_lane_seq(first, i, lanes);
    }
    return l;
}

static ut_submission call_of(uint64_t op_seq, uint32_t portions, uint64_t count)
{
    return (ut_submission){.op_seq = op_seq,
                           .src = 4096,
                           .dst = 1 << 20,
                           .count = count,
                           .dtype = UT_FLOAT32,
                           .mode = UT_BOUNDED,
                           .collective = UT_ALLREDUCE,
                           .portion = portions > 1 ? ut_portion(0, portions) : 0};
}

/* As an engine takes a submission: its number is the next one, or the one after it where that is skipped. */
static bool take(uint32_t lane)
{
    struct played *e = &engine[lane];
    ut_submission *s = &e->open[e->count];
    if (!ut_ring_take_submission(&submissions[lane], &completions[lane], &e->taken, s))
        return false;
    CHECK_EQ(s->op_seq, e->next + s->skipped);
    e->next = s->op_seq + 1;
    e->count++;
    return true;
}

static void end(uint32_t lane, unsigned which, uint32_t error)
{
    struct played *e = &engine[lane];
    const ut_submission s = e->open[which];
    ut_receipt r = {.op_seq = s.op_seq,
                    .agreed_seq = (uint32_t)s.op_seq,
                    .status = error ? UT_FAILED : UT_COMPLETE,
                    .error = (int32_t)error,
                    .hosts = HOSTS,
                    .culprit = 0xffff,
                    .portion = s.portion,
                    .bytes_expected = s.count,
                    .bytes_used = s.count};
    r.peer[1].expected[0] = s.src;
    CHECK_EQ(ut_ring_complete(&submissions[lane], &completions[lane], &e->written, &r), UT_OK);
    e->open[which] = e->open[--e->count];
}

static void portions__by_size_and_collective(void)
{
    static const struct {
        uint32_t lanes, portions, hosts;
        uint64_t bytes;
        unsigned collective, expected;
    } rows[] = {
        {2, 2, 4, 2 * UT_PORTION_BYTES, UT_ALLREDUCE, 2},
        {2, 2, 4, 2 * UT_PORTION_BYTES - 1, UT_ALLREDUCE, 1},
        {2, 2, 4, 2 * UT_PORTION_BYTES, UT_ALL_GATHER, 1},
        {2, 2, 4, 2 * UT_PORTION_BYTES, UT_ALLREDUCE_SPARSE, 1},
        {2, 1, 4, 64 * UT_PORTION_BYTES, UT_ALLREDUCE, 1},
        {4, 4, 64, 4 * 64 * UT_PORTION_BURST, UT_ALLREDUCE, 4},
        {4, 4, 64, 4 * 64 * UT_PORTION_BURST - 1, UT_ALLREDUCE, 1},
        {1, 1, 2, 64 * UT_PORTION_BYTES, UT_ALLREDUCE, 1},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        CHECK(ut_lanes_bytes(rows[i].portions, rows[i].hosts) <= sizeof memory * 8);
        const ut_lanes *l = ut_lanes_init(memory, rows[i].lanes, rows[i].portions, rows[i].hosts, 0);
        CHECK_EQ(ut_lanes_portions(l, rows[i].collective, rows[i].bytes), rows[i].expected);
    }
}

/* Where each portion begins and how long it is, in elements. */
static void submit__portions_cover_the_bucket(void)
{
    static const struct {
        uint32_t portions;
        uint64_t count, length[UT_LANES_MAX];
    } rows[] = {
        {2, 128, {64, 64}},
        {2, 1000, {512, 488}},
        {3, 1000, {384, 384, 232}},
        {4, 1000, {256, 256, 256, 232}},
        {4, 65, {64, 1, 0, 0}},
        {2, 0, {0, 0}},
        {4, UINT64_C(1) << 60, {UINT64_C(1) << 58, UINT64_C(1) << 58, UINT64_C(1) << 58, UINT64_C(1) << 58}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const uint32_t n = rows[i].portions;
        ut_lanes *l = begin(n, n, 0);
        ut_submission call = call_of(0, n, rows[i].count);
        call.collective = i % 2 ? UT_ALLREDUCE_QUANT : UT_ALLREDUCE;
        call.residual = i % 2 && i % 4 == 1 ? 4096 + 1 : 0; /* where it has none, no portion has one */
        CHECK_EQ(ut_lanes_submit(l, &call), (1u << n) - 1);
        uint64_t at = 0;
        for (uint32_t lane = 0; lane < n; lane++) {
            CHECK(take(lane));
            const ut_submission *s = engine[lane].open;
            CHECK_EQ(s->count, rows[i].length[lane]);
            CHECK_EQ(s->src, call.src + 4 * at);
            CHECK_EQ(s->dst, call.dst + 4 * at);
            CHECK_EQ(s->residual, call.residual ? call.residual + 4 * at : 0);
            CHECK_EQ(s->portion, ut_portion(lane, n));
            at += s->count;
        }
        CHECK_EQ(at, rows[i].count);
    }
}

/* Calls of both kinds at random, from any number on, ended in any order: each comes back once, with its own number and
 * all that its portions say; numbers that are left free are told to the engines; and room is counted in each lane. */
static void lanes__calls_come_back_whole(void)
{
    for (uint32_t lanes = 1; lanes <= UT_LANES_MAX; lanes++) {
        uint64_t next = check_random() % 50, open_seq[CALLS];
        ut_lanes *l = begin(lanes, lanes, next);
        uint64_t count_of[CALLS];
        unsigned calls = 0, open = 0, full = 0;
        for (unsigned turn = 0; calls < CALLS || open; turn++) {
            CHECK(turn < 1000 * CALLS);
            if (turn == 1000 * CALLS)
                return;
            const uint32_t portions = check_random() % 3 ? 1 : lanes;
            const uint64_t seq = (next + portions - 1) / portions * portions;
            if (calls < CALLS && check_random() % 5) {
                if (ut_lanes_room(l, seq, portions)) {
                    const ut_submission call = call_of(seq, portions, check_random() % 5000);
                    const uint32_t woken = ut_lanes_submit(l, &call);
                    CHECK_EQ(woken, portions == lanes ? (1u << lanes) - 1 : 1u << seq % lanes);
                    open_seq[open] = seq, count_of[open++] = call.count;
                    next = seq + portions;
                    calls++;
                } else {
                    full++;
                }
            }
            for (uint32_t lane = 0; lane < lanes; lane++) {
                while (take(lane))
                    ;
                CHECK(engine[lane].count <= UT_RING_ENTRIES);
                if (engine[lane].count && (calls == CALLS || !(check_random() % (2 * lanes))))
                    end(lane, (unsigned)(check_random() % engine[lane].count), 0);
            }
            ut_receipt r;
            while (ut_lanes_take(l, &r)) {
                unsigned i = 0;
                while (i < open && open_seq[i] != r.op_seq)
                    i++;
                CHECK(i < open);
                if (i == open)
                    return;
                CHECK_EQ(r.bytes_used, count_of[i]);
                CHECK_EQ(r.bytes_expected, count_of[i]);
                CHECK_EQ(r.agreed_seq, (uint32_t)r.op_seq);
                open_seq[i] = open_seq[--open], count_of[i] = count_of[open];
            }
        }
        CHECK(full > 0);
        for (uint32_t lane = 0; lane < lanes; lane++) {
            CHECK_EQ(l->lane[lane].outstanding, 0);
            CHECK(engine[lane].next <= ut_lane_seq(next + lanes - 1, lane, lanes));
        }
    }
}

static void take__a_portion_in_which_ranks_differ_is_told_at_once(void)
{
    ut_lanes *l = begin(3, 3, 5);
    const ut_submission call = call_of(6, 3, 1000);
    CHECK_EQ(ut_lanes_submit(l, &call), 7);
    for (uint32_t lane = 0; lane < 3; lane++)
        CHECK(take(lane));
    CHECK_EQ(engine[2].open->skipped, 1); /* number 5 */
    CHECK_EQ(engine[0].open->skipped + engine[1].open->skipped, 0);
    ut_receipt r;
    end(1, 0, UT_ERR_DESYNC);
    CHECK_EQ(ut_lanes_take(l, &r), UT_LANES_EARLY);
    CHECK_EQ(r.op_seq, 6);
    CHECK_EQ(r.error, UT_ERR_DESYNC);
    CHECK_EQ(ut_lanes_take(l, &r), UT_LANES_NOTHING);
    end(2, 0, 0);
    end(0, 0, 0);
    CHECK_EQ(ut_lanes_take(l, &r), UT_LANES_WHOLE);
    CHECK_EQ(r.op_seq, 6);
    CHECK_EQ(r.status, UT_FAILED);
    CHECK_EQ(r.error, UT_ERR_DESYNC);
}

/* More rows than the job has hosts, or a portion that this job does not have: told as it is, and nothing is written
 * beyond what was given. */
static void take__receipts_that_no_engine_writes(void)
{
    ut_lanes *l = begin(2, 2, 0);
    const size_t bytes = ut_lanes_bytes(2, HOSTS);
    memset((char *)memory + bytes, 0x5a, 4096);
    const ut_submission call = call_of(0, 2, 1000);
    CHECK_EQ(ut_lanes_submit(l, &call), 3);
    ut_receipt r = {.status = UT_COMPLETE, .hosts = UT_HOSTS_MAX, .portion = ut_portion(0, 2)};
    CHECK_EQ(ut_ring_complete(&submissions[0], &completions[0], &engine[0].written, &r), UT_OK);
    r.portion = ut_portion(1, 2);
    CHECK_EQ(ut_ring_complete(&submissions[1], &completions[1], &engine[1].written, &r), UT_OK);
    CHECK_EQ(ut_lanes_take(l, &r), UT_LANES_WHOLE);
    CHECK_EQ(r.hosts, HOSTS);
    for (unsigned i = 0; i < 4096; i++)
        CHECK_EQ(((unsigned char *)memory)[bytes + i], 0x5a);
    r = (ut_receipt){.status = UT_COMPLETE, .op_seq = 9, .portion = 0xff};
    CHECK_EQ(ut_ring_complete(&submissions[1], &completions[1], &engine[1].written, &r), UT_OK);
    CHECK_EQ(ut_lanes_take(l, &r), UT_LANES_WHOLE);
    CHECK_EQ(r.op_seq, 19);
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(portions__by_size_and_collective);
    RUN(submit__portions_cover_the_bucket);
    RUN(lanes__calls_come_back_whole);
    RUN(take__a_portion_in_which_ranks_differ_is_told_at_once);
    RUN(take__receipts_that_no_engine_writes);
    return check_end();
}
