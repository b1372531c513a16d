/* SPDX-License-Identifier: Apache-2.0
 *
 * Payload out. A burst is packets of one transfer to one peer. Order: repairs of stage 2 first (a hole there makes
 * replicas differ), then repairs of stage 1, then fresh slots by op and schedule.
 */
#include "core/base/digest.h"
#include "core/base/prefetch.h"
#include "core/link/cap.h"
#include "core/op/op_parity.h"
#include "core/wire/pieces.h"

#include "kernels/kernels.h"

/* ---- what may go ---- */

static uint32_t fresh_slots(const ut_op *op, const ut_step *s, const ut_transfer *t)
{
    uint32_t there = UT_MIN2(op->fold.ready[s->stage - 1][s->chunk], t->stop);
    return there > t->next ? there - t->next : 0;
}

/* Packets to this peer that credit, window, memory and the administrator allow now. */
static uint32_t allowance(ut_job *j, const ut_conn *c, ut_ns now)
{
    uint32_t n = UT_MIN2(ut_conn_may_send(c, j->config.packet_bytes), ut_conn_burst(c));
    n = ut_tokens_take(&j->tokens, UT_MIN2(n, j->host->segments_max), j->config.packet_bytes, now);
    return ut_cap_take(j->host->cap, n, j->config.packet_bytes, now);
}

/* ---- building ---- */

/* Last%ile of the packet with |slot|. |*alike|: as many slots from this one on, |*alike| at most, are full and have the
 * same one. */
static uint8_t last_percentile(const ut_transfer *t, uint32_t slot, uint32_t *alike)
{
    const uint32_t nth = slot >= t->start ? slot - t->start : slot + t->slots - t->start;
    const uint32_t tail = (uint32_t)((uint64_t)t->slots * 99 / 100);
    if (nth + 1 == t->slots || slot + 1 == t->slots) {
        *alike = 1;
        return nth + 1 == t->slots ? 15 : nth >= tail;
    }
    *alike = UT_MIN2(*alike, (nth < tail ? tail : t->slots - 1) - nth);
    *alike = UT_MIN2(*alike, t->slots - 1 - slot);
    return nth >= tail;
}

/* It fits into what one feedback reports on, twice over. A longer one is answered on its way. */
static bool is_short(const ut_transfer *t)
{
    return t->slots <= UT_ACK_BITS / 2;
}

/* Whether the packet that goes next, with |last|%ile, asks for a feedback: once in a part of the window, and where this
 * host waits for the answer, to a repair and to the end of a transfer, unless that is short and nothing was lost
 * lately.
 * |*alike|: as many packets, |*alike| at most, go in the form of this one. */
static bool asks(const ut_job *j, const ut_op *op, uint32_t i, bool repair, uint8_t last, uint32_t *alike, ut_ns now)
{
    const ut_step *s = &op->plan.schedule.step[i];
    const uint32_t others = ut_conn_asks_in(&j->conn[s->peer], j->config.packet_bytes);
    const bool lasting = op->plan.schedule.lasting && s->stage == 1;
    *alike = UT_MIN2(*alike, UT_MAX2(others, 1));
    return others == 0 || repair ||
           (last == 15 && (lasting || !is_short(&op->plan.transfer[i]) || !ut_job_is_calm(j, now)));
}

/* In which way all packets of a burst go, and when. */
typedef struct way {
    bool repair, pieces;
    ut_ns now;
} way;

/* Adds packets with slots that follow each other, from |slot| on: |most| at most, for which the burst has room. Returns
 * how many it added, one at least; the others go in another form. */
