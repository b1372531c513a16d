/* SPDX-License-Identifier: Apache-2.0
 *
 * How much memory a job asks for, and that one that is alone on its host gets along without what others need: every
 * algorithm, type, collective and mode, with all its ranks and with one that does not call or dies. Whatever would
 * touch memory that was not asked for, the sanitizer shows.
 */
#include "crew.h"

static uint64_t job_bytes(uint32_t hosts_, uint32_t places, ut_job_options options, uint64_t bucket)
{
    const ut_engine_config engine = {.packet_bytes = 1472, .segments_max = 1, .receive_buffer = 8 << 20};
    const ut_job_config job = {.hosts = hosts_,
                               .local_ranks = places,
                               .packet_bytes = 1472,
                               .world = hosts_ * places,
                               .bucket_bytes_max = bucket,
                               .options = options};
    return ut_job_bytes(&engine, &job);
}

/* Eighths of a bucket in each of the four places of ops, which grow with the bucket: the state of its slots is far less
 * than one. */
static uint64_t eighths(uint32_t hosts_, uint32_t places, ut_job_options options)
{
    const uint64_t less = (uint64_t)64 << 20, more = (uint64_t)320 << 20;
    const uint64_t grown = job_bytes(hosts_, places, options, more) - job_bytes(hosts_, places, options, less);
    CHECK(UT_OPS_MAX == 4 && 2 * (2 * grown % (more - less)) < more - less);
    return 2 * grown / (more - less);
}

static void memory__is_what_can_be_touched(void)
{
    static const struct {
        uint32_t hosts, places;
        uint8_t algorithm, policy;
        uint64_t eighths;
        uint8_t deterministic;
    } rows[] = {
        {1, 1, UT_TAR, UT_POLICY_NONE, 0, 0},           /* the trainer's own buffers are all there is */
        {1, 4, UT_TAR, UT_POLICY_NONE, 8, 0},           /* what its ranks have given together */
        {1, 1, UT_TAR, UT_POLICY_SOLO, 8, 0},           /* the result, until all have fetched it */
        {1, 4, UT_RING, UT_POLICY_NONE, 8, 0},          /* */
        {2, 1, UT_TAR, UT_POLICY_NONE, 16 + 11, 0},     /* floats of halves, and the bucket transformed, or as blocks */
        {2, 4, UT_TAR, UT_POLICY_NONE, 16 + 11 + 8, 0}, /* */
        {2, 1, UT_TAR, UT_POLICY_SOLO, 32 + 8, 0},      /* with what gifts become in few bits */
        {2, 1, UT_TAR, UT_POLICY_CODED, 32, 0},         /* */
        {2, 1, UT_RING, UT_POLICY_NONE, 16, 0},         /* which is TAR's alone */
        {8, 1, UT_PS, UT_POLICY_NONE, 16, 0},           /* */
        /* Deterministic: no blocks; of three hosts and more, what comes is kept until a shard is folded. */
        {2, 1, UT_TAR, UT_POLICY_NONE, 16 + 8, UT_DETERMINISTIC_YES},
        {3, 1, UT_TAR, UT_POLICY_NONE, 16 + 8 + 8, UT_DETERMINISTIC_YES},
        {8, 1, UT_TAR, UT_POLICY_NONE, 16 + 8 + 8, UT_DETERMINISTIC_YES},
        {8, 1, UT_RING, UT_POLICY_NONE, 16 + 8, UT_DETERMINISTIC_YES},
        {8, 1, UT_PS, UT_POLICY_NONE, 16 + 7 * 8, UT_DETERMINISTIC_YES}, /* on the server */
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ut_job_options options = {
            .algorithm = rows[i].algorithm, .policy = rows[i].policy, .deterministic = rows[i].deterministic};
        CHECK_MSG(eighths(rows[i].hosts, rows[i].places, options) == rows[i].eighths, "row %zu", i);
    }
}

static const uint8_t dtypes[] = {UT_FLOAT32, UT_FLOAT64, UT_FLOAT16, UT_BFLOAT16};
static const uint8_t collectives[] = {UT_ALLREDUCE, UT_REDUCE_SCATTER, UT_ALL_GATHER,
                                      UT_BROADCAST, UT_ALL_TO_ALL,     UT_BARRIER};

/* Ones, in any of the types. */
static void fill(uint8_t *at, uint8_t dtype)
{
    for (uint32_t i = 0; i < elements; i++) {
        if (dtype == UT_FLOAT32)
            ((float *)(void *)at)[i] = 1;
        else if (dtype == UT_FLOAT64)
            ((double *)(void *)at)[i] = 1;
        else
            ((uint16_t *)(void *)at)[i] = dtype == UT_FLOAT16 ? 0x3c00 : 0x3f80;
    }
}

