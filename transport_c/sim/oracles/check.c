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
 */
#include "sim/world/liar.h"
#include "sim/world/moves.h"

#include <stdlib.h>

/* All that the checks of one receipt share. */
typedef struct view {
    sim_world *w;
    sim_job *job;
    const sim_rank *rank;
    const sim_ask *ask;
    const ut_receipt *r;
    uint32_t host, self, hosts; /* of the world; in the job; of the job */
    size_t element;
    bool late;     /* the host went on without this rank */
    uint32_t liar; /* index in the job, as a mask */
    bool mixed;    /* it travelled transformed and some is missing: no element tells who is in it */
    sim_run *run;
    uint32_t runs;
    uint32_t least, everywhere, anywhere; /* ranks of the thinnest element; in all elements; in some */
    uint64_t nonfinite;
} view;

static uint32_t hosts_of(const view *v, uint32_t ranks)
{
    uint32_t mask = 0;
    for (uint32_t h = 0; h < v->hosts; h++)
        if (ranks & v->job->host_ranks[h])
            mask |= 1u << h;
    return mask;
}

#define FAIL(oracle, format, ...)                                                                                      \
    sim_fail(v->w, oracle, v->host, "job %u rank %u op_seq %" PRIu64 " (%s): " format, v->rank->job, v->rank->index,   \
             v->ask->entry.op_seq, status_name[v->r->status < 5 ? v->r->status : 0], __VA_ARGS__)

static const char *const status_name[] = {"no status", "COMPLETE", "PARTIAL", "INSUFFICIENT", "FAILED"};

/* ---- O2: what the bytes hold ---- */

/* Of a liar's shard nothing can be told: its elements count as if all were in them. */
enum { UNREAD = -1 };

static void add_run(view *v, uint64_t end, uint32_t ranks)
{
    if (v->runs && v->run[v->runs - 1].ranks == ranks) {
        v->run[v->runs - 1].end = end;
        return;
    }
    if ((v->runs & (v->runs - 1)) == 0) {
        v->run = realloc(v->run, (v->runs ? 2 * v->runs : 1) * sizeof *v->run);
        assert(v->run);
    }
    v->run[v->runs++] = (sim_run){end, ranks};
}

/* A host's part is all of its contribution or nothing, and the same everywhere. */
static void check_parts(view *v, uint64_t element, uint32_t ranks)
{
    for (uint32_t h = 0; h < v->hosts; h++) {
        uint32_t part = ranks & v->job->host_ranks[h], *whole = &v->job->contributed[v->ask->op][h];
        if (part == 0 || v->job->shaken[h] || v->late)
            continue;
        if (*whole == 0)
            *whole = part;
        else if (*whole != part)
            FAIL("O2 fingerprint", "element %" PRIu64 " holds ranks %#x of host %u, and elsewhere %#x", element, part,
                 h, *whole);
    }
    if (ranks & ~v->job->submitted[v->ask->op])
        FAIL("O2 fingerprint", "element %" PRIu64 " holds ranks %#x, of which only %#x called the op", element, ranks,
             v->job->submitted[v->ask->op]);
    uint32_t odd = v->ask->as.odd_rank < 32 ? 1u << v->ask->as.odd_rank : 0;
    if (ranks & odd && ranks & ~odd)
        FAIL("O2 fingerprint", "element %" PRIu64 " mixes rank %u, which called it otherwise, with ranks %#x", element,
             v->ask->as.odd_rank, ranks & ~odd);
}

static void shard_of_host(const view *v, uint32_t host, uint64_t *from, uint64_t *to)
{
    sim_owned(v->job->plan, v->ask->entry.op_seq, v->r->owners, v->ask->as.count, host, from, to);
}

/* The elements whose result came from the liar. All, where sums go through many hands, or where a maximum or an average
 * cannot be told from what it put in. */
static void liar_shard(const view *v, uint64_t *from, uint64_t *to)
{
    *from = *to = 0;
    if (!v->liar || v->late) /* who came late has its own value back */
        return;
    if (!sim_direct(v->job->plan) || v->ask->as.redop != UT_SUM || v->ask->as.nonfinite)
        *to = v->ask->as.count;
    else
        shard_of_host(v, (uint32_t)__builtin_ctz(v->liar), from, to);
}

