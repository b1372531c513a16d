/* SPDX-License-Identifier: Apache-2.0
 *
 * What a receipt says against what the bytes say.
 *
 *   O1 deadline: exactly one receipt per submission, by its deadline (host.c, trainer.c)
 *
 *   O2 fingerprint: each element of a result is made of distinct ranks that called this op, of whole hosts'
 *   contributions, or it is the host's own
 *
 *   O3 conservation: expected = used + missing, row by row, and the missing bytes are those that the result lacks
 *
 *   O8 stages: what ends a stage (stages.c)
 *
 *   O10 calm: when faults have stopped, every op is COMPLETE, soon (calm.c)
 *
 *   O16 among liars: where one host lies, all this holds of what the others have from each other; and they keep their
 *   shards. What passes through its hands, in its shard or on its way round, is not looked at
 *
 *   O17 epochs: an op is cut among the owners of an epoch that its host was handed, and once all hold the same one, of
 *   that (world/epochs.c)
 *
 *   O18 seats: who is in a result had a seat in the epoch that its receipt names (seats.c)
 */
#include "sim/oracles/oracles.h"
#include "sim/oracles/view.h"
#include "sim/quant/quant.h"
#include "sim/sparse/sparse.h"
#include "sim/world/epochs.h"
#include "sim/world/liar.h"
#include "sim/world/moves.h"
#include "sim/world/seats.h"

#include <stdlib.h>

#define FAIL SIM_VIEW_FAIL

static uint64_t hosts_of(const sim_view *v, uint64_t ranks)
{
    uint64_t mask = 0;
    for (uint32_t h = 0; h < v->hosts; h++)
        if (ranks & v->job->host_ranks[h])
            mask |= sim_bit(h);
    return mask;
}

/* ---- O3: what the receipt says ---- */

/* Elements of [from, to) that have none of |ranks|, and those that may have none of them. */
static uint64_t without(const sim_view *v, uint64_t from, uint64_t to, uint64_t ranks, uint64_t *ret_most)
{
    uint64_t n = 0, begin = 0;
    *ret_most = 0;
    for (uint32_t i = 0; i < v->runs; i++) {
        uint64_t a = UT_MAX2(begin, from), b = UT_MIN2(v->run[i].end, to);
        const sim_held *held = &v->run[i].held;
        if (a < b && !(held->ranks & ranks))
            *ret_most += b - a;
        if (a < b && !((held->ranks | held->unsure) & ranks))
            n += b - a;
        begin = v->run[i].end;
    }
    return n;
}

static uint64_t elements_of_hosts(const sim_view *v, uint32_t first, uint32_t hosts)
{
    uint64_t n = 0;
    for (uint32_t h = first; h < first + hosts; h++) {
        uint64_t from, to;
        sim_shard_of(v, h % v->hosts, &from, &to);
        n += to - from;
    }
    return n;
}

/* Elements that |host| should send to us in each stage. */
static void wanted(const sim_view *v, uint32_t host, uint64_t want[2])
{
    want[0] = want[1] = 0;
    if (host == v->self)
        return;
    if (sim_direct(v->job->plan)) {
        want[0] = elements_of_hosts(v, v->self, 1);
        want[1] = elements_of_hosts(v, host, 1);
    } else if (sim_algorithm(v->job->plan) == UT_RING) {
        if ((host + 1) % v->hosts != v->self)
            return;
        want[0] = elements_of_hosts(v, v->self, v->hosts - 1); /* all but its own */
        want[1] = elements_of_hosts(v, v->self + 1, v->hosts - 1);
    } else {
        /* BCube: if we differ in one digit, our part of the block in which we do, and the other's. */
        for (uint32_t block = v->hosts; block > 1;) {
            uint32_t part = block / sim_least_factor(block);
            if (host / block == v->self / block && host / part != v->self / part && host % part == v->self % part) {
                want[0] = elements_of_hosts(v, v->self / part * part, part);
                want[1] = elements_of_hosts(v, host / part * part, part);
            }
            block = part;
        }
    }
}

