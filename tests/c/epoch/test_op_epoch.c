/* SPDX-License-Identifier: Apache-2.0
 *
 * Ops of whole engines under epochs: among whom a bucket is cut, who is waited for, and what becomes of hosts that were
 * handed different ones. Element i of host h is 2^h + i, so a sum tells who is in it.
 */
#include "engines.h"

#define BIT(h) (1u << (h))

static void start(uint32_t hosts_of_job)
{
    static const uint8_t tar[MOST] = {0};
    n = hosts_of_job;
    begin(tar);
    run(now + 20 * UT_MS);
}

static ut_epoch epoch_of(uint64_t number, uint64_t from, uint64_t members)
{
    return (ut_epoch){
        .number = number, .id = 0x1230000 + number, .from = from, .members = members, .owners = members, .world = n};
}

static void hand(uint32_t to, ut_epoch e)
{
    for (uint32_t h = 0; h < n; h++)
        if (to >> h & 1)
            CHECK_EQ(ut_engine_epoch(hosts[h].engine, 0, &e, now), UT_OK);
}

static void die(uint32_t dead)
{
    silent |= BIT(dead);
    for (uint32_t h = 0; h < n; h++)
        if (h != dead)
            ut_engine_peer_absent(hosts[h].engine, 0, dead, now);
}

/* The result of |h| holds these hosts where it holds any other than |h|; returns how many elements do not. */
static unsigned lacks(uint32_t h, uint32_t in)
{
    const float *a = (const float *)(void *)hosts[h].arena;
    unsigned count = 0, parts = (unsigned)__builtin_popcount(in);
    for (unsigned i = 0; i < ELEMENTS; i++) {
        if (a[i] == (float)(in + parts * i))
            continue;
        count++;
        if (!CHECK_MSG(a[i] == (float)(BIT(h) + i), "host %u, element %u: %g", h, i, (double)a[i]))
            break;
    }
    return count;
}

static void submit(uint32_t h, uint64_t op, uint8_t mode, ut_ns budget)
{
    float *a = (float *)(void *)hosts[h].arena;
    for (unsigned i = 0; i < ELEMENTS; i++)
        a[i] = (float)((1u << h) + i);
    ut_submission s = {.op_seq = op,
                       .count = ELEMENTS,
                       .deadline_ns = now + budget,
                       .dtype = UT_FLOAT32,
                       .redop = UT_SUM,
                       .mode = mode};
    CHECK_EQ(ut_ring_submit(&hosts[h].submissions, &hosts[h].completions, &s), UT_OK);
    ut_engine_submissions(hosts[h].engine, hosts[h].session, now);
}

/* ---- who is gone ---- */

static void dead_owner__its_shard_is_missing_until_an_epoch_comes(void)
{
    for (uint32_t dead = 0; dead < 3; dead++) {
        start(3);
        uint32_t in = 7u & ~BIT(dead);
        die(dead);
        for (uint64_t op = 0; op < 6; op++) {
            if (op == 3)
                hand(in, epoch_of(1, 4, in));
            call_all(op);
            for (uint32_t h = 0; h < 3; h++) {
                ut_receipt r = receipt(h);
                if (h == dead)
                    continue;
                CHECK_HEX(r.owners, op < 4 ? 7 : in);
                CHECK_EQ(r.bytes_missing > 0, op < 4);
                CHECK_EQ(r.peer[dead].missing[1] > 0, op < 4);
                CHECK_EQ(lacks(h, in), op < 4 ? ELEMENTS / 3 : 0);
                CHECK_EQ(r.status, UT_PARTIAL);
                CHECK_EQ(r.weight_min, op < 4 ? 1 : 2);
            }
        }
        end();
    }
}

