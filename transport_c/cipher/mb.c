/* SPDX-License-Identifier: Apache-2.0
 *
 * The only file that includes headers of libIPSec_MB.
 */
#include "cipher/mb.h"

#if defined(__x86_64__) && defined(__has_include)
#if __has_include(<intel-ipsec-mb.h>)
#define HAVE_MB 1
#endif
#endif

#ifndef HAVE_MB

const ut_aead *ut_mb_suite(unsigned suite, const ut_aead *base)
{
    (void)suite;
    (void)base;
    return NULL;
}

#else

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include <intel-ipsec-mb.h>

/* The manager is a table of functions whose layout the soname promises: the one that our header belongs to. */
#if IMB_VERSION_NUM < IMB_VERSION(2, 0, 0)
#define SONAME "libIPSec_MB.so.1"
#else
#define SONAME "libIPSec_MB.so.2"
#endif
/* Without the CPU's own instructions for AES its code would look into tables, which others could watch. The bits say
 * what the library found, the system's support of wide registers included. */
#define NEEDED                                                                                                         \
    ((uint64_t)IMB_FEATURE_AESNI | IMB_FEATURE_PCLMULQDQ | IMB_FEATURE_SELF_TEST_PASS | IMB_FEATURE_SAFE_DATA)

static IMB_MGR *manager;

/* Key schedules of one key; the library wants them aligned. */
typedef struct context {
    struct gcm_key_data key;
    const struct mb_suite *suite;
} context;

typedef struct mb_suite {
    ut_aead aead;
    bool long_key;
} mb_suite;

static void *make(const ut_aead *aead, bool sealing)
{
    (void)sealing;
    context *c = aligned_alloc(64, (sizeof *c + 63) / 64 * 64);
    if (c) {
        memset(c, 0, sizeof *c);
        c->suite = (const mb_suite *)(const void *)aead;
    }
    return c;
}

static void drop(void *place)
{
    context *c = place;
    if (!c)
        return;
    c->suite->aead.wipe(&c->key, sizeof c->key);
    free(c);
}

static void set_key(void *place, const uint8_t *key)
{
    context *c = place;
    if (c->suite->long_key)
        IMB_AES256_GCM_PRE(manager, key, &c->key);
    else
        IMB_AES128_GCM_PRE(manager, key, &c->key);
}

static void seal(void *place, const ut_aead_packet *p)
{
    const context *c = place;
    struct gcm_context_data at;
    (c->suite->long_key ? manager->gcm256_enc : manager->gcm128_enc)(
        &c->key, &at, p->body, p->body, p->body_len, p->nonce, p->header, p->header_len, p->tag, UT_TAG_BYTES);
}

static bool open(void *place, const ut_aead_packet *p)
{
    const context *c = place;
    struct gcm_context_data at;
    uint8_t tag[UT_TAG_BYTES], differ = 0;
    (c->suite->long_key ? manager->gcm256_dec : manager->gcm128_dec)(
        &c->key, &at, p->body, p->body, p->body_len, p->nonce, p->header, p->header_len, tag, UT_TAG_BYTES);
    for (unsigned i = 0; i < UT_TAG_BYTES; i++) /* all of it, wherever it differs first */
        differ |= tag[i] ^ p->tag[i];
    c->suite->aead.wipe(tag, sizeof tag); /* the right tag of a forged packet is nobody's business */
    return differ == 0;
}

/* The manager, if this is a machine for it. It is made once and stays. */
static IMB_MGR *find_manager(void)
{
    static bool looked;
    if (looked)
        return manager;
    looked = true;
    void *library = dlopen(SONAME, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return NULL;
    unsigned (*version)(void) = NULL;
    IMB_MGR *(*allocate)(uint64_t) = NULL;
    void (*begin)(IMB_MGR *, IMB_ARCH *) = NULL;
    void (*end)(IMB_MGR *) = NULL;
    /* POSIX's own way to make a function of what dlsym returns. */
    *(void **)&version = dlsym(library, "imb_get_version");
    *(void **)&allocate = dlsym(library, "alloc_mb_mgr");
    *(void **)&begin = dlsym(library, "init_mb_mgr_auto");
    *(void **)&end = dlsym(library, "free_mb_mgr");
    if (!version || !allocate || !begin || !end || version() < IMB_VERSION_NUM) {
        dlclose(library);
        return NULL;
    }
    IMB_MGR *made = allocate(0);
    if (made)
        begin(made, NULL);
    if (made && (made->features & NEEDED) == NEEDED && made->gcm128_enc && made->gcm256_enc)
        return manager = made;
    if (made)
        end(made);
    dlclose(library);
    return NULL;
}

const ut_aead *ut_mb_suite(unsigned suite, const ut_aead *base)
{
    static mb_suite suites[2];
    if ((suite != UT_SUITE_AES_128_GCM && suite != UT_SUITE_AES_256_GCM) || !find_manager())
        return NULL;
    mb_suite *s = &suites[suite == UT_SUITE_AES_256_GCM];
    s->aead = *base;
    s->aead.provider = "ipsec-mb";
    s->aead.make = make;
    s->aead.drop = drop;
    s->aead.key = set_key;
    s->aead.seal = seal;
    s->aead.open = open;
    s->long_key = suite == UT_SUITE_AES_256_GCM;
    return &s->aead;
}

#endif
