/* SPDX-License-Identifier: Apache-2.0
 *
 * The keys of a path, with the real ciphers: what one end seals the other opens, through any number of epochs; nothing
 * else is opened; and no nonce comes twice.
 */
#include "check.h"

#include "cipher/evp.h"
#include "cipher/keys.h"

enum { BODY = 200 };
static const ut_key_life quick = {3, 1 << 20, UT_SECOND, 0};
static const ut_key_context here = {.job = "job", .generation = 7, .from = 0, .to = 1, .lane = 0, .cid = 0x01020304};
static const uint8_t secret[UT_SECRET_BYTES] = {1, 2, 3};

typedef struct packet {
    uint8_t bytes[32 + BODY + UT_TAG_BYTES];
    ut_sealed as;
} packet;

static void make_packet(packet *p, uint8_t kind, uint8_t index, uint64_t number)
{
    uint32_t header = kind == UT_KIND_DATA ? 32 : 16;
    for (uint32_t i = 0; i < header + BODY; i++)
        p->bytes[i] = (uint8_t)(number * 31 + i);
    memset(p->bytes + 12, 0, 4);
    p->as = (ut_sealed){.bytes = p->bytes,
                        .header = header,
                        .body = BODY,
                        .epoch = p->bytes + 12,
                        .number = number,
                        .kind = kind,
                        .index = index};
}

static bool is_plain(const packet *p)
{
    bool right = true;
    for (uint32_t i = p->as.header; i < p->as.header + BODY; i++)
        right = right && p->bytes[i] == (uint8_t)(p->as.number * 31 + i);
    return right;
}

static void send_one(ut_keys *from, packet *p, uint8_t kind, uint64_t number, ut_ns now)
{
    make_packet(p, kind, 0, number);
    ut_cipher_sealed.seal(from, &p->as, 1, now);
}

/* The packet may be a copy of the one that was sealed. */
static bool receive(ut_keys *to, packet *p, ut_ns now)
{
    p->as.bytes = p->bytes;
    p->as.epoch = p->bytes + 12;
    return ut_cipher_sealed.open(to, &p->as, now);
}

/* Two ends of a path. */
static void begin_pair(ut_keys *a, ut_keys *b, unsigned suite, const ut_key_life *life)
{
    static const uint8_t back[UT_SECRET_BYTES] = {9};
    ut_key_context away = here;
    away.from = 1, away.to = 0, away.cid = 5;
    const ut_aead *aead = ut_evp_suite(suite);
    CHECK(aead != NULL);
    memset(a, 0, sizeof *a);
    memset(b, 0, sizeof *b);
    CHECK_EQ(ut_keys_begin(a, true, aead, suite, secret, &here, life, 0), UT_OK);
    CHECK_EQ(ut_keys_begin(b, false, aead, suite, secret, &here, life, 0), UT_OK);
    CHECK_EQ(ut_keys_begin(b, true, aead, suite, back, &away, life, 0), UT_OK);
    CHECK_EQ(ut_keys_begin(a, false, aead, suite, back, &away, life, 0), UT_OK);
}

static void end_pair(ut_keys *a, ut_keys *b)
{
    ut_keys_end(a);
    ut_keys_end(b);
}

static void keys__what_is_sealed_is_opened_and_nothing_else(void)
{
    for (unsigned suite = 1; suite < UT_SUITES_END; suite++) {
        ut_keys a, b;
        packet p, spoilt;
        begin_pair(&a, &b, suite, &ut_key_life_usual);
        for (uint64_t n = 0; n < 200; n++) {
            uint8_t kind = (uint8_t)(1 + n % UT_KEY_KINDS);
            make_packet(&p, kind, kind == UT_KIND_PIECE ? (uint8_t)(n % 8) : 0, n);
            ut_cipher_sealed.seal(&a, &p.as, 1, n);
            CHECK(!is_plain(&p));
            spoilt = p;
            uint32_t len = p.as.header + BODY + UT_TAG_BYTES;
            uint32_t bit = (uint32_t)check_below(8 * len);
            spoilt.bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
            CHECK_MSG(!receive(&b, &spoilt, n), "bit %u of packet %" PRIu64, bit, n);
            spoilt = p;
            spoilt.as.number ^= 1ULL << (32 + n % 32); /* the bits that do not travel */
            CHECK(!receive(&b, &spoilt, n));
            spoilt = p;
            spoilt.as.kind = (uint8_t)(1 + kind % UT_KEY_KINDS);
            CHECK(!receive(&b, &spoilt, n));
            CHECK(!receive(&a, &spoilt, n)); /* back to where it came from */
            CHECK(receive(&b, &p, n));
            CHECK(is_plain(&p));
        }
        end_pair(&a, &b);
    }
}

