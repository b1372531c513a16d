/* SPDX-License-Identifier: Apache-2.0
 *
 * What the engine asks of any job for the sake of partial ones; and how ranks give in a job that is not coded: what
 * they have given is for the next op, whichever that is.
 */
#include "core/partial/intake.h"

/* ---- the table (intake.h) ---- */

static void *lay_out(ut_carver *c, const ut_job_config *config)
{
    (void)c, (void)config;
    return NULL;
}

static void init(ut_job *j)
{
    (void)j;
}

static int check(const ut_submission *x)
{
    unsigned giving = UT_SUBMIT_REPLACE | UT_SUBMIT_STICKY;
    unsigned known = giving | UT_SUBMIT_GIVE | UT_SUBMIT_NOWAIT | UT_SUBMIT_WORLD | UT_SUBMIT_ADAPTIVE;
    const bool quant = x->collective == UT_ALLREDUCE_QUANT && (x->flags & UT_SUBMIT_GIVE);
    if ((x->flags & ~known) || (!(x->flags & UT_SUBMIT_GIVE) && (x->flags & giving)) ||
        (quant ? 0 : x->collective != UT_ALLREDUCE || x->oldest_step > x->newest_step))
        return UT_ERR_ARGUMENT;
    return x->redop > UT_AVG ? UT_ERR_REDOP : UT_OK;
}

/* Puts what |call| gives into the inbox. UT_ERR_EXISTS: it is full; UT_ERR_SEQUENCE: what it replaces is gone. */
static int give(const ut_job *j, ut_inbox *r, const ut_waiting *call, ut_ns now)
{
    const ut_submission *x = &call->submission;
    const ut_gift before = r->waiting;
    bool replace = x->flags & UT_SUBMIT_REPLACE, nowait = x->flags & UT_SUBMIT_NOWAIT;
    if (before.there != replace)
        return replace ? UT_ERR_SEQUENCE : UT_ERR_EXISTS;
    uint64_t given_for = nowait ? j->next_open : x->wanted, arrived = nowait ? UINT64_MAX : x->wanted;
    if (replace && !before.spent) {
        given_for = UT_MIN2(given_for, before.given_for);
        arrived = UT_MAX2(arrived, before.arrived);
    }
    ut_inbox_put(r, call, given_for, arrived, now);
    return UT_OK;
}

static uint64_t arrive(ut_job *j, ut_inbox *r, const ut_waiting *call, ut_ns now, ut_receipt *ret)
{
    const ut_submission *x = &call->submission;
    int error = x->flags & UT_SUBMIT_GIVE ? give(j, r, call, now) : UT_OK;
    if (error == UT_ERR_SEQUENCE)
        *ret = ut_answer_brief(j, x, UT_OVERTAKEN, UT_OK);
    else if (error)
        *ret = ut_answer_brief(j, x, UT_FAILED, error);
    else if (j->partial->held && x->wanted < j->partial->results)
        return j->partial->result_kept + 1;
    else if (x->flags & UT_SUBMIT_NOWAIT)
        *ret = ut_answer_brief(j, x, UT_EMPTY, UT_OK);
    else
        return 0;
    return UT_ANSWERED;
}

/* A gift outlasts its call. */
static void owed(ut_job *j, ut_inbox *r, const ut_submission *x)
{
    (void)j, (void)r, (void)x;
}

static void look(ut_job *j, ut_ns now)
{
    (void)j, (void)now;
}

static bool joins(const ut_job *j, uint32_t host, uint64_t seq)
{
    (void)j, (void)host, (void)seq;
    return true;
}

static uint64_t next(ut_job *j, bool elsewhere, ut_ns now)
{
    if (!elsewhere)
        ut_partial_skip_to(j, ut_ledger_believe(&j->ledger, UT_FACT_ENDED, ut_job_up(j), j->next_open, UT_LAG_MAX),
                           now);
    return j->next_open;
}

/* An op waits for a rank that is never there, but not for long. */
static ut_ns waits_until(const ut_job *j, uint64_t seq, ut_ns since, ut_ns end)
{
    if (!ut_gifts_overdue(j, ut_policy_of(j, seq).tau))
        return 0;
    ut_ns time = end == UT_NEVER ? 10 * UT_SECOND : end > since ? end - since : 0;
    return since + time / 4;
}

static void begin(ut_job *j, ut_op *op)
{
    if (j->partial->held && (j->partial->results - 1) % UT_OPS_MAX == op->seq % UT_OPS_MAX)
        j->partial->held = false; /* its memory is the new op's */
}

static bool is_for(const ut_op *op, const ut_gift *g)
{
    (void)op, (void)g;
    return true;
}

/* A call that asks for a later op has none to wait for once this one has taken what it gives. */
static bool answers(const ut_op *op, const ut_inbox *r, const ut_submission *x, bool ok)
{
    (void)ok;
    return x->wanted <= op->seq || ut_inbox_lent(r, x);
}

const ut_intake ut_intake_partial = {.gathering = &ut_gathering_partial,
                                     .lends = true,
                                     .lay_out = lay_out,
                                     .init = init,
                                     .check = check,
                                     .arrive = arrive,
                                     .owed = owed,
                                     .look = look,
                                     .joins = joins,
                                     .next = next,
                                     .waits_until = waits_until,
                                     .begin = begin,
                                     .is_for = is_for,
                                     .answers = answers};

/* ---- what the engine asks ---- */

void ut_partial_init(ut_job *j, ut_partial *p, ut_op_partial *of_op, const ut_intake *intake, void *own)
{
    j->partial = p;
    p->intake = intake;
    p->own = own;
    for (unsigned k = 0; k < UT_OPS_MAX; k++)
        j->op[k].partial = &of_op[k];
    p->look_at = UT_NEVER;
    p->told_seq = p->due_seq = UINT64_MAX;
    for (unsigned i = 0; i < UT_LOCAL_MAX; i++)
        p->rank[i].session = UINT32_MAX;
    intake->init(j);
}

void ut_partial_tick(ut_job *j, ut_ns now)
{
    if (j->partial && (j->partial->stale || now >= j->partial->look_at))
        ut_partial_look(j, now);
}

ut_ns ut_partial_next_wake(const ut_job *j)
{
    if (!j->partial)
        return UT_NEVER;
    return j->partial->stale ? 0 : j->partial->look_at;
}

void ut_partial_work_on(ut_job *j, ut_ns now)
{
    if (!j->partial)
        return;
    ut_gifts_save(j);
    if (j->partial->answering)
        ut_inboxes_answer(j, now);
}

bool ut_partial_has_let_go(const ut_job *j)
{
    return !j->partial || ut_gifts_saved(j);
}

void ut_partial_members_changed(ut_job *j)
{
    if (j->partial)
        j->partial->stale = true;
}
