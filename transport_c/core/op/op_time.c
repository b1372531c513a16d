/* SPDX-License-Identifier: Apache-2.0
 *
 * When an op's stages end by time, and what they tell of the next ones. Three bounds, the first that comes: the
 * deadline of the op (of which stage 1 leaves stage 2 its share); in best effort t_B for stage 1, counted from when all
 * hosts had called, and what t_B leaves of twice that for stage 2; and, also in best effort, a share of t_C after the
 * last packet, once the tail of every sender was seen.
 */
#include "core/link/cap.h"
#include "core/op/op.h"

/* A host that waits asks every 50 ms at least, and is answered. */
enum { HEARD_NS = 2 * UT_STATE_GAP_MAX_NS };

/* What others take says nothing of how long another collective should. */
static void learn(const ut_job *j, ut_op *op, const ut_epoch *epoch)
{
    ut_times times = {0};
    if (op->what.collective == UT_ALLREDUCE)
        ut_timing_in_force(&j->timing, &epoch->options, op->what.timed, &times);
    op->time.learnt = times;
    op->time.alone = times.t_b;
    op->time.epoch = epoch->number;
}

static bool is_bound(ut_ns t_b)
{
    return t_b != 0 && t_b != UT_NEVER;
}

void ut_op_time_call(const ut_job *j, ut_op *op, const ut_submission *s, bool first)
{
    if (first) {
        learn(j, op, ut_epoch_at(&j->epochs, op->seq));
        op->time.adaptive = op->what.mode == UT_BOUNDED && is_bound(op->time.learnt.t_b);
        op->time.latest = UT_NEVER;
    }
    bool none = s->deadline_ns == UT_NEVER;
    op->time.adaptive = op->time.adaptive && (none || (s->flags & UT_SUBMIT_ADAPTIVE));
    op->time.latest = UT_MIN2(
        op->time.latest, none && op->time.adaptive ? op->time.start + UT_ADAPTIVE_MAX_S * UT_SECOND : s->deadline_ns);
    op->time.deadline = op->time.latest;
    if (op->time.adaptive)
        op->time.deadline = UT_MIN2(op->time.latest, op->time.start + ut_adaptive_deadline(op->time.learnt.t_b));
}

void ut_op_time_epoch(const ut_job *j, ut_op *op)
{
    const ut_epoch *epoch = ut_epoch_at(&j->epochs, op->seq);
    if (op->time.epoch == epoch->number)
        return;
    learn(j, op, epoch);
    op->time.adaptive = op->time.adaptive && is_bound(op->time.learnt.t_b);
}

/* What a stage takes at most where no path is in trouble for long: its shards one after the other, at the least window
 * that a path ever has, a round trip and the time in which a receiver speaks for each; and what ut_adaptive_deadline
 * leaves for hosts in trouble. A round trip that was not measured is as long as a probe waits at most. */
static ut_ns slowest(const ut_job *j, const ut_op *op)
{
    uint64_t packets = op->what.bytes / j->config.hosts / j->payload + 1;
    double all = 0;
    for (uint32_t h = 0; h < j->config.hosts; h++) {
        const ut_conn *c = &j->conn[h];
        ut_ns trip = c->tx.srtt ? c->tx.srtt + 4 * c->tx.rttvar + UT_HOLD_NS : (ut_ns)UT_PTO_MAX_NS;
        if (h != j->config.self && ut_job_host_is_up(j, h))
            all += (double)trip * (double)(packets / UT_CC_PACKETS_MIN + 1);
    }
    return ut_adaptive_deadline(0) + (ut_ns)UT_MIN2(all, (double)(UT_SECOND * 3600));
}

/* What stages are expected to take. */
static void usual(const ut_job *j, const ut_op *op, ut_ns ret[2])
{
    const ut_ns *t_c = op->time.learnt.t_c;
    bool known = t_c[0] != 0 && t_c[1] != 0 && t_c[0] != UT_NEVER && t_c[1] != UT_NEVER;
    for (unsigned stage = 0; stage < 2; stage++)
        ret[stage] = known ? t_c[stage] : slowest(j, op);
}

