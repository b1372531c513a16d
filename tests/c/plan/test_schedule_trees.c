/* SPDX-License-Identifier: Apache-2.0
 *
 * All schedules as tables: for every N from 1 to 64, each host's contribution to each chunk reaches each host exactly
 * once, by the rules that the executor follows; rounds are as many as they should be, and an order that can be kept.
 * Ring, BCube and parameter server also against tables made by hand.
 */
#include "check.h"

#include "core/plan/schedule.h"

static ut_schedule all[UT_HOSTS_MAX];

static const char *const name[] = {"", "tar", "ring", "bcube", "ps"};

static uint32_t rounds_of(unsigned algorithm, uint32_t n, uint32_t incast)
{
    uint32_t levels = 0;
    switch (algorithm) {
    case UT_RING:
        return 2 * (n - 1);
    case UT_BCUBE:
        for (uint32_t p = 2; n > 1; p++)
            for (; n % p == 0; n /= p)
                levels++;
        return 2 * levels;
    case UT_PS:
        return n > 1 ? 2 : 0;
    default:
        return 2 * ut_tar_rounds(n, incast);
    }
}

static uint64_t everybody(uint32_t n)
{
    return n == 64 ? UINT64_MAX : (1ULL << n) - 1;
}

/* What the hosts hold while the tables run. */
static struct {
    uint64_t sum[UT_HOSTS_MAX][UT_HOSTS_MAX];      /* host, chunk: whose contributions are summed there */
    uint64_t result[UT_HOSTS_MAX][UT_HOSTS_MAX];   /* and are in the result; 0: it is not there */
    uint32_t folds[UT_HOSTS_MAX][UT_HOSTS_MAX];    /* still to come */
    uint32_t round[2][UT_HOSTS_MAX][UT_HOSTS_MAX]; /* stage, host, chunk: newest round in which it received, plus one */
    bool done[UT_HOSTS_MAX][UT_STEPS_MAX];
} world;

static uint32_t receive_of(const ut_schedule *to, uint32_t from, const ut_step *send)
{
    uint32_t found = UINT32_MAX;
    for (uint32_t i = 0; i < to->steps; i++) {
        const ut_step *x = &to->step[i];
        if (x->kind != UT_STEP_RECEIVE || x->peer != from || x->stage != send->stage || x->chunk != send->chunk)
            continue;
        CHECK_EQ(found, UINT32_MAX);
        found = i;
    }
    return found;
}

static bool try_send(uint32_t h, uint32_t i)
{
    const ut_step *x = &all[h].step[i];
    unsigned s = x->stage - 1u;
    uint32_t to = x->peer, c = x->chunk;
    uint64_t sent = x->stage == 1 ? world.sum[h][c] : world.result[h][c];
    if (world.done[h][i] || x->kind != UT_STEP_SEND || (x->stage == 1 ? world.folds[h][c] > 0 : sent == 0))
        return false;
    uint32_t k = receive_of(&all[to], h, x);
    CHECK(k != UINT32_MAX && !world.done[to][k]);
    CHECK_EQ(all[to].step[k].round, x->round);
    CHECK_EQ(all[to].step[k].offset, x->offset);
    CHECK_EQ(all[to].step[k].bytes, x->bytes);
    CHECK_LE(world.round[0][h][c], x->round); /* what it forwards came in an earlier round */
    CHECK_LE(world.round[1][h][c], x->round);
    world.done[h][i] = world.done[to][k] = true;
    world.round[s][to][c] = UT_MAX2(world.round[s][to][c], x->round + 1u);
    if (x->stage == 1) {
        CHECK_HEX(world.sum[to][c] & sent, 0); /* nobody twice */
        world.sum[to][c] |= sent;
        world.folds[to][c]--;
    } else {
        CHECK_HEX(world.result[to][c], 0);
        world.result[to][c] = sent;
    }
    return true;
}

static void run_tables(uint32_t n)
{
    bool moved = true;
    while (moved) {
        moved = false;
        for (uint32_t h = 0; h < n; h++) {
            for (uint32_t c = 0; c < all[h].chunks; c++)
                if (c == all[h].own && world.folds[h][c] == 0)
                    world.result[h][c] = world.sum[h][c];
            for (uint32_t i = 0; i < all[h].steps; i++)
                moved = try_send(h, i) || moved;
        }
    }
}

