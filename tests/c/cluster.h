/* SPDX-License-Identifier: Apache-2.0
 *
 * A cluster in one process, for the driver's tests: up to four drivers with real sockets and threads over loopback,
 * one trainer each, played by the test with the rings and bells that the daemon would pass. Waits are bounded and
 * generous.
 */
#ifndef UT_TEST_CLUSTER_H
#define UT_TEST_CLUSTER_H

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "check.h"
#include "udp/driver.h"

enum { ARENA = 4 << 20, PATIENCE_MS = 20000, HOSTS_MAX = 4 };

typedef struct trainer {
    ut_submission_ring *submissions;
    ut_completion_ring *completions;
    float *arena;
    int submit_fd, complete_fd;
    int session;
} trainer;

typedef struct host {
    ut_driver *driver;
    ut_driver_info info;
    int job;
    trainer trainer;
} host;

static host hosts[HOSTS_MAX];
static const char *address = "127.0.0.1";
static int32_t gso = 1, gro = 1;
static uint32_t suite; /* of sealed packets; 0: they are not */

/* ---- playing a cluster ---- */

__attribute__((unused)) static ut_driver *open_driver_beside(ut_driver *first)
{
    char error[256];
    const ut_driver_config config = {.bind = address, .gso = gso, .gro = gro, .beside = first};
    ut_driver *d = ut_driver_open(&config, error, sizeof(error));
    if (!d) {
        fprintf(stderr, "%s: open: %s\n", check_run.test, error);
        exit(1);
    }
    return d;
}

__attribute__((unused)) static ut_driver *open_driver(void)
{
    return open_driver_beside(NULL);
}

__attribute__((unused)) static void *map_memfd(size_t bytes)
{
    int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    CHECK_EQ(ftruncate(fd, (off_t)bytes), 0);
    void *p = ut_driver_region_map(fd, bytes);
    CHECK(p != NULL);
    close(fd);
    return p;
}

/* The bell that the driver rings: returns its end, already shut for reading; |ret| is the trainer's. */
__attribute__((unused)) static int make_bell(int *ret)
{
    int ends[2];
    CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
    CHECK_EQ(shutdown(ends[0], SHUT_RD), 0);
    *ret = ends[1];
    return ends[0];
}

__attribute__((unused)) static void attach(host *h, uint64_t first_op_seq)
{
    trainer *t = &h->trainer;
    t->submissions = map_memfd(sizeof(*t->submissions));
    t->completions = map_memfd(sizeof(*t->completions));
    t->arena = map_memfd(ARENA);
    t->submit_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    const int bell = make_bell(&t->complete_fd);
    t->session = ut_driver_session_add(h->driver, (uint32_t)h->job, t->submissions, t->completions, t->arena, ARENA,
                                       t->submit_fd, bell, first_op_seq, 0);
    close(bell);
    CHECK_MSG(t->session >= 0, "%s", ut_driver_error(h->driver));
}

/* Whether the driver knows the session or not, its memory goes. */
__attribute__((unused)) static void let_go(host *h)
{
    trainer *t = &h->trainer;
    ut_driver_region_unmap(t->submissions, sizeof(*t->submissions), 1);
    ut_driver_region_unmap(t->completions, sizeof(*t->completions), 1);
    ut_driver_region_unmap(t->arena, ARENA, 1);
    close(t->submit_fd);
    close(t->complete_fd);
    *t = (trainer){.session = -1};
}

__attribute__((unused)) static ut_job_config job_config(uint32_t n, uint32_t self)
{
    return (ut_job_config){.hosts = n,
                           .self = self,
                           .local_ranks = 1,
                           .packet_bytes = hosts[self].info.packet_bytes,
                           .bucket_bytes_max = ARENA,
                           .cipher = suite ? ut_driver_cipher() : NULL};
}

/* For packets from host |from| to host |to|; NULL if none are sealed. Good until the next call. */
__attribute__((unused)) static const ut_driver_seal *seal_of(uint32_t from, uint32_t to)
{
    static ut_driver_seal seal;
    seal = (ut_driver_seal){.suite = suite, .secret = {(uint8_t)from, (uint8_t)to, 9}, .generation = 3, .job = "job"};
    return suite ? &seal : NULL;
}

/* [host][peer]: under which id the host listens to the peer, in the lane that was opened last. */
static uint32_t cids[HOSTS_MAX][HOSTS_MAX];

/* If it is set, it says at which port |by| reaches |port| (enum ut_port) of host |of|. */
static uint16_t (*reached_at)(uint32_t of, uint32_t by, unsigned port);

__attribute__((unused)) static uint16_t port_of(const host *hosts, uint32_t of, uint32_t by, unsigned port)
{
    const ut_driver_info *info = &hosts[of].info;
    return reached_at ? reached_at(of, by, port) : port == UT_PORT_DATA ? info->data_port : info->feedback_port;
}

/* |n| drivers of as many hosts, each for one lane of a job. Those from hosts[n] on are second lanes: each shares its
 * link with the driver |n| before it. */
