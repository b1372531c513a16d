/* SPDX-License-Identifier: Apache-2.0 */
#include "sealing.h"

#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#include "cipher/evp.h"

static size_t bytes_of(uint32_t hosts)
{
    return sizeof(ut_job_keys) + hosts * sizeof(ut_keys);
}

ut_job_keys *ut_job_keys_make(uint32_t hosts, uint32_t self)
{
    const size_t bytes = bytes_of(hosts);
    ut_job_keys *k = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (k == MAP_FAILED)
        return NULL;
    /* Guards behind others: where the kernel has none of the three, keys are as safe as the process. */
    (void)madvise(k, bytes, MADV_DONTDUMP);
    (void)madvise(k, bytes, MADV_WIPEONFORK);
    (void)prctl(PR_SET_DUMPABLE, 0);
    k->hosts = hosts;
    k->self = self;
    return k;
}

void ut_job_keys_drop(ut_job_keys *k)
{
    if (!k)
        return;
    for (uint32_t h = 0; h < k->hosts; h++)
        ut_keys_end(&k->path[h]);
    munmap(k, bytes_of(k->hosts));
}

bool ut_job_keys_fit(const ut_job_keys *k, const ut_driver_seal *seal)
{
    return (k != NULL) == (seal != NULL) && (!seal || (seal->job && ut_evp_suite(seal->suite)));
}

static ut_key_context context_of(const ut_job_keys *k, bool out, uint32_t host, uint32_t cid,
                                 const ut_driver_seal *seal)
{
    return (ut_key_context){.job = seal->job,
                            .generation = seal->generation,
                            .from = out ? k->self : host,
                            .to = out ? host : k->self,
                            .lane = seal->lane,
                            .cid = cid};
}

static int begin(ut_job_keys *k, bool out, uint32_t host, uint32_t cid, const ut_driver_seal *seal)
{
    if (host >= k->hosts || host == k->self)
        return UT_ERR_UNKNOWN;
    const ut_key_context context = context_of(k, out, host, cid, seal);
    return ut_keys_begin(&k->path[host], out, ut_evp_suite(seal->suite), seal->suite, seal->secret, &context,
                         &ut_key_life_usual, ut_driver_now());
}

int ut_job_keys_in(ut_job_keys *k, ut_engine *engine, uint32_t job, uint32_t host, uint32_t cid,
                   const ut_driver_seal *seal)
{
    const int result = begin(k, false, host, cid, seal);
    return result == UT_OK ? ut_engine_peer_keys(engine, job, host, &k->path[host], &k->path[host]) : result;
}

int ut_job_keys_out(ut_job_keys *k, uint32_t host, uint32_t cid, const ut_driver_seal *seal)
{
    return begin(k, true, host, cid, seal);
}

int ut_job_keys_renew(ut_job_keys *k, bool out, uint32_t host, uint32_t cid, const ut_driver_seal *seal)
{
    if (host >= k->hosts || host == k->self)
        return UT_ERR_UNKNOWN;
    const ut_key_context context = context_of(k, out, host, cid, seal);
    return ut_keys_renew(&k->path[host], out, seal->suite, seal->secret, &context);
}

const ut_cipher *ut_driver_cipher(void)
{
    return &ut_cipher_sealed;
}

uint32_t ut_driver_suite(const char *name)
{
    if (strcmp(name, "auto") == 0)
        return ut_evp_suite(ut_evp_best()) ? ut_evp_best() : 0;
    for (uint32_t suite = 1; suite < UT_SUITES_END; suite++)
        if (ut_evp_suite(suite) && strcmp(name, ut_evp_suite(suite)->name) == 0)
            return suite;
    return 0;
}

const char *ut_driver_suite_name(uint32_t suite)
{
    const ut_aead *aead = ut_evp_suite(suite);
    return aead ? aead->name : NULL;
}
