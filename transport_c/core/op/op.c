/* SPDX-License-Identifier: Apache-2.0
 *
 * The life of an op: calls, and what time and death do to it. It opens in op_open.c and ends in op_end.c.
 */
#include "core/op/op.h"
#include "core/op/ext.h"
#include "core/op/op_pause.h"

/* ---- gathering the ranks of this host ---- */

/* No rank of this host that is still to call it has not, the host is not about to go, and no new epoch is being agreed
 * on. */
static bool may_open(const ut_job *j, const ut_op *op, ut_ns now)
{
    return !op->local.held && now >= ut_epochs_open_at(&j->epochs, op->seq) &&
           j->host->sessions_due(j->host->context, j->number, op->seq) == 0;
}

/* A host that is four ops ahead must not take from a slower one what that one still has to get. It is patient for a
 * quarter of the time that the new op has; with ops that ended short, or failed, there is little to be patient for. */
static ut_ns place_at(const ut_job *j, const ut_submission *s, ut_ns since)
{
    const ut_op *op = &j->op[s->op_seq % UT_OPS_MAX];
    if (op->state == UT_OP_FREE)
        return 0;
    if (op->state != UT_OP_LINGERING)
        return UT_NEVER;
    if (op->account.failed || op->time.stage_end[1] == UT_END_DEADLINE || !ut_op_still_needed(j, op))
        return 0;
    if (op->what.mode == UT_RELIABLE || s->deadline_ns == UT_NEVER)
        return op->time.linger_until;
    return since + (s->deadline_ns > since ? (s->deadline_ns - since) / 4 : 0);
}

ut_ns ut_op_room_at(const ut_job *j, const ut_submission *s, ut_ns since)
{
    if (j->op[s->op_seq % UT_OPS_MAX].seq == s->op_seq || s->op_seq < j->next_open)
        return 0; /* its own place, or an answer that needs none */
    if (s->op_seq >= j->next_open + UT_OPS_MAX &&
        s->op_seq >= j->host->next_call(j->host->context, j->number) + UT_OPS_MAX)
        return UT_NEVER; /* it is the place of an op that others have yet to call: refused calls bring a rank so far */
    return UT_MAX2(place_at(j, s, since), ut_epochs_open_at(&j->epochs, s->op_seq));
}

bool ut_op_has_room(ut_job *j, const ut_submission *s, ut_ns since, ut_ns now)
{
    if (now < ut_op_room_at(j, s, since))
        return false;
    ut_op *op = ut_job_op(j, s->op_seq);
    if (op->state == UT_OP_LINGERING && op->seq != s->op_seq && s->op_seq >= j->next_open)
        op->state = UT_OP_FREE;
    return true;
}

ut_op *ut_op_gather(ut_job *j, const ut_submission *s, ut_ns now)
{
    ut_op *op = ut_job_op(j, s->op_seq);
    op->state = UT_OP_GATHERING;
    op->seq = s->op_seq;
    op->what.dtype = s->dtype;
    op->what.redop = s->redop;
    op->what.mode = s->mode;
    op->variant = ut_variant_of(s->collective);
    op->variant_memory = op->variant ? op->of_variant[ut_variant_place(s->collective)] : NULL;
    op->what.told = s->collective;
    op->what.collective = op->variant ? UT_ALLREDUCE : s->collective;
    op->what.alike = ut_submission_alike(s);
    op->what.portion = s->portion;
    op->what.agree = s->flags & UT_SUBMIT_AGREE;
    op->what.count = s->collective == UT_BARRIER ? j->config.hosts : s->count;
    op->what.element = ut_dtype_bytes(s->dtype);
    op->what.acc_element = ut_dtype_acc_bytes(s->dtype);
    op->what.bytes = op->what.count * op->what.element;
    op->what.timed = op->what.bytes;
    if (op->variant)
        op->variant->gather(op, s);
    op->time.start = now;
    op->time.deadline = op->time.latest = s->deadline_ns;
    op->time.gather_until = op->time.cut = UT_NEVER;
    op->epoch = j->epochs.whole;
    op->plan.owners = op->epoch.owners;
    op->plan.view_tag = op->plan.owns_nothing = 0;
    op->local.calls = op->local.weight = op->local.places = 0;
    op->local.share = 0;
    op->local.held = j->held;
    op->memory.travels_encoded = false;
    op->codec = &ut_codec_none;
    op->account.failed = 0;
    op->account.error = UT_OK;
    op->account.culprit = 0xffff;
    op->account.field = UT_FIELD_NONE;
    op->account.value_here = op->account.value_there = 0;
    op->account.replica = (ut_replica){0};
    op->what.step = 0;
    op->what.by_world = !!(s->flags & UT_SUBMIT_WORLD);
    op->what.weighted = s->collective != UT_ALLREDUCE_SPARSE && (s->flags & UT_SUBMIT_WEIGHTED);
    ut_ledger_spoke(&j->ledger, j->config.self, op->seq);
    return op;
}

