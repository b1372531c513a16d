/* SPDX-License-Identifier: Apache-2.0
 *
 * Jobs and peers: each call checks what it was given, takes the lock, calls the engine and wakes its thread.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/mman.h>

#include "core/base/bits.h"
#include "describe.h"
#include "loop.h"
#include "sealing.h"

enum { STRANGE_MAX = 32 }; /* datagrams that one call sends to nobody's job */

#define FORKED UT_ERR_CLOSED /* ut_driver_error says whose driver it is */

bool ut_driver_has_job(const ut_driver *d, uint32_t job)
{
    return job < UT_JOBS_MAX && d->job_memory[job] != NULL;
}

int ut_driver_leave_no_job(ut_driver *d, uint32_t job)
{
    return ut_driver_leave_failing(d, UT_ERR_UNKNOWN, "job %" PRIu32 ": there is no such job", job);
}

/* |code| is the engine's. */
static int leave_no_peer(ut_driver *d, uint32_t job, uint32_t host, int code)
{
    const char *why = code == UT_ERR_UNKNOWN    ? "there is no such peer"
                      : code == UT_ERR_ARGUMENT ? "cannot be connected before ut_driver_peer_listen"
                                                : ut_strerror(code);
    return ut_driver_leave_failing(d, code, "host %" PRIu32 " of job %" PRIu32 ": %s", host, job, why);
}

/* ---- jobs ---- */

/* Names what is wrong with how the ranks lie on the hosts; false if nothing is. */
static bool describe_bad_ranks(const ut_job_config *c, uint32_t world, char *ret, size_t len)
{
    const uint32_t others = c->hosts - 1;
    uint32_t sum = 0, empty = c->hosts, crowded = c->hosts;
    for (uint32_t h = c->hosts; h-- > 0;) {
        sum += c->ranks_of[h];
        empty = c->ranks_of[h] == 0 ? h : empty;
        crowded = c->ranks_of[h] > UT_LOCAL_MAX ? h : crowded;
    }
    if (sum == 0 && (c->local_ranks + others > world || world - c->local_ranks > others * UT_LOCAL_MAX))
        snprintf(ret, len, "world %" PRIu32 ": must leave each of %" PRIu32 " other hosts 1 to %d of its ranks", world,
                 others, UT_LOCAL_MAX);
    else if (crowded < c->hosts)
        snprintf(ret, len, "ranks_of %u, of host %u: must be 1 to %d", c->ranks_of[crowded], crowded, UT_LOCAL_MAX);
    else if (sum != 0 && empty < c->hosts)
        snprintf(ret, len, "ranks_of 0, of host %" PRIu32 ": must be 1 to %d", empty, UT_LOCAL_MAX);
    else if (sum != 0 && sum != world)
        snprintf(ret, len, "ranks_of: must add up to world, which is %" PRIu32 ", not %" PRIu32, world, sum);
    else if (sum != 0 && c->ranks_of[c->self] != c->local_ranks)
        snprintf(ret, len, "ranks_of %u: must be local_ranks here, which is %" PRIu32, c->ranks_of[c->self],
                 c->local_ranks);
    else
        return false;
    return true;
}

/* Names the first field that is out of its range; false if none is. */
static bool describe_bad_job(const ut_driver *d, const ut_job_config *c, char *ret, size_t len)
{
    const uint32_t hosts = c->hosts, world = c->world ? c->world : hosts;
    if (hosts < 1 || hosts > UT_HOSTS_MAX)
        snprintf(ret, len, "hosts %" PRIu32 ": must be 1 to %d", hosts, UT_HOSTS_MAX);
    else if (hosts > 1 && d->family == 0)
        snprintf(ret, len, "hosts %" PRIu32 ": must be 1, as this engine has no sockets (bind)", hosts);
    else if (c->self >= hosts)
        snprintf(ret, len, "self %" PRIu32 ": must be below hosts, which is %" PRIu32, c->self, hosts);
    else if (c->local_ranks < 1 || c->local_ranks > UT_LOCAL_MAX)
        snprintf(ret, len, "local_ranks %" PRIu32 ": must be 1 to %d", c->local_ranks, UT_LOCAL_MAX);
    else if (c->packet_bytes < UT_PACKET_MIN || c->packet_bytes > d->engine_config.packet_bytes ||
             c->packet_bytes % 8 != 0)
        snprintf(ret, len, "packet_bytes %" PRIu32 ": must be a multiple of 8 from %d to this host's %" PRIu32,
                 c->packet_bytes, UT_PACKET_MIN, d->engine_config.packet_bytes);
    else if (c->world != 0 && (c->world < hosts || c->world > UT_HOSTS_MAX * UT_LOCAL_MAX))
        snprintf(ret, len, "world %" PRIu32 ": must be 0, or from hosts, which is %" PRIu32 ", to %d", c->world, hosts,
                 UT_HOSTS_MAX * UT_LOCAL_MAX);
    else if (c->bucket_bytes_max == 0 || c->bucket_bytes_max > UT_BUCKET_MAX)
        snprintf(ret, len, "bucket_bytes_max %" PRIu64 ": must be 1 to %" PRIu32, c->bucket_bytes_max, UT_BUCKET_MAX);
    else
        return describe_bad_ranks(c, world, ret, len) || ut_describe_bad_options(&c->options, hosts, world, ret, len);
    return true;
}

