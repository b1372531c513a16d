/* SPDX-License-Identifier: Apache-2.0
 *
 * The seal seam, with a cipher that is none: every datagram of every kind passes it once on its way out and once on its
 * way in, nothing that it refuses is looked at, and what it adds is in every account.
 */
#include "engines.h"

#include "core/wire/burst.h"

enum { TAG = 16, EPOCH = 7, NUMBERS = 1 << 14, KINDS = UT_KIND_PATH + 1, INDICES = 8 };

/* ---- the cipher ---- */

/* What was sealed under each key: [key][kind][index] and a bit per number. */
static uint64_t used[MOST * MOST + 1][KINDS][INDICES][NUMBERS / 64];
static uint64_t sealed, opened, refused;

static uint64_t tag_of(uint8_t key, const ut_sealed *p)
{
    uint64_t sum = 0xcbf29ce484222325 ^ key ^ (uint64_t)p->kind << 8 ^ (uint64_t)p->index << 16 ^ p->number << 24;
    for (uint32_t i = 0; i < p->header + p->body; i++)
        sum = (sum ^ p->bytes[i]) * 0x100000001b3;
    return sum;
}

static void cross(uint8_t key, const ut_sealed *p)
{
    for (uint32_t i = 0; i < p->body; i++)
        p->bytes[p->header + i] ^= (uint8_t)(0xa5 ^ key ^ p->number ^ i * 7);
}

static void fake_seal(void *of, const ut_sealed *packets, uint32_t count, ut_ns at)
{
    (void)at;
    uint8_t key = *(uint8_t *)of;
    for (uint32_t i = 0; i < count; i++) {
        const ut_sealed *p = &packets[i];
        CHECK(p->kind >= UT_KIND_DATA && p->kind < KINDS && p->index < INDICES && p->number < NUMBERS);
        uint64_t *words = used[key][p->kind][p->index], bit = 1ULL << p->number % 64;
        CHECK_MSG(!(words[p->number / 64] & bit), "key %u seals %u of kind %u under number %" PRIu64 " again", key,
                  p->index, p->kind, p->number);
        words[p->number / 64] |= bit;
        CHECK(p->epoch > p->bytes && p->epoch + 4 <= p->bytes + p->header);
        p->epoch[0] = EPOCH;
        cross(key, p);
        for (unsigned k = 0; k < TAG; k++)
            p->bytes[p->header + p->body + k] = (uint8_t)(tag_of(key, p) >> k % 8 * 8);
        sealed++;
    }
}

static bool fake_open(void *of, const ut_sealed *p, ut_ns at)
{
    (void)at;
    uint8_t key = *(uint8_t *)of;
    bool right = p->epoch[0] == EPOCH;
    for (unsigned k = 0; k < TAG; k++)
        right = right && p->bytes[p->header + p->body + k] == (uint8_t)(tag_of(key, p) >> k % 8 * 8);
    if (right)
        cross(key, p);
    opened += right;
    refused += !right;
    return right;
}

static const ut_cipher fake = {"fake", TAG, fake_seal, fake_open};

/* ---- hosts ---- */

enum { HOSTS = 3 };
static uint64_t datagrams, largest, spoilt;

static void begin_sealed(void)
{
    static const uint8_t tar[MOST] = {UT_TAR, UT_TAR, UT_TAR};
    n = HOSTS;
    cipher = &fake;
    memset(used, 0, sizeof used);
    sealed = opened = refused = datagrams = largest = spoilt = 0;
    for (uint32_t h = 0; h < n; h++)
        for (uint32_t p = 0; p < n; p++)
            keys[h][p] = (uint8_t)(h * MOST + p + 1);
    begin(tar);
}

static void end_sealed(void)
{
    end();
    cipher = NULL;
}

