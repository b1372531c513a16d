/* SPDX-License-Identifier: Apache-2.0
 *
 * The text of an address that another daemon names.
 */
#include "fuzz.h"

#include "udp/socket.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    char *text = malloc(size + 1);
    if (size)
        memcpy(text, bytes, size);
    text[size] = 0;
    ut_addr a;
    if (ut_address_parse(text, 1234, &a) == UT_OK)
        MUST(a.len <= sizeof a.bytes && ut_address_family(&a) != 0);
    free(text);
    return 0;
}
