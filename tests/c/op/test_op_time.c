/* SPDX-License-Identifier: Apache-2.0
 *
 * When stages end by time, in whole engines: the warm-up, t_B, the early end and its tail rule, and what a
 * mode sends twice.
 */
#include "one_by_one.h"

#include "core/op/deadline.h"

enum { SLOTS = 14, SLOT_BYTES = 1440 }; /* of a shard */

/* The packets that a test cuts: from host 0, of stage |cut_stage|, slots in the mask |cut_slots|, while |cut_times|
 * lasts. */
static unsigned cut_stage, cut_slots, cut_times, cut_count;
static uint8_t kept[1472]; /* the last packet cut */
static size_t kept_len;

static bool cut(uint32_t from, const ut_burst *b, const uint8_t *packet)
{
    if (from != 0 || b->port != UT_PORT_DATA || stage_of(packet) != cut_stage || cut_times == 0)
        return false;
    uint32_t offset = (uint32_t)packet[25] << 24 | packet[26] << 16 | packet[27] << 8 | packet[28];
    uint32_t slot = offset % (ELEMENTS * 8 / 2) / SLOT_BYTES;
    if (!(cut_slots >> slot & 1))
        return false;
    cut_times--;
    cut_count++;
    kept_len = b->segment_bytes < 1472 ? b->segment_bytes : 1472;
    memcpy(kept, packet, kept_len);
    return true;
}

static void cut_from_0(unsigned stage, unsigned slots, unsigned times)
{
    drop = cut;
    cut_stage = stage;
    cut_slots = slots;
    cut_times = times;
    cut_count = 0;
}

static void warm_up(ut_ns skew)
{
    for (int i = 0; i < 20; i++) {
        op(UT_BEST_EFFORT, UT_NEVER, skew);
        run(now + 5 * UT_MS);
        for (uint32_t h = 0; h < HOSTS; h++) {
            ut_receipt r = receipt(h, 0);
            CHECK_EQ(r.status, UT_COMPLETE);
            CHECK_EQ(r.t_b_us, 0);
            CHECK_EQ(r.t_c_us[0], 0);
        }
    }
}

static uint64_t resent(void)
{
    ut_stats s;
    ut_engine_stats(hosts[0].engine, &s);
    return s.data_resent;
}

static void warm_up__repairs_and_measures(void)
{
    begin();
    cut_from_0(1, 0x1008, 4); /* lost, its repair too: nothing ends for it */
    warm_up(3 * UT_MS);
    CHECK_EQ(cut_count, 4);
    CHECK(resent() >= 4);
    drop = NULL;
    op(UT_BEST_EFFORT, UT_NEVER, 0);
    run(now + 50 * UT_MS);
    for (uint32_t h = 0; h < HOSTS; h++) {
        ut_receipt r = receipt(h, 0);
        CHECK_EQ(r.status, UT_COMPLETE);
        CHECK_MSG(r.t_b_us > 0 && r.t_b_us < 3000, "t_B %u us", r.t_b_us); /* without the 3 ms that host 0 waited */
        CHECK(r.t_c_us[0] > 0 && r.t_c_us[0] <= r.t_b_us);
    }
    end_world();
}

static void membership__starts_the_warm_up_anew(void)
{
    begin();
    warm_up(0);
    ut_engine_peer_absent(hosts[0].engine, 3, 1, now);
    op(UT_BEST_EFFORT, 50 * UT_MS, 0);
    run(now + 100 * UT_MS);
    CHECK_EQ(receipt(0, 0).t_b_us, 0);
    CHECK(receipt(1, 0).t_b_us > 0); /* it has not been told */
    end_world();
}

