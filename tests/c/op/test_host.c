/* SPDX-License-Identifier: Apache-2.0
 *
 * A job without an engine: this test is its host (core/base/host.h), hands it calls, and reads what it asks and tells.
 */
#include "check.h"

#include "core/op/op.h"

enum { ELEMENTS = 1000, RANKS = 2 };

/* What the job has asked for and told. */
static struct {
    uint32_t to_call;  /* answer to sessions_due */
    uint64_t next;     /* answer to next_call */
    bool others_wait;  /* answer to anyone_waits */
    unsigned receipts; /* that came; the newest for each session */
    ut_receipt receipt[RANKS];
    unsigned events;
    ut_event event; /* the newest */
    unsigned rooms;
} seen;
static ut_stats counters;
static ut_work turn;
static float mine[RANKS][ELEMENTS], result[RANKS][ELEMENTS];

static void complete(void *context, uint32_t session, const ut_receipt *receipt)
{
    CHECK(context == &seen && session < RANKS);
    seen.receipt[session] = *receipt;
    seen.receipts++;
}

static void emit(void *context, const ut_event *event)
{
    CHECK(context == &seen);
    seen.event = *event;
    seen.events++;
}

static void tell(void *context, uint32_t session, uint64_t taken, uint64_t freed, uint64_t results)
{
    (void)context, (void)session, (void)taken, (void)freed, (void)results;
    CHECK(!"an ordinary job has no words for a slot");
}

static void room(void *context)
{
    CHECK(context == &seen);
    seen.rooms++;
}

static uint32_t sessions_due(void *context, uint32_t job, uint64_t seq)
{
    CHECK(context == &seen && job == 3);
    (void)seq;
    return seen.to_call;
}

static uint64_t next_call(void *context, uint32_t job)
{
    CHECK(context == &seen && job == 3);
    return seen.next;
}

static uint32_t place_of(void *context, uint32_t session)
{
    CHECK(context == &seen && session < RANKS);
    return session;
}

static bool anyone_waits(void *context, uint32_t job)
{
    CHECK(context == &seen && job == 3);
    return seen.others_wait;
}

static const ut_host fake = {.context = &seen,
                             .counters = &counters,
                             .turn = &turn,
                             .segments_max = 8,
                             .complete = complete,
                             .emit = emit,
                             .tell = tell,
                             .room = room,
                             .sessions_due = sessions_due,
                             .next_call = next_call,
                             .place_of = place_of,
                             .anyone_waits = anyone_waits};

/* A job of one host with RANKS ranks. The memory is the caller's to free. */
static ut_job *job_of(void **ret_memory)
{
    ut_job_config config = {
        .hosts = 1, .local_ranks = RANKS, .world = RANKS, .packet_bytes = 1472, .bucket_bytes_max = sizeof mine[0]};
    ut_carver count = {NULL, 0};
    (void)ut_job_lay_out(&count, &config, 1 << 20, &ut_gathering_ordinary);
    *ret_memory = aligned_alloc(64, (count.used + 63) & ~(size_t)63);
    memset(*ret_memory, 0, count.used);
    ut_carver carver = {*ret_memory, 0};
    ut_job *j = ut_job_lay_out(&carver, &config, 1 << 20, &ut_gathering_ordinary);
    CHECK_EQ(carver.used, count.used);
    ut_job_init(j, 3, &config, &fake);
    memset(&seen, 0, sizeof seen);
    memset(&counters, 0, sizeof counters);
    turn = (ut_work){0};
    ut_work_begin_turn(&turn);
    for (unsigned r = 0; r < RANKS; r++)
        for (unsigned i = 0; i < ELEMENTS; i++)
            mine[r][i] = (float)(i * (r + 1));
    return j;
}