static void member__who_is_not_one_is_expected_nothing_of(void)
{
    start(3);
    hand(3, epoch_of(1, 0, 3)); /* host 2 lives, and has not been told */
    call_all(0);
    for (uint32_t h = 0; h < 2; h++) {
        ut_receipt r = receipt(h);
        CHECK_HEX(r.owners, 3);
        CHECK_EQ(r.bytes_missing, 0);
        CHECK_EQ(r.peer[2].expected[0] + r.peer[2].expected[1], 0);
        CHECK(r.elapsed_ns < 100 * UT_MS); /* nor is it waited for */
        CHECK_EQ(lacks(h, 3), 0);
    }
    ut_receipt r = receipt(2);
    CHECK_EQ(r.status, UT_INSUFFICIENT);
    CHECK(r.elapsed_ns < 100 * UT_MS);
    CHECK_EQ(r.peer[0].why, UT_MISSING_VIEW);
    CHECK_EQ(lacks(2, 7), ELEMENTS);
    silent = BIT(2); /* it is up, and says nothing */
    call_all(1);
    for (uint32_t h = 0; h < 2; h++) {
        r = receipt(h);
        CHECK_EQ(r.bytes_missing, 0);
        CHECK(r.elapsed_ns < 100 * UT_MS);
        CHECK_EQ(lacks(h, 3), 0);
    }
    end();
}

/* A newcomer has paths to all before it is a member. It calls nothing, so no op is kept for it: each has its place four
 * ops later, at once. */
static void member__no_op_is_kept_for_who_is_not_one(void)
{
    start(3);
    hand(7, epoch_of(1, 0, 3));
    for (uint64_t op = 0; op < 12; op++) {
        for (uint32_t h = 0; h < 2; h++)
            submit(h, op, UT_BOUNDED, 8 * UT_SECOND);
        run(now + 20 * UT_MS);
        for (uint32_t h = 0; h < 2; h++) {
            CHECK_EQ(receipt(h).op_seq, op);
            CHECK_EQ(lacks(h, 3), 0);
        }
    }
    end();
}

static void member__whoever_is_taken_out_by_its_own_epoch_is_alone(void)
{
    start(3);
    hand(7, epoch_of(1, 0, 3));
    call_all(0);
    CHECK_EQ(receipt(0).bytes_missing, 0);
    CHECK_EQ(receipt(1).bytes_missing, 0);
    (void)receipt(2);
    CHECK_EQ(lacks(0, 3), 0);
    end();
}

/* ---- which epoch ---- */

static void reliable__needs_every_host_under_any_epoch(void)
{
    start(3);
    hand(1, epoch_of(1, 0, 3));
    hand(2, epoch_of(2, 0, 5));
    for (uint32_t h = 0; h < 3; h++)
        submit(h, 0, UT_RELIABLE, 900 * UT_MS);
    run(now + UT_SECOND);
    for (uint32_t h = 0; h < 3; h++) {
        CHECK_EQ(receipt(h).status, UT_COMPLETE);
        CHECK_EQ(lacks(h, 7), 0);
    }
    end();
}

static void open__an_op_keeps_its_epoch(void)
{
    start(3);
    silent = BIT(2);
    for (uint32_t h = 0; h < 3; h++)
        submit(h, 0, UT_BOUNDED, 900 * UT_MS);
    run(now + 5 * UT_MS);
    for (uint64_t number = 1; number <= 3; number++)
        hand(7, epoch_of(number, 0, number == 3 ? 7 : 3)); /* from the next op on, which is 1 */
    run(now + 5 * UT_MS);
    silent = 0;
    run(now + UT_SECOND);
    for (uint32_t h = 0; h < 3; h++) {
        ut_receipt r = receipt(h);
        CHECK_EQ(r.status, UT_COMPLETE);
        CHECK_HEX(r.owners, 7);
        CHECK_EQ(lacks(h, 7), 0);
    }
    call_all(1);
    for (uint32_t h = 0; h < 3; h++)
        CHECK_EQ(receipt(h).status, UT_COMPLETE);
    end();
}

/* Two halves with epochs that differ in |owners| or not at all but for the id: nothing of one is in the other. */
static void halves__are_parted_and_name_it(void)
{
    for (uint32_t owners = 0; owners < 2; owners++) {
        start(4);
        ut_epoch a = epoch_of(1, 0, 15), b = a;
        b.id = 0x9990002;
        b.owners = owners ? 7 : 15;
        hand(3, a);
        hand(12, b);
        call_all(0);
        for (uint32_t h = 0; h < 4; h++) {
            ut_receipt r = receipt(h);
            uint32_t half = h < 2 ? 3 : 12, other = h < 2 ? 2 : 0;
            CHECK_EQ(r.status, UT_PARTIAL);
            CHECK_EQ(r.peer[other].why, UT_MISSING_VIEW);
            CHECK(r.elapsed_ns < 100 * UT_MS); /* nobody waits for the other half */
            CHECK(lacks(h, half) > 0);
        }
        end();
    }
}

