/* SPDX-License-Identifier: Apache-2.0
 *
 * Coded jobs with linear codes: the sum over all data from any n - s hosts, be the others late, lost or dead.
 */
#include "crew.h"

#include "core/face/engine_impl.h"
#include "ext/coded/code.h"

#include <math.h>

static double encoding[MOST * MOST];

static void begin_linear(uint32_t hosts_, uint32_t stragglers)
{
    ut_code_encoding(hosts_, stragglers, encoding);
    begin(hosts_, 1,
          (ut_job_options){.policy = UT_POLICY_CODED, .code = UT_CODE_LINEAR, .stragglers = (uint8_t)stragglers});
    run(20 * UT_MS);
}

static double part(uint32_t k, uint64_t step)
{
    return (double)(k * k + 1) * (double)(step + 2);
}

static void give_step(uint32_t h, uint64_t step, ut_ns time)
{
    double mine = 0;
    for (uint32_t k = 0; k < n; k++)
        mine += encoding[h * n + k] * part(k, step);
    ut_submission s = words(step, 0);
    s.redop = UT_SUM;
    s.deadline_ns = now + time;
    s.oldest_step = s.newest_step = (uint32_t)step;
    give_as(h, 0, mine, s);
}

static void ask_step(uint32_t h, uint64_t step)
{
    ut_submission s = words(step, 0);
    s.redop = UT_SUM;
    submit(h, 0, s);
}

static ut_receipt exact(uint32_t h, uint64_t step)
{
    ut_receipt r = receipt(h);
    double sum = 0;
    for (uint32_t k = 0; k < n; k++)
        sum += part(k, step);
    CHECK_MSG(r.status == UT_COMPLETE && r.exact == UT_EXACT_YES, "host %u: status %u, error %d", h, r.status, r.error);
    CHECK_EQ(r.step, step);
    const double *at = (const double *)(const void *)(trainers[h][0].arena + RESULT * BUFFER);
    for (uint32_t i = 0; i < elements; i++)
        CHECK_MSG(fabs(at[i] - sum) < 1e-9 * sum, "host %u, element %u: %.17g, not %g", h, i, at[i], sum);
    return r;
}

static void any_that_are_enough__and_the_late_get_the_result(void)
{
    static const struct {
        uint32_t hosts, stragglers;
    } rows[] = {{1, 0}, {2, 1}, {3, 1}, {3, 2}, {4, 1}, {5, 2}, {7, 3}, {8, 3}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        begin_linear(rows[i].hosts, rows[i].stragglers);
        for (uint64_t step = 0; step < 6; step++) {
            uint32_t late = 0;
            for (uint32_t left = step ? rows[i].stragglers : 0; left; left--) {
                uint32_t h = (uint32_t)check_below(n);
                late |= 1u << h;
            }
            for (uint32_t h = 0; h < n; h++)
                if (!(late >> h & 1))
                    give_step(h, step, UT_SECOND);
            run(60 * UT_MS);
            for (uint32_t h = 0; h < n; h++) {
                if (late >> h & 1)
                    ask_step(h, step);
                CHECK_HEX(exact(h, step).late_mask & ~late, 0);
            }
        }
        end();
    }
}

static bool some(uint32_t from, uint32_t to, uint32_t port, const uint8_t *packet)
{
    (void)from;
    (void)to;
    (void)packet;
    return port == UT_PORT_DATA && check_below(5) == 0;
}

/* Different hosts are missing from different slots. */
static void lost_packets__are_stragglers_of_one_slot(void)
{
    begin_linear(7, 2);
    drop = some;
    for (uint64_t step = 0; step < 8; step++) {
        for (uint32_t h = 0; h < n; h++)
            give_step(h, step, 5 * UT_SECOND);
        run(500 * UT_MS);
        for (uint32_t h = 0; h < n; h++)
            exact(h, step);
    }
    end();
}

