/* SPDX-License-Identifier: Apache-2.0
 *
 * Whole engines over real ciphers, and an attacker who sees and injects all datagrams. What the attacker injects is
 * never folded, changes not one byte of what the engines know, and is counted. `test_forged.c` is the short form,
 * `prove_forged.c` the long one.
 */
#ifndef UT_TEST_FORGER_H
#define UT_TEST_FORGER_H

#include "engines.h"

#include "cipher/evp.h"
#include "cipher/keys.h"
#include "core/wire/packets.h"

enum { FORGED_HOSTS = 3, KEPT = 512 /* datagrams of each sort that the attacker keeps */ };

/* ---- keys ---- */

static ut_keys path_keys[MOST][MOST]; /* [host][peer]: both directions */
static ut_key_life path_life;
static unsigned path_suite;

/* The secret of all paths: only what stands in the context keeps them apart. */
static const uint8_t one_secret[UT_SECRET_BYTES] = {42};

static void *give_keys(uint32_t h, uint32_t p, uint32_t cid_out, uint32_t cid_in)
{
    ut_key_context out = {.job = "job", .generation = 3, .from = h, .to = p, .cid = cid_out},
                   in = {.job = "job", .generation = 3, .from = p, .to = h, .cid = cid_in};
    const ut_aead *a = ut_evp_suite(path_suite);
    ut_keys_end(&path_keys[h][p]);
    CHECK_EQ(ut_keys_begin(&path_keys[h][p], true, a, path_suite, one_secret, &out, &path_life, now), UT_OK);
    CHECK_EQ(ut_keys_begin(&path_keys[h][p], false, a, path_suite, one_secret, &in, &path_life, now), UT_OK);
    return &path_keys[h][p];
}

/* ---- what the attacker has seen ---- */

typedef struct seen {
    uint32_t to, from, port;
    size_t len;
    uint8_t bytes[1472];
} seen;
static seen came[KEPT], stopped[KEPT]; /* that reached their host; and that the attacker held back, so they are new */
static uint64_t came_n, stopped_n;

static void keep(seen *where, uint64_t *count, uint32_t from, uint32_t to, uint32_t port, const uint8_t *b, size_t len)
{
    seen *s = &where[(*count)++ % KEPT];
    *s = (seen){.to = to, .from = from, .port = port, .len = len};
    memcpy(s->bytes, b, len);
}

/* On the way of every datagram: most are let through, some are spoilt, and the true one is kept. */
static void watch(uint32_t from, uint32_t to, uint32_t port, uint8_t *packet, size_t len)
{
    if (check_below(20)) {
        keep(came, &came_n, from, to, port, packet, len);
        return;
    }
    keep(stopped, &stopped_n, from, to, port, packet, len);
    packet[len - 1] ^= 1;
}

/* ---- worlds ---- */

static void forged_begin(unsigned suite, ut_key_life life)
{
    static const uint8_t tar[MOST] = {UT_TAR, UT_TAR, UT_TAR};
    n = FORGED_HOSTS;
    cipher = &ut_cipher_sealed;
    keys_of = give_keys;
    path_suite = suite;
    path_life = life;
    came_n = stopped_n = 0;
    begin(tar);
    change = watch;
}

static void forged_end(void)
{
    end();
    for (uint32_t h = 0; h < n; h++)
        for (uint32_t p = 0; p < n; p++)
            ut_keys_end(&path_keys[h][p]);
    cipher = NULL;
    keys_of = NULL;
}

/* One op of all hosts; whether all have the whole sum. */
static bool forged_op(uint64_t op)
{
    bool right = true;
    call_all(op);
    for (uint32_t h = 0; h < n; h++) {
        const float *a = (const float *)(const void *)hosts[h].arena;
        right = right && receipt(h).status == UT_COMPLETE;
        for (unsigned i = 0; i < ELEMENTS; i++)
            right = right && a[i] == (float)((1u << FORGED_HOSTS) - 1 + FORGED_HOSTS * i);
    }
    return right;
}

/* ---- attacks ---- */

