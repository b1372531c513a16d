/* SPDX-License-Identifier: Apache-2.0
 *
 * What the engines say while ops start and end, held against what the trainers have given:
 *
 *   O13 slots     an op takes all that lies in its host's slots when it starts, each contribution once, and nothing
 *   else; ops start once and in order
 *
 *   O14 policy    who starts an op had the right to: a rank of it had arrived; the drawn one; k of them; all of them;
 *   whom the controller told. Who was absent tau times is waited for
 *
 * The bytes of the results are held against the same table in partial_check.c.
 */
#include "sim/partial/partial.h"
#include "sim/world/epochs.h"

#include <stdlib.h>

enum { SPENT_BYTE = 0xa5 };

/* ---- an op starts on a host ---- */

#define FAIL(oracle, format, ...)                                                                                      \
    sim_fail(w, oracle, h->index, "job %u op_seq %" PRIu64 " starts: " format, event->job, event->op_seq, __VA_ARGS__)

/* The gift that the ring says is the newest taken, if it may be. */
static uint32_t taken_gift(sim_world *w, sim_host *h, const ut_event *event, const sim_rank *r)
{
    const sim_giver *g = r->giver;
    uint64_t call = r->completions->taken - 1;
    if (g->offered != SIM_NONE && r->ask[0].taken && g->gift[g->offered].call == call)
        return g->offered;
    if (g->waiting != SIM_NONE && g->gift[g->waiting].call == call)
        return g->waiting;
    FAIL("O13 slots", "takes call %" PRIu64 " of rank %u, whose slot holds %d (call %" PRIu64 ")", call, r->index,
         (int)g->waiting, g->waiting == SIM_NONE ? UINT64_MAX : g->gift[g->waiting].call);
}

static void take(sim_world *w, sim_host *h, const ut_event *event, sim_part_op *op, sim_rank *r, bool own)
{
    sim_giver *g = r->giver;
    uint32_t number = taken_gift(w, h, event, r);
    if (number == g->offered)
        sim_part_settle(w, r);
    sim_gift *gift = &g->gift[number];
    if (gift->takes && !gift->sticky)
        FAIL("O13 slots", "takes contribution %u of rank %u a second time", number, r->index);
    w->cover[SIM_PART_sticky_again] += gift->takes > 0;
    bool stale = gift->given_for < event->op_seq;
    uint64_t bit = sim_bit(r->index);
    op->stale = stale ? op->stale | bit : op->stale & ~bit;
    if (gift->sticky || (gift->arrived == UT_NEVER && stale))
        op->unsure |= bit; /* the next op may have been a later one, by what its host had heard */
    op->gift[r->index] = number + 1;
    gift->takes++;
    gift->op = event->op_seq;
    op->hurried = op->hurried || (own && gift->hurried); /* whoever joins an op takes its time from there */
    if (!gift->sticky) {
        gift->state = SIM_TAKEN;
        g->waiting = SIM_NONE;
    }
    g->absent = 0;
    w->cover[stale ? SIM_PART_stale : SIM_PART_fresh]++;
}

/* Its call was answered in this very turn, and what it had given taken back: the trainer has not looked yet. */
static bool taken_back(const sim_rank *r)
{
    if (!r->out || r->completions->head == r->taken_seen)
        return false;
    const ut_receipt *receipt = &r->completions->entries[(r->completions->head - 1) % UT_RING_ENTRIES];
    return receipt->call_seq == r->ask[0].entry.op_seq && !receipt->kept;
}

static void leave_out(sim_world *w, sim_host *h, const ut_event *event, sim_part_op *op, sim_rank *r, bool own)
{
    sim_giver *g = r->giver;
    const ut_job_options *options = sim_options_at(w, event->job, w->job[event->job].index_of[h->index], event->op_seq);
    const sim_part_plan *p = sim_part_plan_of(w, r);
    uint32_t tau = options->tau ? options->tau : 8;
    op->gift[r->index] = 0;
    if (r->session == UINT32_MAX)
        return;
    if (g->waiting != SIM_NONE && !taken_back(r))
        FAIL("O13 slots", "leaves contribution %u of rank %u in its slot", g->waiting, r->index);
    bool external = !own && options->policy != UT_POLICY_FULL;
    const sim_prober *own_word = &w->job[event->job].part->prober[w->job[event->job].index_of[h->index]];
    ut_ns since = op->first; /* its own ranks may have called for it before */
    if (own_word->ready_op == event->op_seq && own_word->ready_at)
        since = UT_MIN2(since, own_word->ready_at);
    if (w->plan.faultless && external && g->absent >= tau && w->now - since < p->deadline / 8)
        FAIL("O14 policy", "%" PRIu64 " us after it began elsewhere, though rank %u was absent from %u ops, tau is %u",
             (w->now - since) / UT_US, r->index, g->absent, tau);
    w->cover[SIM_PART_tau_waited] += external && g->absent >= tau && w->now - since >= p->deadline / 8;
    g->absent = g->absent < tau ? g->absent + 1 : 0; /* waited for in vain: not again at once */
    w->cover[SIM_PART_null]++;
}

