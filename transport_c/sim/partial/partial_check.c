/* SPDX-License-Identifier: Apache-2.0
 *
 * The result of a partial op, byte by byte, against what went into it (partial_watch.c) and what the receipt says:
 *
 *   O2 fingerprint   each element holds whole hosts' contributions to this op, by the ranks that the receipt names
 *   fresh and stale, or is the host's own, or zero where it has none; COMPLETE: all that are included, everywhere
 *
 *   O3 conservation  expected = used + missing, row by row, and the missing bytes are those that the result lacks
 *
 *   O4 agreement     all COMPLETE results of an op are the same
 *
 *   O15 nothing lost at the end, where nothing went wrong: each contribution is in one op and in its result, or was
 *   replaced, or taken back, or waits in its slot
 */
#include "sim/oracles/oracles.h"
#include "sim/partial/partial.h"
#include "sim/world/epochs.h"
#include "sim/world/liar.h"
#include "sim/world/seal.h"

#include "core/wire/packets.h"
#include "kernels/quant.h"

typedef struct view {
    sim_world *w;
    sim_job *job;
    const sim_rank *rank;
    const ut_receipt *r;
    const sim_part_op *op;
    const uint8_t *result;
    uint32_t self, hosts;
    size_t element;
    uint64_t named;                /* ranks that the rows say are in it */
    uint64_t unheard;              /* of hosts whose word did not come, though their data may have */
    uint32_t least, least_sure;    /* ranks of the thinnest element, at most and at least */
    sim_held everywhere, anywhere; /* ranks in all elements, in some; unsure: those that may be, these included */
    uint64_t lacks[2][SIM_HOSTS];  /* elements of our shard without this host; of its shard without it */
    uint64_t may_lack[2][SIM_HOSTS];
    uint64_t digest;
} view;

#define FAIL(oracle, format, ...)                                                                                      \
    sim_fail(v->w, oracle, v->rank->host, "job %u rank %u op_seq %" PRIu64 " (status %u): " format, v->rank->job,      \
             v->rank->index, v->r->op_seq, v->r->status, __VA_ARGS__)

static uint64_t ranks_at_places(const view *v, uint32_t host, uint32_t places)
{
    return (uint64_t)places << __builtin_ctzll(v->job->host_ranks[host]);
}

/* What each host is said to have put in, against what it did. */
static void check_names(view *v)
{
    uint32_t included = 0;
    for (uint32_t h = 0; h < v->hosts; h++) {
        const ut_receipt_peer *row = &v->r->peer[h];
        uint64_t fresh = ranks_at_places(v, h, row->fresh), stale = ranks_at_places(v, h, row->stale);
        included += sim_ones(row->fresh | row->stale);
        v->named |= fresh | stale;
        if ((fresh | stale) & ~v->job->host_ranks[h] || fresh & stale)
            FAIL("O2 fingerprint", "host %u: ranks %#" PRIx64 " fresh, %#" PRIx64 " stale", h, fresh, stale);
        v->unheard |= fresh | stale ? 0 : v->job->host_ranks[h];
        if (!(fresh | stale) || v->job->shaken[h])
            continue;
        uint64_t in = 0, mask = v->job->host_ranks[h] & ~v->op->unsure;
        for (uint32_t k = 0; k < v->job->ranks; k++)
            in |= (uint64_t)(v->op->gift[k] != 0) << k;
        if ((fresh | stale) != (in & v->job->host_ranks[h]))
            FAIL("O2 fingerprint", "host %u is said to have put in ranks %#" PRIx64 ", it has put in %#" PRIx64, h,
                 fresh | stale, in & v->job->host_ranks[h]);
        if ((stale & mask) != (v->op->stale & in & mask))
            FAIL("O2 fingerprint", "host %u: ranks %#" PRIx64 " are said to be stale, %#" PRIx64 " are", h,
                 stale & mask, v->op->stale & in & mask);
    }
    if (v->r->included != included)
        FAIL("O2 fingerprint", "%u ranks are said to be included, the rows name %u", v->r->included, included);
    uint64_t bit = sim_bit(v->rank->index);
    uint32_t own = v->op->gift[v->rank->index];
    bool stale = v->op->stale & bit;
    unsigned slot = !own ? UT_SLOT_NULL : stale ? UT_SLOT_STALE : UT_SLOT_FRESH;
    bool mine = own && own > v->rank->giver->first; /* of this life of the trainer */
    if ((mine || !own) && v->op->life[v->self] == v->w->host[v->rank->host].life && v->r->slot != slot &&
        !(v->op->unsure & bit && v->r->slot != UT_SLOT_NULL))
        FAIL("O2 fingerprint", "the caller's slot is said to have been %u, it was %u", v->r->slot, slot);
}