static void submit_one(uint32_t place, uint8_t collective, uint8_t dtype, uint8_t mode, bool in_place)
{
    ut_submission s = words(0, 0);
    struct trainer *t = &trainers[0][place];
    bool reduces = collective == UT_ALLREDUCE || collective == UT_REDUCE_SCATTER;
    s.collective = collective;
    s.dtype = collective == UT_BARRIER ? UT_BYTES : dtype;
    s.redop = reduces ? UT_AVG : 0;
    s.mode = mode;
    s.count = collective == UT_BARRIER ? 0 : elements;
    s.alike.note = collective == UT_BARRIER ? 7 : 0;
    s.src = 0;
    s.dst = in_place ? 0 : BUFFER;
    fill(t->arena, dtype);
    memset(t->arena + BUFFER, 0, BUFFER);
    submit(0, place, s);
}

static void check_one(uint32_t place, uint8_t collective, uint8_t dtype, bool in_place)
{
    static uint8_t ones[BUFFER] __attribute__((aligned(64)));
    const ut_receipt r = receipt_at(0, place);
    CHECK_MSG(r.status == UT_COMPLETE, "collective %u, type %u: status %u, error %d", collective, dtype, r.status,
              r.error);
    fill(ones, dtype);
    if (collective != UT_BARRIER)
        CHECK(memcmp(trainers[0][place].arena + (in_place ? 0 : BUFFER), ones, elements * ut_dtype_bytes(dtype)) == 0);
}

static void ops__of_every_kind(void)
{
    for (uint8_t algorithm = UT_TAR; algorithm < UT_ALGORITHMS_END; algorithm++)
        for (uint32_t places = 1; places <= PLACES; places++) {
            begin(1, places, (ut_job_options){.algorithm = algorithm, .hadamard = UT_HADAMARD_ON});
            for (size_t d = 0; d < sizeof dtypes; d++)
                for (size_t c = 0; c < (places == 1 ? sizeof collectives : 1); c++)
                    for (uint8_t mode = UT_BOUNDED; mode < UT_MODES_END; mode++) {
                        if (collectives[c] != UT_ALLREDUCE && mode != UT_RELIABLE)
                            continue; /* the others are reliable */
                        bool moves = collectives[c] == UT_ALL_TO_ALL;
                        bool in_place = collectives[c] == UT_BROADCAST || (!moves && check_below(2));
                        for (uint32_t p = 0; p < places; p++)
                            submit_one(p, collectives[c], dtypes[d], mode, in_place);
                        run(UT_MS);
                        for (uint32_t p = 0; p < places; p++)
                            check_one(p, collectives[c], dtypes[d], in_place);
                    }
            end();
        }
}

static void ops__without_a_rank_that_does_not_call_or_dies(void)
{
    begin(1, 2, (ut_job_options){0});
    for (size_t d = 0; d < sizeof dtypes; d++) {
        submit_one(0, UT_ALLREDUCE, dtypes[d], UT_BOUNDED, true);
        run(2 * UT_SECOND);
        const ut_receipt r = receipt_at(0, 0);
        CHECK_EQ(r.status, UT_INSUFFICIENT);
        CHECK_EQ(r.weight_min, 1);
        submit_one(1, UT_ALLREDUCE, dtypes[d], UT_BOUNDED, true); /* too late, for an op that has ended */
        run(UT_MS);
        receipt_at(0, 1);
    }
    submit_one(0, UT_ALLREDUCE, UT_FLOAT16, UT_BOUNDED, true);
    ut_engine_session_remove(hosts[0].engine, trainers[0][1].session, now);
    run(2 * UT_SECOND);
    CHECK_EQ(receipt_at(0, 0).status, UT_INSUFFICIENT);
    end();
}

static void slots__and_a_trainer_that_dies(void)
{
    for (uint8_t policy = UT_POLICY_FULL; policy <= UT_POLICY_SEEDED; policy++) {
        begin(1, 2, (ut_job_options){.policy = policy, .policy_seed = 9, .quorum = 1, .probes = 2});
        uint64_t next = 0;
        for (size_t d = 0; d < sizeof dtypes; d++) {
            for (uint32_t p = 0; p < 2; p++) {
                ut_submission s = words(next, UT_SUBMIT_GIVE);
                s.dtype = dtypes[d];
                fill(trainers[0][p].arena, dtypes[d]);
                submit(0, p, s);
            }
            if (policy == UT_POLICY_PROBE)
                ut_engine_activate(hosts[0].engine, 0, next, now);
            run(2 * UT_SECOND);
            for (uint32_t p = 0; p < 2; p++)
                receipt_at(0, p);
            next = ut_engine_next_op_seq(hosts[0].engine, 0);
        }
        CHECK(next >= sizeof dtypes);
        give_as(0, 0, 1, words(next, 0));
        ut_engine_session_remove(hosts[0].engine, trainers[0][0].session, now);
        run(2 * UT_SECOND);
        end();
    }
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(memory__is_what_can_be_touched);
    RUN(ops__of_every_kind);
    RUN(ops__without_a_rank_that_does_not_call_or_dies);
    RUN(slots__and_a_trainer_that_dies);
    return check_end();
}