enum attack {
    FORGED,     /* random bytes behind a true header */
    REPLAYED,   /* what came before */
    CORRUPT,    /* a new datagram of the true sender, with bits flipped */
    RESIZED,    /* the same, cut or lengthened */
    EPOCH,      /* the same, of another epoch */
    DIRECTION,  /* sealed with the keys of the way back */
    OTHER_JOB,  /* with those of another job with the same secret */
    OTHER_LIFE, /* of another life of the job */
    OTHER_LANE, /* of another lane */
    OTHER_HOST, /* of another pair of hosts */
    ATTACKS
};
static const char *const attack_names[ATTACKS] = {"forged",    "replayed",  "corrupt",    "resized",    "wrong epoch",
                                                  "direction", "other job", "other life", "other lane", "other host"};

/* A true header for |to| with a number that has not come, and a body that the attacker likes. */
static size_t made_up(seen *s, uint8_t *out)
{
    bool data = s->port == UT_PORT_DATA;
    size_t header = data ? 32 : 16, body = 8 + 8 * check_below(24);
    memcpy(out, s->bytes, header);
    uint32_t add = (uint32_t)check_below(5000) + 1;
    uint32_t low = (uint32_t)out[8] << 24 | (uint32_t)out[9] << 16 | (uint32_t)out[10] << 8 | out[11];
    low += add;
    for (unsigned i = 0; i < 4; i++)
        out[8 + i] = (uint8_t)(low >> (24 - 8 * i));
    for (size_t i = header; i < header + body + UT_TAG_BYTES; i += 8) {
        uint64_t r = check_random();
        memcpy(out + i, &r, 8);
    }
    return header + body + UT_TAG_BYTES;
}

/* Seals |out| of |len| bytes, tag included, as one who has the secret but another context. */
static void seal_as(const seen *s, uint8_t *out, size_t len, enum attack how)
{
    /* Kept for each path: drawing keys costs more than the whole rest. */
    static struct {
        ut_keys keys;
        uint32_t cid;
        unsigned suite;
    } other[ATTACKS][MOST][MOST];
    uint32_t cid = (uint32_t)out[4] << 24 | (uint32_t)out[5] << 16 | (uint32_t)out[6] << 8 | out[7];
    ut_key_context c = {.job = "job", .generation = 3, .from = s->from, .to = s->to, .cid = cid};
    c.job = how == OTHER_JOB ? "jab" : c.job;
    c.generation += how == OTHER_LIFE;
    c.lane += how == OTHER_LANE;
    c.from = how == DIRECTION ? s->to : how == OTHER_HOST ? 3 : s->from;
    c.to = how == DIRECTION ? s->from : s->to;
    ut_keys *keys = &other[how][s->from][s->to].keys;
    if (other[how][s->from][s->to].cid != cid || other[how][s->from][s->to].suite != path_suite) {
        ut_keys_end(keys);
        CHECK_EQ(ut_keys_begin(keys, true, ut_evp_suite(path_suite), path_suite, one_secret, &c, &ut_key_life_usual, 0),
                 UT_OK);
        other[how][s->from][s->to].cid = cid;
        other[how][s->from][s->to].suite = path_suite;
    }
    uint32_t header = s->port == UT_PORT_DATA ? 32 : 16;
    static uint64_t number;
    ut_sealed p = {.bytes = out,
                   .header = header,
                   .body = (uint32_t)(len - header - UT_TAG_BYTES),
                   .epoch = out + 12,
                   .number = ++number,
                   .kind = out[0] & 15};
    for (unsigned i = 0; i < 4; i++)
        out[8 + i] = (uint8_t)(number >> (24 - 8 * i)); /* both ends agree on the number as far as they can */
    ut_cipher_sealed.seal(keys, &p, 1, 0);
    out[12] = s->bytes[12]; /* the receiver's own epoch */
}

/* One datagram; returns its length. |ret| is what it was made of. */
static size_t attack(enum attack how, uint8_t *out, seen **ret)
{
    seen *s = &stopped[check_below(UT_MIN2(stopped_n, (uint64_t)KEPT))];
    size_t len;
    *ret = s;
    switch (how) {
    case FORGED:
        return made_up(s, out);
    case REPLAYED:
        *ret = s = &came[check_below(UT_MIN2(came_n, (uint64_t)KEPT))];
        memcpy(out, s->bytes, s->len);
        return s->len;
    case CORRUPT:
        memcpy(out, s->bytes, s->len);
        for (uint64_t flips = 1 + check_below(4); flips > 0; flips--) {
            uint64_t bit = check_below(8 * s->len);
            out[bit / 8] ^= (uint8_t)(1 << bit % 8);
        }
        return memcmp(out, s->bytes, s->len) ? s->len : (out[s->len - 1] ^= 1, s->len);
    case RESIZED:
        len = check_below(2) ? check_below(s->len) : s->len + 1 + check_below(32);
        memcpy(out, s->bytes, UT_MIN2(len, s->len));
        for (size_t i = s->len; i < len; i++)
            out[i] = (uint8_t)check_random();
        return len;
    case EPOCH:
        memcpy(out, s->bytes, s->len);
        out[12] += (uint8_t)(1 + check_below(255));
        return s->len;
    default:
        len = made_up(s, out);
        seal_as(s, out, len, how);
        return len;
    }
}

