/* SPDX-License-Identifier: Apache-2.0
 *
 * Partial jobs: how the ranks' calls are answered. A call that waits gets the result of the newest op that has ended,
 * from the memory of that op, or its own value when its time is over. Results are copied as far as each turn allows;
 * the next op does not start before all who are owed this one have it.
 */
#include "core/partial/answer.h"

ut_receipt ut_answer_brief(const ut_job *j, const ut_submission *x, uint32_t status, int error)
{
    uint8_t eta = j->config.options.eta;
    return (ut_receipt){.op_seq = j->next_open,
                        .status = status,
                        .error = error,
                        .hosts = (uint16_t)j->config.hosts,
                        .self = (uint16_t)j->config.self,
                        .culprit = 0xffff,
                        .call_seq = x->op_seq,
                        .initiator = 0xffff,
                        .policy = ut_policy_of(j, j->next_open).policy,
                        .eta = eta ? eta : UT_ETA};
}

/* What the call gave lies in the slot. */
static bool waits_in_slot(const ut_rank_gifts *r, const ut_submission *x)
{
    return (x->flags & UT_SUBMIT_GIVE) && r->waiting.there && r->waiting.number == x->op_seq;
}

static bool is_in_op(const ut_rank_gifts *r, const ut_submission *x)
{
    return (x->flags & UT_SUBMIT_GIVE) && r->in_op.there && r->in_op.number == x->op_seq;
}

static void take_back(ut_rank_gifts *r, const ut_submission *x)
{
    if (waits_in_slot(r, x) && !r->waiting.spent)
        r->waiting.there = false;
}

void ut_answer(ut_job *j, uint32_t session, const ut_submission *x, ut_receipt *receipt, ut_ns since, ut_ns now)
{
    ut_rank_gifts *r = ut_gift_of(j, session);
    receipt->call_seq = x->op_seq;
    receipt->kept = waits_in_slot(r, x);
    receipt->elapsed_ns = now - since;
    if (receipt->kept)
        r->waiting.calls = false;
    ut_gift_tell_numbers(j, r);
    j->host->complete(j->host->context, session, receipt);
}

/* Copies what a call gets from |from| to where it wants it. False if the turn does not allow all of it. */
static bool copy(ut_job *j, ut_waiting *w, const uint8_t *from)
{
    const ut_submission *x = &w->submission;
    uint8_t *to = w->dst;
    uint64_t bytes = x->count * ut_dtype_bytes(x->dtype);
    while (from != to && w->copied < bytes) {
        uint64_t some = ut_work_take(j->host->turn, bytes, bytes - w->copied);
        if (some == 0)
            return false;
        memcpy(to + w->copied, from + w->copied, some);
        w->copied += some;
    }
    return true;
}

/* What the op of a kept receipt with a result has computed. That lies in its memory until all have it. */
static const ut_op_what *what_of(const ut_job *j, const ut_receipt *kept)
{
    return &j->op[kept->op_seq % UT_OPS_MAX].what;
}

/* The call asks for another result than |kept| tells of. */
static ut_receipt desync(const ut_job *j, const ut_submission *x, const ut_receipt *kept)
{
    const ut_op_what *what = what_of(j, kept);
    bool dtype = x->dtype != what->dtype;
    ut_receipt r = ut_answer_brief(j, x, UT_FAILED, UT_ERR_DESYNC);
    r.op_seq = kept->op_seq;
    r.culprit = r.self;
    r.field = dtype ? UT_FIELD_DTYPE : UT_FIELD_COUNT;
    r.value_here = dtype ? what->dtype : what->count;
    r.value_there = dtype ? x->dtype : x->count;
    return r;
}

static const ut_receipt *kept(const ut_job *j, uint64_t answer)
{
    return &j->account.kept[(answer - 1) % UT_RECEIPTS_KEPT];
}

/* Answers a call with the op of the kept receipt that it is owed. False if there is more to do. */
static bool give_result(ut_job *j, uint32_t session, ut_waiting *w, ut_ns now)
{
    const ut_submission *x = &w->submission;
    ut_receipt receipt = *kept(j, w->answer);
    if (w->differs) {
        receipt = desync(j, x, &receipt);
    } else if (receipt.status != UT_FAILED) {
        if (x->src == x->dst)
            take_back(ut_gift_of(j, session), x); /* the answer takes its place */
        if (!copy(j, w, ut_job_op(j, receipt.op_seq)->memory.bucket))
            return false;
    }
    if (!w->differs)
        receipt.slot = w->slot;
    ut_answer(j, session, x, &receipt, w->since, now);
    return true;
}

