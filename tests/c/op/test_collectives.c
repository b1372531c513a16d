/* SPDX-License-Identifier: Apache-2.0
 *
 * The collectives besides allreduce, on whole engines: every byte of every result says whose it is and where it lay,
 * without and with loss, for every number of hosts; a receipt says what was moved; who is missing fails the op, and who
 * calls another collective, or names another root, is told so.
 */
#include "engines.h"

#include "core/plan/schedule.h"

enum { BUCKET = ELEMENTS * 8 }; /* bytes at most */

/* What host |h| brings as element |i| of its bucket in op |op|: nobody else brings the same anywhere near. */
static int64_t brings(uint32_t h, uint64_t op, uint64_t i)
{
    return (int64_t)((op + 1) * 100000000 + h * 10000000 + i);
}

/* What element |i| of host |h|'s result bucket must be. */
static int64_t wanted(unsigned collective, uint32_t root, uint64_t count, uint32_t h, uint64_t op, uint64_t i)
{
    uint64_t shard = count / n;
    int64_t sum = 0;
    switch (collective) {
    case UT_REDUCE_SCATTER:
        for (uint32_t p = 0; p < n; p++)
            sum += brings(p, op, i);
        return sum;
    case UT_ALL_GATHER:
        return brings((uint32_t)(i / shard), op, i);
    case UT_BROADCAST:
        return brings(root, op, i);
    default: /* all-to-all: chunk p came from host p, where it was chunk h */
        return brings((uint32_t)(i / shard), op, h * shard + i % shard);
    }
}

typedef struct call {
    uint64_t op, count;
    uint8_t collective, root, dtype;
    bool in_place;
    ut_ns budget; /* 0: a second */
} call;

/* Where host |h|'s source and result begin in its arena; the bucket that they belong to is laid out there or around it.
 */
static uint64_t src_of(const call *c, uint32_t h)
{
    return c->collective == UT_ALL_GATHER ? h * (c->count / n) * 8 : 0;
}

static uint64_t dst_of(const call *c, uint32_t h)
{
    uint64_t at = c->in_place ? 0 : BUCKET;
    return c->collective == UT_REDUCE_SCATTER ? at + h * (c->count / n) * 8 : at;
}

static void submit_one(const call *c, uint32_t h)
{
    int64_t *bucket = (int64_t *)hosts[h].arena;
    unsigned each = c->dtype == UT_BYTES ? 8 : 1;
    memset(hosts[h].arena, 0xee, ARENA);
    for (uint64_t i = 0; i < c->count; i++)
        if (c->collective != UT_ALL_GATHER || i / (c->count / n) == h)
            bucket[i] = brings(h, c->op, i);
    ut_submission s = {.op_seq = c->op,
                       .src = src_of(c, h),
                       .dst = dst_of(c, h),
                       .count = c->count * each,
                       .deadline_ns = now + (c->budget ? c->budget : UT_SECOND),
                       .dtype = c->dtype,
                       .redop = c->collective == UT_REDUCE_SCATTER ? UT_SUM : 0,
                       .mode = UT_RELIABLE,
                       .collective = c->collective,
                       .alike.root = c->root};
    CHECK_EQ(ut_ring_submit(&hosts[h].submissions, &hosts[h].completions, &s), UT_OK);
    ut_engine_submissions(hosts[h].engine, hosts[h].session, now);
}

/* Bytes that must cross the network to host |h|. */
static uint64_t moved(const call *c, uint32_t h)
{
    uint64_t bytes = c->count * 8;
    uint64_t own = (ut_shard_bound(c->count, n, h + 1) - ut_shard_bound(c->count, n, h)) * 8;
    if (c->dtype == UT_BYTES)
        own = ut_shard_bound(bytes, n, h + 1) - ut_shard_bound(bytes, n, h);
    if (c->collective == UT_REDUCE_SCATTER)
        return (n - 1) * own;
    if (c->collective == UT_BROADCAST)
        return h == c->root ? 0 : bytes;
    return bytes - own;
}

