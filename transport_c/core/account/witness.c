/* SPDX-License-Identifier: Apache-2.0
 *
 * Notes on every host while an op runs, and what they come to. A note costs a few stores a packet; judging waits for
 * the end. The rule itself is culprit.c's.
 */
#include "core/account/culprit.h"
#include "core/op/op.h"

static uint32_t low24(uint32_t x)
{
    return x & 0xffffff;
}

/* The nearest signed number to a difference of two 24-bit numbers. */
static int32_t signed24(uint32_t x)
{
    return (int32_t)(x << 8) >> 8;
}

void ut_witness_begin(ut_job *j, ut_op *op, ut_ns now)
{
    for (uint32_t h = 0; h < j->config.hosts; h++) {
        const ut_conn *c = &j->conn[h];
        op->account.note[h] = (ut_note){.opened = h != j->config.self && ut_op_record_of(j, op, h) ? now : UT_NEVER,
                                        .heard = now,
                                        .lost_before = c->tx.lost_packets - c->tx.spurious_losses,
                                        .drops_before = c->peer.drops};
    }
}

void ut_witness_word(ut_op *op, uint32_t host, bool opened, ut_ns now)
{
    ut_note *n = &op->account.note[host];
    if (n->opened != UT_NEVER)
        n->quiet = UT_MAX2(n->quiet, now - n->heard);
    else if (opened)
        n->opened = now;
    n->heard = now;
}

void ut_witness_data(ut_op *op, uint32_t host, const ut_data *h, size_t len, ut_ns now)
{
    ut_note *n = &op->account.note[host];
    uint32_t lag = low24((uint32_t)(now / UT_US) - h->time_us);
    ut_witness_word(op, host, true, now);
    if (n->packets++ == 0) {
        n->first = now;
        n->lag_first = lag;
    }
    int32_t over = signed24(low24(lag - n->lag_first));
    n->lag_least = UT_MIN2(n->lag_least, over);
    n->lag_most = UT_MAX2(n->lag_most, over);
    if (h->flags & UT_FLAG_REPAIR)
        n->repaired += len;
}

static uint32_t us_after(const ut_op *op, ut_ns at)
{
    return (uint32_t)UT_MIN2((UT_MAX2(at, op->time.start) - op->time.start) / UT_US, (ut_ns)UINT32_MAX - 1);
}

static ut_witness seen_of(const ut_job *j, const ut_op *op, uint32_t host, ut_ns now, const ut_receipt *r)
{
    const ut_conn *c = &j->conn[host];
    const ut_note *n = &op->account.note[host];
    const ut_receipt_peer *row = &r->peer[host];
    const ut_record *theirs = ut_op_record_of(j, op, host);
    bool opened = n->opened != UT_NEVER;
    ut_witness w = {.opened = opened,
                    .gone = !ut_job_host_is_up(j, host) || c->rx.last < op->time.start,
                    .opened_after = opened ? n->opened - op->time.start : now - op->time.start,
                    .quiet = opened ? UT_MAX2(n->quiet, now - n->heard) : 0,
                    .came = n->packets,
                    .again = n->repaired / j->payload,
                    .lost = row->lost,
                    .drops = row->drops,
                    .missing = (uint64_t)row->missing[0] + row->missing[1]};
    if (theirs && (theirs->flags & UT_RECORD_RESULT) && theirs->field == UT_FIELD_NONE)
        w.accuses = ~theirs->full_mask & (UINT64_MAX >> (64 - j->config.hosts));
    uint64_t contribute = j->gathering->contributors(j, op);
    if (contribute) /* nobody is to blame for having had nothing to give */
        w.accuses &= contribute;
    return w;
}

/* Whose contribution to our shard is missing; where that is whole, of whose shards parts are. */
static uint64_t lacking(const ut_job *j, const ut_receipt *r)
{
    uint64_t mask = 0;
    for (unsigned stage = 0; stage < 2 && mask == 0; stage++)
        for (uint32_t h = 0; h < j->config.hosts; h++)
            mask |= r->peer[h].missing[stage] ? ut_bit(h) : 0;
    return mask;
}

