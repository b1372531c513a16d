/* SPDX-License-Identifier: Apache-2.0
 *
 * What trainers ask for: out of their rings at once, checked on our own copy, and held here until the job has room. A
 * request that waits behind four open ops still has its deadline; in the ring nobody would look at it.
 */
#include "core/base/portion.h"
#include "core/face/engine_impl.h"
#include "core/op/ext.h"

static ut_job *job_of(const ut_engine *e, const ut_engine_session *s)
{
    return s->used ? e->job[s->job] : NULL;
}

/* op_seq of the first op that the session may still call. */
static uint64_t next_call(const ut_engine_session *s)
{
    return s->calls.count ? ut_calls_see(&s->calls, 0)->submission.op_seq : s->next_seq;
}

uint32_t ut_engine_sessions_due(void *engine, uint32_t job, uint64_t seq)
{
    const ut_engine *e = engine;
    uint32_t n = 0;
    for (uint32_t s = 0; s < UT_SESSIONS_MAX; s++)
        n += e->session[s].used && e->session[s].job == job && next_call(&e->session[s]) <= seq;
    return n;
}

uint64_t ut_engine_next_call(void *engine, uint32_t job)
{
    const ut_engine *e = engine;
    uint64_t next = UINT64_MAX;
    for (uint32_t s = 0; s < UT_SESSIONS_MAX; s++)
        if (e->session[s].used && e->session[s].job == job)
            next = UT_MIN2(next, next_call(&e->session[s]));
    return next;
}

/* What a collective says for itself. */
static bool alike_valid(const ut_submission *x, uint32_t hosts)
{
    switch (x->collective) {
    case UT_BROADCAST:
        return x->entries == 0 && x->alike.all == (ut_alike){.root = x->alike.root}.all && x->alike.root < hosts;
    case UT_BARRIER:
        return x->entries == 0 && x->count == 0;
    default:
        return x->entries == 0 && x->alike.all == 0;
    }
}

/* Where a rank's part of a bucket of |bytes| lies, and its part of the result. */
static int check_places(const ut_job *j, const ut_engine_session *s, const ut_submission *x, uint64_t bytes)
{
    uint64_t shard = bytes / j->config.hosts, own = j->config.self * shard, arena = s->memory.arena_bytes;
    uint64_t src_bytes = x->collective == UT_ALL_GATHER ? shard : bytes;
    uint64_t dst_bytes = x->collective == UT_REDUCE_SCATTER ? shard : bytes;
    size_t element = ut_dtype_bytes(x->dtype);
    if (!ut_lies_inside(x->src, src_bytes, arena) || !ut_lies_inside(x->dst, dst_bytes, arena) || x->src % element ||
        x->dst % element)
        return UT_ERR_RANGE;
    bool apart = x->src >= x->dst + dst_bytes || x->dst >= x->src + src_bytes;
    uint64_t src = x->src + (dst_bytes < bytes ? own : 0), dst = x->dst + (src_bytes < bytes ? own : 0);
    bool in_place = src == dst && x->collective != UT_ALL_TO_ALL;
    return in_place || (apart && x->collective != UT_BROADCAST) ? UT_OK : UT_ERR_RANGE;
}

/* What a submission of another collective than allreduce may get wrong beyond the common. */
static int check_collective(const ut_job *j, const ut_engine_session *s, const ut_submission *x)
{
    uint32_t hosts = j->config.hosts;
    bool shards = x->collective != UT_BROADCAST && x->collective != UT_BARRIER;
    if (x->collective == UT_ALLREDUCE || x->collective >= UT_COLLECTIVES_END || x->mode != UT_RELIABLE || x->flags)
        return UT_ERR_ARGUMENT;
    if (!alike_valid(x, hosts))
        return UT_ERR_ARGUMENT;
    if (x->collective == UT_BARRIER ? x->dtype != UT_BYTES : j->world != hosts || j->config.local_ranks != 1)
        return UT_ERR_ARGUMENT; /* the ranks of a host would have to be told apart */
    uint64_t count = x->collective == UT_BARRIER ? hosts : x->count;
    if (shards && count % hosts)
        return UT_ERR_ARGUMENT;
    size_t element = ut_dtype_bytes(x->dtype);
    if (count > j->config.bucket_bytes_max / element)
        return UT_ERR_TOO_LARGE;
    return check_places(j, s, x, count * element);
}

