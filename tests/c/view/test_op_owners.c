/* SPDX-License-Identifier: Apache-2.0
 *
 * A dead host owns no shard: engines by hand, some of which die, come back, or hear nothing of it.
 */
#include "engines.h"

#include "core/view/view.h"

enum { AHEAD = 8, SETTLED = 3 * AHEAD };
static uint64_t seq;  /* the next op */
static uint32_t dead; /* bit per host */
static ut_receipt r[MOST];

static void begin_tar(uint32_t hosts_, ut_job_options options)
{
    static const uint8_t tar[MOST];
    n = hosts_;
    begin(tar);
    for (uint32_t h = 0; h < n; h++)
        CHECK_EQ(ut_engine_job_tune(hosts[h].engine, 0, &options), UT_OK);
    run(now + 100 * UT_MS);
    seq = 0;
    dead = 0;
}

static void die(uint32_t h)
{
    dead |= 1u << h;
    silent |= 1u << h;
    for (uint32_t p = 0; p < n; p++)
        if (!(dead >> p & 1))
            ut_engine_peer_absent(hosts[p].engine, 0, h, now);
}

/* |late| ops pass between its daemon's coming and its trainer's. */
static void come_back_late(uint32_t h, ut_job_options options, uint64_t late)
{
    unplug(h);
    born_to(h, options, seq - late, seq);
    dead &= ~(1u << h);
    silent &= ~(1u << h);
    for (uint32_t p = 0; p < n; p++)
        if (p != h && !(dead >> p & 1))
            new_path(h, p);
    run(now + 100 * UT_MS);
}

static void come_back(uint32_t h, ut_job_options options)
{
    come_back_late(h, options, 0);
}

static double value_of(uint32_t h, uint32_t i)
{
    return (double)((h + 1) * 10 + i % 7);
}

static double get(uint32_t h, unsigned dtype, uint32_t i)
{
    double x;
    float y;
    memcpy(&x, hosts[h].arena + (size_t)i * 8, 8);
    memcpy(&y, hosts[h].arena + (size_t)i * 4, 4);
    return dtype == UT_FLOAT64 ? x : (double)y;
}

static void put(uint32_t h, unsigned dtype, uint32_t i)
{
    double x = value_of(h, i);
    float y = (float)x;
    uint32_t bits;
    memcpy(&bits, &y, 4);
    uint16_t half = (uint16_t)(bits >> 16); /* exact: small integers */
    if (dtype == UT_FLOAT64)
        memcpy(hosts[h].arena + (size_t)i * 8, &x, 8);
    else if (dtype == UT_FLOAT32)
        memcpy(hosts[h].arena + (size_t)i * 4, &y, 4);
    else
        memcpy(hosts[h].arena + (size_t)i * 2, &half, 2);
}

/* One op of all that live; their receipts are in `r`. */
static void op_of(unsigned mode, unsigned dtype, unsigned redop, unsigned flags, ut_ns budget)
{
    for (uint32_t h = 0; h < n; h++) {
        if (dead >> h & 1)
            continue;
        for (uint32_t i = 0; i < ELEMENTS; i++)
            put(h, dtype, i);
        ut_submission s = {.op_seq = seq,
                           .count = ELEMENTS,
                           .deadline_ns = budget == UT_NEVER ? UT_NEVER : now + budget,
                           .dtype = (uint8_t)dtype,
                           .redop = (uint8_t)redop,
                           .mode = (uint8_t)mode,
                           .flags = (uint8_t)flags};
        CHECK_EQ(ut_ring_submit(&hosts[h].submissions, &hosts[h].completions, &s), UT_OK);
        ut_engine_submissions(hosts[h].engine, hosts[h].session, now);
    }
    run(now + (budget == UT_NEVER ? UT_SECOND : budget + 10 * UT_MS));
    for (uint32_t h = 0; h < n; h++)
        if (!(dead >> h & 1))
            r[h] = receipt(h);
    seq++;
}