/* The secret is the same; each part of the context sets keys apart. */
static void keys__each_part_of_the_context_counts(void)
{
    const ut_aead *aead = ut_evp_suite(UT_SUITE_AES_128_GCM);
    ut_key_context others[] = {here, here, here, here, here, here, here};
    others[1].job = "joc";
    others[2].generation++;
    others[3].from = 2;
    others[4].to = 0;
    others[5].lane = 1;
    others[6].cid++;
    for (unsigned i = 0; i < 7; i++) {
        ut_keys a = {0}, b = {0};
        packet p;
        CHECK_EQ(ut_keys_begin(&a, true, aead, 1, secret, &others[i], &quick, 0), UT_OK);
        CHECK_EQ(ut_keys_begin(&b, false, aead, 1, secret, &here, &quick, 0), UT_OK);
        send_one(&a, &p, UT_KIND_DATA, 1, 0);
        CHECK_EQ(receive(&b, &p, 0), i == 0);
        end_pair(&a, &b);
    }
    ut_keys a = {0}, b = {0};
    packet p;
    CHECK_EQ(ut_keys_begin(&a, true, aead, 3, secret, &here, &quick, 0), UT_OK); /* another suite's number */
    CHECK_EQ(ut_keys_begin(&b, false, aead, 1, secret, &here, &quick, 0), UT_OK);
    send_one(&a, &p, UT_KIND_DATA, 1, 0);
    CHECK(!receive(&b, &p, 0));
    end_pair(&a, &b);
}

static void keys__the_same_secret_is_taken_once(void)
{
    const ut_aead *aead = ut_evp_suite(UT_SUITE_AES_128_GCM);
    ut_keys a = {0};
    uint8_t other[UT_SECRET_BYTES] = {4};
    CHECK_EQ(ut_keys_begin(&a, true, aead, 1, secret, &here, &quick, 0), UT_OK);
    CHECK_EQ(ut_keys_begin(&a, true, aead, 1, secret, &here, &quick, 0), UT_ERR_EXISTS);
    CHECK_EQ(ut_keys_begin(&a, true, aead, 1, other, &here, &quick, 0), UT_OK);
    ut_keys_end(&a);
    ut_keys_end(&a);
}

/* What has been sent on a path, and came. */
typedef struct traffic {
    uint64_t data, feedback, opened, sent;
    ut_ns now;
} traffic;

enum { HELD = 8 };

/* HELD packets of data in one direction, of which the newest overtakes the others, and in the other one of feedback; of
 * all three in ten are lost. */
static void exchange(ut_keys *a, ut_keys *b, traffic *all)
{
    packet p, held[HELD];
    for (unsigned i = 0; i < HELD; i++)
        send_one(a, &held[i], UT_KIND_DATA, ++all->data, all->now += UT_MS);
    for (unsigned i = HELD; i-- > 0;) {
        if (check_below(100) < 30)
            continue;
        all->sent++;
        all->opened += receive(b, &held[i], all->now);
    }
    send_one(b, &p, UT_KIND_FEEDBACK, ++all->feedback, all->now);
    if (check_below(100) >= 30)
        CHECK(receive(a, &p, all->now));
}