/* A packet of the body is gone: nothing is sent again, and 10 % (then 20 %) of t_C after the last packet it is over. */
static void best_effort__ends_early_after_its_share_of_t_c(void)
{
    for (unsigned percent = 10; percent <= 20; percent += 10) {
        begin();
        tune(100 * UT_MS, 50 * UT_MS, percent == 10 ? 0 : percent);
        cut_from_0(1, 0x08, 1);
        op(UT_BEST_EFFORT, UT_NEVER, 0);
        run(now + 300 * UT_MS);
        CHECK_EQ(cut_count, 1);
        CHECK_EQ(resent(), 0);
        ut_receipt r = receipt(1, 0), other = receipt(0, 0);
        ut_ns wait = percent * UT_MS / 2;
        CHECK_EQ(r.status, UT_PARTIAL);
        CHECK_EQ(r.stage_end[0], UT_END_EARLY);
        CHECK_EQ(r.stage_end[1], UT_END_COMPLETE);
        CHECK_MSG(r.stage_ns[0] >= wait && r.stage_ns[0] < wait + UT_MS / 2, "stage 1 took %" PRIu64 " ns",
                  r.stage_ns[0]);
        CHECK_EQ(r.peer[0].missing[0], SLOT_BYTES);
        CHECK_EQ(r.peer[0].why, UT_MISSING_LOST);
        CHECK_EQ(r.bytes_missing, SLOT_BYTES);
        CHECK_EQ(r.t_b_us, 100000);
        CHECK_EQ(r.t_c_us[1], 50000);
        CHECK_EQ(other.status, UT_PARTIAL); /* what it lacks is in the other's shard */
        CHECK_EQ(other.bytes_missing, 0);
        CHECK_EQ(other.weight_min, 1);
        end_world();
    }
}

/* A limit of 2.944 MB/s lets 16 packets go in 8 ms, and so often is there nothing from a sender that has not ended. */
static void best_effort__the_pause_of_a_limit_comes_on_top(void)
{
    world(1, 16 * 1472 * 125);
    run(now + 300 * UT_MS);
    op_seq = 0;
    tune(100 * UT_MS, 50 * UT_MS, 0);
    cut_from_0(1, 0x08, 1);
    op(UT_BEST_EFFORT, UT_NEVER, 0);
    run(now + 300 * UT_MS);
    const ut_receipt r = receipt(1, 0);
    CHECK(r.stage_end[0] == UT_END_EARLY && r.stage_ns[0] >= 13 * UT_MS && r.stage_ns[0] < 14 * UT_MS);
    end_world();
}

/* Each packet of the stage starts the wait over. */
static void best_effort__a_packet_starts_the_wait_over(void)
{
    begin();
    tune(100 * UT_MS, 50 * UT_MS, 0);
    cut_from_0(1, 0x18, 2);
    ut_ns start = now;
    op(UT_BEST_EFFORT, UT_NEVER, 0);
    run(now + 4 * UT_MS);
    no_receipt(1, 0);
    ut_engine_input(hosts[1].engine, UT_PORT_DATA, kept, kept_len, 0, false, now);
    ut_ns last = now - start;
    run(now + 100 * UT_MS);
    ut_receipt r = receipt(1, 0);
    CHECK_EQ(r.stage_end[0], UT_END_EARLY);
    CHECK_EQ(r.bytes_missing, SLOT_BYTES);
    CHECK_MSG(r.stage_ns[0] >= last + 5 * UT_MS && r.stage_ns[0] < last + 6 * UT_MS, "stage 1 took %" PRIu64 " ns",
              r.stage_ns[0]);
    end_world();
}

/* From the first packet cut on, what host 0 has to say is not heard. */
static bool cut_and_deafen(uint32_t from, const ut_burst *b, const uint8_t *packet)
{
    return cut(from, b, packet) || (from == 0 && b->port == UT_PORT_FEEDBACK && cut_count > 0);
}

