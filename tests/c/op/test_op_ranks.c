/* SPDX-License-Identifier: Apache-2.0
 *
 * Which ranks of each host a receipt says are in an op of an ordinary job, and which are gone or late: on one host and
 * on several, in each mode. What ranks give are powers of two, so each sum says who is in it.
 */
#define CREW_HOSTS 3
#define CREW_PLACES 3
#include "crew.h"

enum { DST = BUFFER };

static unsigned flags;
static ut_ns time_given = UT_SECOND;

static void call(uint32_t h, uint32_t place, uint8_t mode)
{
    struct trainer *t = &trainers[h][place];
    double *at = (double *)(void *)t->arena;
    for (uint32_t i = 0; i < elements; i++)
        at[i] = (double)(1u << (PLACES * h + place));
    ut_submission s = words(0, 0);
    s.redop = UT_SUM;
    s.flags = (uint8_t)flags;
    s.deadline_ns = now + time_given;
    s.mode = mode;
    s.dst = DST;
    submit(h, place, s);
}

static void leave(uint32_t h, uint32_t place)
{
    ut_engine_session_remove(hosts[h].engine, trainers[h][place].session, now);
}

#define CHECK_SUM(h, place, ranks) check_sum(h, place, ranks, __LINE__)
static void check_sum(uint32_t h, uint32_t place, unsigned ranks, int line)
{
    const double *at = (const double *)(const void *)(trainers[h][place].arena + DST);
    for (uint32_t i = 0; i < elements; i++)
        if (!check_that(at[i] == ranks, __FILE__, line, "element %u: %.17g, not %u", i, at[i], ranks))
            return;
}

#define CHECK_ROW(r, h, in, out, overdue)                                                                              \
    do {                                                                                                               \
        CHECK_EQ((r).peer[h].fresh, in);                                                                               \
        CHECK_EQ((r).peer[h].gone, out);                                                                               \
        CHECK_EQ((r).peer[h].late, overdue);                                                                           \
    } while (0)

static void one_host__all_ranks_are_in(void)
{
    begin(1, 3, (ut_job_options){0});
    for (uint32_t p = 3; p-- > 0;)
        call(0, p, UT_BOUNDED);
    for (uint32_t p = 0; p < 3; p++) {
        const ut_receipt r = receipt_at(0, p);
        CHECK_EQ(r.status, UT_COMPLETE);
        CHECK_ROW(r, 0, 7, 0, 0);
        CHECK_SUM(0, p, 7);
    }
    end();
}

static void one_host__a_rank_alone_is_all_there_is(void)
{
    begin(1, 1, (ut_job_options){0});
    call(0, 0, UT_BOUNDED);
    const ut_receipt r = receipt(0);
    CHECK_EQ(r.status, UT_COMPLETE);
    CHECK_ROW(r, 0, 1, 0, 0);
    end();
}

/* One of three is gone and one is late: what the first gets is its own value, and the late one gets its own. */
static void one_host__one_gone_and_one_late(void)
{
    for (uint8_t mode = UT_BOUNDED; mode < UT_MODES_END; mode++) {
        begin(1, 3, (ut_job_options){0});
        leave(0, 2);
        call(0, 0, mode);
        run(2 * UT_SECOND);
        ut_receipt r = receipt_at(0, 0);
        CHECK_EQ(r.status, mode == UT_RELIABLE ? UT_FAILED : UT_INSUFFICIENT);
        CHECK_ROW(r, 0, 1, 4, 2);
        CHECK_EQ(r.culprit, 0);
        CHECK_EQ(r.trouble, mode == UT_RELIABLE ? UT_TROUBLE_SENDER : UT_TROUBLE_GONE);
        call(0, 1, mode);
        r = receipt_at(0, 1);
        CHECK_EQ(r.status, mode == UT_RELIABLE ? UT_FAILED : UT_INSUFFICIENT);
        CHECK_ROW(r, 0, 2, 0, 2);
        if (mode != UT_RELIABLE)
            CHECK_SUM(0, 0, 1);
        end();
    }
}

static void one_host__one_of_three_is_gone(void)
{
    for (uint8_t mode = UT_BOUNDED; mode < UT_MODES_END; mode++) {
        begin(1, 3, (ut_job_options){0});
        call(0, 0, mode);
        leave(0, 1); /* the op waited for it */
        call(0, 2, mode);
        for (uint32_t p = 0; p < 3; p += 2) {
            const ut_receipt r = receipt_at(0, p);
            CHECK_EQ(r.status, mode == UT_RELIABLE ? UT_FAILED : UT_PARTIAL);
            CHECK_EQ(r.error, mode == UT_RELIABLE ? UT_ERR_ABSENT : UT_OK);
            CHECK_EQ(r.culprit, 0);
            CHECK_EQ(r.trouble, UT_TROUBLE_GONE);
            CHECK_ROW(r, 0, 5, 2, 0);
            if (mode != UT_RELIABLE)
                CHECK_SUM(0, p, 5);
        }
        end();
    }
}