static void keys__epochs_change_under_loss_and_reordering(void)
{
    enum { PACKETS = 4000 };
    ut_keys a, b;
    traffic all = {0};
    begin_pair(&a, &b, UT_SUITE_AES_128_GCM, &quick);
    for (unsigned round = 0; round < PACKETS / HELD; round++)
        exchange(&a, &b, &all);
    CHECK_EQ(all.opened, all.sent);    /* no change of keys has cost a packet */
    CHECK_GE(a.out.changes, 256 + 50); /* the epoch's 8 bits went round */
    CHECK_GE(b.out.changes, 50);
    CHECK(a.out.changes - b.in.changes <= 1);
    end_pair(&a, &b);
}

static void renew(ut_keys *sender, ut_keys *receiver, uint8_t with)
{
    const uint8_t fresh[UT_SECRET_BYTES] = {7, with};
    CHECK_EQ(ut_keys_renew(receiver, false, UT_SUITE_AES_128_GCM, fresh, &here), UT_OK);
    if (sender)
        CHECK_EQ(ut_keys_renew(sender, true, UT_SUITE_AES_128_GCM, fresh, &here), UT_OK);
}

/* Both ends change to the fresh secret within a round trip; until then, whatever was lost, nothing is refused. */
static void keys__a_fresh_secret_is_begun_with_by_both(void)
{
    ut_keys a, b;
    packet p, old;
    begin_pair(&a, &b, UT_SUITE_AES_128_GCM, &ut_key_life_usual);
    send_one(&a, &p, UT_KIND_DATA, 1, 0);
    CHECK(receive(&b, &p, 0));
    renew(NULL, &b, 1);
    send_one(&a, &old, UT_KIND_DATA, 2, UT_SECOND); /* the sender has not heard of it */
    send_one(&a, &p, UT_KIND_DATA, 3, UT_SECOND);
    CHECK(receive(&b, &p, UT_SECOND) && b.in.renewals == 0 && b.in.fresh);
    const uint8_t fresh[UT_SECRET_BYTES] = {7, 1}, another[UT_SECRET_BYTES] = {7, 2};
    CHECK_EQ(ut_keys_renew(&b, false, UT_SUITE_AES_128_GCM, another, &here), UT_ERR_FULL);
    CHECK_EQ(ut_keys_renew(&a, true, UT_SUITE_AES_128_GCM, fresh, &here), UT_OK);
    CHECK_EQ(ut_keys_renew(&a, true, UT_SUITE_AES_128_GCM, another, &here), UT_ERR_FULL);
    send_one(&a, &p, UT_KIND_DATA, 4, UT_SECOND);
    CHECK(a.out.renewals == 1 && a.out.changes == 1 && !a.out.fresh && p.bytes[14] == 1);
    packet spoilt = p;
    spoilt.bytes[14] = 0; /* as if it were of the old secret */
    CHECK(!receive(&b, &spoilt, UT_SECOND) && b.in.changes == 0);
    CHECK(receive(&b, &p, UT_SECOND) && b.in.renewals == 1 && b.in.changes == 1 && !b.in.fresh);
    CHECK(receive(&b, &old, UT_SECOND)); /* it was only late */
    CHECK_EQ(ut_keys_renew(&b, false, UT_SUITE_AES_128_GCM, fresh, &here), UT_ERR_EXISTS);
    end_pair(&a, &b);
}

/* Of another path, or of none, is no fresh secret. */
static void keys__a_fresh_secret_is_of_its_path(void)
{
    ut_keys a, b, none = {0};
    const uint8_t fresh[UT_SECRET_BYTES] = {7};
    ut_key_context other = here;
    other.cid++;
    begin_pair(&a, &b, UT_SUITE_AES_128_GCM, &quick);
    CHECK_EQ(ut_keys_renew(&b, false, UT_SUITE_AES_128_GCM, fresh, &other), UT_ERR_UNKNOWN);
    CHECK_EQ(ut_keys_renew(&none, true, UT_SUITE_AES_128_GCM, fresh, &here), UT_ERR_UNKNOWN);
    end_pair(&a, &b);
}