/* The whole tail of the one sender is lost. It says that it sends no more, and after a share of t_C it is over. */
static void best_effort__a_lost_tail_is_told(void)
{
    begin();
    tune(20 * UT_MS, 10 * UT_MS, 0);
    for (unsigned stage = 1; stage <= 2; stage++) {
        cut_from_0(stage, 1u << (SLOTS - 1), 1);
        op(UT_BEST_EFFORT, UT_NEVER, 0);
        run(now + 300 * UT_MS);
        ut_receipt r = receipt(1, 0);
        CHECK_EQ(cut_count, 1);
        CHECK_EQ(r.stage_end[stage - 1], UT_END_EARLY);
        CHECK_EQ(r.stage_end[2 - stage], UT_END_COMPLETE);
        CHECK_MSG(r.stage_ns[1] < 5 * UT_MS / 2, "the op took %" PRIu64 " ns", r.stage_ns[1]);
        CHECK_EQ(r.bytes_missing, ELEMENTS * 8 / 2 - (SLOTS - 1) * SLOT_BYTES);
        CHECK_EQ(r.peer[0].why, UT_MISSING_LOST);
        CHECK_EQ(resent(), 0);
        CHECK_EQ(receipt(0, 0).bytes_missing, 0);
    }
    end_world();
}

/* And when it cannot say so, t_B ends it. What host 1 then sends of its shard is waited for on host 0, whose own stage
 * 1 was over long before. */
static void best_effort__without_a_tail_t_b_ends_it(void)
{
    begin();
    tune(20 * UT_MS, 10 * UT_MS, 0);
    cut_from_0(1, 1u << (SLOTS - 1), 1);
    drop = cut_and_deafen;
    op(UT_BEST_EFFORT, UT_NEVER, 0);
    run(now + 300 * UT_MS);
    ut_receipt r = receipt(1, 0), other = receipt(0, 0);
    CHECK_EQ(r.stage_end[0], UT_END_DEADLINE);
    CHECK_MSG(r.stage_ns[0] >= 20 * UT_MS && r.stage_ns[0] < 21 * UT_MS, "stage 1 took %" PRIu64 " ns", r.stage_ns[0]);
    CHECK_EQ(resent(), 0);
    CHECK(other.stage_ns[0] < 5 * UT_MS);
    CHECK_EQ(other.stage_end[1], UT_END_COMPLETE);
    CHECK_EQ(other.bytes_missing, 0);
    cut_from_0(2, 1u << (SLOTS - 1), 1);
    drop = cut_and_deafen;
    op(UT_BEST_EFFORT, UT_NEVER, 0);
    run(now + 300 * UT_MS);
    r = receipt(1, 0);
    CHECK_EQ(r.stage_end[1], UT_END_DEADLINE);
    CHECK_MSG(r.stage_ns[1] >= 40 * UT_MS && r.stage_ns[1] < 41 * UT_MS, "the op took %" PRIu64 " ns", r.stage_ns[1]);
    end_world();
}

/* A trainer calls ten t_B after the other: nothing of it is lost. Counted from its own call, host 0 gives up on it. */
static void best_effort__t_b_runs_from_the_last_call(void)
{
    for (unsigned start = UT_TIMER_RENDEZVOUS; start < UT_TIMER_END; start++) {
        bool local = start == UT_TIMER_LOCAL;
        begin();
        tune_timer(20 * UT_MS, 10 * UT_MS, 0, start);
        op(UT_BEST_EFFORT, UT_NEVER, 200 * UT_MS);
        run(now + 300 * UT_MS);
        ut_receipt r = receipt(0, 0);
        CHECK_EQ(r.status, local ? UT_INSUFFICIENT : UT_COMPLETE);
        CHECK_EQ(r.bytes_missing, local ? (uint64_t)ELEMENTS * 8 : 0);
        CHECK_MSG(local ? r.elapsed_ns < 41 * UT_MS : r.elapsed_ns < 210 * UT_MS, "%" PRIu64 " ns", r.elapsed_ns);
        end_world();
    }
}

/* Host 0 has gone on without host 1. */
static void check_silent(void)
{
    ut_receipt r = receipt(0, 0);
    CHECK_EQ(r.status, UT_INSUFFICIENT);
    CHECK_EQ(r.peer[1].why, UT_MISSING_SILENT);
}