static void check_one(const call *c, uint32_t h)
{
    ut_receipt r = receipt(h);
    const int64_t *result = (const int64_t *)(hosts[h].arena + (c->in_place ? 0 : BUCKET));
    uint64_t shard = c->count / n, wrong = 0;
    bool scattered = c->collective == UT_REDUCE_SCATTER;
    CHECK_MSG(r.status == UT_COMPLETE, "collective %u, %u hosts, host %u, op %d: status %u, error %d", c->collective, n,
              h, (int)c->op, r.status, r.error);
    CHECK_EQ(r.bytes_expected, moved(c, h));
    CHECK_HEX(r.full_mask, c->collective == UT_BROADCAST ? 1u << c->root : (1u << n) - 1);
    CHECK_EQ(r.weight_min, n);
    CHECK_EQ(r.t_b_us, 0);
    CHECK_HEX(r.differ_mask, 0); /* results that are to differ are not compared */
    for (uint64_t i = scattered ? h * shard : 0; i < (scattered ? (h + 1) * shard : c->count); i++)
        wrong += result[i] != wanted(c->collective, c->root, c->count, h, c->op, i);
    CHECK_MSG(wrong == 0, "collective %u, %u hosts, host %u, root %u, op %d: %d of %d elements wrong", c->collective, n,
              h, c->root, (int)c->op, (int)wrong, (int)c->count);
    if (scattered && shard && !c->in_place) /* of the other shards nothing may be touched */
        for (uint64_t i = 0; i < c->count; i++)
            CHECK(i / shard == h || hosts[h].arena[BUCKET + i * 8] == 0xee);
}

static void begin_alike(unsigned algorithm)
{
    uint8_t same[MOST];
    memset(same, (int)algorithm, sizeof same);
    begin(same);
}

static void engine__every_collective_moves_what_it_says(void)
{
    for (unsigned algorithm = UT_TAR; algorithm < UT_ALGORITHMS_END; algorithm++)
        for (n = 1; n <= 5; n++) {
            begin_alike(algorithm);
            for (uint64_t op = 0; op < 48; op++) {
                call c = {.op = op,
                          .count = op < 4 ? ELEMENTS : check_below(op % 3 ? ELEMENTS : 2 * n + 1),
                          .collective = (uint8_t)(UT_REDUCE_SCATTER + op % 4),
                          .dtype = UT_INT64};
                c.in_place = c.collective == UT_BROADCAST || (c.collective != UT_ALL_TO_ALL && check_below(2));
                if (c.collective != UT_REDUCE_SCATTER && check_below(2))
                    c.dtype = UT_BYTES;
                if (c.collective == UT_BROADCAST)
                    c.root = (uint8_t)check_below(n); /* and any count, not of equal shards */
                else
                    c.count -= c.count % n;
                loss_ppm = op < 8 ? 0 : 50000;
                late_ppm = op < 24 ? 0 : 200000; /* and out of order, and twice */
                for (uint32_t h = 0; h < n; h++)
                    submit_one(&c, h);
                run(now + 900 * UT_MS);
                for (uint32_t h = 0; h < n; h++)
                    check_one(&c, h);
            }
            end();
        }
}

/* Averages and the halves: the accumulator is in the job's memory then, the result a shard in the trainer's. */
static void engine__reduce_scatter_of_halves(void)
{
    n = 3;
    begin_alike(UT_TAR);
    for (uint64_t op = 0; op < 4; op++) {
        unsigned redop = op % 2 ? UT_AVG : UT_SUM;
        uint64_t count = 3 * 700, shard = 700;
        loss_ppm = 20000;
        for (uint32_t h = 0; h < n; h++) {
            uint16_t *src = (uint16_t *)(void *)hosts[h].arena;
            for (uint64_t i = 0; i < count; i++) /* bfloat16: 3, 6, 12 in h's order, twice that in the second shard */
                src[i] = (uint16_t)(0x4040 + (h + (i / shard == 1)) * 0x80);
            ut_submission s = {.op_seq = op,
                               .dst = BUCKET,
                               .count = count,
                               .deadline_ns = now + UT_SECOND,
                               .dtype = UT_BFLOAT16,
                               .redop = (uint8_t)redop,
                               .mode = UT_RELIABLE,
                               .collective = UT_REDUCE_SCATTER};
            CHECK_EQ(ut_ring_submit(&hosts[h].submissions, &hosts[h].completions, &s), UT_OK);
            ut_engine_submissions(hosts[h].engine, hosts[h].session, now);
        }
        run(now + 900 * UT_MS);
        for (uint32_t h = 0; h < n; h++) {
            const uint16_t *dst = (const uint16_t *)(const void *)(hosts[h].arena + BUCKET);
            uint16_t want = redop == UT_AVG ? 0x40e0 : 0x41a8; /* 7 and 21 */
            CHECK_EQ(receipt(h).status, UT_COMPLETE);
            for (uint64_t i = 0; i < shard; i++)
                CHECK_HEX(dst[i], want + (h == 1 ? 0x80 : 0));
        }
    }
    end();
}

