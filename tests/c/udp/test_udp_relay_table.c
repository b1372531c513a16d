/* SPDX-License-Identifier: Apache-2.0
 *
 * Whose packets a relay forwards: its own ends', under their own ids, from their own sockets, and nobody else's.
 */
#include "check.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>

#include "udp/relay_table.h"

static ut_relay_table *fresh(void)
{
    ut_relay_table *t = calloc(1, sizeof(*t));
    CHECK(t != NULL);
    return t;
}

static ut_addr at(const char *text, uint16_t port)
{
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons(port)};
    ut_addr ret = {.len = sizeof(v4)};
    CHECK(inet_pton(AF_INET, text, &v4.sin_addr) == 1);
    memcpy(ret.bytes, &v4, sizeof(v4));
    return ret;
}

static bool goes(ut_relay_table *t, uint32_t cid, ut_addr from, ut_addr to)
{
    const ut_addr *found = NULL;
    return ut_relay_find(t, cid, &from, &found) != NULL && found->len == to.len &&
           memcmp(found->bytes, to.bytes, to.len) == 0;
}

static bool refused(ut_relay_table *t, uint32_t cid, ut_addr from)
{
    const ut_addr *found = NULL;
    return ut_relay_find(t, cid, &from, &found) == NULL;
}

/* Two hosts with all that they need. */
static void two_hosts(ut_relay_table *t, int *a, int *b)
{
    const ut_addr one = at("10.0.0.1", 0), two = at("10.0.0.2", 0);
    *a = ut_relay_end_add(t, &one);
    *b = ut_relay_end_add(t, &two);
    CHECK(*a >= 0 && *b >= 0 && *a != *b);
    for (uint32_t port = 0; port < 2; port++) {
        const ut_addr x = at("10.0.0.1", (uint16_t)(1000 + port)), y = at("10.0.0.2", (uint16_t)(2000 + port));
        CHECK(ut_relay_end_is_at(t, (uint32_t)*a, port, &x) == UT_OK);
        CHECK(ut_relay_end_is_at(t, (uint32_t)*b, port, &y) == UT_OK);
    }
    CHECK(ut_relay_way_add(t, (uint32_t)*a, (uint32_t)*b, 77) >= 0);
    CHECK(ut_relay_way_add(t, (uint32_t)*b, (uint32_t)*a, 88) >= 0);
}

static void relay__packets_go_to_the_socket_of_the_same_part(void)
{
    ut_relay_table *t = fresh();
    int a, b;
    two_hosts(t, &a, &b);
    CHECK(goes(t, 77, at("10.0.0.1", 1000), at("10.0.0.2", 2000)));
    CHECK(goes(t, 77, at("10.0.0.1", 1001), at("10.0.0.2", 2001)));
    CHECK(goes(t, 88, at("10.0.0.2", 2000), at("10.0.0.1", 1000)));
    CHECK(goes(t, 88, at("10.0.0.2", 2001), at("10.0.0.1", 1001)));
    free(t);
}

static void relay__strangers_reach_nobody(void)
{
    ut_relay_table *t = fresh();
    int a, b;
    two_hosts(t, &a, &b);
    CHECK(refused(t, 77, at("10.0.0.9", 1000))); /* another host, under a known id */
    CHECK(refused(t, 77, at("10.0.0.1", 1002))); /* another socket of the same host */
    CHECK(refused(t, 77, at("10.0.0.2", 2000))); /* the receiver itself */
    CHECK(refused(t, 88, at("10.0.0.1", 1000))); /* the id of the other direction */
    CHECK(refused(t, 99, at("10.0.0.1", 1000))); /* nobody's id */
    CHECK(refused(t, 0, at("10.0.0.1", 1000)));
    free(t);
}

static void relay__an_end_is_nowhere_but_at_its_own_host(void)
{
    ut_relay_table *t = fresh();
    int a, b;
    two_hosts(t, &a, &b);
    const ut_addr other = at("10.0.0.9", 1000), moved = at("10.0.0.1", 5000), v6 = {.len = 28};
    CHECK(ut_relay_end_is_at(t, (uint32_t)a, 0, &other) == UT_ERR_ARGUMENT);
    CHECK(ut_relay_end_is_at(t, (uint32_t)a, 0, &v6) == UT_ERR_ARGUMENT);
    CHECK(goes(t, 77, at("10.0.0.1", 1000), at("10.0.0.2", 2000)));
    CHECK(ut_relay_end_is_at(t, (uint32_t)a, 0, &moved) == UT_OK); /* its NAT gave it another port */
    CHECK(refused(t, 77, at("10.0.0.1", 1000)) && goes(t, 77, at("10.0.0.1", 5000), at("10.0.0.2", 2000)));
    CHECK(goes(t, 88, at("10.0.0.2", 2000), at("10.0.0.1", 5000)));
    CHECK(ut_relay_end_is_at(t, (uint32_t)a, 2, &moved) == UT_ERR_UNKNOWN);
    CHECK(ut_relay_end_is_at(t, UT_RELAY_ENDS, 0, &moved) == UT_ERR_UNKNOWN);
    free(t);
}

