/* SPDX-License-Identifier: Apache-2.0
 *
 * Data packets that follow each other in one transfer, as they come in one piece: the kernel joins what was sent as one
 * burst. Each has the next number, and as many bytes of the bucket behind those of the one before; all else is alike,
 * but for payloads and checksums. Then a few words of its header tell that a packet goes on with the run, and the rest
 * of the engine handles all of them as one. What does not go on is decoded by itself and begins another run.
 */
#ifndef UT_RUN_H
#define UT_RUN_H

#include "core/wire/packets.h"

enum { UT_RUN_MOST = 16 }; /* so many payloads still lie in the first-level cache when they are used */

typedef struct ut_data_run {
    ut_data first;
    const uint8_t *packet; /* the first one's bytes; those of the next one lie |stride| behind them */
    size_t stride;
    uint32_t packets;
    uint32_t payload_crc[UT_RUN_MOST];
} ut_data_run;

/* A run of one packet, |h|, whose bytes are at |packet|. */
void ut_run_begin(ut_data_run *r, const ut_data *h, const uint8_t *packet, size_t stride);
/* Whether the |len| bytes at |packet|, which may be anything, go on with the run, as far as their header says; and
 * there is room. */
bool ut_run_goes_on(const ut_data_run *r, const uint8_t *packet, size_t len);
/* Takes them in. UT_ERR_CHECKSUM: they are spoilt, and the run is as it was. */
int ut_run_add(ut_data_run *r, enum ut_check check);
/* The |i|-th packet of the run, as ut_data_decode has it. */
ut_data ut_run_packet(const ut_data_run *r, uint32_t i);

#endif
