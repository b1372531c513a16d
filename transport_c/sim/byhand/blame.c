/* SPDX-License-Identifier: Apache-2.0
 *
 * `sim --blame`: worlds in which one host is in trouble of a known kind, and what the receipts say of it. Every host
 * must name it, and every other host the kind; where nobody is in trouble, nobody is named. The op is 25 MB among four
 * hosts at 1 Gbit/s, and has 1.3 times the time that it needs.
 */
#include "sim/byhand/byhand.h"
#include "sim/sim.h"

#include <stdlib.h>

enum { ODD = 2 };
#define DEADLINE (420 * UT_MS) /* the healthy op takes 325 ms */

typedef struct world_kind {
    const char *name;
    uint32_t trouble; /* enum ut_trouble */
    bool own;         /* the host itself knows the kind, too */
    sim_odd odd;
    ut_ns pause_at, pause; /* of the whole host */
    bool dies;
} world_kind;

static const world_kind kinds[] = {
    {.name = "healthy", .trouble = UT_TROUBLE_NONE},
    {.name = "link at a quarter", .trouble = UT_TROUBLE_PATH, .own = true, .odd = {.host = ODD, .rate_part = 4}},
    {.name = "submitted late", .trouble = UT_TROUBLE_SENDER, .own = true, .odd = {.host = ODD, .late = 260 * UT_MS}},
    {.name = "paused", .trouble = UT_TROUBLE_SENDER, .pause_at = 60 * UT_MS, .pause = 240 * UT_MS},
    {.name = "too slow for its socket",
     .trouble = UT_TROUBLE_RECEIVER,
     .own = true,
     .odd = {.host = ODD, .packet_cost = 25 * UT_US, .receive = 128 << 10}},
    {.name = "dead", .trouble = UT_TROUBLE_GONE, .pause_at = 60 * UT_MS, .dies = true},
};

static bool judge(const world_kind *kind, const sim_world *w)
{
    static const char *const words[] = {"nothing", "sender", "path", "receiver", "gone"};
    bool good = true;
    for (uint32_t h = 0; h < w->plan.hosts; h++) {
        const sim_outcome *o = &w->job[0].outcome[0][h];
        const ut_receipt *r = &o->receipt;
        bool healthy = kind->trouble == UT_TROUBLE_NONE, self = h == ODD;
        if (!o->known && self && kind->dies)
            continue;
        bool named = healthy ? r->status == UT_COMPLETE && r->culprit == 0xffff : r->culprit == ODD;
        bool fits = o->known && r->elapsed_ns <= DEADLINE + 5 * UT_MS &&
                    (self && !kind->own ? true : named && r->trouble == kind->trouble);
        good = good && fits;
        printf("blame %s: host %u says host %d, %s; status %u, %.1f ms, %" PRIu64 " bytes missing%s\n", kind->name, h,
               r->culprit == 0xffff ? -1 : r->culprit, words[r->trouble], r->status, (double)r->elapsed_ns / 1e6,
               r->bytes_missing, fits ? "" : "  WRONG");
        if (fits)
            continue;
        for (uint32_t p = 0; p < w->plan.hosts; p++) {
            const ut_receipt_peer *x = &r->peer[p];
            printf(
                "    host %u: missing %u %u, opened %u, first %u, last %u, quiet %u, delay %u us, repaired %u bytes, "
                "lost %u, drops %u, %s\n",
                p, x->missing[0], x->missing[1], x->opened_us, x->first_us, x->last_us, x->quiet_us, x->delay_us,
                x->repaired, x->lost, x->drops, words[x->trouble]);
        }
    }
    return good;
}

static void plan_of(const world_kind *kind, sim_plan *p)
{
    sim_plan_perf(p, 0);
    p->odd = kind->odd;
    p->job[0].ops = 1;
    p->job[0].op[0].deadline = DEADLINE;
    for (uint32_t k = 1; k <= SIM_CALM_OPS; k++)
        p->job[0].op[k].count = 1000;
    if (kind->pause_at)
        p->item[p->items++] = (sim_item){.kind = kind->dies ? SIM_DAEMON_DEATH : SIM_PAUSE,
                                         .at = kind->pause_at,
                                         .lasts = kind->dies ? UT_NEVER : kind->pause,
                                         .host = ODD,
                                         .told = true,
                                         .for_good = kind->dies,
                                         .told_after = 20 * UT_MS};
}

int sim_blame(uint64_t seed)
{
    unsigned bad = 0;
    for (unsigned i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        sim_world *w = sim_alloc(sizeof *w);
        sim_plan *plan = sim_alloc(sizeof *plan);
        plan_of(&kinds[i], plan);
        sim_world_init(w, seed, plan, false);
        bool good = sim_world_run(w);
        if (!good)
            printf("blame %s: %s\n", kinds[i].name, w->failure);
        bad += !judge(&kinds[i], w) || !good;
        sim_world_free(w);
        free(plan);
        free(w);
    }
    printf("blame: %u worlds judged wrongly\n", bad);
    return bad != 0;
}
