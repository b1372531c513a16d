/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs the rows of the matrix in worker processes, prints what the judge found of each, and a verdict.
 */
#define _GNU_SOURCE
#include "sim/byhand/matrix.h"
#include "sim/byhand/byhand.h"

#include <math.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { JOBS_MAX = 16, ROW_SECONDS_MAX = 1200, SEEDS_APART = 8 };
/* An op stands still that takes so many times the bound, and so many ns: a median does not show it. */
enum { STOOD_STILL = 3, STILL_LEAST = 100000000 };

/* What a worker leaves for its parent, in shared memory. */
typedef struct outcome {
    bool done;
    sim_judged judged;
    char failure[200];
} outcome;

typedef struct matrix {
    bool quick, far, list;
    uint32_t jobs, only; /* only: a single row, from 1; 0 for all */
    uint64_t seed;
    const char *self;
    uint32_t rows;
    sim_row row[SIM_ROWS_MAX];
    outcome *out;
} matrix;

static const char *special_name(const sim_row *row)
{
    static const char *const name[] = {"",          "-",          "loss 1 %",   "loss 5 %", "3 ms apart",
                                       "1 ms late", "one at 1/4", "TCP beside", "two jobs", "core at 1/2"};
    return name[row->special];
}

static void run_seed(const sim_row *row, uint64_t seed, outcome *ret)
{
    sim_world *w = sim_alloc(sizeof *w);
    sim_plan *plan = sim_alloc(sizeof *plan);
    sim_study_plan(&row->study, plan);
    sim_world_init(w, seed, plan, false);
    sim_world_run(w);
    ret->judged = sim_judge(w, &row->study);
    snprintf(ret->failure, sizeof ret->failure, "%.190s", w->failure);
    sim_world_free(w);
    free(plan);
    free(w);
}

static double most(double a, double b)
{
    return a > b ? a : b;
}

/* The worse of |ret| and |other| in all that a row is judged by. */
static void take_worse(outcome *ret, const outcome *other)
{
    sim_judged *a = &ret->judged;
    const sim_judged *b = &other->judged;
    a->op = most(a->op, b->op);
    a->goal = most(a->goal, b->goal);
    a->ratio = most(a->ratio, b->ratio);
    a->ratio_last = most(a->ratio_last, b->ratio_last);
    a->first = most(a->first, b->first);
    a->worst = most(a->worst, b->worst);
    a->lost = most(a->lost, b->lost);
    a->lost_own = most(a->lost_own, b->lost_own);
    a->feedback = most(a->feedback, b->feedback);
    a->again = most(a->again, b->again);
    a->healthy = most(a->healthy, b->healthy);
    a->share = fabs(b->share - 0.5) > fabs(a->share - 0.5) ? b->share : a->share;
    a->missing += b->missing;
    memcpy(ret->failure, other->failure, sizeof ret->failure);
}

/* Who calls first, and by how much, is drawn for each of a world's few ops, and what is lost follows from that: of such
 * rows what is lost is the mean over so many seeds. All else is the row's own seed's. */
static void run_row(const sim_row *row, outcome *ret)
{
    run_seed(row, row->study.seed, ret);
    for (uint64_t k = 1; row->special == SIM_APART && !row->seeds && k < SEEDS_APART && !ret->failure[0]; k++) {
        outcome more = {0};
        run_seed(row, row->study.seed + k, &more);
        ret->judged.lost += (more.judged.lost - ret->judged.lost) / (double)(k + 1);
        ret->judged.lost_own += (more.judged.lost_own - ret->judged.lost_own) / (double)(k + 1);
        ret->judged.missing += more.judged.missing;
        ret->judged.worst = more.judged.worst > ret->judged.worst ? more.judged.worst : ret->judged.worst;
        memcpy(ret->failure, more.failure, sizeof ret->failure);
    }
    for (uint64_t k = 1; k < row->seeds && !ret->failure[0]; k++) {
        outcome other = {0};
        run_seed(row, row->study.seed + k, &other);
        take_worse(ret, &other);
    }
    ret->done = true;
}

/* Which of |limits| a row misses; NULL for none. */
static const char *missed(const sim_row *row, const sim_judged *j, const sim_limits *limits)
{
    double ratio = row->special == SIM_APART ? j->ratio_last : j->ratio;
    if (limits->ratio_most > 0 && ratio > limits->ratio_most)
        return "it takes too long";
    if (limits->goal_most > 0 && j->goal > limits->goal_most)
        return "it takes too long for its distance";
    if (limits->first_most > 0 && j->first > limits->first_most)
        return "the first op takes too long";
    if (limits->feedback_most > 0 && j->feedback > limits->feedback_most)
        return "it tells too much";
    if (limits->lost_most > 0 && j->lost_own > limits->lost_most)
        return "it makes the network lose too much";
    if (limits->healthy_most > 0 && j->healthy > limits->healthy_most)
        return "the slow host holds up the others";
    if (limits->share_most > 0 && (j->share < limits->share_least || j->share > limits->share_most))
        return "it takes another share than its own";
    return NULL;
}

