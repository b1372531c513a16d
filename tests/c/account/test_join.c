/* SPDX-License-Identifier: Apache-2.0
 *
 * The receipts of a call's portions become one: sums add up, the worst counts, and equal results have equal digests.
 */
#include "check.h"

#include "core/account/join.h"
#include "core/base/portion.h"

enum { HOSTS = 3 };

static ut_receipt some(unsigned at, uint32_t status)
{
    ut_receipt r = {.op_seq = 10 + at,
                    .call_seq = 10 + at,
                    .status = status,
                    .hosts = HOSTS,
                    .self = 1,
                    .culprit = 0xffff,
                    .stage_end = {UT_END_COMPLETE, UT_END_COMPLETE},
                    .weight_min = 3,
                    .full_mask = 7,
                    .any_mask = 7,
                    .owners = 7,
                    .elapsed_ns = 100 + at,
                    .stage_ns = {50, 90 - at},
                    .agreed_seq = 10 + at,
                    .digest = 0x1234 + at,
                    .portion = ut_portion(at, 2),
                    .initiator = 0xffff,
                    .policy = UT_POLICY_NONE};
    for (unsigned h = 0; h < HOSTS; h++)
        if (h != 1)
            r.peer[h] = (ut_receipt_peer){.expected = {1000, 2000 + at},
                                          .weight = 1,
                                          .first_us = 5 + at,
                                          .last_us = 80 + at,
                                          .repaired = 10,
                                          .lost = 2,
                                          .drops = 1};
    r.bytes_expected = r.bytes_used = 2 * (3000 + at);
    r.bytes_repaired = 20;
    r.wire_sent = 7000;
    return r;
}

static void lose(ut_receipt *r, unsigned host, uint32_t bytes)
{
    r->peer[host].missing[1] += bytes;
    r->peer[host].why = UT_MISSING_LOST;
    r->peer[host].trouble = UT_TROUBLE_PATH;
    r->bytes_missing += bytes;
    r->bytes_used -= bytes;
    r->status = UT_PARTIAL;
    r->culprit = (uint16_t)host;
    r->trouble = UT_TROUBLE_PATH;
    r->stage_end[1] = UT_END_DEADLINE;
    r->full_mask &= ~(UINT64_C(1) << host);
    r->weight_min = 2;
}

static ut_receipt joined(const ut_receipt *a, const ut_receipt *b)
{
    static ut_receipt ret;
    memset(&ret, 0xee, sizeof ret);
    ut_receipt_join(&ret, (const ut_receipt *const[]){a, b}, 2);
    CHECK_EQ(ret.bytes_expected, ret.bytes_used + ret.bytes_missing);
    return ret;
}

static void join__of_complete_portions(void)
{
    ut_receipt a = some(0, UT_COMPLETE), b = some(1, UT_COMPLETE), r = joined(&a, &b);
    CHECK_EQ(r.status, UT_COMPLETE);
    CHECK_EQ(r.op_seq, 10);
    CHECK_EQ(r.call_seq, 10);
    CHECK_EQ(ut_portions_of(r.portion), 2);
    CHECK_EQ(r.culprit, 0xffff);
    CHECK_EQ(r.bytes_expected, 12002);
    CHECK_EQ(r.bytes_repaired, 40);
    CHECK_EQ(r.wire_sent, 14000);
    CHECK_EQ(r.elapsed_ns, 101);
    CHECK_EQ(r.stage_ns[1], 90);
    CHECK_EQ(r.peer[0].expected[1], 4001);
    CHECK_EQ(r.peer[0].first_us, 5);
    CHECK_EQ(r.peer[0].last_us, 81);
    CHECK_EQ(r.peer[0].repaired, 20);
    CHECK_EQ(r.peer[2].lost, 4);
    CHECK_EQ(r.peer[2].drops, 2);
    CHECK_EQ(r.peer[1].expected[0], 0);
    CHECK_HEX(r.full_mask, 7);
    CHECK_EQ(r.agreed_seq, 10); /* its own number: none is known */
}

static void join__the_worst_portion_is_that_of_all(void)
{
    for (unsigned bad = 0; bad < 2; bad++) {
        ut_receipt x[2] = {some(0, UT_COMPLETE), some(1, UT_COMPLETE)};
        lose(&x[bad], 2, 300);
        ut_receipt r = joined(&x[0], &x[1]);
        CHECK_EQ(r.status, UT_PARTIAL);
        CHECK_EQ(r.culprit, 2);
        CHECK_EQ(r.trouble, UT_TROUBLE_PATH);
        CHECK_EQ(r.bytes_missing, 300);
        CHECK_EQ(r.peer[2].missing[1], 300);
        CHECK_EQ(r.peer[2].why, UT_MISSING_LOST);
        CHECK_EQ(r.peer[0].why, UT_MISSING_NOTHING);
        CHECK_EQ(r.stage_end[0], UT_END_COMPLETE);
        CHECK_EQ(r.stage_end[1], UT_END_DEADLINE);
        CHECK_HEX(r.full_mask, 3);
        CHECK_HEX(r.any_mask, 7);
        CHECK_EQ(r.weight_min, 2);
    }
    ut_receipt a = some(0, UT_COMPLETE), b = some(1, UT_COMPLETE);
    lose(&a, 2, 300);
    lose(&b, 0, 900);
    CHECK_EQ(joined(&a, &b).culprit, 0);
    CHECK_EQ(joined(&b, &a).culprit, 0);
    a.status = b.status = UT_INSUFFICIENT;
    CHECK_EQ(joined(&a, &b).status, UT_INSUFFICIENT);
    b.status = UT_COMPLETE;
    CHECK_EQ(joined(&a, &b).status, UT_PARTIAL);
}