static uint32_t add_packets(ut_job *j, ut_op *op, uint32_t i, uint32_t slot, uint32_t most, const way *by, ut_burst *b)
{
    const bool repair = by->repair;
    const ut_step *s = &op->plan.schedule.step[i];
    const ut_transfer *t = &op->plan.transfer[i];
    ut_conn *c = &j->conn[s->peer];
    const uint32_t len = ut_transfer_slot_bytes(t, slot, j->payload);
    uint32_t n = by->pieces ? 1 : most;
    unsigned ranks;
    const uint8_t last = last_percentile(t, slot, &n);
    const bool ask = asks(j, op, i, repair, last, &n, by->now);
    const uint8_t *payload = ut_fold_payload(&op->fold, s, slot, &n, &ranks);
    const uint32_t *crc = s->stage == 1 ? NULL : &op->fold.crc[op->fold.first[s->chunk] + slot];
    const unsigned missing = j->world - UT_MIN2(j->world, ranks);
    if (!repair && !by->pieces)
        ut_op_parity_sends(j, op, i, &(ut_payloads){.first = payload, .len = len, .stride = len, .slots = n}, slot,
                           s->stage == 1 ? ranks : missing);
    const uint64_t pn = ut_conn_sending(c,
                                        &(ut_sent){.op_seq = op->seq,
                                                   .step = (uint8_t)i,
                                                   .slot = slot,
                                                   .bytes = (uint16_t)ut_wire_packet(len, j->frame.overhead)},
                                        n, ask, by->now);
    ut_data h = {.flags = (repair ? UT_FLAG_REPAIR : 0) | (ask ? UT_FLAG_ASK : 0),
                 .stage = s->stage,
                 .coverage = (uint16_t)(s->stage == 1 ? ranks : missing),
                 .cid = c->tx_cid,
                 .pn = (uint32_t)pn,
                 .op_seq = op->seq,
                 .view = op->plan.view_tag,
                 .time_us = (uint32_t)(by->now / UT_US) & UT_TIME_MASK,
                 .ultima = {.bucket = (uint16_t)op->seq,
                            .offset = (uint32_t)(s->offset + (uint64_t)slot * j->payload),
                            .timeout = op->time.learnt.field[s->stage - 1],
                            .last = last,
                            .incast = (uint8_t)UT_MIN2(ut_job_incast_own(j), UT_INCAST_MAX)}};
    op->account.wire_sent += n * len;
    if (op->what.collective == UT_BROADCAST && s->stage == 1 && !repair)
        for (uint32_t k = 0; k < n; k++) /* what the root deals out comes back to it nowhere */
            op->fold.result.digest +=
                ut_digest_part(ut_crc32c(0, payload + k * len, len), h.ultima.offset + k * len, len);
    if (by->pieces) {
        c->tx.sent[pn & (c->tx.room - 1)].pieces = 1;
        h.payload_crc = crc ? *crc : ut_crc32c(0, payload, len);
        ut_pieces_append(b, &h, payload, len, &j->frame);
        return 1;
    }
    ut_data_form form = ut_data_form_of(&h);
    for (uint32_t k = 0; k < n; k++, payload += len) {
        if (slot + k + UT_PREFETCH_AHEAD / j->payload < t->slots)
            ut_prefetch_ahead(payload, len);
        ut_data_append(b, &form, payload, len, crc ? crc + k : NULL);
    }
    return n;
}

static bool burst_of(ut_job *j, ut_op *op, uint32_t i, bool repairs, uint32_t most, ut_ns now, ut_burst *b)
{
    const ut_step *s = &op->plan.schedule.step[i];
    ut_transfer *t = &op->plan.transfer[i];
    ut_conn *c = &j->conn[s->peer];
    ut_burst_begin(b, &c->at[UT_PORT_DATA], UT_PORT_DATA, ut_conn_seal(c), c->tx.next);
    b->segment_bytes = j->config.packet_bytes;
    ut_mtu *mtu = &c->mtu;
    bool pieces = !ut_mtu_whole(mtu, b->segment_bytes, (uint32_t)(now / UT_US));
    if (pieces) {
        most = UT_MIN2(most, ut_pieces_burst(&j->frame));
        b->segment_bytes = ut_piece_packet(&j->frame);
    } else if (mtu->pieces) {
        most = 1; /* one packet to look with */
    }
    const way by = {repairs, pieces, now};
    for (uint32_t n = 0; n < most;) {
        uint32_t slot, some = 1;
        if (repairs) {
            if (!ut_transfer_take_lost(t, &slot))
                break;
        } else {
            uint32_t fresh = fresh_slots(op, s, t);
            if (fresh == 0)
                break;
            slot = ut_transfer_nth(t, t->next);
            some = ut_transfer_absent(t, slot, UT_MIN2(fresh, most - n));
            if (some == 0) {
                t->next++, n++; /* its result came back before it went */
                continue;
            }
        }
        some = add_packets(j, op, i, slot, some, &by, b);
        t->next += repairs ? 0 : some;
        n += some;
        if (slot + some == t->slots)
            break; /* perhaps shorter than the stride: it must be the burst's last */
    }
    if (b->segments == 0)
        return false;
    assert(b->segments <= UT_SEGMENTS_MAX && b->bytes <= UT_BURST_BYTES && t->next <= t->slots);
    if (b->segments == 1)
        b->segment_bytes = b->bytes;
    if (t->next == t->slots && is_short(t))
        ut_conn_answer_along(c, now);
    ut_tokens_sent(&j->tokens, b->bytes);
    ut_stats *stats = j->host->counters;
    stats->bursts_sent++;
    stats->data_sent += b->segments;
    stats->data_sent_bytes += b->bytes;
    stats->pieces_sent += pieces ? b->segments : 0;
    stats->data_resent += repairs ? b->segments : 0;
    return true;
}

