/* SPDX-License-Identifier: Apache-2.0
 *
 * Ordinary jobs: every rank calls every op, and an op is whole when all ranks of the job are in it.
 */
#include "core/op/gathering.h"

#include "core/op/op.h"
#include "core/op/ranks.h"

static unsigned sources(const ut_job *j, const ut_op *op, const void **ret)
{
    (void)j;
    for (unsigned i = 0; i < op->local.calls; i++)
        ret[i] = op->local.call[i].src;
    return op->local.calls;
}

static unsigned residuals(const ut_job *j, const ut_op *op, float **ret)
{
    unsigned n = 0;
    (void)j;
    for (unsigned i = 0; i < op->local.calls; i++) {
        const ut_call *call = &op->local.call[i];
        const uint64_t residual = ut_submission_residual(&call->submission);
        if (residual) /* all of a rank lies in one arena */
            ret[n++] = (float *)(void *)(call->dst - call->submission.dst + residual - 1);
    }
    return n;
}

/* The one rank's own buffers, or the combined ones. */
static void place(ut_job *j, ut_op *op)
{
    (void)j;
    op->local.weight = op->local.calls;
    if (op->local.calls == 1) {
        op->memory.src = op->local.call[0].src;
        op->memory.dst = op->local.call[0].dst;
        return;
    }
    op->memory.src = op->memory.dst = op->memory.bucket;
    if (op->what.collective == UT_BARRIER)
        memset(op->memory.dst, 0, op->what.bytes);
}

static void announce(ut_job *j, ut_op *op, ut_ns now)
{
    (void)op;
    for (uint32_t h = 0; h < j->config.hosts; h++) {
        if (h == j->config.self || !ut_job_host_is_up(j, h))
            continue;
        ut_conn *c = &j->conn[h];
        ut_conn_speak_at(c, now);
    }
}

static void record(ut_job *j, ut_op *op, uint32_t host, const ut_record *r, ut_ns now)
{
    (void)j, (void)op, (void)host, (void)r, (void)now;
}

static uint32_t whole(const ut_job *j, const ut_op *op)
{
    (void)j;
    return op->epoch.world;
}

int ut_gathering_lacks_nothing(const ut_job *j, ut_op *op, enum ut_sum_over over)
{
    (void)j, (void)op, (void)over;
    return 0;
}

void ut_gathering_counts_all(const ut_job *j, const ut_op *op, ut_receipt *r)
{
    (void)j, (void)op, (void)r;
}

static void recount(const ut_job *j, ut_op *op)
{
    (void)j, (void)op;
}

static uint64_t contributors(const ut_job *j, const ut_op *op)
{
    (void)j, (void)op;
    return UINT64_MAX;
}

static void account(const ut_job *j, const ut_op *op, ut_receipt *r)
{
    r->policy = UT_POLICY_NONE;
    r->initiator = 0xffff;
    ut_op_ranks_account(j, op, r);
}

/* Without a call nobody has the result. */
static bool ended(ut_job *j, const ut_op *op, const ut_receipt *r, ut_ns now)
{
    (void)j, (void)r, (void)now;
    return op->local.calls;
}

static bool readiness(const ut_job *j, uint32_t host, ut_record *ret)
{
    (void)j, (void)host, (void)ret;
    return false;
}

static bool hear(ut_job *j, uint32_t host, const ut_record *r)
{
    (void)j, (void)host, (void)r;
    return true;
}

static void heard(ut_job *j, ut_ns now)
{
    (void)j, (void)now;
}

const ut_gathering ut_gathering_ordinary = {.encodes = true,
                                            .early = UT_EARLY_MAX,
                                            .sources = sources,
                                            .residuals = residuals,
                                            .place = place,
                                            .announce = announce,
                                            .record = record,
                                            .whole = whole,
                                            .lacks = ut_gathering_lacks_nothing,
                                            .recount = recount,
                                            .contributors = contributors,
                                            .account = account,
                                            .count = ut_gathering_counts_all,
                                            .ended = ended,
                                            .tell = ut_op_ranks_tell,
                                            .readiness = readiness,
                                            .hear = hear,
                                            .heard = heard,
                                            .gone = ut_op_session_gone};
