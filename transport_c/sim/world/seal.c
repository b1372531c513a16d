/* SPDX-License-Identifier: Apache-2.0
 *
 * The AEAD of most sealed worlds keeps nothing secret, but all else that one promises: what was not sealed with this
 * very key, nonce and header is refused, whatever byte differs. It is quick, and remembers under which key each nonce
 * was used (oracle O12). Some small worlds run the real ciphers.
 */
#include "sim/world/seal.h"

#include "cipher/evp.h"
#include "core/wire/burst.h"
#include "sim/world/liar.h"

#include <stdlib.h>

enum {
    REAL_HOSTS = 6,          /* the library's contexts are large */
    SECRETS_APART_NS = 50000 /* fresh ones, in the mean over all paths of a world */
};

/* ---- the toy ---- */

typedef struct toy {
    ut_aead aead;
    sim_world *world;
} toy;

typedef struct toy_context {
    const toy *of;
    bool sealing;
    uint64_t key[2];
} toy_context;

/* What was sealed: {mix of key and nonce, another one} each, a hash table with room for twice as many. */
typedef struct sim_seal_state {
    toy toy;
    bool lying;     /* a liar does with its keys what it likes: it may seal twice under one nonce */
    ut_burst burst; /* what it seals */
    uint64_t (*used)[2];
    uint64_t uses, room;
    uint64_t secrets;
} state;

static void *toy_make(const ut_aead *aead, bool sealing)
{
    toy_context *c = sim_alloc(sizeof *c);
    c->of = (const toy *)(const void *)aead;
    c->sealing = sealing;
    return c;
}

static void toy_drop(void *context)
{
    free(context);
}

static void toy_key(void *context, const uint8_t *key)
{
    toy_context *c = context;
    memcpy(c->key, key, sizeof c->key);
}

static void toy_wipe(void *bytes, size_t len)
{
    memset(bytes, 0, len);
}

/* 32 bytes that depend on all bytes of key and data. */
static void toy_mac(const uint8_t *key, size_t key_len, const uint8_t *data, size_t len, uint8_t *out)
{
    uint64_t a = sim_digest(key, key_len), b = sim_digest(data, len);
    for (unsigned i = 0; i < UT_SECRET_BYTES / 8; i++) {
        uint64_t x = sim_mix(sim_mix(a + i) ^ sim_mix(b) ^ (uint64_t)i << 56);
        memcpy(out + 8 * i, &x, 8);
    }
}

static uint64_t nonce_mix(const toy_context *c, const uint8_t *nonce)
{
    uint64_t a = 0;
    uint32_t b;
    memcpy(&a, nonce, 8);
    memcpy(&b, nonce + 8, 4);
    return sim_mix(sim_mix(c->key[0] ^ a) ^ b);
}

static void cross(const toy_context *c, const ut_aead_packet *p)
{
    uint64_t at = nonce_mix(c, p->nonce) ^ c->key[1];
    for (size_t i = 0; i < p->body_len; i += 8) {
        uint64_t x = 0, n = UT_MIN2(p->body_len - i, (size_t)8);
        memcpy(&x, p->body + i, n);
        at += UT_MIX_STEP;
        x ^= at ^ at >> 29;
        memcpy(p->body + i, &x, n);
    }
}

static void make_tag(const toy_context *c, const ut_aead_packet *p, uint64_t tag[2])
{
    uint64_t of = sim_digest(p->header, p->header_len);
    tag[0] = sim_mix(nonce_mix(c, p->nonce) ^ sim_digest(p->body, p->body_len));
    tag[1] = sim_mix(c->key[1] ^ of ^ tag[0]);
    tag[0] = sim_mix(tag[0] ^ of);
}

