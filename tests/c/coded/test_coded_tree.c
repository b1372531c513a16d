/* SPDX-License-Identifier: Apache-2.0
 *
 * Coded jobs in a tree, CodedReduce's (n, L)-regular one: for every set of ranks that give, the sum over all data is
 * exact whenever it can be decoded, and never claimed otherwise.
 */
#define CREW_HOSTS 16
#include "crew.h"

#include "core/plan/schedule.h"
#include "ext/coded/code.h"

#include <math.h>

static bool all_sets;
static uint32_t children, replicas, need, parts; /* parts: into how many a parent's data is divided */
static double encoding[CREW_HOSTS * CREW_HOSTS];

static void begin_tree(uint32_t hosts_, uint32_t children_, uint32_t stragglers, unsigned code)
{
    children = children_;
    replicas = code == UT_CODE_LINEAR ? 1 : stragglers + 1;
    need = code == UT_CODE_LINEAR ? children - stragglers : children / replicas;
    parts = children / replicas;
    memset(encoding, 0, sizeof encoding);
    for (uint32_t place = 0; place < children; place++)
        encoding[place * children + place / replicas] = 1;
    if (code == UT_CODE_LINEAR)
        ut_code_encoding(children, stragglers, encoding);
    begin(hosts_, 1,
          (ut_job_options){.policy = UT_POLICY_CODED,
                           .code = (uint8_t)code,
                           .stragglers = (uint8_t)stragglers,
                           .children = (uint8_t)children});
    run(20 * UT_MS);
}

/* What is kept of part |k| by who gets it from the parent whose data are named by |path|. */
static double kept(uint64_t path, uint32_t k, uint64_t step)
{
    return (double)(1 + (path * 7 + k * 5 + step * 3) % 11);
}

/* The sum over the data that |path| names: of each part what is kept, and what is handed on from there. */
static double sum_of(uint64_t path, uint32_t layers, uint64_t step)
{
    double sum = 0;
    for (uint32_t k = 0; k < parts && layers; k++)
        sum += kept(path, k, step) + sum_of(path * 64 + k + 1, layers - 1, step);
    return sum;
}

/* What |host| computes of the data that |path| names, when the way down to it begins with |way|[0]. */
static double local(const uint32_t *way, uint32_t left, uint64_t path, uint64_t step)
{
    double sum = 0;
    for (uint32_t k = 0; k < parts; k++) {
        double c = encoding[way[0] * children + k];
        if (c != 0)
            sum += c * (left == 1 ? kept(path, k, step) : local(way + 1, left - 1, path * 64 + k + 1, step));
    }
    return sum;
}

static uint32_t depth_of(uint32_t host)
{
    uint32_t depth = 0;
    for (; host; host = (host - 1) / children)
        depth++;
    return depth;
}

static double contribution(uint32_t host, uint64_t step)
{
    uint32_t way[CREW_HOSTS], depth = depth_of(host);
    for (uint32_t h = host, at = depth; h; h = (h - 1) / children)
        way[--at] = (h - 1) % children;
    return depth ? local(way, depth, 0, step) : 1e6; /* of the root nobody wants anything */
}

/* From those below |host| comes enough. */
static bool below_whole(uint32_t host, uint32_t gave)
{
    uint32_t first = host * children + 1, groups = 0;
    for (uint32_t k = 0; k < children && first < n; k++)
        if ((gave >> (first + k) & 1) && below_whole(first + k, gave))
            groups |= 1u << k / replicas;
    return first >= n || (uint32_t)__builtin_popcount(groups) >= need;
}

static void give_step(uint32_t h, uint64_t step, ut_ns time)
{
    ut_submission s = words(step, 0);
    s.redop = UT_SUM;
    s.deadline_ns = now + time;
    s.oldest_step = s.newest_step = (uint32_t)step;
    give_as(h, 0, contribution(h, step), s);
}

static void ask_step(uint32_t h, uint64_t step)
{
    ut_submission s = words(step, 0);
    s.redop = UT_SUM;
    submit(h, 0, s);
}

