/* SPDX-License-Identifier: Apache-2.0
 *
 * The calls of OpenSSL's libcrypto that we make, found when they are first asked for and not when we are loaded. So one
 * build works with whichever libcrypto the host has and keeps patched, and a process that seals nothing needs none.
 */
#ifndef UT_LIBCRYPTO_H
#define UT_LIBCRYPTO_H

#include <stdbool.h>

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

/* All of them are in OpenSSL since 1.1.0 and take the same arguments in each version since. */
#define UT_LIBCRYPTO_CALLS(CALL)                                                                                       \
    CALL(EVP_CIPHER_CTX_new)                                                                                           \
    CALL(EVP_CIPHER_CTX_free)                                                                                          \
    CALL(EVP_CIPHER_CTX_ctrl)                                                                                          \
    CALL(EVP_CipherInit_ex)                                                                                            \
    CALL(EVP_EncryptInit_ex)                                                                                           \
    CALL(EVP_EncryptUpdate)                                                                                            \
    CALL(EVP_EncryptFinal_ex)                                                                                          \
    CALL(EVP_DecryptInit_ex)                                                                                           \
    CALL(EVP_DecryptUpdate)                                                                                            \
    CALL(EVP_DecryptFinal_ex)                                                                                          \
    CALL(EVP_aes_128_gcm)                                                                                              \
    CALL(EVP_aes_256_gcm)                                                                                              \
    CALL(EVP_chacha20_poly1305)                                                                                        \
    CALL(EVP_sha256)                                                                                                   \
    CALL(HMAC)                                                                                                         \
    CALL(OPENSSL_cleanse)

/* A pointer to each, of the type that the header gives it. */
typedef struct ut_libcrypto {
#define UT_LIBCRYPTO_FIELD(name) __typeof__(&(name)) name;
    UT_LIBCRYPTO_CALLS(UT_LIBCRYPTO_FIELD)
#undef UT_LIBCRYPTO_FIELD
} ut_libcrypto;

/* The first of |names| (NULL ends them) that can be loaded and has all the calls: fills in |calls|. False if none. The
 * library then stays loaded. */
bool ut_libcrypto_load(const char *const *names, ut_libcrypto *calls);
/* This host's: the same from all threads. NULL if there is none. */
const ut_libcrypto *ut_libcrypto_find(void);

#endif