static bool has_work(const ut_op *op, uint32_t i, bool repairs)
{
    const ut_transfer *t = &op->plan.transfer[i];
    if (op->plan.schedule.step[i].kind != UT_STEP_SEND || t->closed)
        return false;
    return repairs ? t->lost > 0 : fresh_slots(op, &op->plan.schedule.step[i], t) > 0;
}

/* Data waits for the peer. If more may not fly to it, nothing overtakes what flies, so that this is missed by time
 * alone; and if nothing flies that would bring news of credit, the peer is asked in time. */
static void note_blocked(const ut_job *j, ut_conn *c, ut_ns now)
{
    if (c->state != UT_CONN_UP || ut_conn_may_send(c, j->config.packet_bytes) > 0)
        return; /* the pace alone holds it back */
    c->tx.stuck = true;
    if (c->tx.flying == 0 && c->tx.blocked_since == UT_NEVER)
        c->tx.blocked_since = now;
}

/* The oldest op's repairs of |stage|, to whichever peer may have them. */
static bool repair(ut_job *j, unsigned stage, ut_ns now, ut_burst *b)
{
    for (ut_op *op = ut_job_op_after(j, NULL); op; op = ut_job_op_after(j, op)) {
        if (!ut_op_sends(op))
            continue;
        for (uint32_t i = 0; i < op->plan.schedule.steps; i++) {
            if (op->plan.schedule.step[i].stage != stage || !has_work(op, i, true))
                continue;
            ut_conn *c = &j->conn[op->plan.schedule.step[i].peer];
            uint32_t most = allowance(j, c, now);
            if (most && burst_of(j, op, i, true, most, now, b))
                return true;
            if (!most)
                note_blocked(j, c, now);
        }
    }
    return false;
}

/* Whether fresh slots of step |a| go before those of step |b|: stage 1 first, for others wait for its sums; then to the
 * peer that lacks most, so that no pair is left behind. */
static bool goes_before(const ut_op_plan *p, uint32_t a, uint32_t b)
{
    if (p->schedule.step[a].stage != p->schedule.step[b].stage)
        return p->schedule.step[a].stage < p->schedule.step[b].stage;
    return p->transfer[a].slots - p->transfer[a].next > p->transfer[b].slots - p->transfer[b].next;
}

/* The step of |op| whose fresh slots go next, of those whose peer may have some; UINT32_MAX for none. |most|: how many.
 */
static uint32_t next_step(ut_job *j, const ut_op *op, ut_ns now, uint32_t *most)
{
    uint32_t best = UINT32_MAX;
    for (uint32_t i = 0; i < op->plan.schedule.steps; i++) {
        if (!has_work(op, i, false) || (best != UINT32_MAX && !goes_before(&op->plan, i, best)))
            continue;
        ut_conn *c = &j->conn[op->plan.schedule.step[i].peer];
        uint32_t n = allowance(j, c, now);
        if (n == 0) {
            note_blocked(j, c, now);
            continue;
        }
        best = i;
        *most = n;
    }
    return best;
}

/* Fresh slots of the oldest op that has any to send. */
static bool fresh(ut_job *j, ut_ns now, ut_burst *b)
{
    for (ut_op *op = ut_job_op_after(j, NULL); op; op = ut_job_op_after(j, op)) {
        uint32_t i, most = 0;
        while (ut_op_sends(op) && (i = next_step(j, op, now, &most)) != UINT32_MAX)
            if (burst_of(j, op, i, false, most, now, b)) /* else all its slots had come back before they went */
                return true;
    }
    return false;
}

bool ut_op_output(ut_job *j, ut_ns now, ut_burst *b)
{
    ut_tokens_look(&j->tokens);
    return repair(j, 2, now, b) || repair(j, 1, now, b) || (j->parity_due && ut_op_parity_output(j, now, b)) ||
           fresh(j, now, b);
}

/* ---- feedback ---- */

bool ut_op_receives(const ut_op *op, unsigned stage, uint32_t host)
{
    for (uint32_t i = op->plan.rx_of[stage][host]; i != UINT32_MAX; i = op->plan.peer_next[i])
        if (!ut_transfer_over(&op->plan.transfer[i]))
            return true;
    return false;
}