static ut_receipt exact(uint32_t h, uint64_t step)
{
    ut_receipt r = receipt(h);
    double sum = sum_of(0, depth_of(n - 1), step);
    CHECK_MSG(r.status == UT_COMPLETE && r.exact == UT_EXACT_YES, "host %u: status %u, error %d", h, r.status, r.error);
    CHECK_EQ(r.step, step);
    CHECK_EQ(r.bytes_missing, 0);
    const double *at = (const double *)(const void *)(trainers[h][0].arena + RESULT * BUFFER);
    for (uint32_t i = 0; i < elements; i++)
        CHECK_MSG(fabs(at[i] - sum) < 1e-9 * sum, "host %u, element %u: %.17g, not %g", h, i, at[i], sum);
    return r;
}

static void all_give_step(uint64_t step)
{
    for (uint32_t h = 0; h < n; h++)
        give_step(h, step, UT_SECOND);
    run(60 * UT_MS);
    for (uint32_t h = 0; h < n; h++)
        exact(h, step);
}

static void not_exact(uint32_t h)
{
    ut_receipt r = receipt(h);
    CHECK_MSG(r.status == UT_FAILED && r.exact == UT_EXACT_NO, "host %u: status %u", h, r.status);
    CHECK_MSG(r.error == UT_ERR_TIMEOUT || r.error == UT_ERR_ABSENT, "host %u: error %d", h, r.error);
    CHECK_MSG(r.culprit < n, "host %u: culprit %u", h, r.culprit);
}

/* The hosts of |gave| give; if that is not enough, the others give while the op runs, or the step fails and holds when
 * it is given again. */
static void one_pattern(uint32_t gave, uint64_t step, bool others_join)
{
    uint32_t all = (1u << n) - 1, workers = all & ~1u;
    bool enough = below_whole(0, gave);
    for (uint32_t h = 0; h < n; h++)
        if (gave >> h & 1)
            give_step(h, step, enough || others_join ? UT_SECOND : 4 * UT_MS);
    run((enough || others_join ? 2 : 10) * UT_MS);
    if (!enough && !others_join) {
        for (uint32_t h = 0; h < n; h++)
            if (gave >> h & 1)
                not_exact(h);
        gave = 0;
    }
    for (uint32_t h = 0; h < n; h++) {
        if (gave >> h & 1)
            continue;
        if (enough)
            ask_step(h, step);
        else
            give_step(h, step, UT_SECOND);
    }
    run(enough ? UT_MS : 3 * UT_MS);
    for (uint32_t h = 0; h < n; h++) {
        ut_receipt r = exact(h, step);
        if (enough)
            CHECK_HEX(r.late_mask & ~(workers & ~gave), 0);
    }
}

/* One more host, and the sum can be decoded. */
static bool lacks_one(uint32_t gave)
{
    for (uint32_t h = 1; h < n; h++)
        if (!(gave >> h & 1) && below_whole(0, gave | 1u << h))
            return true;
    return false;
}

/* Of the 4,096 sets of the tree (3, 2) all 640 that suffice, all that lack one host, and a quarter of the others, or
 * with --all every one. A quarter of those that do not suffice run into their time. */
static void tree_3_2__every_set_is_exact_whenever_it_can_be(void)
{
    uint32_t decodable = 0, quarter = (uint32_t)check_below(4);
    begin_tree(13, 3, 1, UT_CODE_LINEAR);
    elements = 3;
    for (uint32_t set = 1, step = 0; set < 1u << 12; set++) {
        bool enough = below_whole(0, set << 1);
        decodable += enough;
        if (all_sets || enough || lacks_one(set << 1) || set % 4 == quarter)
            one_pattern(set << 1, step++, check_below(4));
    }
    CHECK_EQ(decodable, 640);
    end();
}

static void trees__with_groups_and_without_stragglers(void)
{
    static const struct {
        uint32_t hosts, children, stragglers;
        unsigned code;
    } rows[] = {{5, 4, 1, UT_CODE_GROUPS},  {7, 2, 1, UT_CODE_GROUPS},  {7, 2, 0, UT_CODE_GROUPS},
                {15, 2, 1, UT_CODE_GROUPS}, {13, 3, 2, UT_CODE_GROUPS}, {13, 12, 4, UT_CODE_LINEAR},
                {4, 1, 0, UT_CODE_GROUPS},  {13, 3, 0, UT_CODE_LINEAR}, {13, 3, 2, UT_CODE_LINEAR}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        begin_tree(rows[i].hosts, rows[i].children, rows[i].stragglers, rows[i].code);
        for (uint64_t step = 0; step < 12; step++) {
            uint32_t gave = step ? (uint32_t)check_random() & ((1u << n) - 1) : (1u << n) - 1;
            elements = 1 + (uint32_t)check_below(ELEMENTS);
            one_pattern(gave ? gave : 2, step, check_below(3));
        }
        end();
    }
}

