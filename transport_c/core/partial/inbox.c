/* SPDX-License-Identifier: Apache-2.0
 *
 * The inboxes of a partial job's ranks. A submission here is no op: it may leave a gift in its rank's inbox, and it may
 * wait for a result. Both come apart: what a rank gives is taken by an op that starts, and its call is answered
 * (answer.c) by an op that has ended, be that the same one or not. The job's intake (intake.h) says by which.
 *
 * Results lie in the memory of the op that made them until a later op ends or takes that memory, so that whoever comes
 * late still gets the newest.
 */
#include "core/partial/intake.h"

enum { NO_SESSION = UINT32_MAX };

/* ---- what lies in the inboxes ---- */

uint16_t ut_gifts_attached(const ut_job *j)
{
    uint16_t mask = 0;
    for (uint32_t i = 0; i < j->config.local_ranks; i++)
        mask |= (uint16_t)((j->partial->rank[i].session != NO_SESSION) << i);
    return mask;
}

uint16_t ut_gifts_present(const ut_job *j)
{
    uint16_t mask = 0;
    for (uint32_t i = 0; i < j->config.local_ranks; i++)
        mask |= (uint16_t)(!j->partial->rank[i].gone << i);
    return mask;
}

uint16_t ut_gifts_ready(const ut_job *j, uint64_t seq)
{
    uint16_t mask = 0;
    for (uint32_t i = 0; i < j->config.local_ranks; i++) {
        const ut_gift *g = &j->partial->rank[i].waiting;
        mask |= (uint16_t)((g->there && !g->spent && (g->calls || g->arrived >= seq)) << i);
    }
    return mask;
}

bool ut_gifts_overdue(const ut_job *j, uint32_t tau)
{
    for (uint32_t i = 0; i < j->config.local_ranks; i++) {
        const ut_inbox *r = &j->partial->rank[i];
        if (r->session != NO_SESSION && !r->waiting.there && r->absent >= tau)
            return true;
    }
    return false;
}

ut_ns ut_gifts_since(const ut_job *j, ut_ns at)
{
    for (uint32_t i = 0; i < j->config.local_ranks; i++)
        if (j->partial->rank[i].waiting.there)
            at = UT_MIN2(at, j->partial->rank[i].waiting.at);
    return at;
}

ut_submission ut_gifts_shape(const ut_job *j, ut_ns now)
{
    ut_submission shape = {0};
    ut_ns budget = UT_NEVER;
    uint8_t flags = 0xff;
    for (uint32_t i = j->config.local_ranks; i-- > 0;) {
        const ut_gift *g = &j->partial->rank[i].waiting;
        if (!g->there)
            continue;
        shape = ut_submission_asks(&g->said);
        flags &= g->said.flags;
        if (g->said.deadline_ns != UT_NEVER)
            budget = UT_MIN2(budget, g->said.deadline_ns > g->at ? g->said.deadline_ns - g->at : 0);
    }
    shape.flags = (uint8_t)((shape.flags & ~UT_SUBMIT_ADAPTIVE) | (flags & UT_SUBMIT_ADAPTIVE));
    shape.deadline_ns = budget == UT_NEVER ? UT_NEVER : now + budget;
    return shape;
}

void ut_gifts_reshape(const ut_job *j, ut_submission *shape)
{
    for (uint32_t i = 0; i < j->config.local_ranks; i++) {
        const ut_gift *g = &j->partial->rank[i].waiting;
        if (!g->there)
            continue;
        const ut_submission own = ut_submission_asks(&g->said);
        shape->dtype = own.dtype;
        shape->redop = own.redop;
        shape->mode = own.mode;
        shape->count = own.count;
        shape->collective = own.collective;
        shape->alike = own.alike;
        shape->rounding = own.rounding;
        shape->flags = (uint8_t)((shape->flags & UT_SUBMIT_ADAPTIVE) | (own.flags & ~UT_SUBMIT_ADAPTIVE));
        return;
    }
}

/* ---- one rank ---- */

const ut_inbox *ut_inbox_see(const ut_job *j, uint32_t session)
{
    const ut_inbox *r = j->partial->rank;
    while (r + 1 < j->partial->rank + j->config.local_ranks && r->session != session)
        r++;
    assert(r->session == session);
    return r;
}

void ut_inbox_tell(ut_job *j, const ut_inbox *r)
{
    if (r->session == NO_SESSION)
        return;
    uint64_t freed = r->given;
    if (r->waiting.there)
        freed = UT_MIN2(freed, r->waiting.number);
    if (r->in_op.there)
        freed = UT_MIN2(freed, r->in_op.number);
    j->host->tell(j->host->context, r->session, r->taken, freed, j->partial->results);
}

/* ---- what comes into an inbox ---- */

void ut_inbox_put(ut_inbox *r, const ut_waiting *call, uint64_t given_for, uint64_t arrived, ut_ns now)
{
    r->waiting = (ut_gift){.there = true,
                           .number = call->submission.op_seq,
                           .given_for = given_for,
                           .arrived = arrived,
                           .at = now,
                           .src = call->src,
                           .said = call->submission};
}