/* Partial jobs have words of their own (ut_intake.check). */
static int check_full(const ut_submission *x)
{
    const bool dense = x->collective == UT_ALLREDUCE, weighted = dense && (x->flags & UT_SUBMIT_WEIGHTED);
    const uint8_t flags = UT_SUBMIT_AGREE | UT_SUBMIT_ADAPTIVE | (weighted ? UT_SUBMIT_WEIGHTED : 0);
    return (dense && ((weighted ? ut_submission_residual(x) : x->residual) || x->alike.all)) || (x->flags & ~flags)
               ? UT_ERR_ARGUMENT
               : UT_OK;
}

/* Where the |bytes| that an allreduce gives lie, and those that it gets. */
static int check_buffers(uint64_t arena, const ut_submission *x, uint64_t bytes)
{
    size_t element = ut_dtype_bytes(x->dtype);
    if (!ut_lies_inside(x->src, bytes, arena) || !ut_lies_inside(x->dst, bytes, arena))
        return UT_ERR_RANGE;
    if (x->src % element || x->dst % element)
        return UT_ERR_RANGE;
    if ((x->flags & UT_SUBMIT_STICKY) && x->src == x->dst && bytes)
        return UT_ERR_RANGE; /* the answer would take its place */
    if (x->src != x->dst && x->src < x->dst + bytes && x->dst < x->src + bytes)
        return UT_ERR_RANGE;
    return UT_OK;
}

/* Where sums are forwarded, nobody would know what they weigh. */
static int check_weighted(unsigned algorithm, const ut_submission *x)
{
    if (algorithm != UT_TAR && algorithm != UT_PS)
        return UT_ERR_ARGUMENT;
    return x->redop != UT_AVG ? UT_ERR_REDOP : x->dtype > UT_BFLOAT16 ? UT_ERR_DTYPE : UT_OK;
}

/* Where each entry of an allreduce counts. */
static int check_dense(const ut_job *j, const ut_engine_session *s, const ut_submission *x)
{
    /* Where results are forwarded, a host that lacks a part cannot tell in time that it will never come. */
    unsigned algorithm = ut_job_algorithm(j);
    if ((x->flags & UT_SUBMIT_AGREE) && (algorithm == UT_RING || algorithm == UT_BCUBE))
        return UT_ERR_ARGUMENT;
    const int error = !j->partial && (x->flags & UT_SUBMIT_WEIGHTED) ? check_weighted(algorithm, x) : UT_OK;
    if (error)
        return error;
    if (x->mode == UT_BEST_EFFORT && (x->dtype == UT_INT32 || x->dtype == UT_INT64))
        return UT_ERR_DTYPE;
    if ((x->redop == UT_MIN || x->redop == UT_MAX || x->redop == UT_PROD) && x->mode != UT_RELIABLE)
        return UT_ERR_REDOP;
    size_t element = ut_dtype_bytes(x->dtype);
    if (x->count > j->config.bucket_bytes_max / element)
        return UT_ERR_TOO_LARGE;
    return check_buffers(s->memory.arena_bytes, x, x->count * element);
}

/* The op's own number: the next one, of those that a job can have. */
static int check_number(const ut_job *j, const ut_engine_session *s, const ut_submission *x)
{
    if ((j->partial ? j->next_open : s->next_seq) > UT_OP_SEQ_MAX)
        return UT_ERR_FULL;
    return x->op_seq == s->next_seq + (x->skipped == 1 && !j->partial) ? UT_OK : UT_ERR_SEQUENCE;
}

/* The numbers that every submission has, whatever it asks for. */
static int check_common(const ut_job *j, const ut_engine_session *s, const ut_submission *x)
{
    const bool reduces = ut_op_reduces(x->collective);
    const int error = check_number(j, s, x);
    if (error)
        return error;
    if (x->dtype == 0 || x->dtype >= UT_DTYPES_END + !reduces)
        return UT_ERR_DTYPE;
    if (reduces ? x->redop == 0 || x->redop >= UT_REDOPS_END : x->redop != 0)
        return UT_ERR_REDOP;
    if (x->rounding > (x->collective == UT_ALLREDUCE_QUANT) || x->mode == 0 || x->mode >= UT_MODES_END ||
        (j->partial ? x->gift_forms && x->collective != UT_ALLREDUCE_QUANT : x->skipped > 1))
        return UT_ERR_ARGUMENT;
    const bool splits = x->collective == UT_ALLREDUCE || x->collective == UT_ALLREDUCE_QUANT;
    if (x->portion && (j->partial || !splits || !ut_portion_valid(x->portion)))
        return UT_ERR_ARGUMENT;
    return UT_OK;
}