static uint32_t owner_of(const view *v, uint64_t element, uint64_t *ret_end)
{
    for (uint32_t h = 0; h < v->hosts; h++) {
        uint64_t from, to;
        sim_owned(v->job->plan, v->r->op_seq, v->r->owners, v->job->plan->part.count, h, &from, &to);
        if (element >= from && element < to) {
            *ret_end = to;
            return h;
        }
    }
    *ret_end = 0;
    return 0;
}

static uint64_t own_ranks(const view *v)
{
    uint64_t ranks = 0;
    for (uint32_t k = 0; k < v->job->ranks; k++)
        if (v->job->host_ranks[v->self] >> k & 1 && v->op->gift[k])
            ranks |= sim_bit(k);
    return ranks;
}

static void check_slot(view *v, uint64_t i, uint32_t owner, sim_held held)
{
    uint64_t own = own_ranks(v), ranks = held.ranks, may = ranks | held.unsure;
    for (uint32_t h = 0; h < v->hosts; h++) {
        uint64_t part = ranks & v->job->host_ranks[h], whole = 0;
        for (uint32_t k = 0; k < v->job->ranks; k++)
            whole |= (uint64_t)(v->job->host_ranks[h] >> k & 1 && v->op->gift[k]) << k;
        if (part && (part & ~whole || whole & ~may) && !v->job->shaken[h])
            FAIL("O2 fingerprint", "element %" PRIu64 " holds ranks %#" PRIx64 " of host %u, which put in %#" PRIx64, i,
                 part, h, whole);
    }
    /* What lacks its owner's own is filled in here. */
    uint64_t owners = v->named & v->job->host_ranks[owner];
    if (owner != v->self && owners && !(may & owners) && (ranks & ~own || own & ~may) && !v->job->shaken[owner] &&
        !v->job->shaken[v->self])
        FAIL("O2 fingerprint",
             "element %" PRIu64 " of host %u's shard holds ranks %#" PRIx64 ": neither its result nor our own", i,
             owner, ranks);
    if (v->r->status == UT_COMPLETE && (v->named & ~may || ranks & ~(v->named | v->unheard)))
        FAIL("O2 fingerprint", "element %" PRIu64 " holds ranks %#" PRIx64 ", ranks %#" PRIx64 " are included", i,
             ranks, v->named);
    if (v->r->status == UT_INSUFFICIENT && ranks & ~v->job->host_ranks[v->self])
        FAIL("O2 fingerprint", "element %" PRIu64 " holds ranks %#" PRIx64, i, ranks);
}

static void note_slot(view *v, uint64_t from, uint64_t to, uint32_t owner, sim_held held)
{
    uint64_t may = held.ranks | held.unsure;
    check_slot(v, from, owner, held);
    v->least = UT_MIN2(v->least, sim_ones(may));
    v->least_sure = UT_MIN2(v->least_sure, sim_ones(held.ranks));
    v->everywhere.ranks &= held.ranks;
    v->everywhere.unsure &= may;
    v->anywhere.ranks |= held.ranks;
    v->anywhere.unsure |= may;
    for (uint32_t h = 0; h < v->hosts; h++)
        for (unsigned stage = 0; stage < 2; stage++) {
            uint64_t theirs = v->job->host_ranks[h], here = owner == (stage ? h : v->self) ? to - from : 0;
            v->lacks[stage][h] += may & theirs ? 0 : here;
            v->may_lack[stage][h] += held.ranks & theirs ? 0 : here;
        }
}

