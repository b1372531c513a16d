/* SPDX-License-Identifier: Apache-2.0
 *
 * The ciphers of whichever libcrypto the host has (libcrypto.h); and for AES-GCM whatever computes the same faster
 * (mb.h).
 */
#ifndef UT_EVP_H
#define UT_EVP_H

#include "cipher/aead.h"

/* A suite (enum ut_suite) by the fastest library that is here. NULL if there is no such suite, if the host has no
 * libcrypto, or if that lacks the suite or computes it wrongly: at the first question each suite seals a packet whose
 * result is published, and must open it again. Another library must also seal a dozen packets as libcrypto does, or it
 * is not used. */
const ut_aead *ut_evp_suite(unsigned suite);
/* The same by libcrypto, whatever else is here. */
const ut_aead *ut_evp_libcrypto(unsigned suite);
/* The suite that this CPU computes fastest: AES with 128 bits where it has instructions for it, else ChaCha20. */
unsigned ut_evp_best(void);

#endif
