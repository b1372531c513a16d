/* SPDX-License-Identifier: Apache-2.0
 *
 * Packets in: a slot's bit is tested, then the payload is folded straight from the receive buffer into its place, once.
 * Packets that follow each other in one transfer are taken in as one run: its place is looked up once, and what is
 * noted of a packet is noted once.
 */
#include "core/op/op_epoch.h"

/* ---- data ---- */

/* Finds the slot that an offset and a length name. False if they name none of this step. */
static bool slot_of(const ut_job *j, const ut_step *s, const ut_transfer *t, uint64_t offset, size_t len, uint32_t *ret)
{
    if (offset < s->offset || offset >= s->offset + s->bytes || (offset - s->offset) % j->payload)
        return false;
    *ret = (uint32_t)((offset - s->offset) / j->payload);
    return ut_transfer_slot_bytes(t, *ret, j->payload) == len || (t->granules && len <= j->payload);
}

/* The most ranks that a packet can have in it, or lack in stage 2. A contribution that came from its host in one hop
 * holds the ranks of that host alone. */
static uint32_t coverage_most(const ut_job *j, const ut_op *op, uint32_t host, unsigned stage)
{
    return stage == 1 && op->plan.schedule.direct && !op->plan.schedule.placed ? ut_job_ranks_of(j, host) : j->world;
}

/* Where a data packet's payload belongs. */
typedef struct place {
    ut_op *op;
    const ut_step *step;
    ut_transfer *transfer;
    uint32_t slot;
} place;

/* Finds it. USED: it is found. */
static enum ut_taken find(ut_job *j, uint32_t host, const ut_data *h, place *ret)
{
    const uint64_t seq = h->op_seq;
    ut_op *op = ut_job_op(j, seq);
    if (ut_ledger_is_too_far(&j->ledger, j->next_open, seq))
        return UT_TAKEN_REFUSED;
    ut_ledger_spoke(&j->ledger, host, seq);
    if (op->seq != seq || op->state != UT_OP_RUNNING) {
        if (ut_job_is_to_come(j, seq))
            return UT_TAKEN_EARLY;
        return seq < j->next_open ? UT_TAKEN_LATE : UT_TAKEN_AHEAD;
    }
    uint32_t i = op->plan.rx_of[h->stage - 1][host], slot = 0;
    while (i != UINT32_MAX &&
           !slot_of(j, &op->plan.schedule.step[i], &op->plan.transfer[i], h->ultima.offset, h->payload_len, &slot))
        i = op->plan.peer_next[i];
    if (i == UINT32_MAX || h->view != op->plan.view_tag || h->coverage > coverage_most(j, op, host, h->stage))
        return UT_TAKEN_REFUSED;
    if (op->what.weighted && h->stage == 1 && !(op->peers.record_matched & ut_bit(host)))
        return UT_TAKEN_EARLY; /* its weight stands in its record */
    *ret = (place){op, &op->plan.schedule.step[i], &op->plan.transfer[i], slot};
    return UT_TAKEN_USED;
}

/* Folds or places payloads that are new and of use, from the slot of |at| on; the headers of all are like |h|. */
static void put(const place *at, const ut_data *h, const ut_payloads *p)
{
    ut_op *op = at->op;
    ut_transfer *t = at->transfer;
    assert(!t->closed && at->slot + p->slots <= t->slots);
    if (at->step->stage == 1 && !op->plan.schedule.placed) {
        t->weight = (uint16_t)(t->weight ? UT_MIN2(t->weight, h->coverage) : h->coverage);
        ut_fold_add(&op->fold, at->step, at->slot, p, h->coverage);
    } else {
        t->weight = at->step->stage == 1 ? h->coverage : t->weight;
        ut_fold_place(&op->fold, at->step, at->slot, p, at->step->stage == 1 ? 0 : h->coverage);
    }
}

