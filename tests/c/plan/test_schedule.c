/* SPDX-License-Identifier: Apache-2.0
 *
 * TAR's table: the examples of docs/papers.md, section 1.9, and for every N from 2 to 64 and every incast factor the
 * properties that make it an AllReduce.
 */
#include "check.h"

#include "core/plan/schedule.h"

static void ut_shard_bound__spec_vectors(void)
{
    static const struct {
        uint64_t count;
        uint32_t hosts;
        uint64_t bound[7];
    } rows[] = {
        /* 1 */ {10, 4, {0, 2, 5, 7, 10}},
        /* 2 */ {3, 4, {0, 0, 1, 2, 3}},
        /* 3 */ {6553600, 6, {0, 1092266, 2184533, 3276800, 4369066, 5461333, 6553600}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (uint32_t j = 0; j <= rows[i].hosts; j++)
            CHECK_EQ(ut_shard_bound(rows[i].count, rows[i].hosts, j), rows[i].bound[j]);
    CHECK_EQ(ut_shard_bound(UT_BUCKET_MAX, 64, 64), UT_BUCKET_MAX);
}

/* Peers of |host| in |round|, in order, as a string "a,b,c". */
static const char *round_of(uint32_t hosts, uint32_t incast, uint32_t host, uint32_t round)
{
    static char text[256];
    static ut_schedule s;
    size_t at = 0;
    text[0] = 0;
    ut_schedule_tar(&s, &(ut_layout){hosts, host, 1000, 4}, incast, 0, UINT64_MAX);
    for (uint32_t i = 0; i < s.steps; i++)
        if (s.step[i].kind == UT_STEP_SEND && s.step[i].stage == 1 && s.step[i].round == round)
            at += (size_t)snprintf(text + at, sizeof text - at, "%s%u", at ? "," : "", s.step[i].peer);
    return text;
}

static void ut_schedule_tar__spec_rounds(void)
{
    static const struct {
        uint32_t hosts, incast, round;
        const char *peers[6]; /* by host */
    } rows[] = {
        /* 1 */ {4, 1, 0, {"3", "2", "1", "0"}},
        /* 2 */ {4, 1, 1, {"2", "3", "0", "1"}},
        /* 3 */ {4, 1, 2, {"1", "0", "3", "2"}},
        /* 4 */ {4, 2, 0, {"3,2", "2,3", "1,0", "0,1"}},
        /* 5 */ {4, 2, 1, {"1", "0", "3", "2"}},
        /* 6 */ {4, 3, 0, {"3,2,1", "2,3,0", "1,0,3", "0,1,2"}},
        /* 7 */ {5, 1, 0, {"1", "2", "3", "4", "0"}},
        /* 8 */ {5, 1, 1, {"4", "0", "1", "2", "3"}},
        /* 9 */ {5, 1, 2, {"2", "3", "4", "0", "1"}},
        /* 10 */ {5, 2, 0, {"1,4", "2,0", "3,1", "4,2", "0,3"}},
        /* 11 */ {5, 3, 0, {"1,4,2", "2,0,3", "3,1,4", "4,2,0", "0,3,1"}},
        /* 12 */ {5, 3, 1, {"3", "4", "0", "1", "2"}},
        /* 13 */ {6, 1, 0, {"5", "4", "3", "2", "1", "0"}},
        /* 14 */ {6, 1, 1, {"2", "5", "0", "4", "3", "1"}},
        /* 15 */ {6, 1, 2, {"4", "3", "5", "1", "0", "2"}},
        /* 16 */ {6, 1, 3, {"1", "0", "4", "5", "2", "3"}},
        /* 17 */ {6, 1, 4, {"3", "2", "1", "0", "5", "4"}},
        /* 18 */ {6, 2, 2, {"3", "2", "1", "0", "5", "4"}},
        /* 19 */ {6, 3, 1, {"1,3", "0,2", "4,1", "5,0", "2,5", "3,4"}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (uint32_t h = 0; h < rows[i].hosts; h++)
            CHECK_STR(round_of(rows[i].hosts, rows[i].incast, h, rows[i].round), rows[i].peers[h]);
    static const uint32_t rounds[][4] = {{4, 3, 2, 1}, {5, 4, 2, 2}, {6, 5, 3, 2}};
    for (size_t i = 0; i < 3; i++)
        for (uint32_t incast = 1; incast <= 3; incast++)
            CHECK_EQ(ut_tar_rounds(rounds[i][0], incast), rounds[i][incast]);
}

/* docs/papers.md, section 1.9: link (0,1) slow both ways, t = 1, T = 10, both stages: a round costs T for the whole op
 * if it uses the link.
 */
static void ut_schedule_tar__slow_link(void)
{
    static const uint32_t rows[][2] = {{4, 24}, {6, 28}, {8, 32}, {5, 44}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        uint32_t n = rows[i][0], cost = 0;
        for (uint32_t k = 0; k + 1 < n; k++) {
            bool slow = false;
            for (uint32_t h = 0; h < n; h++) {
                uint32_t to = ut_tar_send_peer(n, h, k);
                slow = slow || (h == 0 && to == 1) || (h == 1 && to == 0);
            }
            cost += 2 * (slow ? 10 : 1);
        }
        CHECK_EQ(cost, rows[i][1]);
    }
}

static ut_schedule all[UT_HOSTS_MAX];

static void check_one(uint32_t n, uint32_t incast, uint64_t op_seq, uint64_t owners, uint64_t count, size_t element)
{
    uint32_t parts = (uint32_t)__builtin_popcountll(owners), place = 0;
    static uint8_t sent[UT_HOSTS_MAX][UT_HOSTS_MAX], heard[UT_HOSTS_MAX][UT_HOSTS_MAX];
    memset(sent, 0, sizeof sent);
    memset(heard, 0, sizeof heard);
    for (uint32_t h = 0; h < n; h++)
        ut_schedule_tar(&all[h], &(ut_layout){n, h, count, element}, incast, op_seq, owners);
    uint64_t owned = 0;
    for (uint32_t h = 0; h < n; h++) {
        const ut_schedule *s = &all[h];
        uint32_t senders[2 * UT_HOSTS_MAX] = {0};
        CHECK_EQ(s->steps, 4 * (n - 1));
        CHECK_EQ(s->rounds, 2 * ut_tar_rounds(n, incast));
        CHECK(s->direct && s->chunks == n && s->from[n] == count * element);
        CHECK_EQ(s->own_offset, s->from[s->own]);
        if (owners >> h & 1) { /* the bounds of docs/papers.md, section 1.2 among those that own, who take turns */
            uint32_t shard = (uint32_t)((place++ + op_seq) % parts);
            CHECK_EQ(s->own_offset / element, ut_shard_bound(count, parts, shard));
            CHECK_EQ((s->own_offset + s->own_bytes) / element, ut_shard_bound(count, parts, shard + 1));
        } else {
            CHECK_EQ(s->own_bytes, 0);
        }
        for (uint32_t c = 0; c < n; c++)
            CHECK_LE(s->from[c], s->from[c + 1]);
        owned += s->own_bytes;
        uint64_t received[2] = {0, 0};
        for (uint32_t i = 0; i < s->steps; i++) {
            const ut_step *x = &s->step[i];
            CHECK(x->peer != h && x->peer < n && x->round < s->rounds && x->chunk < s->chunks);
            CHECK_EQ(x->offset, s->from[x->chunk]);
            CHECK_EQ(x->bytes, s->from[x->chunk + 1] - x->offset);
            if (x->kind == UT_STEP_SEND) {
                sent[h][x->peer] += x->stage;
                CHECK_EQ(x->offset, x->stage == 1 ? all[x->peer].own_offset : s->own_offset);
                CHECK_EQ(x->bytes, x->stage == 1 ? all[x->peer].own_bytes : s->own_bytes);
            } else {
                heard[x->peer][h] += x->stage;
                senders[x->round]++;
                received[x->stage - 1] += x->bytes;
                CHECK_EQ(x->offset, x->stage == 1 ? s->own_offset : all[x->peer].own_offset);
            }
        }
        for (uint32_t r = 0; r < s->rounds; r++)
            CHECK_LE(senders[r], incast < 1 ? 1 : incast);
        CHECK_EQ(received[1] + s->own_bytes, count * element);
    }
    CHECK_EQ(owned, count * element);
    for (uint32_t a = 0; a < n; a++)
        for (uint32_t b = 0; b < n; b++) { /* each ordered pair once in stage 1 (1) and once in stage 2 (2) */
            CHECK_EQ(sent[a][b], a == b ? 0 : 3);
            CHECK_EQ(heard[a][b], a == b ? 0 : 3);
        }
}

static void ut_schedule_tar__all_sizes(void)
{
    for (uint32_t n = 2; n <= UT_HOSTS_MAX; n++)
        for (uint32_t incast = 0; incast <= n; incast++)
            check_one(n, incast, check_below(1000), UINT64_MAX >> (64 - n),
                      check_below(4) ? check_below(1 << 20) : check_below(n), 1 << (1 + check_below(3)));
}

/* Whoever owns nothing keeps his place in the rounds; the others cut the bucket among them. */
static void ut_schedule_tar__among_owners(void)
{
    for (uint32_t n = 2; n <= 16; n++)
        for (uint32_t one = 0; one < n; one++) {
            check_one(n, 1, 7, UINT64_MAX >> (64 - n) & ~(1ULL << one), 1000, 4);
            check_one(n, 2, check_below(1000), 1ULL << one, check_below(5000), 4);
            check_one(n, 1, check_below(1000), 1ULL << one | check_below(1ULL << n), check_below(5000), 8);
        }
    static const struct {
        uint64_t op_seq, owners, from[3], to[3]; /* elements, by host */
    } rows[] = {
        /* 1 */ {0, 7, {0, 3, 6}, {3, 6, 10}},
        /* 2 */ {0, 5, {0, 10, 5}, {5, 10, 10}},
        /* 3 */ {1, 5, {5, 10, 0}, {10, 10, 5}},
        /* 4 */ {1, 6, {10, 5, 0}, {10, 10, 5}},
        /* 5 */ {9, 4, {10, 10, 0}, {10, 10, 10}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (uint32_t h = 0; h < 3; h++) {
            ut_schedule_tar(&all[h], &(ut_layout){3, h, 10, 4}, 1, rows[i].op_seq, rows[i].owners);
            CHECK_EQ(all[h].own_offset, 4 * rows[i].from[h]);
            CHECK_EQ(all[h].own_bytes, 4 * (rows[i].to[h] - rows[i].from[h]));
        }
}

/* Even N: in each round the pairs are mutual, and each unordered pair meets in one round only. */
static void ut_tar__even_pairs_meet_once(void)
{
    for (uint32_t n = 2; n <= UT_HOSTS_MAX; n += 2)
        for (uint32_t h = 0; h < n; h++)
            for (uint32_t k = 0; k + 1 < n; k++) {
                CHECK_EQ(ut_tar_send_peer(n, ut_tar_send_peer(n, h, k), k), h);
                CHECK_EQ(ut_tar_receive_peer(n, h, k), ut_tar_send_peer(n, h, k));
            }
}

static void ut_shard_of__rotates(void)
{
    for (uint64_t op = 0; op < 12; op++)
        CHECK_EQ(ut_shard_of(2, op, 5), (2 + op) % 5);
    CHECK_EQ(ut_shard_of(3, UINT64_MAX, 7), (3 + UINT64_MAX % 7) % 7);
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(ut_shard_bound__spec_vectors);
    RUN(ut_schedule_tar__spec_rounds);
    RUN(ut_schedule_tar__slow_link);
    RUN(ut_schedule_tar__all_sizes);
    RUN(ut_schedule_tar__among_owners);
    RUN(ut_tar__even_pairs_meet_once);
    RUN(ut_shard_of__rotates);
    return check_end();
}