/* What the fresh secret's keys open follows from nothing that was known before: one who has the old chain of secrets
 * and follows it reads nothing any more. */
static void keys__who_knew_the_old_secret_is_out(void)
{
    ut_keys a, b, spy = {0}, back;
    packet p, copy;
    begin_pair(&a, &b, UT_SUITE_AES_128_GCM, &quick);
    begin_pair(&back, &spy, UT_SUITE_AES_128_GCM, &quick); /* the spy has all that the receiver has */
    send_one(&a, &p, UT_KIND_DATA, 1, 0);
    copy = p;
    CHECK(receive(&b, &p, 0) && receive(&spy, &copy, 0));
    renew(&a, &b, 1);
    send_one(&a, &p, UT_KIND_DATA, 2, 0);
    for (unsigned byte = 0; byte < 256; byte++) {
        copy = p;
        copy.bytes[14] = (uint8_t)byte;
        CHECK(!receive(&spy, &copy, 0));
    }
    CHECK(receive(&b, &p, 0));
    end_pair(&a, &b);
    end_pair(&spy, &back);
}

/* Keys of 3 packets, a fresh secret every few of them that the sender hears of late, loss and reordering both ways. */
static void keys__fresh_secrets_under_loss_and_reordering(void)
{
    enum { ROUNDS = 3000 };
    ut_keys a, b;
    traffic all = {0};
    uint64_t told = 0;
    uint8_t drawn = 0;
    bool to_tell = false;
    begin_pair(&a, &b, UT_SUITE_AES_128_GCM, &quick);
    while (all.now < (ut_ns)ROUNDS * HELD * UT_MS) {
        const uint8_t fresh[UT_SECRET_BYTES] = {8, drawn, (uint8_t)(told >> 8)};
        if (!to_tell && !b.in.fresh && check_below(4) == 0) {
            CHECK_EQ(ut_keys_renew(&b, false, UT_SUITE_AES_128_GCM, fresh, &here), UT_OK);
            to_tell = true;
        } else if (to_tell && check_below(3) == 0) {
            CHECK_EQ(ut_keys_renew(&a, true, UT_SUITE_AES_128_GCM, fresh, &here), UT_OK);
            to_tell = false;
            drawn++, told++;
        }
        exchange(&a, &b, &all);
    }
    CHECK_EQ(all.opened, all.sent); /* no fresh secret has cost a packet */
    CHECK_GE(told, 300);            /* their 8 bits went round */
    CHECK_EQ(a.out.renewals + a.out.fresh, (uint8_t)told);
    end_pair(&a, &b);
}

static void keys__no_second_change_before_the_first_was_heard(void)
{
    ut_keys a, b;
    packet p, old;
    begin_pair(&a, &b, UT_SUITE_AES_128_GCM, &quick);
    send_one(&a, &old, UT_KIND_DATA, 1, 0);
    for (uint64_t n = 2; n < 100; n++)
        send_one(&a, &p, UT_KIND_DATA, n, n * UT_SECOND);
    CHECK_EQ(a.out.changes, 1);
    CHECK(receive(&b, &p, 0));
    CHECK_EQ(b.in.changes, 1);
    packet again = old;
    CHECK(receive(&b, &again, 599 * UT_MS)); /* the previous epoch, within its time */
    again = old;
    CHECK(!receive(&b, &again, 601 * UT_MS));
    send_one(&b, &p, UT_KIND_FEEDBACK, 1, 0);
    CHECK(receive(&a, &p, 0));
    send_one(&a, &p, UT_KIND_DATA, 100, 200 * UT_SECOND);
    CHECK_EQ(a.out.changes, 2);
    end_pair(&a, &b);
}

