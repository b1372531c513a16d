/* SPDX-License-Identifier: Apache-2.0
 *
 * Notes on every host while an op runs, and what they come to. A note costs a few stores a packet; judging waits for
 * the end. The rule itself is culprit.c's.
 */
#include "core/account/account.h"
#include "core/account/culprit.h"

void ut_witness_begin(ut_op_account *a, uint64_t started, ut_ns now)
{
    for (uint32_t h = 0; h < a->job->hosts; h++) {
        const ut_conn *c = &a->job->conn[h];
        a->note[h] = (ut_note){.opened = ut_bits_have(started, h) ? now : UT_NEVER,
                               .heard = now,
                               .lost_before = c->tx.lost_packets - c->tx.spurious_losses,
                               .drops_before = c->peer.drops};
    }
}

void ut_witness_heard(ut_op_account *a, uint32_t host, bool opened, ut_ns now)
{
    assert(host < a->job->hosts && host != a->job->self);
    ut_note *n = &a->note[host];
    if (n->opened != UT_NEVER)
        n->quiet = UT_MAX2(n->quiet, now - n->heard);
    else if (opened)
        n->opened = now;
    n->heard = now;
}

void ut_witness_data(ut_op_account *a, uint32_t host, const ut_data *h, uint32_t packets, ut_ns now)
{
    ut_note *n = &a->note[host];
    const uint32_t lag = (uint32_t)(now / UT_US) - h->time_us;
    ut_witness_heard(a, host, true, now);
    if (n->packets == 0) {
        n->first = now;
        n->lag_first = lag;
    }
    assert(packets > 0);
    n->packets += packets;
    const int32_t over = ut_time_after(lag, n->lag_first);
    n->lag_least = UT_MIN2(n->lag_least, over);
    n->lag_most = UT_MAX2(n->lag_most, over);
    if (h->flags & UT_FLAG_REPAIR)
        n->repaired += h->payload_len;
}

static uint32_t us_after(ut_ns start, ut_ns at)
{
    return (uint32_t)UT_MIN2((UT_MAX2(at, start) - start) / UT_US, (ut_ns)UINT32_MAX - 1);
}

static ut_witness seen_of(const ut_op_account *a, const ut_account_facts *f, uint32_t host, const ut_receipt *r)
{
    const ut_conn *c = &a->job->conn[host];
    const ut_note *n = &a->note[host];
    const ut_receipt_peer *row = &r->peer[host];
    const ut_record *theirs = ut_bits_have(f->started, host) ? f->record[host] : NULL;
    bool opened = n->opened != UT_NEVER;
    ut_witness w = {.opened = opened,
                    .gone = a->job->conn[host].state != UT_CONN_UP || c->rx.last < f->start,
                    .opened_after = opened ? n->opened - f->start : f->now - f->start,
                    .quiet = opened ? UT_MAX2(n->quiet, f->now - n->heard) : 0,
                    .came = n->packets,
                    .again = n->repaired / a->job->payload,
                    .lost = row->lost,
                    .drops = row->drops,
                    .missing = (uint64_t)row->missing[0] + row->missing[1]};
    if (theirs && (theirs->flags & UT_RECORD_RESULT) && theirs->field == UT_FIELD_NONE)
        w.accuses = ~theirs->full_mask & (UINT64_MAX >> (64 - a->job->hosts));
    if (f->contributors) /* nobody is to blame for having had nothing to give */
        w.accuses &= f->contributors;
    return w;
}

/* Whose contribution to our shard is missing; where that is whole, of whose shards parts are. */
static uint64_t lacking(const ut_op_account *a, const ut_receipt *r)
{
    uint64_t mask = 0;
    for (unsigned stage = 0; stage < 2 && mask == 0; stage++)
        for (uint32_t h = 0; h < a->job->hosts; h++)
            mask |= r->peer[h].missing[stage] ? ut_bit(h) : 0;
    return mask;
}

