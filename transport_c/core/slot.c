/* SPDX-License-Identifier: Apache-2.0
 *
 * The ranks' slots of a partial job, and their calls that wait. A submission here is no op: it may leave something in
 * the slot, and it may wait for a result. Both come apart: what a rank gives is taken by the next op that starts, and
 * its call is answered by the newest op that has ended, be that the same one or not.
 *
 * Results lie in the memory of the op that made them until a later op ends or takes that memory, so that whoever comes
 * late still gets the newest.
 */
#include "engine_impl.h"

enum { NO_SESSION = UINT32_MAX };

static void store(uint64_t *p, uint64_t v)
{
    __atomic_store_n(p, v, __ATOMIC_RELEASE);
}

void ut_slots_init(ut_job *j)
{
    ut_partial *p = &j->partial;
    unsigned policy = j->config.options.policy;
    p->on = policy > UT_POLICY_NONE;
    p->before = (ut_policy_set){j->config.options.policy, j->config.options.tau, j->config.options.quorum,
                                j->config.options.probes};
    p->look_at = UT_NEVER;
    p->told_seq = p->due_seq = UINT64_MAX;
    memset(p->present_of, 0xff, sizeof p->present_of);
    for (unsigned i = 0; i < UT_LOCAL_MAX; i++)
        p->rank[i].session = NO_SESSION;
}

/* ---- what lies in the slots ---- */

static uint16_t all_places(const ut_job *j)
{
    return (uint16_t)((1u << j->config.local_ranks) - 1);
}

uint16_t ut_slots_attached(const ut_job *j)
{
    uint16_t mask = 0;
    for (uint32_t i = 0; i < j->config.local_ranks; i++)
        mask |= (uint16_t)((j->partial.rank[i].session != NO_SESSION) << i);
    return mask;
}

uint16_t ut_slots_present(const ut_job *j)
{
    uint16_t mask = 0;
    for (uint32_t i = 0; i < j->config.local_ranks; i++)
        mask |= (uint16_t)(!j->partial.rank[i].gone << i);
    return mask;
}

uint16_t ut_slots_ready(const ut_job *j, uint64_t seq)
{
#ifdef UT_PLANT_PARTIAL_LEFTOVERS_START
    seq = 0;
#endif
    uint16_t mask = 0;
    for (uint32_t i = 0; i < j->config.local_ranks; i++) {
        const ut_gift *g = &j->partial.rank[i].waiting;
        mask |= (uint16_t)((g->there && !g->spent && (g->calls || g->arrived >= seq)) << i);
    }
    return mask;
}

bool ut_slots_overdue(const ut_job *j, uint32_t tau)
{
    for (uint32_t i = 0; i < j->config.local_ranks; i++) {
        const ut_rank_slot *r = &j->partial.rank[i];
        if (r->session != NO_SESSION && !r->waiting.there && r->absent >= tau)
            return true;
    }
    return false;
}

ut_ns ut_slots_since(const ut_job *j, ut_ns at)
{
    for (uint32_t i = 0; i < j->config.local_ranks; i++)
        if (j->partial.rank[i].waiting.there)
            at = UT_MIN2(at, j->partial.rank[i].waiting.at);
    return at;
}

bool ut_slots_announce(const ut_job *j)
{
    if (!j->partial.on || ut_partial_busy(j))
        return false;
    bool quorum = ut_policy_of(j, j->next_open).policy == UT_POLICY_QUORUM;
    return j->partial.announce || (quorum && ut_slots_ready(j, j->next_open)) || ut_slots_present(j) != all_places(j);
}