/* Answers a call whose time is over. False as above. */
static bool give_own(ut_job *j, uint32_t session, ut_waiting *w, ut_ns now)
{
    ut_rank_gifts *r = ut_gift_of(j, session);
    const ut_submission *x = &w->submission;
    if (!w->late) {
        w->late = true;
        w->own = waits_in_slot(r, x) || is_in_op(r, x); /* else its bytes may be another's by now */
        take_back(r, x);
        j->partial->stale = true; /* fewer ranks are ready */
    }
    ut_receipt receipt = ut_answer_brief(j, x, w->own ? UT_INSUFFICIENT : UT_EMPTY, UT_OK);
    if (x->mode == UT_RELIABLE || !j->partial->intake->lends) {
        receipt.status = UT_FAILED;
        receipt.error = UT_ERR_TIMEOUT;
    } else if (w->own) {
        if (!copy(j, w, w->src))
            return false;
        receipt.weight_min = 1;
        receipt.full_mask = receipt.any_mask = ut_bit(j->config.self);
    }
    ut_answer(j, session, x, &receipt, w->since, now);
    return true;
}

/* Answers whom it can of one session. False if there is more to do. */
static bool answer_session(ut_job *j, uint32_t session, ut_ns now)
{
    ut_calls *calls = ut_gift_of(j, session)->calls;
    for (uint32_t i = 0; i < calls->count;) {
        ut_waiting *w = ut_calls_at(calls, i);
        if (!w->answer && !w->late) {
            i++;
            continue;
        }
        if (!(w->late ? give_own(j, session, w, now) : give_result(j, session, w, now)))
            return false;
        ut_calls_remove(calls, i);
    }
    return true;
}

void ut_gifts_answer(ut_job *j, ut_ns now)
{
    bool all = true;
    for (uint32_t i = 0; i < j->config.local_ranks; i++) {
        uint32_t session = j->partial->rank[i].session;
        all = (session == UINT32_MAX || answer_session(j, session, now)) && all;
    }
    j->partial->stale = j->partial->stale || (j->partial->answering && all);
    j->partial->answering = !all;
}

void ut_gift_owe(const ut_job *j, const ut_rank_gifts *r, ut_waiting *w, uint64_t answer)
{
    const ut_submission *x = &w->submission;
    bool failed = kept(j, answer)->status == UT_FAILED;
    w->answer = answer;
    w->slot = failed ? r->state : r->result;
    const ut_op_what *what = what_of(j, kept(j, answer));
    w->differs = !failed && (x->dtype != what->dtype || x->count != what->count);
}

void ut_gifts_owe(ut_job *j, uint64_t op_seq, uint64_t answer)
{
    for (uint32_t i = 0; i < j->config.local_ranks; i++) {
        if (j->partial->rank[i].session == UINT32_MAX)
            continue;
        ut_calls *calls = j->partial->rank[i].calls;
        for (uint32_t k = 0; k < calls->count; k++) {
            ut_waiting *w = ut_calls_at(calls, k);
            if (w->submission.wanted <= op_seq && !w->answer && !w->late)
                ut_gift_owe(j, &j->partial->rank[i], w, answer);
        }
    }
}

void ut_gift_wait(ut_job *j, ut_rank_gifts *r, const ut_waiting *call, uint64_t answer)
{
    ut_waiting *w = ut_calls_add(r->calls, call);
    if (answer)
        ut_gift_owe(j, r, w, answer);
}

/* When a call is answered at the latest. */
static ut_ns latest_of(const ut_job *j, const ut_rank_gifts *r, const ut_waiting *w)
{
    const ut_submission *x = &w->submission;
    if (w->answer || w->late)
        return UT_NEVER; /* it is being answered */
    ut_ns grace = x->deadline_ns > UT_NEVER - UT_ANSWER_GRACE_NS ? UT_NEVER : x->deadline_ns + UT_ANSWER_GRACE_NS;
    const ut_op *op = &j->op[(j->next_open - 1) % UT_OPS_MAX];
    return is_in_op(r, x) && op->time.deadline <= grace ? grace : x->deadline_ns;
}

void ut_gift_expire(ut_job *j, uint32_t session, ut_ns now)
{
    ut_calls *calls = ut_gift_of(j, session)->calls;
    for (uint32_t i = 0; i < calls->count;) {
        ut_waiting *w = ut_calls_at(calls, i);
        if (now < latest_of(j, ut_gift_of(j, session), w)) {
            i++;
        } else if (give_own(j, session, w, now)) {
            ut_calls_remove(calls, i);
        } else {
            j->partial->answering = true;
            return;
        }
    }
}

ut_ns ut_gift_next_expiry(const ut_job *j, uint32_t session)
{
    const ut_rank_gifts *r = ut_gift_seen(j, session);
    ut_ns next = UT_NEVER;
    for (uint32_t i = 0; i < r->calls->count; i++)
        next = UT_MIN2(next, latest_of(j, r, ut_calls_see(r->calls, i)));
    return next;
}

void ut_gifts_close(ut_job *j, ut_ns now)
{
    for (uint32_t i = 0; i < j->config.local_ranks; i++) {
        ut_rank_gifts *r = &j->partial->rank[i];
        while (r->session != UINT32_MAX && r->calls->count) {
            ut_waiting w = ut_calls_remove(r->calls, 0);
            ut_receipt receipt = ut_answer_brief(j, &w.submission, UT_FAILED, UT_ERR_CLOSED);
            take_back(r, &w.submission);
            ut_answer(j, r->session, &w.submission, &receipt, w.since, now);
        }
    }
}
