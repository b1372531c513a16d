/* SPDX-License-Identifier: Apache-2.0
 *
 * Partial jobs in trouble: packets are lost, hosts and trainers go, hosts lag. Whatever happens, a call is answered by
 * its deadline, and the answer is true.
 */
#include "crew.h"

#include "core/face/engine_impl.h"
#include "core/wire/packets.h"

static ut_job_options policy(unsigned which)
{
    return (ut_job_options){.policy = (uint8_t)which, .policy_seed = 42};
}

static bool some_are_lost(uint32_t from, uint32_t to, uint32_t port, const uint8_t *packet)
{
    (void)from, (void)to, (void)port, (void)packet;
    return check_below(5) == 0;
}

/* One packet of five is lost, records and data alike: all is repaired, and everybody holds the same. */
static void loss__is_repaired(void)
{
    begin(6, 1, policy(UT_POLICY_SOLO));
    run(20 * UT_MS);
    drop = some_are_lost;
    for (uint64_t op = 0; op < 20; op++) {
        uint32_t who = (uint32_t)check_below(6), other = (who + 1 + (uint32_t)check_below(5)) % 6;
        give(who, 1, op, 0);
        give(other, 2, op, 0);
        run(950 * UT_MS);
        ut_receipt r = receipt(who);
        CHECK_EQ(r.status, UT_COMPLETE);
        CHECK_EQ(r.op_seq, op);
        CHECK_EQ(r.included, 2);
        CHECK_RESULT(who, 1.5);
        receipt(other);
        CHECK_RESULT(other, 1.5);
        for (uint32_t h = 0; h < 6; h++) {
            CHECK_EQ(newest(h).digest, r.digest);
            CHECK_HEX(newest(h).full_mask, 1u << who | 1u << other);
        }
    }
    end();
}

static bool to_3_and_from_3_to_2(uint32_t from, uint32_t to, uint32_t port, const uint8_t *packet)
{
    (void)packet;
    return port == UT_PORT_DATA && ((from == 0 && to == 3) || (from == 3 && to == 2));
}

static uint32_t count_of(uint32_t h, double value)
{
    const double *at = (const double *)(const void *)(trainers[h][0].arena + RESULT * BUFFER);
    uint32_t ret = 0;
    for (uint32_t i = 0; i < elements; i++)
        ret += at[i] == value;
    return ret;
}

/* What does not come to an owner is missing from its shard everywhere, and said so; a shard that does not come is the
 * own value, which of a host with nothing is zero. */
static void holes__are_told(void)
{
    begin(4, 1, policy(UT_POLICY_SOLO));
    run(20 * UT_MS);
    give(2, 64, 0, 0); /* so that there are old bytes where the holes will be */
    run(20 * UT_MS);
    receipt(2);
    for (uint64_t op = 1; op < 4; op++) {
        give(1, 64, op, 0);
        run(20 * UT_MS);
        receipt(1);
    }
    drop = to_3_and_from_3_to_2;
    give(0, 1, 4, 0);
    give(1, 2, 4, 0);
    run(1100 * UT_MS);
    for (uint32_t h = 0; h < 2; h++) {
        ut_receipt r = receipt(h);
        CHECK_EQ(r.status, UT_PARTIAL);
        CHECK_EQ(r.included, 2);
        CHECK_EQ(r.weight_min, 1);
        CHECK_HEX(r.full_mask, 2);
        CHECK_HEX(r.any_mask, 3);
        CHECK_EQ(count_of(h, 1.5), 3 * elements / 4);
        CHECK_EQ(count_of(h, 2), elements / 4);
    }
    ask(2, 4, UT_SUBMIT_NOWAIT);
    ut_receipt r = receipt(2);
    CHECK_EQ(r.status, UT_PARTIAL);
    CHECK_EQ(r.weight_min, 0);
    CHECK_EQ(count_of(2, 1.5), 3 * elements / 4);
    CHECK_EQ(count_of(2, 0), elements / 4);
    end();
}

