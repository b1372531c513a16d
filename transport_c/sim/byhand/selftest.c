/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests of the simulator's own parts: a judge that cannot be wrong unnoticed. Random numbers, the heap, fingerprints
 * (sets of ranks are read back, and each kind of damage is seen), and the network alone, with no engine.
 */
#include "sim/byhand/byhand.h"
#include "sim/oracles/oracles.h"
#include "sim/sparse/sparse.h"

#include "kernels/block.h"

#include <stdlib.h>

static int failures;

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            printf("selftest: %s:%d: %s\n", __func__, __LINE__, #condition);                                           \
            failures++;                                                                                                \
        }                                                                                                              \
    } while (0)

static void rng__vectors_and_ranges(void)
{
    CHECK(sim_mix(0) == UINT64_C(0xe220a8397b1dcdaf)); /* splitmix64's published first output for 0 */
    sim_rng rng = sim_rng_for(1, 2), same = sim_rng_for(1, 2), other = sim_rng_for(1, 3);
    CHECK(sim_next(&rng) == sim_next(&same) && sim_next(&rng) != sim_next(&other));
    uint32_t seen[7] = {0}, chances = 0;
    for (int i = 0; i < 70000; i++) {
        seen[sim_below(&rng, 7)]++;
        chances += sim_chance(&rng, 250000);
        uint64_t x = sim_octaves(&rng, 3, 1000), y = sim_between(&rng, 5, 6);
        CHECK(x >= 3 && x <= 1000 && y >= 5 && y <= 6);
    }
    for (int i = 0; i < 7; i++)
        CHECK(seen[i] > 9500 && seen[i] < 10500);
    CHECK(chances > 17000 && chances < 18000);
    CHECK(!sim_chance(&rng, 0) && sim_chance(&rng, 1000000) && sim_below(&rng, 0) == 0);
}

static sim_world *world_of(sim_plan *plan)
{
    sim_world *w = sim_alloc(sizeof *w);
    sim_world_init(w, 7, plan, false);
    return w;
}

static void heap__gives_time_order_and_keeps_ties(void)
{
    sim_plan *plan = sim_alloc(sizeof *plan);
    sim_world *w = world_of(plan);
    for (uint32_t i = 0; i < 3000; i++)
        sim_push(w, sim_below(&w->rng_net, 50), SIM_EV_END, i, 0, 0, 0, NULL);
    sim_event last = {0}, e;
    uint32_t n = 0;
    for (; sim_pop(w, &e); n++, last = e)
        CHECK(n == 0 || e.at > last.at || (e.at == last.at && e.a > last.a));
    CHECK(n == 3000 && !sim_pop(w, &e));
    sim_world_free(w);
    free(w);
    free(plan);
}

static uint64_t read_back(const sim_code *code, uint64_t from, uint64_t to, const void *values, const char **reason)
{
    sim_held held;
    sim_wrong wrong = {0, ""};
    bool good = sim_code_read(code, from, to, values, &held, &wrong);
    *reason = wrong.reason;
    return good && !held.unsure ? held.ranks : 0;
}

enum { ELEMENTS = 300 };

/* Every set of few ranks has its own bits, in every unit of every dtype, and each element is read back as itself. */
static void code__reads_every_set_of_few(void)
{
    for (unsigned dtype = UT_FLOAT32; dtype <= UT_INT64; dtype++)
        for (unsigned redop = UT_SUM; redop <= UT_AVG; redop++)
            for (uint32_t ranks = 1; ranks <= 10; ranks++) {
                sim_code code = {.seed = 11, .job = 1, .ranks = ranks, .op_seq = 5, .dtype = (uint8_t)dtype};
                code.redop = (uint8_t)redop;
                for (uint64_t set = 1; set <= sim_first(ranks) && sim_code_groups(&code) == 1; set++) {
                    uint8_t values[8 * ELEMENTS];
                    const char *reason;
                    uint64_t count = ranks > 7 ? 6 : 60;
                    sim_code_make(&code, 0, count, set, values);
                    for (uint64_t i = 0; i < count; i++)
                        CHECK(read_back(&code, i, i + 1, values, &reason) == set);
                }
            }
}