/* ---- tags that are alike ---- */

static bool no_records;

static void take_records(uint32_t from, uint32_t to, uint32_t port, uint8_t *packet, size_t len)
{
    ut_feedback f;
    (void)from, (void)to;
    if (!no_records || port != UT_PORT_FEEDBACK || ut_feedback_decode(&f, packet, len, UT_CHECK_SUM))
        return;
    for (unsigned i = 0; i < f.records; i++)
        f.record[i].op_seq = 0x100000; /* one that is not heard */
    (void)ut_feedback_encode(packet, &f);
}

/* Data of the other epoch comes first, and is taken for our own; then the record. */
static void alike__the_record_ends_what_was_mixed(void)
{
    start(2);
    ut_epoch a = epoch_of(1, 0, 3), b = a;
    b.id ^= UINT64_C(1) << 40; /* the same 16 bits */
    hand(1, a);
    hand(2, b);
    change = take_records;
    no_records = true;
    for (uint32_t h = 0; h < 2; h++)
        submit(h, 0, UT_BOUNDED, 900 * UT_MS);
    run(now + 5 * UT_MS);
    ut_stats stats;
    ut_engine_stats(hosts[0].engine, &stats);
    CHECK(stats.data_used > 0);
    no_records = false;
    run(now + UT_SECOND);
    ut_receipt r = receipt(0);
    CHECK_EQ(r.status, UT_FAILED);
    CHECK_EQ(r.error, UT_ERR_DESYNC);
    CHECK_EQ(r.field, UT_FIELD_VIEW);
    CHECK_EQ(r.culprit, 1);
    CHECK_HEX(r.value_here, a.id);
    CHECK_HEX(r.value_there, b.id);
    end();
}

/* Data of another epoch comes before any record: its tag tells. */
static void tag__is_refused_before_the_record(void)
{
    start(2);
    ut_epoch a = epoch_of(1, 0, 3), b = a;
    b.id ^= 4;
    hand(1, a);
    hand(2, b);
    change = take_records;
    no_records = true;
    for (uint32_t h = 0; h < 2; h++)
        submit(h, 0, UT_BOUNDED, 300 * UT_MS);
    run(now + 400 * UT_MS);
    for (uint32_t h = 0; h < 2; h++) {
        ut_stats stats;
        ut_engine_stats(hosts[h].engine, &stats);
        CHECK(stats.data_refused > 0);
        CHECK_EQ(stats.data_used, 0);
        CHECK_EQ(receipt(h).status, UT_INSUFFICIENT);
    }
    end();
}

/* Where the record comes first nothing of the other is taken in. */
static void alike__nothing_is_taken_after_the_record(void)
{
    for (uint64_t op = 0; op < 4; op++) {
        start(2);
        check_reseed(op);
        ut_epoch a = epoch_of(1, 0, 3), b = a;
        b.id ^= UINT64_C(1) << 40;
        hand(1, a);
        hand(2, b);
        late_ppm = 300000;
        call_all(0);
        for (uint32_t h = 0; h < 2; h++) {
            ut_receipt r = receipt(h);
            CHECK(r.status == UT_INSUFFICIENT || (r.error == UT_ERR_DESYNC && r.field == UT_FIELD_VIEW));
            CHECK_EQ(r.status == UT_INSUFFICIENT, r.bytes_used == 0);
        }
        end();
    }
}

/* A host that comes in is at the first op of its epoch while the others have many to go: what it sends is not kept, and
 * comes again. */