/* A contribution to a partial job that travels as |variant|. */
static int check_gift(const ut_job *j, const ut_engine_session *s, const ut_submission *x, const ut_variant *variant)
{
    ut_submission op = ut_submission_asks(x);
    op.flags &= UT_SUBMIT_ADAPTIVE;
    int error = j->partial->intake->check(x);
    if (!error)
        error = variant->check(j, s->memory.arena_bytes, &op);
    return error ? error : check_buffers(s->memory.arena_bytes, x, x->count * ut_dtype_bytes(x->dtype));
}

/* Everything that a trainer may get wrong, checked on our own copy. */
static int check_submission(const ut_job *j, const ut_engine_session *s, const ut_submission *x)
{
    int error = check_common(j, s, x);
    if (error)
        return error;
    const ut_variant *variant = ut_variant_of(x->collective);
    if (variant)
        return j->partial ? check_gift(j, s, x, variant) : variant->check(j, s->memory.arena_bytes, x);
    error = j->partial ? j->partial->intake->check(x) : check_full(x);
    if (error)
        return error;
    return x->collective != UT_ALLREDUCE ? check_collective(j, s, x) : check_dense(j, s, x);
}

static void refuse(ut_engine *e, uint32_t session, const ut_submission *x, int error)
{
    ut_receipt r;
    memset(&r, 0, sizeof r);
    r.op_seq = x->op_seq;
    r.portion = ut_portion_valid(x->portion) ? x->portion : 0;
    r.status = UT_FAILED;
    r.error = error;
    r.culprit = r.initiator = 0xffff;
    r.call_seq = x->op_seq;
    r.policy = UT_POLICY_NONE;
    e->stats.bad_submissions++;
    e->host.emit(e, &(ut_event){.kind = UT_EVENT_BAD_SUBMISSION,
                                .job = e->session[session].job,
                                .session = session,
                                .host = UINT32_MAX,
                                .op_seq = x->op_seq,
                                .a = (uint64_t)-error});
    e->host.complete(e, session, &r);
}

/* Empties the ring. What is refused is used up, unless its number was wrong: this rank has no part in that op. */
static void take_in(ut_engine *e, uint32_t session, ut_job *j, ut_ns now)
{
    ut_engine_session *s = &e->session[session];
    ut_submission x;
    for (unsigned budget = 0; budget < UT_RING_ENTRIES && s->calls.count + 2 <= UT_CALLS_MAX; budget++) {
        if (!ut_ring_take_submission(s->memory.submissions, s->memory.completions, &s->taken, &x))
            return;
        e->stats.progress++;
        if (j->partial && !(x.flags & UT_SUBMIT_GIVE))
            x.src = x.dst; /* nothing is read there */
        int error = check_submission(j, s, &x);
        if (error)
            refuse(e, session, &x, error);
        if (error == UT_ERR_SEQUENCE)
            continue;
        if (error)
            x.mode = 0;
        ut_waiting call = {.submission = x, .since = now};
        if (!error) { /* else it may name anything */
            call.src = s->memory.arena + x.src;
            call.dst = s->memory.arena + x.dst;
        }
        if (j->partial) {
            s->next_seq++;
            if (!error)
                ut_inbox_submit(j, session, &call, now);
            continue;
        }
        if (x.op_seq != s->next_seq) /* and no ERR_SEQUENCE */
            ut_calls_add(&s->calls, &(ut_waiting){.submission.op_seq = s->next_seq++});
        ut_calls_add(&s->calls, &call);
        s->next_seq++;
    }
    e->retry |= 1ULL << session;
}

/* The caller's own value is where it wants its result. False if the turn does not allow all of it. */
static bool copy_own(ut_engine *e, ut_waiting *w)
{
    const ut_submission *x = &w->submission;
    const ut_variant *variant = ut_variant_of(x->collective);
    if (variant && variant->own)
        return variant->own(&e->work, w);
    uint64_t bytes =
        (variant || x->collective == UT_ALLREDUCE) && x->src != x->dst ? x->count * ut_dtype_bytes(x->dtype) : 0;
    while (w->copied < bytes) {
        uint64_t some = ut_work_take(&e->work, bytes, bytes - w->copied);
        if (some == 0)
            return false;
        memcpy(w->dst + w->copied, w->src + w->copied, some);
        w->copied += some;
    }
    return true;
}

