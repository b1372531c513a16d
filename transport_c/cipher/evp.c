/* SPDX-License-Identifier: Apache-2.0
 *
 * The only file that calls libcrypto, and the one that chooses between it and another library (mb.h). A context is made
 * once for each key's place and keyed anew as keys change. For each packet only the nonce is set, so neither a key
 * schedule nor memory is asked for then.
 *
 * No call here can fail for a reason that comes from outside, save that a tag is wrong. Hence the asserts.
 */
#define _GNU_SOURCE /* clock_gettime */
#include "cipher/evp.h"

#include "cipher/libcrypto.h"
#include "cipher/mb.h"

#include <assert.h>
#include <pthread.h>
#include <string.h>
#include <time.h>

#if defined(__aarch64__)
#include <sys/auxv.h>
#endif

/* Set before any AEAD of this file is handed out (ut_evp_libcrypto). */
static const ut_libcrypto *crypto;

/* An AEAD, and where in libcrypto its cipher is. */
typedef struct suite {
    ut_aead aead;
    const EVP_CIPHER *(*cipher)(void);
} suite;

static const EVP_CIPHER *aes_128_gcm(void)
{
    return crypto->EVP_aes_128_gcm();
}

static const EVP_CIPHER *aes_256_gcm(void)
{
    return crypto->EVP_aes_256_gcm();
}

static const EVP_CIPHER *chacha20_poly1305(void)
{
    return crypto->EVP_chacha20_poly1305();
}

static void *make(const ut_aead *aead, bool sealing)
{
    const suite *s = (const suite *)(const void *)aead;
    EVP_CIPHER_CTX *context = crypto->EVP_CIPHER_CTX_new();
    uint8_t zero[UT_KEY_BYTES_MAX] = {0};
    /* All that a context needs is allocated here: with a key, so that ut_aead.key finds it complete. */
    if (context && (crypto->EVP_CipherInit_ex(context, s->cipher(), NULL, NULL, NULL, sealing) != 1 ||
                    crypto->EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_SET_IVLEN, UT_NONCE_BYTES, NULL) != 1 ||
                    crypto->EVP_CipherInit_ex(context, NULL, NULL, zero, zero, sealing) != 1)) {
        crypto->EVP_CIPHER_CTX_free(context);
        return NULL;
    }
    return context;
}

static void drop(void *context)
{
    crypto->EVP_CIPHER_CTX_free(context);
}

static void set_key(void *context, const uint8_t *key)
{
    int done = crypto->EVP_CipherInit_ex(context, NULL, NULL, key, NULL, -1);
    assert(done == 1);
    (void)done;
}

static void seal(void *context, const ut_aead_packet *p)
{
    int len;
    bool done = crypto->EVP_EncryptInit_ex(context, NULL, NULL, NULL, p->nonce) == 1 &&
                crypto->EVP_EncryptUpdate(context, NULL, &len, p->header, (int)p->header_len) == 1 &&
                crypto->EVP_EncryptUpdate(context, p->body, &len, p->body, (int)p->body_len) == 1 &&
                crypto->EVP_EncryptFinal_ex(context, p->body + p->body_len, &len) == 1 &&
                crypto->EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_GET_TAG, UT_TAG_BYTES, p->tag) == 1;
    assert(done);
    (void)done;
}

static bool open(void *context, const ut_aead_packet *p)
{
    int len;
    bool done = crypto->EVP_DecryptInit_ex(context, NULL, NULL, NULL, p->nonce) == 1 &&
                crypto->EVP_DecryptUpdate(context, NULL, &len, p->header, (int)p->header_len) == 1 &&
                crypto->EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_SET_TAG, UT_TAG_BYTES, p->tag) == 1;
    assert(done);
    return done && crypto->EVP_DecryptUpdate(context, p->body, &len, p->body, (int)p->body_len) == 1 &&
           crypto->EVP_DecryptFinal_ex(context, p->body + p->body_len, &len) == 1;
}

static void mac(const uint8_t *key, size_t key_len, const uint8_t *data, size_t len, uint8_t *out)
{
    unsigned bytes = 0;
    const uint8_t *done = crypto->HMAC(crypto->EVP_sha256(), key, (int)key_len, data, len, out, &bytes);
    assert(done && bytes == UT_SECRET_BYTES);
    (void)done;
}