/* Elements of a slot of the result, which has those of a part of one of contributions. */
static uint64_t quant_slot(const view *v, unsigned wire)
{
    const uint32_t payload = ut_wire_payload(v->w->plan.packet_bytes, sim_seal_overhead(v->w));
    const uint32_t given = ut_quant_elements(wire & 15, payload), answered = ut_quant_elements(wire >> 4, payload);
    return given / ((given + answered - 1) / answered);
}

static void read_result(view *v)
{
    sim_gift_code code = sim_gift_code_of(v->w, v->rank->job);
    uint64_t count = v->job->plan->part.count, shard_end = 0;
    const unsigned wire = v->job->plan->part.wire;
    uint64_t per = wire ? quant_slot(v, wire) : sim_slot_elements(v->w, v->element);
    uint32_t owner = 0;
    v->everywhere = (sim_held){UINT64_MAX, UINT64_MAX};
    v->least = v->least_sure = v->job->ranks;
    for (uint64_t i = 0, next; i < count; i = next) {
        sim_held held;
        sim_wrong wrong;
        if (i == shard_end)
            owner = owner_of(v, i, &shard_end);
        next = shard_end > i ? UT_MIN2(i + per, shard_end) : count;
        if (!sim_gift_read(&code, v->op, i, next, v->result, &held, &wrong))
            FAIL("O2 fingerprint",
                 "element %" PRIu64 " of %" PRIu64 " (dtype %u, redop %u, slot [%" PRIu64 ", %" PRIu64 "), %.17g) %s",
                 wrong.element, count, code.dtype, code.redop, i, next,
                 sim_code_real(code.dtype, v->result + wrong.element * v->element), wrong.reason);
        note_slot(v, i, next, owner, held);
    }
    v->digest = sim_digest(v->result, count * v->element);
}

static void check_rows(view *v)
{
    const ut_receipt *r = v->r;
    uint64_t expected = 0, missing = 0, count = v->job->plan->part.count;
    for (uint32_t h = 0; h < v->hosts; h++) {
        const ut_receipt_peer *row = &r->peer[h];
        uint64_t from, to, own_from, own_to;
        sim_owned(v->job->plan, r->op_seq, r->owners, count, h, &from, &to);
        sim_owned(v->job->plan, r->op_seq, r->owners, count, v->self, &own_from, &own_to);
        uint64_t shard[2] = {(own_to - own_from) * v->element, (to - from) * v->element};
        bool gives = row->fresh | row->stale;
        for (unsigned stage = 0; stage < 2; stage++) {
            bool none = h == v->self;
            if (row->missing[stage] > row->expected[stage] ||
                (row->expected[stage] != (none ? 0 : shard[stage]) && (row->expected[stage] != 0 || stage == 1)))
                FAIL("O3 conservation", "host %u stage %u: %" PRIu64 " bytes expected of %" PRIu64 ", %u missing", h,
                     stage + 1, row->expected[stage], shard[stage], row->missing[stage]);
            expected += row->expected[stage];
            missing += row->missing[stage];
        }
        if (row->missing[0] + row->missing[1] && row->why == UT_MISSING_NOTHING)
            FAIL("O3 conservation", "host %u: %u and %u bytes are missing for no reason", h, row->missing[0],
                 row->missing[1]);
        if (h == v->self || !gives || v->job->shaken[h])
            continue;
        for (unsigned stage = 0; stage < 2; stage++)
            if (row->missing[stage] < v->lacks[stage][h] * v->element ||
                row->missing[stage] > v->may_lack[stage][h] * v->element)
                FAIL("O3 conservation",
                     "host %u stage %u: %u bytes are said to be missing, %" PRIu64 " to %" PRIu64 " are", h, stage + 1,
                     row->missing[stage], v->lacks[stage][h] * v->element, v->may_lack[stage][h] * v->element);
    }
    if (r->bytes_expected != expected || r->bytes_missing != missing || r->bytes_used + missing != expected)
        FAIL("O3 conservation",
             "%" PRIu64 " bytes expected, %" PRIu64 " used, %" PRIu64 " missing; rows: %" PRIu64 ", %" PRIu64,
             r->bytes_expected, r->bytes_used, r->bytes_missing, expected, missing);
    if (count && (r->weight_min < v->least_sure || r->weight_min > v->least))
        FAIL("O3 conservation", "the thinnest element is said to hold %u ranks, it holds %u to %u", r->weight_min,
             v->least_sure, v->least);
}