/* Takes a payload in at its place. */
static enum ut_taken take(const place *at, const ut_data *h)
{
    ut_op *op = at->op;
    const ut_step *s = at->step;
    ut_transfer *t = at->transfer;
    const uint8_t *payload = h->payload;
    size_t len = h->payload_len;
    uint32_t slot = at->slot;
    assert(op->state == UT_OP_RUNNING && s->kind == UT_STEP_RECEIVE && s->stage == h->stage);
    op->account.wire_received += h->flags & UT_FLAG_REBUILT ? 0 : len;
    bool needed = !t->closed;
    if (needed && s->stage == 1 && !ut_transfer_has(t, slot))
        needed = !ut_fold_moot(&op->fold, s, slot);
    if (!needed) {
        op->fold.moot += s->stage == 1 ? len : 0;
        return UT_TAKEN_LATE;
    }
    if (!ut_fold_takes(&op->fold, s, slot, payload, len))
        return UT_TAKEN_REFUSED;
    if (!ut_transfer_mark(t, slot)) {
        op->account.bytes_duplicate += ut_transfer_counts(t, slot, len);
        return UT_TAKEN_DUPLICATE;
    }
    if (h->flags & UT_FLAG_REPAIR)
        op->account.bytes_repaired += ut_transfer_counts(t, slot, len);
    put(at, h, &(ut_payloads){.first = payload, .len = len, .slots = 1, .crc = &h->payload_crc});
    return UT_TAKEN_USED;
}

/* |packets| like |h| were used. */
static void note(ut_job *j, uint32_t host, const place *at, const ut_data *h, uint32_t packets, ut_ns now)
{
    at->transfer->last = now;
    ut_witness_data(&at->op->account, host, h, packets, now);
    ut_op_packet_time(j, at->op, host, h, at->transfer, now);
}

/* Keeps the |nth| of some packets like |h| that were used, for parity that may come. */
static void keep(ut_job *j, uint32_t host, const place *at, const ut_data *h, uint32_t nth, const uint8_t *payload)
{
    const ut_parity_group what = {
        .of = ut_op_parity_name(at->op, at->step), .first = at->slot + nth, .coverage = h->coverage};
    ut_parity_keep(&j->conn[host].parity, &what, payload, (uint32_t)h->payload_len);
}

enum ut_taken ut_op_data(ut_job *j, uint32_t host, const ut_data *h, ut_ns now)
{
    assert(host < j->config.hosts && host != j->config.self);
    place at;
    enum ut_taken taken = find(j, host, h, &at);
    if (taken == UT_TAKEN_USED)
        taken = take(&at, h);
    if (taken != UT_TAKEN_USED)
        return taken;
    if (!(h->flags & UT_FLAG_REBUILT))
        keep(j, host, &at, h, 0, h->payload);
    note(j, host, &at, h, 1, now);
    if (ut_transfer_over(at.transfer))
        ut_op_check(j, at.op, now);
    return taken;
}

/* How many packets of |r|, from the first on, are new, of use, and not the one that ends the transfer: that one comes
 * alone, when all others have been noted. */
static uint32_t usable(const ut_job *j, const place *at, const ut_data_run *r)
{
    const ut_transfer *t = at->transfer;
    uint32_t n = ut_transfer_absent(t, at->slot, r->packets), needed = 0;
    if (n > 0 && ut_transfer_slot_bytes(t, at->slot + n - 1, j->payload) != r->first.payload_len)
        n--;
    while (needed < n && !(at->step->stage == 1 && ut_fold_moot(&at->op->fold, at->step, at->slot + needed)) &&
           ut_fold_takes(&at->op->fold, at->step, at->slot + needed, r->first.payload + needed * r->stride,
                         r->first.payload_len))
        needed++;
    return needed > 0 && t->done + needed == t->slots ? needed - 1 : needed;
}

uint32_t ut_op_data_run(ut_job *j, uint32_t host, const ut_data_run *r, ut_ns now)
{
    const ut_data *h = &r->first;
    place at;
    if (find(j, host, h, &at) != UT_TAKEN_USED || !ut_fold_is_sum(&at.op->fold) || at.transfer->closed)
        return 0;
    const uint32_t n = usable(j, &at, r);
    if (n == 0)
        return 0;
    assert(n <= r->packets);
    at.op->account.wire_received += n * h->payload_len;
    ut_transfer_mark_run(at.transfer, at.slot, n);
    put(&at, h, &(ut_payloads){h->payload, h->payload_len, r->stride, n, r->payload_crc});
    for (uint32_t k = 0; k < n && j->conn[host].parity.keeps; k++)
        keep(j, host, &at, h, k, h->payload + k * r->stride);
    note(j, host, &at, h, n, now);
    return n;
}

