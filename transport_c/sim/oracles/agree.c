/* SPDX-License-Identifier: Apache-2.0
 *
 * Hosts compared with each other, when all receipts are there.
 *
 * - O4 agreement: all hosts that report COMPLETE hold the same bytes. Each element of a shard is, on every host, what
 * the shard's owner has there, or that host's own value (where the result comes straight from its owner).
 * - O11 digest: two receipts hold the same digest if and only if the results hold the same bytes. What a receipt says
 *   about the hosts whose result of an earlier op differs is true.
 */
#include "sim/oracles/oracles.h"
#include "sim/world/liar.h"
#include "sim/world/moves.h"

static sim_held held_at(const sim_outcome *o, uint64_t element)
{
    uint32_t low = 0, high = o->runs - 1;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (o->run[middle].end > element)
            high = middle;
        else
            low = middle + 1;
    }
    return o->run[low].held;
}

/* They may be the same. */
static bool alike(sim_held a, sim_held b)
{
    return !(a.ranks & ~(b.ranks | b.unsure)) && !(b.ranks & ~(a.ranks | a.unsure));
}

/* Who lied in this op, as a mask: what came from it may be another thing on each host. */
static uint64_t lied_of(const sim_world *w, uint32_t job, uint32_t op)
{
    return op < w->plan.job[job].ops ? sim_liar_of(w, &w->job[job]) : 0;
}

static bool readable(const sim_outcome *o)
{
    return o->known && o->status != UT_FAILED && o->runs;
}

/* |other|'s copy of the shard [from, to) against its owner's. */
static void compare_shard(sim_world *w, uint32_t job_number, uint32_t op, uint32_t owner, uint32_t other, uint64_t from,
                          uint64_t to)
{
    sim_job *job = &w->job[job_number];
    const sim_outcome *a = &job->outcome[op][owner], *b = &job->outcome[op][other];
    sim_held own = {job->contributed[op][other], job->contributed[op][other] ? 0 : job->host_ranks[other]};
    for (uint64_t i = from; i < to;) {
        sim_held theirs = held_at(a, i), ours = held_at(b, i);
        if (!alike(ours, theirs) && !alike(ours, own))
            sim_fail(w, "O4 agreement", job->plan->host[other],
                     "job %u op_seq %" PRIu64 " element %" PRIu64 ": the owner, host %u of the job, has ranks %#" PRIx64
                     ", host %u has %#" PRIx64,
                     job_number, job->plan->base + op, i, owner, theirs.ranks, other, ours.ranks);
        /* On to where either changes. */
        uint64_t next = to;
        for (uint32_t k = 0; k < a->runs; k++)
            if (a->run[k].end > i) {
                next = UT_MIN2(next, a->run[k].end);
                break;
            }
        for (uint32_t k = 0; k < b->runs; k++)
            if (b->run[k].end > i) {
                next = UT_MIN2(next, b->run[k].end);
                break;
            }
        i = next;
    }
}

/* A result of which both the bytes and what the receipt says of them are known. */
static bool comparable(const sim_job *job, uint32_t op, uint32_t host)
{
    const sim_outcome *o = &job->outcome[op][host];
    const bool unread = job->epochs.mixed && o->status == UT_PARTIAL; /* see check.c */
    return o->known && !unread && o->status != UT_FAILED && job->plan->op[op].odd_rank == UINT32_MAX &&
           !sim_results_differ(&job->plan->op[op]);
}

static void check_digests(sim_world *w, uint32_t job_number, uint32_t op)
{
    const sim_job *job = &w->job[job_number];
    for (uint32_t a = 0; a < job->plan->hosts; a++)
        for (uint32_t b = 0; b < a; b++) {
            if (!comparable(job, op, a) || !comparable(job, op, b))
                continue;
            const sim_outcome *x = &job->outcome[op][a], *y = &job->outcome[op][b];
            if (x->receipt.owners != y->receipt.owners)
                continue; /* the digest is of another sum then, whatever the bytes are */
            bool same_bytes = x->digest == y->digest, same_digest = x->receipt.digest == y->receipt.digest;
            if (same_bytes != same_digest)
                sim_fail(w, "O11 digest", job->plan->host[a],
                         "job %u op_seq %" PRIu64 ": digest %016" PRIx64 ", host %u of the job has %016" PRIx64
                         ", and their bytes are %s",
                         job_number, job->plan->base + op, x->receipt.digest, b, y->receipt.digest,
                         same_bytes ? "the same" : "not the same");
            if (job->plan->op[op].agree && !same_bytes && !lied_of(w, job_number, op))
                sim_fail(w, "O4 agreement", job->plan->host[a],
                         "job %u op_seq %" PRIu64
                         ": hosts %u and %u of the job returned other bytes in an op with agree",
                         job_number, job->plan->base + op, b, a);
            w->cover[SIM_agreed] += job->plan->op[op].agree;
            w->cover[SIM_SPARSE_agreed] += job->plan->op[op].agree && job->plan->op[op].group;
            w->cover[same_bytes ? SIM_replicas_same : SIM_replicas_differ]++;
        }
}