/* Elements [from, to) hold |ranks|. */
static void note_ranks(view *v, uint64_t from, uint64_t to, uint32_t ranks)
{
    check_parts(v, from, ranks);
    v->least = UT_MIN2(v->least, (uint32_t)__builtin_popcount(ranks));
    v->everywhere &= ranks;
    v->anywhere |= ranks;
    add_run(v, to, ranks);
}

static uint32_t read_element(view *v, const sim_code *code, const uint8_t *result, uint64_t i, bool only_all)
{
    const char *reason = "is not the result of all ranks";
    const uint8_t *at = result + i * v->element;
    uint32_t all = (1u << v->job->ranks) - 1, ranks = sim_code_read(code, i, at, 0, &reason);
    if (ranks == 0 || (only_all && ranks != all)) {
        char bytes[17] = "";
        for (size_t b = 0; b < v->element; b++)
            snprintf(bytes + 2 * b, 3, "%02x", at[b]);
        FAIL("O2 fingerprint", "element %" PRIu64 " of %" PRIu64 " (dtype %u, redop %u, bytes %s) %s", i,
             v->ask->as.count, code->dtype, code->redop, bytes, reason);
    }
    return ranks;
}

static void read_result(view *v, const uint8_t *result)
{
    sim_code code = sim_code_of(v->w, v->rank->job, v->ask->entry.op_seq, &v->ask->as);
    uint32_t all = (1u << v->job->ranks) - 1, hint = v->r->status == UT_COMPLETE ? all : 0;
    bool only_all = v->r->status == UT_COMPLETE && v->ask->as.redop > UT_AVG; /* a maximum cannot tell who was there */
    v->everywhere = all;
    v->least = v->job->ranks;
    uint64_t lied_from, lied_to;
    liar_shard(v, &lied_from, &lied_to);
    for (uint64_t i = 0, next; i < v->ask->as.count; i = next) {
        if (i == lied_from && lied_to > i) {
            add_run(v, next = lied_to, (uint32_t)UNREAD);
            continue;
        }
        next = hint ? sim_code_agree(&code, i, i < lied_from ? lied_from : v->ask->as.count, hint, result) : i;
        if (next == i) {
            hint = read_element(v, &code, result, i, only_all);
            next = i + 1;
        }
        uint64_t infinite = sim_code_infinite(&code, i, next);
        v->nonfinite += infinite;
        if (infinite < next - i)
            note_ranks(v, i, next, hint);
    }
    if (v->runs) /* elements that are Inf for everybody tell nothing and go with their neighbours */
        v->run[v->runs - 1].end = v->ask->as.count;
    if (v->r->nonfinite != v->nonfinite && !v->late && !v->liar)
        FAIL("O2 fingerprint", "the receipt counts %" PRIu64 " elements as not finite, there are %" PRIu64,
             v->r->nonfinite, v->nonfinite);
}

/* What travelled transformed: each element is the sum or average of all, but for rounding, or it tells nothing. */
static void read_transformed(view *v, const uint8_t *result)
{
    sim_code code = sim_code_of(v->w, v->rank->job, v->ask->entry.op_seq, &v->ask->as);
    uint32_t all = (1u << v->job->ranks) - 1;
    v->mixed = v->r->status != UT_COMPLETE || v->liar;
    v->everywhere = v->anywhere = v->mixed ? 0 : all;
    v->least = v->job->ranks;
    for (uint64_t i = 0; i < v->ask->as.count; i++) {
        float x;
        memcpy(&x, result + i * v->element, sizeof x);
        bool finite = x - x == 0;
        v->nonfinite += !finite;
        if (!finite && !v->ask->as.nonfinite)
            FAIL("O2 fingerprint", "element %" PRIu64 " is not finite after the transform", i);
        if (finite && !v->mixed && !sim_code_near(&code, i, &x, all))
            FAIL("O2 fingerprint", "element %" PRIu64 " of %" PRIu64 " is %g, not the result of all ranks", i,
                 v->ask->as.count, (double)x);
    }
    if (!v->mixed && v->ask->as.count)
        add_run(v, v->ask->as.count, all);
    if (v->r->nonfinite != v->nonfinite)
        FAIL("O2 fingerprint", "the receipt counts %" PRIu64 " elements as not finite, there are %" PRIu64,
             v->r->nonfinite, v->nonfinite);
    v->w->cover[v->mixed ? SIM_transformed_partial : SIM_transformed]++;
}

