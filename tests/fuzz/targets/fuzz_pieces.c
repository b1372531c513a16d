/* SPDX-License-Identifier: Apache-2.0
 *
 * Pieces in any order, of packets that do not fit together: {whole, packet number, id, index, length} each.
 */
#include "fuzz.h"

#include "core/wire/pieces.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    static const uint32_t sizes[] = {96, 1232, 1240, 1472, 4000, 8928, 9216};
    input in = {bytes, size};
    uint8_t how = take8(&in);
    ut_frame f = {sizes[how % 7], how & 8 ? 16 : 0};
    if (!ut_wire_packet_valid(f.packet_bytes, f.overhead))
        return 0;
    size_t room = ut_pieces_memory(&f);
    uint8_t *memory = calloc(1, room ? room : 1), payload[UT_PACKET_MAX] = {0};
    while (in.left) {
        uint8_t shape = take8(&in);
        ut_piece p = {.whole = take16(&in), .pn = take8(&in) % 70, .cid = shape & 3, .index = shape >> 2 & 15};
        if (room && shape & 64)
            p.whole = (uint16_t)(f.packet_bytes - f.overhead);
        p.len = shape & 128 && room ? ut_piece_bytes(&f) : take16(&in) % sizeof payload;
        p.bytes = copy_of(payload, p.len);
        int error;
        const uint8_t *whole = ut_pieces_put(memory, &f, &p, &error);
        MUST(!whole || error == UT_OK);
        MUST(!whole || (p.whole > 32 && p.whole <= f.packet_bytes));
        if (whole)
            free(copy_of(whole, p.whole)); /* all of it can be read */
        free((void *)(uintptr_t)p.bytes);
    }
    free(memory);
    return 0;
}