/* Halves are summed in float32 and rounded once, whoever is not there; all modes. */
static void dtypes__and_modes(void)
{
    for (unsigned mode = UT_BOUNDED; mode <= UT_RELIABLE; mode++) {
        begin(4, 1, policy(UT_POLICY_PROBE));
        run(20 * UT_MS);
        ut_submission s = words(0, UT_SUBMIT_GIVE);
        s.dtype = UT_FLOAT16;
        s.mode = (uint8_t)mode;
        for (uint32_t h = 0; h < 4; h += 2) {
            uint16_t *at = (uint16_t *)(void *)trainers[h][0].arena;
            for (uint32_t i = 0; i < elements; i++)
                at[i] = h ? 0x4200 : 0x3c00; /* 3 and 1 */
            submit(h, 0, s);
        }
        CHECK_EQ(ut_engine_activate(hosts[2].engine, 0, 0, now), UT_OK);
        run(20 * UT_MS);
        for (uint32_t h = 0; h < 4; h += 2) {
            ut_receipt r = receipt(h);
            CHECK_EQ(r.status, UT_COMPLETE);
            const uint16_t *at = (const uint16_t *)(const void *)(trainers[h][0].arena + RESULT * BUFFER);
            for (uint32_t i = 0; i < elements; i++)
                if (!CHECK_EQ(at[i], 0x4000)) /* 2 */
                    break;
        }
        end();
    }
}

/* The initiator dies when its word is out and its data is not: the others go on with what they have. */
static bool data_of_0_is_lost(uint32_t from, uint32_t to, uint32_t port, const uint8_t *packet)
{
    (void)to, (void)packet;
    return from == 0 && port == UT_PORT_DATA;
}

static void death__of_the_initiator(void)
{
    for (unsigned told = 0; told < 2; told++) {
        begin(4, 1, policy(UT_POLICY_SOLO));
        run(20 * UT_MS);
        give(1, 2, 0, 0);
        run(20 * UT_MS);
        CHECK_EQ(receipt(1).op_seq, 0);
        drop = data_of_0_is_lost;
        give(0, 1, 1, 0);
        run(3 * UT_MS);
        silent = 1;
        for (uint32_t h = 1; told && h < 4; h++)
            ut_engine_peer_absent(hosts[h].engine, 0, 0, now);
        run(1100 * UT_MS);
        for (uint32_t h = 1; h < 4; h++) {
            ut_receipt r = newest(h);
            CHECK_EQ(r.op_seq, 1);
            CHECK_EQ(r.initiator, 0);
            CHECK(r.status == UT_PARTIAL || r.status == UT_INSUFFICIENT);
            CHECK_EQ(r.weight_min, 0); /* nobody has anything of it */
        }
        for (uint32_t h = 1; h < 4; h++)
            ut_engine_peer_absent(hosts[h].engine, 0, 0, now);
        give(2, 8, 2, 0); /* and what remains of the job goes on */
        run(1100 * UT_MS);
        ut_receipt r = receipt(2);
        CHECK_EQ(r.op_seq, 2);
        CHECK_EQ(r.status, UT_PARTIAL);
        CHECK_EQ(r.included, 1);
        CHECK_RESULT(2, 8);
        r = receipt(0); /* the dead one's own view: alone, and by its deadline */
        CHECK(r.status == UT_PARTIAL || r.status == UT_INSUFFICIENT);
        end();
    }
}

/* From the epoch without it on the others add up its shard, too: what they bring is in every byte, and nothing is
 * missing. */
static void death__leaves_no_shard_behind(void)
{
    for (uint32_t dead = 0; dead < 3; dead += 2) {
        begin(3, 1, policy(UT_POLICY_SOLO));
        run(20 * UT_MS);
        silent = 1u << dead;
        for (uint32_t h = 0; h < 3; h++)
            if (h != dead)
                ut_engine_peer_absent(hosts[h].engine, 0, dead, now);
        ut_epoch without = {.number = 1, .id = 9, .from = 3, .members = 7u & ~(1u << dead), .world = 3};
        without.owners = without.members;
        for (uint32_t h = 0; h < 3; h++)
            if (h != dead)
                CHECK_EQ(ut_engine_epoch(hosts[h].engine, 0, &without, now), UT_OK);
        for (uint64_t op = 0; op < 6; op++) {
            uint32_t first = dead == 0 ? 1 : 0;
            give(first, 2, op, 0);
            run(1100 * UT_MS);
            ut_receipt r = receipt(first);
            CHECK_EQ(r.op_seq, op);
            if (op < 3) {
                CHECK(r.bytes_missing > 0 && r.owners == 7);
                continue;
            }
            CHECK_EQ(r.status, UT_COMPLETE);
            CHECK_EQ(r.bytes_missing, 0);
            CHECK_HEX(r.owners, 7u & ~(1u << dead));
            CHECK_RESULT(first, 2);
        }
        end();
    }
}

