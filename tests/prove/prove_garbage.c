/* SPDX-License-Identifier: Apache-2.0
 *
 * Garbage at the ports of a sealed job: as many datagrams as the first argument says (1e7 if none) into an engine, and
 * a hundredth of that through real sockets into a driver, while its ops go on. Nothing may go out that would not have
 * gone out in any case, no memory may be asked for, and all must be counted. Exit status 0 if that held.
 */
#define _GNU_SOURCE
#include "cluster.h"

#include <malloc.h>
#include <netinet/in.h>

#include "cipher/evp.h"
#include "cipher/keys.h"
#include "core/face/engine.h"

enum { N = 2, ELEMENTS = 100000, POOL = 1 << 20, ROUND = 100000 };

static uint8_t pool[POOL + 2048];

/* A datagram of the pool at a random place, made to look like ours in none, some or all of its first bytes. */
static size_t garbage(uint8_t *out, uint32_t cid)
{
    const uint64_t r = check_random();
    const size_t len = r % 1473;
    memcpy(out, pool + (r >> 16) % POOL, len);
    if (len > 0 && r >> 60 & 1)
        out[0] = (uint8_t)(0x31 + (r >> 62));
    if (len >= 8 && (r >> 56 & 3) == 0)
        for (unsigned i = 0; i < 4; i++)
            out[4 + i] = (uint8_t)(cid >> (24 - 8 * i));
    return len;
}

static uint64_t counted(const ut_stats *s)
{
    return s->unknown + s->malformed + s->bad_checksum + s->replayed;
}

static ut_engine *make_engine(ut_keys *keys, uint32_t *cid)
{
    const ut_engine_config config = {.packet_bytes = 1472, .segments_max = 8, .receive_buffer = 1 << 20, .seed = 5};
    const ut_job_config job = {
        .hosts = 2, .local_ranks = 1, .packet_bytes = 1472, .bucket_bytes_max = 1 << 20, .cipher = &ut_cipher_sealed};
    const ut_addr to = {.len = 1};
    const ut_key_context c = {.job = "job", .from = 1};
    const uint8_t secret[UT_SECRET_BYTES] = {1};
    const size_t bytes = (ut_engine_bytes(&config) + 63) & ~(size_t)63;
    const size_t job_bytes = (ut_job_bytes(&config, &job) + 63) & ~(size_t)63;
    void *memory = memset(aligned_alloc(64, bytes), 0, bytes);
    void *job_memory = memset(aligned_alloc(64, job_bytes), 0, job_bytes);
    ut_engine *e;
    CHECK_EQ(ut_engine_init(memory, &config, &e), UT_OK);
    CHECK_EQ(ut_engine_job_add(e, 0, &job, job_memory), UT_OK);
    CHECK_EQ(ut_engine_peer_listen(e, 0, 1, cid), UT_OK);
    for (unsigned out = 0; out < 2; out++)
        CHECK_EQ(ut_keys_begin(keys, out, ut_evp_suite(1), 1, secret, &c, &ut_key_life_usual, 0), UT_OK);
    CHECK_EQ(ut_engine_peer_keys(e, 0, 1, keys, keys), UT_OK);
    CHECK_EQ(ut_engine_peer_connect(e, 0, 1, &to, &to, 7, UT_SECOND), UT_OK);
    return e;
}

/* Returns the bytes that went out. */
static uint64_t into_an_engine(uint64_t count)
{
    static ut_keys keys;
    static ut_burst burst;
    static uint8_t datagram[2048];
    uint32_t cid;
    uint64_t out = 0;
    ut_stats s;
    ut_engine *e = make_engine(&keys, &cid);
    ut_ns now = 2 * UT_SECOND;
    ut_engine_tick(e, now);
    while (ut_engine_output(e, now, &burst))
        ; /* its greeting */
    const size_t memory = mallinfo2().uordblks;
    const ut_ns wake = ut_engine_next_wake(e);
    for (uint64_t i = 0; i < count; i++) {
        const size_t len = garbage(datagram, cid);
        ut_engine_input(e, i & 1, datagram, len, 0, false, now);
        if (i % ROUND)
            continue;
        ut_engine_tick(e, now);
        while (ut_engine_output(e, now, &burst))
            out += burst.bytes;
    }
    while (ut_engine_output(e, now, &burst))
        out += burst.bytes;
    ut_engine_stats(e, &s);
    CHECK_EQ(counted(&s), count);
    CHECK_EQ(ut_engine_next_wake(e), wake);
    CHECK_EQ(mallinfo2().uordblks, memory);
    printf("%" PRIu64 " datagrams into an engine: %" PRIu64 " counted, %" PRIu64
           " bytes out, %zd bytes of memory more\n",
           count, counted(&s), out, mallinfo2().uordblks - memory);
    return out;
}

static void one_op(uint64_t op)
{
    for (uint32_t i = 0; i < N; i++)
        submit(&hosts[i].trainer, op, ELEMENTS, 20000);
    for (uint32_t i = 0; i < N; i++) {
        ut_receipt r;
        CHECK(wait_receipt(&hosts[i].trainer, &r) && r.status == UT_COMPLETE);
    }
}

/* Whether anything came back to the one who sent. */
static bool through_sockets(uint64_t count)
{
    static uint8_t datagram[2048];
    ut_driver_stats before, after;
    uint64_t ops = 0, sent = 0;
    suite = UT_SUITE_AES_128_GCM;
    cluster_open(N);
    one_op(ops++);
    ut_driver_get_stats(hosts[0].driver, &before);
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    while (sent < count) {
        const struct sockaddr_in to = {.sin_family = AF_INET,
                                       .sin_port =
                                           htons(sent & 1 ? hosts[0].info.data_port : hosts[0].info.feedback_port),
                                       .sin_addr = {htonl(INADDR_LOOPBACK)}};
        const size_t len = garbage(datagram, (uint32_t)check_random());
        sent += sendto(fd, datagram, len, 0, (const struct sockaddr *)&to, sizeof to) == (ssize_t)len;
        if (sent % 5000 == 0)
            one_op(ops++);
    }
    struct pollfd heard = {.fd = fd, .events = POLLIN};
    const bool answered = poll(&heard, 1, 200) != 0;
    one_op(ops++);
    ut_driver_get_stats(hosts[0].driver, &after);
    printf("%" PRIu64 " datagrams through sockets: %" PRIu64 " counted (the kernel dropped the others), %s; %" PRIu64
           " ops of 2 hosts between them, all whole\n",
           sent, counted(&after.engine) - counted(&before.engine), answered ? "ANSWERED" : "0 bytes back", ops);
    close(fd);
    cluster_close(N);
    return answered;
}

int main(int argc, char **argv)
{
    const double asked = argc > 1 ? strtod(argv[1], NULL) : 1e7;
    check_run.program = argv[0];
    check_run.seed = check_run.state = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    for (size_t i = 0; i + 8 <= sizeof pool; i += 8) {
        const uint64_t r = check_random();
        memcpy(pool + i, &r, 8);
    }
    const uint64_t out = into_an_engine((uint64_t)asked);
    const bool answered = through_sockets((uint64_t)(asked / 100));
    return out || answered || check_run.failures ? 1 : 0;
}
