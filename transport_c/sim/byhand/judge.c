/* SPDX-License-Identifier: Apache-2.0
 *
 * The judge: what a world by hand took and lost, against what the wire needs.
 *
 * The bound is what the busiest link must carry: each host sends and receives 2 (N-1)/N of the bucket, 1440 bytes of it
 * in a packet that takes 1514 on the wire; or what the cap of a host lets go, which counts 1500. On top of that an op
 * may take two round trips, one for each stage, as somebody has to say what may come; a host that sleeps wakes late,
 * which is a part of the round trip as hosts see it.
 */
#include "sim/byhand/study.h"

#include <stdlib.h>

/* Bytes of a packet, and on the wire, as the figures are defined; and as the cap of a host counts them, which leaves
 * out what Ethernet adds. */
enum { PAYLOAD = 1440, FRAME = 1514, CAPPED = FRAME - 14 };

const char *const sim_idle_name[SIM_IDLES] = {"no op", "asleep", "cpu", "engine", "blocked"};

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, uint32_t n)
{
    qsort(values, n, sizeof *values, by_size);
    return n ? (values[n / 2] + values[(n - 1) / 2]) / 2 : 0;
}

static ut_ns last_call(const sim_job *job, uint32_t op)
{
    ut_ns last = 0;
    for (uint32_t h = 0; h < job->plan->hosts; h++)
        last = UT_MAX2(last, job->outcome[op][h].called);
    return last;
}

static double part(uint64_t of, uint64_t all)
{
    return (double)of / (double)UT_MAX2(all, (uint64_t)1);
}

/* The slowest host's medians of times, and the mean of wake-ups. */
static void judge_ops(const sim_world *w, const sim_study *s, sim_judged *ret)
{
    const sim_job *job = &w->job[0];
    uint64_t wakeups = 0, ops = 0;
    double first = 0;
    for (uint32_t h = 0; h < job->plan->hosts; h++) {
        double own[SIM_OPS], since_last[SIM_OPS];
        uint32_t n = 0;
        for (uint32_t op = 0; op < job->plan->ops; op++) {
            const sim_outcome *o = &job->outcome[op][h];
            if (!o->known)
                continue;
            ret->worst = UT_MAX2(ret->worst, (double)o->receipt.elapsed_ns);
            first = op == 0 ? UT_MAX2(first, (double)o->receipt.elapsed_ns) : first;
            if (op < s->warm)
                continue;
            own[n] = (double)o->receipt.elapsed_ns;
            since_last[n++] = (double)(o->ended - UT_MIN2(o->ended, last_call(job, op)));
            ret->missing += o->receipt.bytes_missing;
            wakeups += o->wakeups;
        }
        ops += n;
        ret->op = UT_MAX2(ret->op, median(own, n));
        ret->op_last = UT_MAX2(ret->op_last, median(since_last, n));
    }
    ret->wakeups = part(wakeups, ops);
    ret->goal = (s->apart_us ? ret->op_last : ret->op) / (ret->bound + 2 * ret->round_trip);
    ret->first = (first - ret->op) / ret->round_trip;
}

/* With one slow link: the median time from the last call until the other hosts have each other's shards. */
static double healthy_time(const sim_world *w, const sim_study *s)
{
    double times[SIM_OPS];
    uint32_t n = 0;
    for (uint32_t op = (uint32_t)s->warm; op < w->plan.job[0].ops; op++) {
        ut_ns called = last_call(&w->job[0], op);
        times[n++] = (double)(w->healthy[op] - UT_MIN2(w->healthy[op], called));
    }
    return median(times, n);
}

/* Bytes that the busiest link of the core carries in each direction. */
static double core_crossing(const sim_study *s)
{
    double most = 0, hosts = (double)s->hosts;
    for (uint64_t g = 0, first = 0; g < s->groups; g++) {
        uint64_t next = first;
        while (next < s->hosts && next * s->groups / s->hosts == g)
            next++;
        double inside = (double)(next - first);
        most = UT_MAX2(most, 2 * inside * (hosts - inside) / hosts * (double)s->bytes);
        first = next;
    }
    return most;
}

