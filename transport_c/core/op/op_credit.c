/* SPDX-License-Identifier: Apache-2.0
 *
 * What the job's peers have to send to this host, for the pool that hands out credit (core/link/pool.h).
 */
#include "core/op/op.h"

ut_ns ut_job_patience(const ut_conn *c)
{
    return c->tx.srtt ? UT_MAX2(4 * c->tx.srtt, UT_MS) : 5 * UT_MS;
}

/* Whether the sender of |t| is at it, as far as this host can know: its first packets came, or are due before all
 * others, or it has told that it has the result; and it has its turn, where not all have one. */
static bool is_active(const ut_job *j, const ut_op *op, const ut_step *s, const ut_transfer *t)
{
    if (ut_transfer_over(t))
        return false;
    if (j->incast.gated)
        return t->open_at != 0;
    return t->done > 0 || s->round == 0 || (s->stage == 2 && op->peers.peer_masks & ut_bit(s->peer));
}

/* Bytes that |host| is known to have for this host. |ret_waits|: it waits for its turn. */
static uint64_t known_of(const ut_job *j, uint32_t host, bool *ret_waits)
{
    uint64_t slots = 0;
    *ret_waits = j->incast.gated;
    for (unsigned k = 0; k < UT_OPS_MAX; k++) {
        const ut_op *op = &j->op[k];
        for (unsigned stage = 0; stage < 2 && op->state == UT_OP_RUNNING; stage++)
            for (uint32_t i = op->plan.rx_of[stage][host]; i != UINT32_MAX; i = op->plan.peer_next[i]) {
                const ut_transfer *t = &op->plan.transfer[i];
                if (!is_active(j, op, &op->plan.schedule.step[i], t))
                    continue;
                slots += t->slots - t->done;
                *ret_waits = false;
            }
    }
    return slots * j->config.packet_bytes;
}

uint32_t ut_job_inlets(ut_job *j, ut_ns now, ut_inlet *ret, ut_ns *look_at)
{
    uint32_t n = 0;
    for (uint32_t h = 0; h < j->config.hosts; h++) {
        ut_conn *c = &j->conn[h];
        if (h == j->config.self || !ut_job_host_is_up(j, h) || !c->listening)
            continue;
        ut_ns silent_at = c->rx.time_at + ut_job_patience(c);
        bool counts = c->rx.time_at && now < silent_at;
        uint64_t outstanding = ut_conn_outstanding(c);
        if (counts && outstanding)
            *look_at = UT_MIN2(*look_at, silent_at);
        bool waits;
        uint64_t more = known_of(j, h, &waits);
        if (more && outstanding)
            *look_at = UT_MIN2(*look_at, ut_conn_grant_again(c, now));
        ret[n++] = (ut_inlet){.granted = c->rx.granted,
                              .outstanding = outstanding,
                              .early = c->rx.stash_bytes,
                              .more = more,
                              .unasked = waits ? (uint64_t)UT_TRICKLE_PACKETS * j->config.packet_bytes : UINT64_MAX,
                              .counts = counts,
                              .owner = c};
    }
    return n;
}