/* Ranks that had arrived for the op before any host told of it, or are in it. */
static uint32_t arrived_anywhere(const sim_world *w, uint32_t job, const sim_part_op *op, uint64_t op_seq)
{
    uint32_t n = 0;
    for (uint32_t k = 0; k < w->job[job].ranks; k++) {
        const sim_rank *r = &w->job[job].rank[k];
        const sim_giver *g = r->giver;
        if (!g)
            continue;
        bool in = op->gift[k] && sim_part_arrived(r, op->gift[k] - 1, op_seq);
        uint32_t host = w->job[job].index_of[r->host],
                 place = k - (uint32_t)__builtin_ctzll(w->job[job].host_ranks[host]);
        const sim_prober *said = &w->job[job].part->prober[host]; /* and perhaps it was taken back since */
        in = in || (said->ready_op == op_seq && said->ready >> place & 1);
        n += in || (g->waiting != SIM_NONE && sim_part_arrived(r, g->waiting, op_seq));
    }
    return n;
}

/* A drawn rank before |rank| that was alive, as this host sees it, or UINT32_MAX. */
static bool may_start(sim_world *w, const sim_host *h, uint32_t job, const ut_job_options *options, uint64_t op_seq,
                      uint64_t ranks)
{
    uint32_t pick[SIM_RANKS], world = w->job[job].ranks, wanted = sim_part_picks(options, world);
    ut_picks(options->policy_seed, op_seq, world, world, pick);
    for (uint32_t i = 0, live = 0; i < world && live < wanted; i++) {
        const sim_rank *r = &w->job[job].rank[pick[i]];
        if (ranks >> pick[i] & 1) {
            w->cover[SIM_PART_pick_dead] += i > live;
            return true;
        }
        ut_peer_stats stats = {.up = 1};
        if (r->host != h->index)
            ut_engine_peer_stats(h->engine, job, w->job[job].index_of[r->host], &stats);
        /* That a trainer has come is told in records, which may take a while. */
        ut_ns known = w->plan.faultless ? 5 * UT_MS + 8 * w->plan.delay_max : UT_SECOND;
        live += stats.up && r->session != UINT32_MAX && (r->host == h->index || w->now - r->giver->attached > known);
    }
    return false;
}

static void check_initiator(sim_world *w, sim_host *h, const ut_event *event, sim_part_op *op, uint32_t self)
{
    const ut_job_options *options = sim_options_at(w, event->job, self, event->op_seq);
    sim_job *job = &w->job[event->job];
    uint64_t arrived = 0, attached = 0;
    for (uint32_t k = 0; k < job->ranks; k++) {
        if (!(job->host_ranks[self] >> k & 1) || job->rank[k].session == UINT32_MAX)
            continue;
        attached |= sim_bit(k);
        if (op->gift[k] && sim_part_arrived(&job->rank[k], op->gift[k] - 1, event->op_seq))
            arrived |= sim_bit(k);
    }
    w->cover[SIM_PART_full + options->policy - UT_POLICY_FULL]++;
    if (options->policy != UT_POLICY_PROBE && job->part->prober[self].told == event->op_seq + 1)
        return; /* to the controller another epoch was handed, in which it is to choose */
    switch (options->policy) {
    case UT_POLICY_FULL:
        if (arrived != attached)
            FAIL("O14 policy", "ranks %#" PRIx64 " have arrived, %#" PRIx64 " are attached", arrived, attached);
        break;
    case UT_POLICY_SOLO:
        if (!arrived)
            FAIL("O14 policy", "%s has arrived", "nobody");
        break;
    case UT_POLICY_MAJORITY:
    case UT_POLICY_SEEDED:
        if (!may_start(w, h, event->job, options, event->op_seq, arrived))
            FAIL("O14 policy", "ranks %#" PRIx64 " have arrived here, none of them is drawn", arrived);
        break;
    case UT_POLICY_QUORUM: {
        uint32_t k = options->quorum ? options->quorum : (job->ranks + 1) / 2;
        uint32_t n = arrived_anywhere(w, event->job, op, event->op_seq), there = 0;
        for (uint32_t i = 0; i < job->ranks; i++)
            there += job->rank[i].session != UINT32_MAX;
        if (w->plan.faultless && n < UT_MIN2(k, there))
            FAIL("O14 policy", "%u ranks have arrived, the quorum is %u", n, k);
        if (!arrived)
            FAIL("O14 policy", "%s of its own has arrived", "nobody");
        break;
    }
    default:
        if (job->part->prober[self].told != event->op_seq + 1)
            FAIL("O14 policy", "the controller told it op_seq %" PRId64, (int64_t)job->part->prober[self].told - 1);
        w->cover[SIM_PART_activated_by_probe]++;
    }
}

