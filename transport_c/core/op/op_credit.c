/* SPDX-License-Identifier: Apache-2.0
 *
 * What the job's peers have to send to this host, for the pool that hands out credit (core/link/pool.h).
 */
#include "core/op/op.h"

ut_ns ut_job_patience(const ut_conn *c)
{
    return c->tx.srtt ? UT_MAX2(4 * c->tx.srtt, UT_MS) : 5 * UT_MS;
}

/* Whether |host| is at stage 1 of |op|, or has nothing in it: then its part of stage 2 is known to come. It has credit
 * before its first packet, or each op would wait a round trip between its stages. */
static bool has_begun(const ut_op *op, uint32_t host)
{
    for (uint32_t i = op->plan.rx_of[0][host]; i != UINT32_MAX; i = op->plan.peer_next[i])
        if (op->plan.transfer[i].done > 0 || op->plan.transfer[i].slots == 0)
            return true;
    return op->peers.peer_masks & ut_bit(host);
}

/* Whether the sender of |t| is at it, as far as this host can know: its first packets came, or are due before all
 * others, or it has told that it has the result; and it has its turn, where not all have one. */
static bool is_active(const ut_job *j, const ut_op *op, const ut_step *s, const ut_transfer *t)
{
    if (j->incast.gated)
        return t->open_at != 0;
    return t->done > 0 || s->round == 0 || (s->stage == 2 && has_begun(op, s->peer));
}

/* Bytes of the part of stage 1 that |r| tells of, as far as a record alone tells it. */
static uint64_t first_part_of(const ut_job *j, const ut_record *r)
{
    bool known = r->algorithm == UT_TAR && r->collective == UT_ALLREDUCE && r->dtype > 0 && r->dtype <= UT_BYTES;
    uint64_t bytes = known ? ut_dtype_bytes(r->dtype) : 0;
    if (!known || r->count > j->config.bucket_bytes_max / bytes)
        return 0;
    return r->count * bytes / j->config.hosts / j->payload * j->config.packet_bytes;
}

/* Bytes that |host| has told of for ops that are not open here yet. */
static uint64_t told_by(const ut_job *j, uint32_t host)
{
    const ut_claims *c = &j->ledger.row[host];
    uint64_t told = 0;
    if (j->gathering->starts_together || j->incast.gated)
        return 0; /* it opens here as well now, and who gives nothing sends nothing; who has no turn waits for it */
    for (unsigned k = 0; k < UT_OPS_MAX; k++)
        if (c->seen[k] && c->record[k].op_seq >= c->tx_floor && ut_job_is_to_come(j, c->record[k].op_seq))
            told += first_part_of(j, &c->record[k]);
    return told;
}

/* What |host| is known to have for this host, and what may come from it unasked. Where senders have turns, those that
 * wait may send a trickle of each transfer, and no more of it when that has come. */
static void look_at_host(const ut_job *j, uint32_t host, ut_inlet *ret)
{
    uint32_t slots = 0, trickle = 0;
    bool waits = false;
    for (unsigned k = 0; k < UT_OPS_MAX; k++) {
        const ut_op *op = &j->op[k];
        for (unsigned stage = 0; stage < 2 && op->state == UT_OP_RUNNING; stage++)
            for (uint32_t i = op->plan.rx_of[stage][host]; i != UINT32_MAX; i = op->plan.peer_next[i]) {
                const ut_transfer *t = &op->plan.transfer[i];
                if (ut_transfer_over(t))
                    continue;
                if (is_active(j, op, &op->plan.schedule.step[i], t)) {
                    slots += t->slots - t->done;
                } else {
                    trickle += UT_TRICKLE_PACKETS - UT_MIN2(t->done, (uint32_t)UT_TRICKLE_PACKETS);
                    waits = true;
                }
            }
    }
    if (slots && j->conn[host].parity.keeps)
        slots += UT_PARITY_MOST;               /* what it adds to them */
    trickle += waits ? 0 : UT_TRICKLE_PACKETS; /* of an op that has not opened here */
    ret->more = (uint64_t)slots * j->config.packet_bytes;
    ret->unasked = j->incast.gated ? (uint64_t)trickle * j->config.packet_bytes : UINT64_MAX;
}

uint32_t ut_job_inlets(ut_job *j, ut_ns now, ut_inlet *ret, ut_ns *look_at, ut_ns *silent)
{
    uint32_t n = 0, keeps = ut_job_keeps(j);
    uint64_t kept = (uint64_t)(keeps - UT_MIN2(keeps, (uint32_t)UT_POOL_STANDING_MAX)) * j->config.packet_bytes;
    for (uint32_t h = 0; h < j->config.hosts; h++) {
        ut_conn *c = &j->conn[h];
        if (h == j->config.self || !ut_job_host_is_up(j, h) || !c->listening)
            continue;
        ut_ns silent_at = c->rx.time_at + ut_job_patience(c);
        ut_inlet *inlet = &ret[n++];
        *inlet = (ut_inlet){.granted = c->rx.granted,
                            .outstanding = ut_conn_outstanding(c),
                            .early = c->rx.stash_bytes,
                            .told = told_by(j, h),
                            .kept = kept, /* a part is left for standing credit */
                            .counts = c->rx.time_at && now < silent_at,
                            .owner = c};
        look_at_host(j, h, inlet);
        if (inlet->counts && inlet->outstanding)
            *silent = UT_MIN2(*silent, silent_at);
        if (inlet->more && inlet->outstanding)
            *look_at = UT_MIN2(*look_at, ut_conn_grant_again(c, now));
    }
    assert(n < j->config.hosts);
    return n;
}
