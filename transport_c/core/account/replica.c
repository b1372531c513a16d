/* SPDX-License-Identifier: Apache-2.0
 *
 * Do the replicas agree? Each host sums a digest of its result as the slots come in, tells the others when the op has
 * ended, and counts who differs. A checksum of every slot is there anyway, for packets carry one, so the digest costs
 * one mixing step a slot. A part of the result that never came enters as what stands in its place, this host's own
 * value: equal digests mean equal bytes.
 *
 * The digests travel in the op records of feedback that goes out as it is. They are told once and not repeated, so a
 * lost packet may leave an op uncompared: this measures, it does not promise (agree=True does).
 */
#include "core/base/digest.h"
#include "core/op/op.h"

/* Every host that is up has told; and there is one. */
static bool all_heard(const ut_job *j, const ut_op *op)
{
    for (uint32_t h = 0; h < j->config.hosts; h++)
        if (h != j->config.self && ut_job_host_is_up(j, h) && !(op->account.replica.heard & ut_bit(h)))
            return false;
    return op->account.replica.heard != 0;
}

static void compare(ut_job *j, ut_op *op, uint32_t host, uint32_t theirs)
{
    ut_replica *r = &op->account.replica;
    if (r->heard & ut_bit(host))
        return;
    ut_stats *stats = j->host->counters;
    r->heard |= ut_bit(host);
    stats->replicas_compared++;
    if (theirs != ut_digest_word(r->digest)) {
        r->differ |= ut_bit(host);
        stats->replicas_differ++;
    }
    if (!all_heard(j, op) || (j->account.agreed && op->seq < j->account.agreed_seq))
        return;
    j->account.agreed = true;
    j->account.agreed_seq = op->seq;
    j->account.agreed_differ = r->differ;
    if (r->differ)
        j->host->emit(j->host->context, &(ut_event){.kind = UT_EVENT_DIVERGED,
                                                    .job = j->number,
                                                    .session = UINT32_MAX,
                                                    .host = UINT32_MAX,
                                                    .op_seq = op->seq,
                                                    .a = r->differ,
                                                    .b = r->heard});
}

void ut_replica_ended(ut_job *j, ut_op *op)
{
    op->account.replica.digest = op->fold.digest;
    op->account.replica.known = true;
    for (uint32_t h = 0; h < j->config.hosts; h++) {
        const ut_record *r = &j->claims[h].record[op->seq % UT_OPS_MAX];
        if (h != j->config.self && j->claims[h].seen[op->seq % UT_OPS_MAX])
            ut_replica_heard(j, h, r);
    }
}

void ut_replica_heard(ut_job *j, uint32_t host, const ut_record *theirs)
{
    ut_op *op = ut_job_op(j, theirs->op_seq);
    if ((theirs->flags & UT_RECORD_DIGEST) && op->seq == theirs->op_seq && op->account.replica.known &&
        theirs->owners == op->plan.owners_tag) /* else it is another sum, whatever the bytes are */
        compare(j, op, host, theirs->digest);
}