__attribute__((unused)) static void lane_open(host *hosts, uint32_t n, bool second)
{
    for (uint32_t i = 0; i < n; i++) {
        hosts[i].driver = open_driver_beside(second ? hosts[(int)i - (int)n].driver : NULL);
        ut_driver_get_info(hosts[i].driver, &hosts[i].info);
        const ut_job_config config = job_config(n, i);
        hosts[i].job = ut_driver_job_add(hosts[i].driver, &config);
        CHECK_MSG(hosts[i].job >= 0, "%s", ut_driver_error(hosts[i].driver));
        attach(&hosts[i], 0);
    }
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = 0; k < n; k++)
            if (i != k)
                CHECK_EQ(ut_driver_peer_listen(hosts[i].driver, (uint32_t)hosts[i].job, k, seal_of(k, i), &cids[i][k]),
                         UT_OK);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = 0; k < n; k++)
            if (i != k)
                CHECK_EQ(ut_driver_peer_connect(hosts[i].driver, (uint32_t)hosts[i].job, k, address,
                                                port_of(hosts, k, i, UT_PORT_DATA),
                                                port_of(hosts, k, i, UT_PORT_FEEDBACK), cids[k][i], seal_of(i, k)),
                         UT_OK);
}

__attribute__((unused)) static void cluster_open(uint32_t n)
{
    lane_open(hosts, n, false);
}

__attribute__((unused)) static void cluster_close(uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        ut_driver_close(hosts[i].driver);
        if (hosts[i].trainer.arena)
            let_go(&hosts[i]);
    }
}

__attribute__((unused)) static void ring(const trainer *t)
{
    const uint64_t one = 1;
    CHECK_EQ(write(t->submit_fd, &one, sizeof(one)), sizeof(one));
}

__attribute__((unused)) static void submit(trainer *t, uint64_t op_seq, uint64_t count, unsigned budget_ms)
{
    const ut_submission s = {.op_seq = op_seq,
                             .count = count,
                             .deadline_ns = ut_driver_now() + budget_ms * UT_MS,
                             .dtype = UT_FLOAT32,
                             .redop = UT_SUM,
                             .mode = UT_BOUNDED};
    CHECK_EQ(ut_ring_submit(t->submissions, t->completions, &s), UT_OK);
    ring(t);
}

/* Waits for the next receipt, by the ring and the bell as a trainer does. */
__attribute__((unused)) static bool wait_receipt(trainer *t, ut_receipt *ret)
{
    struct pollfd p = {.fd = t->complete_fd, .events = POLLIN};
    char rings[64];
    const ut_ns until = ut_driver_now() + PATIENCE_MS * UT_MS;
    while (!ut_ring_take_completion(t->submissions, t->completions, ret)) {
        if (poll(&p, 1, 1000) > 0 && recv(t->complete_fd, rings, sizeof(rings), MSG_DONTWAIT) < 0)
            CHECK_EQ(errno, EAGAIN);
        if (ut_driver_now() > until)
            return CHECK_MSG(false, "no receipt within %d ms", PATIENCE_MS);
    }
    return true;
}

/* Waits until the driver's thread has nothing to do; returns whether it ever came to that. */
__attribute__((unused)) static bool wait_idle(ut_driver *d)
{
    ut_driver_stats before, after;
    for (unsigned i = 0; i < 200; i++) {
        ut_driver_get_stats(d, &before);
        usleep(100000);
        ut_driver_get_stats(d, &after);
        if (after.polls == before.polls && after.polls > 0)
            return true;
    }
    return false;
}

__attribute__((unused)) static float value_of(uint32_t self, uint64_t i)
{
    return (float)((self + 1) * 1000 + i % 911);
}

/* One op on all hosts, with values that show who is in the sum and where. */
__attribute__((unused)) static void all_reduce(uint32_t n, uint64_t op_seq, uint64_t count)
{
    ut_receipt r;
    for (uint32_t h = 0; h < n; h++)
        for (uint64_t i = 0; i < count; i++)
            hosts[h].trainer.arena[i] = value_of(h, i);
    for (uint32_t h = 0; h < n; h++)
        submit(&hosts[h].trainer, op_seq, count, PATIENCE_MS);
    for (uint32_t h = 0; h < n; h++) {
        if (!wait_receipt(&hosts[h].trainer, &r))
            return;
        CHECK_EQ(r.op_seq, op_seq);
        CHECK_MSG(r.status == UT_COMPLETE, "host %u: status %u, error %d", h, r.status, r.error);
        uint64_t wrong = 0;
        for (uint64_t i = 0; i < count; i++) {
            float want = 0;
            for (uint32_t k = 0; k < n; k++)
                want += value_of(k, i);
            wrong += hosts[h].trainer.arena[i] != want;
        }
        CHECK_MSG(wrong == 0, "host %u: %" PRIu64 " of %" PRIu64 " elements wrong", h, wrong, count);
    }
}

#endif