static int find_free_job(const ut_driver *d)
{
    for (int i = 0; i < UT_JOBS_MAX; i++)
        if (!d->job_memory[i])
            return i;
    return -1;
}

int ut_driver_job_add(ut_driver *d, const ut_job_config *config)
{
    char why[160];
    if (!ut_driver_enter(d))
        return FORKED;
    if (describe_bad_job(d, config, why, sizeof(why)))
        return ut_driver_leave_failing(d, UT_ERR_ARGUMENT, "%s", why);
    const int job = find_free_job(d);
    if (job < 0)
        return ut_driver_leave_failing(d, UT_ERR_FULL, "job: all %d of this engine are taken", UT_JOBS_MAX);
    const size_t bytes = ut_job_bytes(&d->engine_config, config);
    if (bytes == 0)
        return ut_driver_leave_failing(d, UT_ERR_ARGUMENT, "job of %" PRIu32 " hosts: out of range", config->hosts);
    void *memory = ut_driver_map(d, bytes);
    if (!memory)
        return ut_driver_leave_failing(d, UT_ERR_SYSTEM, "map %zu bytes for a job: %s", bytes, strerror(errno));
    const int result = ut_engine_job_add(d->engine, (uint32_t)job, config, memory);
    if (result != UT_OK) {
        munmap(memory, bytes);
        return ut_driver_leave_failing(d, result, "job of %" PRIu32 " hosts: %s", config->hosts, ut_strerror(result));
    }
    if (config->cipher && !(d->job_keys[job] = ut_job_keys_make(config->hosts, config->self))) {
        const int error = errno;
        ut_engine_job_remove(d->engine, (uint32_t)job, ut_driver_now());
        munmap(memory, bytes);
        return ut_driver_leave_failing(d, UT_ERR_SYSTEM, "map memory for a job's keys: %s", strerror(error));
    }
    d->job_memory[job] = memory;
    d->job_bytes[job] = bytes;
    d->prompt_jobs |= config->options.policy > UT_POLICY_NONE ? ut_bit((uint32_t)job) : 0;
    return ut_driver_leave_poking(d, job);
}

int ut_driver_options_fit(ut_driver *d, uint32_t job, const ut_job_options *options)
{
    if (!ut_driver_enter(d))
        return FORKED;
    if (!ut_driver_has_job(d, job))
        return ut_driver_leave_no_job(d, job);
    char why[160];
    const uint32_t hosts = ut_engine_hosts(d->engine, job), world = ut_engine_world(d->engine, job);
    if (ut_describe_bad_options(options, hosts, world, why, sizeof(why)))
        return ut_driver_leave_failing(d, UT_ERR_ARGUMENT, "%s", why);
    const int result = ut_engine_options_fit(d->engine, job, options);
    if (result == UT_ERR_ARGUMENT) /* all ranges are right */
        return ut_driver_leave_failing(d, result, "policy %u: must be %s", options->policy,
                                       options->policy > UT_POLICY_NONE ? "0 or 1 (none) in this job"
                                                                        : "2 to 7 in this job, which has one");
    if (result != UT_OK)
        return ut_driver_leave_failing(d, result, "options of job %" PRIu32 ": %s", job, ut_strerror(result));
    ut_driver_leave(d);
    return UT_OK;
}

int ut_driver_activate(ut_driver *d, uint32_t job, uint64_t op_seq)
{
    if (!ut_driver_enter(d))
        return FORKED;
    if (!ut_driver_has_job(d, job))
        return ut_driver_leave_no_job(d, job);
    const int result = ut_engine_activate(d->engine, job, op_seq, ut_driver_now());
    const char *why = result == UT_ERR_SEQUENCE ? "is not the next one here"
                      : result == UT_ERR_ABSENT ? "no rank of this host has given anything for it"
                                                : "the job has no policy";
    if (result != UT_OK)
        return ut_driver_leave_failing(d, result, "op %" PRIu64 " of job %" PRIu32 ": %s", op_seq, job, why);
    return ut_driver_leave_poking(d, UT_OK);
}

