/* SPDX-License-Identifier: Apache-2.0
 *
 * Random and mutated bytes into every decoder of sparse indices: nothing outside of the memory that it was given is
 * read or written (each buffer is exactly as long as announced, so the sanitizers see it), and what is accepted is
 * sound: as many ascending indices below the end as announced. Ten million inputs under AddressSanitizer (`make
 * check`), fewer else.
 */
#include "check.h"
#include "kernels/kernels.h"
#include "kernels/sparse.h"

#if defined(__SANITIZE_ADDRESS__)
enum { INPUTS = 10000000 };
#else
enum { INPUTS = 400000 };
#endif

enum { BYTES_MAX = 48, END_MAX = 300 };

/* Exactly |len| bytes on the heap: random, or what |encode| wrote with a few bytes changed or cut. */
static uint8_t *hostile_bytes(size_t len, const uint8_t *valid, size_t valid_len)
{
    uint8_t *const p = malloc(len ? len : 1);
    const bool mutate = check_below(2);
    for (size_t i = 0; i < len; i++)
        p[i] = mutate && i < valid_len ? valid[i] : (uint8_t)check_random();
    for (uint64_t flips = check_below(3); mutate && len > 0 && flips > 0; flips--)
        p[check_below(len)] ^= (uint8_t)(1u << check_below(8));
    return p;
}

static uint64_t accepted[5];

static void sound(unsigned what, int error, const uint32_t *x, size_t n, uint64_t end)
{
    if (error != UT_OK) {
        CHECK_EQ(error, UT_ERR_MALFORMED);
        return;
    }
    accepted[what]++;
    CHECK_MSG(ut_ascending(x, n, end) == n, "decoder %u accepted what is not ascending", what);
}

static void decoders__random_bytes(void)
{
    uint32_t real[END_MAX];
    uint8_t valid[END_MAX * 11];
    uint16_t table[16];
    for (unsigned i = 0; i < INPUTS; i++) {
        const unsigned what = (unsigned)(i % 5);
        const uint32_t end = (uint32_t)check_below(END_MAX);
        size_t n = 0, valid_len = 0;
        for (uint32_t x = (uint32_t)check_below(40); x < end; x += 1 + (uint32_t)check_below(40))
            real[n++] = x;
        memset(valid, 0, (END_MAX + 7) / 8);
        if (what == 0)
            ut_bitmap_encode(valid, real, n);
        else
            valid_len = what == 1 ? ut_gaps_encode(valid, real, n) : ut_runs_encode(valid, real, n, end);
        const size_t len = what == 0 ? (end + 7) / 8 : check_below(4) ? valid_len : check_below(BYTES_MAX);
        uint8_t *const in = hostile_bytes(len, valid, what == 0 ? len : valid_len);
        if (check_below(8) == 0)
            n = check_below(END_MAX);
        uint32_t *const x = malloc(n ? n * sizeof *x : 1);
        if (what == 0)
            sound(what, ut_bitmap_decode(x, n, end, in), x, n, end);
        else if (what == 1)
            sound(what, ut_gaps_decode(x, n, end, in, len), x, n, end);
        else if (what == 2)
            sound(what, ut_runs_decode(x, n, end, in, len), x, n, end);
        else if (what == 3) { /* a table of any content */
            for (unsigned t = 0; t < 16; t++)
                table[t] = (uint16_t)(check_below(6) << 8 | (check_random() & 0xff));
            const int error = ut_prefix_decode((uint8_t *)x, n, table, 4, in, len);
            accepted[what] += error == UT_OK;
            CHECK(error == UT_OK || error == UT_ERR_MALFORMED);
        } else { /* no filter is refused, but none may lead outside */
            const uint32_t m = (uint32_t)(1 + check_below(len * 8 + 1)), k = 1 + (uint32_t)check_below(6);
            const size_t words = (m + 31) / 32;
            uint8_t *const bits = calloc(words, 4);
            memcpy(bits, in, UT_MIN2(len, words * 4));
            const size_t members = ut_bloom_members(bits, m, k, end, x, n), there = UT_MIN2(members, n);
            sound(what, UT_OK, x, there, end);
            if (members <= n) {
                uint32_t *const scratch = malloc(ut_bloom_choose_words(members, m, k) * 4);
                uint8_t *const chosen = malloc(members ? members : 1);
                size_t count = 0;
                const size_t r = check_below(members + 1);
                ut_bloom_choose(chosen, x, members, m, k, r, i, scratch);
                for (size_t c = 0; c < members; c++)
                    count += chosen[c];
                CHECK_EQ(count, r);
                free(chosen);
                free(scratch);
            }
            free(bits);
        }
        free(x);
        free(in);
    }
    for (unsigned what = 0; what < 5; what++) /* or the mutants would be refused at the door */
        CHECK_MSG(accepted[what] > INPUTS / 2000, "decoder %u accepted %llu inputs", what,
                  (unsigned long long)accepted[what]);
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    (void)ut_kernels_init(UT_ISA_BEST);
    RUN(decoders__random_bytes);
    return check_end();
}
