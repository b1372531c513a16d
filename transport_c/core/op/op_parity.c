/* SPDX-License-Identifier: Apache-2.0
 *
 * Groups are cut out of a transfer in the order in which its slots go for the first time: as few as there must be, and
 * as equal. A group has parity if it is among the last slots, of which losses would be repaired after all else has
 * come.
 */
#include "core/op/op_parity.h"
#include "core/link/cap.h"

static uint32_t group_of(const ut_transfer *t, const ut_parity *p)
{
    const uint32_t most = ut_parity_group_most(p->room), groups = (t->slots + most - 1) / most;
    return (t->slots + groups - 1) / groups;
}

/* How many parity packets follow the group that begins with the |nth| slot of |t|. */
static uint32_t worth(const ut_job *j, ut_conn *c, const ut_transfer *t, uint32_t nth, uint32_t members)
{
    ut_parity *p = &c->parity;
    const uint32_t may = ut_conn_may_send(c, j->config.packet_bytes),
                   now = (uint32_t)c->tx.flying + UT_MIN2(may, 1u << 20);
    p->window = UT_MAX2(now, p->window - p->window / 8);
    if (t->slots - nth - members > p->window)
        return 0;
    const uint32_t ppm = ut_parity_losses(p, c->tx.lost_packets - c->tx.spurious_losses, c->tx.next);
    return ut_parity_worth(members, p->window, ppm, p->most);
}

void ut_op_parity_sends(ut_job *j, ut_op *op, uint32_t i, const ut_payloads *p, uint32_t slot, unsigned coverage)
{
    const ut_step *s = &op->plan.schedule.step[i];
    const ut_transfer *t = &op->plan.transfer[i];
    ut_conn *c = &j->conn[s->peer];
    if (c->tx.srtt < UT_PARITY_TRIP_NS || c->parity.room < 2 ||
        op->what.collective == UT_ALLREDUCE_SPARSE) /* whose slots are not known before the last one came */
        return;
    const ut_parity_name of = ut_op_parity_name(op, s);
    const uint32_t group = group_of(t, &c->parity);
    ut_parity_sums *sums = ut_parity_of(&c->parity, of);
    for (uint32_t k = 0; k < p->slots; k++) {
        const uint32_t at = slot + k, nth = at >= t->start ? at - t->start : at + t->slots - t->start;
        const uint32_t members = UT_MIN2(group, t->slots - nth);
        if (nth % group == 0) {
            const uint32_t n = worth(j, c, t, nth, members);
            const ut_parity_group g = {.of = of, .first = at, .coverage = (uint16_t)coverage};
            sums = n ? ut_parity_begin(&c->parity, &g, members, n) : NULL;
        }
        if (!sums)
            continue;
        if (nth % group != sums->group.members || sums->group.coverage != coverage) {
            sums->parities = 0; /* one of them went otherwise, or not at all */
            sums = NULL;
            continue;
        }
        ut_parity_add(&c->parity, sums, p->first + k * p->stride, (uint32_t)p->len);
        if (sums->group.members == sums->most) {
            j->parity_due = true;
            sums = NULL;
        }
    }
}

static void append(ut_job *j, const ut_op *op, ut_conn *c, ut_parity_sums *sums, ut_ns now, ut_burst *b)
{
    const ut_step *s = &op->plan.schedule.step[sums->group.of.step];
    const bool ask = ut_conn_asks_in(c, j->config.packet_bytes) == 0 || sums->sent + 1 == sums->parities;
    const ut_sent sent = {.op_seq = op->seq,
                          .step = (uint8_t)sums->group.of.step,
                          .slot = UT_SENT_PARITY + sums->sent,
                          .bytes = (uint16_t)ut_wire_packet(sums->bytes, j->frame.overhead)};
    const uint64_t pn = ut_conn_sending(c, &sent, 1, ask, now);
    const ut_data h = {.flags = (uint8_t)(UT_FLAG_PARITY | (ask ? UT_FLAG_ASK : 0)),
                       .stage = s->stage,
                       .coverage = sums->group.coverage,
                       .cid = c->tx_cid,
                       .pn = (uint32_t)pn,
                       .op_seq = op->seq,
                       .view = op->plan.view_tag,
                       .time_us = (uint32_t)(now / UT_US) & UT_TIME_MASK,
                       .ultima = {.bucket = (uint16_t)op->seq,
                                  .offset = (uint32_t)(s->offset + (uint64_t)sums->group.first * j->payload),
                                  .timeout = ut_parity_place(sums->sent, sums->group.members),
                                  .incast = (uint8_t)UT_MIN2(ut_job_incast_own(j), UT_INCAST_MAX)}};
    ut_data_form form = ut_data_form_of(&h);
    ut_data_append(b, &form, sums->sum + (size_t)sums->sent * j->payload, sums->bytes, NULL);
    sums->sent++;
}

/* The op of a group whose peer still takes something of its transfer; NULL: it is not sent any more. */
static ut_op *op_of(ut_job *j, const ut_parity_sums *sums)
{
    ut_op *op = ut_job_op(j, sums->group.of.op_seq);
    const uint32_t i = sums->group.of.step;
    const bool on = ut_op_sends(op) && op->seq == sums->group.of.op_seq && i < op->plan.schedule.steps;
    return on && !ut_transfer_over(&op->plan.transfer[i]) ? op : NULL;
}

/* Those of one group. */
static bool burst_of(ut_job *j, ut_conn *c, ut_parity_sums *sums, ut_ns now, ut_burst *b)
{
    ut_op *op = op_of(j, sums);
    if (!op || !ut_mtu_whole(&c->mtu, j->config.packet_bytes, (uint32_t)(now / UT_US))) {
        sums->parities = 0;
        return false;
    }
    uint32_t most = UT_MIN2(ut_conn_may_send(c, j->config.packet_bytes), j->host->segments_max);
    most =
        ut_tokens_take(&j->tokens, UT_MIN2(most, (uint32_t)(sums->parities - sums->sent)), j->config.packet_bytes, now);
    most = ut_cap_take(j->host->cap, most, j->config.packet_bytes, now);
    if (most == 0)
        return false;
    ut_burst_begin(b, &c->at[UT_PORT_DATA], UT_PORT_DATA, ut_conn_seal(c), c->tx.next);
    while (most-- > 0)
        append(j, op, c, sums, now, b);
    b->segment_bytes = b->bytes / b->segments;
    sums->parities = sums->sent == sums->parities ? 0 : sums->parities;
    ut_tokens_sent(&j->tokens, b->bytes);
    ut_stats *stats = j->host->counters;
    stats->bursts_sent++;
    stats->data_sent += b->segments;
    stats->data_sent_bytes += b->bytes;
    stats->parity_sent += b->segments;
    return true;
}

bool ut_op_parity_output(ut_job *j, ut_ns now, ut_burst *b)
{
    bool due = false;
    for (uint32_t h = 0; h < j->config.hosts; h++) {
        ut_parity_sums *sums = h == j->config.self ? NULL : ut_parity_due(&j->conn[h].parity);
        if (sums && burst_of(j, &j->conn[h], sums, now, b))
            return true;
        due = due || ut_parity_due(&j->conn[h].parity);
    }
    j->parity_due = due;
    return false;
}