int ut_driver_job_remove(ut_driver *d, uint32_t job)
{
    if (!ut_driver_enter(d))
        return FORKED;
    if (!ut_driver_has_job(d, job))
        return ut_driver_leave_no_job(d, job);
    ut_engine_job_remove(d->engine, job, ut_driver_now());
    ut_events_take(&d->events, d->engine, d->prompt_jobs, ut_driver_now()); /* its number may be another's next */
    ut_loop_ring(d); /* the trainers' last receipts, while we can still ring */
    for (uint32_t i = 0; i < UT_SESSIONS_MAX; i++)
        if (d->sessions[i].used && d->sessions[i].job == job)
            ut_driver_drop_session(d, i);
    munmap(d->job_memory[job], d->job_bytes[job]);
    d->job_memory[job] = NULL;
    d->prompt_jobs &= ~ut_bit(job);
    ut_job_keys_drop(d->job_keys[job]);
    d->job_keys[job] = NULL;
    return ut_driver_leave_poking(d, UT_OK);
}

int ut_driver_next_op_seq(ut_driver *d, uint32_t job, uint64_t *ret)
{
    if (!ut_driver_enter(d))
        return FORKED;
    if (!ut_driver_has_job(d, job))
        return ut_driver_leave_no_job(d, job);
    *ret = ut_engine_next_op_seq(d->engine, job);
    ut_driver_leave(d);
    return UT_OK;
}

int ut_driver_receipt(ut_driver *d, uint32_t job, uint32_t back, ut_receipt *ret)
{
    if (!ut_driver_enter(d))
        return FORKED;
    if (!ut_driver_has_job(d, job))
        return ut_driver_leave_no_job(d, job);
    const int result = ut_engine_receipt(d->engine, job, back, ret);
    ut_driver_leave(d);
    return result;
}

/* ---- peers ---- */

/* Leaves with a sentence about keys that were refused. */
static int leave_no_keys(ut_driver *d, uint32_t job, uint32_t host, int code)
{
    if (code == UT_ERR_EXISTS)
        return ut_driver_leave_failing(d, code, "host %" PRIu32 " of job %" PRIu32 ": sealed with this secret before",
                                       host, job);
    if (code == UT_ERR_ARGUMENT)
        return ut_driver_leave_failing(d, code,
                                       "seal: must be given for each path of a sealed job, with suite 1 to %d,"
                                       " and for no other",
                                       UT_SUITES_END - 1);
    return ut_driver_leave_failing(d, code, "keys of host %" PRIu32 " of job %" PRIu32 ": %s", host, job,
                                   ut_strerror(code));
}

int ut_driver_peer_listen(ut_driver *d, uint32_t job, uint32_t host, const ut_driver_seal *seal, uint32_t *ret_cid)
{
    if (!ut_driver_enter(d))
        return FORKED;
    if (!ut_driver_has_job(d, job))
        return ut_driver_leave_no_job(d, job);
    if (!ut_job_keys_fit(d->job_keys[job], seal))
        return leave_no_keys(d, job, host, UT_ERR_ARGUMENT);
    const int result = ut_engine_peer_listen(d->engine, job, host, ret_cid);
    if (result != UT_OK)
        return leave_no_peer(d, job, host, result);
    const int keys = seal ? ut_job_keys_in(d->job_keys[job], d->engine, job, host, *ret_cid, seal) : UT_OK;
    return keys == UT_OK ? ut_driver_leave_poking(d, UT_OK) : leave_no_keys(d, job, host, keys);
}

int ut_driver_peer_renew(ut_driver *d, uint32_t job, uint32_t host, bool out, uint32_t cid, const ut_driver_seal *seal)
{
    if (!ut_driver_enter(d))
        return FORKED;
    if (!ut_driver_has_job(d, job))
        return ut_driver_leave_no_job(d, job);
    if (!seal || !ut_job_keys_fit(d->job_keys[job], seal))
        return leave_no_keys(d, job, host, UT_ERR_ARGUMENT);
    const int result = ut_job_keys_renew(d->job_keys[job], out, host, cid, seal);
    return result == UT_OK ? ut_driver_leave_poking(d, UT_OK) : leave_no_keys(d, job, host, result);
}

