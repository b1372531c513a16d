/* SPDX-License-Identifier: Apache-2.0
 *
 * O10 calm: long after the last fault all is well again, and quick.
 */
#include "sim/oracles/oracles.h"
#include "sim/world/liar.h"

#include "core/plan/schedule.h"
#include "core/wire/packets.h"

#define FAIL(format, ...)                                                                                              \
    sim_fail(w, "O10 calm", rank->host, "job %u rank %u op_seq %" PRIu64 " mode %u algorithm %u: " format, rank->job,  \
             rank->index, ask->entry.op_seq, ask->as.mode, sim_algorithm(w->job[rank->job].plan), __VA_ARGS__)

/* The host that |host| gives its sum of |chunk| to; |host| itself if it is the owner. */
static uint32_t parent_of(const sim_job *job, const sim_ask *ask, uint32_t host, uint16_t chunk)
{
    ut_schedule s;
    ut_schedule_build(&s, &(ut_layout){job->plan->hosts, host, ask->as.count, ut_dtype_bytes(ask->as.dtype)},
                      sim_algorithm(job->plan), 1, ask->entry.op_seq, UINT64_MAX);
    for (uint32_t i = 0; i < s.steps; i++)
        if (s.step[i].kind == UT_STEP_SEND && s.step[i].stage == 1 && s.step[i].chunk == chunk)
            return s.step[i].peer;
    return host;
}

/* Of what |self| sums for others on the way from |peer|, some could only go on through a host that is gone: its owner
 * ends without it, and the result may be here before the sum. Where sums go one hop nothing leads nowhere. */
static bool leads_nowhere(const sim_job *job, const sim_ask *ask, uint32_t self, uint32_t peer, uint64_t gone)
{
    ut_schedule s;
    ut_schedule_build(&s, &(ut_layout){job->plan->hosts, self, ask->as.count, ut_dtype_bytes(ask->as.dtype)},
                      sim_algorithm(job->plan), 1, ask->entry.op_seq, UINT64_MAX);
    for (uint32_t i = 0; i < s.steps; i++) {
        const ut_step *x = &s.step[i];
        if (x->kind != UT_STEP_RECEIVE || x->stage != 1 || x->peer != peer)
            continue;
        uint32_t at = self, next;
        while ((next = parent_of(job, ask, at, x->chunk)) != at && !(gone >> next & 1))
            at = next;
        if (next != at)
            return true;
    }
    return false;
}

/* COMPLETE; or, of a job with hosts that are gone for good, all that the others have. */
static void check_status(sim_world *w, const sim_job *job, const sim_rank *rank, const sim_ask *ask,
                         const ut_receipt *r)
{
    uint64_t gone = 0;
    for (uint32_t h = 0; h < job->plan->hosts; h++)
        gone |= (uint64_t)w->host[job->plan->host[h]].gone << h;
    if (job->plan->seats && (r->status != UT_COMPLETE || r->members != (sim_first(job->plan->hosts) & ~gone)))
        FAIL("status %u long after the last fault, in a view of hosts %#" PRIx64 ", hosts %#" PRIx64
             " are gone, in %#" PRIx64 " %#" PRIx64 ", weight %u, epoch %" PRIu64,
             r->status, r->members, gone, r->full_mask, r->any_mask, r->weight_min, r->view);
    if (r->status == UT_FAILED) { /* of one that fails, rows show how far it got */
        if (!gone || (ask->as.mode != UT_RELIABLE && !ask->as.agree) || r->error != UT_ERR_ABSENT)
            FAIL("error %d long after the last fault", r->error);
        return;
    }
    for (uint32_t h = 0; h < job->plan->hosts; h++)
        if (!(gone >> h & 1) &&
            ((r->peer[h].missing[0] && !leads_nowhere(job, ask, r->self, h, gone)) || r->peer[h].missing[1]))
            FAIL("%u and %u bytes of host %u are missing long after the last fault", r->peer[h].missing[0],
                 r->peer[h].missing[1], h);
    if (r->status != UT_COMPLETE && !gone)
        FAIL("status %u long after the last fault, hosts %#" PRIx64 " own, in %#" PRIx64 " %#" PRIx64
             ", weight %u of %u, late %#x %#x %#x",
             r->status, r->owners, r->full_mask, r->any_mask, r->weight_min, job->ranks, r->peer[0].late,
             r->peer[1].late, r->peer[2].late);
}

/* Oracle O10. */
void sim_check_calm(sim_world *w, const sim_rank *rank, const sim_ask *ask, const ut_receipt *r)
{
    const sim_plan *p = &w->plan;
    const sim_job *job = &w->job[rank->job];
    if (ask->op < p->job[rank->job].ops)
        return; /* a straggler's last op of before */
    check_status(w, job, rank, ask, r);
    uint64_t bytes = ask->as.count * ut_dtype_bytes(ask->as.dtype);
    if (sim_algorithm(job->plan) == UT_PS) /* all hosts' go through one link, behind the op before */
        bytes = 2 * job->plan->bucket_max * job->plan->hosts;
    uint64_t packets = bytes / ut_wire_payload(p->packet_bytes, 0) + UT_MAX2(32, 2 * job->plan->hosts);
    ut_ns wire = 2 * (bytes + packets * 100) * UT_SECOND / UT_MIN2(p->rate_up, p->rate_down) * p->jobs;
    /* A ring has two ways between neighbours for each host, one after the other. */
    const uint32_t ways = sim_algorithm(job->plan) == UT_RING ? UT_MAX2(40, 4 * job->plan->hosts) : 40;
    ut_ns bound = UT_SECOND + 10 * wire + ways * (p->delay_max + p->packet_cost * packets) + p->job[rank->job].skew;
    if (r->elapsed_ns > bound)
        FAIL("took %" PRIu64 " us, the wire %" PRIu64 " us, the bound is %" PRIu64 " us", r->elapsed_ns / 1000,
             wire / 1000, bound / 1000);
    w->cover[SIM_honest_whole] += sim_liar_of(w, job) != 0;
    w->cover[r->status == UT_COMPLETE ? SIM_calm_complete : SIM_calm_without_absent]++;
    w->cover[SIM_SPARSE_calm_complete] += r->status == UT_COMPLETE && ask->as.group;
}