static void death__of_all_but_one(void)
{
    begin(4, 1, policy(UT_POLICY_MAJORITY));
    run(20 * UT_MS);
    silent = 0x0f & ~(1u << 2);
    for (uint32_t h = 0; h < 4; h++)
        if (h != 2)
            ut_engine_peer_absent(hosts[2].engine, 0, h, now);
    for (uint64_t op = 0; op < 5; op++) {
        give(2, 1 << op, op, 0);
        run(20 * UT_MS);
        ut_receipt r = receipt(2);
        CHECK_EQ(r.op_seq, op);
        CHECK_EQ(r.included, 1);
        CHECK_EQ(r.weight_min, 1);
        CHECK(r.status == UT_PARTIAL || r.status == UT_INSUFFICIENT);
        CHECK_RESULT(2, 1 << op);
    }
    end();
}

/* A trainer dies while its contribution is on the way: it was given, and it arrives; its memory is not touched. */
static void death__of_a_trainer(void)
{
    begin(3, 1, policy(UT_POLICY_SOLO));
    run(20 * UT_MS);
    give(1, 4, 0, 0);
    ut_engine_session_remove(hosts[1].engine, trainers[1][0].session, now);
    memset(trainers[1][0].arena, 0xff, ARENA);
    give(0, 2, 0, 0);
    run(20 * UT_MS);
    ut_receipt r = receipt(0);
    CHECK_EQ(r.status, UT_COMPLETE);
    CHECK_EQ(r.included, 2);
    CHECK_RESULT(0, 3);
    give(2, 8, 1, 0);
    run(20 * UT_MS);
    CHECK_EQ(receipt(2).included, 1);
    attach(1, 0); /* another one takes its place, in the middle of it all */
    ask(1, 0, UT_SUBMIT_NOWAIT);
    r = receipt(1);
    CHECK_EQ(r.op_seq, 1);
    CHECK_EQ(r.slot, UT_SLOT_NULL);
    CHECK_RESULT(1, 8);
    CHECK_EQ(trainers[1][0].completions.results, 2);
    give(1, 16, 2, 0);
    run(20 * UT_MS);
    r = receipt(1);
    CHECK_EQ(r.status, UT_COMPLETE);
    CHECK_EQ(r.initiator, 1);
    CHECK_RESULT(1, 16);
    end();
}

/* Two trainers for one place, or none such, is a mistake of the daemon's. */
static void attach__wrong_place(void)
{
    begin(2, 2, policy(UT_POLICY_SOLO));
    struct trainer *t = &trainers[0][0];
    uint32_t session;
    ut_session_memory m = {&t->submissions, &t->completions, t->arena, ARENA, 0, 0};
    CHECK_EQ(ut_engine_session_add(hosts[0].engine, 0, &m, 0, &session), UT_ERR_FULL);
    ut_engine_session_remove(hosts[0].engine, trainers[0][1].session, now);
    CHECK_EQ(ut_engine_session_add(hosts[0].engine, 0, &m, 0, &session), UT_ERR_EXISTS);
    m.place = 2;
    CHECK_EQ(ut_engine_session_add(hosts[0].engine, 0, &m, 0, &session), UT_ERR_ARGUMENT);
    attach(0, 1);
    end();
}