/* A rank that leaves before its contribution was read is not in it, although it had called. */
static void one_host__a_rank_that_called_and_left(void)
{
    begin(1, 3, (ut_job_options){0});
    call(0, 1, UT_BOUNDED);
    leave(0, 1);
    call(0, 0, UT_BOUNDED);
    call(0, 2, UT_BOUNDED);
    const ut_receipt r = receipt_at(0, 2);
    CHECK_EQ(r.status, UT_PARTIAL);
    CHECK_ROW(r, 0, 5, 2, 0);
    CHECK_SUM(0, 2, 5);
    end();
}

/* Each host tells of its ranks, so all receipts say the same. */
static void hosts__tell_each_other_which_of_their_ranks_are_in(void)
{
    for (uint8_t mode = UT_BOUNDED; mode < UT_MODES_END; mode++) {
        begin(3, 3, (ut_job_options){0});
        leave(1, 0);
        for (uint32_t h = 0; h < 3; h++)
            for (uint32_t p = 0; p < 3; p++)
                if (h != 1 || p != 0)
                    call(h, p, mode);
        run(2 * UT_SECOND);
        for (uint32_t h = 0; h < 3; h++) {
            const ut_receipt r = receipt_at(h, 1);
            CHECK_EQ(r.status, mode == UT_RELIABLE ? UT_FAILED : UT_PARTIAL);
            CHECK_EQ(r.full_mask, 7);
            CHECK_ROW(r, 0, 7, 0, 0);
            CHECK_ROW(r, 1, 6, 1, 0);
            CHECK_ROW(r, 2, 7, 0, 0);
            CHECK_EQ(r.culprit, 1);
            CHECK_EQ(r.trouble, UT_TROUBLE_GONE);
            if (mode != UT_RELIABLE)
                CHECK_SUM(h, 1, 511 - 8);
        }
        end();
    }
}

static void hosts__that_are_gone_have_taken_all_their_ranks(void)
{
    begin(3, 2, (ut_job_options){0});
    for (uint32_t h = 0; h < 2; h++)
        ut_engine_peer_absent(hosts[h].engine, 0, 2, now);
    for (uint32_t h = 0; h < 2; h++)
        for (uint32_t p = 0; p < 2; p++)
            call(h, p, UT_BOUNDED);
    run(2 * UT_SECOND);
    const ut_receipt r = receipt(0);
    CHECK_EQ(r.status, UT_PARTIAL);
    CHECK_ROW(r, 1, 3, 0, 0);
    CHECK_ROW(r, 2, 0, 3, 0);
    end();
}

/* One rank of host 0 calls |late| after all others. */
static void call_late(uint32_t hosts_, ut_ns late)
{
    for (uint32_t h = 0; h < hosts_; h++)
        for (uint32_t p = 0; p < 2; p++)
            if (h || !p)
                call(h, p, UT_BOUNDED);
    run(late);
    call(0, 1, UT_BOUNDED);
    run(100 * UT_MS);
    for (uint32_t h = 0; h < hosts_; h++)
        for (uint32_t p = 0; p < 2; p++)
            CHECK_EQ(receipt_at(h, p).status, UT_COMPLETE);
}

static void late__ranks_of_a_host_that_is_alone_have_all_of_the_time(void)
{
    begin(1, 2, (ut_job_options){0});
    call_late(1, 990 * UT_MS);
    end();
}

/* A quarter of a short time, while it was not measured how long such an op takes. */
static void late__ranks_of_several_hosts_have_what_the_network_does_not_need(void)
{
    begin(2, 2, (ut_job_options){0});
    call_late(2, 240 * UT_MS);
    for (unsigned i = 0; i < 25; i++)
        call_late(2, 0);
    call_late(2, 900 * UT_MS);
    end();
}

/* In the first op, of which no time was measured yet: all but some seconds, in which it would be over on slow paths. */
static void late__ranks_in_the_first_op_have_nearly_all_of_a_long_time(void)
{
    static const struct {
        uint64_t given, late;
    } rows[] = {{8, 4}, {60, 56}, {300, 296}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        time_given = rows[i].given * UT_SECOND;
        begin(2, 2, (ut_job_options){0});
        call_late(2, rows[i].late * UT_SECOND);
        end();
        begin(2, 2, (ut_job_options){0}); /* and all ranks of another host */
        for (uint32_t p = 0; p < 2; p++)
            call(0, p, UT_BOUNDED);
        run(rows[i].late * UT_SECOND);
        for (uint32_t p = 0; p < 2; p++)
            call(1, p, UT_BOUNDED);
        run(100 * UT_MS);
        for (uint32_t h = 0; h < 2; h++)
            for (uint32_t p = 0; p < 2; p++) {
                CHECK_EQ(receipt_at(h, p).status, UT_COMPLETE);
                CHECK_SUM(h, p, 3 + (3 << PLACES));
            }
        end();
    }
    time_given = UT_SECOND;
}