/* Its trainer never calls, but the host is there: it is waited for as long as for a deadline that nobody named. */
static void best_effort__a_trainer_that_never_calls_is_given_up(void)
{
    begin();
    tune(20 * UT_MS, 0, 0);
    call(0, UT_BEST_EFFORT, UT_NEVER);
    ut_ns patience = ut_adaptive_deadline(20 * UT_MS);
    run(now + patience - UT_MS);
    no_receipt(0, 0);
    run(now + 22 * UT_MS);
    check_silent();
    end_world();
}

static bool cut_all_of_1(uint32_t from, const ut_burst *b, const uint8_t *packet)
{
    (void)b;
    (void)packet;
    return from == 1;
}

/* Not even the host answers: it is waited for while an answer may yet come, or for t_B, whichever is more. */
static void best_effort__a_silent_host_costs_little(void)
{
    for (ut_ns t_b = 20 * UT_MS; t_b <= 150 * UT_MS; t_b += 130 * UT_MS) {
        begin();
        tune(t_b, 0, 0);
        run(now + 200 * UT_MS);
        drop = cut_all_of_1;
        ut_ns first = UT_MAX2(t_b, 100 * UT_MS);
        call(0, UT_BEST_EFFORT, UT_NEVER);
        run(now + first + t_b - UT_MS);
        no_receipt(0, 0);
        run(now + 2 * UT_MS);
        check_silent();
        end_world();
    }
}

static void call_small(uint32_t h)
{
    fill(h, 0, 10 * (h + 1));
    ut_submission s = call_of(op_seq, ELEMENTS / 8, UT_SUM, UT_BEST_EFFORT, UT_SECOND);
    s.deadline_ns = UT_NEVER;
    submit(h, 0, s);
}

static void small_op(void)
{
    call_small(0);
    call_small(1);
    op_seq++;
}

/* Both sizes are known, each from when it ran alone. Nothing comes of a small op: t_B ends it. If a large one is under
 * way beside it, before it or behind it, it has that one's t_B as well, for what is late may only stand behind that. */
static void best_effort__a_small_op_has_as_long_as_a_large_one_beside_it(void)
{
    enum { ALONE, FIRST, SECOND, WAYS };
    for (unsigned way = 0; way < WAYS; way++) {
        begin();
        tune_timer(0, 0, 0, UT_TIMER_LOCAL);
        for (unsigned i = 0; i < 20; i++) {
            small_op();
            run(now + 5 * UT_MS);
            op(UT_BEST_EFFORT, UT_NEVER, 20 * UT_MS); /* host 0 waits for so long */
            run(now + 5 * UT_MS);
            for (uint32_t n = 0; n < 2 * HOSTS; n++)
                CHECK_EQ(receipt(n % HOSTS, 0).status, UT_COMPLETE);
        }
        if (way == SECOND)
            op(UT_BEST_EFFORT, UT_NEVER, 0);
        cut_from_0(1, 0x3fff, UINT32_MAX);
        drop = cut_and_deafen;
        small_op();
        if (way == FIRST)
            op(UT_BEST_EFFORT, UT_NEVER, 0);
        run(now + 15 * UT_MS);
        if (way == ALONE) {
            CHECK(receipt(1, 0).t_b_us < 3000);
        } else {
            no_receipt(1, 0);
            run(now + 50 * UT_MS);
            uint32_t one = receipt(1, 0).t_b_us, other = receipt(1, 0).t_b_us;
            CHECK(UT_MIN2(one, other) >= 20000 && one != other); /* the small one has the sum */
        }
        end_world();
    }
}

/* A size that is new to the job has no bound of its own, however well a larger one is known, whose ops may have run in
 * a quieter moment: its loss is repaired, and what its op takes is learnt. */