static void check_rows(sim_view *v)
{
    const ut_receipt *r = v->r;
    uint64_t expected = 0, missing = 0, own_from, own_to;
    sim_shard_of(v, v->self, &own_from, &own_to);
    for (uint32_t h = 0; h < v->hosts; h++) {
        const ut_receipt_peer *row = &r->peer[h];
        uint64_t from, to, want[2];
        sim_shard_of(v, h, &from, &to);
        wanted(v, h, want);
        for (unsigned stage = 0; stage < 2; stage++) {
            want[stage] *= v->element;
            if (stage == 0 && row->expected[0] == 0 && !(r->owners >> h & 1))
                want[0] = 0; /* it was gone when the op began */
            if (row->expected[stage] != want[stage] || row->missing[stage] > row->expected[stage])
                FAIL("O3 conservation",
                     "host %u stage %u: %" PRIu64 " bytes expected (should be %" PRIu64 "), %u missing", h, stage + 1,
                     row->expected[stage], want[stage], row->missing[stage]);
            expected += row->expected[stage];
            missing += row->missing[stage];
        }
        if (row->missing[0] + row->missing[1] && row->why == UT_MISSING_NOTHING)
            FAIL("O3 conservation", "host %u: %u and %u bytes are missing for no reason", h, row->missing[0],
                 row->missing[1]);
        if (v->ask->as.nonfinite || h == v->self || v->liar >> h & 1 || (v->liar && v->ask->as.redop != UT_SUM) ||
            v->ask->as.redop > UT_AVG || v->mixed || !sim_direct(v->job->plan))
            continue;
        uint64_t theirs = v->job->host_ranks[h], most[2];
        uint64_t lacks[2] = {without(v, own_from, own_to, theirs, &most[0]), without(v, from, to, theirs, &most[1])};
        for (unsigned stage = 0; stage < 2; stage++)
            if (row->expected[stage] &&
                (row->missing[stage] < lacks[stage] * v->element || row->missing[stage] > most[stage] * v->element))
                FAIL("O3 conservation",
                     "host %u stage %u: %u bytes are said to be missing, %" PRIu64 " to %" PRIu64 " are", h, stage + 1,
                     row->missing[stage], lacks[stage] * v->element, most[stage] * v->element);
        uint64_t whole = v->job->contributed[v->ask->op][h];
        if (own_to - own_from > most[0] && whole && row->weight != sim_ones(whole))
            FAIL("O3 conservation", "host %u: %u ranks are said to be in what it sent, %u are", h, row->weight,
                 sim_ones(whole));
    }
    if (r->bytes_expected != expected || r->bytes_missing != missing || r->bytes_used + missing != expected)
        FAIL("O3 conservation",
             "%" PRIu64 " bytes expected, %" PRIu64 " used, %" PRIu64 " missing; rows: %" PRIu64 ", %" PRIu64,
             r->bytes_expected, r->bytes_used, r->bytes_missing, expected, missing);
}

/* Which ranks of each host are said to be in it: those whose contribution was seen, and of the others each is late or
 * gone. */
static void check_ranks(const sim_view *v)
{
    for (uint32_t h = 0; h < v->hosts; h++) {
        const ut_receipt_peer *row = &v->r->peer[h];
        const uint64_t all = sim_seats_of(v->job, v->job->host_ranks[h]),
                       seen = sim_seats_of(v->job, v->job->contributed[v->ask->op][h]);
        const unsigned first = (unsigned)__builtin_ctzll(all);
        const uint64_t in = (uint64_t)row->fresh << first, out = (uint64_t)(row->gone | row->late) << first;
        if (v->liar >> h & 1)
            continue;
        if (in & out || row->gone & row->late || (in && (in | out) != all))
            FAIL("O2 fingerprint", "of host %u's ranks %#" PRIx64 " %#x are in, %#x gone, %#x late", h, all, row->fresh,
                 row->gone, row->late);
        if (in && seen && in != seen && !v->job->shaken[h])
            FAIL("O2 fingerprint", "host %u: ranks %#" PRIx64 " are said to be in it, %#" PRIx64 " are", h, in, seen);
    }
}

