/* SPDX-License-Identifier: Apache-2.0
 *
 * The result of a step, byte by byte, against what went into it (coded_watch.c) and what the receipt says:
 *
 *   O2 fingerprint   each slot holds one contribution of each group, no group twice, nothing of another step. The
 *   receipt says exact if and only if that is all groups, everywhere; where the job is exact there is no other result
 *
 *   O3 conservation  expected = used + redundant + missing, and the bytes used are those of the groups that came
 *
 *   O4 agreement     all results of a step are the same; of two ops, in the second of which hosts were that failed in
 *   the first, those that are exact
 *
 *   O13 slots        the answer is of the step that was asked for; who is said to be unused or late was
 *
 *   O10 calm         it is exact whenever one of each group is there, as soon as nothing goes wrong any more
 *
 *   O16 among liars  where a host lies, honest ones keep their books and their owners; and when it is honest again,
 * what is said to be exact is
 */
#include "sim/coded/coded.h"
#include "sim/oracles/oracles.h"
#include "sim/world/epochs.h"
#include "sim/world/liar.h"

typedef struct view {
    sim_world *w;
    sim_job *job;
    const sim_job_plan *plan;
    const sim_rank *rank;
    const ut_receipt *r;
    sim_coded_op *op;
    uint64_t step;
    const uint8_t *result;
    uint32_t self, groups;
    size_t element;
    uint32_t least; /* groups in the slot that has the fewest */
    uint64_t own;   /* bytes of the own shard */
} view;

#define FAIL(oracle, format, ...)                                                                                      \
    sim_fail(v->w, oracle, v->rank->host, "job %u rank %u step %" PRIu64 " op_seq %" PRIu64 " (status %u): " format,   \
             v->rank->job, v->rank->index, v->step, v->r->op_seq, v->r->status, __VA_ARGS__)

static uint64_t members(const view *v, uint32_t group)
{
    uint32_t replicas = sim_coded_replicas(v->plan);
    return sim_first(replicas) << group * replicas;
}

/* ---- O2 ---- */

static uint64_t shard_end(const view *v, uint64_t element)
{
    for (uint32_t h = 0; h < v->plan->hosts; h++) {
        uint64_t from, to;
        sim_owned(v->plan, v->r->op_seq, v->r->owners, v->plan->part.count, h, &from, &to);
        if (element >= from && element < to)
            return to;
    }
    FAIL("O2 fingerprint", "nobody of %#" PRIx64 " owns element %" PRIu64, v->r->owners, element);
}

/* Groups of which a contribution was given to the step, as far as is known. */
static uint64_t given_groups(const view *v)
{
    uint64_t groups = 0;
    for (uint32_t g = 0; g < v->groups; g++)
        groups |= (uint64_t)(!v->op || (v->op->gave & members(v, g))) << g;
    return groups;
}

static void read_result(view *v)
{
    uint64_t count = v->plan->part.count, per = sim_slot_elements(v->w, v->element), end = 0, gave = given_groups(v);
    uint64_t can_be = 0; /* bit k: the thinnest slot can be one that has k + 1 groups */
    bool can_be_none = false;
    v->least = v->groups;
    if (count && v->op && sim_coded_by_value(v->plan) && !sim_coded_decodable(v->plan, v->op->gave))
        FAIL("O2 fingerprint", "hosts %#" PRIx64 " gave, from which no sum can be had", v->op->gave);
    for (uint64_t i = 0, next; i < count; i = next) {
        sim_wrong wrong;
        uint64_t counts;
        end = i < end ? end : shard_end(v, i);
        next = UT_MIN2(i + per, end);
        if (!sim_coded_read(v->w, v->rank->job, v->step, i, next, v->result, gave, &counts, &wrong))
            FAIL("O2 fingerprint", "element %" PRIu64 " of %" PRIu64 ", %.17g, %s", wrong.element, count,
                 sim_code_real(v->plan->part.dtype, v->result + wrong.element * v->element), wrong.reason);
        can_be |= counts;
        can_be_none |= sim_all_bytes(v->result + i * v->element, (next - i) * v->element, 0);
        v->least = UT_MIN2(v->least, counts ? 64 - (uint32_t)__builtin_clzll(counts) : 0);
    }
    /* Among the readings of slots that are too short to tell, the receipt's is taken if it is one of them. */
    uint32_t said = v->r->weight_min / sim_coded_replicas(v->plan);
    if (said < v->least && (said ? can_be >> (said - 1) & 1 : can_be_none))
        v->least = said;
    bool whole = v->least == v->groups;
    if (whole != (v->r->exact == UT_EXACT_YES) || whole != (v->r->status == UT_COMPLETE))
        FAIL("O2 fingerprint", "exact is said to be %u; the thinnest slot has %u of %u groups", v->r->exact, v->least,
             v->groups);
    if (!whole && sim_coded_exact(v->plan))
        FAIL("O2 fingerprint", "the thinnest slot has %u of %u groups, and results of this job are exact", v->least,
             v->groups);
    double over = v->least ? (double)v->groups / v->least - 1 : 0, lacking = v->groups - v->least;
    double residual = sim_coded_replicas(v->plan) * (v->least * over * over + lacking);
    if (v->r->residual_squared < residual - 1e-9 || v->r->residual_squared > residual + 1e-9)
        FAIL("O2 fingerprint", "residual^2 is said to be %.17g, it is %.17g", v->r->residual_squared, residual);
    v->w->cover[whole ? SIM_CODED_exact : SIM_CODED_estimate]++;
}