static uint64_t hosts_of(const view *v, uint64_t ranks)
{
    uint64_t mask = 0;
    for (uint32_t h = 0; h < v->hosts; h++)
        if (ranks & v->job->host_ranks[h])
            mask |= sim_bit(h);
    return mask;
}

static void check_whole(view *v, sim_part_op *op)
{
    const ut_receipt *r = v->r;
    bool some = v->job->plan->part.count > 0;
    if (some && r->full_mask & ~hosts_of(v, v->everywhere.unsure) & hosts_of(v, v->named))
        FAIL("O2 fingerprint", "hosts %#" PRIx64 " are said to be everywhere, %#" PRIx64 " are", r->full_mask,
             hosts_of(v, v->everywhere.unsure));
    if (some && r->any_mask & ~hosts_of(v, v->anywhere.unsure) & hosts_of(v, v->named))
        FAIL("O2 fingerprint", "hosts %#" PRIx64 " are said to be somewhere, %#" PRIx64 " are", r->any_mask,
             hosts_of(v, v->anywhere.unsure));
    if (r->status == UT_COMPLETE) {
        if (r->bytes_missing)
            FAIL("O3 conservation", "%" PRIu64 " bytes are missing", r->bytes_missing);
        if (op->complete && op->complete_owners == r->owners && op->digest != v->digest) /* else of two epochs */
            FAIL("O4 agreement", "COMPLETE with ranks %#" PRIx64 ", elsewhere with %#" PRIx64 " and other bytes",
                 v->named, op->complete_ranks);
        op->complete = true;
        op->complete_owners = r->owners;
        op->digest = v->digest;
        op->complete_ranks = v->job->plan->part.count ? v->everywhere.unsure : v->named;
    }
}

/* Where nothing goes wrong (any more) it is COMPLETE, if all take part who must. Best effort may end early, and an op
 * has the time that was given with what it takes: a contribution that a trainer left with little time before all was
 * calm may lie there until then. */
static void check_calm(view *v)
{
    const ut_receipt *r = v->r;
    bool calm = v->w->calming && v->op->first > v->w->calm_since, all = true, gone = false;
    for (uint32_t h = 0; h < v->hosts; h++) {
        gone = gone || v->w->host[v->job->plan->host[h]].gone;
        all = all && v->op->started[h] < v->op->first + v->job->plan->part.deadline / 2;
    }
    v->w->cover[SIM_PART_calm_good] += calm && r->status == UT_COMPLETE;
    if (r->policy == UT_POLICY_FULL && !all)
        return; /* there all wait for all, who may be slow or through */
    if (r->status == UT_COMPLETE || gone || v->op->hurried || v->job->plan->part.mode == UT_BEST_EFFORT)
        return;
    if (calm || v->w->plan.faultless)
        FAIL("O10 calm", "%" PRIu64 " bytes missing, policy %u, stages ended by %u and %u after %.3f of %.3f ms, %s",
             r->bytes_missing, r->policy, r->stage_end[0], r->stage_end[1], (double)r->elapsed_ns / UT_MS,
             (double)r->deadline_ns / UT_MS, calm ? "long after the last fault" : "in a world without faults");
}