/* ---- O3: what the receipt says ---- */

/* Elements of [from, to) whose set has none of |ranks|. */
static uint64_t without(const view *v, uint64_t from, uint64_t to, uint32_t ranks)
{
    uint64_t n = 0, begin = 0;
    for (uint32_t i = 0; i < v->runs; i++) {
        uint64_t a = UT_MAX2(begin, from), b = UT_MIN2(v->run[i].end, to);
        if (a < b && !(v->run[i].ranks & ranks))
            n += b - a;
        begin = v->run[i].end;
    }
    return n;
}

static uint64_t elements_of_hosts(const view *v, uint32_t first, uint32_t hosts)
{
    uint64_t n = 0;
    for (uint32_t h = first; h < first + hosts; h++) {
        uint64_t from, to;
        shard_of_host(v, h % v->hosts, &from, &to);
        n += to - from;
    }
    return n;
}

/* Elements that |host| should send to us in each stage. */
static void wanted(const view *v, uint32_t host, uint64_t want[2])
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

static void check_rows(view *v)
{
    const ut_receipt *r = v->r;
    uint64_t expected = 0, missing = 0, own_from, own_to;
    shard_of_host(v, v->self, &own_from, &own_to);
    for (uint32_t h = 0; h < v->hosts; h++) {
        const ut_receipt_peer *row = &r->peer[h];
        uint64_t from, to, want[2];
        shard_of_host(v, h, &from, &to);
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
        uint32_t theirs = v->job->host_ranks[h];
        uint64_t lacks[2] = {without(v, own_from, own_to, theirs), without(v, from, to, theirs)};
        for (unsigned stage = 0; stage < 2; stage++)
            if (row->missing[stage] != lacks[stage] * v->element && row->expected[stage])
                FAIL("O3 conservation", "host %u stage %u: %u bytes are said to be missing, %" PRIu64 " are", h,
                     stage + 1, row->missing[stage], lacks[stage] * v->element);
        uint32_t whole = v->job->contributed[v->ask->op][h];
        if (own_to - own_from > lacks[0] && whole && row->weight != __builtin_popcount(whole))
            FAIL("O3 conservation", "host %u: %u ranks are said to be in what it sent, %d are", h, row->weight,
                 __builtin_popcount(whole));
    }
    if (r->bytes_expected != expected || r->bytes_missing != missing || r->bytes_used + missing != expected)
        FAIL("O3 conservation",
             "%" PRIu64 " bytes expected, %" PRIu64 " used, %" PRIu64 " missing; rows: %" PRIu64 ", %" PRIu64,
             r->bytes_expected, r->bytes_used, r->bytes_missing, expected, missing);
}

/* The cut itself: all own in whatever is no TAR allreduce of the modes that do without a host. */
static void check_owners(view *v)
{
    uint64_t all = UINT64_MAX >> (64 - v->hosts), owners = v->r->owners;
    bool may = sim_algorithm(v->job->plan) == UT_TAR && v->ask->as.mode != UT_RELIABLE;
    if (owners == 0 || owners & ~all || (owners != all && !may))
        FAIL("O3 conservation", "cut among hosts %#" PRIx64 " of %#" PRIx64, owners, all);
    v->job->thinned = v->job->thinned || owners != all;
    uint64_t steady = sim_steady(v->w, v->rank->job);
    if (v->liar && steady >> v->self & 1 && steady & ~owners)
        FAIL("O16 among liars",
             "hosts %#" PRIx64 " own the bucket, not all of %#" PRIx64 ", who were there all the time", owners, steady);
}

static void check_masks(view *v)
{
    const ut_receipt *r = v->r;
    if (v->ask->as.count == 0 || v->ask->as.redop > UT_AVG || v->ask->as.nonfinite || v->mixed || v->liar)
        return; /* what is Inf for everybody, or a maximum, does not tell who is in it */
    uint64_t full = hosts_of(v, v->everywhere), any = hosts_of(v, v->anywhere);
    if (r->full_mask & ~full)
        FAIL("O2 fingerprint", "hosts %#" PRIx64 " are said to be everywhere, only %#" PRIx64 " are", r->full_mask,
             full);
    if (r->any_mask & ~any)
        FAIL("O2 fingerprint", "hosts %#" PRIx64 " are said to be somewhere, only %#" PRIx64 " are", r->any_mask, any);
    if (r->weight_min != v->least)
        FAIL("O2 fingerprint", "the thinnest element is said to hold %u ranks, it holds %u", r->weight_min, v->least);
}

