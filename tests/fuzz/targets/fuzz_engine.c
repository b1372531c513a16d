/* SPDX-License-Identifier: Apache-2.0
 *
 * One host of three and whatever its peers may send it, with checksums and ids made right, so that everything behind
 * them is reached. The first byte chooses the job: its algorithm, and whether its packets are sealed (by a cipher that
 * opens everything). Then come commands: a datagram, a submission, time that goes by, a new path.
 */
#include "fuzz.h"

#include "core/face/engine.h"
#include "core/wire/packets.h"
#include "kernels/kernels.h"

enum { HOSTS = 3, ARENA = 1 << 15, DATAGRAMS_MAX = 400 };

static void seal(void *keys, const ut_sealed *packets, uint32_t n, ut_ns now)
{
    (void)keys, (void)now;
    for (uint32_t i = 0; i < n; i++)
        memset(packets[i].bytes + packets[i].header + packets[i].body, 0, 16);
}

static bool open(void *keys, const ut_sealed *packet, ut_ns now)
{
    (void)keys, (void)packet, (void)now;
    return true;
}

static const ut_cipher nothing = {"nothing", 16, seal, open};

static void *zeroed(size_t bytes)
{
    void *p = aligned_alloc(64, (bytes + 63) & ~(size_t)63);
    memset(p, 0, bytes);
    return p;
}

static ut_engine *engine;
static uint32_t cids[HOSTS];
static ut_ns now;
static const ut_cipher *cipher;

static void path(uint32_t host)
{
    ut_addr a = {.len = 1, .bytes = {(uint8_t)host}};
    MUST(ut_engine_peer_listen(engine, 0, host, &cids[host]) == UT_OK);
    if (cipher)
        MUST(ut_engine_peer_keys(engine, 0, host, &cids[host], &cids[host]) == UT_OK);
    MUST(ut_engine_peer_connect(engine, 0, host, &a, &a, 7, now) == UT_OK);
}

static void put32(uint8_t *at, uint32_t x)
{
    for (unsigned i = 0; i < 4; i++)
        at[i] = (uint8_t)(x >> (24 - 8 * i));
}

static void datagram(input *in)
{
    uint8_t how = take8(in);
    size_t len = take16(in) % 1473;
    uint8_t *packet = calloc(1, len + 1);
    take(in, packet, len < in->left ? len : in->left);
    if (len >= 16 && !(how & 16)) {
        put32(packet + 4, cids[1 + (how & 1)]);
        put32(packet + 12, 0);
        if (!(how & 8))
            packet[0] = (uint8_t)(UT_WIRE_VERSION << 4 | (packet[0] & 15));
        put32(packet + 12, ut_crc32c(0, packet, len));
    }
    ut_engine_input(engine, how >> 1 & 1, packet, len, how & 32 ? 100 : 0, how & 4, now);
    free(packet);
}

static void output(void)
{
    static ut_burst b;
    for (unsigned i = 0; i < 100 && ut_engine_output(engine, now, &b); i++) {
        MUST(b.bytes <= UT_BURST_BYTES && b.segments >= 1 && b.segments <= UT_SEGMENTS_MAX);
        free(copy_of(b.memory, b.bytes));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    static ut_submission_ring submissions;
    static ut_completion_ring completions;
    input in = {bytes, size};
    uint8_t how = take8(&in);
    cipher = how & 1 ? &nothing : NULL;
    ut_engine_config config = {.packet_bytes = 1472, .segments_max = 8, .receive_buffer = 1 << 20, .seed = 1};
    ut_job_config job = {.hosts = HOSTS,
                         .local_ranks = 1,
                         .packet_bytes = how & 2 ? 1472 : 128,
                         .bucket_bytes_max = ARENA,
                         .options.algorithm = (uint8_t)(how >> 2 & 3),
                         .options.policy = how & 16 ? UT_POLICY_SOLO : 0,
                         .options.hadamard = how & 32 ? UT_HADAMARD_ON : 0,
                         .cipher = cipher};
    if (how & 16)
        job.options.algorithm = job.options.hadamard = 0;
    now = UT_SECOND;
    size_t job_bytes = ut_job_bytes(&config, &job);
    MUST(job_bytes > 0);
    void *engine_memory = lazy(0, ut_engine_bytes(&config)), *job_memory = lazy(1, job_bytes);
    uint8_t *arena = zeroed(ARENA);
    MUST(ut_engine_init(engine_memory, &config, &engine) == UT_OK);
    MUST(ut_engine_job_add(engine, 0, &job, job_memory) == UT_OK);
    memset(&submissions, 0, sizeof submissions);
    memset(&completions, 0, sizeof completions);
    ut_session_memory m = {&submissions, &completions, arena, ARENA, 0, 0};
    uint32_t session;
    MUST(ut_engine_session_add(engine, 0, &m, 0, &session) == UT_OK);
    path(1);
    path(2);
    for (unsigned n = 0; in.left && n < DATAGRAMS_MAX; n++) {
        uint8_t command = take8(&in);
        ut_submission s;
        ut_receipt r;
        switch (command & 7) {
        default:
            datagram(&in);
            break;
        case 4:
            take(&in, &s, sizeof s);
            s.deadline_ns = now + s.deadline_ns % UT_SECOND;
            (void)ut_ring_submit(&submissions, &completions, &s);
            ut_engine_submissions(engine, session, now);
            break;
        case 5:
            s = (ut_submission){.op_seq = command >> 3,
                                .count = take16(&in) % (ARENA / 8),
                                .deadline_ns = now + UT_SECOND,
                                .dtype = UT_FLOAT32,
                                .redop = UT_SUM,
                                .mode = UT_BOUNDED,
                                .flags = how & 16 ? UT_SUBMIT_GIVE : 0};
            (void)ut_ring_submit(&submissions, &completions, &s);
            ut_engine_submissions(engine, session, now);
            break;
        case 6:
            now += (ut_ns)take16(&in) * 10 * UT_US;
            ut_engine_tick(engine, now);
            output();
            while (ut_ring_take_completion(&submissions, &completions, &r) == 1)
                ;
            break;
        case 7:
            path(1 + (command >> 3) % 2);
            break;
        }
    }
    ut_stats stats;
    ut_engine_stats(engine, &stats);
    MUST(stats.packets_received + stats.stash_replayed == ut_stats_classes(&stats));
    ut_engine_session_remove(engine, session, now);
    ut_engine_job_remove(engine, 0, now);
    free(arena);
    return 0;
}
