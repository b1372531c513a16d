/* SPDX-License-Identifier: Apache-2.0
 *
 * CRC32C against its definition, one bit at a time, for every length and start that the fast paths tell apart. It fails
 * if a table entry, a folding constant or a tail is wrong: each of them is in the way of some length below.
 */
#include "check.h"
#include "isas.h"
#include "kernels/table.h"

enum { ROOM = 8192 };
static uint8_t room[ROOM + 64] __attribute__((aligned(64)));

/* The definition: reversed polynomial 0x1EDC6F41, all ones before and after. */
static uint32_t crc_by_bits(uint32_t crc, const uint8_t *p, size_t len)
{
    crc = ~crc;
    for (size_t i = 0; i < len; i++) {
        crc ^= p[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
    }
    return ~crc;
}

static void fill(void)
{
    for (size_t i = 0; i < sizeof room; i++)
        room[i] = (uint8_t)check_random();
}

static void ut_crc32c__known_answers(void)
{
    uint8_t zeros[32] = {0}, ones[32], up[32], down[32];
    for (int i = 0; i < 32; i++) {
        ones[i] = 0xff;
        up[i] = (uint8_t)i;
        down[i] = (uint8_t)(31 - i);
    }
    /* RFC 3720 B.4: an iSCSI read (10) command. */
    const uint8_t command[48] = {0x01, 0xc0, 0, 0, 0, 0, 0,    0, 0,    0, 0, 0,    0, 0, 0, 0,
                                 0x14, 0,    0, 0, 0, 0, 0x04, 0, 0,    0, 0, 0x14, 0, 0, 0, 0x18,
                                 0x28, 0,    0, 0, 0, 0, 0,    0, 0x02, 0, 0, 0,    0, 0, 0, 0};
    const struct {
        const void *data;
        size_t len;
        uint32_t crc;
    } rows[] = {
        /* 0 */ {"123456789", 9, 0xe3069283},
        /* 1 */ {zeros, 32, 0x8a9136aa},
        /* 2 */ {ones, 32, 0x62a8ab43},
        /* 3 */ {up, 32, 0x46dd794e},
        /* 4 */ {down, 32, 0x113fdb5c},
        /* 5 */ {command, 48, 0xd9963a56},
        /* 6 */ {"", 0, 0},
        /* 7 */ {"a", 1, 0xc1d04330},
    };
    FOR_EACH_ISA(isa)
    for (size_t row = 0; row < sizeof rows / sizeof *rows; row++) {
        const uint32_t crc = ut_crc32c(0, rows[row].data, rows[row].len);
        CHECK_MSG(crc == rows[row].crc, "row %zu on %s: %08x, want %08x", row, ISA_NAMES[isa], crc, rows[row].crc);
    }
}

static void ut_crc32c__all_short_lengths_at_all_alignments(void)
{
    fill();
    FOR_EACH_ISA(isa)
    for (size_t len = 0; len <= 300; len++) {
        const uint32_t before = (uint32_t)check_random();
        const size_t from = check_below(64);
        for (size_t start = 0; start < 64; start += len < 80 ? 1 : 13) {
            const uint8_t *const p = room + (start + from) % 64;
            const uint32_t crc = ut_crc32c(before, p, len), want = crc_by_bits(before, p, len);
            CHECK_MSG(crc == want, "%s, %zu bytes at %zu: %08x, want %08x", ISA_NAMES[isa], len, (start + from) % 64,
                      crc, want);
        }
    }
}

static void ut_crc32c__long_lengths(void)
{
    fill();
    static const size_t fixed[] = {767, 768, 769, 1152, 1343, 1344, 1408, 1440, 1468, 1472, 1500, 4096, 8192};
    FOR_EACH_ISA(isa)
    for (size_t row = 0; row < 200; row++) {
        const size_t len = row < sizeof fixed / sizeof *fixed ? fixed[row] : 300 + check_below(ROOM - 300 + 1);
        const uint8_t *const p = room + check_below(64);
        const uint32_t before = (uint32_t)check_random();
        const uint32_t crc = ut_crc32c(before, p, len), want = crc_by_bits(before, p, len);
        CHECK_MSG(crc == want, "%s, %zu bytes: %08x, want %08x", ISA_NAMES[isa], len, crc, want);
    }
}

static void ut_crc32c__chains(void)
{
    fill();
    FOR_EACH_ISA(isa)
    for (int round = 0; round < 200; round++) {
        const size_t len = check_below(3000), cut = check_below(len + 1);
        const uint32_t whole = ut_crc32c(0, room, len),
                       parts = ut_crc32c(ut_crc32c(0, room, cut), room + cut, len - cut);
        CHECK_MSG(whole == parts, "%s, %zu + %zu bytes: %08x in parts, %08x whole", ISA_NAMES[isa], cut, len - cut,
                  parts, whole);
    }
}

/* Of a header and a payload of any length, with a length that is new and with the one of the call before. */
static void ut_crc32c_headed__is_the_sum_of_both_in_a_row(void)
{
    fill();
    FOR_EACH_ISA(isa)
    for (int round = 0; round < 300; round++) {
        const size_t len = round % 5 == 0 ? 1440 : round % 3 ? check_below(3000) : check_below(9);
        uint64_t header[4];
        memcpy(header, room, sizeof header);
        room[check_below(32)] ^= (uint8_t)check_random();
        const uint32_t payload = ut_crc32c(0, room + 32, len);
        for (int again = 0; again < 2; again++) {
            memcpy(header, room, sizeof header);
            CHECK_MSG(ut_crc32c_headed(header, payload, len) == ut_crc32c(0, room, 32 + len), "%s, %zu bytes",
                      ISA_NAMES[isa], len);
        }
    }
}

/* It copies these bytes and no others, of any length and alignment; the sanitizer watches both ends of the source. */
static void ut_crc32c_copy__copies_and_sums(void)
{
    static uint8_t to[3200];
    fill();
    FOR_EACH_ISA(isa)
    for (int round = 0; round < 600; round++) {
        const size_t len = round < 300 ? (size_t)round : check_below(3000), at = 1 + check_below(64);
        uint8_t *const exact = malloc(len + 1);
        if (!CHECK(exact != NULL))
            return;
        memcpy(exact + 1, room, len); /* odd, and up to the end */
        memset(to, 0xa5, sizeof to);
        CHECK_HEX(ut_crc32c_copy(to + at, exact + 1, len), ut_crc32c(0, room, len));
        CHECK_BYTES(to + at, room, len);
        CHECK_EQ(to[at - 1], 0xa5);
        CHECK_EQ(to[at + len], 0xa5);
        free(exact);
    }
}

/* Not only equal to the definition: one wrong bit anywhere in a packet changes the sum. */
static void ut_crc32c__sees_every_bit(void)
{
    fill();
    FOR_EACH_ISA(isa)
    {
        const size_t len = 1472;
        const uint32_t good = ut_crc32c(0, room, len);
        for (size_t bit = 0; bit < 8 * len; bit++) {
            room[bit / 8] ^= (uint8_t)(1 << bit % 8);
            CHECK_MSG(ut_crc32c(0, room, len) != good, "%s does not see bit %zu", ISA_NAMES[isa], bit);
            room[bit / 8] ^= (uint8_t)(1 << bit % 8);
        }
    }
}

/* A CPU with AVX-512 but without the newer products uses the crc32 instruction, one of ARM without products the
 * instruction alone; and no path reads past the end. */
static void ut_crc32c__each_path_by_itself(void)
{
    fill();
    FOR_EACH_ISA(isa)
    for (size_t len = 0; len <= 2000; len += 1 + len / 40) {
        uint8_t *const exact = malloc(len + 1); /* the sanitizer watches its end */
        if (!CHECK(exact != NULL))
            return;
        memcpy(exact, room, len);
        CHECK_HEX(ut_crc32c(7, exact, len), ut_crc32c_plain.of(7, room, len));
#if UT_KERNELS_X86
        if (isa == UT_ISA_AVX512)
            CHECK_HEX(ut_crc32c_sse42.of(7, exact, len), ut_crc32c_plain.of(7, room, len));
#elif UT_KERNELS_ARM
        if (isa == UT_ISA_NEON)
            CHECK_HEX(ut_crc32c_arm.of(7, exact, len), ut_crc32c_plain.of(7, room, len));
#endif
        free(exact);
    }
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(ut_crc32c__known_answers);
    RUN(ut_crc32c__all_short_lengths_at_all_alignments);
    RUN(ut_crc32c__long_lengths);
    RUN(ut_crc32c__chains);
    RUN(ut_crc32c_headed__is_the_sum_of_both_in_a_row);
    RUN(ut_crc32c_copy__copies_and_sums);
    RUN(ut_crc32c__sees_every_bit);
    RUN(ut_crc32c__each_path_by_itself);
    return check_end();
}