static void wipe(void *memory, size_t bytes)
{
    crypto->OPENSSL_cleanse(memory, bytes);
}

#define COMMON                                                                                                         \
    .provider = "libcrypto", .make = make, .drop = drop, .key = set_key, .seal = seal, .open = open, .mac = mac,       \
    .wipe = wipe

static const suite suites[UT_SUITES_END] = {
    [UT_SUITE_AES_128_GCM] = {{.name = "aes-128-gcm", .key_bytes = 16, COMMON}, aes_128_gcm},
    [UT_SUITE_AES_256_GCM] = {{.name = "aes-256-gcm", .key_bytes = 32, COMMON}, aes_256_gcm},
    [UT_SUITE_CHACHA20_POLY1305] = {{.name = "chacha20-poly1305", .key_bytes = 32, COMMON}, chacha20_poly1305},
};

/* ---- what must come out ---- */

/* AES: Galois/Counter Mode of Operation (McGrew and Viega), test case 2, and case 14 for 256 bits: key and nonce zero,
 * no header, a body of 16 zeros. */
static const uint8_t aes_128[32] = {0x03, 0x88, 0xda, 0xce, 0x60, 0xb6, 0xa3, 0x92, 0xf3, 0x28, 0xc2,
                                    0xb9, 0x71, 0xb2, 0xfe, 0x78, 0xab, 0x6e, 0x47, 0xd4, 0x2c, 0xec,
                                    0x13, 0xbd, 0xf5, 0x3a, 0x67, 0xb2, 0x12, 0x57, 0xbd, 0xdf};
static const uint8_t aes_256[32] = {0xce, 0xa7, 0x40, 0x3d, 0x4d, 0x60, 0x6b, 0x6e, 0x07, 0x4e, 0xc5,
                                    0xd3, 0xba, 0xf3, 0x9d, 0x18, 0xd0, 0xd1, 0xc8, 0xa7, 0x99, 0x99,
                                    0x6b, 0xf0, 0x26, 0x5b, 0x98, 0xb5, 0xd4, 0x8a, 0xb9, 0x19};
/* RFC 8439, A.1, test vector 2: the key stream of block 1 under a key and nonce of zeros. Its tag is published nowhere.
 */
static const uint8_t chacha20[16] = {0x9f, 0x07, 0xe7, 0xbe, 0x55, 0x51, 0x38, 0x7a,
                                     0x98, 0xba, 0x97, 0x7c, 0x73, 0x2d, 0x08, 0x0d};

/* Seals 16 zeros under a key and nonce of zeros, compares, opens, and sees that a flipped bit is found. */
static bool computes_rightly(const ut_aead *a, unsigned number)
{
    const uint8_t zero[UT_KEY_BYTES_MAX] = {0}, *want = number == UT_SUITE_AES_128_GCM   ? aes_128
                                                        : number == UT_SUITE_AES_256_GCM ? aes_256
                                                                                         : chacha20;
    uint8_t out[32] = {0};
    const ut_aead_packet p = {zero, zero, 0, out, 16, out + 16};
    void *sealing = a->make(a, true), *opening = a->make(a, false);
    bool right = sealing && opening;
    if (right) {
        a->key(sealing, zero);
        a->key(opening, zero);
        a->seal(sealing, &p);
        right = memcmp(out, want, number == UT_SUITE_CHACHA20_POLY1305 ? 16 : 32) == 0;
        right = right && a->open(opening, &p) && memcmp(out, zero, 16) == 0;
        a->seal(sealing, &p);
        out[3] ^= 1;
        right = right && !a->open(opening, &p);
    }
    a->drop(sealing);
    a->drop(opening);
    return right;
}