static void one_too_many_is_late__and_the_step_fails_on_all_and_then_holds(void)
{
    begin_linear(7, 3);
    for (uint32_t h = 0; h < 3; h++)
        give_step(h, 4, 100 * UT_MS);
    run(200 * UT_MS);
    for (uint32_t h = 0; h < 3; h++) {
        ut_receipt r = receipt(h);
        CHECK_EQ(r.status, UT_FAILED);
        CHECK_EQ(r.exact, UT_EXACT_NO);
        CHECK_MSG(r.error == UT_ERR_TIMEOUT || r.error == UT_ERR_ABSENT, "error %d", r.error);
        CHECK_MSG(r.culprit >= 3 && r.culprit < 7, "culprit %u", r.culprit);
    }
    for (uint32_t h = 1; h < 5; h++)
        give_step(h, 4, UT_SECOND);
    run(100 * UT_MS);
    for (uint32_t h = 1; h < 5; h++)
        exact(h, 4);
    end();
}

/* As many as may be late die for good: what is left has the sum, though the owners of some shards are gone at first. */
static void hosts_that_die__are_late_for_good(void)
{
    begin_linear(5, 2);
    for (uint32_t h = 0; h < 5; h++)
        give_step(h, 0, UT_SECOND);
    run(60 * UT_MS);
    for (uint32_t h = 0; h < 5; h++)
        exact(h, 0);
    silent = 0x18;
    for (uint32_t h = 0; h < 3; h++)
        for (uint32_t p = 3; p < 5; p++)
            ut_engine_peer_absent(hosts[h].engine, 0, p, now);
    bool done = false;
    for (unsigned tries = 0; tries < 12 && !done; tries++) {
        if (tries == 2)
            part_from_the_silent();
        for (uint32_t h = 0; h < 3; h++)
            give_step(h, 1, 300 * UT_MS);
        run(400 * UT_MS);
        done = true;
        for (uint32_t h = 0; h < 3; h++) {
            const struct trainer *t = &trainers[h][0];
            bool good =
                t->completions.entries[t->submissions.completions_taken % UT_RING_ENTRIES].status == UT_COMPLETE;
            if (good)
                exact(h, 1);
            else
                CHECK_EQ(receipt(h).exact, UT_EXACT_NO);
            done = done && good;
        }
    }
    CHECK(done);
    end();
}

/* Hosts send what is enough together, and not all of them all. */
static void punctual_hosts__send_no_more_than_is_enough(void)
{
    begin_linear(8, 3);
    uint64_t used = 0, redundant = 0;
    for (uint64_t step = 0; step < 20; step++) {
        for (uint32_t h = 0; h < n; h++)
            give_step(h, step, UT_SECOND);
        run(60 * UT_MS);
        for (uint32_t h = 0; h < n; h++) {
            ut_receipt r = exact(h, step);
            used += step ? r.bytes_used : 0;
            redundant += step ? r.bytes_redundant : 0;
        }
    }
    CHECK_MSG(redundant < used / 4, "%" PRIu64 " bytes used, %" PRIu64 " redundant", used, redundant);
    end();
}

/* What is kept of each host is in the memory of such jobs alone. */
static void memory__is_asked_for_by_jobs_with_linear_codes(void)
{
    ut_engine_config engine = {.packet_bytes = 1472, .segments_max = 8, .receive_buffer = 1 << 20};
    ut_job_config job = {.hosts = 5, .local_ranks = 1, .packet_bytes = 1472, .bucket_bytes_max = 1 << 20};
    job.options = (ut_job_options){.policy = UT_POLICY_CODED};
    size_t groups = ut_job_bytes(&engine, &job);
    job.options.code = UT_CODE_LINEAR;
    size_t linear = ut_job_bytes(&engine, &job);
    CHECK_GE(linear, groups + 5 * (1 << 20));
    CHECK_LE(linear, groups + 5 * (1 << 20) + (16 << 10));
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(any_that_are_enough__and_the_late_get_the_result);
    RUN(lost_packets__are_stragglers_of_one_slot);
    RUN(one_too_many_is_late__and_the_step_fails_on_all_and_then_holds);
    RUN(hosts_that_die__are_late_for_good);
    RUN(punctual_hosts__send_no_more_than_is_enough);
    RUN(memory__is_asked_for_by_jobs_with_linear_codes);
    return check_end();
}
