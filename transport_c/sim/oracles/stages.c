/* SPDX-License-Identifier: Apache-2.0
 *
 *   O8 stages: a best-effort op ends within t_B per stage once that is known, and no stage ends early where nothing can
 *   be lost, unless the options say that it should be over by then
 */
#include "sim/oracles/oracles.h"
#include "sim/world/epochs.h"

#include "core/op/deadline.h"

#define FAIL(oracle, format, ...)                                                                                      \
    sim_fail(w, oracle, rank->host, "job %u rank %u op_seq %" PRIu64 " (status %u): " format, rank->job, rank->index,  \
             ask->entry.op_seq, r->status, __VA_ARGS__)

static bool stood_still(const sim_world *w, uint32_t host)
{
    for (uint32_t i = 0; i < w->plan.items; i++)
        if (w->plan.item[i].kind == SIM_PAUSE && w->plan.item[i].host == host)
            return true;
    return false;
}

/* The options name an expected time, and the stage has taken longer than that: a pause between two of the last packets
 * may end it, however slow the link is, because the wait for them is a part of what the options say. */
static bool is_hurried(const ut_job_options *options, const ut_receipt *r, unsigned stage)
{
    const ut_ns took = r->stage_ns[stage] - (stage ? r->stage_ns[0] : 0);
    return options->t_c_ns && options->t_c_ns < took;
}

void sim_check_stages(sim_world *w, const sim_rank *rank, const sim_ask *ask, const ut_receipt *r, bool late)
{
    const sim_plan *p = &w->plan;
    const sim_job_plan *j = &p->job[rank->job];
    bool best_effort = ask->as.mode == UT_BEST_EFFORT, t_b_ends = best_effort && r->t_b_us;
    const ut_job_options *options = sim_options_at(w, rank->job, r->self, r->op_seq);
    bool off = options->t_b_ns == UT_NEVER; /* then it ends when nobody sends any more */
    bool told = options->t_b_ns && !off && ask->as.collective == UT_ALLREDUCE && r->t_b_us; /* else it was not begun */
    const uint64_t t_b_us = (options->t_b_ns + UT_US - 1) / UT_US;
    if (told && !sim_is_partial(j) && (best_effort ? r->t_b_us < t_b_us : r->t_b_us != t_b_us))
        FAIL("O8 stages", "t_B is %u us, and %" PRIu64 " us by the options of its epoch", r->t_b_us, t_b_us);
    bool direct = sim_algorithm(j) == UT_TAR; /* elsewhere a tail waits for other hosts, too */
    for (unsigned stage = 0; stage < 2 && r->status != UT_FAILED; stage++) {
        if (r->stage_end[stage] == UT_END_EARLY && (!best_effort || !(r->t_b_us || r->t_c_us[stage] || off) ||
                                                    (p->faultless && direct && !is_hurried(options, r, stage))))
            FAIL("O8 stages", "stage %u ended early; t_B %u us, t_C %u us", stage + 1, r->t_b_us, r->t_c_us[stage]);
        w->cover[SIM_ended_early] += r->stage_end[stage] == UT_END_EARLY;
        w->cover[SIM_ended_by_t_b] += t_b_ends && r->stage_end[stage] == UT_END_DEADLINE;
    }
    w->cover[options->t_b_ns ? SIM_t_b_by_hand : SIM_t_b_measured] += r->t_b_us != 0;
    w->cover[SIM_adaptive_deadline] += ask->as.mode == UT_BOUNDED && ask->deadline == UT_NEVER && r->t_b_us != 0;
    /* A host serves its engine late by as much as it takes to wake up, to look at what came, and to send. */
    ut_ns slack = 10 * UT_MS + 8 * p->wake_max + 4 * (p->receive_real / 100 + 1000) * p->packet_cost;
    bool local = options->timer_start == UT_TIMER_LOCAL;
    ut_ns t_b = r->t_b_us * UT_US, bound = (local ? 2 * t_b : t_b + ut_adaptive_deadline(t_b)) + slack;
    bool bounded = t_b_ends && j->local[r->self] == 1 && !late && !stood_still(w, rank->host);
    if (bounded && r->elapsed_ns > bound)
        FAIL("O8 stages", "took %" PRIu64 " us in best effort, t_B is %u us", r->elapsed_ns / 1000, r->t_b_us);
    w->cover[SIM_waited_for_calls] += bounded && !local && r->elapsed_ns > 2 * t_b + slack;
}