/* The cut itself: all own in whatever is no TAR allreduce of the modes that do without a host. */
static void check_owners(sim_view *v)
{
    uint64_t all = UINT64_MAX >> (64 - v->hosts), owners = v->r->owners;
    bool may = sim_algorithm(v->job->plan) == UT_TAR && v->ask->as.mode != UT_RELIABLE;
    if (owners == 0 || owners & ~all || (owners != all && !may))
        FAIL("O3 conservation", "cut among hosts %#" PRIx64 " of %#" PRIx64, owners, all);
    v->job->thinned = v->job->thinned || owners != all;
    if (may && sim_epochs_check(v->w, v->rank->job, v->self, v->r)) {
        v->w->cover[SIM_owner_gone] += owners != all;
        v->w->cover[SIM_owner_back] += owners == all && v->job->thinned;
        v->w->cover[SIM_SPARSE_owner_gone] += owners != all && v->ask->as.group;
        v->w->cover[SIM_SPARSE_owner_back] += owners == all && v->job->thinned && v->ask->as.group;
    }
    uint64_t steady = sim_steady(v->w, v->rank->job);
    if (v->liar && steady >> v->self & 1 && steady & ~owners)
        FAIL("O16 among liars",
             "hosts %#" PRIx64 " own the bucket, not all of %#" PRIx64 ", who were there all the time", owners, steady);
}

static void check_masks(sim_view *v)
{
    const ut_receipt *r = v->r;
    if (v->ask->as.count == 0 || v->ask->as.redop > UT_AVG || v->ask->as.nonfinite || v->mixed || v->liar)
        return; /* what is Inf for everybody, or a maximum, does not tell who is in it */
    uint64_t full = hosts_of(v, v->everywhere.unsure), any = hosts_of(v, v->anywhere.unsure);
    if (r->full_mask & ~full)
        FAIL("O2 fingerprint", "hosts %#" PRIx64 " are said to be everywhere, only %#" PRIx64 " are", r->full_mask,
             full);
    if (r->any_mask & ~any)
        FAIL("O2 fingerprint", "hosts %#" PRIx64 " are said to be somewhere, only %#" PRIx64 " are", r->any_mask, any);
    if (r->weight_min < v->least_sure || r->weight_min > v->least)
        FAIL("O2 fingerprint", "the thinnest element is said to hold %u ranks, it holds %u to %u", r->weight_min,
             v->least_sure, v->least);
}

/* An element that another host should have sent and did not is this host's own. */
static void check_own_fill(sim_view *v)
{
    uint64_t own = v->job->contributed[v->ask->op][v->self], own_most = own ? own : v->job->host_ranks[v->self];
    if (v->job->shaken[v->self] || v->ask->as.nonfinite || v->ask->as.redop > UT_AVG || v->mixed ||
        !sim_direct(v->job->plan))
        return;
    for (uint32_t h = 0; h < v->hosts; h++) {
        uint64_t from, to, begin = 0;
        sim_shard_of(v, h, &from, &to);
        for (uint32_t i = 0; i < v->runs; i++) {
            uint64_t a = UT_MAX2(begin, from);
            uint64_t ranks = v->run[i].held.ranks, may = ranks | v->run[i].held.unsure;
            if (a < UT_MIN2(v->run[i].end, to) && !(may & v->job->host_ranks[h]) && (ranks & ~own_most || own & ~may))
                FAIL("O2 fingerprint",
                     "element %" PRIu64 " of host %u's shard holds ranks %#" PRIx64 ": neither its result nor our own",
                     a, h, ranks);
            begin = v->run[i].end;
        }
    }
}