static bool some(uint32_t from, uint32_t to, uint32_t port, const uint8_t *packet)
{
    (void)from;
    (void)to;
    (void)packet;
    return port == UT_PORT_DATA && check_below(5) == 0;
}

static void lost_packets__are_stragglers_of_one_slot(void)
{
    begin_tree(13, 3, 1, UT_CODE_LINEAR);
    drop = some;
    for (uint64_t step = 0; step < 8; step++) {
        for (uint32_t h = 0; h < n; h++)
            give_step(h, step, 5 * UT_SECOND);
        run(500 * UT_MS);
        for (uint32_t h = 0; h < n; h++)
            exact(h, step);
    }
    end();
}

/* A host between dies for good. The root does without it, and those below it soon get the results from the root. */
static void a_host_between_dies__and_those_below_it_are_not_cut_off(void)
{
    begin_tree(13, 3, 1, UT_CODE_LINEAR);
    all_give_step(0);
    silent = 1u << 2;
    for (uint32_t h = 0; h < n; h++)
        if (h != 2)
            ut_engine_peer_absent(hosts[h].engine, 0, 2, now);
    uint32_t with_result = 0, most = 0;
    for (uint64_t step = 1; step < 8; step++) {
        if (step == 3)
            part_from_the_silent();
        for (uint32_t h = 0; h < n; h++)
            if (h != 2)
                give_step(h, step, 300 * UT_MS);
        run(400 * UT_MS);
        with_result = 0;
        for (uint32_t h = 0; h < n; h++) {
            if (h == 2)
                continue;
            const struct trainer *t = &trainers[h][0];
            const ut_receipt *r = &t->completions.entries[t->submissions.completions_taken % UT_RING_ENTRIES];
            if (r->status == UT_COMPLETE)
                with_result |= 1u << h;
            else
                CHECK_MSG(h >= 7 && h <= 9, "host %u: status %u at step %" PRIu64, h, r->status, step);
            if (r->status == UT_COMPLETE)
                exact(h, step);
            else
                (void)receipt(h);
        }
        most = (uint32_t)__builtin_popcount(with_result);
    }
    CHECK_EQ(most, n - 1);
    end();
}

/* A leaf whose time is over gives the same step again while the others are still at it, and they end it without the
 * leaf. It may miss that step; but it must not have used up the number of their next op for the old step, or it would
 * be an op behind for ever. */
static void a_leaf_that_gives_again__is_in_the_next_step(void)
{
    const uint32_t leaf = 12, later = 1u << 4 | 1u << 5;
    begin_tree(13, 3, 1, UT_CODE_LINEAR);
    all_give_step(0);
    uint32_t first = ((1u << n) - 1) & ~later & ~(1u << 7) & ~(1u << 8); /* hosts 1 and 2 lack two of three */
    for (uint32_t h = 0; h < n; h++)
        if (first >> h & 1)
            give_step(h, 1, h == leaf ? 4 * UT_MS : UT_SECOND);
    run(10 * UT_MS);
    not_exact(leaf);
    give_step(leaf, 1, UT_SECOND);
    run(5 * UT_MS);
    for (uint32_t h = 0; h < n; h++)
        if (!(first >> h & 1))
            give_step(h, 1, UT_SECOND);
    run(60 * UT_MS);
    for (uint32_t h = 0; h < n; h++) {
        ut_receipt r = h == leaf ? receipt(h) : exact(h, 1);
        CHECK_MSG(r.status == UT_COMPLETE || (h == leaf && r.status == UT_BEHIND), "host %u: status %u", h, r.status);
    }
    for (uint64_t step = 2; step < 6; step++)
        all_give_step(step);
    end();
}