static void op(void)
{
    op_of(UT_BOUNDED, UT_FLOAT64, UT_AVG, 0, 50 * UT_MS);
}

/* All that live hold the mean of |hosts_|, everywhere, and nothing is missing. */
static void check_mean(uint32_t hosts_, uint64_t owners, unsigned dtype, double within, int line)
{
    for (uint32_t h = 0; h < n; h++) {
        if (dead >> h & 1)
            continue;
        bool all = hosts_ == (1u << n) - 1;
        check_that(r[h].status == (all ? UT_COMPLETE : UT_PARTIAL) && r[h].bytes_missing == 0 &&
                       r[h].owners == owners && r[h].full_mask == hosts_ && r[h].any_mask == hosts_ &&
                       r[h].weight_min == (uint32_t)__builtin_popcount(hosts_),
                   __FILE__, line,
                   "host %u: status %u, %" PRIu64 " bytes missing, owners %#" PRIx64 ", hosts %#" PRIx64 " in it, %u",
                   h, r[h].status, r[h].bytes_missing, r[h].owners, r[h].full_mask, r[h].weight_min);
        for (uint32_t i = 0; i < ELEMENTS; i++) {
            double sum = 0, k = 0, got = get(h, dtype, i);
            for (uint32_t p = 0; p < n; p++)
                if (hosts_ >> p & 1) {
                    sum += value_of(p, i);
                    k++;
                }
            double off = got - sum / k;
            if (!check_that(off <= within && off >= -within, __FILE__, line, "host %u: element %u is %g, not %g", h, i,
                            got, sum / k))
                return;
        }
    }
}
#define CHECK_MEAN(hosts_, owners) check_mean(hosts_, owners, UT_FLOAT64, 0, __LINE__)

/* Ops until nothing is missing; until then a shard is, and nothing else. */
static uint32_t ops_until_whole(void)
{
    for (uint32_t k = 0; k < 40; k++) {
        uint32_t live = (uint32_t)__builtin_ctz(~dead);
        op();
        if (r[live].bytes_missing == 0)
            return k;
        CHECK_EQ(r[live].status, UT_PARTIAL);
    }
    return UINT32_MAX;
}

static void owners__one_dies(void)
{
    for (uint32_t hosts_ = 3; hosts_ <= 5; hosts_++)
        for (uint32_t who = 0; who < hosts_; who++) {
            begin_tar(hosts_, (ut_job_options){0});
            uint32_t all = (1u << hosts_) - 1, others = all & ~(1u << who), live = who == 0;
            for (int k = 0; k < 3; k++) {
                op();
                CHECK_MEAN(all, all);
            }
            die(who);
            CHECK_LE(ops_until_whole(), AHEAD + 1);
            for (uint32_t k = 0; k < 2 * hosts_; k++) {
                op();
                CHECK_MEAN(others, others);
                CHECK_EQ(r[live].culprit, who);
                CHECK_EQ(r[live].trouble, UT_TROUBLE_GONE);
                CHECK_EQ(r[live].peer[who].expected[0] + r[live].peer[who].expected[1], 0);
                CHECK_EQ(r[live].stage_end[0], UT_END_COMPLETE);
                CHECK_EQ(r[live].stage_end[1], UT_END_COMPLETE);
            }
            end();
        }
}

/* It contributes and is sent all from its first op on, and owns again a little later; also when ops have gone by since
 * its daemon came, of which it has heard nothing. */
