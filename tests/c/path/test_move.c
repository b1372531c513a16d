/* SPDX-License-Identifier: Apache-2.0
 *
 * When a port of a peer is at another address: as scripts of what comes, and what is then sent and believed.
 */
#include "check.h"

#include "core/path/move.h"

enum { WAIT = UT_MOVE_WAIT_MIN_NS };

static ut_addr at(uint8_t place)
{
    return (ut_addr){.len = 2, .bytes = {place, 7}};
}

static const uint64_t tokens[UT_MOVE_WAYS] = {11, 22};
static ut_move m;
static ut_addr present;

static void fresh(uint8_t home)
{
    present = at(home);
    ut_move_begin(&m, &present);
}

/* All that is to be sent now: a digit a packet, 1 to the present address, 2 to the other one, 9 an answer. */
static unsigned sent(void)
{
    unsigned digits = 0;
    while (ut_move_says(&m)) {
        const ut_addr other = m.other;
        ut_addr to;
        ut_path p;
        ut_move_fill(&m, &present, &to, &p);
        const bool there = !ut_addr_is(&to, &present);
        CHECK_MSG(!there || ut_addr_is(&to, &other), "only two addresses are known");
        if (p.what == UT_PATH_CHALLENGE)
            CHECK_EQ(p.token, tokens[there]);
        digits = digits * 10 + (p.what == UT_PATH_ANSWER ? 9 : there + 1);
    }
    return digits;
}

/* A script: 'o' the other address answers, 'p' the present one, 'w' somebody answers who guesses, '.' a wait passes;
 * after each step what is sent, and in the end where the port is. */
static void move__scripts(void)
{
    static const struct {
        const char *steps;
        uint8_t home, now; /* the try is from place 1 to 2 */
        const char *sends; /* a number for each step; "-" for nothing */
    } rows[] = {
        {"o...", 1, 2, "- 1 1 -"}, /* the other one alone is heard: moved, after three waits and not before */
        {"o..", 1, 1, "- 1 1"},
        {"...", 1, 1, "12 12 -"},    /* nobody is heard */
        {"..o.", 1, 2, "12 12 - -"}, /* heard at the last ask */
        {"p", 1, 1, "-"},            /* the present one is heard: it stays at once, */
        {"op...", 1, 1, "- - - - -"},
        {"o..p...", 1, 1, "- 1 1 - - - -"}, /* and at the last ask too */
        {"po...", 1, 1, "- - - - -"},       /* an answer that comes too late */
        {"w...", 1, 1, "- 12 12 -"},
        {"ww.w.w.", 1, 1, "- - 12 - 12 - -"},
        {"o", 2, 2, "-"}, /* home: its answer is enough, */
        {"po", 2, 2, "- -"},
        {"p...", 2, 1, "- 12 12 -"}, /* and without it nothing moves */
    };
    for (unsigned i = 0; i < sizeof rows / sizeof *rows; i++) {
        ut_ns now = UT_SECOND;
        char said[64] = "";
        const ut_addr other = at(2);
        fresh(rows[i].home);
        present = at(1);
        ut_move_came_from(&m, &present, &other);
        CHECK(ut_move_tries(&m, now));
        ut_move_try(&m, UT_MS, tokens, now);
        CHECK_EQ(sent(), 12);
        for (const char *s = rows[i].steps; *s; s++) {
            const ut_addr before = present;
            bool moved = false;
            if (*s == '.') {
                CHECK_MSG(!ut_move_tick(&m, &present, now + WAIT - 1) && !ut_move_says(&m), "a wait is whole");
                now += WAIT;
                moved = ut_move_tick(&m, &present, now);
            } else {
                moved = ut_move_answered(&m, &present, *s == 'o' ? tokens[1] : *s == 'p' ? tokens[0] : 33, now);
            }
            CHECK_EQ(moved, !ut_addr_is(&before, &present));
            const unsigned digits = sent();
            const size_t len = strlen(said);
            snprintf(said + len, sizeof said - len, digits ? "%s%u" : "%s-", len ? " " : "", digits);
        }
        CHECK_MSG(strcmp(said, rows[i].sends) == 0, "row %u: sent %s, not %s", i, said, rows[i].sends);
        CHECK_MSG(present.bytes[0] == rows[i].now, "row %u: at %u", i, present.bytes[0]);
    }
}

/* Whoever copies packets makes this host send no more than three challenges a second to where he says he is; a few more
 * in the first second of a silence of the peer. */
