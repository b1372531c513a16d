/* SPDX-License-Identifier: Apache-2.0
 *
 * What trainers ask for: what is refused and with which error, that a refused call uses its number up unless the number
 * was wrong, and that a call for which there is no room yet waits outside of the ring and keeps its deadline.
 */
#include "engines.h"

#include "core/face/engine_impl.h"

enum { BYTES = ELEMENTS * 8, COUNT = 100 };

static uint64_t next_seq;

static void alone(ut_job_options options)
{
    n = 1;
    now = 7 * UT_SECOND;
    silent = loss_ppm = late_ppm = 0;
    change = NULL;
    cipher = NULL;
    next_seq = 0;
    born(0, options, 0);
}

static ut_submission good(void)
{
    return (ut_submission){.op_seq = next_seq,
                           .src = 0,
                           .dst = 0,
                           .count = COUNT,
                           .deadline_ns = now + UT_SECOND,
                           .dtype = UT_FLOAT32,
                           .redop = UT_SUM,
                           .mode = UT_RELIABLE};
}

/* What becomes of |s|: its error, or 0. */
static int asked(const ut_submission *s)
{
    CHECK_EQ(ut_ring_submit(&hosts[0].submissions, &hosts[0].completions, s), UT_OK);
    ut_engine_submissions(hosts[0].engine, hosts[0].session, now);
    run(now + UT_MS);
    ut_receipt r = receipt(0);
    CHECK_EQ(r.op_seq, s->op_seq);
    CHECK_EQ(r.status, r.error ? UT_FAILED : UT_COMPLETE);
    next_seq += r.error != UT_ERR_SEQUENCE;
    return r.error;
}

/* A good request but for |field_|, and after it a good one, which must not suffer from it. */
#define ASK(field_, value_, error_)                                                                                    \
    do {                                                                                                               \
        ut_submission s_ = good();                                                                                     \
        s_.field_ = (__typeof__(s_.field_))(value_);                                                                   \
        int found_ = asked(&s_);                                                                                       \
        CHECK_MSG(found_ == (error_), #field_ " = %" PRIu64 ": error %d, want %d", (uint64_t)(value_), found_,         \
                  (int)(error_));                                                                                      \
        s_ = good();                                                                                                   \
        CHECK_EQ(asked(&s_), UT_OK);                                                                                   \
    } while (0)

static void submit__each_field_has_its_error(void)
{
    alone((ut_job_options){0});
    ASK(op_seq, next_seq + 1, UT_ERR_SEQUENCE);
    ASK(op_seq, UINT64_MAX, UT_ERR_SEQUENCE);
    ASK(dtype, 0, UT_ERR_DTYPE);
    ASK(dtype, UT_DTYPES_END, UT_ERR_DTYPE);
    ASK(redop, 0, UT_ERR_REDOP);
    ASK(redop, UT_REDOPS_END, UT_ERR_REDOP);
    ASK(mode, 0, UT_ERR_ARGUMENT);
    ASK(mode, UT_MODES_END, UT_ERR_ARGUMENT);
    ASK(portion, 0x21, UT_OK);
    ASK(portion, 0x22, UT_ERR_ARGUMENT);
    ASK(portion, 0x50, UT_ERR_ARGUMENT);
    ASK(skipped, 1, UT_ERR_SEQUENCE);
    ASK(skipped, 2, UT_ERR_ARGUMENT);
    ASK(flags, UT_SUBMIT_GIVE, UT_ERR_ARGUMENT);
    ASK(flags, UT_SUBMIT_NOWAIT, UT_ERR_ARGUMENT);
    ASK(flags, UT_SUBMIT_WEIGHTED, UT_ERR_REDOP);
    ASK(flags, UT_SUBMIT_AGREE | UT_SUBMIT_ADAPTIVE, UT_OK);
    ASK(wanted, 1, UT_ERR_ARGUMENT); /* words of partial jobs */
    ASK(oldest_step, 1, UT_ERR_ARGUMENT);
    ASK(newest_step, 1, UT_ERR_ARGUMENT);
    ASK(entries, 1, UT_ERR_ARGUMENT); /* words of other collectives */
    ASK(alike.root, 1, UT_ERR_ARGUMENT);
    ASK(alike.note, UINT64_MAX, UT_ERR_ARGUMENT);
    ASK(rounding, 1, UT_ERR_ARGUMENT);
    ASK(collective, UT_ALLREDUCE_QUANT + 1, UT_ERR_REDOP); /* what does not reduce has no reduction */
    ASK(count, 0, UT_OK);
    ASK(count, BYTES / 4, UT_OK);
    ASK(count, BYTES / 4 + 1, UT_ERR_TOO_LARGE);
    ASK(count, UINT64_MAX, UT_ERR_TOO_LARGE);
    ut_stats stats;
    ut_engine_stats(hosts[0].engine, &stats);
    CHECK_EQ(stats.bad_submissions, 25);
    end();
}

