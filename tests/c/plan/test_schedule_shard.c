/* SPDX-License-Identifier: Apache-2.0
 *
 * The tables of the other collectives, for every number of hosts: what one sends another hears, at the same place of
 * the order; every byte that a result needs comes once, from whom it must, and nothing else moves.
 */
#include "check.h"

#include "core/plan/schedule.h"

static ut_schedule all[UT_HOSTS_MAX];

static const ut_step *find(uint32_t host, unsigned kind, unsigned stage, uint32_t peer)
{
    const ut_step *found = NULL;
    for (uint32_t i = 0; i < all[host].steps; i++) {
        const ut_step *s = &all[host].step[i];
        if (s->kind != kind || s->stage != stage || s->peer != peer)
            continue;
        CHECK(!found); /* one transfer between two hosts a stage */
        found = s;
    }
    return found;
}

/* Who must send whom which chunk of his in a stage; n for none. */
static uint32_t moves(unsigned collective, uint32_t root, uint32_t n, unsigned stage, uint32_t from, uint32_t to)
{
    switch (collective) {
    case UT_REDUCE_SCATTER:
    case UT_ALL_TO_ALL:
        return stage == 1 ? to : n;
    case UT_BROADCAST:
        return stage == 1 ? (from == root ? to : n) : to == root ? n : from;
    default:
        return stage == 2 ? from : n;
    }
}

static void check_tables(unsigned collective, uint32_t root, uint32_t n, uint32_t incast, uint64_t count)
{
    for (uint32_t h = 0; h < n; h++)
        ut_schedule_shard(&all[h], &(ut_layout){n, h, count, 4}, collective, root, incast);
    for (uint32_t h = 0; h < n; h++) {
        const ut_schedule *s = &all[h];
        uint32_t known = 0;
        CHECK(s->own == h && s->chunks == n && s->direct && s->lasting && s->from[n] == 4 * count);
        CHECK_EQ(s->own_offset, s->from[h]);
        CHECK_EQ(s->placed, collective != UT_REDUCE_SCATTER);
        CHECK_EQ(s->apart, collective == UT_REDUCE_SCATTER || collective == UT_ALL_TO_ALL);
        CHECK_EQ(s->rounds, (collective == UT_BROADCAST ? 2 : 1) * ut_tar_rounds(n, incast));
        for (uint32_t p = 0; p < n; p++)
            for (unsigned stage = 1; p != h && stage <= 2; stage++) {
                uint32_t chunk = moves(collective, root, n, stage, h, p);
                const ut_step *send = find(h, UT_STEP_SEND, stage, p), *heard = find(p, UT_STEP_RECEIVE, stage, h);
                CHECK_EQ(send != NULL, chunk != n);
                CHECK_EQ(heard != NULL, chunk != n);
                if (!send || !heard)
                    continue;
                known++;
                CHECK_EQ(send->chunk, chunk);
                CHECK_EQ(heard->chunk, collective == UT_ALL_TO_ALL ? h : chunk);
                CHECK(send->bytes == heard->bytes && send->offset == heard->offset && send->round == heard->round);
                CHECK_EQ(heard->offset, s->from[heard->chunk]); /* there it lies in the result */
                CHECK_LE(send->round, s->rounds - 1);
            }
        uint32_t sends = 0;
        for (uint32_t i = 0; i < s->steps; i++)
            sends += s->step[i].kind == UT_STEP_SEND;
        CHECK_EQ(sends, known);
    }
}

static void ut_schedule_shard__moves_what_it_must_and_no_more(void)
{
    for (uint32_t n = 1; n <= UT_HOSTS_MAX; n++)
        for (unsigned collective = UT_REDUCE_SCATTER; collective < UT_COLLECTIVES_END; collective++) {
            uint32_t incast = 1 + (uint32_t)check_below(n);
            uint64_t count = collective == UT_BROADCAST ? check_below(5000) : n * check_below(50);
            check_tables(collective, collective == UT_BROADCAST ? (uint32_t)check_below(n) : 0, n, incast, count);
        }
}

/* A broadcast of |n| elements by |root|: whom it deals to, and what goes round. */
static void ut_schedule_shard__a_broadcast_by_hand(void)
{
    static const struct {
        uint32_t host, root;
        const char *steps; /* stage, s or r, peer */
    } rows[] = {
        /* 1 */ {0, 0, "1s1 1s2 2s1 2s2"},
        /* 2 */ {1, 0, "1r0 2s2 2r0 2r2"},
        /* 3 */ {2, 0, "1r0 2s1 2r1 2r0"},
        /* 4 */ {2, 1, "1r1 2s0 2r1 2r0"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        static ut_schedule s;
        char text[128] = "";
        size_t at = 0;
        ut_schedule_shard(&s, &(ut_layout){3, rows[i].host, 3, 4}, UT_BROADCAST, rows[i].root, 1);
        for (uint32_t k = 0; k < s.steps; k++)
            at += (size_t)snprintf(text + at, sizeof text - at, "%s%u%c%u", k ? " " : "", s.step[k].stage,
                                   s.step[k].kind == UT_STEP_SEND ? 's' : 'r', s.step[k].peer);
        CHECK_STR(text, rows[i].steps);
    }
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(ut_schedule_shard__moves_what_it_must_and_no_more);
    RUN(ut_schedule_shard__a_broadcast_by_hand);
    return check_end();
}