static bool parse_peer(const ut_driver *d, const char *address, uint16_t port, ut_addr *ret)
{
    return address && ut_address_parse(address, port, ret) == UT_OK && ut_address_family(ret) == d->family;
}

int ut_driver_peer_connect(ut_driver *d, uint32_t job, uint32_t host, const char *address, uint16_t data_port,
                           uint16_t feedback_port, uint32_t cid, const ut_driver_seal *seal)
{
    ut_addr data, feedback;
    if (!ut_driver_enter(d))
        return FORKED;
    if (!ut_driver_has_job(d, job))
        return ut_driver_leave_no_job(d, job);
    if (!parse_peer(d, address, data_port, &data) || !parse_peer(d, address, feedback_port, &feedback))
        return ut_driver_leave_failing(d, UT_ERR_ARGUMENT,
                                       "host %" PRIu32 " at %s: must be a numeric %s address, as ours", host,
                                       address ? address : "(nothing)", d->family == AF_INET6 ? "IPv6" : "IPv4");
    if (data_port == 0 || feedback_port == 0)
        return ut_driver_leave_failing(d, UT_ERR_ARGUMENT, "host %" PRIu32 " at %s: ports %u and %u must not be 0",
                                       host, address, (unsigned)data_port, (unsigned)feedback_port);
    if (!ut_job_keys_fit(d->job_keys[job], seal))
        return leave_no_keys(d, job, host, UT_ERR_ARGUMENT);
    /* Old numbers must not go under new keys, nor the other way round: nothing is sent between these two. */
    const int keys = seal ? ut_job_keys_out(d->job_keys[job], host, cid, seal) : UT_OK;
    if (keys != UT_OK)
        return leave_no_keys(d, job, host, keys);
    const int result = ut_engine_peer_connect(d->engine, job, host, &data, &feedback, cid, ut_driver_now());
    return result == UT_OK ? ut_driver_leave_poking(d, UT_OK) : leave_no_peer(d, job, host, result);
}

int ut_driver_send_strange(ut_driver *d, uint32_t port, const char *address, uint16_t to, uint32_t bytes,
                           uint32_t count)
{
    static const uint8_t zeros[UT_PACKET_MAX];
    ut_addr target;
    uint32_t sent = 0;
    if (!ut_driver_enter(d))
        return FORKED;
    if (port > UT_PORT_FEEDBACK || to == 0 || bytes > sizeof(zeros) || count > STRANGE_MAX ||
        !parse_peer(d, address, to, &target))
        return ut_driver_leave_failing(d, UT_ERR_ARGUMENT, "%s port %u: cannot be sent to from here",
                                       address ? address : "(nothing)", (unsigned)to);
    while (sent < count && sendto(d->sockets[port].fd, zeros, bytes, MSG_DONTWAIT,
                                  (const struct sockaddr *)target.bytes, target.len) >= 0)
        sent++;
    ut_driver_count(d, sent, (uint64_t)sent * bytes);
    if (sent == 0 && count > 0)
        return ut_driver_leave_failing(d, UT_ERR_SYSTEM, "%s port %u: %s", address, (unsigned)to, strerror(errno));
    ut_driver_leave(d);
    return (int)sent;
}

int ut_driver_peers_blocked(ut_driver *d, uint32_t job, uint64_t mask)
{
    if (!ut_driver_enter(d))
        return FORKED;
    if (!ut_driver_has_job(d, job))
        return ut_driver_leave_no_job(d, job);
    ut_engine_peers_blocked(d->engine, job, mask);
    ut_driver_leave(d);
    return UT_OK;
}

int ut_driver_peer_stats(ut_driver *d, uint32_t job, uint32_t host, ut_peer_stats *ret)
{
    if (!ut_driver_enter(d))
        return FORKED;
    if (!ut_driver_has_job(d, job))
        return ut_driver_leave_no_job(d, job);
    const int result = ut_engine_peer_stats(d->engine, job, host, ret);
    if (result != UT_OK)
        return leave_no_peer(d, job, host, result);
    ut_driver_leave(d);
    return UT_OK;
}

int ut_driver_peer_absent(ut_driver *d, uint32_t job, uint32_t host)
{
    ut_peer_stats unused;
    if (!ut_driver_enter(d))
        return FORKED;
    if (!ut_driver_has_job(d, job))
        return ut_driver_leave_no_job(d, job);
    const int result = ut_engine_peer_stats(d->engine, job, host, &unused);
    if (result != UT_OK)
        return leave_no_peer(d, job, host, result);
    ut_engine_peer_absent(d->engine, job, host, ut_driver_now());
    return ut_driver_leave_poking(d, UT_OK);
}
