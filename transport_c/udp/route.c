/* SPDX-License-Identifier: Apache-2.0
 *
 * By which way packets reach a peer: its own address, or a relay that stands between (relay.h).
 */
#define _GNU_SOURCE
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/socket.h>

#include "loop.h"
#include "relay.h"

#define FORKED UT_ERR_CLOSED /* ut_driver_error says whose driver it is */

static bool parse(const ut_driver *d, const char *address, uint16_t port, ut_addr *ret)
{
    return d->family != 0 && address && port != 0 && ut_address_parse(address, port, ret) == UT_OK &&
           ut_address_family(ret) == d->family;
}

static int leave_bad_address(ut_driver *d, const char *address)
{
    return ut_driver_leave_failing(d, UT_ERR_ARGUMENT,
                                   "route by %s: must be a numeric %s address and two ports above 0",
                                   address ? address : "(nothing)", d->family == AF_INET6 ? "IPv6" : "IPv4");
}

int ut_driver_peer_route(ut_driver *d, uint32_t job, uint32_t host, const char *address, uint16_t data_port,
                         uint16_t feedback_port)
{
    ut_addr data, feedback;
    if (!ut_driver_enter(d))
        return FORKED;
    if (!ut_driver_has_job(d, job))
        return ut_driver_leave_no_job(d, job);
    if (!parse(d, address, data_port, &data) || !parse(d, address, feedback_port, &feedback))
        return leave_bad_address(d, address);
    const int result = ut_engine_peer_route(d->engine, job, host, &data, &feedback);
    if (result != UT_OK)
        return ut_driver_leave_failing(d, result, "host %" PRIu32 " of job %" PRIu32 ": there is no path to it", host,
                                       job);
    return ut_driver_leave_poking(d, UT_OK);
}

int ut_driver_peers_relayed(ut_driver *d, uint32_t job, uint64_t mask, uint64_t relays)
{
    if (!ut_driver_enter(d))
        return FORKED;
    if (!ut_driver_has_job(d, job))
        return ut_driver_leave_no_job(d, job);
    ut_engine_peers_relayed(d->engine, job, mask, relays);
    ut_driver_leave(d);
    return UT_OK;
}

int ut_driver_send_hello(ut_driver *d, uint32_t port, const char *address, uint16_t to, const uint8_t *hello)
{
    ut_addr target;
    if (!ut_driver_enter(d))
        return FORKED;
    if (port > UT_PORT_FEEDBACK || !parse(d, address, to, &target))
        return leave_bad_address(d, address);
    if (sendto(d->sockets[port].fd, hello, UT_HELLO_BYTES, MSG_DONTWAIT | MSG_NOSIGNAL,
               (const struct sockaddr *)target.bytes, target.len) < 0)
        return ut_driver_leave_failing(d, UT_ERR_SYSTEM, "hello to %s port %u: %s", address, (unsigned)to,
                                       strerror(errno));
    ut_driver_count(d, 1, UT_HELLO_BYTES);
    ut_driver_leave(d);
    return UT_OK;
}