/* Why a row fails; NULL if it does not. |ret_known|: it misses what is asked, and that is known. */
static const char *fault(const sim_row *row, const outcome *o, bool *ret_known)
{
    const sim_judged *j = &o->judged;
    *ret_known = false;
    if (!o->done)
        return "the simulator ended before the world did";
    if (o->failure[0])
        return o->failure;
    if (j->missing)
        return "bytes are missing";
    if (j->worst > STOOD_STILL * (row->seeds ? j->bound + 2 * j->round_trip : j->bound) + STILL_LEAST)
        return "an op stood still";
    const char *why = missed(row, j, &row->asked);
    if (!why || !row->shortfall)
        return why;
    *ret_known = true;
    return missed(row, j, &row->known);
}

static void print_head(void)
{
    printf("%3s %5s %7s %5s %6s %6s %-10s %9s %9s %6s %5s  %6s %5s %6s %5s %5s  %s\n", "row", "hosts", "Mbit/s", "us",
           "queue", "bucket", "special", "bound ms", "op ms", "ratio", "most", "lost %", "most", "by net", "again",
           "words", "idle % engine/asleep/cpu/blocked");
}

static void print_size(uint64_t bytes)
{
    char text[16];
    snprintf(text, sizeof text, bytes >> 20 ? "%" PRIu64 "M" : "%" PRIu64 "K", bytes >> 20 ? bytes >> 20 : bytes >> 10);
    printf(" %6s", text);
}

static void print_most(int width, double most, double times)
{
    if (most > 0)
        printf(" %*.2f", width, most * times);
    else
        printf(" %*s", width, "-");
}

static void print_command(const matrix *m, const sim_row *row)
{
    char command[1024];
    sim_study_command(&row->study, command, sizeof command);
    printf("    %s --study %s\n", m->self, command);
}

static void print_known(const sim_row *row)
{
    const sim_limits *k = &row->known;
    printf("    known: %s; bounds:", row->shortfall);
    if (k->ratio_most > 0)
        printf(" ratio %.3f", k->ratio_most);
    if (k->goal_most > 0)
        printf(" goal %.3f", k->goal_most);
    if (k->first_most > 0)
        printf(" first %.1f", k->first_most);
    if (k->lost_most > 0)
        printf(" lost %.3f %%", k->lost_most * 100);
    if (k->healthy_most > 0)
        printf(" healthy %.3f", k->healthy_most);
    if (k->share_most > 0)
        printf(" share %.3f to %.3f", k->share_least, k->share_most);
    printf("\n");
}

static void print_row(const matrix *m, uint32_t i)
{
    const sim_row *row = &m->row[i];
    const sim_study *s = &row->study;
    const outcome *o = &m->out[i];
    const sim_judged *j = &o->judged;
    bool known;
    const char *why = fault(row, o, &known);
    printf("%3u %5" PRIu64 " %7" PRIu64 " %5" PRIu64, i + 1, s->hosts, s->rate_mbit, s->delay_us);
    print_size(s->queue_bytes);
    print_size(s->bytes);
    printf(" %-10s %9.3f %9.3f %6.3f", special_name(row), j->bound / 1e6, j->op / 1e6,
           row->special == SIM_APART ? j->ratio_last : j->ratio);
    print_most(5, row->asked.ratio_most, 1);
    printf("  %6.3f", j->lost_own * 100);
    print_most(5, row->asked.lost_most, 100);
    printf(" %6.2f %5.3f %5.3f ", (j->lost - j->lost_own) * 100, j->again, j->feedback);
    static const enum sim_idle shown[] = {SIM_IDLE_ENGINE, SIM_IDLE_ASLEEP, SIM_IDLE_CPU, SIM_IDLE_BLOCKED};
    for (unsigned k = 0; k < sizeof shown / sizeof shown[0]; k++)
        printf("%s%.1f", k ? "/" : " ", j->op > 0 ? j->idle[shown[k]] / j->op * 100 : 0);
    if (row->asked.healthy_most > 0)
        printf("  healthy %.3f of %.2f", j->healthy, row->asked.healthy_most);
    if (row->seeds)
        printf("  goal %.3f of %.2f, first %.1f", j->goal, row->asked.goal_most, j->first);
    if (row->asked.share_most > 0)
        printf("  share %.3f of %.2f to %.2f", j->share, row->asked.share_least, row->asked.share_most);
    printf("  %s\n", why                                                                        ? "FAIL"
                     : known                                                                    ? "known"
                     : row->asked.ratio_most + row->asked.goal_most + row->asked.share_most > 0 ? "PASS"
                                                                                                : "pass");
    if (why)
        printf("    %s (the longest op took %.3f ms)\n", why, j->worst / 1e6);
    if (known)
        print_known(row);
    if (why || m->only)
        print_command(m, row);
    fflush(stdout);
}