bool ut_op_is_late(const ut_job *j, const ut_submission *s)
{
    const ut_op *op = &j->op[s->op_seq % UT_OPS_MAX];
    return s->op_seq < j->next_open && !(op->state == UT_OP_GATHERING && op->seq == s->op_seq);
}

/* The host went on without this rank: it gets its own value back, and is told so. */
void ut_op_answer_late(ut_job *j, uint32_t session, const ut_submission *s, ut_ns now)
{
    const ut_op *op = ut_job_op(j, s->op_seq);
    bool failed = op->seq == s->op_seq && op->account.failed;
    ut_receipt r;
    memset(&r, 0, sizeof r);
    r.op_seq = s->op_seq;
    r.status = failed ? UT_FAILED : UT_INSUFFICIENT;
    r.error = failed ? op->account.error : UT_OK;
    r.hosts = (uint16_t)j->config.hosts;
    r.self = (uint16_t)j->config.self;
    r.culprit = failed ? op->account.culprit : (uint16_t)j->config.self;
    r.trouble = failed ? UT_TROUBLE_NONE : UT_TROUBLE_SENDER;
    r.field = failed ? op->account.field : UT_FIELD_NONE;
    r.value_here = failed ? op->account.value_here : 0;
    r.value_there = failed ? op->account.value_there : 0;
    r.call_seq = s->op_seq;
    r.portion = s->portion;
    r.initiator = 0xffff;
    r.policy = UT_POLICY_NONE;
    r.weight_min = 1;
    r.full_mask = r.any_mask = ut_bit(j->config.self);
    r.view = ut_epoch_at(&j->epochs, s->op_seq)->number;
    r.members = ut_epoch_at(&j->epochs, s->op_seq)->members;
    r.peer[j->config.self].fresh = r.peer[j->config.self].late =
        (uint16_t)ut_bit(j->host->place_of(j->host->context, session));
    if (!failed && (s->mode == UT_RELIABLE || (s->flags & UT_SUBMIT_AGREE))) {
        r.status = UT_FAILED;
        r.error = now >= s->deadline_ns ? UT_ERR_TIMEOUT : UT_ERR_ABSENT;
    }
    j->host->complete(j->host->context, session, &r);
}

/* Calls lie in the order of the ranks, whoever called first: in that order contributions are combined, so the sum of
 * the same floats by the ranks of a host is the same each time. */
static void add_call(ut_op *op, const ut_call *call)
{
    assert(op->state == UT_OP_GATHERING && call->place < UT_LOCAL_MAX && !ut_bits_have(op->local.places, call->place));
    unsigned at = op->local.calls++;
    for (; at > 0 && op->local.call[at - 1].place > call->place; at--)
        op->local.call[at] = op->local.call[at - 1];
    op->local.call[at] = *call;
    op->local.places |= (uint16_t)ut_bit(call->place);
}