static void join__of_failed_portions_the_first_says_why(void)
{
    ut_receipt a = some(0, UT_COMPLETE), b = some(1, UT_COMPLETE);
    lose(&a, 2, 300);
    b.status = UT_FAILED;
    b.error = UT_ERR_DESYNC;
    b.culprit = 0;
    b.field = UT_FIELD_COUNT;
    b.value_here = 5;
    b.value_there = 6;
    ut_receipt r = joined(&a, &b);
    CHECK_EQ(r.status, UT_FAILED);
    CHECK_EQ(r.error, UT_ERR_DESYNC);
    CHECK_EQ(r.culprit, 0);
    CHECK_EQ(r.field, UT_FIELD_COUNT);
    CHECK_EQ(r.value_there, 6);
    a.status = UT_FAILED;
    a.error = UT_ERR_TIMEOUT;
    r = joined(&a, &b);
    CHECK_EQ(r.error, UT_ERR_TIMEOUT);
    CHECK_EQ(r.culprit, 2);
    ut_receipt refused = {.op_seq = 11, .status = UT_FAILED, .error = UT_ERR_RANGE, .culprit = 0xffff};
    a = some(0, UT_COMPLETE);
    r = joined(&a, &refused);
    CHECK_EQ(r.hosts, HOSTS);
    CHECK_EQ(r.error, UT_ERR_RANGE);
    CHECK_EQ(r.peer[0].expected[0], 1000);
    CHECK_EQ(joined(&refused, &a).peer[2].expected[0], 1000);
    CHECK_EQ(joined(&refused, &a).self, 1);
}

static void join__digests_and_what_all_agree_on(void)
{
    ut_receipt a = some(0, UT_COMPLETE), b = some(1, UT_COMPLETE);
    uint64_t same = joined(&a, &b).digest;
    CHECK_HEX(joined(&a, &b).digest, same);
    CHECK(joined(&b, &a).digest != same); /* halves that changed places are another result */
    b.digest++;
    CHECK(joined(&a, &b).digest != same);
    b.digest = 0;
    CHECK_HEX(joined(&a, &b).digest, 0);
    a.agreed_seq = 8, b.agreed_seq = 7;
    CHECK_EQ(joined(&a, &b).agreed_seq, 7);
    b.agreed_seq = 11; /* none */
    CHECK_EQ(joined(&a, &b).agreed_seq, 10);
    b.agreed_seq = 9, b.differ_mask = 4;
    CHECK_EQ(joined(&a, &b).agreed_seq, 9);
    CHECK_HEX(joined(&a, &b).differ_mask, 4);
    a.differ_mask = 1, b.differ_mask = 0;
    CHECK_EQ(joined(&a, &b).agreed_seq, 8);
    CHECK_HEX(joined(&a, &b).differ_mask, 1);
    a.op_seq = UINT64_C(1) << 32, a.agreed_seq = UINT32_MAX, a.differ_mask = 0; /* the low halves went round */
    b.op_seq = a.op_seq + 1, b.agreed_seq = UINT32_MAX - 1;
    CHECK_EQ(joined(&a, &b).agreed_seq, UINT32_MAX - 1);
}

static ut_event done(unsigned at, uint64_t status, uint64_t missing, uint32_t host, uint64_t trouble)
{
    return (ut_event){.kind = UT_EVENT_OP_DONE,
                      .job = 3,
                      .session = UINT32_MAX,
                      .host = host,
                      .op_seq = 4 + at,
                      .a = status,
                      .b = 5 + at,
                      .c = missing,
                      .d = 1000,
                      .e = 4 << 8 | 1 << 16 | trouble << 24 | (uint64_t)ut_portion(at, 3) << 32};
}

