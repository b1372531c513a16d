/* SPDX-License-Identifier: Apache-2.0
 *
 * The C side of sealed packets as a filter, so that tests/dissector/sealed.py can be held against it. The first line
 * says how: suite, secret in hex, generation, sending host, receiving host, lane, connection id, packets of an epoch,
 * name of the job. Each further line is a packet: number, index, and its bytes in hex, with the checksum's place zero.
 * Prints each packet sealed.
 */
#include <inttypes.h>
#include <stdio.h>

#include "cipher/evp.h"
#include "cipher/keys.h"

static size_t unhex(const char *from, uint8_t *out, size_t most)
{
    size_t len = 0;
    for (unsigned byte; len < most && sscanf(from + 2 * len, "%2x", &byte) == 1; len++)
        out[len] = (uint8_t)byte;
    return len;
}

int main(void)
{
    static char secret_hex[65], job[512], line[2 * UT_PACKET_MAX + 64], hex[2 * UT_PACKET_MAX + 1];
    uint8_t secret[UT_SECRET_BYTES];
    unsigned suite;
    ut_key_context c = {.job = job};
    ut_key_life life = {.bytes = UINT64_MAX, .time = UT_NEVER};
    if (scanf("%u %64s %" SCNu64 " %u %u %u %u %" SCNu64 " %511s ", &suite, secret_hex, &c.generation, &c.from, &c.to,
              &c.lane, &c.cid, &life.packets, job) != 9 ||
        unhex(secret_hex, secret, sizeof secret) != sizeof secret)
        return 1;
    ut_keys keys = {0};
    if (ut_keys_begin(&keys, true, ut_evp_suite(suite), suite, secret, &c, &life, 0) != UT_OK)
        return 1;
    while (fgets(line, sizeof line, stdin)) {
        uint8_t packet[UT_PACKET_MAX];
        uint64_t number;
        unsigned index;
        if (sscanf(line, "%" SCNu64 " %u %18432s", &number, &index, hex) != 3)
            return 1;
        size_t len = unhex(hex, packet, sizeof packet - UT_TAG_BYTES);
        uint8_t kind = packet[0] & 15;
        uint32_t header = kind == UT_KIND_DATA ? 32 : 16;
        const ut_sealed p = {.bytes = packet,
                             .header = header,
                             .body = (uint32_t)len - header,
                             .epoch = packet + UT_CHECKSUM_AT,
                             .number = number,
                             .kind = kind,
                             .index = (uint8_t)index};
        keys.heard = true; /* the peer has opened what went before */
        ut_cipher_sealed.seal(&keys, &p, 1, 0);
        for (size_t i = 0; i < len + UT_TAG_BYTES; i++)
            printf("%02x", packet[i]);
        printf("\n");
    }
    ut_keys_end(&keys);
    return 0;
}
