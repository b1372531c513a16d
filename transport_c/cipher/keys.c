/* SPDX-License-Identifier: Apache-2.0 */
#include "cipher/keys.h"

/* How long the keys of the previous epoch are kept: three of the longest probe timeouts (UT_PTO_MAX_NS). */
#define PREVIOUS_NS (600 * UT_MS)

const ut_key_life ut_key_life_usual = {1ULL << 24, 64ULL << 30, 60 * UT_SECOND, PREVIOUS_NS};

enum { INFO_MAX = 640 }; /* a name of 128 characters has 512 bytes at most */

/* ---- from secrets to keys ---- */

/* HKDF-Expand of at most one block: |label|, then |extra| bytes, then the block's number. */
static void expand(const ut_aead *a, const uint8_t *secret, const char *label, const uint8_t *extra, size_t extra_len,
                   uint8_t *out, size_t len)
{
    uint8_t info[INFO_MAX], block[UT_SECRET_BYTES];
    size_t at = strlen(label);
    assert(at + extra_len + 1 <= sizeof info && len <= sizeof block);
    memcpy(info, label, at);
    if (extra_len)
        memcpy(info + at, extra, extra_len);
    info[at + extra_len] = 1;
    a->mac(secret, UT_SECRET_BYTES, info, at + extra_len + 1, block);
    memcpy(out, block, len);
    a->wipe(block, sizeof block);
}

static void put(uint8_t **at, uint64_t value, unsigned bytes)
{
    while (bytes-- > 0)
        *(*at)++ = (uint8_t)(value >> 8 * bytes);
}

/* The first epoch's secret: HKDF of what was exchanged, with all that this direction is in the expansion. */
static void first_secret(const ut_aead *a, unsigned suite, const uint8_t *secret, const ut_key_context *c, uint8_t *out)
{
    static const char salt[] = "ultima sealed packets 2";
    uint8_t extracted[UT_SECRET_BYTES], extra[INFO_MAX - 32], *at = extra;
    size_t name = strlen(c->job);
    put(&at, suite, 1);
    put(&at, c->generation, 8);
    put(&at, c->from, 1);
    put(&at, c->to, 1);
    put(&at, c->lane, 1);
    put(&at, c->cid, 4);
    name = UT_MIN2(name, sizeof extra - (size_t)(at - extra)); /* a daemon's names are shorter */
    memcpy(at, c->job, name);
    a->mac((const uint8_t *)salt, sizeof salt - 1, secret, UT_SECRET_BYTES, extracted);
    expand(a, extracted, "first", extra, (size_t)(at - extra) + name, out, UT_SECRET_BYTES);
    a->wipe(extracted, sizeof extracted);
}

static ut_key_set *set_at(ut_keys_way *w, unsigned ahead)
{
    return &w->set[(w->at + ahead) % UT_KEY_SETS];
}

/* Fills |set| with the keys of the epoch of |secret|, and goes on to the secret of the epoch after it. */
static void make_set(const ut_aead *a, uint8_t *secret, ut_key_set *set)
{
    uint8_t key[UT_KEY_BYTES_MAX];
    for (unsigned i = 0; i < UT_KEY_KINDS; i++) {
        uint8_t kind = (uint8_t)(i + UT_KIND_DATA);
        expand(a, secret, "key", &kind, 1, key, a->key_bytes);
        expand(a, secret, "iv", &kind, 1, set->kind[i].iv, UT_NONCE_BYTES);
        a->key(set->kind[i].context, key);
    }
    a->wipe(key, sizeof key);
    expand(a, secret, "next", NULL, 0, secret, UT_SECRET_BYTES);
}

static void advance(ut_keys_way *w)
{
    w->at = (uint8_t)((w->at + 1) % UT_KEY_SETS);
    w->epoch++;
    w->changes++;
    make_set(w->aead, w->secret, set_at(w, 1)); /* in the place of the one before the previous */
}

