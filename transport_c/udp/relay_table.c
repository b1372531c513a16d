/* SPDX-License-Identifier: Apache-2.0 */
#include "relay_table.h"

#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>

static int family_of(const ut_addr *a)
{
    sa_family_t family = AF_UNSPEC;
    if (a->len >= sizeof(family))
        memcpy(&family, a->bytes, sizeof(family));
    return family;
}

bool ut_relay_same_host(const ut_addr *a, const ut_addr *b)
{
    struct sockaddr_in one, other;
    struct sockaddr_in6 one6, other6;
    if (a->len != b->len || family_of(a) != family_of(b))
        return false;
    if (family_of(a) == AF_INET && a->len == sizeof(one)) {
        memcpy(&one, a->bytes, sizeof(one));
        memcpy(&other, b->bytes, sizeof(other));
        return one.sin_addr.s_addr == other.sin_addr.s_addr;
    }
    if (family_of(a) != AF_INET6 || a->len != sizeof(one6))
        return false;
    memcpy(&one6, a->bytes, sizeof(one6));
    memcpy(&other6, b->bytes, sizeof(other6));
    return memcmp(&one6.sin6_addr, &other6.sin6_addr, sizeof(one6.sin6_addr)) == 0 &&
           one6.sin6_scope_id == other6.sin6_scope_id;
}

static bool same_socket(const ut_addr *a, const ut_addr *b)
{
    return a->len > 0 && a->len == b->len && memcmp(a->bytes, b->bytes, a->len) == 0;
}

static bool is_end(const ut_relay_table *t, uint32_t end)
{
    return end < UT_RELAY_ENDS && t->end[end].used;
}

/* The low bits of an id are not random (job and host of the one who chose it), so all bits are mixed. */
static uint32_t *head_of(ut_relay_table *t, uint32_t cid)
{
    return &t->head[(uint32_t)(cid * UINT64_C(0x9e3779b97f4a7c15) >> 40) % UT_RELAY_HEADS];
}

int ut_relay_end_add(ut_relay_table *t, const ut_addr *host)
{
    for (uint32_t i = 0; i < UT_RELAY_ENDS; i++)
        if (!t->end[i].used) {
            t->end[i] = (ut_relay_end){.used = true, .host = *host};
            return (int)i;
        }
    return UT_ERR_FULL;
}

int ut_relay_end_remove(ut_relay_table *t, uint32_t end)
{
    if (!is_end(t, end))
        return UT_ERR_UNKNOWN;
    for (uint32_t i = 0; i < UT_RELAY_WAYS && t->end[end].ways > 0; i++)
        if (t->way[i].used && (t->way[i].from == end || t->way[i].to == end))
            ut_relay_way_remove(t, i);
    assert(t->end[end].ways == 0);
    t->end[end] = (ut_relay_end){.used = false};
    return UT_OK;
}

int ut_relay_end_is_at(ut_relay_table *t, uint32_t end, uint32_t port, const ut_addr *at)
{
    if (!is_end(t, end) || port > UT_PORT_FEEDBACK)
        return UT_ERR_UNKNOWN;
    if (!ut_relay_same_host(&t->end[end].host, at))
        return UT_ERR_ARGUMENT;
    t->end[end].at[port] = *at;
    return UT_OK;
}

int ut_relay_way_add(ut_relay_table *t, uint32_t from, uint32_t to, uint32_t cid)
{
    if (!is_end(t, from) || !is_end(t, to) || from == to)
        return UT_ERR_UNKNOWN;
    uint32_t *head = head_of(t, cid);
    for (uint32_t i = *head; i; i = t->way[i - 1].next)
        if (t->way[i - 1].cid == cid && t->way[i - 1].from == from)
            return t->way[i - 1].to == to ? (int)(i - 1) : UT_ERR_EXISTS;
    for (uint32_t i = 0; i < UT_RELAY_WAYS; i++)
        if (!t->way[i].used) {
            t->way[i] = (ut_relay_way){.used = true, .cid = cid, .from = from, .to = to, .next = *head};
            *head = i + 1;
            t->end[from].ways++;
            t->end[to].ways++;
            return (int)i;
        }
    return UT_ERR_FULL;
}

int ut_relay_way_remove(ut_relay_table *t, uint32_t way)
{
    if (way >= UT_RELAY_WAYS || !t->way[way].used)
        return UT_ERR_UNKNOWN;
    uint32_t *at = head_of(t, t->way[way].cid);
    while (*at != way + 1)
        at = &t->way[*at - 1].next;
    *at = t->way[way].next;
    t->end[t->way[way].from].ways--;
    t->end[t->way[way].to].ways--;
    t->way[way] = (ut_relay_way){.used = false};
    return UT_OK;
}

ut_relay_way *ut_relay_find(ut_relay_table *t, uint32_t cid, const ut_addr *from, const ut_addr **ret_to)
{
    for (uint32_t i = *head_of(t, cid); i; i = t->way[i - 1].next) {
        ut_relay_way *w = &t->way[i - 1];
        for (unsigned port = 0; w->cid == cid && port < 2; port++)
            if (same_socket(&t->end[w->from].at[port], from)) {
                *ret_to = &t->end[w->to].at[port];
                return (*ret_to)->len ? w : NULL;
            }
    }
    return NULL;
}
