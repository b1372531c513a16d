/* SPDX-License-Identifier: Apache-2.0 */
#include "describe.h"

#include <inttypes.h>
#include <stdio.h>

#include "core/partial/intake.h"

#define BEARS "stragglers %u: must be what a linear code of %u hosts bears"

bool ut_describe_bad_options(const ut_job_options *o, uint32_t hosts, uint32_t world, char *ret, size_t len)
{
    const bool partial = o->policy > UT_POLICY_NONE, linear = o->code == UT_CODE_LINEAR;
    const bool coded = o->policy == UT_POLICY_CODED;
    const bool ordered = ut_options_deterministic(o);
    const uint32_t fan_out = o->children ? o->children : hosts;
    const uint32_t incast_max = UT_MIN2(UT_MAX2(hosts, 2) - 1, UT_INCAST_MAX);
    if (o->algorithm >= UT_ALGORITHMS_END)
        snprintf(ret, len, "algorithm %u: must be 0 to %d", o->algorithm, UT_ALGORITHMS_END - 1);
    else if (o->congestion >= UT_CC_END)
        snprintf(ret, len, "congestion %u: must be 0 to %d", o->congestion, UT_CC_END - 1);
    else if (o->hadamard >= UT_HADAMARD_END)
        snprintf(ret, len, "hadamard %u: must be 0 to %d", o->hadamard, UT_HADAMARD_END - 1);
    else if (o->incast > incast_max)
        snprintf(ret, len, "incast %u: must be 0 (dynamic) to %" PRIu32, o->incast, incast_max);
    else if (o->early_percent > 100)
        snprintf(ret, len, "early_percent %u: must be 0 (%d) to 100", o->early_percent, UT_EARLY_PERCENT);
    else if (o->timer_start >= UT_TIMER_END)
        snprintf(ret, len, "timer_start %u: must be 0 to %d", o->timer_start, UT_TIMER_END - 1);
    else if (o->split >= UT_SPLIT_END || (partial && o->split > UT_SPLIT_AUTO))
        snprintf(ret, len, "split %u: must be 0 to %d", o->split, partial ? UT_SPLIT_AUTO : UT_SPLIT_END - 1);
    else if (o->deterministic >= UT_DETERMINISTIC_END || (partial && ordered))
        snprintf(ret, len, "deterministic %u: must be 0 to %d", o->deterministic,
                 partial ? UT_DETERMINISTIC_NO : UT_DETERMINISTIC_END - 1);
    else if (ordered && o->algorithm == UT_BCUBE)
        snprintf(ret, len, "algorithm %u: must not be BCube in a deterministic job", o->algorithm);
    else if (ordered && o->hadamard == UT_HADAMARD_AUTO)
        snprintf(ret, len, "hadamard %u: must not be auto in a deterministic job", o->hadamard);
    else if (o->policy >= UT_POLICIES_END)
        snprintf(ret, len, "policy %u: must be 0 to %d", o->policy, UT_POLICIES_END - 1);
    else if (o->quorum > world)
        snprintf(ret, len, "quorum %u: must be 0 (half) or 1 to the job's ranks, which are %u", o->quorum, world);
    else if (o->probes > world)
        snprintf(ret, len, "probes %" PRIu32 ": must be 0 (%d) or 1 to the job's ranks, which are %" PRIu32, o->probes,
                 UT_PROBES, world);
    else if (partial && o->algorithm > UT_TAR)
        snprintf(ret, len, "algorithm %u: must be 0 or %d (TAR) in a job with a policy", o->algorithm, UT_TAR);
    else if (partial && o->hadamard > UT_HADAMARD_OFF)
        snprintf(ret, len, "hadamard %u: must be 0 or %d (off) in a job with a policy", o->hadamard, UT_HADAMARD_OFF);
    else if (coded && !ut_extensions_linked.coded)
        snprintf(ret, len, "policy %u: must be below %d, for this program runs no coded jobs", o->policy,
                 UT_POLICY_CODED);
    else if (!coded && (o->stragglers || o->children || o->code > 1 || o->exact > 1))
        snprintf(ret, len, "stragglers, children, code, exact: must be 0 in a job that is not coded");
    else if (o->code >= UT_CODES_END || o->exact >= UT_EXACT_END)
        snprintf(ret, len, "code %u, exact %u: must be below %d, %d", o->code, o->exact, UT_CODES_END, UT_EXACT_END);
    else if ((linear || o->children) && o->exact > UT_EXACT_YES)
        snprintf(ret, len, "exact %u: must be 0 or %d with a linear code, and in a tree", o->exact, UT_EXACT_YES);
    else if (linear && o->stragglers >= fan_out)
        snprintf(ret, len, BEARS, o->stragglers, fan_out);
    else if (coded && !linear && fan_out % (o->stragglers + 1u))
        snprintf(ret, len, "stragglers %u: must be one less than a divisor of the %u hosts", o->stragglers, fan_out);
    else if (o->children && (hosts != world || !ut_tree_fills(hosts, o->children)))
        snprintf(ret, len, "children %u: %u hosts, of a rank each, must fill such a tree", o->children, hosts);
    else if (coded && hosts != world)
        snprintf(ret, len, "world %u: must be %u in a coded job, a rank on each host", world, hosts);
    else if (linear && !ut_extensions_linked.coded->valid(o, hosts, world))
        snprintf(ret, len, BEARS, o->stragglers, fan_out);
    else
        return false;
    return true;
}