static bool is_whole(uint32_t h)
{
    ut_receipt r = receipt(h);
    float *a = (float *)(void *)hosts[h].arena;
    bool right = true;
    for (unsigned i = 0; i < ELEMENTS; i++)
        right = right && a[i] == (float)((1u << HOSTS) - 1 + HOSTS * i);
    return r.status == UT_COMPLETE && right;
}

static ut_stats stats_of(uint32_t h)
{
    ut_stats s;
    ut_engine_stats(hosts[h].engine, &s);
    return s;
}

/* Looks at everything on its way: a packet of a known kind, sealed. */
static void look(uint32_t from, uint32_t to, uint32_t port, uint8_t *packet, size_t len)
{
    (void)from, (void)to, (void)port;
    datagrams++;
    largest = UT_MAX2(largest, len);
    CHECK_EQ(packet[UT_CHECKSUM_AT], EPOCH);
}

static void seal__everything_travels_sealed(void)
{
    begin_sealed();
    change = look;
    for (uint64_t op = 0; op < 8; op++) {
        call_all(op);
        for (uint32_t h = 0; h < n; h++)
            CHECK_MSG(is_whole(h), "op %" PRIu64 ", host %u", op, h);
    }
    CHECK_EQ(sealed, datagrams);
    CHECK_EQ(opened, datagrams);
    CHECK_EQ(refused, 0);
    CHECK_EQ(largest, 1472); /* the tag is inside a full datagram, not on top of it */
    uint64_t data_bytes = 0, accounted = 0;
    for (uint32_t h = 0; h < n; h++) {
        ut_stats s = stats_of(h);
        CHECK_EQ(s.bad_checksum + s.malformed + s.unknown + s.data_refused, 0);
        CHECK_EQ(s.bytes_used, 8 * 2 * (HOSTS - 1) * ELEMENTS * 4 / HOSTS);
        data_bytes += s.data_sent_bytes;
        for (uint32_t p = 0; p < n; p++) {
            ut_peer_stats out, in;
            if (p == h)
                continue;
            CHECK_EQ(ut_engine_peer_stats(hosts[h].engine, 0, p, &out), UT_OK);
            CHECK_EQ(ut_engine_peer_stats(hosts[p].engine, 0, h, &in), UT_OK);
            CHECK_EQ(out.sent_bytes, in.received_bytes); /* both ends of the credit count the tags */
            accounted += out.sent_bytes;
        }
    }
    CHECK_EQ(accounted, data_bytes);
    end_sealed();
}

static void seal__with_losses_and_copies(void)
{
    begin_sealed();
    change = look;
    loss_ppm = 30000;
    late_ppm = 100000;
    for (uint64_t op = 0; op < 20; op++) {
        call_all(op);
        for (uint32_t h = 0; h < n; h++)
            CHECK_MSG(is_whole(h), "op %" PRIu64 ", host %u", op, h);
    }
    CHECK_EQ(refused, 0);
    end_sealed();
}

/* Every bit behind the connection id is under the tag. */
static void spoil_some(uint32_t from, uint32_t to, uint32_t port, uint8_t *packet, size_t len)
{
    look(from, to, port, packet, len);
    if (check_below(20))
        return;
    size_t bit = 64 + check_below(8 * len - 64);
    packet[bit / 8] ^= (uint8_t)(1 << bit % 8);
    spoilt++;
}

static void seal__what_is_spoilt_is_refused_and_counted(void)
{
    begin_sealed();
    change = spoil_some;
    for (uint64_t op = 0; op < 20; op++) {
        call_all(op);
        for (uint32_t h = 0; h < n; h++)
            CHECK_MSG(is_whole(h), "op %" PRIu64 ", host %u", op, h);
    }
    change = NULL;
    run(now + UT_SECOND); /* what is under way arrives */
    uint64_t counted = 0;
    for (uint32_t h = 0; h < n; h++) {
        ut_stats s = stats_of(h);
        counted += s.bad_checksum;
        CHECK_EQ(s.malformed + s.unknown + s.data_refused, 0);
        for (ut_event e; ut_engine_poll_event(hosts[h].engine, &e);)
            CHECK_NE(e.kind, UT_EVENT_VIOLATION); /* a stranger cannot break a path */
    }
    CHECK(spoilt > 20);
    CHECK_EQ(counted, spoilt);
    CHECK_EQ(refused, spoilt);
    end_sealed();
}

