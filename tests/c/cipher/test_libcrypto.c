/* SPDX-License-Identifier: Apache-2.0
 *
 * Which libcrypto is taken: the first that can be loaded and has all the calls.
 */
#include "check.h"

#include "cipher/libcrypto.h"

#include <stdint.h>

static void libcrypto__the_host_has_one_and_it_computes(void)
{
    const ut_libcrypto *crypto = ut_libcrypto_find();
    CHECK(crypto != NULL && crypto == ut_libcrypto_find());
    /* RFC 4231, test case 1 */
    static const uint8_t want[4] = {0xb0, 0x34, 0x4c, 0x61};
    uint8_t key[20], out[32] = {0};
    unsigned bytes = 0;
    memset(key, 0x0b, sizeof key);
    CHECK(crypto->HMAC(crypto->EVP_sha256(), key, sizeof key, (const uint8_t *)"Hi There", 8, out, &bytes) == out);
    CHECK_EQ(bytes, sizeof out);
    CHECK(memcmp(out, want, sizeof want) == 0);
    crypto->OPENSSL_cleanse(out, sizeof out);
    for (unsigned i = 0; i < sizeof out; i++)
        CHECK_EQ(out[i], 0);
}

static void libcrypto__what_lacks_a_call_is_passed_over(void)
{
    static const char *const none[] = {"libcrypto.so.none", "libc.so.6", NULL};
    static const char *const no[] = {NULL};
    static const char *const last[] = {"libcrypto.so.none", "libc.so.6",        "libcrypto.so.3",
                                       "libcrypto.so.4",    "libcrypto.so.1.1", NULL};
    ut_libcrypto calls = {0};
    CHECK(!ut_libcrypto_load(no, &calls));
    CHECK(!ut_libcrypto_load(none, &calls));
    CHECK(ut_libcrypto_load(last, &calls));
    CHECK(calls.EVP_aes_128_gcm == ut_libcrypto_find()->EVP_aes_128_gcm);
}

int main(void)
{
    RUN(libcrypto__the_host_has_one_and_it_computes);
    RUN(libcrypto__what_lacks_a_call_is_passed_over);
    return check_end();
}