/* O12 nonce: none comes twice under one key. */
static void note_nonce(const toy_context *c, const uint8_t *nonce)
{
    sim_world *w = c->of->world;
    state *s = w->seal;
    if (s->lying)
        return;
    if (s->uses * 2 >= s->room) {
        uint64_t (*old)[2] = s->used, room = s->room;
        s->room = UT_MAX2(2 * room, UINT64_C(4096));
        s->used = sim_alloc(s->room * sizeof *s->used);
        for (uint64_t i = 0; i < room; i++) {
            uint64_t at = old[i][0] % s->room;
            while (old[i][0] && s->used[at][0])
                at = (at + 1) % s->room;
            if (old[i][0])
                memcpy(s->used[at], old[i], sizeof *old);
        }
        free(old);
    }
    uint64_t a = nonce_mix(c, nonce) | 1, b = sim_mix(c->key[1] ^ sim_digest(nonce, UT_NONCE_BYTES)), at = a % s->room;
    for (; s->used[at][0]; at = (at + 1) % s->room)
        if (s->used[at][0] == a && s->used[at][1] == b)
            sim_fail(w, "O12 nonce", 0, "a packet was sealed under a key and nonce that were used before");
    s->used[at][0] = a;
    s->used[at][1] = b;
    s->uses++;
}

static void toy_seal(void *context, const ut_aead_packet *p)
{
    const toy_context *c = context;
    uint64_t tag[2];
    note_nonce(c, p->nonce);
    cross(c, p);
    make_tag(c, p, tag);
    memcpy(p->tag, tag, UT_TAG_BYTES);
}

static bool toy_open(void *context, const ut_aead_packet *p)
{
    const toy_context *c = context;
    uint64_t tag[2];
    make_tag(c, p, tag);
    if (memcmp(tag, p->tag, UT_TAG_BYTES) != 0)
        return false;
    cross(c, p);
    return true;
}

/* ---- the plan ---- */

void sim_plan_draw_seal(sim_plan *p, uint64_t seed)
{
    sim_rng rng = sim_rng_for(seed, 19);
    bool sealed = sim_chance(&rng, 500000), real = sim_chance(&rng, 80000), quick = sim_chance(&rng, 600000);
    uint32_t suite = 1 + (uint32_t)sim_below(&rng, UT_SUITES_END - 1);
    p->key_life_packets = quick ? (uint32_t)sim_octaves(&rng, 1, 100) : 0;
    p->key_life = sim_chance(&rng, 300000) ? sim_octaves(&rng, 100 * UT_US, 100 * UT_MS) : 0;
    p->keys_restless = sim_chance(&rng, 500000);
    /* Each is two events: with one in 5 ms for each path of 64 hosts these alone would be more events than a world may
     * have (world.c), long before its ops have ended. Daemons do it by the hour. */
    p->new_secret = sim_chance(&rng, 500000) ? sim_octaves(&rng, 5 * UT_MS, 500 * UT_MS) : 0;
    if (p->new_secret)
        p->new_secret = UT_MAX2(p->new_secret, (ut_ns)SECRETS_APART_NS * p->hosts * (p->hosts - 1));
    if (sealed && ut_wire_packet_valid(p->packet_bytes, UT_TAG_BYTES))
        p->suite = real && p->hosts <= REAL_HOSTS ? suite : SIM_SUITE_TOY;
}

/* Evil worlds rewrite packets on the wire, which seals are there to prevent. */
const ut_cipher *sim_cipher(const sim_world *w)
{
    return w->plan.suite && !w->plan.evil ? &ut_cipher_sealed : NULL;
}

uint32_t sim_seal_overhead(const sim_world *w)
{
    return ut_seal_overhead(sim_cipher(w));
}

/* ---- the hostile host ---- */

/* Its engine leaves packets open: in place of the tag stands by which keys and number they are to be sealed. */
static void leave_open(void *keys, const ut_sealed *packets, uint32_t n, ut_ns now)
{
    (void)now;
    for (uint32_t i = 0; i < n; i++) {
        const sim_sealing how = {keys, packets[i].number};
        memcpy(packets[i].bytes + packets[i].header + packets[i].body, &how, sizeof how);
    }
}