/* Numbers that a rank leaves out, singly, are used up without an answer; the ring counts them not. */
/* The last number of all, and the first that no packet has room for: such a call is refused, and none comes round. */
static void submit__ends_with_the_last_number(void)
{
    alone((ut_job_options){0});
    hosts[0].engine->session[hosts[0].session].next_seq = next_seq = UT_OP_SEQ_MAX;
    hosts[0].engine->job[0]->next_open = UT_OP_SEQ_MAX;
    ut_submission s = good();
    CHECK_EQ(asked(&s), UT_OK);
    for (unsigned again = 0; again < 2; again++) {
        s = good();
        CHECK_EQ(asked(&s), UT_ERR_FULL);
    }
    end();
}

static void submit__skips_a_number(void)
{
    alone((ut_job_options){0});
    for (unsigned i = 0; i < 3 * UT_RING_ENTRIES; i++) {
        ut_submission s = good();
        s.op_seq = ++next_seq; /* `good` would be the one before */
        s.skipped = 1;
        s.count = i % 7 ? COUNT : BYTES; /* too large: refused, and its number is used up as well */
        CHECK_EQ(asked(&s), i % 7 ? UT_OK : UT_ERR_TOO_LARGE);
    }
    for (unsigned i = 0; i < UT_RING_ENTRIES; i++) { /* as many as the ring holds at once */
        ut_submission s = good();
        s.op_seq = next_seq + 2 * i + 1;
        s.skipped = 1;
        CHECK_EQ(ut_ring_submit(&hosts[0].submissions, &hosts[0].completions, &s), UT_OK);
    }
    ut_engine_submissions(hosts[0].engine, hosts[0].session, now);
    run(now + UT_MS);
    for (unsigned i = 0; i < UT_RING_ENTRIES; i++)
        CHECK_EQ(receipt(0).op_seq, next_seq + 2 * i + 1);
    next_seq += 2 * UT_RING_ENTRIES;
    ut_submission s = good();
    CHECK_EQ(asked(&s), UT_OK);
    end();
}

static void submit__buffers_lie_in_the_arena_apart_or_alike(void)
{
    static const struct {
        uint64_t src, dst;
        int error;
    } rows[] = {
        {0, 400, UT_OK},
        {400, 0, UT_OK},
        {ARENA - 400, 0, UT_OK},
        {ARENA - 396, 0, UT_ERR_RANGE},
        {0, ARENA - 396, UT_ERR_RANGE},
        {UINT64_MAX - 3, 0, UT_ERR_RANGE},
        {ARENA, ARENA, UT_ERR_RANGE},
        {2, 400, UT_ERR_RANGE}, /* not aligned */
        {0, 402, UT_ERR_RANGE},
        {0, 396, UT_ERR_RANGE}, /* they overlap */
        {396, 0, UT_ERR_RANGE},
    };
    alone((ut_job_options){0});
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ut_submission s = good();
        s.src = rows[i].src, s.dst = rows[i].dst;
        int error = asked(&s);
        CHECK_MSG(error == rows[i].error, "row %zu: error %d, want %d", i, error, rows[i].error);
    }
    ut_submission s = good(); /* nothing lies at the end, and it is in the arena */
    s.count = 0, s.src = s.dst = ARENA;
    CHECK_EQ(asked(&s), UT_OK);
    end();
}