static void submit_barrier(uint32_t h, uint64_t op, uint64_t note)
{
    ut_submission s = {.op_seq = op,
                       .alike.note = note,
                       .deadline_ns = now + UT_SECOND,
                       .dtype = UT_BYTES,
                       .mode = UT_RELIABLE,
                       .collective = UT_BARRIER};
    CHECK_EQ(ut_ring_submit(&hosts[h].submissions, &hosts[h].completions, &s), UT_OK);
    ut_engine_submissions(hosts[h].engine, hosts[h].session, now);
}

static void engine__nobody_passes_a_barrier_before_all_have_come(void)
{
    for (n = 1; n <= 5; n++) {
        begin_alike(UT_TAR);
        for (uint64_t op = 0; op < 12; op++) {
            ut_receipt r;
            uint32_t late = (uint32_t)check_below(n);
            loss_ppm = op < 2 ? 0 : 100000;
            late_ppm = op < 6 ? 0 : 300000;
            for (uint32_t h = 0; h < n; h++)
                if (h != late)
                    submit_barrier(h, op, UINT64_MAX >> op);
            run(now + 200 * UT_MS);
            for (uint32_t h = 0; h < n; h++)
                CHECK_EQ(ut_ring_take_completion(&hosts[h].submissions, &hosts[h].completions, &r), 0);
            submit_barrier(late, op, UINT64_MAX >> op);
            run(now + 700 * UT_MS);
            for (uint32_t h = 0; h < n; h++) {
                r = receipt(h);
                CHECK_EQ(r.status, UT_COMPLETE);
                CHECK_EQ(r.bytes_expected, n - 1);
            }
        }
        end();
    }
}

/* The note is no size: whatever it is, it is compared, and nothing else is done with it. */
static void engine__barriers_with_other_notes_are_a_desync(void)
{
    static const uint64_t notes[][2] = {{0, 1}, {3, UINT64_MAX}, {UINT64_C(1) << 63, UINT64_C(1) << 62}};
    for (size_t i = 0; i < sizeof notes / sizeof *notes; i++) {
        n = 3;
        begin_alike(UT_TAR);
        for (uint32_t h = 0; h < n; h++)
            submit_barrier(h, 0, notes[i][h == 1]);
        run(now + 100 * UT_MS);
        for (uint32_t h = 0; h < n; h++) {
            ut_receipt r = receipt(h);
            CHECK_EQ(r.error, UT_ERR_DESYNC);
            CHECK_EQ(r.field, UT_FIELD_COUNT);
            CHECK_EQ(r.value_here, notes[i][h == 1]);
            CHECK_EQ(r.value_there, notes[i][h != 1]);
            CHECK(h == 1 ? r.culprit != 1 : r.culprit == 1);
        }
        end();
    }
}