void ut_op_call(ut_job *j, uint32_t session, const ut_submission *s, const uint8_t *src, uint8_t *dst, ut_ns now)
{
    ut_op *op = ut_job_op(j, s->op_seq);
    if (op->state != UT_OP_GATHERING || op->seq != s->op_seq)
        (void)ut_op_gather(j, s, now);
    assert(op->seq == s->op_seq && op->local.calls < UT_LOCAL_MAX);
    add_call(op, &(ut_call){.session = session,
                            .place = j->host->place_of(j->host->context, session),
                            .submission = *s,
                            .src = src,
                            .dst = dst,
                            .at = now});
    ut_op_time_call(j, op, s, op->local.calls == 1);
    if (!ut_op_agrees_here(j, op, s, now))
        return;
    ut_op_time_gather(j, op);
    if (may_open(j, op, now))
        ut_op_open(j, op, now);
    if (now >= op->time.deadline)
        ut_op_tick(j, op, now); /* it came too late for anything */
}

void ut_op_work_on(ut_job *j, ut_op *op, ut_ns now)
{
    assert(ut_op_has_work(op));
    if (op->state == UT_OP_OPENING)
        ut_op_open_on(j, op, now);
    else if (op->state == UT_OP_ENDING)
        ut_op_end_on(j, op, now);
    else
        ut_op_check(j, op, now);
}

/* ---- events from outside ---- */

void ut_op_skip(ut_job *j, uint64_t seq, ut_ns now)
{
    ut_op *op = ut_job_op(j, seq);
    if (op->seq == seq && op->state == UT_OP_GATHERING) {
        if (may_open(j, op, now))
            ut_op_open(j, op, now); /* it waited for this rank alone */
        return;
    }
    if (seq < j->next_open || j->host->next_call(j->host->context, j->number) <= seq)
        return;
    j->next_open = seq + 1;
    ut_job_raise_rx_floor(j);
    ut_job_speak(j, now);
    j->host->room(j->host->context);
}

bool ut_job_hold_over(ut_job *j, ut_ns now)
{
    if (now < ut_epochs_hold_ends(&j->epochs) || j->epochs.held_from == UINT64_MAX)
        return false;
    ut_epochs_hold(&j->epochs, UINT64_MAX, 0);
    const uint64_t first = j->next_open; /* which moves as they open */
    for (unsigned k = 0; k < UT_OPS_MAX; k++) {
        ut_op *op = ut_job_op(j, first + k);
        if (op->state == UT_OP_GATHERING && may_open(j, op, now))
            ut_op_open(j, op, now);
    }
    j->host->room(j->host->context);
    return true;
}

/* The op's calls, without those of |session|. Returns whether it had any. */
static bool drop_calls(ut_op *op, uint32_t session, bool begins)
{
    unsigned kept = 0;
    bool was_in = false;
    for (unsigned i = 0; i < op->local.calls; i++) {
        if (op->local.call[i].session == session) {
            was_in = true;
            op->local.places &= (uint16_t)~(begins ? ut_bit(op->local.call[i].place) : 0);
        } else {
            op->local.call[kept++] = op->local.call[i];
        }
    }
    op->local.calls = (uint16_t)kept;
    return was_in;
}

/* Its buffer was the op's: nothing of it can be sent any more. */
static void give_up(ut_job *j, ut_op *op, ut_ns now)
{
    op->state = UT_OP_FREE;
    j->next_open = UT_MAX2(j->next_open, op->seq + 1);
    ut_job_raise_rx_floor(j);
    ut_job_speak(j, now);
    j->host->room(j->host->context);
}

static void go_on_without(ut_job *j, ut_op *op, uint32_t session, ut_ns now)
{
    bool begins = op->state == UT_OP_GATHERING || op->state == UT_OP_OPENING, was_in = drop_calls(op, session, begins);
    bool in_its_memory = was_in && !begins && !ut_op_in_job_memory(&op->memory), empty = op->local.calls == 0;
    if (was_in && !begins && op->variant)
        op->variant->gone(op);
    if (op->state == UT_OP_GATHERING && empty && j->host->sessions_due(j->host->context, j->number, op->seq) > 0)
        op->state = UT_OP_FREE; /* as if nobody had called yet: the others gather it anew */
    else if (in_its_memory || (begins && empty))
        give_up(j, op, now);
    else if (op->state == UT_OP_GATHERING && may_open(j, op, now))
        ut_op_open(j, op, now);
    else if (was_in && op->state == UT_OP_OPENING)
        ut_op_open(j, op, now); /* once more, without it */
    else if (was_in && op->state == UT_OP_ENDING)
        ut_op_end_again(op);
}