/* Of what makes keys old, each alone does. */
static void keys__grow_old_by_packets_bytes_and_time(void)
{
    static const ut_key_life lives[] = {
        {10, UINT64_MAX, UT_NEVER, 0}, {UINT64_MAX, 2000, UT_NEVER, 0}, {UINT64_MAX, UINT64_MAX, 9, 0}};
    for (unsigned i = 0; i < 3; i++) {
        ut_keys a, b;
        packet p;
        begin_pair(&a, &b, UT_SUITE_AES_128_GCM, &lives[i]);
        for (uint64_t n = 1; n <= 9; n++)
            send_one(&a, &p, UT_KIND_DATA, n, n - 1);
        CHECK_MSG(a.out.changes == 0, "life %u", i); /* 9 packets of 232 bytes, 8 ns: the next one is too many */
        send_one(&a, &p, UT_KIND_DATA, 10, 9);
        send_one(&a, &p, UT_KIND_DATA, 11, 9);
        CHECK_MSG(a.out.changes == 1, "life %u", i);
        end_pair(&a, &b);
    }
    ut_keys a, b;
    packet p;
    const ut_key_life rests = {1, UINT64_MAX, UT_NEVER, 10};
    begin_pair(&a, &b, UT_SUITE_AES_128_GCM, &rests);
    for (uint64_t n = 1; n <= 10; n++)
        send_one(&a, &p, UT_KIND_DATA, n, n - 1);
    CHECK_EQ(a.out.changes, 0);
    send_one(&a, &p, UT_KIND_DATA, 11, 10);
    CHECK_EQ(a.out.changes, 1);
    end_pair(&a, &b);
    CHECK_EQ(ut_key_life_usual.rest, 600 * UT_MS);
    CHECK_EQ(ut_key_life_usual.packets, 1 << 24);
    CHECK_EQ(ut_key_life_usual.bytes, 64ULL << 30);
    CHECK_EQ(ut_key_life_usual.time, 60 * UT_SECOND);
}

/* What lies in memory does not open what was sent before. */
static void keys__old_secrets_are_wiped(void)
{
    ut_keys a = {0};
    const ut_aead *aead = ut_evp_suite(UT_SUITE_CHACHA20_POLY1305);
    CHECK_EQ(ut_keys_begin(&a, true, aead, 3, secret, &here, &quick, 0), UT_OK);
    const uint8_t *memory = (const uint8_t *)&a;
    for (size_t at = 0; at + sizeof secret <= sizeof a; at++)
        if (memcmp(memory + at, secret, sizeof secret) == 0)
            CHECK_MSG(false, "the secret that was exchanged lies at offset %zu", at);
    uint8_t before[UT_SECRET_BYTES];
    memcpy(before, a.out.secret, sizeof before);
    packet p;
    for (uint64_t n = 1; n < 9; n++)
        send_one(&a, &p, UT_KIND_DATA, n, 0);
    CHECK_EQ(a.out.changes, 1);
    CHECK(memcmp(before, a.out.secret, sizeof before) != 0);
    ut_keys_end(&a);
    for (size_t at = 0; at < sizeof a; at++)
        CHECK_EQ(memory[at], 0);
}

static void evp__knows_its_suites(void)
{
    CHECK(ut_evp_suite(0) == NULL);
    CHECK(ut_evp_suite(UT_SUITES_END) == NULL);
    for (unsigned suite = 1; suite < UT_SUITES_END; suite++)
        CHECK(ut_evp_suite(suite) && ut_evp_suite(suite)->key_bytes <= UT_KEY_BYTES_MAX);
    CHECK(ut_evp_suite(ut_evp_best()) != NULL);
}

/* Whatever library was chosen: it seals what libcrypto opens, and the other way round, at all lengths up to a burst of
 * vectors, at random ones, and at places that are not aligned. */