static bool open_truly(void *keys, const ut_sealed *packet, ut_ns now)
{
    return ut_cipher_sealed.open(keys, packet, now);
}

static const ut_cipher left_open = {"left open", UT_TAG_BYTES, leave_open, open_truly};
_Static_assert(sizeof(sim_sealing) == UT_TAG_BYTES, "it stands in place of a tag");

const ut_cipher *sim_cipher_of(const sim_world *w, const sim_host *h)
{
    return sim_cipher(w) && sim_is_liar(w, h->index) ? &left_open : sim_cipher(w);
}

static void seal_as(sim_world *w, uint32_t host, const sim_sealing *how, uint8_t *bytes, uint32_t len)
{
    ut_burst *b = &w->seal->burst;
    const ut_seal seal = {.cipher = &ut_cipher_sealed, .keys_out = how->keys};
    b->seal = &seal;
    b->number = how->number;
    b->segments = 1;
    b->bytes = b->segment_bytes = len + UT_TAG_BYTES;
    memcpy(b->memory, bytes, len);
    ut_seal_burst(b, sim_local(w, &w->host[host]));
    memcpy(bytes, b->memory, b->bytes);
}

sim_sealing sim_seal_truth(sim_world *w, sim_packet *packet)
{
    sim_sealing how;
    uint32_t len = packet->len - UT_TAG_BYTES;
    memcpy(&how, packet->bytes + len, sizeof how);
    seal_as(w, packet->from, &how, packet->bytes, len);
    return how;
}

void sim_seal_lie(sim_world *w, uint32_t host, const sim_sealing *how, uint8_t *bytes, uint32_t len)
{
    uint64_t last[UT_KEY_KINDS];
    if (ut_wire_kind(bytes, len) == UT_KIND_PIECE)
        bytes[1] %= UT_PIECES_MAX; /* no other index has a nonce */
    memcpy(last, how->keys->last, sizeof last);
    memset(how->keys->last, 0, sizeof last); /* numbers that were used before, too */
    w->seal->lying = true;
    seal_as(w, host, how, bytes, len);
    w->seal->lying = false;
    memcpy(how->keys->last, last, sizeof last);
}

/* ---- keys ---- */

static state *state_of(sim_world *w)
{
    if (!w->seal) {
        w->seal = sim_alloc(sizeof *w->seal);
        w->seal->toy = (toy){{.name = "toy",
                              .key_bytes = 16,
                              .make = toy_make,
                              .drop = toy_drop,
                              .key = toy_key,
                              .seal = toy_seal,
                              .open = toy_open,
                              .mac = toy_mac,
                              .wipe = toy_wipe},
                             w};
        w->cover[w->plan.partial ? SIM_PART_sealed : w->plan.sparse ? SIM_SPARSE_sealed : SIM_sealed]++;
        w->cover[SIM_sealed_by_library] += w->plan.suite != SIM_SUITE_TOY;
    }
    return w->seal;
}

void sim_seal_open_seat(sim_world *w, sim_host *h, uint32_t job, uint32_t hosts)
{
    if (sim_cipher(w))
        h->seat[job].keys = sim_alloc(hosts * sizeof *h->seat[job].keys);
    h->seat[job].keys_n = hosts;
}

void sim_seal_close_seat(sim_world *w, sim_host *h, uint32_t job)
{
    sim_seat *seat = &h->seat[job];
    for (uint32_t i = 0; seat->keys && i < seat->keys_n; i++) {
        w->cover[SIM_keys_changed] += seat->keys[i].out.changes;
        w->cover[SIM_secrets_changed] += seat->keys[i].in.renewals;
        ut_keys_end(&seat->keys[i]);
    }
    free(seat->keys);
    seat->keys = NULL;
}

static ut_key_context context_of(const sim_world *w, const sim_host *h, uint32_t job, uint32_t host, bool out,
                                 uint32_t cid)
{
    uint32_t self = w->job[job].index_of[h->index];
    return (ut_key_context){
        .job = "simulated", .generation = job, .from = out ? self : host, .to = out ? host : self, .cid = cid};
}