void ut_op_session_gone(ut_job *j, uint32_t session, ut_ns now)
{
    /* Every place, and not those near the floor alone: what was refused moves a rank on, so that its next call gathers
     * anywhere, and no pointer into its memory may stay. */
    for (unsigned k = 0; k < UT_OPS_MAX; k++) {
        ut_op *op = &j->op[k];
        if (op->state != UT_OP_FREE && op->state != UT_OP_LINGERING)
            go_on_without(j, op, session, now);
    }
}

void ut_op_host_absent(ut_job *j, uint32_t host, ut_ns now)
{
    assert(host < j->config.hosts && host != j->config.self);
    for (unsigned k = 0; k < UT_OPS_MAX; k++) {
        ut_op *op = &j->op[k];
        if (!ut_op_sends(op) || ut_op_awaits(j, op, host))
            continue;
        for (uint32_t i = 0; i < op->plan.schedule.steps; i++) {
            ut_transfer *t = &op->plan.transfer[i];
            if (op->plan.schedule.step[i].peer != host || ut_transfer_over(t))
                continue;
            t->closed = 1;
            t->why = UT_MISSING_ABSENT;
        }
        if (op->state == UT_OP_RUNNING)
            ut_op_time_host(j, op, false, now);
        ut_op_check(j, op, now);
        if (op->state == UT_OP_LINGERING)
            ut_op_linger(j, op, now);
    }
}

static void tick_stage(ut_job *j, ut_op *op, ut_ns now)
{
    unsigned how;
    switch (ut_op_stage_over(j, op, now, &how)) {
    case UT_STAGE_GOES_ON:
        break;
    case UT_STAGE_FAILS:
        ut_op_fail(j, op, UT_ERR_TIMEOUT, now);
        break;
    case UT_STAGE_IS_LAST:
        ut_op_deadline(j, op, now);
        break;
    case UT_STAGE_IS_CUT:
        ut_op_cut(j, op, how, now);
        break;
    }
}

/* When an op that gathers goes on without the ranks that have not called: at its deadline in any case. */
static ut_ns gathered_at(const ut_job *j, const ut_op *op)
{
    return UT_MIN2(UT_MAX2(op->time.gather_until, ut_epochs_open_at(&j->epochs, op->seq)), op->time.latest);
}

void ut_op_tick(ut_job *j, ut_op *op, ut_ns now)
{
    if (op->state == UT_OP_GATHERING && now >= gathered_at(j, op)) {
        if (op->what.mode == UT_RELIABLE)
            ut_op_fail(j, op, UT_ERR_TIMEOUT, now);
        else
            ut_op_open(j, op, now);
    }
    if (op->state == UT_OP_RUNNING)
        tick_stage(j, op, now);
    if (op->state == UT_OP_RUNNING && now >= op->time.hold_until)
        j->gathering->held(j, op, now);
    if (op->state == UT_OP_RUNNING && now >= ut_op_round_cut_at(op))
        ut_op_cut_round(j, op, now);
    if (op->state == UT_OP_LINGERING)
        ut_op_linger(j, op, now);
}

ut_ns ut_op_next_wake(const ut_job *j, const ut_op *op)
{
    unsigned how;
    switch (op->state) {
    case UT_OP_GATHERING:
        return gathered_at(j, op);
    case UT_OP_OPENING:
    case UT_OP_ENDING:
        return UT_NEVER; /* the engine goes on with its work in any case */
    case UT_OP_RUNNING:
        return UT_MIN2(UT_MIN2(ut_op_stage_due(op, &how), ut_op_round_cut_at(op)), op->time.hold_until);
    case UT_OP_LINGERING:
        return op->time.linger_until;
    default:
        return UT_NEVER;
    }
}
