/* SPDX-License-Identifier: Apache-2.0
 *
 * Partial jobs: contributions that do not go together, and submissions that are refused by name.
 */
#include "crew.h"

static ut_job_options policy(unsigned which)
{
    return (ut_job_options){.policy = (uint8_t)which};
}

/* Contributions that do not go together fail the op everywhere, and name what differs. */
static void partial__desync(void)
{
    begin(2, 1, policy(UT_POLICY_PROBE));
    run(10 * UT_MS);
    give(0, 1, 0, UT_SUBMIT_WORLD);
    give(1, 2, 0, 0);
    CHECK_EQ(ut_engine_activate(hosts[0].engine, 0, 0, now), UT_OK);
    run(10 * UT_MS);
    for (uint32_t h = 0; h < 2; h++) {
        ut_receipt r = receipt(h);
        CHECK_EQ(r.status, UT_FAILED);
        CHECK_EQ(r.error, UT_ERR_DESYNC);
        CHECK_EQ(r.field, UT_FIELD_DIVISOR);
        CHECK_EQ(r.culprit, 1 - h);
    }
    ask(0, 0, UT_SUBMIT_NOWAIT);
    CHECK_EQ(receipt(0).status, UT_EMPTY); /* a failed op has no result */
    elements = 100;
    give(0, 1, 1, 0);
    elements = 200;
    give(1, 3, 1, 0);
    CHECK_EQ(ut_engine_activate(hosts[1].engine, 0, 1, now), UT_OK);
    run(10 * UT_MS);
    CHECK_EQ(receipt(0).field, UT_FIELD_COUNT);
    CHECK_EQ(receipt(1).value_there, 100);
    give(1, 3, 2, 0);
    CHECK_EQ(ut_engine_activate(hosts[1].engine, 0, 2, now), UT_OK);
    run(10 * UT_MS);
    CHECK_EQ(receipt(1).status, UT_COMPLETE);
    CHECK_RESULT(1, 3);
    elements = 100;
    ask(0, 2, UT_SUBMIT_NOWAIT); /* it wants another shape than there is */
    ut_receipt r = receipt(0);
    CHECK_EQ(r.status, UT_FAILED);
    CHECK_EQ(r.field, UT_FIELD_COUNT);
    CHECK_EQ(r.value_here, 200);
    end();
}

static void partial__refused(void)
{
    static const struct {
        int error;
        unsigned flags, redop, mode, dtype, collective;
    } rows[] = {
        {UT_ERR_ARGUMENT, 0x80, UT_AVG, UT_BOUNDED, UT_FLOAT64, UT_ALLREDUCE},
        {UT_ERR_ARGUMENT, UT_SUBMIT_AGREE, UT_AVG, UT_BOUNDED, UT_FLOAT64, UT_ALLREDUCE},
        {UT_ERR_ARGUMENT, UT_SUBMIT_REPLACE, UT_AVG, UT_BOUNDED, UT_FLOAT64, UT_ALLREDUCE},
        {UT_ERR_ARGUMENT, UT_SUBMIT_STICKY, UT_AVG, UT_BOUNDED, UT_FLOAT64, UT_ALLREDUCE},
        {UT_ERR_REDOP, UT_SUBMIT_GIVE, UT_MAX, UT_RELIABLE, UT_FLOAT64, UT_ALLREDUCE},
        {UT_ERR_DTYPE, UT_SUBMIT_GIVE, UT_AVG, UT_BEST_EFFORT, UT_INT32, UT_ALLREDUCE},
        {UT_ERR_ARGUMENT, 0, UT_SUM, UT_RELIABLE, UT_FLOAT64, UT_REDUCE_SCATTER},
        {UT_ERR_RANGE, UT_SUBMIT_GIVE | UT_SUBMIT_STICKY, UT_AVG, UT_BOUNDED, UT_FLOAT64, UT_ALLREDUCE},
    };
    begin(2, 1, policy(UT_POLICY_SOLO));
    run(10 * UT_MS);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ut_submission s = words(0, rows[i].flags);
        s.redop = (uint8_t)rows[i].redop;
        s.mode = (uint8_t)rows[i].mode;
        s.dtype = (uint8_t)rows[i].dtype;
        s.collective = (uint8_t)rows[i].collective;
        s.src = s.dst;
        submit(0, 0, s);
        ut_receipt r = receipt(0);
        CHECK_EQ(r.status, UT_FAILED);
        CHECK_MSG(r.error == rows[i].error, "row %zu: %d", i, r.error);
        CHECK_EQ(r.call_seq, i);
    }
    ut_submission s = words(0, UT_SUBMIT_GIVE);
    s.oldest_step = 2;
    s.newest_step = 1;
    submit(0, 0, s);
    CHECK_EQ(receipt(0).error, UT_ERR_ARGUMENT);
    CHECK_EQ(ut_engine_next_op_seq(hosts[0].engine, 0), 0); /* nothing has started */
    end();
    begin(2, 1, policy(UT_POLICY_NONE));
    run(10 * UT_MS);
    submit(0, 0, words(0, UT_SUBMIT_GIVE));
    CHECK_EQ(receipt(0).error, UT_ERR_ARGUMENT);
    submit(0, 0, words(1, 0));
    CHECK_EQ(receipt(0).error, UT_ERR_ARGUMENT);
    end();
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(partial__desync);
    RUN(partial__refused);
    return check_end();
}