static void evp__libraries_compute_alike(void)
{
    static uint8_t one[9216 + 64], other[9216 + 64];
    for (unsigned suite = 1; suite < UT_SUITES_END; suite++) {
        const ut_aead *usual = ut_evp_libcrypto(suite), *chosen = ut_evp_suite(suite);
        CHECK(usual && chosen && strcmp(usual->name, chosen->name) == 0 && usual->key_bytes == chosen->key_bytes);
        void *seals = chosen->make(chosen, true), *opens = usual->make(usual, false);
        void *back_seals = usual->make(usual, true), *back_opens = chosen->make(chosen, false);
        for (unsigned i = 0; i < 1500; i++) {
            uint8_t key[UT_KEY_BYTES_MAX], nonce[UT_NONCE_BYTES];
            const size_t len = i < 1100 ? i + 1 : 1 + (size_t)check_below(9000), off = (size_t)check_below(16);
            for (unsigned k = 0; k < sizeof key; k++)
                key[k] = (uint8_t)check_random();
            for (unsigned k = 0; k < sizeof nonce; k++)
                nonce[k] = (uint8_t)check_random();
            for (size_t k = 0; k < off + 32 + len; k++)
                one[k] = (uint8_t)check_random();
            memcpy(other, one, off + 32 + len);
            uint8_t *at = one + off, *at2 = other + off;
            const size_t header = i % 2 ? 32 : 16;
            const ut_aead_packet p = {nonce, at, header, at + 32, len, at + 32 + len};
            const ut_aead_packet q = {nonce, at2, header, at2 + 32, len, at2 + 32 + len};
            chosen->key(seals, key);
            usual->key(opens, key);
            usual->key(back_seals, key);
            chosen->key(back_opens, key);
            chosen->seal(seals, &p);
            usual->seal(back_seals, &q);
            CHECK_MSG(memcmp(at, at2, 32 + len + UT_TAG_BYTES) == 0, "%s: %zu bytes at %zu", chosen->name, len, off);
            at[32 + len + check_below(UT_TAG_BYTES)] ^= (uint8_t)(1 << i % 8);
            at2[check_below(header)] ^= (uint8_t)(1 << i % 8);
            CHECK(!chosen->open(back_opens, &p) && !chosen->open(back_opens, &q));
            chosen->seal(seals, &p);
            usual->seal(back_seals, &q);
            CHECK(usual->open(opens, &p) && chosen->open(back_opens, &q));
        }
        usual->drop(opens);
        usual->drop(back_seals);
        chosen->drop(seals);
        chosen->drop(back_opens);
    }
}

/* Test case 1 of RFC 4231. */
static void evp__mac(void)
{
    static const uint8_t want[UT_SECRET_BYTES] = {0xb0, 0x34, 0x4c, 0x61, 0xd8, 0xdb, 0x38, 0x53, 0x5c, 0xa8, 0xaf,
                                                  0xce, 0xaf, 0x0b, 0xf1, 0x2b, 0x88, 0x1d, 0xc2, 0x00, 0xc9, 0x83,
                                                  0x3d, 0xa7, 0x26, 0xe9, 0x37, 0x6c, 0x2e, 0x32, 0xcf, 0xf7};
    uint8_t key[20], out[UT_SECRET_BYTES];
    memset(key, 0x0b, sizeof key);
    ut_evp_suite(1)->mac(key, sizeof key, (const uint8_t *)"Hi There", 8, out);
    CHECK(memcmp(out, want, sizeof want) == 0);
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(evp__knows_its_suites);
    RUN(evp__libraries_compute_alike);
    RUN(evp__mac);
    RUN(keys__what_is_sealed_is_opened_and_nothing_else);
    RUN(keys__each_part_of_the_context_counts);
    RUN(keys__the_same_secret_is_taken_once);
    RUN(keys__epochs_change_under_loss_and_reordering);
    RUN(keys__a_fresh_secret_is_begun_with_by_both);
    RUN(keys__a_fresh_secret_is_of_its_path);
    RUN(keys__who_knew_the_old_secret_is_out);
    RUN(keys__fresh_secrets_under_loss_and_reordering);
    RUN(keys__no_second_change_before_the_first_was_heard);
    RUN(keys__grow_old_by_packets_bytes_and_time);
    RUN(keys__old_secrets_are_wiped);
    return check_end();
}