/* Integers cannot lack a part of a sum, and what is no sum cannot lack a rank. */
static void submit__what_wants_the_reliable_mode(void)
{
    alone((ut_job_options){0});
    for (unsigned mode = 1; mode < UT_MODES_END; mode++)
        for (unsigned redop = 1; redop < UT_REDOPS_END; redop++)
            for (unsigned dtype = 1; dtype < UT_DTYPES_END; dtype++) {
                ut_submission s = good();
                s.mode = (uint8_t)mode, s.redop = (uint8_t)redop, s.dtype = (uint8_t)dtype;
                bool whole = dtype == UT_INT32 || dtype == UT_INT64;
                bool sum = redop == UT_SUM || redop == UT_AVG;
                int want = mode == UT_BEST_EFFORT && whole ? UT_ERR_DTYPE
                           : !sum && mode != UT_RELIABLE   ? UT_ERR_REDOP
                                                           : UT_OK;
                int error = asked(&s);
                CHECK_MSG(error == want, "mode %u, op %u, dtype %u: error %d, want %d", mode, redop, dtype, error,
                          want);
            }
    end();
}

/* A partial job has words of its own, and none of the collectives. */
static void submit__partial_jobs_speak_their_own_words(void)
{
    alone((ut_job_options){.policy = UT_POLICY_SOLO});
    static const struct {
        uint8_t flags;
        int error;
    } rows[] = {
        {UT_SUBMIT_GIVE, UT_OK},
        {UT_SUBMIT_GIVE | UT_SUBMIT_WORLD, UT_OK},
        {UT_SUBMIT_REPLACE, UT_ERR_ARGUMENT}, /* of what is not given */
        {UT_SUBMIT_STICKY, UT_ERR_ARGUMENT},
        {UT_SUBMIT_GIVE | UT_SUBMIT_AGREE, UT_ERR_ARGUMENT},
        {UT_SUBMIT_GIVE | UT_SUBMIT_STICKY, UT_ERR_RANGE}, /* in place, where the answer would overwrite it */
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ut_submission s = good();
        s.mode = UT_BOUNDED, s.flags = rows[i].flags, s.wanted = i;
        CHECK_EQ(ut_ring_submit(&hosts[0].submissions, &hosts[0].completions, &s), UT_OK);
        ut_engine_submissions(hosts[0].engine, hosts[0].session, now);
        run(now + 10 * UT_MS);
        ut_receipt r;
        CHECK_EQ(ut_ring_take_completion(&hosts[0].submissions, &hosts[0].completions, &r), 1);
        CHECK_MSG(r.error == rows[i].error, "row %zu: error %d, want %d", i, r.error, rows[i].error);
        next_seq++;
    }
    end();
}

/* Four ops are open and nobody answers them: what comes then leaves the ring at once, and ends by its own deadline. */
static void submit__a_call_that_waits_for_room_has_its_deadline(void)
{
    static const uint8_t tar[2] = {UT_TAR, UT_TAR};
    n = 2;
    next_seq = 0;
    begin(tar);
    silent = 1U << 1;
    for (unsigned i = 0; i < UT_OPS_MAX + 2; i++, next_seq++) {
        ut_submission s = good();
        s.mode = UT_BOUNDED;
        s.deadline_ns = now + (i < UT_OPS_MAX ? UT_SECOND : 50 * UT_MS);
        CHECK_EQ(ut_ring_submit(&hosts[0].submissions, &hosts[0].completions, &s), UT_OK);
        ut_engine_submissions(hosts[0].engine, hosts[0].session, now);
    }
    CHECK_EQ(hosts[0].completions.submissions_taken, UT_OPS_MAX + 2);
    CHECK(ut_engine_anyone_waits(hosts[0].engine, 0));
    CHECK_EQ(ut_engine_next_call(hosts[0].engine, 0), UT_OPS_MAX);
    CHECK_EQ(ut_engine_sessions_due(hosts[0].engine, 0, UT_OPS_MAX - 1), 0);
    CHECK_EQ(ut_engine_sessions_due(hosts[0].engine, 0, UT_OPS_MAX), 1);
    ut_ns asked_at = now;
    run(now + 60 * UT_MS);
    for (unsigned i = 0; i < 2; i++) {
        ut_receipt r = receipt(0);
        CHECK_EQ(r.op_seq, UT_OPS_MAX + i);
        CHECK_EQ(r.status, UT_INSUFFICIENT);
    }
    CHECK(now < asked_at + UT_SECOND);
    end();
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(submit__each_field_has_its_error);
    RUN(submit__ends_with_the_last_number);
    RUN(submit__skips_a_number);
    RUN(submit__buffers_lie_in_the_arena_apart_or_alike);
    RUN(submit__what_wants_the_reliable_mode);
    RUN(submit__partial_jobs_speak_their_own_words);
    RUN(submit__a_call_that_waits_for_room_has_its_deadline);
    return check_end();
}