static void check_status(sim_view *v)
{
    const ut_receipt *r = v->r;
    uint64_t own = v->job->host_ranks[v->self], liars = v->liar ? v->job->host_ranks[__builtin_ctzll(v->liar)] : 0;
    uint64_t all = sim_whole_of(v) & ~liars;
    bool empty = v->ask->as.count == 0;
    if (r->status == UT_COMPLETE &&
        ((!empty && !(v->liar && v->mixed) && all & ~v->everywhere.unsure) || r->bytes_missing))
        FAIL("O2 fingerprint", "ranks %#" PRIx64 " are everywhere of %#" PRIx64 ", %" PRIu64 " bytes are missing",
             v->everywhere.unsure, all, r->bytes_missing);
    if (r->status == UT_INSUFFICIENT && (v->anywhere.ranks & ~own || r->bytes_used))
        FAIL("O2 fingerprint", "ranks %#" PRIx64 " are in it, %" PRIu64 " bytes were used", v->anywhere.ranks,
             r->bytes_used);
    if (!v->late && v->hosts == 1 && r->status != UT_COMPLETE &&
        (r->status == UT_INSUFFICIENT) != (sim_ones(v->job->contributed[v->ask->op][0]) <= 1) &&
        v->job->contributed[v->ask->op][0])
        FAIL("O2 fingerprint", "ranks %#" PRIx64 " are in it, of one host", v->job->contributed[v->ask->op][0]);
    if (r->status == UT_PARTIAL && !empty && v->everywhere.ranks == all && !v->liar && !v->ask->as.nonfinite &&
        v->ask->as.redop <= UT_AVG)
        FAIL("O2 fingerprint", "all ranks %#" PRIx64 " are everywhere", all);
    if (!v->late && v->runs && !(v->anywhere.unsure >> v->rank->index & 1) && v->hosts == 1)
        FAIL("O2 fingerprint", "the rank's own value is nowhere, ranks %#" PRIx64 " are", v->anywhere.ranks);
}

/* ---- failures ---- */

static void check_failure(sim_view *v)
{
    const ut_receipt *r = v->r;
    const sim_op *op = &v->job->plan->op[v->ask->op];
    if ((r->error == UT_ERR_TIMEOUT || r->error == UT_ERR_ABSENT) &&
        (v->ask->as.mode == UT_RELIABLE || v->ask->as.agree)) {
        bool agree = v->ask->as.agree && v->ask->as.mode != UT_RELIABLE, sparse = sim_is_sparse(&v->ask->as);
        v->w->cover[SIM_agree_failed] += agree;
        v->w->cover[SIM_SPARSE_agree_failed] += agree && sparse;
        v->w->cover[SIM_SPARSE_failed] += sparse;
        return;
    }
    if (r->error == UT_ERR_DESYNC && r->culprit < v->hosts && v->liar >> r->culprit & 1)
        return;
    if (r->error == UT_ERR_DESYNC && r->field == UT_FIELD_VIEW && v->job->epochs.alike)
        return;
    if (r->error != UT_ERR_DESYNC || op->odd_rank == UINT32_MAX)
        FAIL("receipt", "error %d", r->error);
    uint32_t odd_host = v->w->job[v->rank->job].index_of[v->job->rank[op->odd_rank].host];
    bool culprit_fits = r->culprit < v->hosts && (v->self == odd_host || r->culprit == odd_host);
    bool field_fits = r->field == op->odd_field;
    if (!culprit_fits || !field_fits || r->value_here == r->value_there)
        FAIL("receipt",
             "desync of rank %u on host %u in field %u: culprit %u, field %u, %" PRIu64 " here, %" PRIu64 " there",
             op->odd_rank, odd_host, op->odd_field, r->culprit, r->field, r->value_here, r->value_there);
}

/* ---- the whole ---- */

/* The rank's call came after the host had gone on, or waited for room until its deadline: it gets its own value back.
 */
static bool went_on_without_us(sim_view *v)
{
    const ut_receipt *r = v->r;
    bool late = r->status >= UT_INSUFFICIENT && r->weight_min == 1 && r->peer[v->self].weight == 0;
    if (!late)
        return false;
    bool over = sim_local(v->w, &v->w->host[v->host]) >= v->ask->deadline;
    if (v->job->plan->local[v->self] == 1 && !v->job->shaken[v->self] && !over)
        FAIL("receipt", "the host went on without its only rank %u", v->rank->index);
    return true;
}