static void spell(uint64_t secret, uint8_t whole[UT_SECRET_BYTES])
{
    for (unsigned i = 0; i < UT_SECRET_BYTES; i += 8, secret = sim_mix(secret + i))
        memcpy(whole + i, &secret, 8);
}

static uint64_t draw(sim_world *w)
{
    return sim_mix(w->seed ^ sim_mix(++state_of(w)->secrets));
}

static void begin_keys(sim_world *w, sim_host *h, uint32_t job, uint32_t host, bool out, uint32_t cid, uint64_t secret)
{
    state *s = state_of(w);
    ut_keys *k = &h->seat[job].keys[host];
    const ut_key_context context = context_of(w, h, job, host, out, cid);
    ut_key_life life = ut_key_life_usual;
    life.packets = w->plan.key_life_packets ? w->plan.key_life_packets : life.packets;
    life.rest = w->plan.keys_restless ? 0 : life.rest;
    life.time = w->plan.key_life ? w->plan.key_life : life.time;
    uint8_t whole[UT_SECRET_BYTES];
    spell(secret, whole);
    bool real = w->plan.suite != SIM_SUITE_TOY;
    w->cover[SIM_keys_changed] += k->out.changes;
    w->cover[SIM_secrets_changed] += k->in.renewals;
    int error = ut_keys_begin(k, out, real ? ut_evp_suite(w->plan.suite) : &s->toy.aead, w->plan.suite, whole, &context,
                              &life, sim_local(w, h));
    if (error == 0 && !out)
        error = ut_engine_peer_keys(h->engine, job, host, k, k);
    if (error)
        sim_fail(w, "keys", h->index, "job %u host %u: error %d", job, host, error);
}

uint64_t sim_seal_listen(sim_world *w, sim_host *h, uint32_t job, uint32_t host, uint32_t cid)
{
    if (!sim_cipher(w))
        return 0;
    uint64_t secret = draw(w);
    begin_keys(w, h, job, host, false, cid, secret);
    return secret;
}

void sim_seal_connect(sim_world *w, sim_host *h, uint32_t job, uint32_t host, uint32_t cid, uint64_t secret)
{
    if (sim_cipher(w))
        begin_keys(w, h, job, host, true, cid, secret);
}

bool sim_seal_listens(const sim_host *h, uint32_t job, uint32_t host, uint32_t cid)
{
    const ut_keys *k = &h->seat[job].keys[host];
    return k->in.aead && k->in.cid == cid;
}

uint64_t sim_seal_draw_again(sim_world *w, sim_host *h, uint32_t job, uint32_t host, uint32_t cid)
{
    const ut_key_context context = context_of(w, h, job, host, false, cid);
    uint8_t whole[UT_SECRET_BYTES];
    uint64_t secret = draw(w);
    spell(secret, whole);
    int error = ut_keys_renew(&h->seat[job].keys[host], false, w->plan.suite, whole, &context);
    if (error && error != UT_ERR_FULL)
        sim_fail(w, "keys", h->index, "job %u host %u: a fresh secret: error %d", job, host, error);
    return error ? 0 : secret;
}

void sim_seal_drawn_again(sim_world *w, sim_host *h, uint32_t job, uint32_t host, uint32_t cid, uint64_t secret)
{
    const ut_key_context context = context_of(w, h, job, host, true, cid);
    uint8_t whole[UT_SECRET_BYTES];
    spell(secret, whole);
    int error = ut_keys_renew(&h->seat[job].keys[host], true, w->plan.suite, whole, &context);
    if (error && error != UT_ERR_UNKNOWN)
        sim_fail(w, "keys", h->index, "job %u host %u: told of a fresh secret: error %d", job, host, error);
}

void sim_seal_free(sim_world *w)
{
    if (w->seal) /* NULL in most worlds */
        free(w->seal->used);
    free(w->seal);
}
