/* SPDX-License-Identifier: Apache-2.0
 *
 * The ranks' slots of a partial job. A submission here is no op: it may leave something in the slot, and it may wait
 * for a result. Both come apart: what a rank gives is taken by the next op that starts, and its call is answered
 * (answer.c) by the newest op that has ended, be that the same one or not.
 *
 * Results lie in the memory of the op that made them until a later op ends or takes that memory, so that whoever comes
 * late still gets the newest.
 */
#include "core/partial/answer.h"

enum { NO_SESSION = UINT32_MAX };

/* ---- what lies in the slots ---- */

static uint16_t all_places(const ut_job *j)
{
    return (uint16_t)((1u << j->config.local_ranks) - 1);
}

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
        const ut_rank_gifts *r = &j->partial->rank[i];
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

bool ut_gifts_announce(const ut_job *j)
{
    if (ut_partial_busy(j))
        return false;
    bool quorum = ut_policy_of(j, j->next_open).policy == UT_POLICY_QUORUM;
    return j->partial->announce || (quorum && ut_gifts_ready(j, j->next_open)) || ut_gifts_present(j) != all_places(j);
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
        shape = g->said;
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
        shape->dtype = g->said.dtype;
        shape->redop = g->said.redop;
        shape->mode = g->said.mode;
        shape->count = g->said.count;
        shape->flags = (uint8_t)((shape->flags & UT_SUBMIT_ADAPTIVE) | (g->said.flags & ~UT_SUBMIT_ADAPTIVE));
        return;
    }
}

/* ---- one rank ---- */

const ut_rank_gifts *ut_gift_seen(const ut_job *j, uint32_t session)
{
    const ut_rank_gifts *r = j->partial->rank;
    while (r + 1 < j->partial->rank + j->config.local_ranks && r->session != session)
        r++;
    assert(r->session == session);
    return r;
}

void ut_gift_tell_numbers(ut_job *j, const ut_rank_gifts *r)
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

/* ---- calls ---- */

/* Puts what |call| gives into the slot. UT_ERR_EXISTS: it is full; UT_ERR_SEQUENCE: what it replaces is gone. */
static int give(const ut_job *j, ut_rank_gifts *r, const ut_waiting *call, ut_ns now)
{
    const ut_submission *x = &call->submission;
    bool replace = x->flags & UT_SUBMIT_REPLACE;
    r->given = x->op_seq + 1;
    if (r->waiting.there != replace)
        return replace ? UT_ERR_SEQUENCE : UT_ERR_EXISTS;
    bool nowait = x->flags & UT_SUBMIT_NOWAIT;
    ut_gift g = {.there = true,
                 .number = x->op_seq,
                 .given_for = nowait ? j->next_open : x->wanted,
                 .arrived = nowait ? UINT64_MAX : x->wanted,
                 .at = now,
                 .src = call->src,
                 .said = *x};
    if (replace && !r->waiting.spent) {
        g.given_for = UT_MIN2(g.given_for, r->waiting.given_for);
        g.arrived = UT_MAX2(g.arrived, r->waiting.arrived);
    }
    r->waiting = g;
    return UT_OK;
}

void ut_gift_submit(ut_job *j, uint32_t session, const ut_waiting *call, ut_ns now)
{
    const ut_submission *x = &call->submission;
    ut_partial *p = j->partial;
    ut_rank_gifts *r = ut_gift_of(j, session);
    int error = x->flags & UT_SUBMIT_GIVE ? give(j, r, call, now) : UT_OK;
    p->stale = true;
    if (error) {
        ut_receipt receipt = ut_answer_brief(j, x, error == UT_ERR_SEQUENCE ? UT_OVERTAKEN : UT_FAILED, error);
        if (error == UT_ERR_SEQUENCE)
            receipt.error = UT_OK;
        ut_answer(j, session, x, &receipt, now, now);
    } else if (p->held && x->wanted < p->results) {
        ut_gift_wait(j, r, call, p->result_kept + 1);
        ut_gifts_answer(j, now);
    } else if (x->flags & UT_SUBMIT_NOWAIT) {
        ut_receipt receipt = ut_answer_brief(j, x, UT_EMPTY, UT_OK);
        ut_answer(j, session, x, &receipt, now, now);
    } else {
        ut_gift_wait(j, r, call, 0);
        if (x->flags & UT_SUBMIT_GIVE)
            r->waiting.calls = true;
        ut_gift_tell_numbers(j, r);
    }
}