/* Of many ranks, up to as many as a job may have, a slot tells who is in it, and each of its elements is looked at. */
static void code__reads_slots_of_many(void)
{
    sim_rng rng = sim_rng_for(1, 77);
    for (unsigned dtype = UT_FLOAT32; dtype <= UT_INT64; dtype++)
        for (unsigned redop = UT_SUM; redop <= UT_AVG; redop++)
            for (uint32_t tries = 0; tries < 400; tries++) {
                uint32_t ranks = 2 + (uint32_t)sim_below(&rng, SIM_RANKS - 1);
                sim_code code = {.seed = sim_next(&rng), .ranks = ranks, .op_seq = tries, .dtype = (uint8_t)dtype};
                code.redop = (uint8_t)redop;
                code.narrow = dtype == UT_FLOAT32 && tries % 4 == 0;
                uint64_t from = sim_below(&rng, 100), to = from + 1 + sim_below(&rng, 150);
                uint64_t lost = sim_next(&rng) & sim_next(&rng), set = sim_first(ranks) & (tries % 3 ? ~lost : lost);
                uint8_t values[8 * ELEMENTS], other[8 * ELEMENTS];
                size_t bytes = ut_dtype_bytes(dtype);
                if (!set)
                    continue;
                sim_code_make(&code, from, to, set, values + from * bytes);
                sim_held held;
                sim_wrong wrong;
                CHECK(sim_code_read(&code, from, to, values, &held, &wrong));
                CHECK(!(held.ranks & ~set) && !(set & ~(held.ranks | held.unsure)));
                CHECK(held.unsure == 0 || to - from < sim_code_groups(&code) || redop == UT_AVG);
                CHECK(sim_code_agree(&code, from, to, set, values) == to);
                /* One element of a slot that lacks or has a rank more is seen, if it tells of that rank. */
                uint64_t at = from + sim_below(&rng, to - from);
                uint64_t wrong_set = set ^ sim_bit((uint32_t)sim_below(&rng, ranks));
                if (!wrong_set)
                    continue;
                sim_code_make(&code, at, at + 1, wrong_set, other);
                bool differs = memcmp(other, values + at * bytes, bytes) != 0;
                memcpy(values + at * bytes, other, bytes);
                CHECK((sim_code_agree(&code, from, to, set, values) == at) == differs);
                bool again = to - from >= 2 * sim_code_groups(&code);
                CHECK(!differs || !again || !sim_code_read(&code, from, to, values, &held, &wrong));
            }
}

/* The sum of what the ranks write is what is expected of them: fill and make agree, for all dtypes that C can add. */
static void code__fill_adds_up(void)
{
    enum { RANKS = 64 };
    static double f64[RANKS][50];
    static float f32[RANKS][50];
    static int32_t i32[RANKS][50];
    uint64_t set = UINT64_C(0xf0f1234567890321);
    sim_code code = {.seed = 3, .ranks = RANKS, .op_seq = 9, .redop = UT_SUM};
    for (uint32_t r = 0; r < RANKS; r++) {
        code.dtype = UT_FLOAT64;
        sim_code_fill(&code, r, f64[r], 50);
        code.dtype = UT_FLOAT32;
        sim_code_fill(&code, r, f32[r], 50);
        code.dtype = UT_INT32;
        sim_code_fill(&code, r, i32[r], 50);
    }
    for (uint32_t i = 0; i < 50; i++) {
        double sum = 0, expected;
        float sum32 = 0, expected32;
        int32_t whole = 0, expected_whole;
        for (uint32_t r = 0; r < RANKS; r++) {
            sum += set >> r & 1 ? f64[r][i] : 0;
            sum32 += set >> r & 1 ? f32[r][i] : 0;
            whole += set >> r & 1 ? i32[r][i] : 0;
        }
        code.dtype = UT_FLOAT64;
        sim_code_make(&code, i, i + 1, set, &expected);
        code.dtype = UT_FLOAT32;
        sim_code_make(&code, i, i + 1, set, &expected32);
        code.dtype = UT_INT32;
        sim_code_make(&code, i, i + 1, set, &expected_whole);
        CHECK(sum == expected && sum32 == expected32 && whole == expected_whole);
    }
}

static void code__sees_damage(void)
{
    sim_code code = {.seed = 3, .ranks = 5, .op_seq = 9, .dtype = UT_INT64, .redop = UT_SUM}, earlier = code;
    earlier.op_seq = 8;
    int64_t a[200], b[200], old[200], bad[200];
    const char *reason = "";
    unsigned stale = 0, moved = 0;
    sim_code_fill(&code, 0, a, 200);
    sim_code_fill(&code, 3, b, 200);
    sim_code_fill(&earlier, 3, old, 200);
    for (unsigned i = 0; i < 200; i++) {
        bad[i] = a[i] + b[i];
        CHECK(read_back(&code, i, i + 1, bad, &reason) == (1 | 8));
        bad[i] = a[i] + b[i] + b[i];
        CHECK(read_back(&code, i, i + 1, bad, &reason) == 0 && strstr(reason, "more than once"));
        bad[i] = a[i] + 64 * b[i];
        CHECK(read_back(&code, i, i + 1, bad, &reason) == 0);
        bad[i] = 0;
        CHECK(read_back(&code, i, i + 1, bad, &reason) == 0);
        bad[i] = a[i] + old[i];
        stale += read_back(&code, i, i + 1, bad, &reason) == 0;
        bad[i] = a[i] + b[(i + 8) % 200];
        moved += read_back(&code, i, i + 1, bad, &reason) == 0;
    }
    CHECK(stale > 180 && moved > 180); /* two elements share a unit now and then; a packet never does in all of them */
}