/* A host that is gone, is silent, or dies half-way: everybody who needs something of it fails, and says who it was. */
static void engine__a_missing_host_fails_the_others(void)
{
    for (unsigned collective = UT_REDUCE_SCATTER; collective <= UT_BARRIER; collective++)
        for (unsigned how = 0; how < 3; how++)
            for (uint32_t root = 0; root < (collective == UT_BROADCAST ? 4u : 1u); root++) {
                n = 4;
                begin_alike(UT_TAR);
                call c = {.count = ELEMENTS, .collective = (uint8_t)collective, .root = (uint8_t)root};
                c.dtype = UT_INT64;
                c.in_place = collective == UT_BROADCAST;
                if (how < 2)
                    silent = 1 << 1;
                for (uint32_t h = 0; h < n && how == 0; h++)
                    if (h != 1)
                        ut_engine_peer_absent(hosts[h].engine, 0, 1, now);
                for (uint32_t h = 0; h < n; h++)
                    if (h != 1 || how == 2)
                        collective == UT_BARRIER ? submit_barrier(h, 0, 7) : submit_one(&c, h);
                if (how == 2) { /* it has called, and nothing but its first packets got out */
                    run(now + 5 * UT_US);
                    silent = 1 << 1;
                    run(now + 100 * UT_MS);
                    for (uint32_t h = 0; h < n; h++)
                        if (h != 1)
                            ut_engine_peer_absent(hosts[h].engine, 0, 1, now);
                }
                run(now + 1100 * UT_MS);
                for (uint32_t h = 0; h < n; h++) {
                    if (h == 1)
                        continue;
                    ut_receipt r = receipt(h);
                    if (how == 2 && r.status == UT_COMPLETE) {
                        CHECK_EQ(r.bytes_missing, 0); /* all that it needs had come */
                        continue;
                    }
                    CHECK_EQ(r.status, UT_FAILED);
                    CHECK_EQ(r.error, how == 1 ? UT_ERR_TIMEOUT : UT_ERR_ABSENT);
                    CHECK_MSG(r.culprit == 1, "collective %u, how %u, root %u, host %u: culprit %u", collective, how,
                              root, h, r.culprit);
                }
                end();
            }
}

/* One host alone is told that the root is gone. Until it has heard that all have called it does not give up; but what
 * it did not get it must not pass on. */
static void engine__nothing_is_made_of_what_did_not_come(void)
{
    n = 4;
    begin_alike(UT_TAR);
    call c = {.count = ELEMENTS, .collective = UT_BROADCAST, .dtype = UT_INT64, .in_place = true};
    ut_engine_peer_absent(hosts[2].engine, 0, c.root, now);
    for (uint32_t h = 0; h < 3; h++)
        submit_one(&c, h);
    run(now + 50 * UT_MS);
    const int64_t *chunk_of_2 = (const int64_t *)hosts[1].arena + 2 * c.count / n;
    CHECK_HEX(*chunk_of_2, brings(1, 0, 2 * c.count / n)); /* as it was */
    submit_one(&c, 3);
    run(now + 1100 * UT_MS);
    for (uint32_t h = 1; h < n; h++)
        CHECK_EQ(receipt(h).status, UT_FAILED);
    end();
}

/* The fifth op waits for a place behind four that nobody else calls, and its time is over before there is one. */
static void engine__an_op_that_never_began_leaves_the_result_alone(void)
{
    n = 2;
    begin_alike(UT_TAR);
    for (uint64_t op = 0; op < 5; op++) {
        call c = {.op = op, .count = 100, .collective = UT_ALL_TO_ALL, .dtype = UT_INT64};
        c.budget = op < 4 ? 0 : 200 * UT_MS;
        submit_one(&c, 0);
    }
    run(now + 1100 * UT_MS);
    for (uint64_t op = 0; op < 5; op++)
        CHECK_EQ(receipt(0).error, UT_ERR_TIMEOUT);
    CHECK_HEX(hosts[0].arena[BUCKET + 50 * 8], 0xee);
    end();
}