/* What job 0 has done of all ops when the first job is through, ops under way by their time. */
static double share_of_ops(const sim_world *w)
{
    ut_ns end[SIM_JOBS], first = UT_NEVER;
    double done[SIM_JOBS] = {0}, all = 0;
    for (uint32_t j = 0; j < w->plan.jobs; j++) {
        end[j] = w->job[j].outcome[w->plan.job[j].ops - 1][0].ended;
        first = UT_MIN2(first, end[j]);
    }
    for (uint32_t j = 0; j < w->plan.jobs; j++) {
        for (uint32_t op = 0; op < w->plan.job[j].ops; op++) {
            const sim_outcome *o = &w->job[j].outcome[op][0];
            ut_ns until = UT_MIN2(o->ended, first), lasted = UT_MAX2(o->ended - o->called, (ut_ns)1);
            done[j] += o->called < until ? (double)(until - o->called) / (double)lasted : 0;
        }
        all += done[j];
    }
    return all > 0 ? done[0] / all : 0;
}

sim_judged sim_judge(const sim_world *w, const sim_study *s)
{
    sim_judged j = {0};
    const sim_net_books *books = &w->books;
    uint64_t data = 0, feedback = 0, turns = 0, grants = 0, told_bytes = 0;
    double hosts = (double)s->hosts, rate = (double)w->plan.rate_up / (double)UT_MAX2(s->slow_part, (uint64_t)1);
    double crossing = 2 * (hosts - 1) / hosts * (double)s->bytes; /* of one host's link, in each direction */
    j.bound = UT_MAX2(crossing / rate, core_crossing(s) / (double)w->plan.rate_core) * FRAME / PAYLOAD * UT_SECOND *
              (double)s->jobs;
    if (w->plan.host_rate) {
        const double capped = crossing / (double)w->plan.host_rate * CAPPED / PAYLOAD * UT_SECOND * (double)s->jobs;
        j.bound = UT_MAX2(j.bound, capped);
    }
    j.share = s->rival ? part(w->rival.ours, w->rival.ours + w->rival.bytes) : s->jobs > 1 ? share_of_ops(w) : 1;
    j.round_trip = 2.0 * (double)w->plan.delay_max + 4.0 * FRAME / rate * UT_SECOND + (double)w->plan.wake_max;
    judge_ops(w, s, &j);
    j.ratio = (j.op - 2 * j.round_trip) / j.bound;
    j.ratio_last = (j.op_last - 2 * j.round_trip) / j.bound;
    if (s->slow_part > 1)
        j.healthy = (healthy_time(w, s) - 2 * j.round_trip) / (j.bound / 2 / (double)s->slow_part);
    for (uint32_t h = 0; h < w->plan.hosts; h++) {
        data += w->host[h].sent_data;
        feedback += w->host[h].sent_feedback;
        turns += w->host[h].turns;
        told_bytes += w->host[h].told_bytes;
        ut_stats stats;
        ut_engine_stats(w->host[h].engine, &stats);
        grants += stats.grants_sent;
        j.parity += (double)stats.parity_sent;
        j.rebuilt += (double)stats.data_rebuilt;
        for (unsigned k = 0; k < SIM_IDLES; k++)
            j.idle[k] += (double)w->host[h].idle[k] / hosts / (double)s->ops;
    }
    j.lost = part(books->lost.packets + books->lost_host.packets, books->sent.packets);
    j.lost_own = part(books->overrun.packets + books->lost_host.packets, books->sent.packets);
    j.feedback = part(feedback, data);
    j.turns = (double)turns / hosts / (double)s->ops;
    j.told = (double)feedback / hosts / (double)s->ops;
    j.grants = (double)grants / hosts / (double)s->ops;
    j.told_bytes = (double)told_bytes / hosts / (double)s->ops;
    j.again = (double)data / (crossing * hosts * (double)(s->ops * s->jobs) / PAYLOAD);
    return j;
}