/* Runs the network's own events until none is left; returns what arrived at host 1. */
static unsigned drain(sim_world *w, ut_ns *last)
{
    sim_event e;
    while (sim_pop(w, &e)) {
        w->now = e.at;
        if (e.kind == SIM_EV_SWITCH)
            sim_net_switch(w, e.p);
        else if (e.kind == SIM_EV_ARRIVE)
            sim_net_arrive(w, e.p);
    }
    unsigned n = 0;
    *last = w->now;
    for (sim_packet *packet = w->host[1].queue[0]; packet; packet = packet->next)
        n++;
    return n;
}

static void net_plan(sim_plan *p)
{
    memset(p, 0, sizeof *p);
    p->hosts = 2;
    p->rate_up = p->rate_down = 125000000;
    p->queue_up = p->queue_down = 1 << 20;
    p->delay_min = p->delay_max = 100 * UT_US;
    p->mark_above = UINT64_MAX;
    p->receive_real = p->receive_buffer = 64 << 20;
    p->packet_bytes = 1472;
}

static sim_world *net_world(sim_plan *plan)
{
    sim_world *w = world_of(plan);
    for (unsigned h = 0; h < 2; h++) {
        w->host[h].alive = true;
        w->host[h].life = 1;
    }
    sim_net_start(w);
    return w;
}

static void send_many(sim_world *w, unsigned n, uint32_t len)
{
    for (unsigned i = 0; i < n; i++)
        sim_net_send(w, sim_packet_make(w, 0, 1, UT_PORT_DATA, len));
}

static void net__rate_and_delay(void)
{
    sim_plan *plan = sim_alloc(sizeof *plan);
    net_plan(plan);
    sim_world *w = net_world(plan);
    ut_ns last;
    send_many(w, 100, 1184); /* 1250 bytes on the wire: 10 us each */
    CHECK(drain(w, &last) == 100);
    CHECK(last == (100 * 10 + 100 + 10) * UT_US);
    CHECK(w->books.sent.packets == 100 && w->books.lost.packets == 0);
    sim_world_free(w);
    free(w);
    free(plan);
}

static void net__queue_loss_and_books(void)
{
    sim_plan *plan = sim_alloc(sizeof *plan);
    net_plan(plan);
    plan->queue_up = 100 * 1250;
    plan->loss = 100000;
    plan->duplicate = 200000;
    plan->corrupt = 100000;
    plan->resize = 100000;
    plan->reorder = 100000;
    plan->reorder_by = UT_MS;
    sim_world *w = net_world(plan);
    ut_ns last;
    for (unsigned i = 0; i < 20; i++) {
        send_many(w, 150, 1184);
        drain(w, &last);
    }
    const sim_net_books *b = &w->books;
    CHECK(w->cover[SIM_link_queue_full] == 20 * 50);
    CHECK(w->cover[SIM_loss] > 150 && w->cover[SIM_loss] < 250);
    CHECK(w->cover[SIM_duplicate] > 250 && w->cover[SIM_corrupt] > 100 && w->cover[SIM_truncate] > 50 &&
          w->cover[SIM_extend] > 30);
    w->host[0].alive = w->host[1].alive = false; /* there are no engines to ask: only the network's books */
    if (setjmp(w->failed) == 0)
        sim_account_world(w);
    CHECK(w->failure[0] == 0);
    CHECK(b->sent.packets == 3000);
    sim_world_free(w);
    free(w);
    free(plan);
}