void ut_taken_count(ut_stats *s, enum ut_taken taken, size_t payload)
{
    switch (taken) {
    case UT_TAKEN_USED:
        s->data_used++;
        s->bytes_used += payload;
        break;
    case UT_TAKEN_DUPLICATE:
        s->data_duplicate++;
        s->bytes_duplicate += payload;
        break;
    case UT_TAKEN_LATE:
        s->data_late++;
        s->bytes_late += payload;
        break;
    case UT_TAKEN_REFUSED:
    case UT_TAKEN_AHEAD:
        s->data_refused++;
        break;
    case UT_TAKEN_EARLY:
        s->data_stashed++;
        break;
    case UT_TAKEN_PARITY:
        s->data_parity++;
        break;
    }
}

/* ---- feedback ---- */

/* |host| sends nothing more for |op|: what has not come from it will not come. |why|: enum ut_missing, of which none of
 * it has come. */
static void close_from(ut_job *j, ut_op *op, uint32_t host, uint8_t why, ut_ns now)
{
    bool changed = false;
    op->peers.tx_done |= ut_bit(host);
    for (unsigned stage = 0; stage < 2; stage++)
        for (uint32_t i = op->plan.rx_of[stage][host]; i != UINT32_MAX; i = op->plan.peer_next[i]) {
            if (ut_transfer_over(&op->plan.transfer[i]))
                continue;
            op->plan.transfer[i].closed = 1;
            op->plan.transfer[i].why = op->plan.transfer[i].done ? UT_MISSING_LOST : why;
            changed = true;
        }
    if (changed)
        ut_op_check(j, op, now);
}

/* |host| wants nothing more of |op|. */
static void close_to(ut_op *op, uint32_t host)
{
    op->peers.rx_done |= ut_bit(host);
    for (unsigned stage = 0; stage < 2 && op->plan.schedule.steps; stage++)
        for (uint32_t i = op->plan.tx_of[stage][host]; i != UINT32_MAX; i = op->plan.peer_next[i])
            op->plan.transfer[i].closed = 1;
}

/* |host| has closed stage 1, with or without all that we have for it: the rest would only stand before stage 2. */
static void close_stage1_to(ut_op *op, uint32_t host)
{
    for (uint32_t i = op->plan.schedule.steps ? op->plan.tx_of[0][host] : UINT32_MAX; i != UINT32_MAX;
         i = op->plan.peer_next[i])
        op->plan.transfer[i].closed = 1;
}

static bool has_come(const ut_op *op, uint32_t host)
{
    for (unsigned stage = 0; stage < 2; stage++)
        for (uint32_t i = op->plan.rx_of[stage][host]; i != UINT32_MAX; i = op->plan.peer_next[i])
            if (op->plan.transfer[i].done)
                return true;
    return false;
}

/* |host| has opened the op under another epoch: what is sent between us would be refused, and nobody must wait for it.
 *
 * A packet names its epoch by 16 bits alone, so two epochs in 65,536 pairs have the same tag, and whoever may propose
 * epochs can search for such a pair. What came under that tag before this record was taken for ours. Then the op fails,
 * and names the two ids. So no result is whole that has something of another epoch in it: for that every record must
 * have come, but of a host that left the op when nobody had heard it for all the time that it lingers. What ends at its
 * deadline before the record has come is not whole, and may have it in. False: the op has failed. */
static bool part_ways(ut_job *j, ut_op *op, uint32_t host, const ut_record *r, ut_ns now)
{
    assert(r->op_seq == op->seq && !ut_op_epoch_is(op, r));
    if (op->state == UT_OP_RUNNING && r->view == op->plan.view_tag && has_come(op, host)) {
        ut_op_desync(j, op, host, UT_FIELD_VIEW, op->epoch.id, r->epoch, now);
        return false;
    }
    close_to(op, host);
    close_from(j, op, host, UT_MISSING_VIEW, now);
    return true;
}

/* What it says that it brings: a host that is not in the op brings nothing, whatever it says. */
static void take_shares(ut_job *j, ut_op *op, uint32_t host, const ut_record *r, bool first, ut_ns now)
{
    ut_record own = *r;
    if (!ut_bits_have(op->epoch.members, host))
        own.weight = own.fresh = own.stale = 0;
    else if (op->what.weighted && first)
        op->fold.share[host] = r->share;
    j->gathering->record(j, op, host, &own, now);
}