/* The same into an epoch of the fresh secret, whose keys have been made. */
static void advance_freshly(ut_keys_way *w)
{
    const ut_key_set unused = *set_at(w, 1);
    *set_at(w, 1) = w->fresh_set;
    w->fresh_set = unused; /* its contexts serve again */
    memcpy(w->secret, w->fresh_secret, sizeof w->secret);
    memcpy(w->mark, w->fresh_mark, sizeof w->mark);
    w->aead->wipe(w->fresh_secret, sizeof w->fresh_secret);
    w->fresh = false;
    w->renewals++;
    advance(w);
}

static void end_way(ut_keys_way *w)
{
    const ut_aead *a = w->aead;
    if (!a)
        return;
    for (unsigned i = 0; i < UT_KEY_KINDS; i++) {
        for (unsigned s = 0; s < UT_KEY_SETS; s++)
            a->drop(w->set[s].kind[i].context);
        a->drop(w->fresh_set.kind[i].context);
    }
    a->wipe(w, sizeof *w);
    w->aead = NULL;
}

void ut_keys_end(ut_keys *k)
{
    end_way(&k->out);
    end_way(&k->in);
    memset(k, 0, sizeof *k);
}

/* Contexts for all of a way's keys. */
static bool make_contexts(ut_keys_way *w, const ut_aead *aead, bool sealing)
{
    *w = (ut_keys_way){.aead = aead, .sealing = sealing};
    bool made = true;
    for (unsigned i = 0; i < UT_KEY_KINDS; i++) {
        for (unsigned s = 0; s < UT_KEY_SETS; s++) {
            w->set[s].kind[i].context = aead->make(aead, sealing);
            made = made && w->set[s].kind[i].context;
        }
        w->fresh_set.kind[i].context = aead->make(aead, sealing);
        made = made && w->fresh_set.kind[i].context;
    }
    return made;
}

int ut_keys_begin(ut_keys *k, bool out, const ut_aead *aead, unsigned suite, const uint8_t secret[UT_SECRET_BYTES],
                  const ut_key_context *context, const ut_key_life *life, ut_ns now)
{
    ut_keys_way *w = out ? &k->out : &k->in, fresh;
    uint8_t first[UT_SECRET_BYTES], mark[UT_SECRET_BYTES];
    first_secret(aead, suite, secret, context, first);
    expand(aead, first, "mark", NULL, 0, mark, sizeof mark);
    if (w->aead && memcmp(mark, w->mark, sizeof mark) == 0) {
        aead->wipe(first, sizeof first);
        return UT_ERR_EXISTS;
    }
    if (!make_contexts(&fresh, aead, out)) {
        end_way(&fresh);
        aead->wipe(first, sizeof first);
        return UT_ERR_FULL;
    }
    end_way(w);
    *w = fresh;
    memcpy(w->secret, first, sizeof first);
    memcpy(w->mark, mark, sizeof mark);
    aead->wipe(first, sizeof first);
    w->cid = context->cid;
    make_set(aead, w->secret, set_at(w, 0));
    make_set(aead, w->secret, set_at(w, 1));
    k->life = *life;
    if (out) {
        k->packets = k->bytes = 0;
        k->since = now;
        k->heard = true; /* the peer has the keys of the first two epochs from the start */
        memset(k->last, 0, sizeof k->last);
    } else {
        k->previous_until = 0;
    }
    return UT_OK;
}

int ut_keys_renew(ut_keys *k, bool out, unsigned suite, const uint8_t secret[UT_SECRET_BYTES],
                  const ut_key_context *context)
{
    ut_keys_way *w = out ? &k->out : &k->in;
    const ut_aead *a = w->aead;
    uint8_t first[UT_SECRET_BYTES], mark[UT_SECRET_BYTES];
    if (!a || w->cid != context->cid)
        return UT_ERR_UNKNOWN;
    if (w->fresh)
        return UT_ERR_FULL;
    first_secret(a, suite, secret, context, first);
    expand(a, first, "mark", NULL, 0, mark, sizeof mark);
    const bool same = memcmp(mark, w->mark, sizeof mark) == 0;
    if (!same) {
        memcpy(w->fresh_secret, first, sizeof first);
        memcpy(w->fresh_mark, mark, sizeof mark);
        make_set(a, w->fresh_secret, &w->fresh_set);
        w->fresh = true;
    }
    a->wipe(first, sizeof first);
    return same ? UT_ERR_EXISTS : UT_OK;
}