static void owners__one_comes_back(void)
{
    for (uint32_t k = 0; k < 3 * 3; k++) {
        const uint32_t who = k % 3, late = k / 3 * UT_OPS_MAX;
        begin_tar(3, (ut_job_options){0});
        op();
        die(who);
        ops_until_whole();
        for (uint32_t more = 0; more < late; more++)
            op();
        come_back_late(who, (ut_job_options){0}, late);
        uint32_t ops = 0;
        do {
            op();
            CHECK_MEAN(7, r[0].owners);
            CHECK_EQ(r[1].owners, r[0].owners);
            CHECK(r[0].owners == 7 || r[0].owners == (7u & ~(1u << who)));
        } while (r[0].owners != 7 && ++ops < 40);
        CHECK_MSG(ops >= AHEAD && ops <= AHEAD + UT_OPS_MAX + 1, "owns again after %u ops", ops);
        for (ops = 0; ops < 10; ops++) {
            op();
            CHECK_MEAN(7, 7);
        }
        end();
    }
}

/* All but one die, the one that decides first: the last owns all, and gets its own value back. */
static void owners__one_is_left(void)
{
    begin_tar(4, (ut_job_options){0});
    op();
    die(0);
    ops_until_whole();
    op();
    CHECK_MEAN(14, 14);
    die(2);
    die(1);
    for (int k = 0; k < SETTLED; k++)
        op();
    CHECK_EQ(r[3].status, UT_INSUFFICIENT);
    CHECK_EQ(r[3].owners, 8);
    CHECK_EQ(r[3].bytes_expected, 0);
    for (uint32_t i = 0; i < ELEMENTS; i++)
        CHECK_DOUBLE(get(3, UT_FLOAT64, i), value_of(3, i));
    end();
}

/* Ops that must be all or nothing, which none was while a shard had nobody; those that need everybody still fail, and
 * are cut as ever. */
static void owners__agree_and_reliable(void)
{
    begin_tar(3, (ut_job_options){0});
    op();
    die(1);
    op_of(UT_BOUNDED, UT_FLOAT64, UT_AVG, UT_SUBMIT_AGREE, 50 * UT_MS);
    CHECK_EQ(r[0].status, UT_FAILED);
    CHECK_EQ(r[0].error, UT_ERR_ABSENT);
    ops_until_whole();
    op_of(UT_BOUNDED, UT_FLOAT64, UT_AVG, UT_SUBMIT_AGREE, 50 * UT_MS);
    CHECK_MEAN(5, 5);
    CHECK_HEX(r[0].digest, r[2].digest);
    op_of(UT_RELIABLE, UT_FLOAT64, UT_AVG, 0, 50 * UT_MS);
    CHECK_EQ(r[0].status, UT_FAILED);
    CHECK_EQ(r[0].owners, 7);
    op_of(UT_BEST_EFFORT, UT_FLOAT32, UT_AVG, 0, 50 * UT_MS);
    check_mean(5, 5, UT_FLOAT32, 0, __LINE__);
    end();
}

/* Larger shards than there are hosts for: sums of the halves, copies that linger, rows that are mixed. */
static void owners__larger_shards(void)
{
    begin_tar(4, (ut_job_options){0});
    op();
    die(3);
    die(1);
    ops_until_whole();
    loss_ppm = 150000;
    for (int k = 0; k < 12; k++) {
        op_of(UT_BOUNDED, UT_FLOAT64, UT_AVG, 0, UT_SECOND);
        CHECK_MEAN(5, 5);
        op_of(UT_BOUNDED, UT_BFLOAT16, UT_SUM, 0, UT_SECOND);
        for (uint32_t i = 0; i < ELEMENTS; i++) {
            uint16_t half;
            memcpy(&half, hosts[0].arena + (size_t)i * 2, 2);
            uint32_t bits = (uint32_t)half << 16;
            float sum;
            memcpy(&sum, &bits, 4);
            CHECK_DOUBLE((double)sum, value_of(0, i) + value_of(2, i));
        }
        CHECK_EQ(r[0].bytes_missing, 0);
    }
    end();
}