static void relay__nothing_goes_before_both_are_known(void)
{
    ut_relay_table *t = fresh();
    const ut_addr one = at("10.0.0.1", 0), two = at("10.0.0.2", 0), x = at("10.0.0.1", 1000);
    const int a = ut_relay_end_add(t, &one), b = ut_relay_end_add(t, &two);
    CHECK(ut_relay_way_add(t, (uint32_t)a, (uint32_t)b, 77) >= 0);
    CHECK(refused(t, 77, x));
    CHECK(ut_relay_end_is_at(t, (uint32_t)a, 0, &x) == UT_OK);
    CHECK(refused(t, 77, x));
    const ut_addr nowhere = {.len = 0};
    CHECK(refused(t, 77, nowhere)); /* an address that is not known is not the same as another such */
    free(t);
}

static void relay__ways_end_with_their_ends(void)
{
    ut_relay_table *t = fresh();
    int a, b;
    two_hosts(t, &a, &b);
    CHECK(ut_relay_end_remove(t, (uint32_t)b) == UT_OK);
    CHECK(ut_relay_end_remove(t, (uint32_t)b) == UT_ERR_UNKNOWN);
    CHECK(refused(t, 77, at("10.0.0.1", 1000)) && refused(t, 88, at("10.0.0.2", 2000)));
    for (uint32_t i = 0; i < UT_RELAY_WAYS; i++)
        CHECK(!t->way[i].used);
    CHECK(t->end[a].ways == 0);
    free(t);
}

static void relay__one_id_leads_one_way(void)
{
    ut_relay_table *t = fresh();
    int a, b;
    two_hosts(t, &a, &b);
    const ut_addr three = at("10.0.0.3", 0), z = at("10.0.0.3", 3000);
    const int c = ut_relay_end_add(t, &three), way = ut_relay_way_add(t, (uint32_t)a, (uint32_t)b, 77);
    CHECK(way >= 0 && ut_relay_way_add(t, (uint32_t)a, (uint32_t)b, 77) == way);
    CHECK(ut_relay_way_add(t, (uint32_t)a, (uint32_t)c, 77) == UT_ERR_EXISTS);
    CHECK(ut_relay_way_add(t, (uint32_t)a, (uint32_t)a, 5) == UT_ERR_UNKNOWN);
    CHECK(ut_relay_way_add(t, UT_RELAY_ENDS, (uint32_t)a, 5) == UT_ERR_UNKNOWN);
    /* Two receivers may have chosen the same id: whose it is follows from who sends. */
    CHECK(ut_relay_end_is_at(t, (uint32_t)c, 0, &z) == UT_OK);
    CHECK(ut_relay_way_add(t, (uint32_t)c, (uint32_t)a, 77) >= 0);
    CHECK(goes(t, 77, z, at("10.0.0.1", 1000)) && goes(t, 77, at("10.0.0.1", 1000), at("10.0.0.2", 2000)));
    CHECK(ut_relay_way_remove(t, (uint32_t)way) == UT_OK && ut_relay_way_remove(t, (uint32_t)way) == UT_ERR_UNKNOWN);
    CHECK(refused(t, 77, at("10.0.0.1", 1000)) && goes(t, 77, z, at("10.0.0.1", 1000)));
    free(t);
}

static void relay__the_table_is_bounded_and_used_again(void)
{
    ut_relay_table *t = fresh();
    const ut_addr one = at("10.0.0.1", 0);
    for (uint32_t i = 0; i < UT_RELAY_ENDS; i++)
        CHECK(ut_relay_end_add(t, &one) == (int)i);
    CHECK(ut_relay_end_add(t, &one) == UT_ERR_FULL);
    for (uint32_t i = 0; i < UT_RELAY_WAYS; i++)
        CHECK(ut_relay_way_add(t, 0, 1 + i % (UT_RELAY_ENDS - 1), i) == (int)i);
    CHECK(ut_relay_way_add(t, 0, 1, UT_RELAY_WAYS) == UT_ERR_FULL);
    CHECK(ut_relay_end_remove(t, 0) == UT_OK);
    CHECK(ut_relay_end_add(t, &one) == 0 && ut_relay_way_add(t, 0, 1, 7) == 0);
    free(t);
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(relay__packets_go_to_the_socket_of_the_same_part);
    RUN(relay__strangers_reach_nobody);
    RUN(relay__an_end_is_nowhere_but_at_its_own_host);
    RUN(relay__nothing_goes_before_both_are_known);
    RUN(relay__ways_end_with_their_ends);
    RUN(relay__one_id_leads_one_way);
    RUN(relay__the_table_is_bounded_and_used_again);
    return check_end();
}