/* Everything that an engine knows, save its counters. */
typedef struct knowledge {
    uint8_t *engine, *job, *arena;
    size_t job_bytes;
} knowledge;

static size_t job_bytes_of(uint32_t h)
{
    ut_engine_config config = {.packet_bytes = 1472, .segments_max = 8, .receive_buffer = 1 << 20};
    ut_job_config job = {.hosts = n,
                         .self = h,
                         .local_ranks = 1,
                         .packet_bytes = 1472,
                         .bucket_bytes_max = ELEMENTS * 8,
                         .cipher = cipher};
    return ut_job_bytes(&config, &job);
}

static knowledge take_knowledge(uint32_t h)
{
    knowledge k = {.job_bytes = job_bytes_of(h)};
    k.job = malloc(k.job_bytes);
    k.arena = malloc(ARENA);
    memcpy(k.job, wired[h].job_memory, k.job_bytes);
    memcpy(k.arena, hosts[h].arena, ARENA);
    return k;
}

static bool is_as_before(uint32_t h, knowledge k)
{
    bool same = memcmp(k.job, wired[h].job_memory, k.job_bytes) == 0 && memcmp(k.arena, hosts[h].arena, ARENA) == 0;
    free(k.job);
    free(k.arena);
    return same;
}

typedef struct proof {
    uint64_t injected[ATTACKS], counted, bytes_out, changes, folded;
} proof;

static uint64_t refused_by(const ut_stats *s)
{
    return s->bad_checksum + s->replayed + s->unknown + s->malformed;
}

static uint64_t taken_by(const ut_stats *s)
{
    return s->data_used + s->data_duplicate + s->data_late + s->data_stashed + s->data_refused + s->data_pieces +
           s->feedback_received + s->feedback_old;
}

/* Injects |count| datagrams in turn, of all attacks, at one moment. */
__attribute__((unused)) static void inject(uint64_t count, proof *ret)
{
    static uint8_t datagram[2048];
    static ut_burst burst;
    ut_stats before[MOST], after;
    ut_keys keys_before[MOST][MOST];
    knowledge known[MOST];
    ut_ns wake[MOST];
    for (uint32_t h = 0; h < n; h++) {
        while (ut_engine_output(hosts[h].engine, now, &burst))
            ; /* what it had to say in any case is lost */
        ut_engine_stats(hosts[h].engine, &before[h]);
        known[h] = take_knowledge(h);
        wake[h] = ut_engine_next_wake(hosts[h].engine);
    }
    memcpy(keys_before, path_keys, sizeof keys_before);
    for (uint64_t i = 0; i < count; i++) {
        seen *s;
        enum attack how = (enum attack)(i % ATTACKS);
        size_t len = attack(how, datagram, &s);
        ut_engine_input(hosts[s->to].engine, s->port, datagram, len, 0, false, now);
        ret->injected[how]++;
    }
    for (uint32_t h = 0; h < n; h++) {
        ut_engine_stats(hosts[h].engine, &after);
        ret->counted += refused_by(&after) - refused_by(&before[h]);
        ret->folded += taken_by(&after) - taken_by(&before[h]);
        while (ut_engine_output(hosts[h].engine, now, &burst))
            ret->bytes_out += burst.bytes;
        ret->changes += ut_engine_next_wake(hosts[h].engine) != wake[h];
        ret->changes += !is_as_before(h, known[h]);
        for (ut_event e; ut_engine_poll_event(hosts[h].engine, &e);)
            ret->changes += e.kind == UT_EVENT_VIOLATION;
    }
    ret->changes += memcmp(keys_before, path_keys, sizeof keys_before) != 0;
}

__attribute__((unused)) static uint64_t injected_in_all(const proof *p)
{
    uint64_t sum = 0;
    for (unsigned i = 0; i < ATTACKS; i++)
        sum += p->injected[i];
    return sum;
}

#endif
