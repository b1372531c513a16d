/* SPDX-License-Identifier: Apache-2.0
 *
 * The keys of the jobs of a driver (cipher/keys.h). They lie in pages of their own, which are in no core dump and
 * which a forked child finds empty.
 */
#ifndef UT_UDP_SEALING_H
#define UT_UDP_SEALING_H

#include "cipher/keys.h"
#include "driver.h"

typedef struct ut_job_keys {
    uint32_t hosts, self;
    ut_keys path[]; /* by host */
} ut_job_keys;

/* NULL and errno on failure. From here on nobody may trace or dump this process. */
ut_job_keys *ut_job_keys_make(uint32_t hosts, uint32_t self);
/* Wipes all. NULL is fine. */
void ut_job_keys_drop(ut_job_keys *k);
/* Whether |seal| is what a path needs: something good in a sealed job, nothing in others (|k| NULL). */
bool ut_job_keys_fit(const ut_job_keys *k, const ut_driver_seal *seal);
/* Keys for packets that come from |host| under |cid|, and for those that go to it. Return an ut_error. */
int ut_job_keys_in(ut_job_keys *k, ut_engine *engine, uint32_t job, uint32_t host, uint32_t cid,
                   const ut_driver_seal *seal);
int ut_job_keys_out(ut_job_keys *k, uint32_t host, uint32_t cid, const ut_driver_seal *seal);
/* A fresh secret for one of the two, whose path stands under |cid|; see ut_keys_renew. */
int ut_job_keys_renew(ut_job_keys *k, bool out, uint32_t host, uint32_t cid, const ut_driver_seal *seal);

#endif
