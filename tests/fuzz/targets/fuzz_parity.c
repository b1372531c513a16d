/* SPDX-License-Identifier: Apache-2.0
 *
 * What a peer may send of parity, in any order: members that are kept, true parity of a group, and any parity at all.
 * What is brought back is of the group, and where all that was kept is true, it is true too.
 */
#include "fuzz.h"

#include "core/path/parity.h"

enum { PAYLOAD = 24, ROOM = 40, SLOTS = 48, MOST = 30 };

static ut_parity sender, receiver;
static ut_parity_kept what[2][ROOM];
static uint8_t bytes[2][ROOM * PAYLOAD], sums[2][UT_PARITY_GROUPS * UT_PARITY_MOST * PAYLOAD];
static bool honest;

/* The payload of a slot; the last one is shorter. */
static uint32_t payload_of(ut_parity_name of, uint32_t slot, uint8_t *out)
{
    const uint32_t len = slot + 1 == SLOTS ? PAYLOAD / 3 : PAYLOAD;
    for (uint32_t i = 0; i < len; i++)
        out[i] = (uint8_t)((of.op_seq * 31 + of.step * 7 + slot * 5 + 1) * (i + 3));
    return len;
}

static ut_parity_group group_of(input *in)
{
    return (ut_parity_group){
        .of = {take8(in) & 1, take8(in) & 1}, .first = take8(in) % SLOTS, .coverage = take8(in) & 1};
}

static void keep(input *in)
{
    uint8_t payload[PAYLOAD];
    const ut_parity_group g = group_of(in);
    for (uint32_t n = take8(in) % ROOM, k = 0; k < n; k++) {
        const uint32_t slot = (g.first + k) % SLOTS, len = payload_of(g.of, slot, payload);
        ut_parity_keep(&receiver, &(ut_parity_group){.of = g.of, .first = slot, .coverage = g.coverage}, payload, len);
    }
}

static void solve(const ut_parity_group *g)
{
    ut_parity_found found;
    uint8_t payload[PAYLOAD];
    ut_parity_solve(&receiver, g, SLOTS, &found);
    MUST(found.packets <= g->members && found.packets <= UT_PARITY_MOST);
    for (uint32_t k = 0; k < found.packets; k++) {
        MUST(found.slot[k] < SLOTS && found.len <= PAYLOAD);
        MUST((found.slot[k] + SLOTS - g->first) % SLOTS < g->members);
        MUST(found.payload[k] >= bytes[1] && found.payload[k] + found.len <= bytes[1] + sizeof bytes[1]);
        const uint32_t len = payload_of(g->of, found.slot[k], payload);
        MUST(!honest || (found.len >= len && memcmp(found.payload[k], payload, len) == 0));
    }
}

/* A true group; some of its parity is lost. */
static void truth(input *in)
{
    uint8_t payload[PAYLOAD];
    ut_parity_group g = group_of(in);
    const uint32_t members = 1 + take8(in) % MOST, parities = 1 + take8(in) % UT_PARITY_MOST;
    const uint16_t lost = take16(in);
    ut_parity_sums *s = ut_parity_begin(&sender, &g, members, parities);
    for (uint32_t k = 0; k < members; k++) {
        const uint32_t len = payload_of(g.of, (g.first + k) % SLOTS, payload);
        ut_parity_add(&sender, s, payload, len);
    }
    MUST(ut_parity_due(&sender) == s);
    g.members = (uint16_t)members;
    for (uint32_t k = 0; k < parities; k++)
        if (!(lost >> k & 1)) {
            MUST(ut_parity_came(&receiver, &g, k, s->sum + k * PAYLOAD, s->bytes));
            solve(&g);
        }
    s->parities = 0;
}

static void lie(input *in)
{
    uint8_t payload[PAYLOAD + 1];
    ut_parity_group g = group_of(in);
    g.members = take8(in);
    const uint32_t index = take8(in), len = take8(in) % (sizeof payload + 1);
    take(in, payload, len);
    const bool taken = ut_parity_came(&receiver, &g, index, payload, len);
    MUST(taken == (index < UT_PARITY_MOST && g.members > 0 && g.members <= UT_PARITY_GROUP && len <= PAYLOAD));
    honest = honest && !taken;
    if (taken && g.members <= SLOTS)
        solve(&g);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    input in = {data, size};
    ut_parity_init(&sender, PAYLOAD, ROOM, what[0], bytes[0], sums[0]);
    ut_parity_init(&receiver, PAYLOAD, ROOM, what[1], bytes[1], sums[1]);
    honest = true;
    receiver.keeps = take8(&in) & 1; /* otherwise the first parity begins it */
    while (in.left)
        switch (take8(&in) % 4) {
        case 0:
            lie(&in);
            break;
        case 1:
            truth(&in);
            break;
        case 2:
            keep(&in);
            break;
        default:
            ut_parity_reset_receiving(&receiver);
        }
    return 0;
}