static void owners__transformed(void)
{
    begin_tar(3, (ut_job_options){.hadamard = UT_HADAMARD_ON});
    for (int k = 0; k < 12; k++)
        op_of(UT_BOUNDED, UT_FLOAT32, UT_AVG, 0, 50 * UT_MS);
    CHECK_EQ(r[0].hadamard, 1);
    die(0);
    for (int k = 0; k < AHEAD + 2; k++)
        op_of(UT_BOUNDED, UT_FLOAT32, UT_AVG, 0, 50 * UT_MS);
    CHECK_EQ(r[1].hadamard, 1);
    check_mean(6, 6, UT_FLOAT32, 1e-4, __LINE__);
    come_back(0, (ut_job_options){.hadamard = UT_HADAMARD_ON});
    op_of(UT_BOUNDED, UT_FLOAT32, UT_AVG, 0, 50 * UT_MS);
    check_mean(7, 6, UT_FLOAT32, 1e-4, __LINE__);
    for (int k = 0; k < SETTLED; k++)
        op_of(UT_BOUNDED, UT_FLOAT32, UT_AVG, 0, 50 * UT_MS);
    CHECK_EQ(r[0].hadamard, 1);
    check_mean(7, 7, UT_FLOAT32, 1e-4, __LINE__);
    end();
}

/* ---- words that do not arrive ---- */

static uint32_t mute;        /* bit per host: what it has to say of owners does not reach host 2 */
static bool seems_to_follow; /* and nobody hears that host 2 does not know of it */
static ut_view_plan newest;  /* that host 0 has said */
static uint16_t without_4;   /* tag of the view in which host 4 of five owns nothing */

static void follow_seemingly(uint32_t from, ut_feedback *f)
{
    if (from == 0)
        newest = f->view.plan;
    if (from == 2)
        f->view.plan = newest;
}

static void take_words(uint32_t from, uint32_t to, uint32_t port, uint8_t *packet, size_t len)
{
    static ut_feedback f;
    if (port != UT_PORT_FEEDBACK || ut_feedback_decode(&f, packet, len, UT_CHECK_SUM))
        return;
    if (seems_to_follow)
        follow_seemingly(from, &f);
    if (to == 2 && mute >> from & 1)
        f.view = (ut_view_claim){.plan = {.before = {.owners = 15}, .after = {.owners = 15}},
                                 .decider = mute == 1 ? UT_DECIDER_NONE : f.view.decider};
    CHECK_EQ(ut_feedback_encode(packet, &f), len);
}

/* What the deciding host cannot tell another does. */
static void owners__words_lost_on_one_path(void)
{
    begin_tar(4, (ut_job_options){0});
    op();
    change = take_words;
    seems_to_follow = false;
    mute = 1;
    die(3);
    CHECK_LE(ops_until_whole(), AHEAD);
    for (int k = 0; k < 6; k++) {
        op();
        CHECK_MEAN(7, 7);
    }
    end();
}

/* Who is up and does not let go of a host keeps it in, for all: they cut alike, and miss its shard alone. */
static void owners__one_that_does_not_follow_is_waited_for(void)
{
    begin_tar(4, (ut_job_options){0});
    op();
    change = take_words;
    seems_to_follow = false;
    mute = 0xb;
    die(3);
    for (int k = 0; k < 3 * AHEAD; k++) {
        op();
        for (uint32_t h = 0; h < 3; h++) {
            CHECK_EQ(r[h].owners, 15);
            CHECK_EQ(r[h].any_mask, 7);
            CHECK_EQ(r[h].peer[3].missing[1], r[h].bytes_missing - r[h].peer[3].missing[0]);
        }
    }
    change = NULL;
    CHECK_LE(ops_until_whole(), 4 * AHEAD);
    CHECK_MEAN(7, 7);
    end();
}

/* A host that hears none cuts as ever, and seems to know: the others refuse its bytes and it theirs, and nobody waits
 * for what will not come, or takes what does not fit. Then it hears again. */
