/* SPDX-License-Identifier: Apache-2.0
 *
 * Up to CREW_HOSTS whole engines that share a partial job, each with up to CREW_PLACES trainers that give what they
 * please, over a wire that on request loses packets or whole hosts. Contributions are powers of two, so that a sum says
 * who is in it.
 */
#ifndef UT_TEST_CREW_H
#define UT_TEST_CREW_H

#include "core/base/bits.h"
#include "wired.h"

#ifndef CREW_HOSTS
#define CREW_HOSTS 8
#endif

#ifndef CREW_PLACES
#define CREW_PLACES 2
#endif

enum {
    MOST = CREW_HOSTS,
    PLACES = CREW_PLACES,
    ELEMENTS = 1500,
    BUFFER = ELEMENTS * 8,
    BUFFERS = 5,
    ARENA = BUFFERS * BUFFER
};
enum { RESULT = BUFFERS - 1 }; /* the buffer that answers go to */

static struct trainer {
    ut_submission_ring submissions;
    ut_completion_ring completions;
    uint32_t session;
    uint64_t next;   /* number of its next submission */
    uint32_t buffer; /* the one it gives from next, of RESULT */
    uint8_t arena[ARENA] __attribute__((aligned(64)));
} trainers[MOST][PLACES];
static struct host {
    ut_engine *engine;
} hosts[MOST];
static uint32_t n, ranks_of[MOST];
static uint32_t silent; /* bit per host: nothing comes from it or reaches it */
static bool (*drop)(uint32_t from, uint32_t to, uint32_t port, const uint8_t *packet);
static uint32_t elements = ELEMENTS;

static void attach(uint32_t h, uint32_t place)
{
    struct trainer *t = &trainers[h][place];
    memset(t, 0, sizeof *t);
    ut_session_memory m = {&t->submissions, &t->completions, t->arena, ARENA, place, 0};
    CHECK_EQ(ut_engine_session_add(hosts[h].engine, 0, &m, 0, &t->session), UT_OK);
}

static uint32_t strangers[2]; /* two hosts that connect_all leaves for `meet`; none if they are the same */

static bool are_strangers(uint32_t h, uint32_t p)
{
    return (h == strangers[0] && p == strangers[1]) || (h == strangers[1] && p == strangers[0]);
}

__attribute__((unused)) static void meet(void)
{
    reach(strangers[0], strangers[1]);
    reach(strangers[1], strangers[0]);
    strangers[0] = strangers[1] = 0;
}

__attribute__((unused)) static void connect_all(void)
{
    listen_all();
    for (uint32_t h = 0; h < n; h++)
        for (uint32_t p = 0; p < n; p++)
            if (p != h && !are_strangers(h, p))
                reach(h, p);
}

/* |hosts_| hosts, |places| trainers on each, but none yet on those of |without| (bit per host). */
static void begin_without(uint32_t without, uint32_t hosts_, uint32_t places, ut_job_options options)
{
    n = hosts_;
    now = 7 * UT_SECOND;
    silent = 0;
    drop = NULL;
    elements = ELEMENTS;
    for (uint32_t h = 0; h < n; h++) {
        ut_job_config job = {.hosts = n,
                             .self = h,
                             .local_ranks = places,
                             .world = n * places,
                             .packet_bytes = 1472,
                             .bucket_bytes_max = BUFFER,
                             .options = options};
        ranks_of[h] = places;
        hosts[h].engine = plug_in(&job);
        for (uint32_t p = 0; p < places && !(without >> h & 1); p++)
            attach(h, p);
    }
    connect_all();
}

__attribute__((unused)) static void begin(uint32_t hosts_, uint32_t places, ut_job_options options)
{
    begin_without(0, hosts_, places, options);
}

__attribute__((unused)) static void end(void)
{
    unplug_all();
}

static void carry(uint32_t from, const ut_burst *b, uint8_t *packet, size_t len)
{
    uint32_t to = b->to.bytes[0];
    bool lost = (silent >> from | silent >> to) & 1;
    if (!lost && !(drop && drop(from, to, b->port, packet)))
        arrive(to, b->port, packet, len);
}