/* The op waits for |host|: for its data, its record, or the masks of its shard. */
static bool waits_for(const ut_op *op, uint32_t host)
{
    if (op->state != UT_OP_RUNNING)
        return false;
    if (ut_op_receives(op, 0, host) || ut_op_receives(op, 1, host))
        return true;
    return !(op->peers.record_matched & ut_bit(host)) || ut_op_waits_for_masks(op, host);
}

/* What this host says of |op| to |host|. */
static void tell_record(ut_job *j, const ut_op *op, uint32_t host, ut_record *r, ut_ns now)
{
    const bool over = ut_op_is_over(op);
    unsigned flags = (op->account.failed ? UT_RECORD_FAILED | UT_RECORD_TX_DONE : 0) |
                     (op->peers.complete_masks ? UT_RECORD_RESULT : 0) | (over ? UT_RECORD_RX_DONE : 0) |
                     (!op->time.repairs && ut_op_sent_all(op, host, 1) ? UT_RECORD_SENT : 0) |
                     (over && op->account.replica.known ? UT_RECORD_DIGEST : 0);
    uint32_t left = UINT32_MAX;
    if (op->time.latest != UT_NEVER)
        left = op->time.latest > now ? (uint32_t)UT_MIN2((op->time.latest - now) / UT_US, UINT32_MAX - 1) : 0;
    *r = (ut_record){.op_seq = op->seq,
                     .count = ut_op_told_count(&op->what),
                     .dtype = op->what.dtype,
                     .redop = op->what.redop,
                     .mode = op->what.mode,
                     .collective = op->what.told,
                     .alike = op->what.alike,
                     .portion = op->what.portion,
                     .agree = op->what.agree,
                     .flags = (uint8_t)flags,
                     .weight = op->local.weight,
                     .share = op->local.share,
                     .submitted = op->what.weighted ? UT_SUBMIT_WEIGHTED : 0,
                     .algorithm = (uint8_t)ut_job_algorithm(j),
                     .time_left_us = left,
                     .digest = over && op->account.replica.known ? ut_digest_brief(op->account.replica.digest) : 0,
                     .full_mask = op->peers.complete_masks ? op->peers.full_mask : 0,
                     .any_mask = op->peers.complete_masks ? op->peers.any_mask : 0,
                     .view = op->plan.view_tag,
                     .epoch = op->epoch.id};
    j->gathering->tell(j, op, r);
    if (ut_account_own_fault(&op->account)) {
        /* Our own ranks differ: the record shows the one half of it, so the other is said in words. */
        r->field = op->account.field;
        r->flags &= (uint8_t)~UT_RECORD_RESULT;
        r->full_mask = op->account.value_here;
        r->any_mask = op->account.value_there;
    }
}

/* The same of an op that is FREE. What was said of its end stays: the op does not know all of that any more. */
static void tell_last(ut_job *j, const ut_op *op, uint32_t host, ut_record *r, ut_ns now)
{
    const ut_record *said = &j->ledger.row[host].said.record[op->seq % UT_OPS_MAX];
    if (said->op_seq == op->seq && (said->flags & UT_RECORD_DIGEST))
        *r = *said;
    else
        tell_record(j, op, host, r, now);
}

/* |host| may be waiting for what it has not seen: that this host is in an op which |host| has not ended, who is ready
 * for the next one, or any word at all. What else changes it asks for, if it waits for that. */
static bool is_urgent(const ut_job *j, uint32_t host)
{
    const ut_said *said = &j->ledger.row[host].said;
    for (unsigned k = 0; k < UT_OPS_MAX; k++) {
        const ut_op *op = &j->op[k];
        const bool to_come = said->since[k] && said->record[k].op_seq >= j->next_open;
        const bool its = ut_op_sends(op) && !(op->peers.rx_done & ut_bit(host));
        if ((to_come && !ut_ledger_has_seen(&j->ledger, host, k)) || (its && !ut_ledger_has_met(&j->ledger, host, k)))
            return true;
    }
    return said->seen == 0;
}