/* Where all hold the same epoch, and all start, nothing is missing in the calm. */
static void check_owners(view *v)
{
    const ut_receipt *r = v->r;
    sim_part *part = v->job->part;
    uint64_t all = UINT64_MAX >> (64 - v->hosts);
    bool started = true;
    part->thinned = part->thinned || r->owners != all;
    if (v->job->plan->part.mode == UT_RELIABLE || !sim_epochs_check(v->w, v->rank->job, v->self, r))
        return;
    v->w->cover[SIM_PART_owner_gone] += r->owners != all;
    v->w->cover[SIM_PART_owner_back] += r->owners == all && part->thinned;
    if (!v->w->calming || v->op->first <= v->w->calm_since)
        return;
    for (uint32_t h = 0; h < v->hosts; h++) {
        bool gone = v->w->host[v->job->plan->host[h]].gone;
        started = started && (gone || v->op->started[h] < v->op->first + v->job->plan->part.deadline / 2);
    }
    if (v->job->plan->part.mode == UT_BOUNDED && started && r->bytes_missing && !v->op->hurried)
        FAIL("O10 calm", "hosts %#" PRIx64 " own the bucket, and %" PRIu64 " bytes are missing", r->owners,
             r->bytes_missing);
}

static void check_policy(view *v, const sim_ask *ask)
{
    const ut_submission *e = &ask->entry;
    const ut_receipt *r = v->r;
    const ut_job_options *options = sim_options_at(v->w, v->rank->job, v->self, r->op_seq);
    if (r->policy != options->policy)
        FAIL("O14 policy", "went by policy %u, %u was in force", r->policy, options->policy);
    const bool took = ask->slot != SIM_NONE && v->rank->giver->gift[ask->slot].op == r->op_seq;
    if ((r->op_seq < e->wanted && !took) || v->rank->completions->results < r->op_seq + 1)
        FAIL("O13 slots", "answers a call for op_seq %" PRIu64 "; the ring says that %" PRIu64 " have ended", e->wanted,
             v->rank->completions->results);
    if (v->rank->giver->results_then > e->wanted && r->op_seq + 1 < v->rank->giver->results_then)
        FAIL("O13 slots", "answers a call when op_seq %" PRIu64 " had ended", v->rank->giver->results_then - 1);
    if (v->op->life[v->self] == 0)
        FAIL("O13 slots", "host %u of the job never started it", v->self);
    if (r->initiator != 0xffff && (r->initiator >= v->hosts || !(v->op->initiators >> r->initiator & 1)) &&
        options->policy != UT_POLICY_FULL && !v->job->shaken[r->initiator < v->hosts ? r->initiator : 0])
        FAIL("O14 policy", "host %u is said to have started it, hosts %#" PRIx64 " did", r->initiator,
             v->op->initiators);
}

static void check_failure(view *v)
{
    const ut_receipt *r = v->r;
    if ((r->error == UT_ERR_TIMEOUT || r->error == UT_ERR_ABSENT) && v->job->plan->part.mode == UT_RELIABLE) {
        v->w->cover[SIM_PART_failed]++;
        return;
    }
    if (r->error == UT_ERR_DESYNC && r->field == UT_FIELD_VIEW && v->job->epochs.alike)
        return;
    FAIL("receipt", "error %d", r->error);
}

