/* SPDX-License-Identifier: Apache-2.0
 *
 * A host goes and comes back in another life, under reliable ops, on whole engines: they wait for it and end with right
 * sums, wherever it went. One that does not come in time is gone. A result is right, or there is none.
 */
#include "engines.h"

#include "core/face/engine_impl.h"

enum { GOES = 1 };

static float brings(uint32_t h, unsigned i)
{
    return (float)((1u << h) + i);
}

static void call_one(uint32_t h, uint64_t op, unsigned mode)
{
    float *a = (float *)(void *)hosts[h].arena;
    for (unsigned i = 0; i < ELEMENTS; i++)
        a[i] = brings(h, i);
    ut_submission s = {.op_seq = op,
                       .count = ELEMENTS,
                       .deadline_ns = now + 5 * UT_SECOND,
                       .dtype = UT_FLOAT32,
                       .redop = UT_SUM,
                       .mode = (uint8_t)mode};
    CHECK_EQ(ut_ring_submit(&hosts[h].submissions, &hosts[h].completions, &s), UT_OK);
    ut_engine_submissions(hosts[h].engine, hosts[h].session, now);
}

static bool has_ended(uint32_t h, ut_receipt *ret)
{
    return ut_ring_take_completion(&hosts[h].submissions, &hosts[h].completions, ret) == 1;
}

static void check_sum(uint32_t h)
{
    const float *a = (const float *)(const void *)hosts[h].arena;
    unsigned wrong = 0;
    for (unsigned i = 0; i < ELEMENTS; i++) {
        float sum = 0;
        for (uint32_t p = 0; p < n; p++)
            sum += brings(p, i);
        wrong += a[i] != sum;
    }
    CHECK_MSG(wrong == 0, "host %u: %u of %u sums wrong", h, wrong, (unsigned)ELEMENTS);
}

static void begin_hosts(uint32_t count)
{
    static const uint8_t same[MOST] = {UT_TAR, UT_TAR, UT_TAR, UT_TAR, UT_TAR, UT_TAR, UT_TAR, UT_TAR};
    n = count;
    begin(same);
}

static void await(bool on)
{
    for (uint32_t h = 0; h < n; h++)
        if (h != GOES)
            CHECK_EQ(ut_engine_peer_await(hosts[h].engine, 0, GOES, on, now), UT_OK);
}

/* It goes under op |op|, and its other life is born, whom nobody knows yet. True if its rank was told of the op's end:
 * its result, or that it is cut off. */
static bool goes(uint64_t op, ut_receipt *ret)
{
    unplug(GOES);
    bool told = has_ended(GOES, ret);
    for (uint32_t h = 0; h < n; h++)
        if (h != GOES)
            ut_engine_peer_absent(hosts[h].engine, 0, GOES, now);
    memset(parcels, 0, sizeof parcels);
    born(GOES, (ut_job_options){.algorithm = UT_TAR}, op + (told && ret->status == UT_COMPLETE));
    return told;
}

static void comes(void)
{
    for (uint32_t h = 0; h < n; h++)
        if (h != GOES)
            new_path(h, GOES);
}

static void all_complete(void)
{
    for (uint32_t h = 0; h < n; h++) {
        ut_receipt r = receipt(h);
        CHECK_MSG(r.status == UT_COMPLETE, "host %u: status %u, error %d", h, r.status, r.error);
        check_sum(h);
    }
}

/* |late| has not called when the host goes: the host itself, which then holds its call, or another one. */
/* The paths to its other life are made anew before anything was heard on them. */
static void comes_once_more(void)
{
    for (uint32_t h = 0; h < n; h++)
        if (h != GOES) {
            ut_engine_peer_absent(hosts[h].engine, 0, GOES, now);
            ut_engine_peer_absent(hosts[GOES].engine, 0, h, now);
            new_path(h, GOES);
        }
}

