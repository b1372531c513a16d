/* SPDX-License-Identifier: Apache-2.0
 *
 * The command line. A range of seeds runs in worker processes, so that a crash costs one seed and is reported like any
 * other failure; a single seed runs in this process, for a debugger.
 */
#define _GNU_SOURCE
#include "sim/byhand/byhand.h"
#include "sim/world/far.h"
#include "sim/world/liar.h"
#include "sim/world/moving.h"

#include <malloc.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WORKERS_MAX = 16, SEED_SECONDS_MAX = 300 };

/* What a worker tells its parent, in shared memory. */
typedef struct result {
    uint64_t seed; /* being run */
    uint64_t done, failed, ops, packets, events, hash;
    uint64_t cover[SIM_COVERS];
} result;

typedef struct options {
    uint64_t from, count;
    unsigned jobs;
    bool single, trace, hashes, perf, blame, selftest, stop, partial, coded, linear, tree, sparse, quant, seats, moving,
        far, hostile;
    unsigned hosts;     /* of each world; 0: drawn */
    unsigned algorithm; /* of --perf: enum ut_algorithm */
    const char *self;
} options;

static void print_replay(const options *o, uint64_t seed)
{
    char hosts[24] = "";
    if (o->hosts)
        snprintf(hosts, sizeof hosts, " --hosts %u", o->hosts);
    const char *kind = o->partial  ? o->quant ? " --partial --quant" : " --partial"
                       : o->linear ? " --linear"
                       : o->tree   ? " --tree"
                       : o->coded  ? " --coded"
                       : o->sparse ? " --sparse"
                       : o->quant  ? " --quant"
                       : o->seats  ? " --seats"
                       : o->moving ? " --moving"
                                   : "";
    printf("replay: %s%s%s%s%s --seed %" PRIu64 "\n", o->self, kind, o->far ? " --far" : "",
           o->hostile ? " --hostile" : "", hosts, seed);
}

static void print_failure(const options *o, uint64_t seed, const sim_world *w)
{
    printf("FAILED seed %" PRIu64 ": %s\n", seed, w->failure);
    printf("the last events (host clocks are offset):\n");
    sim_trace_tail(w, stdout);
    print_replay(o, seed);
    fflush(stdout);
}

static void run_seed(const options *o, uint64_t seed, result *r)
{
    sim_world *w = sim_alloc(sizeof *w);
    sim_plan *plan = sim_alloc(sizeof *plan);
    if (o->partial && o->quant)
        sim_plan_draw_partial_quant(plan, seed, o->hosts);
    else if (o->partial)
        sim_plan_draw_partial(plan, seed, o->hosts);
    else if (o->coded)
        sim_plan_draw_coded(plan, seed, o->hosts, o->tree ? SIM_TREE : o->linear ? SIM_STAR_LINEAR : SIM_STAR);
    else if (o->sparse)
        sim_plan_draw_sparse(plan, seed, o->hosts);
    else if (o->quant)
        sim_plan_draw_quant(plan, seed, o->hosts);
    else if (o->seats)
        sim_plan_draw_seats(plan, seed, o->hosts);
    else {
        sim_plan_draw(plan, seed, o->hosts);
        sim_plan_draw_deterministic(plan, seed);
        if (o->moving)
            sim_plan_draw_moving(plan, seed);
    }
    if (!o->seats)
        sim_plan_draw_hostile(plan, seed, o->hostile);
    if (o->far)
        sim_plan_draw_far(plan, seed);
    sim_world_init(w, seed, plan, o->trace);
    bool good = sim_world_run(w);
    r->done++;
    r->failed += !good;
    r->ops += w->ops;
    r->packets += w->books.sent.packets;
    r->events += w->events_done;
    r->hash ^= sim_mix(seed ^ w->hash);
    for (unsigned i = 0; i < SIM_COVERS; i++)
        r->cover[i] += w->cover[i];
    if (o->hashes)
        printf("hash %" PRIu64 " %016" PRIx64 "\n", seed, w->hash);
    if (!good)
        print_failure(o, seed, w);
    sim_world_free(w);
    free(plan);
    free(w);
}

/* Of the process's own time: how much of it a busy machine gives says nothing of a world. */
static void limit_time(void)
{
    const struct itimerval most = {.it_value.tv_sec = SEED_SECONDS_MAX};
    if (setitimer(ITIMER_PROF, &most, NULL)) {
        perror("sim: setitimer");
        exit(2);
    }
}

