/* SPDX-License-Identifier: Apache-2.0
 *
 * Quantised slots, over bytes that anybody may have sent: what is taken decodes, within its bytes, to the same numbers
 * on every instruction set, and they are coded again as a slot that is taken.
 */
#include "fuzz.h"

#include "kernels/kernels.h"
#include "kernels/quant.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    static uint8_t again[2 * UT_QUANT_ELEMENTS_MAX + UT_QUANT_ELEMENTS_MAX / 32 + 3];
    input in = {bytes, size};
    const unsigned form = take8(&in);
    const uint32_t n = take16(&in);
    const ut_quant_rounding r = {n, form % 2, 1};
    uint8_t *slot = copy_of(in.at, in.left);
    if (ut_quant_takes(form, slot, (uint32_t)in.left, n)) {
        float *first = malloc((n + 1) * sizeof *first), *out = malloc((n + 1) * sizeof *out);
        for (unsigned isa = UT_ISA_PLAIN; isa <= UT_ISA_BEST; isa++) {
            ut_quant_told told;
            (void)ut_kernels_init((enum ut_isa)isa);
            ut_quant_decode(form, out, slot, n);
            if (isa == UT_ISA_PLAIN)
                memcpy(first, out, n * sizeof *out);
            MUST(memcmp(first, out, n * sizeof *out) == 0);
            MUST(ut_quant_error(form, slot, n) >= 0);
            uint32_t len = ut_quant_encode(form, again, out, NULL, n, &r, &told);
            MUST(len == ut_quant_bytes(form, n) && ut_quant_takes(form, again, len, n) && told.nonfinite <= n);
            ut_quant_add(form, out, slot, n);
        }
        free(first);
        free(out);
    }
    free(slot);
    return 0;
}