static void engine__other_collectives_and_roots_are_a_desync(void)
{
    for (unsigned a = UT_ALLREDUCE; a < UT_COLLECTIVES_END; a++)
        for (unsigned b = UT_ALLREDUCE; b < UT_COLLECTIVES_END; b++) {
            if (a == b && a != UT_BROADCAST)
                continue;
            n = 3;
            begin_alike(UT_TAR);
            for (uint32_t h = 0; h < n; h++) {
                unsigned it = h == 1 ? b : a;
                ut_submission s = {.dst = it == UT_ALL_TO_ALL ? BUCKET : 0,
                                   .src = it == UT_ALL_GATHER ? h : 0,
                                   .count = 3,
                                   .deadline_ns = now + UT_SECOND,
                                   .dtype = it == UT_ALLREDUCE || it == UT_REDUCE_SCATTER ? UT_INT32 : UT_BYTES,
                                   .redop = it == UT_ALLREDUCE || it == UT_REDUCE_SCATTER ? UT_SUM : 0,
                                   .mode = UT_RELIABLE,
                                   .collective = (uint8_t)it,
                                   .alike.root = it == UT_BROADCAST && h != 1 ? 2 : 0};
                if (it == UT_BARRIER)
                    s.count = 0;
                if (it == UT_REDUCE_SCATTER)
                    s.dst = h * 4;
                CHECK_EQ(ut_ring_submit(&hosts[h].submissions, &hosts[h].completions, &s), UT_OK);
                ut_engine_submissions(hosts[h].engine, hosts[h].session, now);
            }
            run(now + 100 * UT_MS);
            for (uint32_t h = 0; h < n; h++) {
                ut_receipt r = receipt(h);
                bool root = a == b;
                CHECK_EQ(r.error, UT_ERR_DESYNC);
                CHECK_EQ(r.field, root ? UT_FIELD_ROOT : UT_FIELD_COLLECTIVE);
                CHECK_EQ(r.value_here, root ? (h == 1 ? 0u : 2u) : h == 1 ? b : a);
                CHECK_EQ(r.value_there, root ? (h == 1 ? 2u : 0u) : h == 1 ? a : b);
                CHECK(h == 1 ? r.culprit != 1 : r.culprit == 1);
            }
            end();
        }
}

static void engine__bad_submissions_of_collectives(void)
{
    static const ut_submission good = {
        .dst = BUCKET, .count = 30, .dtype = UT_INT32, .mode = UT_RELIABLE, .collective = UT_ALL_GATHER};
    struct {
        const char *name;
        ut_submission s;
        int error;
    } rows[27];
    size_t rows_used = 0;
#define ROW(error_, ...)                                                                                               \
    do {                                                                                                               \
        ut_submission s = good;                                                                                        \
        __VA_ARGS__;                                                                                                   \
        rows[rows_used].name = #__VA_ARGS__;                                                                           \
        rows[rows_used].s = s;                                                                                         \
        rows[rows_used++].error = error_;                                                                              \
    } while (0)
    ROW(UT_ERR_ARGUMENT, s.collective = UT_ALLREDUCE_QUANT + 1);
    ROW(UT_ERR_ARGUMENT, s.mode = UT_BOUNDED);
    ROW(UT_ERR_ARGUMENT, s.flags = UT_SUBMIT_AGREE);
    ROW(UT_ERR_ARGUMENT, s.count = 31);
    ROW(UT_ERR_ARGUMENT, s.alike.root = 1);
    ROW(UT_ERR_ARGUMENT, s.collective = UT_BROADCAST, s.alike.root = 3);
    ROW(UT_ERR_ARGUMENT, s.collective = UT_BARRIER, s.count = 0);        /* of anything but bytes */
    ROW(UT_ERR_ARGUMENT, s.collective = UT_BARRIER, s.dtype = UT_BYTES); /* with a number of elements */
    ROW(UT_ERR_ARGUMENT, s.collective = UT_BROADCAST, s.alike.note = UINT64_C(1) << 32);
    ROW(UT_ERR_ARGUMENT, s.entries = 1);
    ROW(UT_ERR_ARGUMENT, s.collective = UT_ALLREDUCE, s.redop = UT_SUM, s.alike.root = 1);
    ROW(UT_ERR_ARGUMENT, s.collective = UT_ALLREDUCE, s.redop = UT_AVG,
        s.residual = UINT64_C(1) << UT_RESIDUAL_BITS); /* a weight, and nothing says so */
    ROW(UT_ERR_ARGUMENT, s.collective = UT_ALLREDUCE, s.redop = UT_AVG, s.flags = UT_SUBMIT_WEIGHTED, s.residual = 1);
    ROW(UT_ERR_REDOP, s.collective = UT_ALLREDUCE, s.redop = UT_SUM, s.flags = UT_SUBMIT_WEIGHTED);
    ROW(UT_ERR_DTYPE, s.collective = UT_ALLREDUCE, s.redop = UT_AVG, s.dtype = UT_INT32, s.flags = UT_SUBMIT_WEIGHTED);
    ROW(UT_ERR_REDOP, s.redop = UT_SUM);
    ROW(UT_ERR_REDOP, s.collective = UT_REDUCE_SCATTER);
    ROW(UT_ERR_DTYPE, s.dtype = UT_BYTES + 1);
    ROW(UT_ERR_DTYPE, s.dtype = UT_BYTES, s.collective = UT_REDUCE_SCATTER, s.redop = UT_SUM);
    ROW(UT_ERR_TOO_LARGE, s.count = ELEMENTS * 2 + 3 - ELEMENTS * 2 % 3);
    ROW(UT_ERR_RANGE, s.collective = UT_BROADCAST);             /* always in place */
    ROW(UT_ERR_RANGE, s.dst = s.src);                           /* the own shard is not the first */
    ROW(UT_ERR_RANGE, s.dst = 4);                               /* overlaps, and is not in place */
    ROW(UT_ERR_RANGE, s.collective = UT_ALL_TO_ALL, s.dst = 0); /* never in place */
    ROW(UT_ERR_RANGE, s.dst = ARENA - 119);                     /* beyond the end, and not aligned */
    ROW(UT_ERR_RANGE, s.src = ARENA - 36);
    for (size_t i = 0; i < rows_used; i++) {
        n = 3;
        begin_alike(UT_TAR);
        CHECK_EQ(ut_ring_submit(&hosts[1].submissions, &hosts[1].completions, &rows[i].s), UT_OK);
        ut_engine_submissions(hosts[1].engine, hosts[1].session, now);
        ut_receipt r = receipt(1);
        CHECK_MSG(r.status == UT_FAILED && r.error == rows[i].error, "%s: status %u, error %d", rows[i].name, r.status,
                  r.error);
        end();
    }
#undef ROW
}