/* What the receipt of |op| on |host| says of an earlier one. */
static void check_agreed(sim_world *w, uint32_t job_number, uint32_t op, uint32_t host)
{
    const sim_job *job = &w->job[job_number];
    const ut_receipt *r = &job->outcome[op][host].receipt;
    uint32_t back = (uint32_t)(r->op_seq - r->agreed_seq);
    if (!comparable(job, op, host) || back == 0)
        return;
    uint32_t earlier = op - back;
    if (earlier >= job->plan->ops + sim_calm_ops(job->plan) || earlier == op)
        sim_fail(w, "O11 digest", job->plan->host[host], "job %u op_seq %" PRIu64 " tells of op %u, which is none",
                 job_number, r->op_seq, r->agreed_seq);
    w->cover[SIM_replicas_told]++;
    for (uint32_t h = 0; h < job->plan->hosts; h++) {
        bool differs = r->differ_mask >> h & 1;
        if (h == host || !comparable(job, earlier, h) || !comparable(job, earlier, host) || job->shaken[h] ||
            job->shaken[host] || job->outcome[earlier][h].receipt.owners != job->outcome[earlier][host].receipt.owners)
            continue;
        if (differs != (job->outcome[earlier][h].digest != job->outcome[earlier][host].digest))
            sim_fail(w, "O11 digest", job->plan->host[host],
                     "job %u op_seq %" PRIu64 " says that host %u of the job has %s bytes in op_seq %" PRIu64,
                     job_number, r->op_seq, h, differs ? "other" : "the same", job->plan->base + earlier);
    }
}

static void check_op(sim_world *w, uint32_t job_number, uint32_t op)
{
    sim_job *job = &w->job[job_number];
    const sim_op *plan = &job->plan->op[op];
    const sim_outcome *complete = NULL;
    uint32_t hosts = job->plan->hosts;
    for (uint32_t h = 0; h < hosts; h++) {
        const sim_outcome *o = &job->outcome[op][h];
        if (!o->known || o->status != UT_COMPLETE)
            continue;
        if (complete && complete->receipt.members != o->receipt.members)
            continue; /* each is whole, of those that were in it */
        if (complete && complete->digest != o->digest && !lied_of(w, job_number, op))
            sim_fail(w, "O4 agreement", job->plan->host[h], "job %u op_seq %" PRIu64 ": two COMPLETE results differ",
                     job_number, job->plan->base + op);
        complete = o;
    }
    if (plan->nonfinite || plan->odd_rank != UINT32_MAX || plan->redop > UT_AVG || !sim_direct(job->plan))
        return;
    for (uint32_t owner = 0; owner < hosts; owner++) {
        uint64_t from, to, owners = job->outcome[op][owner].receipt.owners;
        if (!readable(&job->outcome[op][owner]) || job->shaken[owner] || lied_of(w, job_number, op) >> owner & 1)
            continue;
        sim_op_owned(job->plan, job->plan->base + op, owners, plan, owner, &from, &to);
        for (uint32_t other = 0; other < hosts; other++)
            if (other != owner && readable(&job->outcome[op][other]) && !job->shaken[other] &&
                job->outcome[op][other].receipt.owners == owners)
                compare_shard(w, job_number, op, owner, other, from, to);
    }
}

void sim_check_agreement(sim_world *w)
{
    if (w->plan.light)
        return;
    for (uint32_t job = 0; job < w->plan.jobs; job++)
        for (uint32_t op = 0; !w->job[job].part && op < w->plan.job[job].ops + sim_calm_ops(&w->plan.job[job]); op++) {
            check_op(w, job, op);
            check_digests(w, job, op);
            for (uint32_t h = 0; h < w->plan.job[job].hosts; h++)
                check_agreed(w, job, op, h);
        }
}
