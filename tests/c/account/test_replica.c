/* SPDX-License-Identifier: Apache-2.0
 *
 * The digest of a result: what it is made of, that it travels, and who is found to differ.
 */
#include "pair.h"

#include "core/base/digest.h"
#include "core/op/op.h"
#include "kernels/kernels.h"

enum { PAYLOAD = 1440 };

/* From PROTOCOL.md: slots are cut shard by shard. */
static uint64_t digest_of(const uint8_t *result)
{
    uint64_t sum = 0;
    for (uint32_t shard = 0; shard < HOSTS; shard++) {
        uint64_t at = ut_shard_bound(ELEMENTS, HOSTS, shard) * 8, end = ut_shard_bound(ELEMENTS, HOSTS, shard + 1) * 8;
        for (; at < end; at += PAYLOAD) {
            size_t len = UT_MIN2(end - at, (uint64_t)PAYLOAD);
            sum += ut_digest_part(ut_crc32c(0, result + at, len), at, len);
        }
    }
    return sum;
}

static void ut_digest_part__known_answers(void)
{
    /* splitmix64's own first outputs are f of multiples of its constant: lengths alone, at offset 0 with CRC 0. */
    CHECK_HEX(ut_digest_part(0, 0, 1), 0xe220a8397b1dcdaf);
    CHECK_HEX(ut_digest_part(0, 0, 2), 0x6e789e6aa1b965f4);
    CHECK_NE(ut_digest_part(1, 0, 8), ut_digest_part(0, 1, 8));
    CHECK_HEX(ut_digest_brief(0x0123456789abcdef), 0x0123456789abcdef >> 32 ^ 0x89abcdef);
}

static void replica__equal_results_have_the_digest_of_their_bytes(void)
{
    world(1, 0);
    for (uint64_t op = 0; op < 3; op++) {
        fill(0, 0, 100 + (double)op);
        fill(1, 0, 1000);
        submit(0, 0, call_of(op, ELEMENTS, UT_AVG, UT_BOUNDED, UT_SECOND));
        submit(1, 0, call_of(op, ELEMENTS, UT_AVG, UT_BOUNDED, UT_SECOND));
        run(now + 20 * UT_MS);
        for (uint32_t h = 0; h < HOSTS; h++) {
            ut_receipt r = receipt(h, 0);
            CHECK_EQ(r.status, UT_COMPLETE);
            CHECK_HEX(r.digest, digest_of(hosts[h].rank[0].arena));
            CHECK_EQ(r.agreed_seq, op ? op - 1 : op); /* nothing is known of the first op's own replicas */
            CHECK_HEX(r.differ_mask, 0);
        }
    }
    for (uint32_t h = 0; h < HOSTS; h++) {
        ut_stats s;
        ut_event e;
        ut_engine_stats(hosts[h].engine, &s);
        CHECK_EQ(s.replicas_compared, 3);
        CHECK_EQ(s.replicas_differ, 0);
        while (ut_engine_poll_event(hosts[h].engine, &e))
            CHECK_EQ(e.kind, UT_EVENT_OP_DONE);
    }
    end_world();
}

/* Of host 0's shard, host 1 gets nothing. */
static bool no_broadcast_to_1(uint32_t from, const ut_burst *b, const uint8_t *packet)
{
    return from == 0 && b->port == UT_PORT_DATA && stage_of(packet) == 2;
}