void ut_op_time_gather(const ut_job *j, ut_op *op)
{
    ut_ns t_c[2], length = op->time.latest > op->time.start ? op->time.latest - op->time.start : 0;
    if (op->time.latest == UT_NEVER || op->what.mode == UT_RELIABLE)
        return;
    usual(j, op, t_c);
    /* A host that is alone has no stages to wait for once its ranks have called. */
    op->time.gather_until = op->time.start + (j->config.hosts == 1 ? length : ut_gather_cut(length, t_c));
}

/* When stage 1 gives up on what is missing, of the time that is left from |start| on. */
static void cut_from(const ut_job *j, ut_op *op, ut_ns start)
{
    ut_ns t_c[2];
    usual(j, op, t_c);
    op->time.cut = UT_NEVER;
    if (op->time.deadline != UT_NEVER && op->what.mode != UT_RELIABLE)
        op->time.cut = start + ut_stage1_cut(op->time.deadline > start ? op->time.deadline - start : 0, t_c);
}

/* The time that nobody named is for the network's trouble, not for trainers that call late: it is counted from the
 * last of them. */
static void put_off(const ut_job *j, ut_op *op, ut_ns now)
{
    op->time.deadline = UT_MIN2(op->time.latest, now + ut_adaptive_deadline(op->time.learnt.t_b));
    cut_from(j, op, now);
}

/* t_B is what the network takes. Trainers that call late are no loss of its: it runs from when the last had called. */
static void start_clock(const ut_job *j, ut_op *op, ut_ns now)
{
    if (op->time.clock == UT_NEVER && !(ut_job_up(j) & op->epoch.members & ~op->peers.record_matched))
        op->time.clock = now;
}

void ut_op_time_host(const ut_job *j, ut_op *op, bool called, ut_ns now)
{
    start_clock(j, op, now);
    if (op->time.adaptive && called)
        put_off(j, op, now);
}

static bool under_way(const ut_op *op)
{
    return op->state == UT_OP_OPENING || op->state == UT_OP_RUNNING;
}

/* Ops that are under way together share links and hosts. A small one may stand behind all of a large one, so it has the
 * large one's t_B as well as its own. */
static void share_bounds(ut_job *j)
{
    ut_ns longest = 0;
    for (unsigned k = 0; k < UT_OPS_MAX; k++)
        if (under_way(&j->op[k]) && j->op[k].time.alone != UT_NEVER)
            longest = UT_MAX2(longest, j->op[k].time.alone);
    for (unsigned k = 0; k < UT_OPS_MAX; k++) {
        ut_op_time *t = &j->op[k].time;
        if (under_way(&j->op[k]) && t->bounded_by_t_b && t->alone < longest)
            t->learnt.t_b = UT_MAX2(t->learnt.t_b, t->alone + longest);
    }
}

void ut_op_time_open(ut_job *j, ut_op *op, ut_ns now)
{
    const ut_times *t = &op->time.learnt;
    bool known = op->what.mode == UT_BEST_EFFORT && t->t_b != 0 && t->own;
    op->time.opened = now;
    op->time.hold_until = UT_NEVER;
    op->plan.incast = ut_job_incast(j);
    j->incast.stale = true;
    op->time.timeout_heard[0] = op->time.timeout_heard[1] = 0;
    op->time.stage_last[0] = op->time.stage_last[1] = 0;
    op->time.bounded_by_t_b = known && t->t_b != UT_NEVER;
    op->time.repairs = !known || (!op->time.bounded_by_t_b && op->time.deadline == UT_NEVER);
    uint32_t percent = op->epoch.options.early_percent ? op->epoch.options.early_percent : UT_EARLY_PERCENT;
    /* Others' limits are taken for ours. */
    const ut_ns pause = UT_MAX2(ut_tokens_pause(&j->tokens, j->config.packet_bytes),
                                ut_cap_pause(j->host->cap, j->config.packet_bytes));
    for (unsigned stage = 0; stage < 2; stage++) {
        bool expected = t->t_c[stage] != 0 && t->t_c[stage] != UT_NEVER;
        op->time.early_wait[stage] = known && expected ? ut_early_wait(t->t_c[stage], percent, pause) : 0;
    }
    bool local = op->epoch.options.timer_start == UT_TIMER_LOCAL;
    op->time.clock = local || j->gathering->starts_together ? now : UT_NEVER;
    share_bounds(j);
    op->time.look_at = op->time.bounded_by_t_b ? now + UT_MAX2(t->t_b, (ut_ns)HEARD_NS) : UT_NEVER;
    start_clock(j, op, now);
    if (op->time.adaptive)
        put_off(j, op, now);
    else
        cut_from(j, op, op->time.start);
}