static void best_effort__a_new_size_is_repaired(void)
{
    begin();
    warm_up(0);
    cut_from_0(1, 0x3fff, 1); /* the first packet */
    for (uint32_t h = 0; h < HOSTS; h++) {
        fill(h, 0, 10 * (h + 1));
        submit(h, 0, call_of(op_seq, ELEMENTS / 8, UT_SUM, UT_BEST_EFFORT, UT_SECOND));
    }
    op_seq++;
    run(now + UT_SECOND);
    CHECK(cut_count == 1 && resent() == 1);
    for (uint32_t h = 0; h < HOSTS; h++)
        CHECK_EQ(receipt(h, 0).status, UT_COMPLETE);
    cut_from_0(1, 1, 1); /* the known size goes on without */
    op(UT_BEST_EFFORT, UT_NEVER, 0);
    run(now + UT_SECOND);
    CHECK(cut_count == 1 && resent() == 1);
    CHECK_EQ(receipt(1, 0).status, UT_PARTIAL);
    end_world();
}

/* With t_B off and no deadline nothing else would ever end it: it is repaired. */
static void best_effort__without_any_bound_repairs(void)
{
    begin();
    tune(UT_NEVER, UT_NEVER, 0);
    cut_from_0(1, 0x3fff, 20);
    op(UT_BEST_EFFORT, UT_NEVER, 0);
    run(now + UT_SECOND);
    for (uint32_t h = 0; h < HOSTS; h++)
        CHECK_EQ(receipt(h, 0).status, UT_COMPLETE);
    end_world();
}

static void best_effort__keeps_the_callers_deadline(void)
{
    begin();
    tune(UT_SECOND, UT_NEVER, 0);
    cut_from_0(1, 0x2000, 1);
    op(UT_BEST_EFFORT, 40 * UT_MS, 0);
    run(now + 41 * UT_MS);
    ut_receipt r = receipt(1, 0);
    CHECK_EQ(r.status, UT_PARTIAL);
    CHECK_EQ(r.stage_end[0], UT_END_DEADLINE);
    CHECK_MSG(r.stage_ns[0] >= 20 * UT_MS && r.stage_ns[0] < 21 * UT_MS, "stage 1 took %" PRIu64 " ns", r.stage_ns[0]);
    end_world();
}

static void best_effort__refuses_integers_and_extremes(void)
{
    begin();
    ut_submission s = call_of(0, ELEMENTS, UT_SUM, UT_BEST_EFFORT, UT_SECOND);
    s.dtype = UT_INT64;
    submit(0, 0, s);
    CHECK_EQ(receipt(0, 0).error, UT_ERR_DTYPE);
    submit(0, 0, call_of(1, ELEMENTS, UT_MIN, UT_BEST_EFFORT, UT_SECOND));
    CHECK_EQ(receipt(0, 0).error, UT_ERR_REDOP);
    end_world();
}

/* One slot never comes. Before times are known stage 1 gives up at half of the deadline, then when stage 2 still has
 * 5/4 of its t_C. */
static void bounded__stage_1_leaves_stage_2_its_time(void)
{
    begin();
    for (unsigned known = 0; known < 2; known++) {
        if (known)
            tune(UT_SECOND, 40 * UT_MS, 0);
        cut_from_0(1, 0x08, UINT32_MAX);
        op(UT_BOUNDED, 200 * UT_MS, 0);
        run(now + 201 * UT_MS);
        ut_receipt r = receipt(1, 0);
        ut_ns want = (known ? 150 : 100) * UT_MS;
        CHECK_EQ(r.status, UT_PARTIAL);
        CHECK_EQ(r.stage_end[0], UT_END_DEADLINE);
        CHECK_MSG(r.stage_ns[0] >= want && r.stage_ns[0] < want + UT_MS, "stage 1 took %" PRIu64 " ns", r.stage_ns[0]);
        CHECK(cut_count > 5);
        receipt(0, 0);
        run(now + 300 * UT_MS);
    }
    end_world();
}