__attribute__((unused)) static void run(ut_ns time)
{
    run_until(now + time);
}

/* What a trainer would submit: an average of float64 that has a second. */
__attribute__((unused)) static ut_submission words(uint64_t wanted, unsigned flags)
{
    return (ut_submission){.dst = RESULT * BUFFER,
                           .count = elements,
                           .deadline_ns = now + UT_SECOND,
                           .dtype = UT_FLOAT64,
                           .redop = UT_AVG,
                           .mode = UT_BOUNDED,
                           .flags = (uint8_t)flags,
                           .wanted = wanted};
}

static uint64_t submit(uint32_t h, uint32_t place, ut_submission s)
{
    struct trainer *t = &trainers[h][place];
    s.op_seq = t->next++;
    CHECK_EQ(ut_ring_submit(&t->submissions, &t->completions, &s), UT_OK);
    ut_engine_submissions(hosts[h].engine, t->session, now);
    return s.op_seq;
}

/* Gives |value|, in all elements, from a buffer of its own. */
__attribute__((unused)) static uint64_t give_as(uint32_t h, uint32_t place, double value, ut_submission s)
{
    struct trainer *t = &trainers[h][place];
    double *at = (double *)(void *)(t->arena + t->buffer * BUFFER);
    for (uint32_t i = 0; i < elements; i++)
        at[i] = value;
    s.flags |= UT_SUBMIT_GIVE;
    s.src = t->buffer * BUFFER;
    t->buffer = (t->buffer + 1) % RESULT;
    return submit(h, place, s);
}

__attribute__((unused)) static uint64_t give(uint32_t h, double value, uint64_t wanted, unsigned flags)
{
    return give_as(h, 0, value, words(wanted, flags));
}

__attribute__((unused)) static uint64_t ask(uint32_t h, uint64_t wanted, unsigned flags)
{
    return submit(h, 0, words(wanted, flags));
}

__attribute__((unused)) static ut_receipt receipt_at(uint32_t h, uint32_t place)
{
    struct trainer *t = &trainers[h][place];
    ut_receipt r = {0};
    CHECK_MSG(ut_ring_take_completion(&t->submissions, &t->completions, &r) == 1, "host %u has no receipt", h);
    CHECK_EQ(r.bytes_expected, r.bytes_used + r.bytes_redundant + r.bytes_missing);
    return r;
}

__attribute__((unused)) static ut_receipt receipt(uint32_t h)
{
    return receipt_at(h, 0);
}

__attribute__((unused)) static bool has_receipt(uint32_t h)
{
    const struct trainer *t = &trainers[h][0];
    return t->completions.head != t->submissions.completions_taken;
}

/* All elements of what the trainer got. */
#define CHECK_RESULT(h, value) check_result(h, value, __LINE__)
__attribute__((unused)) static void check_result(uint32_t h, double value, int line)
{
    const double *at = (const double *)(const void *)(trainers[h][0].arena + RESULT * BUFFER);
    for (uint32_t i = 0; i < elements; i++)
        if (!check_that(at[i] == value, __FILE__, line, "host %u: element %u: %.17g, not %.17g", h, i, at[i], value))
            return;
}

/* The newest op that ended on |h|. */
__attribute__((unused)) static ut_receipt newest(uint32_t h)
{
    static ut_receipt r;
    memset(&r, 0, sizeof r);
    CHECK_EQ(ut_engine_receipt(hosts[h].engine, 0, 0, &r), UT_OK);
    return r;
}

/* What daemons do when hosts have died: all others are handed an epoch without the |silent| ones. */
__attribute__((unused)) static void part_from_the_silent(void)
{
    static uint64_t number;
    ut_epoch e = {.number = ++number, .members = ut_bits_below(n) & ~(uint64_t)silent};
    e.id = 0x510000 + e.number;
    e.owners = e.members;
    for (uint32_t h = 0; h < n; h++) {
        e.world = ut_engine_world(hosts[h].engine, 0);
        if (!(silent >> h & 1))
            CHECK_EQ(ut_engine_epoch(hosts[h].engine, 0, &e, now), UT_OK);
    }
}

#endif