/* Of everybody from whom the stage expects something, the tail was seen. */
static bool tails_seen(const ut_op *op, unsigned stage)
{
    for (uint32_t i = 0; i < op->plan.schedule.steps; i++) {
        const ut_step *s = &op->plan.schedule.step[i];
        const ut_transfer *t = &op->plan.transfer[i];
        if (s->kind == UT_STEP_RECEIVE && s->stage == stage + 1 && !t->tail && !ut_transfer_over(t))
            return false;
    }
    return true;
}

static ut_ns began(const ut_op *op, unsigned stage)
{
    if (stage)
        return op->time.stage_at[0];
    return op->time.clock == UT_NEVER ? op->time.opened : op->time.clock;
}

ut_ns ut_op_stage_due(const ut_op *op, unsigned *ret_how)
{
    unsigned stage = op->time.stage_end[0] != UT_END_NONE;
    ut_ns start = began(op, stage);
    ut_ns due = stage ? op->time.deadline : UT_MIN2(op->time.deadline, op->time.cut);
    *ret_how = UT_END_DEADLINE;
    if (op->time.bounded_by_t_b && !stage) {
        due = UT_MIN2(due, op->time.clock == UT_NEVER ? op->time.look_at : op->time.clock + op->time.learnt.t_b);
    } else if (op->time.bounded_by_t_b) {
        /* Others' stage 1 may last its whole t_B, whenever ours ended: what they then send still has one to come. */
        ut_ns last = UT_MAX2(start, began(op, 0) + op->time.learnt.t_b);
        due = UT_MIN2(due, last + op->time.learnt.t_b);
    }
    if (op->time.early_wait[stage] && op->time.stage_end[stage] == UT_END_NONE && tails_seen(op, stage)) {
        ut_ns early = UT_MAX2(op->time.stage_last[stage], start) + op->time.early_wait[stage];
        if (early < due) {
            due = early;
            *ret_how = UT_END_EARLY;
        }
    }
    return due;
}

/* Another host has not called yet, but something was heard of it in the last |patience|. */
static bool is_waited_for(const ut_job *j, const ut_op *op, ut_ns patience, ut_ns now)
{
    for (uint32_t h = 0; h < j->config.hosts; h++)
        if (h != j->config.self && ut_bits_have(op->epoch.members & ~op->peers.record_matched, h) &&
            ut_job_host_is_up(j, h) && j->conn[h].rx.last + patience > now)
            return true;
    return false;
}

/* An op whose caller named no deadline is not cut off because another host's trainer has not called yet; of that host
 * something must have been heard, or it is the network's trouble after all. In best effort t_B waits for it, but no
 * longer than an op may take whose deadline nobody named. */
static bool wait_on(const ut_job *j, ut_op *op, ut_ns now)
{
    ut_ns patience = ut_adaptive_deadline(op->time.learnt.t_b);
    if (op->time.adaptive && now < op->time.latest && is_waited_for(j, op, patience, now)) {
        put_off(j, op, now);
        return true;
    }
    if (!op->time.bounded_by_t_b || op->time.clock != UT_NEVER || now >= UT_MIN2(op->time.deadline, op->time.cut))
        return false;
    ut_ns heard = UT_MAX2(op->time.learnt.t_b, (ut_ns)HEARD_NS), until = op->time.opened + patience;
    bool on = now < until && is_waited_for(j, op, heard, now);
    if (on)
        op->time.look_at = UT_MIN2(now + heard, until);
    else
        op->time.clock = op->time.opened;
    return on;
}

