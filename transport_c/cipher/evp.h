/* SPDX-License-Identifier: Apache-2.0
 *
 * The ciphers of libcrypto (OpenSSL 3), through the calls that it shares with other libraries of that family.
 */
#ifndef UT_EVP_H
#define UT_EVP_H

#include "cipher/aead.h"

/* NULL if there is no such suite (enum ut_suite), or if the library lacks it or computes it wrongly: at the first
 * question each suite seals a packet whose result is published, and must open it again. */
const ut_aead *ut_evp_suite(unsigned suite);
/* The suite that this CPU computes fastest: AES with 128 bits where it has instructions for it, else ChaCha20. */
unsigned ut_evp_best(void);

#endif