static void newcomer__what_is_far_ahead_is_not_acknowledged(void)
{
    const uint64_t first = 40;
    first_op[2] = first;
    start(3);
    first_op[2] = 0;
    ut_epoch two = epoch_of(1, 0, 3);
    two.world = 2;
    hand(3, two);
    hand(7, epoch_of(2, first, 7));
    submit(2, first, UT_BOUNDED, 900 * UT_MS);
    for (uint64_t op = 0; op < first; op++) {
        for (uint32_t h = 0; h < 2; h++)
            submit(h, op, UT_BOUNDED, 900 * UT_MS);
        run(now + 2 * UT_MS);
        CHECK_EQ(receipt(0).status + receipt(1).status, 2 * UT_COMPLETE);
    }
    ut_stats stats;
    ut_engine_stats(hosts[0].engine, &stats);
    CHECK(stats.data_refused > 0);
    for (uint32_t h = 0; h < 2; h++)
        submit(h, first, UT_BOUNDED, 900 * UT_MS);
    run(now + 600 * UT_MS);
    for (uint32_t h = 0; h < n; h++) {
        CHECK_EQ(receipt(h).status, UT_COMPLETE);
        CHECK_EQ(lacks(h, 7), 0);
    }
    end();
}

/* ---- holds ---- */

static void hold__keeps_an_op_from_opening(void)
{
    start(2);
    for (uint32_t h = 0; h < 2; h++)
        CHECK_EQ(ut_engine_hold(hosts[h].engine, 0, 1, now + 400 * UT_MS), UT_OK);
    call_all(0);
    CHECK_EQ(receipt(0).status + receipt(1).status, 2 * UT_COMPLETE); /* it is not held */
    ut_ns until = now + 300 * UT_MS;
    for (uint32_t h = 0; h < 2; h++)
        CHECK_EQ(ut_engine_hold(hosts[h].engine, 0, 1, until), UT_OK);
    for (uint32_t h = 0; h < 2; h++)
        submit(h, 1, UT_BOUNDED, 900 * UT_MS);
    run(until - UT_MS);
    uint64_t next;
    uint16_t option[UT_EPOCH_OPTIONS];
    CHECK_EQ(ut_engine_job_wishes(hosts[0].engine, 0, &next, option), UT_OK);
    CHECK_EQ(next, 1);
    run(until + 20 * UT_MS);
    CHECK_EQ(receipt(0).status + receipt(1).status, 2 * UT_COMPLETE);
    end();
}

static void hold__an_epoch_ends_it_and_a_deadline_does_not_wait(void)
{
    start(2);
    for (uint32_t h = 0; h < 2; h++)
        CHECK_EQ(ut_engine_hold(hosts[h].engine, 0, 0, now + 1000 * UT_MS), UT_OK);
    submit(0, 0, UT_BOUNDED, 50 * UT_MS);
    run(now + 60 * UT_MS);
    ut_receipt r = receipt(0);
    CHECK_EQ(r.status, UT_INSUFFICIENT); /* it never opened: the caller's own value */
    for (uint32_t h = 0; h < 2; h++)
        submit(h, h == 0, UT_BOUNDED, 900 * UT_MS);
    submit(1, 1, UT_BOUNDED, 900 * UT_MS);
    run(now + 50 * UT_MS);
    hand(3, epoch_of(1, 1, 3));
    run(now + 30 * UT_MS);
    CHECK_EQ(receipt(0).status, UT_COMPLETE);
    end();
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(dead_owner__its_shard_is_missing_until_an_epoch_comes);
    RUN(member__who_is_not_one_is_expected_nothing_of);
    RUN(member__no_op_is_kept_for_who_is_not_one);
    RUN(member__whoever_is_taken_out_by_its_own_epoch_is_alone);
    RUN(reliable__needs_every_host_under_any_epoch);
    RUN(open__an_op_keeps_its_epoch);
    RUN(halves__are_parted_and_name_it);
    RUN(alike__the_record_ends_what_was_mixed);
    RUN(tag__is_refused_before_the_record);
    RUN(alike__nothing_is_taken_after_the_record);
    RUN(newcomer__what_is_far_ahead_is_not_acknowledged);
    RUN(hold__keeps_an_op_from_opening);
    RUN(hold__an_epoch_ends_it_and_a_deadline_does_not_wait);
    return check_end();
}