/* ---- ops ---- */

const ut_submission *ut_gifts_take(ut_job *j, ut_op *op)
{
    ut_part *part = &op->partial->said[j->config.self];
    const ut_submission *first = NULL, *other = NULL;
    uint32_t tau = ut_policy_of(j, op->seq).tau;
    *part = (ut_part){.heard = true};
    j->partial->announce = false;
    if (j->partial->held && (j->partial->results - 1) % UT_OPS_MAX == op->seq % UT_OPS_MAX)
        j->partial->held = false; /* its memory is the new op's */
    for (uint32_t i = 0; i < j->config.local_ranks; i++) {
        ut_rank_gifts *r = &j->partial->rank[i];
        r->state = UT_SLOT_NULL;
        if (!r->waiting.there) {
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
        first = first ? first : said;
        bool same = said->dtype == op->what.dtype && said->redop == op->what.redop && said->count == op->what.count &&
                    said->mode == op->what.mode && !(said->flags & UT_SUBMIT_WORLD) == !op->what.by_world;
        other = other || same ? other : said;
        ut_gift_tell_numbers(j, r);
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

void ut_gifts_ended(ut_job *j, const ut_op *op, const ut_receipt *receipt, ut_ns now)
{
    ut_partial *p = j->partial;
    p->stale = true;
    if (receipt->status != UT_FAILED) {
        p->results = op->seq + 1;
        p->result_kept = j->account.kept_count - 1;
        p->held = true;
    }
    for (uint32_t i = 0; i < j->config.local_ranks; i++) {
        ut_rank_gifts *r = &p->rank[i];
        r->in_op.there = false;
        if (receipt->status != UT_FAILED)
            r->result = r->state;
        ut_gift_tell_numbers(j, r);
    }
    ut_gifts_owe(j, op->seq, j->account.kept_count);
    ut_gifts_answer(j, now);
}

/* ---- trainers come and go ---- */

void ut_gift_attach(ut_job *j, uint32_t session, uint32_t place, ut_calls *calls)
{
    assert(place < j->config.local_ranks);
    ut_rank_gifts *r = &j->partial->rank[place];
    j->partial->announce = j->partial->announce || r->gone;
    if (r->gone)
        ut_job_speak(j, 0); /* it may be picked again */
    *r = (ut_rank_gifts){.session = session, .calls = calls};
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
            memcpy(op->memory.orphan + p->saved, op->memory.src + p->saved, some);
            p->saved += some;
            assert(p->saved <= op->what.bytes);
            p->orphaned = p->saved < op->what.bytes;
            op->memory.src = p->orphaned ? op->memory.src : op->memory.orphan;
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

void ut_gift_gone(ut_job *j, uint32_t session, ut_ns now)
{
    ut_rank_gifts *r = ut_gift_of(j, session);
    ut_op *op = &j->op[(j->next_open - 1) % UT_OPS_MAX];
    if (r->in_op.there && op->state == UT_OP_OPENING)
        leave(j, op, (uint32_t)(r - j->partial->rank));
    else if (r->in_op.there && op->memory.src == r->in_op.src)
        op->partial->orphaned = op->what.bytes > 0;
    ut_gifts_save(j);
    *r = (ut_rank_gifts){.session = NO_SESSION, .gone = true};
    j->partial->stale = j->partial->announce = true;
    ut_job_speak(j, now); /* it is not to be picked any more */
}
