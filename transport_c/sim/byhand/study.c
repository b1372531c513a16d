/* SPDX-License-Identifier: Apache-2.0
 *
 * Controlled worlds: one job, all said on the command line, one seed; what every op took and what it missed comes out
 * as JSON, and what the judge found. For questions that the kernel cannot be asked here: delay, jitter and reordering,
 * the timeouts that answer them, and links that no lab has. The oracles watch as always, so a study whose protocol is
 * broken says so in "failure"; with --light only those that need no bytes. A world holds few ops: take more seeds for
 * more of them.
 */
#include "sim/byhand/study.h"
#include "sim/byhand/byhand.h"

#include <stdlib.h>

static int wrong_use(const char *argument)
{
    fprintf(stderr, "study: %s is neither --light nor name=number with one of these names:\n", argument);
    sim_study_knobs(stderr);
    return 2;
}

static void print_op(const sim_world *w, uint32_t op)
{
    printf("{\"op\":%u,\"hosts\":[", op);
    for (uint32_t h = 0; h < w->plan.hosts; h++) {
        const sim_outcome *outcome = &w->job[0].outcome[op][h];
        const ut_receipt *r = &outcome->receipt;
        printf("%s{\"status\":%u,\"elapsed_us\":%.3f,\"expected\":%" PRIu64 ",\"missing\":%" PRIu64
               ",\"end\":[%u,%u],\"stage_us\":[%.3f,%.3f],\"t_b_us\":%u,\"t_c_us\":[%u,%u],\"incast\":%u}",
               h ? "," : "", outcome->known ? r->status : 0, (double)r->elapsed_ns / 1e3, r->bytes_expected,
               r->bytes_missing, r->stage_end[0], r->stage_end[1], (double)r->stage_ns[0] / 1e3,
               (double)r->stage_ns[1] / 1e3, r->t_b_us, r->t_c_us[0], r->t_c_us[1], r->incast);
    }
    printf("]}%s\n", op + 1 < w->plan.job[0].ops ? "," : "");
}

static void print_judged(const sim_judged *j)
{
    printf("\"judged\":{\"ratio\":%.4f,\"ratio_last\":%.4f,\"goal\":%.4f,\"first\":%.2f,\"bound_us\":%.1f,\"op_us\":%."
           "1f,\"op_last_us\":%.1f,"
           "\"worst_us\":%.1f,"
           "\"round_trip_us\":%.1f,\"lost\":%.6f,\"lost_own\":%.6f,\"feedback\":%.4f,\"turns\":%.1f,\"told\":%.1f,"
           "\"grants\":%.1f,\"told_bytes\":%.1f,"
           "\"parity\":%.0f,\"rebuilt\":%.0f,"
           "\"wakeups\":%.2f,\"again\":%.4f,"
           "\"healthy\":%.4f,\"share\":%.4f,\"missing\":%" PRIu64 ",\"idle_us\":{",
           j->ratio, j->ratio_last, j->goal, j->first, j->bound / 1e3, j->op / 1e3, j->op_last / 1e3, j->worst / 1e3,
           j->round_trip / 1e3, j->lost, j->lost_own, j->feedback, j->turns, j->told, j->grants, j->told_bytes,
           j->parity, j->rebuilt, j->wakeups, j->again, j->healthy, j->share, j->missing);
    for (unsigned k = 0; k < SIM_IDLES; k++)
        printf("%s\"%s\":%.1f", k ? "," : "", sim_idle_name[k], j->idle[k] / 1e3);
    printf("}}");
}

int sim_study_main(int argc, char **argv)
{
    sim_study s = sim_study_default();
    for (int i = 0; i < argc; i++)
        if (!sim_study_take(&s, argv[i]))
            return wrong_use(argv[i]);
    sim_world *w = sim_alloc(sizeof *w);
    sim_plan *plan = sim_alloc(sizeof *plan);
    sim_study_plan(&s, plan);
    sim_world_init(w, s.seed, plan, false);
    bool good = sim_world_run(w);
    printf("{\"failure\":\"");
    for (const char *c = w->failure; *c; c++)
        putchar(*c == '"' || *c == '\\' || *c < ' ' ? ' ' : *c);
    printf("\",\"sent\":%" PRIu64 ",\"sent_bytes\":%" PRIu64 ",\"lost\":%" PRIu64 ",", w->books.sent.packets,
           w->books.sent.bytes, w->books.lost.packets);
    sim_judged judged = sim_judge(w, &s);
    print_judged(&judged);
    if (s.rows) {
        printf(",\"ops\":[\n");
        for (uint32_t op = 0; op < plan->job[0].ops; op++)
            print_op(w, op);
        printf("]");
    }
    printf("}\n");
    sim_world_free(w);
    free(plan);
    free(w);
    return !good;
}