/* A path on which nothing large gets through: pieces are sealed one by one, and none is larger than every path carries.
 */
static void spoil_large(uint32_t from, uint32_t to, uint32_t port, uint8_t *packet, size_t len)
{
    look(from, to, port, packet, len);
    if (len > UT_PATH_MIN)
        packet[len - 1] ^= 1;
}

static void seal__pieces(void)
{
    begin_sealed();
    change = spoil_large;
    unsigned whole = 0;
    for (uint64_t op = 0; op < 12; op++) {
        call_all(op);
        for (uint32_t h = 0; h < n; h++)
            whole += is_whole(h);
    }
    CHECK_GE(whole, 8 * HOSTS);
    for (uint32_t h = 0; h < n; h++) {
        CHECK_GE(stats_of(h).pieces_sent, 1);
        CHECK_EQ(stats_of(h).malformed, 0);
    }
    end_sealed();
}

static void seal__what_a_shell_may_ask_for(void)
{
    static const ut_cipher odd = {"odd", 12, fake_seal, fake_open}, large = {"large", 72, fake_seal, fake_open};
    ut_engine_config config = {.packet_bytes = 1472, .segments_max = 8, .receive_buffer = 1 << 20};
    ut_job_config job = {.hosts = 2, .local_ranks = 1, .packet_bytes = 1472, .bucket_bytes_max = 4096};
    size_t plain = ut_job_bytes(&config, &job);
    CHECK(plain > 0);
    job.cipher = &fake;
    CHECK(ut_job_bytes(&config, &job) > 0);
    job.packet_bytes = UT_PACKET_MIN + 8; /* 64 bytes of payload must be left */
    CHECK_EQ(ut_job_bytes(&config, &job), 0);
    job.packet_bytes = UT_PACKET_MIN + TAG;
    CHECK(ut_job_bytes(&config, &job) > 0);
    job.packet_bytes = 1472;
    job.cipher = &odd;
    CHECK_EQ(ut_job_bytes(&config, &job), 0);
    job.cipher = &large;
    CHECK_EQ(ut_job_bytes(&config, &job), 0);
    static const uint8_t tar[MOST] = {UT_TAR, UT_TAR};
    n = 2;
    begin(tar);
    CHECK_EQ(ut_engine_peer_keys(hosts[0].engine, 0, 1, &keys[0][1], &keys[1][0]), UT_ERR_ARGUMENT); /* no cipher */
    end();
    begin_sealed();
    CHECK_EQ(ut_engine_peer_keys(hosts[0].engine, 0, 1, &keys[0][1], NULL), UT_ERR_ARGUMENT);
    CHECK_EQ(ut_engine_peer_keys(hosts[0].engine, 0, 0, &keys[0][1], &keys[1][0]), UT_ERR_UNKNOWN);
    end_sealed();
    cipher = &fake;
    n = 2;
    born(0, (ut_job_options){0}, 0);
    uint32_t cid;
    ut_addr a = {.len = 1};
    CHECK_EQ(ut_engine_peer_listen(hosts[0].engine, 0, 1, &cid), UT_OK);
    CHECK_EQ(ut_engine_peer_connect(hosts[0].engine, 0, 1, &a, &a, 5, now), UT_ERR_ARGUMENT); /* without keys */
    n = 1;
    end_sealed();
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(seal__everything_travels_sealed);
    RUN(seal__with_losses_and_copies);
    RUN(seal__what_is_spoilt_is_refused_and_counted);
    RUN(seal__pieces);
    RUN(seal__what_a_shell_may_ask_for);
    return check_end();
}