/* What |ranks| make of an op: their entries added up, and divided by |n| where it is an average. */
static void add_entries(const sim_entries *e, uint64_t ranks, uint32_t n, float *out)
{
    static const uint8_t dtype[] = {UT_FLOAT32, UT_FLOAT16, UT_BFLOAT16, UT_FLOAT16};
    uint8_t *given = sim_room(e->units * 4 * (1 + e->group)), there[8];
    memset(out, 0, e->units * e->group * sizeof *out);
    for (; ranks; ranks &= ranks - 1) {
        uint64_t entries = sim_entries_fill(e, (uint32_t)__builtin_ctzll(ranks), given);
        for (uint64_t i = 0; i < entries * e->group; i++) {
            uint32_t unit;
            float x;
            memcpy(&unit, given + i / e->group * 4, 4);
            memcpy(&x, given + 4 * (entries + i), 4);
            out[(uint64_t)unit * e->group + i % e->group] += x;
        }
    }
    for (uint64_t i = 0; i < e->units * e->group; i++) {
        sim_code_put(dtype[e->form], (int64_t)out[i], e->redop == UT_AVG ? n : 1, there);
        out[i] = (float)sim_code_real(dtype[e->form], there);
    }
    free(given);
}

/* Each granule of a sparse result is read back as ranks that may have made it, and so is a rank more or less, a rank
 * twice and a wrong divisor, wherever they show in it. */
static void entries__are_read_back(void)
{
    enum { HOSTS_MOST = 12, UNITS = 60 };
    sim_rng rng = sim_rng_for(1, 78);
    sim_world *w = sim_alloc(sizeof *w);
    sim_job_plan *j = &w->plan.job[0];
    uint32_t told = 0, divided = 0;
    for (uint32_t tries = 0; tries < 1200; tries++) {
        w->seed = sim_next(&rng);
        j->hosts = 2 + (uint32_t)sim_below(&rng, HOSTS_MOST - 1);
        for (uint32_t h = 0; h < j->hosts; h++)
            j->local[h] = 1;
        sim_op op = {.group = (uint16_t)sim_between(&rng, 1, 20), .form = (uint8_t)(tries % UT_VALUE_FORMS_END)};
        op.count = UNITS * op.group;
        op.redop = (uint8_t)sim_between(&rng, UT_SUM, UT_AVG);
        op.spread = (uint8_t)sim_below(&rng, SIM_SPREADS);
        op.sparse_ppm = (uint32_t)sim_octaves(&rng, 20000, 1000000);
        sim_entries e = sim_entries_of(w, 0, tries, &op);
        uint64_t set = sim_draw_set(&rng, j->hosts), more = set ^ sim_bit((uint32_t)sim_below(&rng, j->hosts));
        float right[UNITS * 20], other[UNITS * 20];
        add_entries(&e, set, sim_ones(set), right);
        add_entries(&e, set, sim_ones(set) + 1, other);
        uint64_t each = (uint64_t)ut_granule_units(e.group) * e.group;
        for (uint64_t i = 0; i < op.count; i += each) {
            sim_held held;
            sim_wrong wrong;
            uint64_t end = UT_MIN2(i + each, op.count), may;
            CHECK(sim_entries_read(&e, i, end, right, &held, &wrong));
            CHECK(!(held.ranks & ~set) && !(set & ~(held.ranks | held.unsure)));
            told += held.unsure == 0;
            bool zero = sim_all_bytes((const uint8_t *)(right + i), (end - i) * 4, 0);
            bool good = sim_entries_read(&e, i, end, other, &held, &wrong);
            may = held.ranks | held.unsure; /* of another divisor: other ranks, as far as anybody may be there unseen */
            CHECK(zero || op.redop == UT_SUM || !good || held.ranks != set || may != set);
            divided += !zero && op.redop == UT_AVG && !good;
        }
        if (more == 0)
            continue;
        add_entries(&e, more, sim_ones(more), other);
        for (uint64_t i = 0; i < op.count; i += each) { /* one element of other ranks than its neighbours */
            sim_held held, mixed;
            sim_wrong wrong;
            uint64_t end = UT_MIN2(i + each, op.count), at = i + sim_below(&rng, end - i);
            uint64_t holders = sim_entries_holders(&e, at / e.group);
            if (op.redop != UT_SUM || !(holders & (set ^ more)))
                continue;
            float was = right[at];
            right[at] = other[at];
            if (sim_entries_read(&e, i, end, right, &mixed, &wrong)) /* nobody beside it tells of that rank */
                CHECK((mixed.ranks & holders) == (more & holders));
            right[at] = was;
            CHECK(sim_entries_read(&e, i, end, right, &held, &wrong) && (held.ranks & holders) == (set & holders));
        }
    }
    CHECK(told > 1000 && divided > 500);
    free(w);
}

int sim_selftest(void)
{
    rng__vectors_and_ranges();
    heap__gives_time_order_and_keeps_ties();
    code__reads_every_set_of_few();
    code__reads_slots_of_many();
    code__fill_adds_up();
    code__sees_damage();
    entries__are_read_back();
    net__rate_and_delay();
    net__queue_loss_and_books();
    printf("selftest: %d failures\n", failures);
    return failures;
}