static void call(ut_job *j, uint32_t rank, uint8_t mode, ut_ns deadline, ut_ns now)
{
    ut_submission s = {
        .count = ELEMENTS, .deadline_ns = deadline, .dtype = UT_FLOAT32, .redop = UT_AVG, .mode = mode, .op_seq = 0};
    ut_op_call(j, rank, &s, (const uint8_t *)mine[rank], (uint8_t *)result[rank], now);
}

static void op__waits_for_whom_its_host_names_and_answers_all(void)
{
    void *memory;
    ut_job *j = job_of(&memory);
    seen.to_call = 1;
    call(j, 0, UT_BOUNDED, UT_NEVER, UT_SECOND);
    CHECK_EQ(j->op[0].state, UT_OP_GATHERING);
    CHECK_EQ(seen.receipts, 0);
    seen.to_call = 0;
    call(j, 1, UT_BOUNDED, UT_NEVER, 2 * UT_SECOND);
    CHECK_EQ(seen.receipts, RANKS);
    for (unsigned r = 0; r < RANKS; r++) {
        CHECK_EQ(seen.receipt[r].status, UT_COMPLETE);
        CHECK_EQ(seen.receipt[r].elapsed_ns, UT_SECOND);
        CHECK_EQ(seen.receipt[r].weight_min, RANKS);
        CHECK_DOUBLE(result[r][ELEMENTS - 1], 1.5 * (ELEMENTS - 1));
    }
    CHECK_EQ(seen.event.kind, UT_EVENT_OP_DONE);
    CHECK_EQ(seen.event.job, 3);
    CHECK_EQ(seen.events, 1);
    CHECK_EQ(counters.ops_complete, 1);
    CHECK(seen.rooms > 0);
    free(memory);
}

static void op__goes_on_only_as_far_as_its_host_lets_a_turn_go(void)
{
    void *memory;
    ut_job *j = job_of(&memory);
    turn.left = -(int64_t)UT_TURN_BYTES; /* used up, and overdrawn as far as may be */
    call(j, 0, UT_BOUNDED, UT_NEVER, UT_SECOND);
    CHECK_EQ(j->op[0].state, UT_OP_ENDING);
    CHECK_EQ(seen.receipts, 0);
    CHECK(turn.waits);
    for (unsigned i = 0; i < 3 && seen.receipts == 0; i++) {
        ut_work_begin_turn(&turn);
        if (ut_op_has_work(&j->op[0]))
            ut_op_work_on(j, &j->op[0], UT_SECOND);
    }
    CHECK_EQ(seen.receipts, 1);
    free(memory);
}

static void op__whose_ranks_do_not_come_fails_at_its_deadline(void)
{
    void *memory;
    ut_job *j = job_of(&memory);
    seen.to_call = 1;
    call(j, 0, UT_RELIABLE, 5 * UT_SECOND, UT_SECOND);
    ut_ns wake = ut_op_next_wake(j, &j->op[0]);
    CHECK_EQ(wake, 5 * UT_SECOND);
    ut_op_tick(j, &j->op[0], wake);
    CHECK_EQ(seen.receipts, 1);
    CHECK_EQ(seen.receipt[0].status, UT_FAILED);
    CHECK_EQ(seen.receipt[0].error, UT_ERR_TIMEOUT);
    CHECK_EQ(counters.ops_failed, 1);
    free(memory);
}

static void op__of_a_rank_that_was_refused_is_left_out(void)
{
    void *memory;
    ut_job *j = job_of(&memory);
    seen.next = 0;
    ut_op_skip(j, 0, UT_SECOND); /* another rank may still call it */
    CHECK_EQ(j->next_open, 0);
    seen.next = 1;
    ut_op_skip(j, 0, UT_SECOND);
    CHECK_EQ(j->next_open, 1);
    free(memory);
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(op__waits_for_whom_its_host_names_and_answers_all);
    RUN(op__goes_on_only_as_far_as_its_host_lets_a_turn_go);
    RUN(op__whose_ranks_do_not_come_fails_at_its_deadline);
    RUN(op__of_a_rank_that_was_refused_is_left_out);
    return check_end();
}
