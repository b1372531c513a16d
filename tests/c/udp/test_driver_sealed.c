/* SPDX-License-Identifier: Apache-2.0
 *
 * Sealed jobs over real sockets, with each of the library's ciphers.
 */
#define _GNU_SOURCE
#include "cluster.h"

#include <netinet/in.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "cipher/aead.h"

enum { N = 3, ELEMENTS = 100000 };

static void run_ops(uint64_t first, unsigned count)
{
    for (uint64_t op = first; op < first + count; op++) {
        for (uint32_t i = 0; i < N; i++) {
            for (unsigned e = 0; e < ELEMENTS; e++)
                hosts[i].trainer.arena[e] = (float)((1u << i) + e % 1000);
            submit(&hosts[i].trainer, op, ELEMENTS, 10000);
        }
        for (uint32_t i = 0; i < N; i++) {
            ut_receipt r;
            CHECK(wait_receipt(&hosts[i].trainer, &r));
            CHECK_EQ(r.status, UT_COMPLETE);
            unsigned wrong = 0;
            for (unsigned e = 0; e < ELEMENTS; e++)
                wrong += hosts[i].trainer.arena[e] != (float)((1u << N) - 1 + N * (e % 1000));
            CHECK_EQ(wrong, 0);
        }
    }
}

static ut_driver_stats stats_of(uint32_t i)
{
    ut_driver_stats s;
    ut_driver_get_stats(hosts[i].driver, &s);
    return s;
}

static void sealed__ops_are_right_with_each_suite(void)
{
    for (suite = 1; suite < UT_SUITES_END; suite++) {
        cluster_open(N);
        run_ops(0, 3);
        for (uint32_t i = 0; i < N; i++) {
            ut_stats s = stats_of(i).engine;
            CHECK_EQ(s.bad_checksum + s.malformed + s.data_refused, 0);
            CHECK_GE(s.data_used, 1);
        }
        cluster_close(N);
    }
    suite = 0;
}

/* What a stranger sends is counted, and nothing comes back. */
static void sealed__a_stranger_hears_nothing(void)
{
    enum { SENT = 2000 };
    suite = UT_SUITE_AES_128_GCM;
    cluster_open(N);
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    const uint64_t before = stats_of(0).engine.packets_received;
    run_ops(0, 1);
    for (unsigned i = 0; i < SENT; i++) {
        uint8_t bytes[1472];
        struct sockaddr_in to = {.sin_family = AF_INET,
                                 .sin_port = htons(i % 2 ? hosts[0].info.data_port : hosts[0].info.feedback_port),
                                 .sin_addr = {htonl(INADDR_LOOPBACK)}};
        for (size_t k = 0; k < sizeof bytes; k += 8) {
            uint64_t r = check_random();
            memcpy(bytes + k, &r, 8);
        }
        bytes[0] = (uint8_t)(0x41 + check_below(4));
        CHECK_GE(sendto(fd, bytes, 33 + check_below(1400), 0, (struct sockaddr *)&to, sizeof to), 33);
        if (i % 100 == 99)
            run_ops(1 + i / 100, 1);
    }
    struct pollfd heard = {.fd = fd, .events = POLLIN};
    CHECK_EQ(poll(&heard, 1, 0), 0);
    const ut_stats s = stats_of(0).engine;
    CHECK(s.packets_received > before);
    CHECK_GE(s.unknown + s.malformed + s.bad_checksum, SENT / 2); /* the kernel may drop some */
    close(fd);
    cluster_close(N);
    suite = 0;
}

