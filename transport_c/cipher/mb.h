/* SPDX-License-Identifier: Apache-2.0
 *
 * AES-GCM by the Intel Multi-Buffer Crypto library (libIPSec_MB, Debian's package libipsec-mb1). It has code for CPUs
 * with VAES and AVX-512, and takes a packet in one call, of which libcrypto needs five that cost as much as half a
 * packet. It computes what libcrypto computes, so neither the wire nor the other host knows of it.
 *
 * The library is looked for at run time: whoever does not have it gets libcrypto. Its header, of Debian's
 * libipsec-mb-dev, is looked for when this is built.
 */
#ifndef UT_MB_H
#define UT_MB_H

#include "cipher/aead.h"

/* A suite of AES-GCM (enum ut_suite). Hash and wiping are those of |base|, the suite by another library. NULL: the
 * library has none of this suite, or it is not here, or not from the line of versions that this was built for, or its
 * own test at the start failed, or the CPU has no instructions for AES. Not safe to be called by two threads
 * before it has returned once. */
const ut_aead *ut_mb_suite(unsigned suite, const ut_aead *base);

#endif