static void replica__a_host_with_a_hole_differs_and_both_find_out(void)
{
    world(1, 0);
    fill(0, 0, 100);
    fill(1, 0, 1000);
    submit(0, 0, call_of(0, ELEMENTS, UT_AVG, UT_BOUNDED, 200 * UT_MS));
    submit(1, 0, call_of(0, ELEMENTS, UT_AVG, UT_BOUNDED, 200 * UT_MS));
    drop = no_broadcast_to_1;
    run(now + 300 * UT_MS);
    drop = NULL;
    ut_receipt whole = receipt(0, 0), holed = receipt(1, 0);
    CHECK_EQ(whole.status, UT_COMPLETE);
    CHECK_EQ(holed.status, UT_PARTIAL);
    CHECK_HEX(whole.digest, digest_of(hosts[0].rank[0].arena));
    CHECK_HEX(holed.digest, digest_of(hosts[1].rank[0].arena)); /* own values are in it */
    CHECK_NE(whole.digest, holed.digest);
    for (uint32_t h = 0; h < HOSTS; h++) {
        ut_stats s;
        ut_event e, found = {.kind = 0};
        ut_engine_stats(hosts[h].engine, &s);
        CHECK_EQ(s.replicas_compared, 1);
        CHECK_EQ(s.replicas_differ, 1);
        while (ut_engine_poll_event(hosts[h].engine, &e))
            if (e.kind == UT_EVENT_DIVERGED)
                found = e;
        CHECK_EQ(found.kind, UT_EVENT_DIVERGED);
        CHECK_EQ(found.job, 3);
        CHECK_EQ(found.op_seq, 0);
        CHECK_HEX(found.a, 1ULL << (1 - h));
        CHECK_HEX(found.b, 1ULL << (1 - h));
    }
    for (uint32_t h = 0; h < HOSTS; h++)
        submit(h, 0, call_of(1, ELEMENTS, UT_AVG, UT_BOUNDED, UT_SECOND));
    run(now + 20 * UT_MS);
    for (uint32_t h = 0; h < HOSTS; h++) {
        ut_receipt r = receipt(h, 0);
        CHECK_EQ(r.status, UT_COMPLETE);
        CHECK_EQ(r.agreed_seq, 0);
        CHECK_HEX(r.differ_mask, 1ULL << (1 - h));
    }
    end_world();
}

/* A failed op has no result, hence nothing to compare. */
static void replica__failed_ops_are_not_compared(void)
{
    world(1, 0);
    submit(0, 0, call_of(0, ELEMENTS, UT_SUM, UT_BOUNDED, UT_SECOND));
    submit(1, 0, call_of(0, ELEMENTS, UT_AVG, UT_BOUNDED, UT_SECOND));
    run(now + 20 * UT_MS);
    for (uint32_t h = 0; h < HOSTS; h++) {
        ut_stats s;
        ut_receipt r = receipt(h, 0);
        CHECK_EQ(r.status, UT_FAILED);
        CHECK_HEX(r.digest, 0);
        ut_engine_stats(hosts[h].engine, &s);
        CHECK_EQ(s.replicas_compared, 0);
    }
    end_world();
}

static ut_submission agreeing(uint64_t seq, ut_ns budget)
{
    ut_submission s = call_of(seq, ELEMENTS, UT_AVG, UT_BOUNDED, budget);
    s.flags = UT_SUBMIT_AGREE;
    return s;
}

static bool no_scatter_to_0(uint32_t from, const ut_burst *b, const uint8_t *packet)
{
    return from == 1 && b->port == UT_PORT_DATA && stage_of(packet) == 1;
}

/* A hole in the broadcast fails the op there; a contribution that is missing does not. */
static void agree__fails_rather_than_differ(void)
{
    world(1, 0);
    for (uint32_t h = 0; h < HOSTS; h++) {
        fill(h, 0, 100 * (h + 1));
        submit(h, 0, agreeing(0, 200 * UT_MS));
    }
    drop = no_scatter_to_0;
    run(now + 300 * UT_MS);
    ut_receipt a = receipt(0, 0), b = receipt(1, 0);
    CHECK_EQ(a.status, UT_PARTIAL);
    CHECK_EQ(b.status, UT_PARTIAL);
    CHECK_HEX(a.digest, b.digest);
    CHECK_BYTES(hosts[0].rank[0].arena, hosts[1].rank[0].arena, ELEMENTS * 8);
    for (uint32_t h = 0; h < HOSTS; h++)
        submit(h, 0, agreeing(1, 200 * UT_MS));
    drop = no_broadcast_to_1;
    run(now + 300 * UT_MS);
    a = receipt(0, 0), b = receipt(1, 0);
    CHECK_EQ(a.status, UT_COMPLETE);
    CHECK_EQ(b.status, UT_FAILED);
    CHECK_EQ(b.error, UT_ERR_TIMEOUT);
    CHECK_EQ(b.culprit, 0);
    end_world();
}

