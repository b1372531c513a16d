/* SPDX-License-Identifier: Apache-2.0
 *
 * Keys that change all the time, in whole engines over real ciphers: as many changes as the first argument says (1e4 if
 * none), with fresh secrets of which each sender hears late. Not one datagram may be refused for its key, and each op
 * must be whole. Half of it over a wire that loses packets, with a change after every few packets; half over one that
 * holds packets up and doubles them, with the rest between changes that daemons keep. Exit status 0 if all held.
 */
#include "cipher/forger.h"

#include "kernels/kernels.h"

static uint64_t changes, renewals, refused, ops, whole, packets;

static void count_and_end(void)
{
    for (uint32_t h = 0; h < n; h++) {
        ut_stats s;
        ut_engine_stats(hosts[h].engine, &s);
        refused += s.bad_checksum + s.unknown + s.malformed;
        packets += s.packets_received;
    }
    forged_end();
}

/* A fresh secret for packets from |from| to |to|, which goes to one end, or, if |late|, to both. */
static uint8_t pending[MOST][MOST][UT_SECRET_BYTES];
static bool told[MOST][MOST];

static void renew(uint32_t from, uint32_t to)
{
    ut_keys *sender = &path_keys[from][to], *receiver = &path_keys[to][from];
    const ut_key_context c = {.job = "job", .generation = 3, .from = from, .to = to, .cid = receiver->in.cid};
    if (!told[from][to]) {
        if (check_below(3) == 0)
            CHECK_EQ(ut_keys_renew(sender, true, path_suite, pending[from][to], &c), UT_OK);
        else
            return;
        told[from][to] = true;
    } else if (!receiver->in.fresh && check_below(2)) {
        for (unsigned i = 0; i < UT_SECRET_BYTES; i++)
            pending[from][to][i] = (uint8_t)check_random();
        CHECK_EQ(ut_keys_renew(receiver, false, path_suite, pending[from][to], &c), UT_OK);
        told[from][to] = false;
        renewals++;
    }
}

static uint64_t changes_now(void)
{
    uint64_t sum = 0;
    for (uint32_t h = 0; h < n; h++)
        for (uint32_t p = 0; p < n; p++)
            sum += h == p ? 0 : path_keys[h][p].out.changes;
    return sum;
}

static void part(uint64_t until, unsigned suite, ut_key_life life, uint32_t loss, uint32_t late)
{
    forged_begin(suite, life);
    memset(told, 1, sizeof told);
    change = NULL;
    loss_ppm = loss;
    late_ppm = late;
    const uint64_t before = changes;
    for (uint64_t op = 0; changes < until; op++, ops++) {
        whole += forged_op(op);
        for (uint32_t h = 0; h < n; h++)
            for (uint32_t p = 0; p < n; p++)
                if (h != p)
                    renew(h, p);
        changes = before + changes_now();
    }
    count_and_end();
}

int main(int argc, char **argv)
{
    const double asked = argc > 1 ? strtod(argv[1], NULL) : 1e4;
    check_run.program = argv[0];
    check_run.seed = check_run.state = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    part((uint64_t)(asked / 2), UT_SUITE_AES_128_GCM, (ut_key_life){3, UINT64_MAX, UT_NEVER, 0}, 10000, 0);
    ut_key_life rests = ut_key_life_usual;
    rests.packets = 3;
    part((uint64_t)asked, UT_SUITE_CHACHA20_POLY1305, rests, 10000, 20000);
    printf("%" PRIu64 " changes of keys, %" PRIu64 " of them to fresh secrets, %" PRIu64 " datagrams, %" PRIu64
           " refused; %" PRIu64 " ops, %" PRIu64 " whole\n",
           changes, renewals, packets, refused, ops, whole);
    return refused || ops != whole || check_run.failures ? 1 : 0;
}