static bool cut_and_silence(uint32_t from, const ut_burst *b, const uint8_t *packet)
{
    return cut(from, b, packet) || (from == 1 && b->port == UT_PORT_FEEDBACK && cut_count > 1);
}

/* Host 1 says that it has 20 ms, and then nothing more. What host 0 repairs after that is for nobody. */
static void bounded__repairs_nothing_that_comes_too_late(void)
{
    begin();
    cut_from_0(1, 0x08, UINT32_MAX);
    drop = cut_and_silence;
    call(0, UT_BOUNDED, 2 * UT_SECOND);
    call(1, UT_BOUNDED, 20 * UT_MS);
    run(now + 21 * UT_MS);
    uint64_t in_time = resent();
    CHECK(in_time >= 1);
    run(now + UT_SECOND);
    CHECK_MSG(resent() <= in_time + 1, "%" PRIu64 " resent by the deadline, then %" PRIu64, in_time, resent());
    end_world();
}

static ut_ns last_heard, first_ask;
static uint32_t version; /* of host 1's state, as it was said last */

/* From the first packet cut on, host 0 is not heard at all; when host 1 asks is noted: a version without a record. */
static bool cut_and_note(uint32_t from, const ut_burst *b, const uint8_t *packet)
{
    ut_feedback f;
    if (from == 1 && b->port == UT_PORT_FEEDBACK && ut_feedback_decode(&f, packet, b->bytes, UT_CHECK_SUM) == UT_OK) {
        if (f.state != version && f.records == 0 && cut_count && first_ask == 0)
            first_ask = now;
        version = f.state;
    }
    if (from != 0)
        return false;
    bool gone = cut(from, b, packet) || cut_count > 0;
    if (!gone)
        last_heard = now;
    return gone;
}

/* The receiver's tail timer follows the round trip, however long the op had been waiting before. */
static void bounded__a_receiver_asks_when_the_tail_is_silent(void)
{
    begin();
    op(UT_BOUNDED, UT_SECOND, 0); /* the round trip is measured */
    run(now + 100 * UT_MS);
    receipt(0, 0);
    receipt(1, 0);
    call(1, UT_BOUNDED, 2 * UT_SECOND);
    run(now + 400 * UT_MS); /* it has asked in vain, ever more seldom */
    cut_from_0(1, 1u << (SLOTS - 1), UINT32_MAX);
    drop = cut_and_note;
    first_ask = 0;
    call(0, UT_BOUNDED, 2 * UT_SECOND);
    run(now + 300 * UT_MS);
    CHECK(cut_count > 0);
    CHECK_MSG(first_ask > last_heard && first_ask < last_heard + 3 * UT_MS,
              "asked %" PRIu64 " us after the last packet", (first_ask - last_heard) / UT_US);
    end_world();
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(warm_up__repairs_and_measures);
    RUN(membership__starts_the_warm_up_anew);
    RUN(best_effort__ends_early_after_its_share_of_t_c);
    RUN(best_effort__the_pause_of_a_limit_comes_on_top);
    RUN(best_effort__a_packet_starts_the_wait_over);
    RUN(best_effort__a_lost_tail_is_told);
    RUN(best_effort__without_a_tail_t_b_ends_it);
    RUN(best_effort__t_b_runs_from_the_last_call);
    RUN(best_effort__a_trainer_that_never_calls_is_given_up);
    RUN(best_effort__a_silent_host_costs_little);
    RUN(best_effort__a_small_op_has_as_long_as_a_large_one_beside_it);
    RUN(best_effort__a_new_size_is_repaired);
    RUN(best_effort__without_any_bound_repairs);
    RUN(best_effort__keeps_the_callers_deadline);
    RUN(best_effort__refuses_integers_and_extremes);
    RUN(bounded__stage_1_leaves_stage_2_its_time);
    RUN(bounded__repairs_nothing_that_comes_too_late);
    RUN(bounded__a_receiver_asks_when_the_tail_is_silent);
    return check_end();
}