/* ---- O4 ---- */

static void check_agreement(view *v)
{
    uint64_t digest = sim_digest(v->result, v->plan->part.count * v->element);
    sim_coded_step *s = sim_coded_step_of(v->w, v->rank->job, v->step);
    const bool exact = v->least == v->groups;
    /* Hosts that ran the op under different epochs refused each other's data: their estimates are of other hosts. */
    const bool apart = s->op_seq == v->r->op_seq && s->view != v->r->view && !(exact && s->exact);
    /* Others came, so an estimate is another one, and what is told by its value is rounded otherwise. */
    bool again = s->op_seq != v->r->op_seq && (sim_coded_by_value(v->plan) || !(exact && s->exact));
    if (s->result && s->digest != digest && !again && !apart)
        FAIL("O4 agreement", "op_seq %" PRIu64 " had another result of this step", s->op_seq);
    *s = (sim_coded_step){true, exact, v->r->op_seq, v->r->view, digest};
}

/* ---- O13 ---- */

/* The hosts from which this one gets sums in a tree. */
static uint64_t below(const view *v)
{
    uint32_t children = v->plan->options.children;
    return sim_coded_has_below(v->plan, v->self) ? sim_first(children) << (v->self * children + 1) : 0;
}

/* Who gave, who was not needed and who came too late. */
static void check_names(view *v)
{
    uint64_t fresh = 0, all = sim_first(v->plan->hosts);
    for (uint32_t h = 0; h < v->plan->hosts; h++) {
        fresh |= (uint64_t)(v->r->peer[h].fresh & 1) << h;
        if (v->r->peer[h].stale || v->r->peer[h].fresh > 1)
            FAIL("O13 slots", "host %u put in %#x fresh, %#x stale", h, v->r->peer[h].fresh, v->r->peer[h].stale);
    }
    if (fresh & ~v->op->gave || v->r->included != sim_ones(fresh))
        FAIL("O13 slots", "hosts %#" PRIx64 " are said to have given, %u of them; %#" PRIx64 " have", fresh,
             v->r->included, v->op->gave);
    if (v->r->late_mask & (fresh | ~all))
        FAIL("O13 slots", "hosts %#" PRIx64 " are late, %#" PRIx64 " gave", v->r->late_mask, fresh);
    for (uint32_t h = 0; h < v->plan->hosts; h++) { /* records are on their way only so long, and behind data */
        ut_ns known = 5 * UT_MS + 8 * v->w->plan.delay_max + 2 * v->w->longest_way;
        if (v->w->plan.faultless && (v->r->late_mask >> h & 1) && (v->op->gave >> h & 1) &&
            v->op->gave_at[h] + known < v->op->ended_at[v->self])
            FAIL("O13 slots", "host %u is said to be late, and gave %.3f ms before the op ended here", h,
                 (double)(v->op->ended_at[v->self] - v->op->gave_at[h]) / UT_MS);
    }
    uint64_t gone_by = v->plan->options.children ? ~below(v) : members(v, sim_coded_group(v->plan, v->self));
    if (v->r->unused_mask & (~fresh | gone_by))
        FAIL("O13 slots", "hosts %#" PRIx64 " are unused, %#" PRIx64 " gave", v->r->unused_mask, fresh);
    uint64_t own = sim_coded_by_value(v->plan) ? 0 : members(v, sim_coded_group(v->plan, v->self));
    uint64_t used = v->op->gave & ~v->r->unused_mask;
    if (v->own && v->r->exact == UT_EXACT_YES && !sim_coded_decodable(v->plan, used | own))
        FAIL("O13 slots", "it is exact, and hosts %#" PRIx64 " alone were used", used);
    if (v->plan->options.children && (v->r->late_mask & 1))
        FAIL("O13 slots", "the root is late%s", ", which has nothing to give");
    v->w->cover[SIM_CODED_late] += v->r->late_mask != 0;
    v->w->cover[SIM_CODED_unused] += v->r->unused_mask != 0;
}

