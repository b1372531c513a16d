/* SPDX-License-Identifier: Apache-2.0
 *
 * What a shell may ask of an engine. The driver says in words which range was left (udp/describe.c). Both sides of the
 * control plane check options by the same ranges, which schema/options.py has.
 */
#include "core/face/engine_impl.h"

bool ut_engine_config_valid(const ut_engine_config *c)
{
    return ut_wire_packet_valid(c->packet_bytes, 0) && c->segments_max >= 1 && c->segments_max <= UT_SEGMENTS_MAX &&
           c->packet_bytes * c->segments_max <= UT_BURST_BYTES && c->receive_buffer >= UT_RECEIVE_BUFFER_MIN &&
           c->lane < UT_LANES_MAX;
}

/* What does not go together with a policy: others would forward what is not there, or mix it with what is. */
static bool policy_valid(const ut_job_options *o, uint32_t world)
{
    bool partial = o->policy > UT_POLICY_NONE;
    return o->policy < UT_POLICIES_END && o->quorum <= world && o->probes <= world &&
           (!partial || (o->algorithm <= UT_TAR && o->hadamard <= UT_HADAMARD_OFF && o->split <= UT_SPLIT_AUTO));
}

/* What depends on what comes first or late: the ranks that are in an op under a policy, in which order a host of BCube
 * adds what comes at its several levels, and whether a transform is on that follows losses. */
static bool deterministic_valid(const ut_job_options *o)
{
    return o->deterministic < UT_DETERMINISTIC_END &&
           (!ut_options_deterministic(o) ||
            (o->policy <= UT_POLICY_NONE && o->algorithm != UT_BCUBE && o->hadamard != UT_HADAMARD_AUTO));
}

/* What a coded job is told beyond others. */
static bool code_valid(const ut_job_options *o, uint32_t hosts, uint32_t world)
{
    const ut_intake *intake = ut_intake_of(o);
    if (o->policy > UT_POLICY_NONE && !intake)
        return false;
    if (intake && intake->valid)
        return intake->valid(o, hosts, world);
    return o->stragglers == 0 && o->children == 0 && o->code <= UT_CODE_GROUPS && o->exact <= UT_EXACT_YES;
}

/* What does not depend on a code alone. */
static bool others_valid(const ut_job_options *o, uint32_t hosts, uint32_t world)
{
    return policy_valid(o, world) && deterministic_valid(o) && o->algorithm < UT_ALGORITHMS_END &&
           o->congestion < UT_CC_END && o->hadamard < UT_HADAMARD_END && o->incast <= UT_INCAST_MAX &&
           o->incast <= UT_MAX2(hosts - 1, 1) && o->early_percent <= 100 && o->timer_start < UT_TIMER_END &&
           o->split < UT_SPLIT_END;
}

bool ut_job_options_valid(const ut_job_options *o, uint32_t hosts, uint32_t world)
{
    return others_valid(o, hosts, world) && code_valid(o, hosts, world);
}

bool ut_job_options_follow(const ut_job_options *began, const ut_job_options *o, uint32_t hosts, uint32_t world)
{
    const bool partial = o->policy > UT_POLICY_NONE, was = began->policy > UT_POLICY_NONE;
    assert(o->stragglers == began->stragglers && o->children == began->children && o->code == began->code);
    return others_valid(o, hosts, world) && partial == was && ut_intake_of(o) == ut_intake_of(began);
}

/* Every host has a rank at least: where the world has as many ranks as hosts, each has exactly one, and what is laid
 * out by host is laid out by rank. */
static bool ranks_valid(const ut_job_config *c)
{
    uint32_t sum = 0, world = ut_world_of(c);
    bool empty = false;
    for (uint32_t h = 0; h < c->hosts; h++) {
        sum += c->ranks_of[h];
        empty = empty || c->ranks_of[h] == 0;
        if (c->ranks_of[h] > UT_LOCAL_MAX)
            return false;
    }
    if (sum == 0) /* the rest of the world is spread over the other hosts */
        return c->local_ranks + (c->hosts - 1) <= world && world - c->local_ranks <= (c->hosts - 1) * UT_LOCAL_MAX;
    return !empty && sum == world && c->ranks_of[c->self] == c->local_ranks;
}

bool ut_job_config_valid(const ut_engine_config *engine, const ut_job_config *c)
{
    return c->hosts >= 1 && c->hosts <= UT_HOSTS_MAX && c->self < c->hosts && c->local_ranks >= 1 &&
           c->local_ranks <= UT_LOCAL_MAX && c->packet_bytes <= engine->packet_bytes &&
           ut_seal_overhead(c->cipher) <= UT_SEAL_OVERHEAD_MAX &&
           ut_wire_packet_valid(c->packet_bytes, ut_seal_overhead(c->cipher)) &&
           (c->world == 0 || c->world >= c->hosts) && c->world <= UT_HOSTS_MAX * UT_LOCAL_MAX &&
           c->bucket_bytes_max >= 1 && c->bucket_bytes_max <= UT_BUCKET_MAX && ranks_valid(c) &&
           ut_job_options_valid(&c->options, c->hosts, ut_world_of(c));
}
