/* SPDX-License-Identifier: Apache-2.0
 *
 * Do the replicas agree? Each host sums a digest of its result as the slots come in, tells the others when the op has
 * ended, and counts who differs. A checksum of every slot is there anyway, for packets carry one, so the digest costs
 * one mixing step a slot. A part of the result that never came enters as what stands in its place, this host's own
 * value: equal digests mean equal bytes.
 *
 * The digests travel in the op records of feedback, which are said until they are seen. An op whose place is taken by
 * a later one before that stays uncompared: this measures, it does not promise (agree=True does).
 */
#include "core/account/account.h"
#include "core/base/digest.h"

/* Every host that is up has told; and there is one. */
static bool all_heard(const ut_op_account *a)
{
    const ut_job_account *j = a->job;
    for (uint32_t h = 0; h < j->hosts; h++)
        if (h != j->self && j->conn[h].state == UT_CONN_UP && !ut_bits_have(a->replica.heard, h))
            return false;
    return a->replica.heard != 0;
}

void ut_replica_ended(ut_op_account *a)
{
    assert(!a->failed);
    a->replica.digest = a->fold->result.digest;
    a->replica.known = true;
}

void ut_replica_compare(ut_op_account *a, uint64_t seq, uint32_t host, uint32_t theirs)
{
    ut_job_account *j = a->job;
    ut_replica *r = &a->replica;
    assert(r->known && host < j->hosts && host != j->self);
    if (ut_bits_have(r->heard, host))
        return;
    r->heard |= ut_bit(host);
    j->host->counters->replicas_compared++;
    if (theirs != ut_digest_brief(r->digest)) {
        r->differ |= ut_bit(host);
        j->host->counters->replicas_differ++;
    }
    if (!all_heard(a) || (j->agreed && seq < j->agreed_seq))
        return;
    j->agreed = true;
    j->agreed_seq = seq;
    j->agreed_differ = r->differ;
    if (r->differ)
        j->host->emit(j->host->context, &(ut_event){.kind = UT_EVENT_DIVERGED,
                                                    .job = j->job,
                                                    .session = UINT32_MAX,
                                                    .host = UINT32_MAX,
                                                    .op_seq = seq,
                                                    .a = r->differ,
                                                    .b = r->heard});
}