void ut_op_record(ut_job *j, ut_op *op, uint32_t host, ut_ns now)
{
    assert(ut_op_sends(op));
    if (op->seq < j->ledger.row[host].rx_floor)
        close_to(op, host);
    const ut_record *r = ut_op_record_of(j, op, host);
    if (r) {
        if (op->state == UT_OP_RUNNING && (r->flags & UT_RECORD_FAILED) && r->field) {
            ut_op_desync(j, op, host, r->field, r->full_mask, r->any_mask, now);
            return;
        }
        if (op->state == UT_OP_RUNNING && !ut_op_agrees(j, op, host, r, now))
            return;
        bool first = !(op->peers.record_matched & ut_bit(host)), news = first || (r->flags & UT_RECORD_RESULT);
        op->peers.record_matched |= ut_bit(host);
        if (first && op->state == UT_OP_RUNNING)
            ut_op_time_host(j, op, true, now);
        if ((r->flags & UT_RECORD_SENT) && op->state == UT_OP_RUNNING)
            ut_op_time_sent(op, host, now);
        if (op->state == UT_OP_RUNNING)
            take_shares(j, op, host, r, first, now);
        /* After its record: who gives nothing lacks nothing, under whatever epoch. */
        if (!ut_op_epoch_is(op, r) && !part_ways(j, op, host, r, now))
            return;
        if ((r->flags & UT_RECORD_RESULT) && !(op->peers.peer_masks & ut_bit(host))) {
            op->peers.peer_masks |= ut_bit(host);
            op->peers.peer_full &= r->full_mask;
            close_stage1_to(op, host);
        }
        if (r->flags & UT_RECORD_RX_DONE)
            close_to(op, host);
        if (r->flags & UT_RECORD_TX_DONE)
            close_from(j, op, host, UT_MISSING_CLOSED, now);
        if (news)
            ut_op_check(j, op, now);
    }
    if (op->state == UT_OP_RUNNING && op->seq < j->ledger.row[host].tx_floor) {
        op->peers.record_matched |= ut_bit(host);
        op->peers.masks_waived |= ut_bit(host);
        close_from(j, op, host, UT_MISSING_CLOSED, now);
        ut_op_check(j, op, now);
    }
}

bool ut_op_feedback_is_wild(const ut_job *j, uint32_t host, const ut_feedback *f)
{
    return ut_ledger_is_wild(&j->ledger, host, f, j->next_open, j->next_open > j->config.first_op_seq);
}

/* What of a feedback is new, and so how soon it is answered. */
typedef struct news {
    bool any, urgent; /* something is new; and the peer may be waiting for an answer to it */
    bool left;        /* something was not kept */
} news;

/* Its sender says the record again soon if it is not answered, see is_urgent in op_send.c: it is of an op that has not
 * started there, or it is the first of an op that somebody still runs. What comes after that has time. */
static bool is_urgent(const ut_job *j, const ut_record *r, enum ut_heard heard)
{
    const ut_op *op = &j->op[r->op_seq % UT_OPS_MAX];
    const uint8_t started = j->gathering->record_flags;
    const bool runs = !(r->flags & UT_RECORD_RX_DONE) || (op->seq == r->op_seq && op->state == UT_OP_RUNNING);
    return (r->flags & started) != started || (heard == UT_HEARD_FIRST && runs);
}

/* What |host| says of one op. */
static void hear_record(ut_job *j, uint32_t host, const ut_record *r, news *ret, ut_ns now)
{
    const bool far = ut_ledger_is_too_far(&j->ledger, j->next_open, r->op_seq);
    if (far || r->op_seq >= j->next_open + j->gathering->early) {
        if (!far)
            ut_ledger_spoke(&j->ledger, host, r->op_seq);
        ret->left = true; /* it is said again until we have come there, and would be in the way of nearer ones */
        return;
    }
    enum ut_heard heard = ut_ledger_hear_record(&j->ledger, host, r, now);
    if (heard == UT_HEARD_OLDER)
        return;
    ret->any = ret->any || heard > UT_HEARD_NOTHING;
    ret->urgent = ret->urgent || (heard > UT_HEARD_NOTHING && is_urgent(j, r, heard));
    ut_op_replica_heard(j, host, r);
    if (j->gathering->hear(j, host, r))
        ut_ledger_spoke(&j->ledger, host, r->op_seq);
}

