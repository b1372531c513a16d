/* SPDX-License-Identifier: Apache-2.0
 *
 * Two hosts over real sockets with a NAT between them, made of sockets, which forgets: what host 1 sends then comes to
 * host 0 from other ports, and what goes to the old ones reaches nobody.
 */
#define _GNU_SOURCE
#include "cluster.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>

#include "cipher/aead.h"

enum { N = 2, ELEMENTS = 200000, DATAGRAM = 65536 };

/* By enum ut_port: where host 1 sends what is for host 0; and where host 0 sees host 1. */
static int inner[2], outer[2];
static pthread_mutex_t nat_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_t nat_thread;
static bool nat_runs;

static int open_port(void)
{
    const struct sockaddr_in any = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), room = 4 << 20;
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &room, sizeof room);
    CHECK_EQ(bind(fd, (const struct sockaddr *)&any, sizeof any), 0);
    return fd;
}

static uint16_t port_number(int fd)
{
    struct sockaddr_in at;
    socklen_t len = sizeof at;
    CHECK_EQ(getsockname(fd, (struct sockaddr *)&at, &len), 0);
    return ntohs(at.sin_port);
}

static void hand_on(int from, int by, uint16_t to)
{
    static uint8_t bytes[DATAGRAM];
    const struct sockaddr_in there = {
        .sin_family = AF_INET, .sin_port = htons(to), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    for (ssize_t len; (len = recv(from, bytes, sizeof bytes, 0)) >= 0;)
        (void)!sendto(by, bytes, (size_t)len, 0, (const struct sockaddr *)&there, sizeof there); /* or it is lost */
}

static void *nat(void *unused)
{
    (void)unused;
    while (__atomic_load_n(&nat_runs, __ATOMIC_SEQ_CST)) {
        pthread_mutex_lock(&nat_lock);
        for (unsigned port = 0; port < 2; port++) {
            const bool data = port == UT_PORT_DATA;
            hand_on(inner[port], outer[port], data ? hosts[0].info.data_port : hosts[0].info.feedback_port);
            hand_on(outer[port], inner[port], data ? hosts[1].info.data_port : hosts[1].info.feedback_port);
        }
        pthread_mutex_unlock(&nat_lock);
        usleep(100);
    }
    return NULL;
}

static void nat_open(void)
{
    for (unsigned port = 0; port < 2; port++) {
        inner[port] = open_port();
        outer[port] = open_port();
    }
    nat_runs = true;
    CHECK_EQ(pthread_create(&nat_thread, NULL, nat, NULL), 0);
}

static void nat_close(void)
{
    __atomic_store_n(&nat_runs, false, __ATOMIC_SEQ_CST);
    pthread_join(nat_thread, NULL);
    for (unsigned port = 0; port < 2; port++) {
        close(inner[port]);
        close(outer[port]);
    }
}

static void nat_forgets(unsigned port)
{
    const int old = outer[port], new = open_port();
    pthread_mutex_lock(&nat_lock);
    outer[port] = new;
    pthread_mutex_unlock(&nat_lock);
    close(old);
}

static uint16_t through_nat(uint32_t of, uint32_t by, unsigned port)
{
    CHECK_NE(of, by);
    return port_number(of == 0 ? inner[port] : outer[port]);
}

/* Takes what the drivers have told; the newest address of the data port is the one of now. Feedback may go beside data
 * for long, and its own port is then found later. */
static unsigned moves_told(void)
{
    uint16_t newest = 0;
    unsigned moves = 0;
    for (uint32_t h = 0; h < N; h++)
        for (ut_event e; ut_driver_poll_event(hosts[h].driver, &e);)
            if (e.kind == UT_EVENT_PATH_MOVED) {
                struct sockaddr_in at;
                const uint64_t words[2] = {e.b, e.c};
                memcpy(&at, words, sizeof at);
                CHECK_EQ(h, 0);
                CHECK_EQ(e.host, 1);
                CHECK_EQ(at.sin_family, AF_INET);
                CHECK_EQ(ntohl(at.sin_addr.s_addr), INADDR_LOOPBACK);
                newest = e.a == UT_PORT_DATA ? ntohs(at.sin_port) : newest;
                moves++;
            }
    CHECK(!newest || newest == port_number(outer[UT_PORT_DATA]));
    return moves;
}

/* Each of the ports, and both, in the middle of an op and between two. */
static void moves__a_nat_forgets_and_all_is_complete(void)
{
    ut_driver_stats s;
    uint64_t op = 0;
    suite = UT_SUITE_AES_128_GCM;
    reached_at = through_nat;
    nat_open();
    cluster_open(N);
    all_reduce(N, op++, ELEMENTS);
    CHECK_EQ(moves_told(), 0);
    for (unsigned ports = 1; ports <= 3; ports++)
        for (unsigned during = 0; during < 2; during++) {
            if (during)
                for (uint32_t h = 0; h < N; h++) {
                    memset(hosts[h].trainer.arena, 0, ELEMENTS * sizeof(float));
                    submit(&hosts[h].trainer, op, ELEMENTS, PATIENCE_MS);
                }
            for (unsigned port = 0; port < 2; port++)
                if (ports >> port & 1)
                    nat_forgets(port);
            for (uint32_t h = 0; during && h < N; h++) {
                ut_receipt r;
                if (wait_receipt(&hosts[h].trainer, &r))
                    CHECK_EQ(r.status, UT_COMPLETE);
            }
            op += during;
            for (unsigned more = 0; more < 3; more++)
                all_reduce(N, op++, ELEMENTS);
            CHECK_MSG(moves_told() >= 1 || ports == 1 << UT_PORT_FEEDBACK, "ports %u, during %u", ports, during);
        }
    ut_driver_get_stats(hosts[0].driver, &s);
    CHECK_GE(s.engine.path_moves, 4);
    CHECK_EQ(s.engine.bad_checksum + s.engine.malformed + s.engine.data_refused, 0);
    ut_driver_get_stats(hosts[1].driver, &s);
    CHECK_EQ(s.engine.path_moves, 0); /* what host 0 sends comes from where it came before */
    cluster_close(N);
    nat_close();
    reached_at = NULL;
    suite = 0;
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(moves__a_nat_forgets_and_all_is_complete);
    return check_end();
}