/* ---- O3 ---- */

static void check_bytes(view *v)
{
    const ut_receipt *r = v->r;
    uint64_t rest = v->plan->part.count * v->element - v->own;
    bool gave = v->op->gave >> v->self & 1;
    if (r->bytes_expected != r->bytes_used + r->bytes_redundant + r->bytes_missing)
        FAIL("O3 conservation",
             "%" PRIu64 " bytes expected, %" PRIu64 " used, %" PRIu64 " redundant, %" PRIu64 " missing",
             r->bytes_expected, r->bytes_used, r->bytes_redundant, r->bytes_missing);
    uint64_t most = v->own * sim_coded_need(v->plan) + rest, least = gave ? most - v->own : most;
    if (v->plan->options.children) { /* who is not the root has the result, and what it could add up */
        least = v->self ? rest : most;
        most += v->self && below(v) ? rest * sim_coded_need(v->plan) : 0;
    }
    if (r->exact == UT_EXACT_YES && (r->bytes_used < least || r->bytes_used > most))
        FAIL("O3 conservation", "%" PRIu64 " bytes used; what is in the result is %" PRIu64 " to %" PRIu64,
             r->bytes_used, least, most);
    v->w->cover[SIM_CODED_redundant] += r->bytes_redundant > 0;
}

/* ---- O10 ---- */

/* Where nothing goes wrong (any more) a step that can be decoded is, and one that cannot is never said to be. */
static void check_calm(view *v)
{
    const sim_coded *c = v->job->coded;
    bool calm = v->w->calming && v->op->first > v->w->calm_since, gone = false;
    uint64_t here = 0;
    for (uint32_t h = 0; h < v->plan->hosts; h++)
        here |= (uint64_t)!v->w->host[v->plan->host[h]].gone << h;
    gone = here != sim_first(v->plan->hosts);
    bool decodable = sim_coded_can(v->plan, here);
    bool known = v->r->status != UT_FAILED && sim_epochs_check(v->w, v->rank->job, v->self, v->r);
    bool settled = calm && known;
    bool must = v->w->plan.faultless || (calm && decodable && (settled || (!gone && v->w->plan.items == 0)));
    bool retried = v->r->status == UT_FAILED && v->step < c->steps; /* and then it comes together */
    if (must && !retried && v->r->exact != UT_EXACT_YES)
        FAIL("O10 calm", "error %d, exact %u, %s", v->r->error, v->r->exact,
             v->w->plan.faultless ? "in a world without faults" : "long after the last fault");
    v->w->cover[SIM_CODED_calm_good] += calm && v->r->exact == UT_EXACT_YES;
    v->w->cover[SIM_CODED_calm_without_hosts] += settled && gone && v->r->exact == UT_EXACT_YES;
    v->w->cover[SIM_CODED_undecodable] += calm && !decodable;
}

/* The call's time is over: no op has answered it. */
static bool expired(const view *v, const sim_ask *ask)
{
    return v->r->error == UT_ERR_TIMEOUT && v->r->owners == 0 &&
           sim_local(v->w, &v->w->host[v->rank->host]) >= ask->deadline;
}

static void check_failure(view *v, const sim_ask *ask)
{
    const bool mixed = v->r->error == UT_ERR_DESYNC && v->r->field == UT_FIELD_VIEW && v->job->epochs.alike;
    if (v->r->error != UT_ERR_TIMEOUT && v->r->error != UT_ERR_ABSENT && !mixed)
        FAIL("receipt", "error %d", v->r->error);
    if (v->r->exact == UT_EXACT_YES)
        FAIL("O2 fingerprint", "it failed (error %d), and is said to be exact", v->r->error);
    v->w->cover[v->r->error == UT_ERR_TIMEOUT ? SIM_CODED_timeout : SIM_CODED_absent]++;
    if (expired(v, ask)) {
        if (v->w->plan.faultless && !v->rank->coder->newcomer)
            FAIL("O10 calm", "the call ended at its deadline%s", ", in a world without faults");
        return;
    }
    if (v->r->step != v->step)
        FAIL("O13 slots", "it failed for step %u", v->r->step);
    v->op = sim_coded_op_of(v->w, v->rank->job, v->r->op_seq, v->step);
    check_calm(v);
}

