/* SPDX-License-Identifier: Apache-2.0
 *
 * What a shell may ask for: each range at its ends and one beyond them, one field after the other in a configuration
 * that is right but for it, and what does not go together.
 */
#include "check.h"

#include "core/face/engine_impl.h"

#include <time.h>

static ut_engine_config engine = {.packet_bytes = 1472, .segments_max = 8, .receive_buffer = 1 << 20};

static ut_job_config job(void)
{
    return (ut_job_config){
        .hosts = 4, .self = 1, .local_ranks = 2, .packet_bytes = 1472, .world = 8, .bucket_bytes_max = 1 << 20};
}

/* |field_| of |base_| may be |value_| exactly if |right_|. */
#define MAY_BE(valid_, base_, field_, value_, right_)                                                                  \
    do {                                                                                                               \
        __typeof__(base_) x = (base_);                                                                                 \
        x.field_ = (__typeof__(x.field_))(value_);                                                                     \
        CHECK_MSG((valid_) == (right_), #field_ " = %" PRIu64 ": want %d", (uint64_t)(value_), (int)(right_));         \
    } while (0)
#define ENGINE(field_, value_, right_) MAY_BE(ut_engine_config_valid(&x), engine, field_, value_, right_)
#define JOB(field_, value_, right_) MAY_BE(ut_job_config_valid(&engine, &x), job(), field_, value_, right_)
#define OPTION(field_, value_, right_) JOB(options.field_, value_, right_)

static void engine__packets_bursts_buffers_and_lanes(void)
{
    ENGINE(packet_bytes, UT_PACKET_MIN, true);
    ENGINE(packet_bytes, UT_PACKET_MIN - 8, false);
    ENGINE(packet_bytes, 1471, false); /* no whole number of doubles */
    ENGINE(packet_bytes, 8184, true);
    ENGINE(packet_bytes, 8192, false); /* eight are more than a burst holds */
    ENGINE(segments_max, 0, false);
    ENGINE(segments_max, 44, true);
    ENGINE(segments_max, 45, false);
    ENGINE(receive_buffer, UT_RECEIVE_BUFFER_MIN, true);
    ENGINE(receive_buffer, UT_RECEIVE_BUFFER_MIN - 1, false);
    ENGINE(lane, UT_LANES_MAX - 1, true);
    ENGINE(lane, UT_LANES_MAX, false);
    ut_engine_config x = engine;
    x.packet_bytes = UT_PACKET_MAX, x.segments_max = 1;
    CHECK(ut_engine_config_valid(&x));
    x.packet_bytes += 8;
    CHECK(!ut_engine_config_valid(&x));
    x.packet_bytes = UT_PACKET_MIN, x.segments_max = UT_SEGMENTS_MAX;
    CHECK(ut_engine_config_valid(&x));
    x.segments_max++;
    CHECK(!ut_engine_config_valid(&x));
}

static void job__hosts_packets_and_buckets(void)
{
    JOB(self, 3, true);
    JOB(self, 4, false);
    JOB(hosts, 0, false);
    JOB(hosts, 5, true);
    JOB(hosts, UT_HOSTS_MAX + 1, false);
    JOB(packet_bytes, 96, true);
    JOB(packet_bytes, 1480, false); /* more than the engine's */
    JOB(packet_bytes, 1000, true);
    JOB(packet_bytes, 1004, false);
    JOB(bucket_bytes_max, 0, false);
    JOB(bucket_bytes_max, 1, true);
    JOB(bucket_bytes_max, UT_BUCKET_MAX, true);
    JOB(bucket_bytes_max, (uint64_t)UT_BUCKET_MAX + 1, false);
    ut_job_config most = job();
    most.hosts = UT_HOSTS_MAX, most.local_ranks = UT_LOCAL_MAX, most.world = UT_HOSTS_MAX * UT_LOCAL_MAX;
    CHECK(ut_job_config_valid(&engine, &most));
    most.world++;
    CHECK(!ut_job_config_valid(&engine, &most));
}

/* A cipher takes its tag out of the packet. */
static void job__what_a_cipher_adds(void)
{
    ut_cipher cipher = {.overhead = 16};
    ut_job_config x = job();
    x.cipher = &cipher;
    x.packet_bytes = UT_PACKET_MIN + 16;
    CHECK(ut_job_config_valid(&engine, &x));
    x.packet_bytes -= 8;
    CHECK(!ut_job_config_valid(&engine, &x));
    x.packet_bytes = 1472;
    static const struct {
        uint32_t overhead;
        bool right;
    } rows[] = {{UT_SEAL_OVERHEAD_MAX, true}, {UT_SEAL_OVERHEAD_MAX + 8, false}, {12, false}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        cipher.overhead = rows[i].overhead;
        CHECK_MSG(ut_job_config_valid(&engine, &x) == rows[i].right, "overhead %u", rows[i].overhead);
    }
}

/* Each host has a rank at least and UT_LOCAL_MAX at most, whether all are told or only this host's. */
static void job__ranks_of_hosts_add_up(void)
{
    JOB(local_ranks, 0, false);
    JOB(local_ranks, 1, true);
    JOB(local_ranks, 5, true); /* 5, 1, 1, 1 */
    JOB(local_ranks, 6, false);
    JOB(world, 3, false);
    JOB(world, 5, true);
    JOB(world, 4, false); /* two here, and three hosts for the two others */
    JOB(world, 2 + 3 * UT_LOCAL_MAX, true);
    JOB(world, 2 + 3 * UT_LOCAL_MAX + 1, false);
    JOB(world, 0, false); /* one a host, and here are two */
    static const struct {
        uint8_t of[4];
        bool right;
    } rows[] = {{{1, 2, 3, 2}, true},
                {{2, 2, 2, 2}, true},
                {{1, 2, 3, 3}, false},
                {{3, 1, 2, 2}, false},
                {{0, 2, 3, 3}, false}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ut_job_config x = job();
        memcpy(x.ranks_of, rows[i].of, sizeof rows[i].of);
        CHECK_MSG(ut_job_config_valid(&engine, &x) == rows[i].right, "row %zu", i);
    }
    ut_job_config x = job();
    x.world = 23;
    memcpy(x.ranks_of, (uint8_t[]){16, 2, 4, 1}, 4);
    CHECK(ut_job_config_valid(&engine, &x));
    memcpy(x.ranks_of, (uint8_t[]){17, 2, 3, 1}, 4);
    CHECK(!ut_job_config_valid(&engine, &x));
}

static void options__end_where_their_numbers_do(void)
{
    OPTION(algorithm, UT_ALGORITHMS_END - 1, true);
    OPTION(algorithm, UT_ALGORITHMS_END, false);
    OPTION(congestion, UT_CC_END - 1, true);
    OPTION(congestion, UT_CC_END, false);
    OPTION(hadamard, UT_HADAMARD_END - 1, true);
    OPTION(hadamard, UT_HADAMARD_END, false);
    OPTION(timer_start, UT_TIMER_END - 1, true);
    OPTION(timer_start, UT_TIMER_END, false);
    OPTION(split, UT_SPLIT_ALWAYS, true);
    OPTION(split, UT_SPLIT_END, false);
    OPTION(deterministic, UT_DETERMINISTIC_YES, true);
    OPTION(deterministic, UT_DETERMINISTIC_END, false);
    OPTION(policy, UT_POLICY_SEEDED, true);
    OPTION(policy, UT_POLICY_CODED, false); /* of four hosts with eight ranks */
    OPTION(policy, UT_POLICIES_END, false);
    OPTION(early_percent, 100, true);
    OPTION(early_percent, 101, false);
    OPTION(quorum, 8, true);
    OPTION(quorum, 9, false);
    OPTION(probes, 8, true);
    OPTION(probes, 9, false);
    OPTION(incast, 3, true); /* of three other hosts */
    OPTION(incast, 4, false);
    ut_job_config many = job();
    many.hosts = 32, many.world = 64;
    many.options.incast = UT_INCAST_MAX;
    CHECK(ut_job_config_valid(&engine, &many));
    many.options.incast++;
    CHECK(!ut_job_config_valid(&engine, &many));
    ut_job_config alone = {.hosts = 1, .local_ranks = 1, .packet_bytes = 1472, .bucket_bytes_max = 64};
    alone.options.incast = 1;
    CHECK(ut_job_config_valid(&engine, &alone));
}

/* A partial job is Transpose AllReduce without a transform: anything else forwards or mixes what may not be there. */
static void options__policies_and_what_they_exclude(void)
{
    for (unsigned policy = 0; policy <= UT_POLICY_SEEDED; policy++) {
        bool ordinary = policy <= UT_POLICY_NONE;
        for (unsigned algorithm = 0; algorithm < UT_ALGORITHMS_END; algorithm++) {
            ut_job_options o = {.policy = (uint8_t)policy, .algorithm = (uint8_t)algorithm};
            bool right = ordinary || algorithm == 0 || algorithm == UT_TAR;
            CHECK_MSG(ut_job_options_valid(&o, 4, 8) == right, "policy %u, algorithm %u", policy, algorithm);
        }
        for (unsigned split = 0; split < UT_SPLIT_END; split++) {
            ut_job_options o = {.policy = (uint8_t)policy, .split = (uint8_t)split};
            CHECK_MSG(ut_job_options_valid(&o, 4, 8) == (ordinary || split <= UT_SPLIT_AUTO), "split %u", split);
        }
        for (unsigned transform = 0; transform < UT_HADAMARD_END; transform++) {
            ut_job_options o = {.policy = (uint8_t)policy, .hadamard = (uint8_t)transform};
            bool right = ordinary || transform <= UT_HADAMARD_OFF;
            CHECK_MSG(ut_job_options_valid(&o, 4, 8) == right, "policy %u, hadamard %u", policy, transform);
        }
    }
}

/* What a deterministic job cannot be: what comes first decides which ranks are in an op, how a host of BCube adds, and
 * whether a transform is on that follows losses. */
static void options__what_the_order_of_arrival_decides(void)
{
    static const struct {
        ut_job_options options;
        bool right;
    } rows[] = {
        {{.algorithm = UT_TAR, .hadamard = UT_HADAMARD_ON}, true},
        {{.algorithm = UT_RING}, true},
        {{.algorithm = UT_PS}, true},
        {{.algorithm = UT_BCUBE}, false},
        {{.hadamard = UT_HADAMARD_AUTO}, false},
        {{.policy = UT_POLICY_FULL}, false},
        {{.policy = UT_POLICY_CODED, .stragglers = 1}, false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ut_job_options o = rows[i].options;
        CHECK_MSG(ut_job_options_valid(&o, 4, 4), "row %zu, as they come", i);
        o.deterministic = UT_DETERMINISTIC_NO;
        CHECK_MSG(ut_job_options_valid(&o, 4, 4), "row %zu, said to be so", i);
        o.deterministic = UT_DETERMINISTIC_YES;
        CHECK_MSG(ut_job_options_valid(&o, 4, 4) == rows[i].right, "row %zu", i);
    }
}

/* A coded job has one rank a host, whole groups, and what the core can decode. */
static void options__codes(void)
{
    static const struct {
        ut_job_options options;
        uint32_t hosts, world;
        bool right;
    } rows[] = {
        {{.policy = UT_POLICY_CODED, .stragglers = 1}, 4, 4, true},
        {{.policy = UT_POLICY_CODED, .stragglers = 3, .exact = UT_EXACT_NO}, 4, 4, true},
        {{.policy = UT_POLICY_CODED, .stragglers = 1}, 4, 8, false},
        {{.policy = UT_POLICY_CODED, .stragglers = 2}, 4, 4, false},
        {{.policy = UT_POLICY_CODED, .stragglers = 4}, 4, 4, false},
        {{.policy = UT_POLICY_CODED, .stragglers = 1, .children = 3}, 4, 4, false},
        {{.policy = UT_POLICY_CODED, .stragglers = 2, .children = 3}, 4, 4, true},
        {{.policy = UT_POLICY_CODED, .stragglers = 2, .children = 3}, 5, 5, false},
        {{.policy = UT_POLICY_CODED, .stragglers = 2, .children = 3, .exact = UT_EXACT_NO}, 4, 4, false},
        {{.policy = UT_POLICY_CODED, .stragglers = 2, .children = 3, .algorithm = UT_RING}, 4, 4, false},
        {{.policy = UT_POLICY_CODED, .stragglers = 1, .children = 3, .code = UT_CODE_LINEAR}, 13, 13, true},
        {{.policy = UT_POLICY_CODED, .stragglers = 3, .children = 3, .code = UT_CODE_LINEAR}, 13, 13, false},
        {{.policy = UT_POLICY_CODED, .stragglers = 1, .children = 2}, 63, 63, true},
        {{.policy = UT_POLICY_CODED, .stragglers = 1, .children = 2}, 64, 64, false},
        {{.policy = UT_POLICY_CODED, .children = 1}, 64, 64, true},
        {{.policy = UT_POLICY_CODED, .stragglers = 62, .children = 63}, 64, 64, true},
        {{.policy = UT_POLICY_CODED, .children = 1}, 1, 1, false},
        {{.policy = UT_POLICY_CODED, .children = 255}, 64, 64, false},
        {{.policy = UT_POLICY_SOLO, .children = 3}, 4, 4, false},
        {{.policy = UT_POLICY_CODED, .stragglers = 1, .code = UT_CODE_LINEAR}, 4, 4, true},
        {{.policy = UT_POLICY_CODED, .stragglers = 4, .code = UT_CODE_LINEAR}, 13, 13, true},
        {{.policy = UT_POLICY_CODED, .stragglers = 6, .code = UT_CODE_LINEAR}, 20, 20, false},
        {{.policy = UT_POLICY_CODED, .stragglers = 4, .code = UT_CODE_LINEAR}, 4, 4, false},
        {{.policy = UT_POLICY_CODED, .stragglers = 1, .code = UT_CODE_LINEAR}, 4, 8, false},
        {{.policy = UT_POLICY_CODED, .stragglers = 1, .code = UT_CODE_LINEAR, .exact = UT_EXACT_NO}, 4, 4, false},
        {{.policy = UT_POLICY_CODED, .stragglers = 1, .exact = UT_EXACT_END}, 4, 4, false},
        {{.policy = UT_POLICY_CODED, .stragglers = 1, .algorithm = UT_RING}, 4, 4, false},
        {{.policy = UT_POLICY_SOLO, .stragglers = 1}, 4, 4, false},
        {{.exact = UT_EXACT_NO}, 4, 4, false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        CHECK_MSG(ut_job_options_valid(&rows[i].options, rows[i].hosts, rows[i].world) == rows[i].right, "row %zu", i);
}

static uint64_t cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * UT_SECOND + (uint64_t)t.tv_nsec;
}

/* Each epoch has options, which are held against those that the job began with. Its code is among them, and has been
 * looked at: once more would take as long each time as the whole of this. */
static void follow__what_a_running_job_may_have_instead(void)
{
    const ut_job_options began = {.policy = UT_POLICY_CODED, .stragglers = 2, .code = UT_CODE_LINEAR};
    ut_job_options o = began, plain = {0}, solo = {.policy = UT_POLICY_SOLO};
    enum { HOSTS = 64, TIMES = 50 };
    const uint64_t from = cpu_ns();
    CHECK(ut_job_options_valid(&began, HOSTS, HOSTS));
    const uint64_t once = cpu_ns() - from;
    for (unsigned i = 0; i < TIMES; i++)
        CHECK(ut_job_options_follow(&began, &o, HOSTS, HOSTS));
    const uint64_t all = cpu_ns() - from - once;
    CHECK_MSG(all < once * TIMES / 2, "%d times %" PRIu64 " ns, once in full %" PRIu64 " ns", TIMES, all, once);
    o.congestion = UT_CC_END;
    CHECK(!ut_job_options_follow(&began, &o, HOSTS, HOSTS));
    o = began;
    o.early_percent = 101;
    CHECK(!ut_job_options_follow(&began, &o, HOSTS, HOSTS));
    CHECK(ut_job_options_follow(&plain, &plain, 4, 4));
    CHECK(!ut_job_options_follow(&plain, &solo, 4, 4));
    CHECK(!ut_job_options_follow(&solo, &plain, 4, 4));
    CHECK(!ut_job_options_follow(&solo, &(ut_job_options){.policy = UT_POLICY_CODED}, 4, 4));
    CHECK(ut_job_options_follow(&solo, &(ut_job_options){.policy = UT_POLICY_QUORUM, .quorum = 4}, 4, 4));
    CHECK(!ut_job_options_follow(&solo, &(ut_job_options){.policy = UT_POLICY_QUORUM, .quorum = 5}, 4, 4));
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(engine__packets_bursts_buffers_and_lanes);
    RUN(job__hosts_packets_and_buckets);
    RUN(job__what_a_cipher_adds);
    RUN(job__ranks_of_hosts_add_up);
    RUN(options__end_where_their_numbers_do);
    RUN(options__policies_and_what_they_exclude);
    RUN(options__what_the_order_of_arrival_decides);
    RUN(options__codes);
    RUN(follow__what_a_running_job_may_have_instead);
    return check_end();
}