/* An answer that holds the result of an op, or says why there is none. */
void sim_part_check(sim_world *w, sim_rank *rank, const sim_ask *ask, const ut_receipt *r)
{
    view whole = {.w = w, .job = &w->job[rank->job], .rank = rank, .r = r}, *v = &whole;
    v->self = v->job->index_of[rank->host];
    v->hosts = v->job->plan->hosts;
    v->element = ut_dtype_bytes(v->job->plan->part.dtype);
    v->result = rank->arena + ask->entry.dst;
    if (r->status == UT_FAILED) {
        check_failure(v);
        return;
    }
    if (r->status < UT_COMPLETE || r->status > UT_INSUFFICIENT || r->hosts != v->hosts || r->self != v->self ||
        r->error)
        FAIL("receipt", "%u hosts, self %u, error %d", r->hosts, r->self, r->error);
    sim_part_op *op = sim_part_op_of(w, rank->job, r->op_seq);
    v->op = op;
    w->cover[r->status == UT_COMPLETE  ? SIM_PART_complete
             : r->status == UT_PARTIAL ? SIM_PART_partial
                                       : SIM_PART_insufficient]++;
    if (r->wire != v->job->plan->part.wire)
        FAIL("O2 fingerprint", "it is said to have travelled as %#x, not as %#x", r->wire, v->job->plan->part.wire);
    check_policy(v, ask);
    check_names(v);
    read_result(v);
    check_rows(v);
    check_whole(v, op);
    check_calm(v);
    check_owners(v);
}

/* Oracle O16: what honest hosts hold of each other where one lies. */
void sim_part_check_among_liars(sim_world *w, const sim_rank *r, const ut_receipt *receipt)
{
    const sim_job *job = &w->job[r->job];
    uint32_t self = job->index_of[r->host];
    uint64_t steady = sim_steady(w, r->job), expected = 0, missing = 0;
    if (!sim_liar_of(w, job) || sim_is_liar(w, r->host) || receipt->hosts == 0)
        return;
    for (uint32_t h = 0; h < job->plan->hosts; h++)
        for (unsigned stage = 0; stage < 2; stage++) {
            expected += receipt->peer[h].expected[stage];
            missing += receipt->peer[h].missing[stage];
        }
    if (receipt->bytes_expected != expected || receipt->bytes_missing != missing ||
        receipt->bytes_used + missing != expected)
        SIM_PART_FAIL(w, "O3 conservation", r,
                      "%" PRIu64 " bytes expected, %" PRIu64 " used, %" PRIu64 " missing; rows: %" PRIu64 ", %" PRIu64,
                      receipt->bytes_expected, receipt->bytes_used, receipt->bytes_missing, expected, missing);
    if (receipt->owners && steady >> self & 1 && steady & ~receipt->owners)
        SIM_PART_FAIL(w, "O16 among liars", r,
                      "hosts %#" PRIx64 " own the bucket of op_seq %" PRIu64 ", not all of %#" PRIx64
                      ", who were there all the time",
                      receipt->owners, receipt->op_seq, steady);
}

/* ---- the end ---- */

static void check_gift(sim_world *w, sim_rank *r, uint32_t number)
{
    const sim_gift *gift = &r->giver->gift[number];
    if (gift->state != SIM_TAKEN || gift->sticky)
        return;
    const sim_part_op *op = sim_part_op_of(w, r->job, gift->op);
    if (op->gift[r->index] != number + 1)
        SIM_PART_FAIL(w, "O15 nothing lost", r, "contribution %u was taken by op_seq %" PRIu64 ", which holds %d",
                      number, gift->op, (int)op->gift[r->index] - 1);
    if (op->complete && !(op->complete_ranks >> r->index & 1))
        SIM_PART_FAIL(w, "O15 nothing lost", r,
                      "contribution %u was taken by op_seq %" PRIu64 ", whose COMPLETE result lacks it", number,
                      gift->op);
    w->cover[SIM_PART_whole_conserved]++;
}

void sim_part_check_end(sim_world *w, uint32_t job)
{
    for (uint32_t k = 0; k < w->job[job].ranks && w->plan.faultless; k++)
        for (uint32_t n = 0; n < w->job[job].rank[k].giver->gifts; n++)
            check_gift(w, &w->job[job].rank[k], n);
}