/* A host that heard nothing for a while joins what runs, not what it has missed; its trainer has the newest result. */
static void lag__leaves_out_what_is_over(void)
{
    begin(3, 1, policy(UT_POLICY_SOLO));
    run(20 * UT_MS);
    silent = 1 << 2;
    give(2, 4, 0, UT_SUBMIT_STICKY); /* it starts op 0 for itself alone */
    for (uint64_t op = 0; op < 6; op++) {
        give(0, 1, op, 0);
        run(1050 * UT_MS);
        ut_receipt r = receipt(0);
        CHECK_EQ(r.op_seq, op);
        CHECK_EQ(r.status, UT_PARTIAL);
        CHECK_EQ(r.included, 1);
        CHECK_RESULT(0, 1);
    }
    CHECK_EQ(newest(2).op_seq, 0);
    CHECK_EQ(receipt(2).status, UT_INSUFFICIENT);
    silent = 0;
    run(100 * UT_MS);
    give(1, 2, 6, 0);
    run(20 * UT_MS);
    ut_receipt r = receipt(1);
    CHECK_EQ(r.op_seq, 6);
    CHECK_EQ(r.status, UT_COMPLETE);
    CHECK_EQ(r.included, 2);
    CHECK_RESULT(1, 3);
    CHECK_EQ(newest(2).op_seq, 6);
    ask(2, 3, UT_SUBMIT_NOWAIT);
    CHECK_EQ(receipt(2).op_seq, 6);
    CHECK_RESULT(2, 3);
    end();
}

/* A host that is up and of which nothing is heard may have brought something: what is without it is not all there is,
 * at its owner, which misses it, as at others, which have whatever the owner has. */
static void silence__is_not_the_word_that_nothing_comes(void)
{
    begin(3, 1, policy(UT_POLICY_SOLO));
    elements = 1; /* one host owns all of it */
    run(20 * UT_MS);
    silent = 1;
    give(1, 2, 0, 0);
    give(2, 4, 0, 0);
    run(1050 * UT_MS);
    for (uint32_t h = 1; h < 3; h++) {
        ut_receipt r = receipt(h);
        CHECK_EQ(r.status, UT_PARTIAL);
        CHECK_EQ(r.included, 2);
        CHECK_HEX(r.full_mask, 6);
        CHECK_RESULT(h, 3);
    }
    end();
}

/* Hosts 0 and 1 were handed an epoch in which host 2 owns nothing, and host 2 was not. Nothing of it can be used as
 * long as it is so; but where it gives nothing, nothing of it is missing, and whoever gave has it all. */
static void another_epoch__who_gives_nothing_lacks_nothing(void)
{
    begin(3, 1, policy(UT_POLICY_SOLO));
    run(20 * UT_MS);
    ut_epoch without = {.number = 1, .id = 7, .members = 7, .owners = 3, .world = 3};
    for (uint32_t h = 0; h < 2; h++)
        CHECK_EQ(ut_engine_epoch(hosts[h].engine, 0, &without, now), UT_OK);
    give(0, 16, 0, 0);
    run(100 * UT_MS);
    ut_receipt r = receipt(0);
    CHECK_EQ(r.op_seq, 0);
    CHECK_HEX(r.owners, 3);
    CHECK_EQ(r.status, UT_COMPLETE);
    CHECK_EQ(r.bytes_missing, 0);
    CHECK_EQ(r.peer[2].expected[0], 0);
    CHECK_RESULT(0, 16);
    CHECK_EQ(newest(1).status, UT_COMPLETE);
    CHECK_HEX(newest(2).owners, 7);
    CHECK_EQ(newest(2).status, UT_INSUFFICIENT);
    end();
}

static uint8_t heard[1472];

static bool keep_the_newest_word_of_0_to_1(uint32_t from, uint32_t to, uint32_t port, const uint8_t *packet)
{
    if (from == 0 && to == 1 && port == UT_PORT_FEEDBACK)
        memcpy(heard, packet, UT_FEEDBACK_HEADER);
    return false;
}