/* Floors, records and versions. A newer version is answered, so that it need not be said again. */
static void hear(ut_job *j, uint32_t host, const ut_feedback *f, ut_ns now)
{
    const bool newer = ut_ledger_is_newer(&j->ledger, host, f);
    news n = {.any = ut_ledger_hear_floors(&j->ledger, host, f, j->next_open) == UT_HEARD_NEWS};
    for (unsigned i = 0; i < f->records; i++)
        hear_record(j, host, &f->record[i], &n, now);
    if (!newer)
        return;
    if (!n.left)
        ut_ledger_took(&j->ledger, host, f);
    if (!n.any)
        ut_ledger_asked(&j->ledger, host, ut_job_answer_time(&j->conn[host]));
    const ut_ns hold = !n.any ? 0 : n.urgent ? (ut_ns)UT_HOLD_NS : (ut_ns)UT_STATE_SLACK_NS;
    ut_conn_speak_at(&j->conn[host], now + hold);
}

void ut_op_feedback(ut_job *j, uint32_t host, const ut_feedback *f, ut_ns now)
{
    assert(host < j->config.hosts && host != j->config.self && f->records <= UT_OPS_MAX);
    ut_conn *c = &j->conn[host];
    j->incast.stale = j->incast.stale || c->peer.incast != f->incast;
    c->peer.incast = f->incast;
    j->losses.of[host] = f->loss;
    hear(j, host, f, now);
    bool weighs = false; /* it has told a weight that was not known */
    for (unsigned k = 0; k < UT_OPS_MAX; k++) {
        ut_op *op = &j->op[k];
        const bool matched = op->peers.record_matched & ut_bit(host);
        if (op->state == UT_OP_RUNNING)
            ut_witness_heard(&op->account, host, ut_op_record_of(j, op, host) != NULL, now);
        if (ut_op_sends(op))
            ut_op_record(j, op, host, now);
        weighs = weighs || (op->what.weighted && !matched && op->peers.record_matched & ut_bit(host));
        if (op->state == UT_OP_RUNNING && op->plan.schedule.lasting)
            ut_op_check(j, op, now); /* what it sends on may have arrived */
        if (op->state == UT_OP_LINGERING)
            ut_op_linger(j, op, now);
    }
    if (weighs)
        ut_op_unstash(j, host, now);
    j->gathering->heard(j, now);
}

void ut_op_unstash(ut_job *j, uint32_t host, ut_ns now)
{
    ut_conn *c = &j->conn[host];
    ut_stats *stats = j->host->counters;
    size_t kept = 0, at = 0;
    while (at < c->rx.stash_len) {
        uint16_t len;
        memcpy(&len, c->rx.stash + at, 2);
        assert(at + 2 + len <= c->rx.stash_len && kept <= at);
        const uint8_t *packet = c->rx.stash + at + 2;
        ut_data h;
        int bad = ut_data_decode(&h, packet, len, UT_CHECK_NOTHING); /* that was done when it came */
        assert(!bad);
        enum ut_taken taken = ut_op_data(j, host, &h, now);
        if (taken == UT_TAKEN_EARLY) {
            memmove(c->rx.stash + kept, c->rx.stash + at, (size_t)len + 2);
            kept += (size_t)len + 2;
        } else {
            stats->stash_replayed++;
            assert(c->rx.stash_bytes >= len);
            c->rx.stash_bytes -= len;
            ut_taken_count(stats, taken, h.payload_len);
            ut_conn_speak_at(c, now + UT_HOLD_NS); /* it has credit again */
        }
        at += (size_t)len + 2;
    }
    c->rx.stash_len = kept;
}

uint64_t ut_op_awaited(const ut_op *op)
{
    uint64_t left[2] = {0, 0};
    if (op->state != UT_OP_RUNNING)
        return 0;
    for (uint32_t i = 0; i < op->plan.schedule.steps; i++) {
        const ut_step *s = &op->plan.schedule.step[i];
        const ut_transfer *t = &op->plan.transfer[i];
        if (s->kind == UT_STEP_RECEIVE && !ut_transfer_over(t))
            left[s->stage - 1] += t->slots - t->done;
    }
    return left[0] && left[1] ? UT_MIN2(left[0], left[1]) : left[0] + left[1];
}