/* Of three portions: what each says, and what is told of the call. */
static void join__of_events_sums_and_the_worst(void)
{
    enum { NOBODY = UINT32_MAX };
    static const struct {
        struct {
            uint32_t status, missing, host, trouble;
        } portion[3], all;
    } rows[] = {
        {{{UT_COMPLETE, 0, NOBODY, 0}, {UT_COMPLETE, 0, NOBODY, 0}, {UT_COMPLETE, 0, NOBODY, 0}},
         {UT_COMPLETE, 0, NOBODY, 0}},
        {{{UT_PARTIAL, 10, 1, 2}, {UT_COMPLETE, 0, NOBODY, 0}, {UT_PARTIAL, 30, 2, 3}}, {UT_PARTIAL, 40, 2, 3}},
        {{{UT_PARTIAL, 30, 1, 2}, {UT_PARTIAL, 30, 2, 3}, {UT_PARTIAL, 9, 0, 1}}, {UT_PARTIAL, 69, 1, 2}},
        {{{UT_COMPLETE, 0, NOBODY, 0}, {UT_INSUFFICIENT, 30, 2, 3}, {UT_COMPLETE, 0, NOBODY, 0}},
         {UT_PARTIAL, 30, 2, 3}},
        {{{UT_INSUFFICIENT, 20, 2, 3}, {UT_INSUFFICIENT, 20, 1, 3}, {UT_INSUFFICIENT, 20, 1, 3}},
         {UT_INSUFFICIENT, 60, 2, 3}},
        {{{UT_PARTIAL, 900, 1, 2}, {UT_FAILED, 0, 2, 3}, {UT_FAILED, 50, 0, 1}}, {UT_FAILED, 950, 2, 3}},
        {{{UT_PARTIAL, 900, 1, 2}, {UT_FAILED, 0, NOBODY, 7}, {UT_COMPLETE, 0, NOBODY, 0}},
         {UT_FAILED, 900, NOBODY, 0}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ut_event portion[3], r;
        for (unsigned at = 0; at < 3; at++)
            portion[at] = done(at, rows[i].portion[at].status, rows[i].portion[at].missing, rows[i].portion[at].host,
                               rows[i].portion[at].trouble);
        ut_event_join(&r, portion, 3);
        CHECK_EQ(r.a, rows[i].all.status);
        CHECK_EQ(r.c, rows[i].all.missing);
        CHECK_EQ(r.host, rows[i].all.host);
        CHECK_HEX(r.e, 4 << 8 | 1 << 16 | (uint64_t)rows[i].all.trouble << 24);
        CHECK_EQ(r.op_seq, 4);
        CHECK_EQ(r.b, 7);
        CHECK_EQ(r.d, 3000);
    }
}

static void of_job__numbers_of_a_lane_become_the_jobs(void)
{
    static const struct {
        uint32_t lanes, lane;
        uint64_t seq;
        uint32_t agreed;
        uint64_t job_seq, job_agreed;
    } rows[] = {
        {1, 0, 7, 5, 7, 5},
        {2, 1, 7, 7, 15, 15},
        {2, 1, 7, 4, 15, 9},
        {4, 3, 10, 12, 43, 51},
        {2, 0, UINT64_C(1) << 31, (1u << 31) - 2, UINT64_C(1) << 32, (UINT64_C(1) << 32) - 4},
        {4, 1, UINT64_C(1) << 32, UINT32_MAX, (UINT64_C(1) << 34) + 1, (UINT64_C(1) << 34) - 3},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ut_receipt r = {.op_seq = rows[i].seq, .agreed_seq = rows[i].agreed};
        ut_receipt_of_job(&r, rows[i].lane, rows[i].lanes);
        CHECK_EQ(r.op_seq, rows[i].job_seq);
        CHECK_EQ(r.agreed_seq, (uint32_t)rows[i].job_agreed);
        CHECK_EQ(ut_lane_seq(r.op_seq, rows[i].lane, rows[i].lanes), rows[i].seq);
    }
}

/* From each number on, the first op of each lane, against a search. */
static void lane_seq__the_first_of_a_lane_from_a_number_on(void)
{
    for (uint32_t lanes = 1; lanes <= UT_LANES_MAX; lanes++)
        for (uint32_t lane = 0; lane < lanes; lane++)
            for (uint64_t from = 0; from < 20; from++) {
                uint64_t op = from;
                while (op % lanes != lane)
                    op++;
                CHECK_EQ(ut_job_seq(ut_lane_seq(from, lane, lanes), lane, lanes), op);
            }
}

static void portion__bytes_that_exist(void)
{
    unsigned valid = 0;
    for (unsigned byte = 0; byte < 256; byte++)
        valid += ut_portion_valid((uint8_t)byte);
    CHECK_EQ(valid, 1 + 2 + 3 + 4);
    CHECK(ut_portion_valid(ut_portion(3, 4)) && !ut_portion_valid(ut_portion(2, 2)) && !ut_portion_valid(16));
    CHECK_EQ(ut_portion_at(ut_portion(2, 3)), 2);
    CHECK_EQ(ut_portions_of(0), 1);
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(join__of_complete_portions);
    RUN(join__the_worst_portion_is_that_of_all);
    RUN(join__of_failed_portions_the_first_says_why);
    RUN(join__digests_and_what_all_agree_on);
    RUN(join__of_events_sums_and_the_worst);
    RUN(of_job__numbers_of_a_lane_become_the_jobs);
    RUN(lane_seq__the_first_of_a_lane_from_a_number_on);
    RUN(portion__bytes_that_exist);
    return check_end();
}