static void owners__words_lost_on_all_paths(void)
{
    begin_tar(4, (ut_job_options){0});
    op();
    change = take_words;
    seems_to_follow = true;
    newest = (ut_view_plan){.before = {.owners = 15}, .after = {.owners = 15}};
    mute = 0xb;
    die(3);
    for (int k = 0; k < AHEAD; k++)
        op();
    for (int k = 0; k < 5; k++) {
        op_of(UT_BOUNDED, UT_FLOAT64, UT_AVG, 0, UT_NEVER);
        for (uint32_t h = 0; h < 2; h++) {
            CHECK_EQ(r[h].owners, 7);
            CHECK_EQ(r[h].status, UT_PARTIAL);
            CHECK_EQ(r[h].full_mask & ~3u, 0);
            CHECK_MSG(r[h].elapsed_ns < 100 * UT_MS, "it waited %" PRIu64 " ms", r[h].elapsed_ns / UT_MS);
        }
        CHECK_EQ(r[2].owners, 15);
        CHECK_EQ(r[2].status, UT_INSUFFICIENT);
        CHECK_MSG(r[2].elapsed_ns < 100 * UT_MS, "it waited %" PRIu64 " ms", r[2].elapsed_ns / UT_MS);
        for (uint32_t i = 0; i < ELEMENTS; i++) {
            CHECK_DOUBLE(get(2, UT_FLOAT64, i), value_of(2, i));
            double both = (value_of(0, i) + value_of(1, i)) / 2, got = get(0, UT_FLOAT64, i);
            CHECK(got == both || got == value_of(0, i)); /* 2's shard stays with each host's own */
        }
    }
    change = NULL;
    run(now + 100 * UT_MS);
    op();
    op();
    CHECK_MEAN(7, 7);
    end();
}

static void hide_cuts(uint32_t from, uint32_t to, uint32_t port, uint8_t *packet, size_t len)
{
    static ut_feedback f;
    if (port != UT_PORT_FEEDBACK || ut_feedback_decode(&f, packet, len, UT_CHECK_SUM))
        return;
    follow_seemingly(from, &f);
    if (to == 2)
        f.view.plan = (ut_view_plan){.before = {.owners = 31}, .after = {.owners = 31}};
    for (unsigned i = 0; i < f.records && (to == 2 || from == 2); i++) /* each reads what it said itself */
        f.record[i].view = to == 2 || f.record[i].op_seq < 1 + AHEAD ? 0 : without_4;
    CHECK_EQ(ut_feedback_encode(packet, &f), len);
}

/* Data that is quicker than every word of it: each packet says how it was cut, and none of the other kind is taken,
 * though many would fit. */
static void owners__packets_tell_alone(void)
{
    begin_tar(5, (ut_job_options){0});
    op();
    newest = (ut_view_plan){.before = {.owners = 31}, .after = {.owners = 31}};
    static ut_view of_five = {.all = 31};
    without_4 = ut_view_tag(&of_five, &(ut_view_state){.owners = 15});
    change = hide_cuts;
    die(4);
    for (int k = 0; k < AHEAD; k++)
        op();
    for (int k = 0; k < 20; k++) {
        op();
        CHECK_EQ(r[0].owners, 15);
        CHECK_EQ(r[2].owners, 31);
        for (uint32_t h = 0; h < 4; h++) {
            const ut_receipt_peer *there = &r[h].peer[2], *here = &r[2].peer[h];
            CHECK(h == 2 || (there->expected[0] && there->missing[0] == there->expected[0]));
            CHECK(h == 2 || (there->expected[1] && there->missing[1] == there->expected[1]));
            CHECK(h == 2 || (here->missing[0] == here->expected[0] && here->missing[1] == here->expected[1]));
        }
    }
    end();
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(owners__one_dies);
    RUN(owners__one_comes_back);
    RUN(owners__one_is_left);
    RUN(owners__agree_and_reliable);
    RUN(owners__larger_shards);
    RUN(owners__transformed);
    RUN(owners__words_lost_on_one_path);
    RUN(owners__one_that_does_not_follow_is_waited_for);
    RUN(owners__words_lost_on_all_paths);
    RUN(owners__packets_tell_alone);
    return check_end();
}