static void engine__an_op_goes_on_with_another_life(void)
{
    for (uint32_t turn = 0; turn < 6; turn++) {
        const uint32_t late = turn % 3;
        begin_hosts(3);
        call_all(0);
        for (uint32_t h = 0; h < n; h++)
            CHECK_EQ(receipt(h).status, UT_COMPLETE);
        for (uint32_t h = 0; h < n; h++)
            if (h != late)
                call_one(h, 1, UT_RELIABLE);
        run(now + 20 * UT_MS);
        CHECK_EQ(ut_engine_job_hold(hosts[GOES].engine, 0, now), UT_OK);
        await(true);
        if (late == GOES)
            call_one(GOES, 1, UT_RELIABLE);
        run(now + 20 * UT_MS);
        uint64_t floor;
        uint32_t unsettled;
        CHECK_EQ(ut_engine_job_place(hosts[GOES].engine, 0, &floor, &unsettled), UT_OK);
        CHECK_EQ(floor, 1);
        CHECK_EQ(unsettled, late != GOES); /* what is held never began */
        ut_receipt r;
        CHECK_EQ(goes(1, &r), late != GOES); /* told, unless it never began */
        run(now + 300 * UT_MS);
        for (uint32_t h = 0; h < n; h++)
            CHECK(h == GOES || !has_ended(h, &r));
        comes();
        if (turn >= 3)
            comes_once_more();
        run(now + 20 * UT_MS);
        call_one(GOES, 1, UT_RELIABLE);
        if (late != GOES)
            call_one(late, 1, UT_RELIABLE);
        run(now + UT_SECOND);
        all_complete();
        for (uint32_t h = 0; h < n; h++)
            call_one(h, 2, UT_BOUNDED);
        run(now + UT_SECOND);
        all_complete();
        end();
    }
}

static void engine__an_op_that_is_called_while_the_host_is_away_waits(void)
{
    begin_hosts(4);
    call_all(0);
    for (uint32_t h = 0; h < n; h++)
        CHECK_EQ(receipt(h).status, UT_COMPLETE);
    await(true);
    CHECK(!goes(1, &(ut_receipt){0}));
    for (uint32_t h = 0; h < n; h++)
        if (h != GOES)
            call_one(h, 1, UT_RELIABLE);
    run(now + 300 * UT_MS);
    comes();
    call_one(GOES, 1, UT_RELIABLE);
    run(now + UT_SECOND);
    all_complete();
    end();
}

static void engine__a_bounded_op_does_not_wait(void)
{
    begin_hosts(3);
    await(true);
    for (uint32_t h = 0; h < n; h++)
        if (h != GOES)
            call_one(h, 0, UT_BOUNDED);
    run(now + 20 * UT_MS);
    CHECK(!goes(0, &(ut_receipt){0}));
    run(now + 20 * UT_MS);
    for (uint32_t h = 0; h < n; h++)
        if (h != GOES) {
            ut_receipt r = receipt(h);
            CHECK_EQ(r.status, UT_PARTIAL);
            CHECK_EQ(r.culprit, GOES);
        }
    end();
}

static void engine__who_is_not_back_in_time_is_gone(void)
{
    begin_hosts(3);
    for (uint32_t h = 0; h < n; h++)
        if (h != GOES)
            call_one(h, 0, UT_RELIABLE);
    await(true);
    CHECK(!goes(0, &(ut_receipt){0}));
    run(now + 100 * UT_MS);
    await(false);
    run(now + 100 * UT_MS);
    for (uint32_t h = 0; h < n; h++)
        if (h != GOES) {
            ut_receipt r = receipt(h);
            CHECK_EQ(r.error, UT_ERR_ABSENT);
            CHECK_EQ(r.culprit, GOES);
        }
    end();
}

/* It is cut off at any moment of an op that all have called, with part of its results told or not: then whoever ends
 * the op has the right sums, and everybody ends it. */
static void engine__cut_off_at_any_moment__no_sum_is_wrong(void)
{
    unsigned complete = 0, failed = 0;
    for (unsigned k = 0; k < 150; k++) {
        begin_hosts(2 + check_below(3));
        late_ppm = 300000;
        for (uint32_t h = 0; h < n; h++)
            call_one(h, 0, UT_RELIABLE);
        await(true);
        run(now + check_below(4 * UT_MS));
        ut_receipt r;
        bool had = goes(0, &r) && r.status == UT_COMPLETE; /* it asks for nothing that it has */
        run(now + check_below(10 * UT_MS));
        comes();
        if (!had)
            call_one(GOES, 0, UT_RELIABLE);
        run(now + 6 * UT_SECOND);
        for (uint32_t h = 0; h < n; h++) {
            if (h == GOES && had)
                continue;
            r = receipt(h);
            CHECK_MSG(r.status == UT_COMPLETE || r.status == UT_FAILED, "host %u: status %u", h, r.status);
            complete += r.status == UT_COMPLETE;
            failed += r.status == UT_FAILED;
            if (r.status == UT_COMPLETE)
                check_sum(h);
        }
        end();
    }
    CHECK(complete > failed && failed > 0); /* both are met */
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(engine__an_op_goes_on_with_another_life);
    RUN(engine__an_op_that_is_called_while_the_host_is_away_waits);
    RUN(engine__a_bounded_op_does_not_wait);
    RUN(engine__who_is_not_back_in_time_is_gone);
    RUN(engine__cut_off_at_any_moment__no_sum_is_wrong);
    return check_end();
}
