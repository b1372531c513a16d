/* SPDX-License-Identifier: Apache-2.0
 *
 * A host whose addresses change between two ops: the others follow it on sealed paths, and nowhere else. Addresses are
 * {host, place}; packets for a place that the host has left reach nobody.
 */
#include "../cipher/forger.h"

#include "core/path/move.h"

static uint8_t place[MOST];
static unsigned asked; /* challenges and answers on the wire */

/* Whether the packet arrives; the receiver hears from where. */
static bool on_the_way(uint32_t from, const ut_burst *b, const uint8_t *packet, size_t len)
{
    const uint32_t to = b->to.bytes[0];
    asked += ut_wire_kind(packet, len) == UT_KIND_PATH;
    ut_engine_from(hosts[to].engine, &(ut_addr){.len = 2, .bytes = {(uint8_t)from, place[from]}});
    return b->to.bytes[1] == place[to];
}

static void begin_at_home(bool sealed)
{
    static const uint8_t tar[MOST] = {UT_TAR, UT_TAR, UT_TAR};
    memset(place, 0, sizeof place);
    asked = 0;
    if (sealed)
        forged_begin(UT_SUITE_AES_128_GCM, ut_key_life_usual);
    n = FORGED_HOSTS;
    if (!sealed)
        begin(tar);
    change = NULL;
    way = on_the_way;
}

static unsigned moves_told(uint32_t h)
{
    unsigned moves = 0;
    for (ut_event e; ut_engine_poll_event(hosts[h].engine, &e);)
        if (e.kind == UT_EVENT_PATH_MOVED) {
            uint8_t at[sizeof e.b];
            memcpy(at, &e.b, sizeof at);
            CHECK_EQ(at[0], e.host);
            CHECK_EQ(at[1], place[e.host]);
            CHECK_LE(e.a, UT_PORT_FEEDBACK);
            moves++;
        }
    return moves;
}

static void path__follows_a_host_that_moves(void)
{
    ut_stats s;
    begin_at_home(true);
    CHECK(forged_op(0));
    CHECK_EQ(asked, 0);
    for (uint64_t op = 1; op < 4; op++) {
        place[1]++;
        CHECK_MSG(forged_op(op), "op %" PRIu64 ": complete, within its deadline", op);
        CHECK_EQ(moves_told(0) + moves_told(1) + moves_told(2), 4); /* two ports, for each of the two others */
    }
    place[1] = 0; /* and home again */
    CHECK(forged_op(4));
    ut_engine_stats(hosts[0].engine, &s);
    CHECK_EQ(s.path_moves, 8);
    CHECK_EQ(s.packets_received, ut_stats_classes(&s) - s.stash_replayed);
    /* Of each move, peer and port: two challenges, an answer, one for the other port; and some are lost. */
    CHECK_LE(asked, 2 * 4 * 2 * 2 * 4 * UT_MOVE_ASKS);
    forged_end();
}

/* Hosts 0 and 2 send what is for host 1 to that place of it, as their daemons say. */
static void route_to(uint8_t at)
{
    const ut_addr to = {.len = 2, .bytes = {1, at}};
    for (uint32_t h = 0; h < n; h += 2)
        CHECK_EQ(ut_engine_peer_route(hosts[h].engine, 0, 1, &to, &to), UT_OK);
}

/* Where daemons have chosen another way they look after it, or receipts would tell of one that packets do not go. */
static void path__of_another_way_follows_nobody(void)
{
    begin_at_home(true);
    CHECK(forged_op(0));
    place[1] = 7;
    route_to(7);
    CHECK(forged_op(1));
    place[1] = 8;
    CHECK(!forged_op(2));
    CHECK_EQ(moves_told(0) + moves_told(2), 0);
    route_to(8);
    uint64_t op = 3;
    for (bool complete = false; op < 9 && !complete; op++) /* what was lost is still made up for in the first */
        complete = forged_op(op);
    CHECK(forged_op(op++));
    place[1] = 0;
    route_to(0); /* home: it is followed again */
    CHECK(forged_op(op++));
    place[1] = 3;
    CHECK(forged_op(op));
    CHECK_EQ(moves_told(0) + moves_told(2), 4);
    forged_end();
}

static void path__without_keys_nobody_is_followed(void)
{
    begin_at_home(false);
    CHECK(forged_op(0));
    place[1]++;
    call_all(1);
    CHECK_EQ(asked, 0);
    CHECK_EQ(moves_told(0) + moves_told(1) + moves_told(2), 0);
    for (uint32_t h = 0; h < n; h++) /* and the receipts say so */
        CHECK_EQ(receipt(h).status, h == 1 ? UT_INSUFFICIENT : UT_PARTIAL);
    end();
}

/* Path packets of whoever has no keys are nothing, on unsealed paths as well. */
static void path__made_up_packets_move_nothing(void)
{
    for (unsigned sealed = 0; sealed < 2; sealed++) {
        uint8_t packet[UT_PATH_BYTES];
        ut_stats before, after;
        begin_at_home(sealed);
        CHECK(forged_op(0));
        ut_engine_stats(hosts[0].engine, &before);
        ut_engine_from(hosts[0].engine, &(ut_addr){.len = 2, .bytes = {1, 9}});
        for (uint32_t i = 0; i < 100; i++) {
            const ut_path p = {.what = 1 + i % 2, .cid = cid[0][1], .number = 1000 + i, .token = check_random()};
            ut_path_encode(packet, &p);
            ut_engine_input(hosts[0].engine, i / 2 % 2, packet, sizeof packet, 0, false, now);
        }
        ut_engine_stats(hosts[0].engine, &after);
        CHECK_EQ(refused_by(&after) - refused_by(&before), 100);
        CHECK(forged_op(1));
        CHECK_EQ(asked, 0);
        if (sealed)
            forged_end();
        else
            end();
    }
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(path__follows_a_host_that_moves);
    RUN(path__of_another_way_follows_nobody);
    RUN(path__without_keys_nobody_is_followed);
    RUN(path__made_up_packets_move_nothing);
    return check_end();
}