/* A shard that nobody reduces: its owner is gone. */
static void agree__fails_when_an_owner_is_gone(void)
{
    world(1, 0);
    ut_engine_peer_absent(hosts[0].engine, 3, 1, now);
    submit(0, 0, agreeing(0, 200 * UT_MS));
    ut_receipt r = receipt(0, 0);
    CHECK_EQ(r.status, UT_FAILED);
    CHECK_EQ(r.error, UT_ERR_ABSENT);
    CHECK_EQ(r.culprit, 1);
    CHECK_EQ(r.trouble, UT_TROUBLE_GONE);
    end_world();
}

static void agree__must_be_said_by_all(void)
{
    world(1, 0);
    submit(0, 0, agreeing(0, UT_SECOND));
    submit(1, 0, call_of(0, ELEMENTS, UT_AVG, UT_BOUNDED, UT_SECOND));
    run(now + 20 * UT_MS);
    for (uint32_t h = 0; h < HOSTS; h++) {
        ut_receipt r = receipt(h, 0);
        CHECK_EQ(r.error, UT_ERR_DESYNC);
        CHECK_EQ(r.field, UT_FIELD_AGREE);
        CHECK_EQ(r.value_here, h == 0);
        CHECK_EQ(r.value_there, h == 1);
    }
    end_world();
}

/* A rank whose host went on without it has nothing that is the same as elsewhere. */
static void agree__a_late_rank_fails(void)
{
    world(2, 0);
    submit(0, 0, agreeing(0, 200 * UT_MS));
    submit(1, 0, agreeing(0, 200 * UT_MS));
    run(now + 100 * UT_MS);
    CHECK_EQ(receipt(0, 0).status, UT_PARTIAL);
    submit(0, 1, agreeing(0, 200 * UT_MS));
    ut_receipt late = receipt(0, 1);
    CHECK_EQ(late.status, UT_FAILED);
    CHECK_EQ(late.error, UT_ERR_ABSENT);
    end_world();
}

/* The newest UT_RECEIPTS_KEPT receipts can be had again, newest first. */
static void receipts__are_kept(void)
{
    ut_receipt r, given;
    world(1, 0);
    CHECK_EQ(ut_engine_receipt(hosts[0].engine, 3, 0, &r), UT_ERR_UNKNOWN);
    for (uint64_t op = 0; op < UT_RECEIPTS_KEPT + 3; op++) {
        for (uint32_t h = 0; h < HOSTS; h++)
            submit(h, 0, call_of(op, 100, UT_AVG, UT_BOUNDED, UT_SECOND));
        run(now + 20 * UT_MS);
        given = receipt(0, 0);
        receipt(1, 0);
        CHECK_EQ(ut_engine_receipt(hosts[0].engine, 3, 0, &r), UT_OK);
        CHECK_EQ(r.op_seq, op);
        CHECK_HEX(r.digest, given.digest);
        CHECK_EQ(r.peer[1].expected[0], given.peer[1].expected[0]);
    }
    CHECK_EQ(ut_engine_receipt(hosts[0].engine, 3, UT_RECEIPTS_KEPT - 1, &r), UT_OK);
    CHECK_EQ(r.op_seq, 3);
    CHECK_EQ(ut_engine_receipt(hosts[0].engine, 3, UT_RECEIPTS_KEPT, &r), UT_ERR_UNKNOWN);
    CHECK_EQ(ut_engine_receipt(hosts[0].engine, 2, 0, &r), UT_ERR_UNKNOWN);
    end_world();
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(ut_digest_part__known_answers);
    RUN(replica__equal_results_have_the_digest_of_their_bytes);
    RUN(replica__a_host_with_a_hole_differs_and_both_find_out);
    RUN(replica__failed_ops_are_not_compared);
    RUN(agree__fails_rather_than_differ);
    RUN(agree__fails_when_an_owner_is_gone);
    RUN(agree__must_be_said_by_all);
    RUN(agree__a_late_rank_fails);
    RUN(receipts__are_kept);
    return check_end();
}
