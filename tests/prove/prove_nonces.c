/* SPDX-License-Identifier: Apache-2.0
 *
 * Nonces, in whole engines whose keys change after every 1 to 100 packets, over a wire that loses 30 % of the data: as
 * many seals as the first argument says (1e6 if none). The AEAD of this program keeps nothing secret. It remembers
 * instead all nonces of each key, and all keys under which anything was sealed. Exit status 0 if no nonce came twice
 * under one key, and no key twice.
 */
#include "engines.h"

#include "cipher/evp.h"
#include "cipher/keys.h"

enum { OPEN = 4 /* ops at a time */, OPS_MOST = 2000 /* of one job */ };

/* ---- what was sealed ---- */

typedef struct used_nonce {
    uint64_t high;
    uint32_t low, life; /* of the context's key, so that none need be cleared */
} used_nonce;

typedef struct context {
    bool sealing, begun; /* begun: something was sealed under this key */
    uint64_t key[2];
    uint32_t life, count, room;
    used_nonce *used;
} context;

static uint64_t seals, keys_used, nonces_again, keys_again, strangers;
static uint64_t *key_table, key_room; /* a mix of both halves of each key; 0: free */

static void *counted(size_t bytes)
{
    void *ret = calloc(1, bytes);
    CHECK(ret);
    return ret;
}

static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

static bool add_key(uint64_t *table, uint64_t room, uint64_t key)
{
    uint64_t at = key & (room - 1);
    for (; table[at]; at = (at + 1) & (room - 1))
        if (table[at] == key)
            return false;
    table[at] = key;
    return true;
}

static void note_key(const context *c)
{
    if (keys_used * 4 >= key_room * 3) {
        const uint64_t room = key_room ? 2 * key_room : 1 << 16;
        uint64_t *table = counted(room * sizeof *table);
        for (uint64_t i = 0; i < key_room; i++)
            if (key_table[i])
                add_key(table, room, key_table[i]);
        free(key_table);
        key_table = table;
        key_room = room;
    }
    keys_again += !add_key(key_table, key_room, mix(c->key[0] ^ mix(c->key[1])) | 1);
    keys_used++;
}

static bool add_nonce(context *c, uint64_t high, uint32_t low)
{
    uint32_t at = (uint32_t)mix(high ^ low) & (c->room - 1);
    for (; c->used[at].life == c->life; at = (at + 1) & (c->room - 1))
        if (c->used[at].high == high && c->used[at].low == low)
            return false;
    c->used[at] = (used_nonce){high, low, c->life};
    c->count++;
    return true;
}

static void note_nonce(context *c, const uint8_t *nonce)
{
    uint64_t high;
    uint32_t low;
    memcpy(&high, nonce, 8);
    memcpy(&low, nonce + 8, 4);
    if (c->count * 2 >= c->room) {
        const uint32_t before = c->room;
        used_nonce *old = c->used;
        c->room = before ? 2 * before : 256;
        c->used = counted(c->room * sizeof *c->used);
        c->count = 0;
        for (uint32_t i = 0; i < before; i++)
            if (old[i].life == c->life)
                add_nonce(c, old[i].high, old[i].low);
        free(old);
    }
    nonces_again += !add_nonce(c, high, low);
}

/* ---- the AEAD ---- */

static void *make(const ut_aead *aead, bool sealing)
{
    (void)aead;
    context *c = counted(sizeof *c);
    c->sealing = sealing;
    return c;
}

static void drop(void *place)
{
    context *c = place;
    if (c)
        free(c->used);
    free(c);
}

static void set_key(void *place, const uint8_t *key)
{
    context *c = place;
    memcpy(c->key, key, sizeof c->key);
    c->begun = false;
    c->count = 0;
    c->life++;
}

static void tag_of(const context *c, const ut_aead_packet *p, uint64_t tag[2])
{
    uint64_t high;
    uint32_t low;
    memcpy(&high, p->nonce, 8);
    memcpy(&low, p->nonce + 8, 4);
    tag[0] = mix(c->key[0] ^ high);
    tag[1] = mix(c->key[1] ^ low ^ tag[0] ^ p->body_len);
}

static void seal(void *place, const ut_aead_packet *p)
{
    context *c = place;
    uint64_t tag[2];
    if (!c->begun)
        note_key(c);
    c->begun = true;
    note_nonce(c, p->nonce);
    seals++;
    tag_of(c, p, tag);
    memcpy(p->tag, tag, sizeof tag);
}

static bool open(void *place, const ut_aead_packet *p)
{
    uint64_t tag[2];
    tag_of(place, p, tag);
    return memcmp(tag, p->tag, sizeof tag) == 0;
}

/* 32 bytes that depend on all of key and data. */
static void mac(const uint8_t *key, size_t key_len, const uint8_t *data, size_t len, uint8_t *out)
{
    uint64_t a = key_len, b = len;
    for (size_t i = 0; i < key_len + len; i++) {
        const uint8_t byte = i < key_len ? key[i] : data[i - key_len];
        a = (a ^ byte) * UINT64_C(0x100000001b3);
        b = (b ^ (uint64_t)byte << 8) * UINT64_C(0x9e3779b97f4a7c15) + 1;
    }
    for (uint64_t i = 0; i < 4; i++) {
        const uint64_t x = mix(mix(a + i) ^ b);
        memcpy(out + 8 * i, &x, 8);
    }
}