/* When this host says again what it has said to |host|, or only asks whether it is there; UT_NEVER: not at all. */
static ut_ns again_at(const ut_job *j, uint32_t host)
{
    const ut_conn *c = &j->conn[host];
    const ut_said *said = &j->ledger.row[host].said;
    const ut_ns answer = ut_job_answer_time(c), gap = UT_MAX2(said->gap, answer);
    const ut_ns silence = UT_MAX2(said->gap, ut_conn_silence(c)); /* who waits for data may be answered sooner */
    bool waits = false;
    ut_ns at = UT_NEVER;
    if (!ut_ledger_is_seen(&j->ledger, host))
        at = said->at + (is_urgent(j, host) ? gap : UT_MAX2(gap, answer + UT_STATE_SLACK_NS));
    for (unsigned k = 0; k < UT_OPS_MAX && !waits; k++)
        waits = waits_for(&j->op[k], host);
    /* Of two hosts that wait for each other the lower one asks again; the other one hears it, and answers. */
    return waits ? UT_MIN2(at,
                           UT_MAX2(c->rx.last, said->at) + silence + (j->config.self > host && said->gap ? answer : 0))
                 : at;
}

void ut_op_say_again(ut_job *j, uint32_t host, ut_ns now)
{
    ut_conn *c = &j->conn[host];
    c->say.again = again_at(j, host);
    if (now < c->say.again)
        return;
    c->say.ask = true;
    ut_conn_speak_at(c, now);
}

void ut_op_fill_feedback(ut_job *j, uint32_t host, bool asks, ut_feedback *ret, ut_ns now)
{
    assert(host < j->config.hosts && host != j->config.self);
    ut_record next;
    bool to_come = j->gathering->readiness(j, host, &next);
    ret->incast = ut_job_incast_own(j);
    ret->rx_floor = j->rx_floor;
    ret->tx_floor = ut_job_tx_floor(j);
    ret->loss = (uint16_t)UT_MIN2(j->losses.own, UINT16_MAX);
    ret->records = 0;
    for (unsigned k = 0; k < UT_OPS_MAX; k++) {
        const ut_op *op = &j->op[k];
        if (to_come && k == j->next_open % UT_OPS_MAX)
            ret->record[ret->records++] = next; /* whoever needs the one that was here before is four ops behind */
        else if (ut_op_sends(op))
            tell_record(j, op, host, &ret->record[ret->records++], now);
        else if (op->state == UT_OP_FREE && op->account.replica.known && !ut_ledger_knows(&j->ledger, host, op->seq))
            tell_last(j, op, host, &ret->record[ret->records++], now);
    }
    ut_ledger_say(&j->ledger, host, ret, asks, ut_job_answer_time(&j->conn[host]), now);
    j->conn[host].say.again = again_at(j, host);
}

/* In best effort the receiver waits for the tail, until it is told that there is none any more. */
static void give_up(ut_op *op, ut_conn *c, uint32_t step, uint32_t slot, ut_ns now)
{
    ut_transfer_mark(&op->plan.transfer[step], slot);
    if (op->plan.schedule.step[step].stage == 1 && ut_transfer_over(&op->plan.transfer[step]))
        ut_conn_speak_at(c, now);
}

void ut_op_fate(void *context, const ut_sent *sent, uint32_t packets, bool acked)
{
    const ut_fate *fate = context;
    ut_job *j = fate->job;
    ut_conn *c = &j->conn[fate->host];
    ut_mtu_fate(&c->mtu, sent->bytes, sent->pieces, acked, sent->time_us, (uint32_t)(c->rx.last / UT_US));
    if (ut_mtu_proved(&c->mtu))
        j->host->emit(j->host->context, &(ut_event){.kind = UT_EVENT_PATH,
                                                    .job = j->number,
                                                    .session = UINT32_MAX,
                                                    .host = fate->host,
                                                    .a = c->mtu.pieces});
    for (unsigned k = 0; k < UT_OPS_MAX; k++) {
        ut_op *op = &j->op[k];
        if (!ut_op_sends(op) || op->seq != sent->op_seq)
            continue;
        uint32_t i = sent->step;
        if (i >= op->plan.schedule.steps || sent->slot + packets > op->plan.transfer[i].slots)
            return;
        ut_transfer *t = &op->plan.transfer[i];
        if (acked)
            ut_transfer_mark_run(t, sent->slot, packets);
        else if (!ut_op_repair_in_time(j, op, fate->host, t->lost + 1, fate->now))
            give_up(op, c, i, sent->slot, fate->now);
        else if (!t->closed)
            ut_transfer_lose(t, sent->slot);
        return;
    }
}

bool ut_op_sent_all(const ut_op *op, uint32_t host, unsigned stage)
{
    for (unsigned k = 1; k <= 2 && op->plan.schedule.steps; k++)
        for (uint32_t i = op->plan.tx_of[k - 1][host]; i != UINT32_MAX; i = op->plan.peer_next[i])
            if ((!stage || k == stage) && !ut_transfer_over(&op->plan.transfer[i]))
                return false;
    return true;
}
