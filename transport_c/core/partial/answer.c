/* SPDX-License-Identifier: Apache-2.0
 *
 * Partial jobs: how the ranks' calls are answered. A call that waits gets the result of the newest op that has ended,
 * from the memory of that op, or its own value when its time is over. Results are copied as far as each turn allows;
 * the next op does not start before all who are owed this one have it.
 */
#include "core/partial/intake.h"

ut_receipt ut_answer_brief(const ut_job *j, const ut_submission *x, uint32_t status, int error)
{
    uint8_t eta = ut_job_options_now(j)->eta;
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

void ut_answer(ut_job *j, uint32_t session, const ut_submission *x, ut_receipt *receipt, ut_ns since, ut_ns now)
{
    ut_inbox *r = ut_inbox_of(j, session);
    receipt->call_seq = x->op_seq;
    receipt->kept = ut_inbox_has(r, x);
    receipt->elapsed_ns = now - since;
    if (receipt->kept)
        r->waiting.calls = false;
    ut_inbox_tell(j, r);
    j->host->complete(j->host->context, session, receipt);
}

void ut_answer_without(ut_job *j, ut_inbox *r, const ut_waiting *w, ut_receipt receipt, ut_ns now)
{
    ut_inbox_drop(r, &w->submission);
    ut_answer(j, r->session, &w->submission, &receipt, w->since, now);
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

const ut_op_what *ut_answer_what(const ut_job *j, const ut_receipt *kept)
{
    return &j->op[kept->op_seq % UT_OPS_MAX].what;
}

/* The call asks for another result than |kept| tells of. */
static ut_receipt desync(const ut_job *j, const ut_submission *x, const ut_receipt *kept)
{
    const ut_op_what *what = ut_answer_what(j, kept);
    bool dtype = x->dtype != what->dtype;
    ut_receipt r = ut_answer_brief(j, x, UT_FAILED, UT_ERR_DESYNC);
    r.op_seq = kept->op_seq;
    r.culprit = r.self;
    r.field = dtype ? UT_FIELD_DTYPE : UT_FIELD_COUNT;
    r.value_here = dtype ? what->dtype : what->count;
    r.value_there = dtype ? x->dtype : x->count;
    return r;
}

const ut_receipt *ut_answer_kept(const ut_job *j, uint64_t answer)
{
    return &j->account.kept[(answer - 1) % UT_RECEIPTS_KEPT];
}

/* Answers a call with the op of the kept receipt that it is owed. False if there is more to do. */
static bool give_result(ut_job *j, uint32_t session, ut_waiting *w, ut_ns now)
{
    const ut_submission *x = &w->submission;
    ut_receipt receipt = *ut_answer_kept(j, w->answer);
    if (w->differs) {
        receipt = desync(j, x, &receipt);
    } else if (receipt.status != UT_FAILED) {
        if (x->src == x->dst)
            ut_inbox_drop(ut_inbox_of(j, session), x); /* the answer takes its place */
        if (!copy(j, w, ut_job_op(j, receipt.op_seq)->memory.bucket))
            return false;
    }
    if (!w->differs)
        receipt.slot = w->slot;
    ut_answer(j, session, x, &receipt, w->since, now);
    return true;
}

/* What a call is told whose time is over: if an op has failed with what it gave, what was missing there. */
static ut_receipt overdue(const ut_job *j, const ut_inbox *r, const ut_waiting *w)
{
    if (ut_inbox_has(r, &w->submission) && r->waiting.tried)
        return j->partial->tried;
    return ut_answer_brief(j, &w->submission, w->own ? UT_INSUFFICIENT : UT_EMPTY, UT_OK);
}

/* Answers a call whose time is over. False as above. */
static bool give_own(ut_job *j, uint32_t session, ut_waiting *w, ut_ns now)
{
    ut_inbox *r = ut_inbox_of(j, session);
    const ut_submission *x = &w->submission;
    const bool first = !w->late;
    w->own = w->own || (first && (ut_inbox_has(r, x) || ut_inbox_lent(r, x))); /* else it may be another's by now */
    ut_receipt receipt = overdue(j, r, w);
    if (first) {
        w->late = true;
        ut_inbox_drop(r, x);
        j->partial->stale = true; /* fewer ranks are ready */
    }
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
    ut_calls *calls = ut_inbox_of(j, session)->calls;
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

void ut_inboxes_answer(ut_job *j, ut_ns now)
{
    bool all = true;
    for (uint32_t i = 0; i < j->config.local_ranks; i++) {
        uint32_t session = j->partial->rank[i].session;
        all = (session == UINT32_MAX || answer_session(j, session, now)) && all;
    }
    j->partial->stale = j->partial->stale || (j->partial->answering && all);
    j->partial->answering = !all;
}

/* When a call is answered at the latest. */
static ut_ns latest_of(const ut_job *j, const ut_inbox *r, const ut_waiting *w)
{
    const ut_submission *x = &w->submission;
    if (w->answer || w->late)
        return UT_NEVER; /* it is being answered */
    ut_ns grace = x->deadline_ns > UT_NEVER - UT_ANSWER_GRACE_NS ? UT_NEVER : x->deadline_ns + UT_ANSWER_GRACE_NS;
    const ut_op *op = &j->op[(j->next_open - 1) % UT_OPS_MAX];
    return ut_inbox_lent(r, x) && op->time.deadline <= grace ? grace : x->deadline_ns;
}

void ut_inbox_expire(ut_job *j, uint32_t session, ut_ns now)
{
    ut_calls *calls = ut_inbox_of(j, session)->calls;
    for (uint32_t i = 0; i < calls->count;) {
        ut_waiting *w = ut_calls_at(calls, i);
        if (now < latest_of(j, ut_inbox_of(j, session), w)) {
            i++;
        } else if (give_own(j, session, w, now)) {
            ut_calls_remove(calls, i);
        } else {
            j->partial->answering = true;
            return;
        }
    }
}

ut_ns ut_inbox_next_expiry(const ut_job *j, uint32_t session)
{
    const ut_inbox *r = ut_inbox_see(j, session);
    ut_ns next = UT_NEVER;
    for (uint32_t i = 0; i < r->calls->count; i++)
        next = UT_MIN2(next, latest_of(j, r, ut_calls_see(r->calls, i)));
    return next;
}

void ut_inboxes_close(ut_job *j, ut_ns now)
{
    for (uint32_t i = 0; i < j->config.local_ranks; i++) {
        ut_inbox *r = &j->partial->rank[i];
        while (r->session != UINT32_MAX && r->calls->count) {
            ut_waiting w = ut_calls_remove(r->calls, 0);
            ut_answer_without(j, r, &w, ut_answer_brief(j, &w.submission, UT_FAILED, UT_ERR_CLOSED), now);
        }
    }
}