static view view_of(sim_world *w, const sim_rank *rank, const sim_ask *ask, const ut_receipt *r)
{
    const sim_job_plan *plan = &w->plan.job[rank->job];
    return (view){.w = w,
                  .job = &w->job[rank->job],
                  .plan = plan,
                  .rank = rank,
                  .r = r,
                  .self = w->job[rank->job].index_of[rank->host],
                  .groups = sim_coded_groups(plan),
                  .element = ut_dtype_bytes(plan->part.dtype),
                  .step = ask->entry.wanted,
                  .result = rank->arena + ask->entry.dst};
}

/* A host lies, or has lied: nobody knows who gave. */
void sim_coded_check_among_liars(sim_world *w, const sim_rank *rank, const sim_ask *ask, const ut_receipt *r)
{
    view whole = view_of(w, rank, ask, r), *v = &whole;
    uint64_t steady = sim_steady(w, rank->job);
    if (!sim_liar_of(w, v->job) || sim_is_liar(w, rank->host) || r->owners == 0)
        return;
    if (r->bytes_expected != r->bytes_used + r->bytes_redundant + r->bytes_missing)
        FAIL("O3 conservation",
             "%" PRIu64 " bytes expected, %" PRIu64 " used, %" PRIu64 " redundant, %" PRIu64 " missing",
             r->bytes_expected, r->bytes_used, r->bytes_redundant, r->bytes_missing);
    if ((steady >> v->self & 1) && (steady & ~r->owners))
        FAIL("O16 among liars", "hosts %#" PRIx64 " own the bucket, not all of %#" PRIx64 ", who were there all along",
             r->owners, steady);
    bool honest = w->calming && sim_coded_op_of(w, rank->job, r->op_seq, v->step)->first > w->calm_since;
    if (honest && (r->status == UT_COMPLETE || r->status == UT_PARTIAL)) {
        read_result(v);
        w->cover[SIM_CODED_honest_again]++;
    }
}

void sim_coded_check(sim_world *w, sim_rank *rank, const sim_ask *ask, const ut_receipt *r)
{
    view whole = view_of(w, rank, ask, r), *v = &whole;
    uint64_t from, to;
    if (r->hosts != v->plan->hosts || r->self != v->self || r->policy != UT_POLICY_CODED)
        FAIL("receipt", "%u hosts, self %u, policy %u", r->hosts, r->self, r->policy);
    if (r->status == UT_FAILED) {
        check_failure(v, ask);
        return;
    }
    if ((r->status != UT_COMPLETE && r->status != UT_PARTIAL && r->status != UT_INSUFFICIENT) || r->error)
        FAIL("receipt", "error %d", r->error);
    if (r->step != v->step)
        FAIL("O13 slots", "the answer is of step %u", r->step);
    v->op = sim_coded_op_of(w, rank->job, r->op_seq, v->step);
    sim_owned(v->plan, r->op_seq, r->owners, v->plan->part.count, v->self, &from, &to);
    v->own = (to - from) * v->element;
    read_result(v);
    check_agreement(v);
    check_names(v);
    check_bytes(v);
    check_calm(v);
}

/* The step to which trainers have gone that left numbers out, if one of them has begun an op for it; else 0. */
static uint64_t jumped_to(const sim_world *w, uint32_t job)
{
    const sim_coded *c = w->job[job].coded;
    const sim_part_plan *p = &w->plan.job[job].part;
    for (uint32_t i = 0; i < c->ops && p->jump; i++)
        if (c->op[i].step == p->jump_at + p->jump + 1)
            return c->op[i].step;
    return 0;
}

/* The result of the step is over and not here: some rank has had that of the step that is named. */
void sim_coded_check_behind(sim_world *w, sim_rank *rank, const sim_ask *ask, const ut_receipt *r)
{
    const sim_coded *c = w->job[rank->job].coded;
    uint64_t step = ask->entry.wanted;
    w->cover[SIM_CODED_behind]++;
    if (r->step < step || r->exact == UT_EXACT_YES)
        SIM_CODED_FAIL(w, "O13 slots", rank, "is behind at step %" PRIu64 "; the newest is said to be %u, exact %u",
                       step, r->step, r->exact);
    uint64_t steps = UT_MAX2(c->steps, jumped_to(w, rank->job));
    if (r->step >= steps)
        SIM_CODED_FAIL(w, "O13 slots", rank,
                       "is behind at step %" PRIu64 ", says that %u is over; those below %" PRIu64 " are", step,
                       r->step, steps);
    if (w->plan.faultless && !rank->coder->newcomer)
        SIM_CODED_FAIL(w, "O10 calm", rank, "is behind at step %" PRIu64 ", in a world without faults", step);
}