bool ut_inbox_has(const ut_inbox *r, const ut_submission *x)
{
    return (x->flags & UT_SUBMIT_GIVE) && r->waiting.there && r->waiting.number == x->op_seq;
}

bool ut_inbox_lent(const ut_inbox *r, const ut_submission *x)
{
    return (x->flags & UT_SUBMIT_GIVE) && r->in_op.there && r->in_op.number == x->op_seq;
}

void ut_inbox_drop(ut_inbox *r, const ut_submission *x)
{
    if (ut_inbox_has(r, x) && !r->waiting.spent)
        r->waiting.there = false;
}

static bool waits(ut_inbox *r, uint64_t number)
{
    for (uint32_t i = 0; r->session != NO_SESSION && i < r->calls->count; i++) {
        const ut_waiting *w = ut_calls_at(r->calls, i);
        if (w->submission.op_seq == number && !w->answer && !w->late)
            return true;
    }
    return false;
}

bool ut_inbox_give_again(ut_job *j, ut_inbox *r, const ut_receipt *receipt, ut_ns now)
{
    if (!r->in_op.there || r->waiting.there || !waits(r, r->in_op.number))
        return false;
    r->waiting = r->in_op;
    r->waiting.at = now;
    r->waiting.tried = true;
    r->in_op.there = false;
    j->partial->tried = *receipt;
    j->account.kept_count--;
    return true;
}

void ut_inbox_owe(ut_job *j, ut_inbox *r, ut_waiting *w, uint64_t answer)
{
    const ut_submission *x = &w->submission;
    const ut_receipt *kept = ut_answer_kept(j, answer);
    const ut_op_what *what = ut_answer_what(j, kept);
    bool failed = kept->status == UT_FAILED;
    w->answer = answer;
    w->slot = failed ? r->state : r->result;
    w->differs = !failed && (x->dtype != what->dtype || x->count != what->count);
    j->partial->intake->owed(j, r, x);
}

void ut_inbox_submit(ut_job *j, uint32_t session, const ut_waiting *call, ut_ns now)
{
    const ut_submission *x = &call->submission;
    const bool gives = x->flags & UT_SUBMIT_GIVE;
    ut_inbox *r = ut_inbox_of(j, session);
    ut_receipt receipt;
    j->partial->stale = true;
    r->given = gives ? x->op_seq + 1 : r->given;
    uint64_t answer = j->partial->intake->arrive(j, r, call, now, &receipt);
    if (answer == UT_ANSWERED) {
        ut_answer(j, session, x, &receipt, now, now);
        return;
    }
    ut_waiting *w = ut_calls_add(r->calls, call);
    if (answer) {
        ut_inbox_owe(j, r, w, answer);
        ut_inboxes_answer(j, now);
        return;
    }
    r->waiting.calls = r->waiting.calls || gives;
    ut_inbox_tell(j, r);
}

/* ---- ops ---- */

static bool is_alike(const ut_op_what *what, const ut_submission *x)
{
    return x->dtype == what->dtype && x->redop == what->redop && x->count == what->count && x->mode == what->mode &&
           !(x->flags & UT_SUBMIT_WORLD) == !what->by_world && x->collective == what->told &&
           ut_submission_asks(x).alike.all == what->alike.all;
}

const ut_submission *ut_inboxes_take(ut_job *j, ut_op *op)
{
    ut_part *part = &op->partial->said[j->config.self];
    const ut_submission *other = NULL;
    uint32_t tau = ut_policy_of(j, op->seq).tau;
    *part = (ut_part){.heard = true};
    for (uint32_t i = 0; i < j->config.local_ranks; i++) {
        ut_inbox *r = &j->partial->rank[i];
        r->state = UT_SLOT_NULL;
        if (!r->waiting.there || !j->partial->intake->is_for(op, &r->waiting)) {
            if (r->session != NO_SESSION) /* who was waited for in vain is not waited for again at once */
                r->absent = r->absent < tau ? r->absent + 1 : 0;
            continue;
        }
        bool stale = r->waiting.given_for < op->seq;
        assert(!r->in_op.there); /* one op at a time reads a gift */
        r->in_op = r->waiting;
        r->waiting.spent = true;
        r->waiting.there = r->waiting.said.flags & UT_SUBMIT_STICKY;
        r->absent = 0;
        r->taken = UT_MAX2(r->taken, r->in_op.number + 1);
        r->state = stale ? UT_SLOT_STALE : UT_SLOT_FRESH;
        *(stale ? &part->stale : &part->fresh) |= (uint16_t)(1u << i);
        const ut_submission *said = &r->in_op.said;
        part->oldest_step = part->weight++ ? UT_MIN2(part->oldest_step, said->oldest_step) : said->oldest_step;
        other = other || is_alike(&op->what, said) ? other : said;
        ut_inbox_tell(j, r);
    }
    assert(!(part->fresh & part->stale));
    return other;
}