uint64_t ut_witness_breakers(const ut_op_account *a, uint64_t tx_done)
{
    uint64_t lacks = 0, blamed = 0, gone = 0;
    /* Who got nothing in the first stage has nothing to pass on in the second. */
    for (unsigned stage = 1; stage <= 2 && lacks == 0; stage++)
        for (uint32_t i = 0; i < a->plan->schedule.steps; i++)
            if (a->plan->schedule.step[i].kind == UT_STEP_RECEIVE && a->plan->schedule.step[i].stage == stage &&
                !ut_transfer_complete(&a->plan->transfer[i]))
                lacks |= ut_bit(a->plan->schedule.step[i].peer);
    for (uint32_t h = 0; h < a->job->hosts; h++) {
        if (h == a->job->self)
            continue;
        if (a->note[h].opened == UT_NEVER || (lacks & ~tx_done & ut_bit(h)))
            blamed |= ut_bit(h);
        if (a->job->conn[h].state != UT_CONN_UP)
            gone |= ut_bit(h);
    }
    if (lacks == 0)
        return blamed;
    return gone & (lacks | blamed) ? gone & (lacks | blamed) : blamed ? blamed : gone;
}

static ut_witness seen_of_self(const ut_op_account *a, const ut_account_facts *f, const ut_receipt *r)
{
    ut_witness w = {.opened = true, .drops = r->drops_host};
    w.accuses = a->what->collective == UT_ALLREDUCE ? lacking(a, r) : ut_witness_breakers(a, f->tx_done);
    /* Of a host that was gone when the bucket was cut nothing is missing; what it would have given is. */
    uint64_t gone = 0;
    for (uint32_t h = 0; h < a->job->hosts; h++)
        gone |= h != a->job->self && a->job->conn[h].state != UT_CONN_UP ? ut_bit(h) : 0;
    if (w.accuses == 0)
        w.accuses = gone & f->contributors;
    ut_ns late = UT_NEVER; /* how long the last of the others had it open before us */
    for (uint32_t h = 0; h < a->job->hosts; h++) {
        if (h == a->job->self || a->note[h].opened == UT_NEVER)
            continue;
        ut_ns at = f->first_at[h];
        late = UT_MIN2(late, ut_bits_have(f->started, h) && at < f->start ? f->start - at : 0);
        w.lost += a->note[h].repaired / a->job->payload;
        w.came += a->note[h].packets;
    }
    w.opened_after = late == UT_NEVER ? 0 : late;
    return w;
}

void ut_witness_tell(const ut_op_account *a, const ut_account_facts *f, ut_receipt *r)
{
    ut_witness seen[UT_HOSTS_MAX];
    for (uint32_t h = 0; h < a->job->hosts; h++) {
        const ut_conn *c = &a->job->conn[h];
        const ut_note *n = &a->note[h];
        ut_receipt_peer *row = &r->peer[h];
        if (h == a->job->self)
            continue;
        uint64_t lost = c->tx.lost_packets - c->tx.spurious_losses;
        row->first_us = n->first ? us_after(f->start, n->first) : 0;
        row->opened_us = n->opened == UT_NEVER ? UINT32_MAX : us_after(f->start, n->opened);
        row->quiet_us = us_after(f->start, f->start + n->quiet);
        row->delay_us = (uint32_t)(n->lag_most - n->lag_least);
        row->repaired = (uint32_t)UT_MIN2(n->repaired, UINT32_MAX);
        row->lost = (uint32_t)(lost > n->lost_before ? UT_MIN2(lost - n->lost_before, UINT32_MAX) : 0);
        row->drops = c->peer.drops - n->drops_before;
    }
    if (r->status == UT_COMPLETE || r->error == UT_ERR_DESYNC || r->error == UT_ERR_CLOSED)
        return;
    for (uint32_t h = 0; h < a->job->hosts; h++)
        seen[h] = h == a->job->self ? seen_of_self(a, f, r) : seen_of(a, f, h, r);
    for (uint32_t h = 0; h < a->job->hosts; h++)
        if (h != a->job->self)
            r->peer[h].trouble = ut_culprit_trouble(seen, h, r->elapsed_ns);
    ut_verdict verdict = ut_culprit_find(seen, a->job->hosts, a->job->self, r->elapsed_ns);
    if (f->blamed) {
        verdict.host = (uint16_t)__builtin_ctzll(f->blamed);
        verdict.trouble = ut_culprit_trouble(seen, verdict.host, r->elapsed_ns);
    }
    verdict = ut_culprit_blocked(verdict, seen, a->job->hosts, a->job->self, a->job->blocked);
    assert(verdict.host < a->job->hosts || verdict.host == 0xffff);
    r->culprit = verdict.host;
    r->trouble = verdict.trouble;
}