static void keep_outcome(sim_view *v, const uint8_t *result)
{
    sim_outcome *o = &v->job->outcome[v->ask->op][v->self];
    uint64_t digest = result ? sim_digest(result, v->ask->as.count * v->element) : 0;
    if (v->late || (o->known && o->life == v->w->host[v->host].life)) {
        if (!v->late && v->r->status != UT_FAILED &&
            (o->digest != digest || memcmp(&o->receipt, v->r, sizeof o->receipt) != 0))
            FAIL("O4 agreement", "two ranks of one host were told different things, digests %" PRIx64 " and %" PRIx64,
                 o->digest, digest);
        free(v->run);
        return;
    }
    free(o->run);
    *o = (sim_outcome){.known = true,
                       .status = v->r->status,
                       .life = v->w->host[v->host].life,
                       .called = v->ask->submitted,
                       .ended = v->w->now,
                       .wakeups = v->w->host[v->host].wakeups - v->ask->wakeups,
                       .digest = digest,
                       .run = v->run,
                       .runs = v->runs,
                       .receipt = *v->r};
    sim_host *h = &v->w->host[v->host];
    h->ended[v->r->status]++;
    h->used_bytes += v->r->bytes_used;
    v->w->ops++;
}

static void count_status(sim_world *w, uint32_t status)
{
    w->cover[status == UT_COMPLETE       ? SIM_status_complete
             : status == UT_PARTIAL      ? SIM_status_partial
             : status == UT_INSUFFICIENT ? SIM_status_insufficient
                                         : SIM_status_failed]++;
}

void sim_check_receipt(sim_world *w, sim_rank *rank, const sim_ask *ask, const ut_receipt *r, const void *result)
{
    sim_view whole = {.w = w, .job = &w->job[rank->job], .rank = rank, .ask = ask, .r = r, .host = rank->host},
             *v = &whole;
    v->self = v->job->index_of[rank->host];
    v->hosts = v->job->plan->hosts;
    v->element = ut_dtype_bytes(ask->as.dtype);
    if (r->status < UT_COMPLETE || r->status > UT_FAILED || r->hosts != v->hosts || r->self != v->self)
        FAIL("receipt", "status %u, %u hosts, self %u", r->status, r->hosts, r->self);
    count_status(w, r->status);
    v->late = went_on_without_us(v);
    v->liar = ask->op < v->job->plan->ops ? sim_liar_of(w, v->job) : 0;
    if (!v->liar)
        sim_check_stages(w, rank, ask, r, v->late);
    if (w->plan.faultless && r->status != UT_COMPLETE &&
        !(ask->as.mode == UT_BEST_EFFORT && (r->t_b_us || r->t_c_us[0])))
        FAIL("O10 calm", "%" PRIu64 " bytes missing in a world without faults", r->bytes_missing);
    if (r->status == UT_FAILED) {
        check_failure(v);
        keep_outcome(v, NULL);
        return;
    }
    if (r->error)
        FAIL("receipt", "error %d", r->error);
    if (r->status != UT_COMPLETE && ask->as.mode == UT_RELIABLE)
        FAIL("receipt", "a reliable op, %" PRIu64 " bytes missing", r->bytes_missing);
    if (ask->as.collective != UT_ALLREDUCE) {
        if (!v->liar)
            sim_check_moved(w, rank, ask, r, result);
        keep_outcome(v, sim_results_differ(&ask->as) ? NULL : result);
        return;
    }
    if (w->plan.light) {
        keep_outcome(v, NULL);
        return;
    }
    if (v->job->epochs.mixed && r->status == UT_PARTIAL) { /* all that is promised is that such a result is not whole */
        keep_outcome(v, NULL);
        return;
    }
    if (sim_is_sparse(&ask->as))
        sim_read_sparse(v, result);
    else if (sim_is_quant(&ask->as))
        sim_read_quant(v, result);
    else if (r->hadamard)
        sim_read_transformed(v, result);
    else
        sim_read_result(v, result);
    if (v->late) {
        uint64_t own = sim_bit(rank->sign);
        if (v->runs && (v->anywhere.ranks & ~own || own & ~v->everywhere.unsure))
            FAIL("O2 fingerprint", "a rank that came late holds ranks %#" PRIx64, v->anywhere.ranks);
    } else {
        check_owners(v);
        check_rows(v);
        check_ranks(v);
        check_masks(v);
        check_own_fill(v);
    }
    if (v->job->plan->seats)
        sim_seats_check(v);
    check_status(v);
    keep_outcome(v, result);
}