ut_submission ut_slots_shape(const ut_job *j, ut_ns now)
{
    ut_submission shape = {0};
    ut_ns budget = UT_NEVER;
    uint8_t flags = 0xff;
    for (uint32_t i = j->config.local_ranks; i-- > 0;) {
        const ut_gift *g = &j->partial.rank[i].waiting;
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

void ut_slots_reshape(const ut_job *j, ut_submission *shape)
{
    for (uint32_t i = 0; i < j->config.local_ranks; i++) {
        const ut_gift *g = &j->partial.rank[i].waiting;
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

/* ---- the words of the ring ---- */

static void tell_words(ut_job *j, const ut_rank_slot *r)
{
    if (r->session == NO_SESSION)
        return;
    ut_completion_ring *ring = j->engine->session[r->session].memory.completions;
    uint64_t freed = r->given;
    if (r->waiting.there)
        freed = UT_MIN2(freed, r->waiting.number);
#ifndef UT_PLANT_PARTIAL_FREED_EARLY
    if (r->in_op.there)
        freed = UT_MIN2(freed, r->in_op.number);
#endif
    store(&ring->results, j->partial.results);
    store(&ring->taken, r->taken);
    store(&ring->freed, freed);
}

/* ---- answers ---- */

static ut_rank_slot *rank_of(ut_job *j, uint32_t session)
{
    return &j->partial.rank[j->engine->session[session].memory.place];
}

static ut_receipt word(const ut_job *j, const ut_submission *x, uint32_t status, int error)
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
static bool waits_in_slot(const ut_rank_slot *r, const ut_submission *x)
{
    return (x->flags & UT_SUBMIT_GIVE) && r->waiting.there && r->waiting.number == x->op_seq;
}

static bool is_in_op(const ut_rank_slot *r, const ut_submission *x)
{
    return (x->flags & UT_SUBMIT_GIVE) && r->in_op.there && r->in_op.number == x->op_seq;
}

static void take_back(ut_rank_slot *r, const ut_submission *x)
{
    if (waits_in_slot(r, x) && !r->waiting.spent)
        r->waiting.there = false;
}

static void reply(ut_job *j, uint32_t session, const ut_submission *x, ut_receipt *receipt, ut_ns since, ut_ns now)
{
    ut_rank_slot *r = rank_of(j, session);
    receipt->call_seq = x->op_seq;
    receipt->kept = waits_in_slot(r, x);
    receipt->elapsed_ns = now - since;
    if (receipt->kept)
        r->waiting.calls = false;
    tell_words(j, r);
    ut_engine_complete(j->engine, session, receipt);
}

/* With the newest result. */
static void reply_result(ut_job *j, uint32_t session, const ut_submission *x, const ut_receipt *newest, ut_ns since,
                         ut_ns now)
{
    ut_rank_slot *r = rank_of(j, session);
    ut_receipt receipt;
    if (newest->status != UT_FAILED && (x->dtype != j->partial.dtype || x->count != j->partial.count)) {
        receipt = word(j, x, UT_FAILED, UT_ERR_DESYNC);
        receipt.op_seq = newest->op_seq;
        receipt.culprit = receipt.self;
        receipt.field = x->dtype != j->partial.dtype ? UT_FIELD_DTYPE : UT_FIELD_COUNT;
        receipt.value_here = x->dtype != j->partial.dtype ? j->partial.dtype : j->partial.count;
        receipt.value_there = x->dtype != j->partial.dtype ? x->dtype : x->count;
    } else {
        receipt = *newest;
        receipt.slot = newest->status == UT_FAILED ? r->state : r->result;
        if (newest->status != UT_FAILED) {
            if (x->src == x->dst)
                take_back(r, x); /* the answer takes its place */
            memcpy(j->engine->session[session].memory.arena + x->dst, ut_job_op(j, newest->op_seq)->bucket_memory,
                   x->count * ut_dtype_bytes(x->dtype));
        }
    }
    reply(j, session, x, &receipt, since, now);
}

/* The call's time is over. */
static void reply_late(ut_job *j, uint32_t session, const ut_submission *x, ut_ns since, ut_ns now)
{
    ut_rank_slot *r = rank_of(j, session);
    bool own = waits_in_slot(r, x) || is_in_op(r, x); /* else its bytes may be another's by now */
    ut_receipt receipt = word(j, x, own ? UT_INSUFFICIENT : UT_EMPTY, UT_OK);
    if (x->mode == UT_RELIABLE) {
        receipt.status = UT_FAILED;
        receipt.error = UT_ERR_TIMEOUT;
    } else if (own) {
        uint8_t *arena = j->engine->session[session].memory.arena;
        if (x->src != x->dst)
            memcpy(arena + x->dst, arena + x->src, x->count * ut_dtype_bytes(x->dtype));
        receipt.weight_min = 1;
        receipt.full_mask = receipt.any_mask = ut_bit(j->config.self);
    }
    take_back(r, x);
    reply(j, session, x, &receipt, since, now);
}

/* ---- calls ---- */

static ut_waiting *waiting_at(ut_engine_session *s, uint32_t i)
{
    return &s->wait[(s->wait_first + i) % UT_RING_ENTRIES];
}

static ut_waiting remove_at(ut_engine_session *s, uint32_t i)
{
    ut_waiting w = *waiting_at(s, i);
    for (s->waiting--; i < s->waiting; i++)
        *waiting_at(s, i) = *waiting_at(s, i + 1);
    return w;
}

/* Puts what |x| gives into the slot. UT_ERR_EXISTS: it is full; UT_ERR_SEQUENCE: what it replaces is gone. */
static int give(ut_job *j, uint32_t session, const ut_submission *x, ut_ns now)
{
    ut_rank_slot *r = rank_of(j, session);
    bool replace = x->flags & UT_SUBMIT_REPLACE;
    r->given = x->op_seq + 1;
#ifdef UT_PLANT_PARTIAL_NEVER_OVERTAKEN
    replace = replace && r->waiting.there;
#endif
    if (r->waiting.there != replace)
        return replace ? UT_ERR_SEQUENCE : UT_ERR_EXISTS;
    bool nowait = x->flags & UT_SUBMIT_NOWAIT;
    ut_gift g = {.there = true,
                 .number = x->op_seq,
                 .given_for = nowait ? j->next_open : x->wanted,
                 .arrived = nowait ? UINT64_MAX : x->wanted,
                 .at = now,
                 .src = j->engine->session[session].memory.arena + x->src,
                 .said = *x};
    if (replace && !r->waiting.spent) {
        g.given_for = UT_MIN2(g.given_for, r->waiting.given_for);
        g.arrived = UT_MAX2(g.arrived, r->waiting.arrived);
    }
    r->waiting = g;
    return UT_OK;
}

void ut_slot_submit(ut_job *j, uint32_t session, const ut_submission *x, ut_ns now)
{
    ut_engine_session *s = &j->engine->session[session];
    ut_partial *p = &j->partial;
    int error = x->flags & UT_SUBMIT_GIVE ? give(j, session, x, now) : UT_OK;
    p->stale = true;
    if (error) {
        ut_receipt receipt = word(j, x, error == UT_ERR_SEQUENCE ? UT_OVERTAKEN : UT_FAILED, error);
        if (error == UT_ERR_SEQUENCE)
            receipt.error = UT_OK;
        reply(j, session, x, &receipt, now, now);
    } else if (p->held && x->wanted < p->results) {
        reply_result(j, session, x, &j->kept[p->result_kept % UT_RECEIPTS_KEPT], now, now);
    } else if (x->flags & UT_SUBMIT_NOWAIT) {
        ut_receipt receipt = word(j, x, UT_EMPTY, UT_OK);
        reply(j, session, x, &receipt, now, now);
    } else {
        *waiting_at(s, s->waiting++) = (ut_waiting){*x, now};
        if (x->flags & UT_SUBMIT_GIVE)
            rank_of(j, session)->waiting.calls = true;
        tell_words(j, rank_of(j, session));
    }
}

/* When a call is answered at the latest. */
static ut_ns latest_of(const ut_job *j, const ut_rank_slot *r, const ut_submission *x)
{
    ut_ns grace = x->deadline_ns > UT_NEVER - UT_ANSWER_GRACE_NS ? UT_NEVER : x->deadline_ns + UT_ANSWER_GRACE_NS;
    const ut_op *op = &j->op[(j->next_open - 1) % UT_OPS_MAX];
    return is_in_op(r, x) && op->deadline <= grace ? grace : x->deadline_ns;
}

void ut_slot_expire(ut_job *j, uint32_t session, ut_ns now)
{
    ut_engine_session *s = &j->engine->session[session];
    for (uint32_t i = 0; i < s->waiting;) {
        if (now < latest_of(j, rank_of(j, session), &waiting_at(s, i)->submission)) {
            i++;
            continue;
        }
        ut_waiting w = remove_at(s, i);
        reply_late(j, session, &w.submission, w.since, now);
    }
}

ut_ns ut_slot_next_expiry(const ut_job *j, const ut_engine_session *s)
{
    ut_ns next = UT_NEVER;
    for (uint32_t i = 0; i < s->waiting; i++)
        next = UT_MIN2(next, latest_of(j, &j->partial.rank[s->memory.place],
                                       &s->wait[(s->wait_first + i) % UT_RING_ENTRIES].submission));
    return next;
}

/* ---- ops ---- */

const ut_submission *ut_slots_take(ut_job *j, ut_op *op)
{
    ut_part *part = &op->part[j->config.self];
    const ut_submission *first = NULL, *other = NULL;
    uint32_t tau = ut_policy_of(j, op->seq).tau;
    *part = (ut_part){.heard = true};
    j->partial.announce = false;
    if (j->partial.held && (j->partial.results - 1) % UT_OPS_MAX == op->seq % UT_OPS_MAX)
        j->partial.held = false; /* its memory is the new op's */
    for (uint32_t i = 0; i < j->config.local_ranks; i++) {
        ut_rank_slot *r = &j->partial.rank[i];
        r->state = UT_SLOT_NULL;
        if (!r->waiting.there) {
            if (r->session != NO_SESSION) /* who was waited for in vain is not waited for again at once */
                r->absent = r->absent < tau ? r->absent + 1 : 0;
            continue;
        }
        bool stale = r->waiting.given_for < op->seq;
#ifdef UT_PLANT_PARTIAL_STALE_IS_FRESH
        stale = false;
#endif
        r->in_op = r->waiting;
        r->waiting.spent = true;
#ifndef UT_PLANT_PARTIAL_TAKEN_TWICE
        r->waiting.there = r->waiting.said.flags & UT_SUBMIT_STICKY;
#endif
        r->absent = 0;
        r->taken = UT_MAX2(r->taken, r->in_op.number + 1);
        r->state = stale ? UT_SLOT_STALE : UT_SLOT_FRESH;
        *(stale ? &part->stale : &part->fresh) |= (uint16_t)(1u << i);
        const ut_submission *said = &r->in_op.said;
        part->oldest_step = part->weight++ ? UT_MIN2(part->oldest_step, said->oldest_step) : said->oldest_step;
        first = first ? first : said;
        bool same = said->dtype == op->dtype && said->redop == op->redop && said->count == op->count &&
                    said->mode == op->mode && !(said->flags & UT_SUBMIT_WORLD) == !op->by_world;
        other = other || same ? other : said;
        tell_words(j, r);
    }
    return other;
}

unsigned ut_slots_sources(const ut_job *j, const void **ret)
{
    unsigned n = 0;
    for (uint32_t i = 0; i < j->config.local_ranks; i++)
        if (j->partial.rank[i].in_op.there)
            ret[n++] = j->partial.rank[i].in_op.src;
    return n;
}

void ut_slots_ended(ut_job *j, const ut_op *op, const ut_receipt *receipt, ut_ns now)
{
    ut_partial *p = &j->partial;
    p->stale = true;
    if (receipt->status != UT_FAILED) {
        p->results = op->seq + 1;
        p->result_kept = j->kept_count - 1;
        p->held = true;
        p->dtype = op->dtype;
        p->count = op->count;
    }
    for (uint32_t i = 0; i < j->config.local_ranks; i++) {
        ut_rank_slot *r = &p->rank[i];
        r->in_op.there = false;
        if (receipt->status != UT_FAILED)
            r->result = r->state;
        tell_words(j, r);
        if (r->session == NO_SESSION)
            continue;
        ut_engine_session *s = &j->engine->session[r->session];
        for (uint32_t k = 0; k < s->waiting;) {
            if (waiting_at(s, k)->submission.wanted > op->seq) {
                k++;
                continue;
            }
            ut_waiting w = remove_at(s, k);
            reply_result(j, r->session, &w.submission, receipt, w.since, now);
        }
    }
}

/* ---- trainers come and go ---- */

int ut_slot_attach(ut_job *j, uint32_t session, uint32_t place)
{
    if (place >= j->config.local_ranks)
        return UT_ERR_ARGUMENT;
    ut_rank_slot *r = &j->partial.rank[place];
    if (r->session != NO_SESSION)
        return UT_ERR_EXISTS;
    j->partial.announce = j->partial.announce || r->gone;
    *r = (ut_rank_slot){.session = session};
    j->partial.stale = true;
    return UT_OK;
}

void ut_slot_gone(ut_job *j, uint32_t session, ut_ns now)
{
    ut_rank_slot *r = rank_of(j, session);
    ut_op *op = &j->op[(j->next_open - 1) % UT_OPS_MAX];
    if (r->in_op.there && op->src == r->in_op.src) {
        /* The op goes on with it: this host still owes others their results. Hadamard is off: its memory is free. */
        if (op->encoded_memory)
            memcpy(op->encoded_memory, op->src, op->bytes);
        op->src = op->encoded_memory;
    }
    *r = (ut_rank_slot){.session = NO_SESSION, .gone = true};
    j->partial.stale = j->partial.announce = true;
    ut_job_speak(j, now); /* it is not to be picked any more */
}

void ut_slots_close(ut_job *j, ut_ns now)
{
    for (uint32_t i = 0; i < j->config.local_ranks; i++) {
        uint32_t session = j->partial.rank[i].session;
        if (session == NO_SESSION)
            continue;
        while (j->engine->session[session].waiting) {
            ut_waiting w = remove_at(&j->engine->session[session], 0);
            ut_receipt receipt = word(j, &w.submission, UT_FAILED, UT_ERR_CLOSED);
            take_back(&j->partial.rank[i], &w.submission);
            reply(j, session, &w.submission, &receipt, w.since, now);
        }
    }
}