static unsigned challenges_of_ten_seconds(bool peer_answers)
{
    const ut_addr other = at(2), third = at(3);
    unsigned to_others = 0;
    fresh(1);
    for (ut_ns now = UT_SECOND; now < 11 * UT_SECOND; now += UT_MS) {
        const ut_addr *from = now / UT_MS % 2 ? &other : &third;
        ut_move_tick(&m, &present, now);
        ut_move_came_from(&m, &present, from);
        if (ut_move_tries(&m, now))
            ut_move_try(&m, UT_MS, tokens, now);
        for (unsigned digits = sent(); digits; digits /= 10)
            to_others += digits % 10 == 2;
        if (peer_answers && now % (10 * UT_MS) == 0)
            ut_move_answered(&m, &present, tokens[0], now);
    }
    CHECK_EQ(present.bytes[0], 1);
    return to_others;
}

static void move__tries_once_a_second(void)
{
    CHECK_EQ(challenges_of_ten_seconds(true), 10);
    CHECK_LE(challenges_of_ten_seconds(false), 10 * UT_MOVE_ASKS);
}

/* While one address is tried another one has to wait; where a packet came from that nobody knows, none is tried. */
static void move__one_at_a_time(void)
{
    const ut_addr other = at(2), third = at(3), nowhere = {0}, same = at(1);
    fresh(1);
    ut_move_came_from(&m, &present, &nowhere);
    ut_move_came_from(&m, &present, &same);
    CHECK(!ut_move_tries(&m, 0));
    ut_move_came_from(&m, &present, &other);
    CHECK(ut_move_tries(&m, 0));
    ut_move_try(&m, UT_SECOND / 4, tokens, 0);
    ut_move_came_from(&m, &present, &third);
    CHECK(!ut_move_tries(&m, UT_SECOND));
    (void)sent();
    CHECK_EQ(ut_move_wake(&m), UT_SECOND / 4); /* as long as an answer takes on this path */
    ut_move_answered(&m, &present, tokens[0], UT_SECOND / 8);
    CHECK_EQ(ut_move_wake(&m), UT_MOVE_REST_NS); /* the third, although it says nothing more */
    CHECK(!ut_move_tries(&m, UT_MOVE_REST_NS - 1));
    CHECK(ut_move_tries(&m, UT_MOVE_REST_NS));
    ut_move_try(&m, UT_MS, tokens, UT_MOVE_REST_NS);
    ut_move_answered(&m, &present, tokens[0], UT_MOVE_REST_NS);
    CHECK_EQ(ut_move_wake(&m), UT_NEVER);
}

/* The other address does not answer, and a newer packet came from a third one: that is tried next. One that has
 * answered is the peer's. */
static void move__once_more(void)
{
    const ut_addr other = at(2), third = at(3);
    for (unsigned answers = 0; answers < 2; answers++) {
        fresh(1);
        ut_move_came_from(&m, &present, &other);
        ut_move_try(&m, UT_SECOND / 3, tokens, UT_SECOND);
        if (answers)
            ut_move_answered(&m, &present, tokens[1], UT_SECOND + UT_SECOND / 4);
        ut_move_came_from(&m, &present, &third);
        ut_ns now = UT_SECOND + UT_SECOND / 3;
        CHECK(!ut_move_tick(&m, &present, now));
        CHECK(!ut_move_tries(&m, now));
        CHECK_EQ(ut_move_tries(&m, UT_SECOND + 2 * (UT_SECOND / 3)), !answers); /* as long again as the try took */
        if (answers) {
            for (; now < 2 * UT_SECOND; now += UT_SECOND / 3)
                ut_move_tick(&m, &present, now);
            CHECK(ut_addr_is(&present, &other));
            continue;
        }
        now = UT_SECOND + 2 * (UT_SECOND / 3);
        ut_move_try(&m, UT_SECOND / 3, tokens, now);
        CHECK(ut_addr_is(&m.other, &third));
    }
}

/* What nobody has answered is tried again; where a port was found, another one is looked at at once. */
static void move__again(void)
{
    const ut_addr other = at(2), third = at(3);
    ut_ns now = UT_SECOND;
    fresh(1);
    ut_move_came_from(&m, &present, &other);
    for (unsigned tries = 0; tries < 8; tries++) {
        const ut_ns rest = UT_MIN2(UT_MOVE_ASKS * WAIT * (1 + (UINT64_C(1) << tries)), (ut_ns)UT_MOVE_REST_NS);
        CHECK(ut_move_tries(&m, now));
        ut_move_try(&m, UT_MS, tokens, now);
        for (unsigned n = 1; n <= UT_MOVE_ASKS; n++)
            CHECK(sent() == 12 && !ut_move_tick(&m, &present, now + n * WAIT));
        CHECK_EQ(ut_move_wake(&m), now + rest);
        CHECK(!ut_move_tries(&m, now + rest - 1));
        now += rest;
    }
    ut_move_try(&m, UT_MS, tokens, now);
    ut_move_answered(&m, &present, tokens[1], now);
    ut_move_came_from(&m, &present, &third);
    for (unsigned n = 1; n <= UT_MOVE_ASKS; n++)
        CHECK_EQ(ut_move_tick(&m, &present, now + n * WAIT), n == UT_MOVE_ASKS);
    CHECK(ut_addr_is(&present, &other));
    CHECK(ut_move_tries(&m, now + UT_MOVE_ASKS * WAIT));
}

