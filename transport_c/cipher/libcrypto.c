/* SPDX-License-Identifier: Apache-2.0 */
#include "cipher/libcrypto.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>
#include <string.h>

/* By the name of each version's interface, never by `libcrypto.so`, which is any version's. 1.1 comes last: its makers
 * no longer mend it, though some distributions do. */
static const char *const sonames[] = {"libcrypto.so.3", "libcrypto.so.4", "libcrypto.so.1.1", NULL};

typedef struct call {
    const char *name;
    size_t at; /* of its pointer in ut_libcrypto */
} call;

static bool load(const char *name, ut_libcrypto *calls)
{
#define FIND(name) {#name, offsetof(ut_libcrypto, name)},
    static const call all[] = {UT_LIBCRYPTO_CALLS(FIND)};
#undef FIND
    void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return false;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        void *found = dlsym(library, all[i].name);
        if (!found) {
            dlclose(library);
            return false;
        }
        memcpy((char *)calls + all[i].at, &found, sizeof found);
    }
    return true;
}

bool ut_libcrypto_load(const char *const *names, ut_libcrypto *calls)
{
    while (*names)
        if (load(*names++, calls))
            return true;
    return false;
}

static ut_libcrypto here;
static bool is_here;

static void look(void)
{
    is_here = ut_libcrypto_load(sonames, &here);
}

const ut_libcrypto *ut_libcrypto_find(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, look);
    return is_here ? &here : NULL;
}