unsigned ut_gifts_sources(const ut_job *j, const void **ret)
{
    unsigned n = 0;
    for (uint32_t i = 0; i < j->config.local_ranks; i++)
        if (j->partial->rank[i].in_op.there)
            ret[n++] = j->partial->rank[i].in_op.src;
    return n;
}

unsigned ut_gifts_residuals(const ut_job *j, float **ret)
{
    unsigned n = 0;
    for (uint32_t i = 0; i < j->config.local_ranks; i++) {
        const ut_gift *g = &j->partial->rank[i].in_op;
        const ut_submission asks = ut_submission_asks(&g->said);
        if (g->there && ut_submission_residual(&asks))
            ret[n++] = (float *)(void *)((uint8_t *)(uintptr_t)g->src - asks.src + ut_submission_residual(&asks) - 1);
    }
    return n;
}

void ut_inboxes_ended(ut_job *j, const ut_op *op, const ut_receipt *receipt, ut_ns now)
{
    const bool ok = receipt->status != UT_FAILED;
    j->partial->stale = true;
    for (uint32_t i = 0; i < j->config.local_ranks; i++) {
        ut_inbox *r = &j->partial->rank[i];
        r->result = ok ? r->state : r->result;
        for (uint32_t k = 0; r->session != NO_SESSION && k < r->calls->count; k++) {
            ut_waiting *w = ut_calls_at(r->calls, k);
            if (!w->answer && !w->late && j->partial->intake->answers(op, r, &w->submission, ok))
                ut_inbox_owe(j, r, w, j->account.kept_count);
        }
        r->in_op.there = false;
        ut_inbox_tell(j, r);
    }
    ut_inboxes_answer(j, now);
}

/* ---- trainers come and go ---- */

void ut_inbox_attach(ut_job *j, uint32_t session, uint32_t place, ut_calls *calls)
{
    assert(place < j->config.local_ranks);
    ut_inbox *r = &j->partial->rank[place];
    if (r->gone)
        ut_job_speak(j, 0); /* it may be picked again */
    *r = (ut_inbox){.session = session, .calls = calls};
    j->partial->stale = true;
}

/* The rank |place| of this host has gone before its gift was read: the op opens once more, without it. */
static void leave(ut_job *j, ut_op *op, uint32_t place)
{
    assert(place < j->config.local_ranks && op->state == UT_OP_OPENING);
    ut_part *own = &op->partial->said[j->config.self];
    uint16_t bit = (uint16_t)(1u << place);
    j->partial->rank[place].in_op.there = false;
    own->weight -= ((own->fresh | own->stale) & bit) != 0;
    own->fresh &= (uint16_t)~bit;
    own->stale &= (uint16_t)~bit;
    ut_op_restart(op);
}

static bool reads_gone(const ut_op *op)
{
    return op->partial->orphaned && (op->state == UT_OP_RUNNING || op->state == UT_OP_ENDING);
}

/* The op goes on with the gift: this host still owes others, and its other ranks, their results. With peers it may go
 * on for long, so the gift is copied. A host that is alone has no memory for that; it reads on until its op is over,
 * which takes a few turns. */
void ut_gifts_save(ut_job *j)
{
    for (unsigned k = 0; k < UT_OPS_MAX; k++) {
        ut_op *op = &j->op[k];
        ut_op_partial *p = op->partial;
        while (reads_gone(op) && op->memory.orphan) {
            uint64_t some = ut_work_take(j->host->turn, op->what.bytes, op->what.bytes - p->saved);
            if (some == 0)
                return;
            memcpy(op->memory.orphan + p->saved, op->memory.own + p->saved, some);
            p->saved += some;
            assert(p->saved <= op->what.bytes);
            p->orphaned = p->saved < op->what.bytes;
            if (p->orphaned)
                continue;
            op->memory.src = op->memory.src == op->memory.own ? op->memory.orphan : op->memory.src;
            op->memory.own = op->memory.orphan;
        }
    }
}

bool ut_gifts_saved(const ut_job *j)
{
    for (unsigned k = 0; k < UT_OPS_MAX; k++)
        if (reads_gone(&j->op[k]))
            return false;
    return true;
}

void ut_inbox_gone(ut_job *j, uint32_t session, ut_ns now)
{
    ut_inbox *r = ut_inbox_of(j, session);
    ut_op *op = &j->op[(j->next_open - 1) % UT_OPS_MAX];
    if (r->in_op.there && op->state == UT_OP_OPENING)
        leave(j, op, (uint32_t)(r - j->partial->rank));
    else if (r->in_op.there && op->memory.own == r->in_op.src)
        op->partial->orphaned = op->what.bytes > 0;
    ut_gifts_save(j);
    *r = (ut_inbox){.session = NO_SESSION, .gone = true};
    j->partial->stale = true;
    ut_job_speak(j, now); /* it is not to be picked any more */
}