enum ut_stage_over ut_op_stage_over(const ut_job *j, ut_op *op, ut_ns now, unsigned *ret_how)
{
    if (now < ut_op_stage_due(op, ret_how))
        return UT_STAGE_GOES_ON;
    bool second = op->time.stage_end[0] != UT_END_NONE;
    if (!second && *ret_how == UT_END_DEADLINE && wait_on(j, op, now))
        return UT_STAGE_GOES_ON;
    if (now >= op->time.deadline && op->what.mode == UT_RELIABLE)
        return UT_STAGE_FAILS;
    if (now >= op->time.deadline || (second && *ret_how == UT_END_DEADLINE))
        return UT_STAGE_IS_LAST;
    return UT_STAGE_IS_CUT;
}

void ut_op_time_sent(ut_op *op, uint32_t host, ut_ns now)
{
    for (uint32_t i = op->plan.rx_of[0][host]; i != UINT32_MAX; i = op->plan.peer_next[i]) {
        ut_transfer *t = &op->plan.transfer[i];
        if (t->tail || ut_transfer_over(t))
            continue;
        t->tail = 1;
        op->time.stage_last[0] = now;
    }
}

void ut_op_packet_time(ut_job *j, ut_op *op, uint32_t host, const ut_data *h, ut_transfer *t, ut_ns now)
{
    unsigned stage = h->stage - 1;
    op->time.stage_last[stage] = now;
    j->ledger.row[host].said.gap = 0; /* if nothing more comes, it is asked after one round trip and its variance */
    j->incast.stale = j->incast.stale || (h->ultima.last && !t->tail) || ut_transfer_complete(t);
    t->tail = t->tail || h->ultima.last;
    if (op->time.timeout_heard[stage] & ut_bit(host) || h->flags & UT_FLAG_REBUILT) /* which has no Timeout */
        return;
    op->time.timeout_heard[stage] |= ut_bit(host);
    ut_timing_heard(&j->timing, op->what.timed, stage, host, h->ultima.timeout);
}

void ut_op_stage_measured(ut_job *j, ut_op *op, unsigned stage)
{
    unsigned end = op->time.stage_end[stage];
    if (op->what.collective != UT_ALLREDUCE || op->what.bytes == 0 || j->config.hosts == 1 || end == UT_END_ABSENT ||
        op->plan.owns_nothing)
        return;
    ut_stage_time how = {.came = end == UT_END_COMPLETE ? UT_CAME_COMPLETE
                                 : end == UT_END_EARLY  ? UT_CAME_EARLY
                                                        : UT_CAME_EXPIRED,
                         .elapsed = op->time.stage_at[stage] - began(op, stage)};
    unsigned senders = 0, slow = 0;
    for (uint32_t i = 0; i < op->plan.schedule.steps; i++) {
        const ut_step *s = &op->plan.schedule.step[i];
        const ut_transfer *t = &op->plan.transfer[i];
        if (s->kind != UT_STEP_RECEIVE || s->stage != stage + 1 || t->slots == 0)
            continue;
        how.total += ut_transfer_expected(t, s->bytes);
        how.received += ut_transfer_expected(t, s->bytes) - ut_transfer_missing(t, j->payload);
        senders++;
        slow += t->done > 0 && !ut_transfer_complete(t);
    }
    how.most_slow = 2 * slow > senders;
    ut_timing_measured(&j->timing, op->what.timed, stage, &op->time.learnt, &how);
}

bool ut_op_repair_in_time(const ut_job *j, const ut_op *op, uint32_t host, uint32_t slots, ut_ns now)
{
    const ut_conn *c = &j->conn[host];
    if (!op->time.repairs)
        return false;
    const ut_record *r = ut_ledger_record(&j->ledger, host, op->seq);
    if (op->what.mode != UT_BOUNDED || !r || r->time_left_us == UINT32_MAX)
        return true;
    ut_ns left = r->time_left_us * UT_US, since = now - j->ledger.row[host].at[op->seq % UT_OPS_MAX];
    uint64_t used = c->tx.bytes - c->tx.lost_bytes, credit = c->tx.grant > used ? c->tx.grant - used : 0;
    uint64_t window = UT_MAX2(c->tx.flying_bytes, credit);
    uint64_t rate = c->tx.srtt ? (uint64_t)((double)window * 1e9 / (double)c->tx.srtt) : 0;
    return ut_repair_in_time(left > since ? left - since : 0, c->tx.srtt, 4 * c->tx.rttvar,
                             (uint64_t)slots * j->config.packet_bytes, rate);
}