/* An element that another host should have sent and did not is this host's own. */
static void check_own_fill(view *v)
{
    uint32_t own = v->job->contributed[v->ask->op][v->self];
    if (v->job->shaken[v->self] || v->ask->as.nonfinite || v->ask->as.redop > UT_AVG || v->mixed ||
        !sim_direct(v->job->plan))
        return;
    for (uint32_t h = 0; h < v->hosts; h++) {
        uint64_t from, to, begin = 0;
        shard_of_host(v, h, &from, &to);
        for (uint32_t i = 0; i < v->runs; i++) {
            uint64_t a = UT_MAX2(begin, from);
            uint32_t ranks = v->run[i].ranks;
            if (a < UT_MIN2(v->run[i].end, to) && !(ranks & v->job->host_ranks[h]) && ranks != own)
                FAIL("O2 fingerprint",
                     "element %" PRIu64 " of host %u's shard holds ranks %#x: neither its result nor our own", a, h,
                     ranks);
            begin = v->run[i].end;
        }
    }
}

static void check_status(view *v)
{
    const ut_receipt *r = v->r;
    uint32_t own = v->job->host_ranks[v->self], liars = v->liar ? v->job->host_ranks[__builtin_ctz(v->liar)] : 0;
    uint32_t all = ((1u << v->job->ranks) - 1) & ~liars;
    bool empty = v->ask->as.count == 0;
    if (r->status == UT_COMPLETE && ((!empty && !(v->liar && v->mixed) && all & ~v->everywhere) || r->bytes_missing))
        FAIL("O2 fingerprint", "ranks %#x are everywhere of %#x, %" PRIu64 " bytes are missing", v->everywhere, all,
             r->bytes_missing);
    if (r->status == UT_INSUFFICIENT && (v->anywhere & ~own || r->bytes_used))
        FAIL("O2 fingerprint", "ranks %#x are in it, %" PRIu64 " bytes were used", v->anywhere, r->bytes_used);
    if (r->status == UT_PARTIAL && !empty && v->everywhere == all && !v->liar && !v->ask->as.nonfinite &&
        v->ask->as.redop <= UT_AVG)
        FAIL("O2 fingerprint", "all ranks %#x are everywhere", all);
    if (!v->late && v->runs && !(v->anywhere >> v->rank->index & 1) && v->hosts == 1)
        FAIL("O2 fingerprint", "the rank's own value is nowhere, ranks %#x are", v->anywhere);
}

/* ---- failures ---- */

static void check_failure(view *v)
{
    const ut_receipt *r = v->r;
    const sim_op *op = &v->job->plan->op[v->ask->op];
    if ((r->error == UT_ERR_TIMEOUT || r->error == UT_ERR_ABSENT) &&
        (v->ask->as.mode == UT_RELIABLE || v->ask->as.agree)) {
        v->w->cover[SIM_agree_failed] += v->ask->as.agree && v->ask->as.mode != UT_RELIABLE;
        return;
    }
    if (r->error == UT_ERR_DESYNC && r->culprit < v->hosts && v->liar >> r->culprit & 1)
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
static bool went_on_without_us(view *v)
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

static void keep_outcome(view *v, const uint8_t *result)
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
    view whole = {.w = w, .job = &w->job[rank->job], .rank = rank, .ask = ask, .r = r, .host = rank->host}, *v = &whole;
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
    if (r->hadamard)
        read_transformed(v, result);
    else
        read_result(v, result);
    if (v->late) {
        if (v->runs && (v->anywhere != 1u << rank->index || v->everywhere != v->anywhere))
            FAIL("O2 fingerprint", "a rank that came late holds ranks %#x", v->anywhere);
    } else {
        check_owners(v);
        check_rows(v);
        check_masks(v);
        check_own_fill(v);
    }
    check_status(v);
    keep_outcome(v, result);
}