static pid_t start_worker(const options *o, uint64_t first, result *r)
{
    fflush(stdout);
    pid_t pid = fork();
    if (pid < 0) {
        perror("sim: fork");
        exit(2);
    }
    if (pid > 0)
        return pid;
    for (uint64_t seed = first; seed < o->from + o->count; seed += o->jobs) {
        r->seed = seed;
        limit_time();
        run_seed(o, seed, r);
        if (o->stop && r->failed)
            break;
    }
    fflush(stdout);
    _exit(0);
}

static void print_summary(const options *o, const result *all)
{
    printf("%" PRIu64 " seeds, %" PRIu64 " failed, ops %" PRIu64 ", packets %" PRIu64 ", events %" PRIu64
           ", hash %016" PRIx64 "\n",
           all->done, all->failed, all->ops, all->packets, all->events, all->hash);
    unsigned first = 0, end = SIM_COVERS_ORDINARY;
    if (o->partial)
        first = SIM_COVERS_ORDINARY, end = SIM_COVERS_PARTIAL;
    if (o->coded)
        first = SIM_COVERS_PARTIAL, end = SIM_COVERS_UNSPARSE;
    if (o->sparse)
        first = SIM_COVERS_UNSPARSE, end = SIM_COVERS_UNQUANT;
    if (o->quant && !o->partial)
        first = SIM_COVERS_UNQUANT, end = SIM_COVERS_UNSEATED;
    if (o->seats)
        first = SIM_COVERS_UNSEATED, end = SIM_COVERS_UNMOVING;
    if (o->moving)
        first = SIM_COVERS_UNMOVING, end = SIM_COVERS_NEAR;
    for (unsigned i = first; i < end && !o->single; i++)
        printf("cover %s %" PRIu64 "\n", sim_cover_name[i], all->cover[i]);
    for (unsigned i = SIM_COVERS_NEAR; i < SIM_COVERS && o->far && !o->single; i++)
        printf("cover %s %" PRIu64 "\n", sim_cover_name[i], all->cover[i]);
}

