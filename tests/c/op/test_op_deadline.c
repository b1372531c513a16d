/* SPDX-License-Identifier: Apache-2.0
 *
 * The deadline that nobody named: from t_B, counted from the last trainer's call.
 */
#include "one_by_one.h"

static bool cut_data_of_1(uint32_t from, const ut_burst *b, const uint8_t *packet)
{
    (void)packet;
    return from == 1 && b->port == UT_PORT_DATA;
}

/* Nobody named a deadline: none while t_B is unknown; then 8 t_B + 1 s. */
static void bounded__adaptive_deadline(void)
{
    begin();
    drop = cut_data_of_1;
    op(UT_BOUNDED, UT_NEVER, 0);
    run(now + 40 * UT_SECOND);
    no_receipt(0, 0);
    drop = NULL;
    run(now + UT_SECOND);
    CHECK_EQ(receipt(0, 0).status, UT_COMPLETE);
    receipt(1, 0);
    tune(50 * UT_MS, 0, 0);
    drop = cut_data_of_1;
    ut_ns start = now;
    op(UT_BOUNDED, UT_NEVER, 0);
    run(start + 1399 * UT_MS);
    no_receipt(0, 0);
    run(start + 1401 * UT_MS);
    ut_receipt r = receipt(0, 0);
    CHECK_EQ(r.status, UT_INSUFFICIENT);
    CHECK_EQ(r.stage_end[1], UT_END_DEADLINE);
    CHECK_MSG(r.deadline_ns >= 1400 * UT_MS && r.deadline_ns < 1401 * UT_MS, "had %" PRIu64 " ns", r.deadline_ns);
    receipt(1, 0);
    end_world();
}

/* The other trainer has not called: an adaptive deadline waits for it, to its end; one with a flag, to the one named.
 */
static void bounded__adaptive_deadline_waits_for_trainers(void)
{
    begin();
    tune(50 * UT_MS, 0, 0);
    op(UT_BOUNDED, UT_NEVER, 10 * UT_SECOND);
    run(now + UT_SECOND);
    CHECK_EQ(receipt(0, 0).status, UT_COMPLETE);
    CHECK_EQ(receipt(1, 0).status, UT_COMPLETE);
    call(0, UT_BOUNDED, UT_NEVER);
    ut_ns start = now;
    run(start + 29999 * UT_MS);
    no_receipt(0, 0);
    run(start + 30001 * UT_MS);
    CHECK_EQ(receipt(0, 0).status, UT_INSUFFICIENT);
    op_seq++;
    fill(0, 0, 1);
    ut_submission s = call_of(op_seq, ELEMENTS, UT_SUM, UT_BOUNDED, 3 * UT_SECOND);
    s.flags = UT_SUBMIT_ADAPTIVE;
    start = now;
    submit(0, 0, s);
    run(start + 2999 * UT_MS);
    no_receipt(0, 0);
    run(start + 3001 * UT_MS);
    ut_receipt r = receipt(0, 0);
    CHECK_EQ(r.status, UT_INSUFFICIENT);
    CHECK_EQ(r.deadline_ns, 3 * UT_SECOND);
    end_world();
}

static bool cut_all_of_1(uint32_t from, const ut_burst *b, const uint8_t *packet)
{
    (void)b, (void)packet;
    return from == 1;
}

/* It waits for a trainer whose daemon answers, not for a host that is silent. */
static void bounded__adaptive_deadline_does_not_wait_for_a_silent_host(void)
{
    begin();
    tune(50 * UT_MS, 0, 0);
    op(UT_BOUNDED, UT_NEVER, 0);
    run(now + UT_SECOND);
    CHECK_EQ(receipt(0, 0).status, UT_COMPLETE);
    drop = cut_all_of_1;
    ut_ns start = now;
    call(0, UT_BOUNDED, UT_NEVER);
    run(start + 2900 * UT_MS);
    ut_receipt r = receipt(0, 0);
    CHECK_EQ(r.status, UT_INSUFFICIENT);
    CHECK_EQ(r.peer[1].why, UT_MISSING_SILENT);
    CHECK_EQ(r.deadline_ns % (1400 * UT_MS), 0);
    end_world();
}

static void call_unnamed(uint32_t h, uint32_t r, ut_ns latest)
{
    fill(h, r, 10 * (h + 1));
    ut_submission s = call_of(op_seq, ELEMENTS, UT_SUM, UT_BOUNDED, latest);
    s.flags = UT_SUBMIT_ADAPTIVE;
    submit(h, r, s);
}

/* Its time is counted from the last trainer's call, wherever that is; not that little is left of it then. */
static void bounded__adaptive_deadline_begins_with_the_last_trainer(void)
{
    begin();
    tune(50 * UT_MS, 0, 0);
    ut_ns start = now;
    call_unnamed(0, 0, 30 * UT_SECOND);
    run(start + 1390 * UT_MS);
    drop = cut_data_of_1;
    call_unnamed(1, 0, 30 * UT_SECOND);
    run(start + 1700 * UT_MS); /* stage 1 has half of it */
    no_receipt(0, 0);
    drop = NULL;
    run(start + 3 * UT_SECOND);
    ut_receipt r = receipt(0, 0);
    CHECK_EQ(r.status, UT_COMPLETE);
    CHECK_MSG(r.deadline_ns >= 2790 * UT_MS && r.deadline_ns < 2792 * UT_MS, "had %" PRIu64 " ns", r.deadline_ns);
    CHECK_EQ(receipt(1, 0).status, UT_COMPLETE);
    check_values(0, 0, 30, 2, 1);
    end_world();

    world(2, 0); /* the last is a fellow on the same host, whom all others have waited for */
    run(now + 300 * UT_MS);
    op_seq = 0;
    tune(50 * UT_MS, 0, 0);
    call_unnamed(0, 0, 30 * UT_SECOND);
    call_unnamed(1, 0, 30 * UT_SECOND);
    run(now + 5 * UT_SECOND);
    call_unnamed(0, 1, 30 * UT_SECOND);
    run(now + UT_SECOND);
    for (uint32_t h = 0; h < HOSTS; h++)
        CHECK_EQ(receipt(h, 0).status, UT_COMPLETE);
    CHECK_EQ(receipt(0, 1).status, UT_COMPLETE);
    check_values(1, 0, 40, 3, 1);
    end_world();
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(bounded__adaptive_deadline);
    RUN(bounded__adaptive_deadline_waits_for_trainers);
    RUN(bounded__adaptive_deadline_does_not_wait_for_a_silent_host);
    RUN(bounded__adaptive_deadline_begins_with_the_last_trainer);
    return check_end();
}