static void started(sim_world *w, sim_host *h, const ut_event *event)
{
    sim_job *job = &w->job[event->job];
    uint32_t self = job->index_of[h->index];
    sim_part_op *op = sim_part_op_of(w, event->job, event->op_seq);
    bool full = sim_options_at(w, event->job, self, event->op_seq)->policy == UT_POLICY_FULL;
    bool own = event->host == self || (full && event->host >= job->plan->hosts); /* FULL has no initiator */
    /* Others may name this host for what it started in an earlier life, of which this one has nothing. */
    if (!event->a && op->life[self] && op->life[self] != h->life && op->initiators & sim_bit(self))
        own = false;
    if (event->op_seq < job->part->next[self])
        FAIL("O13 slots", "it is at op_seq %" PRIu64 " already", job->part->next[self]);
    job->part->next[self] = event->op_seq + 1;
    op->first = UT_MIN2(op->first, w->now);
    for (uint32_t k = 0, place = 0; k < job->ranks; k++) {
        if (!(job->host_ranks[self] >> k & 1))
            continue;
        sim_rank *r = &job->rank[k];
        if (op->life[self] && op->gift[k])
            op->gift_before[k] = op->gift[k];
        if (!(event->a >> place++ & 1))
            leave_out(w, h, event, op, r, own);
        else if (r->session == UINT32_MAX)
            FAIL("O13 slots", "with rank %u, which is not there", k);
        else
            take(w, h, event, op, r, own);
    }
    op->started[self] = w->now;
    op->life[self] = h->life;
    if (own) {
        op->initiators |= sim_bit(self);
        w->cover[SIM_PART_two_initiators] += sim_ones(op->initiators) == 2;
        check_initiator(w, h, event, op, self);
    } else {
        w->cover[SIM_PART_dragged_in]++;
    }
    w->cover[SIM_PART_several_local] += job->plan->local[self] > 1;
    sim_probe_moved(w, h, event->job);
}

#undef FAIL

void sim_part_event(sim_world *w, sim_host *h, const ut_event *event)
{
    if (sim_part_blind(w) && event->kind != UT_EVENT_READY)
        return;
    if (event->kind == UT_EVENT_ACTIVATED)
        started(w, h, event);
    else if (event->kind == UT_EVENT_READY)
        sim_probe_ready(w, h, event);
    else if (event->kind == UT_EVENT_OP_DONE)
        h->ended[event->a < 5 ? event->a : 0]++;
}

/* ---- the words of the rings ---- */

static void let_go(sim_world *w, sim_rank *r, uint32_t buffer)
{
    sim_giver *g = r->giver;
    const sim_part_plan *p = sim_part_plan_of(w, r);
    uint32_t number = g->buffer[buffer];
    uint64_t bytes = p->count * ut_dtype_bytes(p->dtype);
    const sim_gift *gift = &g->gift[number];
    uint8_t *mem = r->arena + r->arena_bytes / SIM_REGIONS * buffer + 64;
    uint8_t *again = sim_alloc(bytes);
    sim_gift_code code = sim_gift_code_of(w, r->job);
    sim_gift_fill(&code, r->index, number, again, p->count);
    bool same = bytes == 0 || memcmp(again, mem, bytes) == 0;
    free(again);
    if (!same)
        SIM_PART_FAIL(w, "O5 bounded memory", r, "contribution %u, call %" PRIu64 ", was changed", number, gift->call);
    memset(mem, SPENT_BYTE, bytes);
    g->buffer[buffer] = SIM_NONE;
    w->cover[SIM_PART_scribbled]++;
}

/* What the engine reads no more is spoilt at once. */
void sim_part_words(sim_world *w, sim_rank *r)
{
    sim_giver *g = r->giver;
    if (g->offered != SIM_NONE)
        sim_part_settle(w, r);
    if (sim_part_blind(w) && g->waiting != SIM_NONE && r->completions->taken > g->gift[g->waiting].call)
        g->waiting = SIM_NONE; /* nobody watched it go */
    for (uint32_t b = 0; b < SIM_BUFFERS && !sim_part_blind(w); b++) {
        if (g->buffer[b] == SIM_NONE)
            continue;
        const sim_gift *gift = &g->gift[g->buffer[b]];
        bool freed = r->completions->freed > gift->call;
        bool never = gift->state == SIM_REPLACED || gift->state == SIM_BACK || gift->state == SIM_REFUSED;
        if (never || (gift->state == SIM_TAKEN && freed))
            let_go(w, r, b);
    }
}

/* ---- the policy changes ---- */

void sim_part_change_due(sim_world *w, uint32_t job)
{
    ut_job_options *wished = &w->job[job].epochs.wished;
    uint8_t algorithm = wished->algorithm;
    *wished = w->plan.job[job].part.change.options;
    wished->algorithm = algorithm;
    w->cover[SIM_PART_policy_changed]++;
}

void sim_part_opens(sim_world *w, const sim_host *h, uint32_t job, uint64_t seq)
{
    w->job[job].part->next[w->job[job].index_of[h->index]] = seq;
}

void sim_part_start(sim_world *w, sim_host *h, uint32_t job)
{
    sim_probe_start(w, h, job);
}