/* Whether |b| seals as |a| does and opens it: bodies around the widths that fast code works in, and long ones. */
static bool compute_alike(const ut_aead *a, const ut_aead *b)
{
    enum { MOST = 1500 };
    static const size_t lengths[] = {1, 15, 16, 17, 255, 256, 257, 767, 768, 769, 1424, MOST};
    uint8_t key[UT_KEY_BYTES_MAX], header[32], one[MOST + UT_TAG_BYTES], other[MOST + UT_TAG_BYTES];
    void *first = a->make(a, true), *second = b->make(b, true), *opening = b->make(b, false);
    bool alike = first && second && opening;
    for (unsigned i = 0; alike && i < sizeof lengths / sizeof *lengths; i++) {
        const size_t len = lengths[i];
        memset(key, (int)(i + 1), sizeof key);
        memset(header, (int)(i + 2), sizeof header);
        for (size_t at = 0; at < len; at++)
            one[at] = other[at] = (uint8_t)(at * 7 + i);
        const ut_aead_packet p = {key + 4, header, i % 2 ? 32 : 16, one, len, one + len};
        const ut_aead_packet q = {key + 4, header, i % 2 ? 32 : 16, other, len, other + len};
        a->key(first, key);
        b->key(second, key);
        b->key(opening, key);
        a->seal(first, &p);
        b->seal(second, &q);
        alike = memcmp(one, other, len + UT_TAG_BYTES) == 0 && b->open(opening, &q) &&
                other[len - 1] == (uint8_t)((len - 1) * 7 + i);
        b->seal(second, &q);
        other[len] ^= 0x80;
        alike = alike && !b->open(opening, &q);
    }
    a->drop(first);
    b->drop(second);
    b->drop(opening);
    return alike;
}

static void find(void)
{
    crypto = ut_libcrypto_find();
}

const ut_aead *ut_evp_libcrypto(unsigned suite)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, find);
    return crypto && suite && suite < UT_SUITES_END && computes_rightly(&suites[suite].aead, suite)
               ? &suites[suite].aead
               : NULL;
}

/* The CPU time of one packet, sealed and opened: the least of some, for whatever else runs here only adds to it. */
static uint64_t cost_ns(const ut_aead *a)
{
    enum { TIMES = 32, BODY = 1424 };
    const uint8_t key[UT_KEY_BYTES_MAX] = {0}, nonce[UT_NONCE_BYTES] = {0}, header[32] = {0};
    uint8_t body[BODY + UT_TAG_BYTES] = {0};
    const ut_aead_packet p = {nonce, header, sizeof header, body, BODY, body + BODY};
    void *sealing = a->make(a, true), *opening = a->make(a, false);
    uint64_t least = UINT64_MAX;
    if (sealing && opening) {
        a->key(sealing, key);
        a->key(opening, key);
        for (unsigned i = 0; i < TIMES; i++) {
            struct timespec from, to;
            clock_gettime(CLOCK_THREAD_CPUTIME_ID, &from);
            a->seal(sealing, &p);
            a->open(opening, &p);
            clock_gettime(CLOCK_THREAD_CPUTIME_ID, &to);
            const int64_t took = (to.tv_sec - from.tv_sec) * INT64_C(1000000000) + to.tv_nsec - from.tv_nsec;
            least = took > 0 && (uint64_t)took < least ? (uint64_t)took : least;
        }
    }
    a->drop(sealing);
    a->drop(opening);
    return least;
}

static const ut_aead *chosen[UT_SUITES_END];

/* Which of the two is faster depends on their versions and the CPU: what is so here is seen by trying. */

static void choose(void)
{
    for (unsigned suite = 1; suite < UT_SUITES_END; suite++) {
        const ut_aead *usual = ut_evp_libcrypto(suite), *other = usual ? ut_mb_suite(suite, usual) : NULL;
        const bool right = other && computes_rightly(other, suite) && compute_alike(usual, other);
        chosen[suite] = right && cost_ns(other) < cost_ns(usual) ? other : usual;
    }
}

const ut_aead *ut_evp_suite(unsigned suite)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, choose);
    return suite < UT_SUITES_END ? chosen[suite] : NULL;
}

unsigned ut_evp_best(void)
{
    bool aes = false;
#if defined(__x86_64__) || defined(__i386__)
    aes = __builtin_cpu_supports("aes") && __builtin_cpu_supports("pclmul");
#elif defined(__aarch64__)
    enum { AES = 1 << 3, PMULL = 1 << 4 }; /* HWCAP_AES, HWCAP_PMULL */
    aes = (getauxval(AT_HWCAP) & (AES | PMULL)) == (AES | PMULL);
#endif
    return aes ? UT_SUITE_AES_128_GCM : UT_SUITE_CHACHA20_POLY1305;
}