static void wipe(void *bytes, size_t len)
{
    memset(bytes, 0, len);
}

static const ut_aead noted = {"noted", "none", 16, make, drop, set_key, seal, open, mac, wipe};

/* ---- the engines ---- */

static ut_keys path_keys[MOST][MOST];
static ut_key_life life;
static uint64_t generation;
static const uint8_t one_secret[UT_SECRET_BYTES] = {42};

static void *give_keys(uint32_t h, uint32_t p, uint32_t cid_out, uint32_t cid_in)
{
    const ut_key_context out = {.job = "job", .generation = generation, .from = h, .to = p, .cid = cid_out},
                         in = {.job = "job", .generation = generation, .from = p, .to = h, .cid = cid_in};
    CHECK_EQ(ut_keys_begin(&path_keys[h][p], true, &noted, 1, one_secret, &out, &life, now), UT_OK);
    CHECK_EQ(ut_keys_begin(&path_keys[h][p], false, &noted, 1, one_secret, &in, &life, now), UT_OK);
    return &path_keys[h][p];
}

/* A fresh secret for a path of all: the receiver has it first, as in life, but here the sender has it at once. */
static void renew(void)
{
    const uint32_t from = (uint32_t)check_below(n), to = (from + 1 + (uint32_t)check_below(n - 1)) % n;
    ut_keys *sender = &path_keys[from][to], *receiver = &path_keys[to][from];
    const ut_key_context c = {.job = "job", .generation = generation, .from = from, .to = to, .cid = receiver->in.cid};
    uint8_t secret[UT_SECRET_BYTES];
    for (unsigned i = 0; i < UT_SECRET_BYTES; i++)
        secret[i] = (uint8_t)check_random();
    if (sender->out.fresh || receiver->in.fresh)
        return;
    CHECK_EQ(ut_keys_renew(receiver, false, 1, secret, &c), UT_OK);
    CHECK_EQ(ut_keys_renew(sender, true, 1, secret, &c), UT_OK);
}

/* OPEN ops of all hosts at a time; returns when all have their receipts. */
static void ops(uint64_t first)
{
    uint32_t open_ones = 0;
    for (uint32_t h = 0; h < n; h++, open_ones += OPEN)
        for (uint64_t i = 0; i < OPEN; i++) {
            ut_submission s = {.op_seq = first + i,
                               .src = i * (ARENA / OPEN),
                               .dst = i * (ARENA / OPEN),
                               .count = ELEMENTS,
                               .deadline_ns = now + 900 * UT_MS,
                               .dtype = UT_FLOAT32,
                               .redop = UT_SUM,
                               .mode = UT_BOUNDED};
            CHECK_EQ(ut_ring_submit(&hosts[h].submissions, &hosts[h].completions, &s), UT_OK);
            ut_engine_submissions(hosts[h].engine, hosts[h].session, now);
        }
    const ut_ns late = now + UT_SECOND;
    while (open_ones > 0 && now < late) {
        run(now + UT_MS);
        for (uint32_t h = 0; h < n; h++) {
            ut_receipt r;
            while (ut_ring_take_completion(&hosts[h].submissions, &hosts[h].completions, &r) == 1)
                open_ones--;
        }
    }
    CHECK_EQ(open_ones, 0);
}

/* One life of a job, until |until| seals or its own end. */
static void job(uint64_t until)
{
    static const uint8_t tar[MOST] = {UT_TAR, UT_TAR, UT_TAR, UT_TAR};
    n = 2 + (uint32_t)check_below(3);
    generation++;
    life = (ut_key_life){1 + check_below(100), UINT64_MAX, UT_NEVER, 0};
    cipher = &ut_cipher_sealed;
    keys_of = give_keys;
    begin(tar);
    loss_ppm = 300000;
    for (uint64_t op = 0; op < OPS_MOST && seals < until; op += OPEN) {
        ops(op);
        if (check_below(4) == 0)
            renew();
    }
    for (uint32_t h = 0; h < n; h++) {
        ut_stats s;
        ut_engine_stats(hosts[h].engine, &s);
        strangers += s.bad_checksum + s.unknown + s.malformed;
    }
    end();
    for (uint32_t h = 0; h < n; h++)
        for (uint32_t p = 0; p < n; p++)
            ut_keys_end(&path_keys[h][p]);
}

int main(int argc, char **argv)
{
    const double asked = argc > 1 ? strtod(argv[1], NULL) : 1e6;
    check_run.program = argv[0];
    check_run.seed = check_run.state = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    while (seals < (uint64_t)asked)
        job((uint64_t)asked);
    printf("%" PRIu64 " seals under %" PRIu64 " keys in %" PRIu64 " jobs: %" PRIu64 " nonces twice, %" PRIu64
           " keys twice, %" PRIu64 " datagrams refused\n",
           seals, keys_used, generation, nonces_again, keys_again, strangers);
    return nonces_again || keys_again || check_run.failures ? 1 : 0;
}