/* Collectives say nothing of how long an allreduce of their size should take. */
static void engine__collectives_teach_no_times(void)
{
    n = 2;
    begin_alike(UT_TAR);
    for (uint64_t op = 0; op < 60; op++) {
        call c = {.op = op, .count = 1000, .collective = UT_ALL_GATHER, .dtype = UT_INT64};
        for (uint32_t h = 0; h < n; h++)
            submit_one(&c, h);
        run(now + 20 * UT_MS);
        for (uint32_t h = 0; h < n; h++)
            check_one(&c, h);
    }
    for (uint32_t h = 0; h < n; h++) {
        ut_submission s = {.op_seq = 60,
                           .count = 1000,
                           .deadline_ns = now + UT_SECOND,
                           .dtype = UT_FLOAT32,
                           .redop = UT_SUM,
                           .mode = UT_BOUNDED};
        CHECK_EQ(ut_ring_submit(&hosts[h].submissions, &hosts[h].completions, &s), UT_OK);
        ut_engine_submissions(hosts[h].engine, hosts[h].session, now);
    }
    run(now + 20 * UT_MS);
    for (uint32_t h = 0; h < n; h++) {
        ut_receipt r = receipt(h);
        CHECK_EQ(r.status, UT_COMPLETE);
        CHECK_EQ(r.t_b_us, 0); /* after as many allreduces it would be known */
    }
    end();
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(engine__every_collective_moves_what_it_says);
    RUN(engine__reduce_scatter_of_halves);
    RUN(engine__nobody_passes_a_barrier_before_all_have_come);
    RUN(engine__barriers_with_other_notes_are_a_desync);
    RUN(engine__a_missing_host_fails_the_others);
    RUN(engine__nothing_is_made_of_what_did_not_come);
    RUN(engine__an_op_that_never_began_leaves_the_result_alone);
    RUN(engine__other_collectives_and_roots_are_a_desync);
    RUN(engine__bad_submissions_of_collectives);
    RUN(engine__collectives_teach_no_times);
    return check_end();
}