/* Fresh secrets for all directions after each op, as daemons give them: no packet is refused for it. */
static void sealed__fresh_secrets_cost_no_packet(void)
{
    unsigned renewed = 0;
    suite = UT_SUITE_AES_128_GCM;
    cluster_open(N);
    for (unsigned op = 0; op < 8; op++) {
        for (uint32_t i = 0; i < N; i++)
            for (uint32_t k = 0; k < N; k++) {
                ut_driver_seal seal = i == k ? (ut_driver_seal){0} : *seal_of(k, i);
                seal.secret[5] = (uint8_t)(op + 1);
                if (i == k)
                    continue;
                const int result = ut_driver_peer_renew(hosts[i].driver, 0, k, false, cids[i][k], &seal);
                CHECK(result == UT_OK || result == UT_ERR_FULL); /* full: no packet came since the last one */
                if (result == UT_OK)
                    CHECK_EQ(ut_driver_peer_renew(hosts[k].driver, 0, i, true, cids[i][k], &seal), UT_OK);
                renewed += result == UT_OK;
            }
        run_ops(op, 1);
        usleep(100000); /* keys rest 600 ms between two changes */
    }
    CHECK_GE(renewed, N * (N - 1));
    for (uint32_t i = 0; i < N; i++) {
        const ut_stats s = stats_of(i).engine;
        CHECK_EQ(s.bad_checksum + s.malformed + s.data_refused, 0);
    }
    ut_driver_seal seal = *seal_of(1, 0);
    seal.secret[6] = 77;
    CHECK_EQ(ut_driver_peer_renew(hosts[0].driver, 0, 1, false, cids[0][1] + 1, &seal), UT_ERR_UNKNOWN);
    CHECK_EQ(ut_driver_peer_renew(hosts[0].driver, 0, 1, false, cids[0][1], NULL), UT_ERR_ARGUMENT);
    CHECK_EQ(ut_driver_peer_renew(hosts[0].driver, 0, 9, false, cids[0][1], &seal), UT_ERR_UNKNOWN);
    cluster_close(N);
    suite = 0;
}

static void sealed__what_is_refused(void)
{
    uint32_t cid;
    suite = UT_SUITE_AES_128_GCM;
    cluster_open(2);
    ut_driver *d = hosts[0].driver;
    ut_driver_seal seal = *seal_of(1, 0);
    CHECK_EQ(ut_driver_peer_listen(d, 0, 1, NULL, &cid), UT_ERR_ARGUMENT);
    CHECK(strstr(ut_driver_error(d), "seal: must be given") != NULL);
    seal.suite = UT_SUITES_END;
    CHECK_EQ(ut_driver_peer_listen(d, 0, 1, &seal, &cid), UT_ERR_ARGUMENT);
    seal.suite = 1;
    CHECK_EQ(ut_driver_peer_listen(d, 0, 1, &seal, &cid), UT_OK); /* the id is new, and with it the keys */
    CHECK_EQ(ut_driver_peer_connect(d, 0, 1, address, 1, 2, 7, NULL), UT_ERR_ARGUMENT);
    CHECK_EQ(ut_driver_peer_connect(d, 0, 1, address, 1, 2, 7, &seal), UT_OK);
    CHECK_EQ(ut_driver_peer_connect(d, 0, 1, address, 1, 2, 7, &seal), UT_ERR_EXISTS);
    CHECK(strstr(ut_driver_error(d), "sealed with this secret before") != NULL);
    cluster_close(2);
    suite = 0;
    cluster_open(2);
    CHECK_EQ(ut_driver_peer_listen(hosts[0].driver, 0, 1, &seal, &cid), UT_ERR_ARGUMENT); /* the job is not sealed */
    cluster_close(2);
}

static void sealed__nobody_dumps_the_process(void)
{
    CHECK_EQ(prctl(PR_GET_DUMPABLE), 0); /* since the first sealed job of this program */
    CHECK_EQ(ut_driver_suite("chacha20-poly1305"), UT_SUITE_CHACHA20_POLY1305);
    CHECK_EQ(ut_driver_suite("rot13"), 0);
    CHECK(ut_driver_suite("auto") != 0);
    CHECK(strcmp(ut_driver_suite_name(1), "aes-128-gcm") == 0);
    CHECK(ut_driver_suite_name(9) == NULL);
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(sealed__ops_are_right_with_each_suite);
    RUN(sealed__a_stranger_hears_nothing);
    RUN(sealed__fresh_secrets_cost_no_packet);
    RUN(sealed__what_is_refused);
    RUN(sealed__nobody_dumps_the_process);
    return check_end();
}