/* Two of the root's three subtrees cannot be whole: it says so at once, and all name who is gone. */
static void too_many_are_gone__and_that_is_said_at_once(void)
{
    begin_tree(13, 3, 1, UT_CODE_LINEAR);
    all_give_step(0);
    uint32_t gone = 1u << 4 | 1u << 5 | 1u << 7 | 1u << 9; /* two of the leaves of host 1, two of those of host 2 */
    silent = gone;
    for (uint32_t h = 0; h < n; h++)
        for (uint32_t p = 0; p < n; p++)
            if (!(gone >> h & 1) && (gone >> p & 1))
                ut_engine_peer_absent(hosts[h].engine, 0, p, now);
    ut_ns since = now;
    for (uint32_t h = 0; h < n; h++)
        if (!(gone >> h & 1))
            give_step(h, 1, 10 * UT_SECOND);
    run(100 * UT_MS);
    CHECK_LE(now - since, UT_SECOND);
    for (uint32_t h = 0; h < n; h++) {
        if (gone >> h & 1)
            continue;
        ut_receipt r = receipt(h);
        CHECK_EQ(r.status, UT_FAILED);
        CHECK_EQ(r.error, UT_ERR_ABSENT);
        CHECK_MSG(r.culprit < n && (gone >> r.culprit & 1), "host %u: culprit %u", h, r.culprit);
    }
    end();
}

/* Host, children, owners: the steps of stage 1 and 2, as kind and peer. */
static void schedule__goes_up_to_the_parent_and_down_past_the_dead(void)
{
    static const struct {
        uint32_t self;
        uint64_t owners;
        const char *steps;
    } rows[] = {{0, 0x7f, "r1 r2 S1 S2"}, {1, 0x7f, "r3 r4 s0 S3 S4 R0"},
                {4, 0x7f, "s1 R1"},       {0, 0x7d, "r1 r2 S1 S2 S3 S4"},
                {3, 0x7d, "s1 R0"},       {5, 0x7d, "s2 R2"},
                {1, 0x7d, "r3 r4 s0 R0"}, {2, 0x3e, "r5 r6 s0 S5 S6 R0"}};
    static ut_schedule s;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char found[64] = "";
        ut_schedule_tree(&s, &(ut_layout){7, rows[i].self, 10, 4}, 2, rows[i].owners);
        for (uint32_t k = 0; k < s.steps; k++) {
            const ut_step *x = &s.step[k];
            char step[8];
            snprintf(step, sizeof step, "%s%c%u", k ? " " : "",
                     (x->kind == UT_STEP_SEND ? 's' : 'r') - (x->stage == 2 ? 32 : 0), x->peer);
            strcat(found, step);
            CHECK(x->offset == 0 && x->bytes == 40 && x->chunk == 0);
        }
        CHECK_STR(found, rows[i].steps);
        CHECK_EQ(s.own, rows[i].self ? UT_CHUNK_NONE : 0);
    }
    CHECK(ut_tree_fills(13, 3) && ut_tree_fills(40, 3) && ut_tree_fills(2, 1) && ut_tree_fills(64, 63));
    CHECK(!ut_tree_fills(12, 3) && !ut_tree_fills(1, 3) && !ut_tree_fills(64, 3) && !ut_tree_fills(5, 255));
}

static void memory__of_children_is_asked_for_where_sums_are_made(void)
{
    ut_engine_config engine = {.packet_bytes = 1472, .segments_max = 8, .receive_buffer = 1 << 20};
    ut_job_config job = {.hosts = 13, .self = 1, .local_ranks = 1, .packet_bytes = 1472, .bucket_bytes_max = 1 << 20};
    job.options = (ut_job_options){.policy = UT_POLICY_CODED, .code = UT_CODE_LINEAR, .stragglers = 1, .children = 3};
    size_t between = ut_job_bytes(&engine, &job);
    job.self = 4;
    CHECK_EQ(between - ut_job_bytes(&engine, &job), 3 << 20);
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    all_sets = argc == 2 && strcmp(argv[1], "--all") == 0;
    RUN(tree_3_2__every_set_is_exact_whenever_it_can_be);
    RUN(trees__with_groups_and_without_stragglers);
    RUN(lost_packets__are_stragglers_of_one_slot);
    RUN(a_host_between_dies__and_those_below_it_are_not_cut_off);
    RUN(a_leaf_that_gives_again__is_in_the_next_step);
    RUN(too_many_are_gone__and_that_is_said_at_once);
    RUN(schedule__goes_up_to_the_parent_and_down_past_the_dead);
    RUN(memory__of_children_is_asked_for_where_sums_are_made);
    return check_end();
}