/* A call that its host went on without. False if there is more to do. */
static bool answer_late(ut_engine *e, ut_job *j, uint32_t session, ut_waiting *w, ut_ns now)
{
    w->late = true;
    if (!copy_own(e, w)) {
        e->retry |= 1ULL << session;
        return false;
    }
    ut_op_answer_late(j, session, &w->submission, now);
    return true;
}

void ut_engine_submissions(ut_engine *e, uint32_t session, ut_ns now)
{
    if (session >= UT_SESSIONS_MAX)
        return;
    ut_engine_session *s = &e->session[session];
    ut_job *j = job_of(e, s);
    if (!j)
        return;
    take_in(e, session, j, now);
    if (j->partial) {
        if (j->partial->stale)
            ut_partial_look(j, now);
        return;
    }
    while (s->used && s->calls.count) {
        ut_waiting *first = ut_calls_at(&s->calls, 0);
        ut_waiting call = *first;
        const ut_submission *x = &call.submission;
        if (x->mode && (first->late || ut_op_is_late(j, x))) {
            if (!answer_late(e, j, session, first, now))
                return;
            ut_calls_drop_first(&s->calls);
            continue;
        }
        if (x->mode && !ut_op_has_room(j, x, first->since, now))
            return; /* until there is room, or its deadline comes */
        if (!ut_work_pass(&e->work, 0, UT_CALL_BYTES)) {
            e->retry |= 1ULL << session; /* even small ops are work, if there are many */
            return;
        }
        ut_calls_drop_first(&s->calls);
        if (x->mode)
            ut_op_call(j, session, x, call.src, call.dst, now);
        else
            ut_op_skip(j, x->op_seq, now);
    }
}

bool ut_engine_anyone_waits(void *engine, uint32_t job)
{
    const ut_engine *e = engine;
    for (uint32_t s = 0; s < UT_SESSIONS_MAX; s++)
        if (e->session[s].used && e->session[s].job == job && e->session[s].calls.count)
            return true;
    return false;
}

/* ---- time ---- */

static void expire(ut_engine *e, uint32_t session, ut_ns now)
{
    ut_engine_session *s = &e->session[session];
    ut_job *j = job_of(e, s);
    if (j->partial) {
        ut_inbox_expire(j, session, now);
        return;
    }
    for (uint32_t i = 0; i < s->calls.count; i++) {
        ut_waiting *w = ut_calls_at(&s->calls, i);
        if (w->submission.mode == 0 || (now < w->submission.deadline_ns && !w->late))
            continue;
        if (!answer_late(e, j, session, w, now))
            return;
        w->submission.mode = 0;
    }
    const ut_waiting *first = ut_calls_at(&s->calls, 0);
    if (s->calls.count && (first->submission.mode == 0 || ut_op_room_at(j, &first->submission, first->since) <= now))
        ut_engine_submissions(e, session, now);
}

void ut_engine_expire(ut_engine *e, ut_ns now)
{
    for (uint32_t s = 0; s < UT_SESSIONS_MAX; s++)
        if (job_of(e, &e->session[s]) && e->session[s].calls.count)
            expire(e, s, now);
}

ut_ns ut_engine_next_expiry(const ut_engine *e)
{
    ut_ns next = UT_NEVER;
    for (uint32_t n = 0; n < UT_SESSIONS_MAX; n++) {
        const ut_engine_session *s = &e->session[n];
        const ut_job *j = job_of(e, s);
        if (j && j->partial) {
            next = UT_MIN2(next, ut_inbox_next_expiry(j, n));
            continue;
        }
        for (uint32_t i = 0; j && i < s->calls.count; i++) {
            const ut_waiting *w = ut_calls_see(&s->calls, i);
            if (w->submission.mode && !w->late) /* else the engine goes on with its work in any case */
                next = UT_MIN2(next, w->submission.deadline_ns);
            if (i == 0 && w->submission.mode)
                next = UT_MIN2(next, ut_op_room_at(j, &w->submission, w->since));
        }
    }
    return next;
}