static void start(const matrix *m, uint32_t i, pid_t *ret)
{
    fflush(stdout);
    *ret = fork();
    if (*ret < 0) {
        perror("sim: fork");
        exit(2);
    }
    if (*ret > 0)
        return;
    alarm(ROW_SECONDS_MAX);
    run_row(&m->row[i], &m->out[i]);
    _exit(0);
}

/* All rows, the next whenever a worker ends; printed in order. Returns how many fail. */
static uint32_t run_all(const matrix *m)
{
    pid_t pid[SIM_ROWS_MAX] = {0};
    bool over[SIM_ROWS_MAX] = {false};
    uint32_t begin = m->only ? m->only - 1 : 0, end = m->only ? m->only : m->rows;
    uint32_t next = begin, shown = begin, running = 0, failed = 0, shortfalls = 0;
    while (shown < end) {
        for (; next < end && running < m->jobs; running++, next++)
            start(m, next, &pid[next]);
        pid_t ended = wait(NULL);
        for (uint32_t i = begin; i < next; i++)
            if (pid[i] == ended && !over[i]) {
                over[i] = true;
                running--;
            }
        for (; shown < end && over[shown]; shown++) {
            bool known;
            bool fails = fault(&m->row[shown], &m->out[shown], &known) != NULL;
            print_row(m, shown);
            failed += fails;
            shortfalls += known && !fails;
        }
    }
    printf("matrix: %u rows, %u known to miss what is asked, %u FAIL\n", end - begin, shortfalls, failed);
    return failed;
}

static int list_rows(const matrix *m)
{
    for (uint32_t i = 0; i < m->rows; i++) {
        const sim_row *row = &m->row[i];
        printf("row %u, %s: ratio %.2f, lost %.3f, healthy %.2f\n", i + 1, special_name(row), row->asked.ratio_most,
               row->asked.lost_most, row->asked.healthy_most);
        print_command(m, row);
    }
    return 0;
}

static int wrong_use(const char *argument)
{
    fprintf(stderr, "matrix: %s is not one of --quick, --far, --list, --jobs 1 to %d, --row 1 to the last, --seed S\n",
            argument, JOBS_MAX);
    return 2;
}

int sim_matrix(const char *self, int argc, char **argv)
{
    static matrix m;
    m.self = self;
    m.jobs = 1;
    for (int i = 0; i < argc; i++) {
        if (strcmp(argv[i], "--quick") == 0) {
            m.quick = true;
            continue;
        }
        if (strcmp(argv[i], "--far") == 0) {
            m.far = true;
            continue;
        }
        if (strcmp(argv[i], "--list") == 0) {
            m.list = true;
            continue;
        }
        char *rest = NULL;
        uint64_t n = i + 1 < argc ? strtoull(argv[i + 1], &rest, 10) : 0;
        if (!rest || *rest || rest == argv[i + 1])
            return wrong_use(argv[i]);
        if (strcmp(argv[i], "--jobs") == 0 && n >= 1 && n <= JOBS_MAX)
            m.jobs = (uint32_t)n;
        else if (strcmp(argv[i], "--row") == 0 && n >= 1 && n <= SIM_ROWS_MAX)
            m.only = (uint32_t)n;
        else if (strcmp(argv[i], "--seed") == 0)
            m.seed = n;
        else
            return wrong_use(argv[i]);
        i++;
    }
    m.rows = m.far ? sim_rows_far(m.quick, m.row) : sim_rows(m.quick, m.row);
    if (m.only > m.rows)
        return wrong_use("--row");
    for (uint32_t i = 0; i < m.rows; i++)
        m.row[i].study.seed = m.seed;
    if (m.list)
        return list_rows(&m);
    m.out = mmap(NULL, sizeof *m.out * SIM_ROWS_MAX, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (m.out == MAP_FAILED) {
        perror("sim: mmap");
        return 2;
    }
    print_head();
    uint32_t failed = run_all(&m);
    munmap(m.out, sizeof *m.out * SIM_ROWS_MAX);
    return failed != 0;
}