/* The op's time is counted from the last call, of whichever host that is. */
static void late__ranks_where_nobody_named_a_deadline(void)
{
    begin(2, 2, (ut_job_options){0});
    flags = UT_SUBMIT_ADAPTIVE;
    time_given = 30 * UT_SECOND;
    for (unsigned i = 0; i < 25; i++)
        call_late(2, 0);
    call_late(2, 25 * UT_SECOND);
    call(0, 0, UT_BOUNDED); /* and here the other host calls last */
    run(5 * UT_SECOND);
    call(0, 1, UT_BOUNDED);
    run(500 * UT_MS);
    for (uint32_t p = 0; p < 2; p++)
        call(1, p, UT_BOUNDED);
    run(100 * UT_MS);
    for (uint32_t p = 0; p < 2; p++)
        CHECK_EQ(receipt_at(0, p).status, UT_COMPLETE);
    flags = 0;
    time_given = UT_SECOND;
    end();
}

/* Thirds of all sizes: in another order the same sum has other bits. */
static void give_thirds(uint32_t h, uint32_t place)
{
    double *at = (double *)(void *)trainers[h][place].arena;
    ut_submission s = words(0, 0);
    for (uint32_t i = 0; i < elements; i++)
        at[i] = (double)(1u << ((7 * i + 11 * (3 * h + place)) % 31)) / 3 * (place == 1 ? -1 : 1);
    s.redop = UT_SUM;
    s.dst = DST;
    submit(h, place, s);
}

/* Of two hosts each owner adds one sum to its own, which is the same either way round. */
static void sums__of_one_host_or_two_have_the_same_bits_whoever_calls_first(void)
{
    static const uint8_t orders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    for (uint32_t hosts_ = 1; hosts_ <= 2; hosts_++) {
        uint64_t digest = 0;
        begin(hosts_, 3, (ut_job_options){0});
        for (unsigned k = 0; k < 12; k++) {
            const uint32_t first = check_below(2);
            for (uint32_t i = 0; i < hosts_; i++)
                for (uint32_t p = 0; p < 3; p++)
                    give_thirds((first + i) % hosts_, orders[k % 6][p]);
            run(100 * UT_MS);
            for (uint32_t h = 0; h < hosts_; h++)
                for (uint32_t p = 0; p < 3; p++) {
                    const ut_receipt r = receipt_at(h, p);
                    CHECK_EQ(r.status, UT_COMPLETE);
                    digest = digest ? digest : r.digest;
                    CHECK_EQ(r.digest, digest);
                }
        }
        end();
    }
}

static void places__are_taken_once(void)
{
    begin_without(1, 1, 2, (ut_job_options){0});
    struct trainer *t = &trainers[0][0];
    ut_session_memory m = {&t->submissions, &t->completions, t->arena, ARENA, 2, 0};
    uint32_t session;
    CHECK_EQ(ut_engine_session_add(hosts[0].engine, 0, &m, 0, &session), UT_ERR_ARGUMENT);
    m.place = 1;
    CHECK_EQ(ut_engine_session_add(hosts[0].engine, 0, &m, 0, &session), UT_OK);
    CHECK_EQ(ut_engine_session_add(hosts[0].engine, 0, &m, 0, &session), UT_ERR_EXISTS);
    ut_engine_session_remove(hosts[0].engine, session, now);
    CHECK_EQ(ut_engine_session_add(hosts[0].engine, 0, &m, 0, &session), UT_OK);
    end();
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(one_host__all_ranks_are_in);
    RUN(one_host__a_rank_alone_is_all_there_is);
    RUN(one_host__one_gone_and_one_late);
    RUN(one_host__one_of_three_is_gone);
    RUN(one_host__a_rank_that_called_and_left);
    RUN(hosts__tell_each_other_which_of_their_ranks_are_in);
    RUN(hosts__that_are_gone_have_taken_all_their_ranks);
    RUN(late__ranks_of_a_host_that_is_alone_have_all_of_the_time);
    RUN(late__ranks_of_several_hosts_have_what_the_network_does_not_need);
    RUN(late__ranks_in_the_first_op_have_nearly_all_of_a_long_time);
    RUN(late__ranks_where_nobody_named_a_deadline);
    RUN(sums__of_one_host_or_two_have_the_same_bits_whoever_calls_first);
    RUN(places__are_taken_once);
    return check_end();
}