static void check_one(unsigned algorithm, uint32_t n, uint32_t incast, uint64_t op_seq, uint64_t count, size_t element)
{
    memset(&world, 0, sizeof world);
    uint32_t owners[UT_HOSTS_MAX] = {0};
    for (uint32_t h = 0; h < n; h++) {
        ut_schedule *s = &all[h];
        ut_schedule_build(s, &(ut_layout){n, h, count, element}, algorithm, incast, op_seq, UINT64_MAX);
        CHECK_LE(s->steps, UT_STEPS_MAX);
        CHECK_EQ(s->rounds, rounds_of(algorithm, n, incast));
        CHECK(s->chunks == (algorithm == UT_PS ? 1 : n) && s->from[0] == 0 && s->from[s->chunks] == count * element);
        if (s->own != UT_CHUNK_NONE)
            owners[s->own]++;
        uint32_t up[UT_HOSTS_MAX] = {0}, down[UT_HOSTS_MAX] = {0};
        bool direct = true;
        for (uint32_t c = 0; c < s->chunks; c++)
            world.sum[h][c] = 1ULL << h;
        for (uint32_t i = 0; i < s->steps; i++) {
            const ut_step *x = &s->step[i];
            CHECK(x->peer != h && x->peer < n && x->round < s->rounds && x->chunk < s->chunks);
            CHECK_EQ(x->offset, s->from[x->chunk]);
            CHECK_EQ(x->bytes, s->from[x->chunk + 1] - x->offset);
            bool send = x->kind == UT_STEP_SEND;
            world.folds[h][x->chunk] += !send && x->stage == 1;
            up[x->chunk] += send && x->stage == 1;
            down[x->chunk] += !send && x->stage == 2;
            /* A contribution that is not ours to finish, or a result that is not ours, passes on. */
            direct = direct && !((send == (x->stage == 2)) && x->chunk != s->own);
        }
        CHECK_EQ(s->direct, direct);
        for (uint32_t c = 0; c < s->chunks; c++) { /* one way up, one way down, none of both at the owner */
            CHECK_EQ(up[c], c != s->own);
            CHECK_EQ(down[c], c != s->own);
        }
    }
    for (uint32_t c = 0; c < all[0].chunks; c++)
        CHECK_EQ(owners[c], 1);
    run_tables(n);
    for (uint32_t h = 0; h < n; h++) {
        for (uint32_t c = 0; c < all[h].chunks; c++)
            CHECK_MSG(world.result[h][c] == everybody(n), "%s of %u hosts: host %u chunk %u holds %#llx",
                      name[algorithm], n, h, c, (unsigned long long)world.result[h][c]);
        for (uint32_t i = 0; i < all[h].steps; i++)
            CHECK(world.done[h][i]);
    }
}

static void ut_schedule_build__each_contribution_once_everywhere(void)
{
    for (unsigned algorithm = UT_TAR; algorithm < UT_ALGORITHMS_END; algorithm++)
        for (uint32_t n = 1; n <= UT_HOSTS_MAX; n++)
            for (int i = 0; i < 2; i++)
                check_one(algorithm, n, (uint32_t)check_below(n), check_below(1000),
                          i ? check_below(1 << 20) : check_below(n + 1), (size_t)2 << check_below(3));
}

/* Bytes that cross the busiest host's link in one direction, in units of the bucket / N. */
static void ut_schedule_build__bytes_per_host(void)
{
    for (unsigned algorithm = UT_TAR; algorithm < UT_ALGORITHMS_END; algorithm++)
        for (uint32_t n = 2; n <= UT_HOSTS_MAX; n++) {
            uint64_t most[2] = {0, 0};
            for (uint32_t h = 0; h < n; h++) {
                ut_schedule *s = &all[h];
                uint64_t sum[2] = {0, 0};
                ut_schedule_build(s, &(ut_layout){n, h, n, 4}, algorithm, 1, 7, UINT64_MAX);
                for (uint32_t i = 0; i < s->steps; i++)
                    sum[s->step[i].kind == UT_STEP_SEND] += s->step[i].bytes / 4;
                most[0] = UT_MAX2(most[0], sum[0]);
                most[1] = UT_MAX2(most[1], sum[1]);
            }
            uint64_t want = algorithm == UT_PS ? (uint64_t)(n - 1) * n : 2 * (n - 1);
            CHECK_EQ(most[0], want);
            CHECK_EQ(most[1], want);
        }
}

/* One stage's sends or receives of a host, in order, as "round:peer:chunk ...". */
static const char *table_of(unsigned algorithm, uint32_t n, uint32_t host, uint64_t op_seq, unsigned kind,
                            unsigned stage)
{
    static char text[1024];
    static ut_schedule s;
    size_t at = 0;
    text[0] = 0;
    ut_schedule_build(&s, &(ut_layout){n, host, 1000, 4}, algorithm, 1, op_seq, UINT64_MAX);
    for (uint32_t i = 0; i < s.steps; i++)
        if (s.step[i].kind == kind && s.step[i].stage == stage)
            at += (size_t)snprintf(text + at, sizeof text - at, "%s%u:%u:%u", at ? " " : "", s.step[i].round,
                                   s.step[i].peer, s.step[i].chunk);
    return text;
}