/* A host that lies about where it is: of ops that are out of reach nothing is believed. */
static void lie__of_an_op_far_away(void)
{
    static const uint64_t far[] = {UINT64_MAX, UINT64_MAX - 1, 1ULL << 40, (1 << 20) + 10};
    begin(3, 1, policy(UT_POLICY_SOLO));
    drop = keep_the_newest_word_of_0_to_1;
    run(20 * UT_MS);
    for (unsigned i = 0; i < 4; i++) {
        ut_feedback f = {.cid = (uint32_t)heard[4] << 24 | heard[5] << 16 | heard[6] << 8 | heard[7],
                         .number = 1000 + i,
                         .records = 1,
                         .rx_floor = i == 2 ? far[i] : 0,
                         .echo_us = UINT32_MAX};
        f.record[0] = (ut_record){.op_seq = far[i],
                                  .count = 10,
                                  .dtype = UT_FLOAT32,
                                  .redop = UT_SUM,
                                  .mode = UT_BOUNDED,
                                  .flags = UT_RECORD_ACTIVE,
                                  .weight = 1,
                                  .algorithm = UT_TAR,
                                  .time_left_us = 100000,
                                  .policy = UT_POLICY_SOLO};
        uint8_t packet[UT_FEEDBACK_MAX];
        size_t len = ut_feedback_encode(packet, &f);
        ut_engine_input(hosts[1].engine, UT_PORT_FEEDBACK, packet, len, 0, false, now);
    }
    silent = 1; /* what it would say now is older than its lies */
    ut_stats s;
    ut_engine_stats(hosts[1].engine, &s);
    CHECK_EQ(s.unknown + s.malformed + s.bad_checksum, 0);
    ut_engine_peer_absent(hosts[1].engine, 0, 0, now);
    ut_engine_peer_absent(hosts[2].engine, 0, 0, now);
    give(2, 4, 0, 0);
    run(20 * UT_MS);
    CHECK_EQ(newest(1).op_seq, 0);
    CHECK_EQ(receipt(2).included, 1);
    CHECK_RESULT(2, 4);
    end();
}

/* All calls that wait are told when the job goes. */
static void job__goes_away(void)
{
    begin(2, 1, policy(UT_POLICY_PROBE));
    run(20 * UT_MS);
    give(0, 1, 0, 0);
    ask(0, 5, 0);
    ut_engine_job_remove(hosts[0].engine, 0, now);
    for (unsigned i = 0; i < 2; i++) {
        ut_receipt r = receipt(0);
        CHECK_EQ(r.status, UT_FAILED);
        CHECK_EQ(r.error, UT_ERR_CLOSED);
        CHECK_EQ(r.call_seq, i);
    }
    CHECK(!has_receipt(0));
    end();
}

/* What no job can be. */
static void config__refused(void)
{
    static const struct {
        ut_job_options options;
        uint8_t ranks[2];
    } rows[] = {
        {{.policy = UT_POLICIES_END}, {0, 0}},
        {{.policy = UT_POLICY_SOLO, .algorithm = UT_RING}, {0, 0}},
        {{.policy = UT_POLICY_SOLO, .hadamard = UT_HADAMARD_AUTO}, {0, 0}},
        {{.policy = UT_POLICY_QUORUM, .quorum = 4}, {0, 0}},
        {{.policy = UT_POLICY_PROBE, .probes = 4}, {0, 0}},
        {{.policy = UT_POLICY_SOLO}, {1, 1}},
        {{.policy = UT_POLICY_SOLO}, {2, 1}},
    };
    ut_engine_config engine = {.packet_bytes = 1472, .segments_max = 8, .receive_buffer = 1 << 20};
    ut_job_config c = {.hosts = 2, .local_ranks = 1, .world = 3, .packet_bytes = 1472, .bucket_bytes_max = BUFFER};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        c.options = rows[i].options;
        memcpy(c.ranks_of, rows[i].ranks, 2);
        CHECK_MSG(ut_job_bytes(&engine, &c) == 0, "row %zu", i);
    }
    c.options = policy(UT_POLICY_QUORUM);
    c.options.quorum = c.options.probes = 3;
    c.ranks_of[0] = 1, c.ranks_of[1] = 2;
    CHECK(ut_job_bytes(&engine, &c) > 0);
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(loss__is_repaired);
    RUN(holes__are_told);
    RUN(dtypes__and_modes);
    RUN(death__of_the_initiator);
    RUN(death__leaves_no_shard_behind);
    RUN(death__of_all_but_one);
    RUN(death__of_a_trainer);
    RUN(attach__wrong_place);
    RUN(lag__leaves_out_what_is_over);
    RUN(silence__is_not_the_word_that_nothing_comes);
    RUN(another_epoch__who_gives_nothing_lacks_nothing);
    RUN(lie__of_an_op_far_away);
    RUN(job__goes_away);
    RUN(config__refused);
    return check_end();
}