uint64_t ut_witness_breakers(const ut_job *j, const ut_op *op)
{
    uint64_t lacks = 0, blamed = 0, gone = 0;
    /* Who got nothing in the first stage has nothing to pass on in the second. */
    for (unsigned stage = 1; stage <= 2 && lacks == 0; stage++)
        for (uint32_t i = 0; i < op->plan.schedule.steps; i++)
            if (op->plan.schedule.step[i].kind == UT_STEP_RECEIVE && op->plan.schedule.step[i].stage == stage &&
                !ut_transfer_complete(&op->plan.transfer[i]))
                lacks |= ut_bit(op->plan.schedule.step[i].peer);
    for (uint32_t h = 0; h < j->config.hosts; h++) {
        if (h == j->config.self)
            continue;
        if (op->account.note[h].opened == UT_NEVER || (lacks & ~op->peers.tx_done & ut_bit(h)))
            blamed |= ut_bit(h);
        if (!ut_job_host_is_up(j, h))
            gone |= ut_bit(h);
    }
    if (lacks == 0)
        return blamed;
    return gone & (lacks | blamed) ? gone & (lacks | blamed) : blamed ? blamed : gone;
}

static ut_witness seen_of_self(const ut_job *j, const ut_op *op, const ut_receipt *r)
{
    ut_witness w = {.opened = true, .drops = r->drops_host};
    w.accuses = op->what.collective == UT_ALLREDUCE ? lacking(j, r) : ut_witness_breakers(j, op);
    ut_ns late = UT_NEVER; /* how long the last of the others had it open before us */
    for (uint32_t h = 0; h < j->config.hosts; h++) {
        if (h == j->config.self || op->account.note[h].opened == UT_NEVER)
            continue;
        ut_ns at = j->claims[h].first_at[op->seq % UT_OPS_MAX];
        late = UT_MIN2(late, ut_op_record_of(j, op, h) && at < op->time.start ? op->time.start - at : 0);
        w.lost += op->account.note[h].repaired / j->payload;
        w.came += op->account.note[h].packets;
    }
    w.opened_after = late == UT_NEVER ? 0 : late;
    return w;
}

void ut_witness_tell(const ut_job *j, const ut_op *op, ut_ns now, ut_receipt *r)
{
    ut_witness seen[UT_HOSTS_MAX];
    for (uint32_t h = 0; h < j->config.hosts; h++) {
        const ut_conn *c = &j->conn[h];
        const ut_note *n = &op->account.note[h];
        ut_receipt_peer *row = &r->peer[h];
        if (h == j->config.self)
            continue;
        uint64_t lost = c->tx.lost_packets - c->tx.spurious_losses;
        row->first_us = n->first ? us_after(op, n->first) : 0;
        row->opened_us = n->opened == UT_NEVER ? UINT32_MAX : us_after(op, n->opened);
        row->quiet_us = us_after(op, op->time.start + n->quiet);
        row->delay_us = (uint32_t)(n->lag_most - n->lag_least);
        row->repaired = (uint32_t)UT_MIN2(n->repaired, UINT32_MAX);
        row->lost = (uint32_t)(lost > n->lost_before ? UT_MIN2(lost - n->lost_before, UINT32_MAX) : 0);
        row->drops = c->peer.drops - n->drops_before;
    }
    if (r->status == UT_COMPLETE || r->error == UT_ERR_DESYNC || r->error == UT_ERR_CLOSED)
        return;
    for (uint32_t h = 0; h < j->config.hosts; h++)
        seen[h] = h == j->config.self ? seen_of_self(j, op, r) : seen_of(j, op, h, now, r);
    for (uint32_t h = 0; h < j->config.hosts; h++)
        if (h != j->config.self)
            r->peer[h].trouble = ut_culprit_trouble(seen, h, r->elapsed_ns);
    ut_verdict verdict = ut_culprit_find(seen, j->config.hosts, j->config.self, r->elapsed_ns);
    r->culprit = verdict.host;
    r->trouble = verdict.trouble;
}