static void ut_schedule_build__tables_by_hand(void)
{
    static const struct {
        unsigned algorithm;
        uint32_t hosts, host;
        uint64_t op_seq;
        const char *sums_out, *sums_in, *results_out, *results_in;
    } rows[] = {
        /* 1 */ {UT_RING, 4, 0, 0, "0:1:3 1:1:2 2:1:1", "0:3:2 1:3:1 2:3:0", "3:1:0 4:1:3 5:1:2", "3:3:3 4:3:2 5:3:1"},
        /* 2 */ {UT_RING, 4, 2, 0, "0:3:1 1:3:0 2:3:3", "0:1:0 1:1:3 2:1:2", "3:3:2 4:3:1 5:3:0", "3:1:1 4:1:0 5:1:3"},
        /* 3: the chunks of all owners move on by one */
        {UT_RING, 4, 0, 1, "0:1:0 1:1:3 2:1:2", "0:3:3 1:3:2 2:3:1", "3:1:1 4:1:0 5:1:3", "3:3:0 4:3:3 5:3:2"},
        /* 4 */
        {UT_RING, 6, 5, 0, "0:0:4 1:0:3 2:0:2 3:0:1 4:0:0", "0:4:3 1:4:2 2:4:1 3:4:0 4:4:5",
         "5:0:5 6:0:4 7:0:3 8:0:2 9:0:1", "5:4:4 6:4:3 7:4:2 8:4:1 9:4:0"},
        /* 5: halves, then quarters; what the peer keeps to the end goes last */
        {UT_BCUBE, 4, 0, 0, "0:2:3 0:2:2 1:1:1", "0:2:1 0:2:0 1:1:0", "2:1:0 3:2:0 3:2:1", "2:1:1 3:2:3 3:2:2"},
        /* 6 */
        {UT_BCUBE, 4, 3, 0, "0:1:0 0:1:1 1:2:2", "0:1:2 0:1:3 1:2:3", "2:2:3 3:1:3 3:1:2", "2:2:2 3:1:0 3:1:1"},
        /* 7: 6 = 2 * 3 */
        {UT_BCUBE, 6, 0, 0, "0:3:4 0:3:5 0:3:3 1:1:1 1:2:2", "0:3:1 0:3:2 0:3:0 1:2:0 1:1:0",
         "2:1:0 2:2:0 3:3:0 3:3:1 3:3:2", "2:2:2 2:1:1 3:3:4 3:3:5 3:3:3"},
        /* 8 */
        {UT_BCUBE, 6, 4, 0, "0:1:2 0:1:0 0:1:1 1:5:5 1:3:3", "0:1:5 0:1:3 0:1:4 1:3:4 1:5:4",
         "2:5:4 2:3:4 3:1:4 3:1:5 3:1:3", "2:3:3 2:5:5 3:1:2 3:1:0 3:1:1"},
        /* 9: a prime is one exchange of all with all */
        {UT_BCUBE, 3, 1, 0, "0:2:2 0:0:0", "0:0:1 0:2:1", "1:2:1 1:0:1", "1:0:0 1:2:2"},
        /* 10 */ {UT_PS, 4, 0, 5, "", "0:1:0 0:2:0 0:3:0", "1:1:0 1:2:0 1:3:0", ""},
        /* 11 */ {UT_PS, 4, 3, 5, "0:0:0", "", "", "1:0:0"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        unsigned a = rows[i].algorithm;
        uint32_t n = rows[i].hosts, h = rows[i].host;
        CHECK_STR(table_of(a, n, h, rows[i].op_seq, UT_STEP_SEND, 1), rows[i].sums_out);
        CHECK_STR(table_of(a, n, h, rows[i].op_seq, UT_STEP_RECEIVE, 1), rows[i].sums_in);
        CHECK_STR(table_of(a, n, h, rows[i].op_seq, UT_STEP_SEND, 2), rows[i].results_out);
        CHECK_STR(table_of(a, n, h, rows[i].op_seq, UT_STEP_RECEIVE, 2), rows[i].results_in);
    }
}

static void ut_bcube_radix__prime_factors(void)
{
    static const struct {
        uint32_t hosts, levels;
        uint8_t radix[UT_BCUBE_LEVELS];
    } rows[] = {{1, 0, {0}},
                {2, 1, {2}},
                {6, 2, {2, 3}},
                {12, 3, {2, 2, 3}},
                {45, 3, {3, 3, 5}},
                {61, 1, {61}},
                {64, 6, {2, 2, 2, 2, 2, 2}}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        uint8_t radix[UT_BCUBE_LEVELS] = {0};
        CHECK_EQ(ut_bcube_radix(rows[i].hosts, radix), rows[i].levels);
        CHECK_BYTES(radix, rows[i].radix, rows[i].levels);
    }
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(ut_schedule_build__each_contribution_once_everywhere);
    RUN(ut_schedule_build__bytes_per_host);
    RUN(ut_schedule_build__tables_by_hand);
    RUN(ut_bcube_radix__prime_factors);
    return check_end();
}