/* ---- packets ---- */

/* The nonce: the key's IV, with kind, index and number XORed into it. */
static ut_aead_packet packet_of(const ut_sealed *p, const ut_key *key, uint8_t nonce[UT_NONCE_BYTES])
{
    memcpy(nonce, key->iv, UT_NONCE_BYTES);
    nonce[0] ^= p->kind;
    nonce[1] ^= p->index;
    for (unsigned i = 0; i < 8; i++)
        nonce[4 + i] ^= (uint8_t)(p->number >> (56 - 8 * i));
    return (ut_aead_packet){.nonce = nonce,
                            .header = p->bytes,
                            .header_len = p->header,
                            .body = p->bytes + p->header,
                            .body_len = p->body,
                            .tag = p->bytes + p->header + p->body};
}

/* Begins a new epoch if this one has lasted long enough, or there is a fresh secret, and the peer is known to follow.
 */
static void grow_old(ut_keys *k, ut_ns now)
{
    bool old = k->packets >= k->life.packets || k->bytes >= k->life.bytes || now - k->since >= k->life.time;
    if (!(old || k->out.fresh) || !k->heard || now - k->since < k->life.rest)
        return;
    if (k->out.fresh)
        advance_freshly(&k->out);
    else
        advance(&k->out);
    k->packets = k->bytes = 0;
    k->since = now;
    k->heard = false;
}

/* That a nonce comes twice would be the end of all secrecy of its key, and would be our own mistake. */
static void number_rises(ut_keys *k, const ut_sealed *p)
{
    uint64_t *last = &k->last[p->kind - UT_KIND_DATA], at = p->number << 3 | p->index;
    assert(p->index < UT_PIECES_MAX && p->number < 1ULL << 60 && at + 1 > *last);
    *last = at + 1;
}

static void seal(void *keys, const ut_sealed *packets, uint32_t n, ut_ns now)
{
    ut_keys *k = keys;
    uint8_t nonce[UT_NONCE_BYTES];
    assert(k->out.aead);
    for (uint32_t i = 0; i < n; i++) {
        const ut_sealed *p = &packets[i];
        grow_old(k, now);
        number_rises(k, p);
        p->epoch[0] = k->out.epoch;
        p->epoch[1] = k->in.epoch;
        p->epoch[2] = k->out.renewals;
        const ut_key *key = &set_at(&k->out, 0)->kind[p->kind - UT_KIND_DATA];
        const ut_aead_packet of = packet_of(p, key, nonce);
        k->out.aead->seal(key->context, &of);
        k->packets++;
        k->bytes += p->header + p->body;
    }
}

static bool open(void *keys, const ut_sealed *p, ut_ns now)
{
    enum { PREVIOUS = UT_KEY_SETS - 1, CURRENT = 0, NEXT = 1 };
    ut_keys *k = keys;
    ut_keys_way *w = &k->in;
    uint8_t nonce[UT_NONCE_BYTES], ahead = (uint8_t)(p->epoch[0] - w->epoch);
    bool previous = ahead == UINT8_MAX && now < k->previous_until;
    if (!w->aead || !(ahead == CURRENT || ahead == NEXT || previous))
        return false;
    const bool freshly = ahead == NEXT && w->fresh && p->epoch[2] == (uint8_t)(w->renewals + 1);
    const ut_key_set *set = freshly ? &w->fresh_set : set_at(w, previous ? PREVIOUS : ahead);
    const ut_key *key = &set->kind[p->kind - UT_KIND_DATA];
    const ut_aead_packet of = packet_of(p, key, nonce);
    if (!w->aead->open(key->context, &of))
        return false;
    if (ahead == NEXT) {
        if (freshly)
            advance_freshly(w);
        else
            advance(w);
        k->previous_until = now + PREVIOUS_NS;
    }
    if (p->epoch[1] == k->out.epoch)
        k->heard = true;
    return true;
}

const ut_cipher ut_cipher_sealed = {"sealed", UT_TAG_BYTES, seal, open};