static int run_range(const options *o)
{
    result *r = mmap(NULL, WORKERS_MAX * sizeof *r, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (r == MAP_FAILED) {
        perror("sim: mmap");
        return 2;
    }
    pid_t pid[WORKERS_MAX];
    unsigned running = o->jobs;
    for (unsigned k = 0; k < o->jobs; k++)
        pid[k] = start_worker(o, o->from + k, &r[k]);
    while (running > 0) {
        int status;
        pid_t ended = wait(&status);
        unsigned k = 0;
        while (k < o->jobs && pid[k] != ended)
            k++;
        if (k == o->jobs)
            continue;
        if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
            running--;
            continue;
        }
        r[k].done++;
        r[k].failed++;
        printf("FAILED seed %" PRIu64 ": the process ended with %s %d\n", r[k].seed,
               WIFSIGNALED(status) ? "signal" : "status", WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
        print_replay(o, r[k].seed);
        if (o->stop) {
            running--;
            continue;
        }
        pid[k] = start_worker(o, r[k].seed + o->jobs, &r[k]);
    }
    result all = {0};
    for (unsigned k = 0; k < o->jobs; k++) {
        all.done += r[k].done;
        all.failed += r[k].failed;
        all.ops += r[k].ops;
        all.packets += r[k].packets;
        all.events += r[k].events;
        all.hash ^= r[k].hash;
        for (unsigned i = 0; i < SIM_COVERS; i++)
            all.cover[i] += r[k].cover[i];
    }
    print_summary(o, &all);
    munmap(r, WORKERS_MAX * sizeof *r);
    return all.failed != 0;
}

static int run_one(const options *o)
{
    result r = {0};
    run_seed(o, o->from, &r);
    print_summary(o, &r);
    return r.failed != 0;
}

/* 25 MB among four hosts at 1 Gbit/s, in virtual time, against what the wire needs: 2 (N-1)/N of the bucket, with all
 * headers. */
static int run_perf(const options *o)
{
    static const struct {
        uint32_t loss_ppm;
        double most;
    } rows[] = {{0, 1.35}, {10000, 1.5}, {50000, 2.0}};
    int bad = 0;
    for (unsigned i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        sim_world *w = sim_alloc(sizeof *w);
        sim_plan *plan = sim_alloc(sizeof *plan);
        sim_plan_perf(plan, rows[i].loss_ppm);
        plan->job[0].options.algorithm = (uint8_t)o->algorithm;
        sim_world_init(w, o->from, plan, false);
        bool good = sim_world_run(w);
        if (!good)
            print_failure(o, o->from, w);
        uint64_t data = 0, feedback = 0;
        for (uint32_t h = 0; h < plan->hosts; h++) {
            ut_stats s;
            ut_engine_stats(w->host[h].engine, &s);
            data += s.data_sent;
            feedback += s.feedback_sent;
        }
        double bytes = 2.0 * 3 / 4 * 6553600 * 4, bound = bytes / 1440 * (1472 + 66) / 125e6;
        for (uint32_t op = 0; op < plan->job[0].ops; op++) {
            uint64_t longest = 0, missing = 0;
            for (uint32_t h = 0; h < plan->hosts; h++) {
                const ut_receipt *r = &w->job[0].outcome[op][h].receipt;
                longest = UT_MAX2(longest, r->elapsed_ns);
                missing += r->bytes_missing;
            }
            double ratio = (double)longest / 1e9 / bound;
            printf("perf loss %.1f %% op %u: %.1f ms, bound %.1f ms, ratio %.3f, missing %" PRIu64 " bytes\n",
                   rows[i].loss_ppm / 1e4, op, (double)longest / 1e6, bound * 1e3, ratio, missing);
            bad += !good || longest == 0 || missing || (o->algorithm == UT_TAR && ratio > rows[i].most);
        }
        printf("perf loss %.1f %%: %" PRIu64 " data packets, one feedback for %.1f of them\n", rows[i].loss_ppm / 1e4,
               data, (double)data / (double)feedback);
        sim_world_free(w);
        free(plan);
        free(w);
    }
    if (bad || o->algorithm == UT_TAR) /* the others are there to be compared */
        printf("perf %s\n", bad ? "below the floor" : "above the floor");
    return bad != 0;
}

static uint64_t number(const char *name, const char *text)
{
    char *end;
    uint64_t n = text ? strtoull(text, &end, 0) : 0;
    if (!text || *text == 0 || *end) {
        fprintf(stderr, "sim: %s needs a number, not \"%s\"\n", name, text ? text : "");
        exit(2);
    }
    return n;
}

static unsigned algorithm_named(const char *text)
{
    static const char *const name[] = {"", "tar", "ring", "bcube", "ps"};
    for (unsigned i = UT_TAR; i < UT_ALGORITHMS_END; i++)
        if (text && strcmp(text, name[i]) == 0)
            return i;
    fprintf(stderr, "sim: --algorithm needs tar, ring, bcube or ps, not \"%s\"\n", text ? text : "");
    exit(2);
}

static void usage(FILE *out)
{
    fprintf(out, "sim --seed S [--trace] [--hash]                 one world\n"
                 "sim --from A --count N [--jobs J] [--hash]      worlds A .. A+N-1 in J processes (1)\n"
                 "    [--stop]                                    each process stops at its first failure\n"
                 "    [--partial]                                 worlds with partial jobs\n"
                 "    [--coded]                                   worlds with a coded job\n"
                 "    [--linear]                                  the same with linear codes\n"
                 "    [--tree]                                    the same in trees\n"
                 "    [--sparse]                                  worlds with sparse allreduces\n"
                 "    [--quant]                                   worlds with quantised allreduces, or partial jobs\n"
                 "    [--seats]                                   worlds whose hosts come and go\n"
                 "    [--moving]                                  worlds in which a host's addresses change\n"
                 "    [--far]                                     these, whose hosts are far apart\n"
                 "    [--hostile]                                 worlds in each of which one host lies\n"
                 "    [--hosts H]                                 worlds of H hosts\n"
                 "sim --perf [--seed S] [--algorithm A]           25 MB over 1 Gbit/s at 0, 1 and 5 %% loss;\n"
                 "                                                A: tar, ring, bcube or ps\n"
                 "sim --study [name=number ...]                  one world by hand, as JSON (study.c)\n"
                 "sim --matrix [--quick] [--far] [--jobs J] [--row R] [--seed S] [--list]\n"
                 "                                                many of them, held against the wire: PASS or FAIL\n"
                 "sim --skew [name=number ...]                    ranks that arrive one after the other (skew.c)\n"
                 "sim --blame [--seed S]                          one host in trouble: do the receipts name it?\n"
                 "sim --selftest                                  the simulator's own parts\n"
                 "Exit status: 0 all good, 1 a failure, 2 wrong use.\n");
}

int main(int argc, char **argv)
{
    mallopt(M_MMAP_THRESHOLD, 1 << 20); /* engines get fresh pages, of which they touch few */
    options o = {.count = 1, .jobs = 1, .self = argv[0], .algorithm = UT_TAR};
    if (argc > 1 && strcmp(argv[1], "--study") == 0)
        return sim_study_main(argc - 2, argv + 2);
    if (argc > 1 && strcmp(argv[1], "--skew") == 0)
        return sim_skew(argc - 2, argv + 2);
    if (argc > 1 && strcmp(argv[1], "--matrix") == 0)
        return sim_matrix(argv[0], argc - 2, argv + 2);
    for (int i = 1; i < argc; i++) {
        const char *name = argv[i], *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (strcmp(name, "--trace") == 0) {
            o.trace = true;
        } else if (strcmp(name, "--hash") == 0) {
            o.hashes = true;
        } else if (strcmp(name, "--perf") == 0) {
            o.perf = true;
        } else if (strcmp(name, "--blame") == 0) {
            o.blame = true;
        } else if (strcmp(name, "--selftest") == 0) {
            o.selftest = true;
        } else if (strcmp(name, "--stop") == 0) {
            o.stop = true;
        } else if (strcmp(name, "--partial") == 0) {
            o.partial = true;
        } else if (strcmp(name, "--coded") == 0) {
            o.coded = true;
        } else if (strcmp(name, "--linear") == 0) {
            o.coded = o.linear = true;
        } else if (strcmp(name, "--tree") == 0) {
            o.coded = o.tree = true;
        } else if (strcmp(name, "--sparse") == 0) {
            o.sparse = true;
        } else if (strcmp(name, "--quant") == 0) {
            o.quant = true;
        } else if (strcmp(name, "--seats") == 0) {
            o.seats = true;
        } else if (strcmp(name, "--moving") == 0) {
            o.moving = true;
        } else if (strcmp(name, "--far") == 0) {
            o.far = true;
        } else if (strcmp(name, "--hostile") == 0) {
            o.hostile = true;
        } else if (strcmp(name, "--help") == 0) {
            usage(stdout);
            return 0;
        } else if (strcmp(name, "--seed") == 0) {
            o.from = number(name, value);
            o.single = true;
            i++;
        } else if (strcmp(name, "--hosts") == 0) {
            uint64_t hosts = number(name, value);
            if (hosts < 1 || hosts > SIM_HOSTS) {
                fprintf(stderr, "sim: --hosts needs 1 to %d\n", SIM_HOSTS);
                return 2;
            }
            o.hosts = (unsigned)hosts;
            i++;
        } else if (strcmp(name, "--algorithm") == 0) {
            o.algorithm = algorithm_named(value);
            i++;
        } else if (strcmp(name, "--from") == 0) {
            o.from = number(name, value);
            i++;
        } else if (strcmp(name, "--count") == 0) {
            o.count = number(name, value);
            i++;
        } else if (strcmp(name, "--jobs") == 0) {
            uint64_t jobs = number(name, value);
            o.jobs = (unsigned)UT_MAX2(UT_MIN2(jobs, (uint64_t)WORKERS_MAX), (uint64_t)1);
            i++;
        } else {
            fprintf(stderr, "sim: no such option: %s\n", name);
            usage(stderr);
            return 2;
        }
    }
    if (o.coded && ((o.tree && (o.linear || o.hostile)) || o.partial || o.sparse || o.quant)) {
        fprintf(stderr, "sim: --coded goes with neither --partial nor --sparse, --tree not with --hostile, either\n");
        return 2;
    }
    if (o.selftest)
        return sim_selftest() != 0;
    if (o.perf)
        return run_perf(&o);
    if (o.blame)
        return sim_blame(o.from);
    return o.single ? run_one(&o) : run_range(&o);
}
