/* SPDX-License-Identifier: Apache-2.0
 *
 * Parity that comes: what it brings back is taken in as if it had come.
 */
#include "core/op/op_parity.h"

#include "kernels/kernels.h"

/* The step of |op| in which |host| sends what begins at |offset|; UINT32_MAX for none. */
static uint32_t step_at(const ut_job *j, const ut_op *op, uint32_t host, const ut_data *h, uint32_t *ret_slot)
{
    for (uint32_t i = op->plan.rx_of[h->stage - 1][host]; i != UINT32_MAX; i = op->plan.peer_next[i]) {
        const ut_step *s = &op->plan.schedule.step[i];
        const uint64_t at = h->ultima.offset - s->offset;
        if (h->ultima.offset < s->offset || at >= s->bytes || at % j->payload)
            continue;
        *ret_slot = (uint32_t)(at / j->payload);
        return i;
    }
    return UINT32_MAX;
}

/* Takes in what was rebuilt, as if it had come. */
static void take_in(ut_job *j, uint32_t host, const ut_op *op, uint32_t i, const ut_data *parity,
                    const ut_parity_found *found, ut_ns now)
{
    const ut_step *s = &op->plan.schedule.step[i];
    const ut_transfer *t = &op->plan.transfer[i];
    ut_stats *stats = j->host->counters;
    for (uint32_t k = 0; k < found->packets; k++) {
        if (op->seq != parity->op_seq || op->state != UT_OP_RUNNING)
            return; /* the last one was all that lacked */
        const uint32_t len = ut_transfer_slot_bytes(t, found->slot[k], j->payload);
        if (len > found->len || ut_transfer_has(t, found->slot[k]))
            continue;
        ut_data h = *parity;
        h.flags = UT_FLAG_REBUILT;
        h.ultima.offset = (uint32_t)(s->offset + (uint64_t)found->slot[k] * j->payload);
        h.ultima.timeout = 0;
        h.payload = found->payload[k];
        h.payload_len = len;
        h.payload_crc = ut_crc32c(0, h.payload, len);
        if (ut_op_data(j, host, &h, now) != UT_TAKEN_USED)
            continue;
        stats->data_rebuilt++;
        stats->bytes_used += len;
    }
}

/* All of a group is here. */
static bool has_all(const ut_transfer *t, const ut_parity_group *g)
{
    uint32_t n = 0;
    while (n < g->members && ut_transfer_has(t, (g->first + n) % t->slots))
        n++;
    return n == g->members;
}

enum ut_taken ut_op_parity(ut_job *j, uint32_t host, const ut_data *h, ut_ns now)
{
    ut_op *op = ut_job_op(j, h->op_seq);
    ut_parity *p = &j->conn[host].parity;
    uint32_t slot = 0;
    if (op->seq != h->op_seq || op->state != UT_OP_RUNNING)
        return UT_TAKEN_PARITY; /* what it is the sum of is kept, or has gone by, without it */
    const uint32_t i = step_at(j, op, host, h, &slot), members = h->ultima.timeout & 255;
    if (i == UINT32_MAX || h->view != op->plan.view_tag)
        return UT_TAKEN_REFUSED;
    const ut_transfer *t = &op->plan.transfer[i];
    const ut_parity_group g = {{op->seq, i}, slot, (uint16_t)members, h->coverage};
    if (t->granules || members > t->slots ||
        !ut_parity_came(p, &g, h->ultima.timeout >> 8, h->payload, (uint32_t)h->payload_len))
        return UT_TAKEN_REFUSED;
    op->account.wire_received += h->payload_len;
    if (ut_transfer_over(t) || has_all(t, &g))
        return UT_TAKEN_PARITY;
    ut_parity_found found;
    ut_parity_solve(p, &g, t->slots, &found);
    take_in(j, host, op, i, h, &found, now);
    return UT_TAKEN_PARITY;
}