/* What the other address took to answer bounds what the present one is given: what was known before may be of a time
 * when the peer slept, or nothing. An answer that is not the first one changes nothing. */
static void move__waits_as_long_as_the_other_address_took(void)
{
    static const struct {
        ut_ns silence, took, wait;
    } rows[] = {
        {0, 5 * UT_MS, UT_MOVE_WAIT_MIN_NS},     {0, 30 * UT_MS, 90 * UT_MS},
        {0, 300 * UT_MS, UT_MOVE_WAIT_FAR_NS},   {500 * UT_MS, 5 * UT_MS, UT_MOVE_WAIT_MIN_NS},
        {500 * UT_MS, 100 * UT_MS, 300 * UT_MS}, {50 * UT_MS, 40 * UT_MS, 50 * UT_MS},
    };
    for (unsigned i = 0; i < sizeof rows / sizeof *rows; i++) {
        const ut_addr other = at(2);
        fresh(1);
        ut_move_came_from(&m, &present, &other);
        ut_move_try(&m, rows[i].silence, tokens, UT_SECOND);
        const ut_ns first = rows[i].silence ? rows[i].silence : (ut_ns)UT_MOVE_WAIT_FAR_NS;
        CHECK_EQ(sent(), 12);
        CHECK_EQ(ut_move_wake(&m), UT_SECOND + first);
        const ut_ns came = UT_SECOND + rows[i].took, next = UT_MIN2(UT_SECOND + first, came + rows[i].wait);
        CHECK(!ut_move_answered(&m, &present, tokens[1], came));
        CHECK_MSG(ut_move_wake(&m) == next, "row %u: asks at %" PRIu64 ", not %" PRIu64, i, ut_move_wake(&m), next);
        CHECK(!ut_move_answered(&m, &present, tokens[1], came + 1));
        CHECK_EQ(ut_move_wake(&m), next);
        for (unsigned n = 0; n < UT_MOVE_ASKS; n++, (void)sent()) {
            CHECK_EQ(present.bytes[0], 1);
            CHECK_EQ(ut_move_tick(&m, &present, next + n * rows[i].wait), n == UT_MOVE_ASKS - 1);
        }
        CHECK_EQ(present.bytes[0], 2);
    }
}

/* Whose data is not heard of is asked by way of the other port, and what it answers moves nothing. */
static void move__calls(void)
{
    fresh(1);
    ut_move_call(&m, tokens[0]);
    CHECK_EQ(sent(), 1);
    CHECK(!ut_move_answered(&m, &present, tokens[0], 0));
    CHECK_EQ(ut_move_wake(&m), UT_NEVER);
    const ut_addr other = at(2);
    ut_move_came_from(&m, &present, &other);
    ut_move_try(&m, UT_MS, tokens, UT_SECOND);
    ut_move_call(&m, 44); /* that of the try holds */
    CHECK_EQ(sent(), 12);
}

/* Three challenges before there was a turn to answer: the first two are what the other side has sent. */
static void move__answers_the_oldest_challenges(void)
{
    ut_addr to;
    ut_path p;
    fresh(1);
    for (uint64_t token = 5; token < 8; token++)
        ut_move_asked(&m, token);
    for (uint64_t token = 5; token < 7; token++) {
        CHECK_EQ(ut_move_wake(&m), 0);
        ut_move_fill(&m, &present, &to, &p);
        CHECK_EQ(p.what, UT_PATH_ANSWER);
        CHECK_EQ(p.token, token);
        CHECK(ut_addr_is(&to, &present));
    }
    CHECK(!ut_move_says(&m));
    ut_move_show(&m);
    ut_move_fill(&m, &present, &to, &p);
    CHECK_EQ(p.what, UT_PATH_ANSWER);
    CHECK_EQ(p.token, 0);
    CHECK(ut_addr_is(&to, &present) && !ut_move_says(&m));
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(move__scripts);
    RUN(move__tries_once_a_second);
    RUN(move__one_at_a_time);
    RUN(move__once_more);
    RUN(move__again);
    RUN(move__waits_as_long_as_the_other_address_took);
    RUN(move__calls);
    RUN(move__answers_the_oldest_challenges);
    return check_end();
}
