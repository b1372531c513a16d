/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "relay.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "driver.h"
#include "socket.h"

enum {
    BATCH = 32,
    RECEIVE_BUFFER = 4 << 20, /* what waits while the cap holds it: 34 ms at 1 Gbit/s */
    SEND_BUFFER = 1 << 20,
    FULL_MS = 20, /* that a full socket is waited for; then the datagram is lost, as at any full link */
    ID_AT = 4,    /* where the connection id of every datagram lies (PROTOCOL.md, Common fields) */
    ID_END = 8,
    BURST_PART = 100,   /* of a second: what the cap lets pass at once after a rest */
    USUAL_BYTES = 1472, /* of a packet: so many of them are the quantum of the host's cap */
};

struct ut_relay {
    pthread_mutex_t lock; /* of all below but what only the thread uses */
    pthread_t thread;
    bool started, stopping;
    int wake_fd, hello_fd;
    ut_socket socket;
    int family;
    uint64_t rate;
    ut_relay_table table;
    ut_relay_stats stats;
    ut_relay_hello hellos[UT_RELAY_HELLOS];
    uint32_t hello_first, hello_count;

    /* The thread's own. */
    int64_t tokens; /* bytes that may go; below 0: a batch was larger than what was left */
    ut_ns filled_at;
    ut_cap_taker cap; /* of what the host sends in all */
    unsigned out_count;
    uint64_t out_bytes;
    struct mmsghdr in[BATCH], out[BATCH];
    struct iovec iov[BATCH], out_iov[BATCH];
    ut_addr from[BATCH], to[BATCH];
    _Alignas(struct cmsghdr) uint8_t control[BATCH][128], out_control[BATCH][CMSG_SPACE(sizeof(int))];
    _Alignas(64) uint8_t memory[BATCH][UT_PACKET_MAX];
};

/* ---- the cap ---- */

static uint64_t rate_of(ut_relay *r)
{
    return __atomic_load_n(&r->rate, __ATOMIC_RELAXED);
}

/* Fills up what may go, by the time since the last call. Returns how long to wait until something may. */
static ut_ns refill(ut_relay *r, ut_ns now)
{
    const uint64_t rate = rate_of(r);
    const int64_t most = (int64_t)UT_MAX2(rate / BURST_PART, (uint64_t)UT_PACKET_MAX);
    /* A second at most, so that the product has room: the bucket is full long before. */
    const uint64_t gone = UT_MIN2(now - r->filled_at, UT_SECOND);
    r->tokens = UT_MIN2(r->tokens + (int64_t)(gone * (rate / 1000) / (UT_SECOND / 1000)), most);
    r->filled_at = now;
    if (r->tokens > 0)
        return 0;
    return (uint64_t)(1 - r->tokens) * (UT_SECOND / 1000) / UT_MAX2(rate / 1000, 1) + 1;
}

/* How long nothing may be forwarded: for the relay's own cap or, if that lets it, for the host's. */
static ut_ns time_to_wait(ut_relay *r, ut_ns now)
{
    const ut_ns wait = refill(r, now);
    if (wait > 0 || ut_cap_take(&r->cap, 1, USUAL_BYTES, now) > 0)
        return wait;
    return r->cap.due - now;
}

/* ---- one batch ---- */

static unsigned receive(ut_relay *r)
{
    for (unsigned i = 0; i < BATCH; i++) {
        r->iov[i] = (struct iovec){.iov_base = r->memory[i], .iov_len = UT_PACKET_MAX};
        r->in[i].msg_hdr = (struct msghdr){.msg_name = r->from[i].bytes,
                                           .msg_namelen = sizeof(r->from[i].bytes),
                                           .msg_iov = &r->iov[i],
                                           .msg_iovlen = 1,
                                           .msg_control = r->control[i],
                                           .msg_controllen = sizeof(r->control[i])};
    }
    const int n = recvmmsg(r->socket.fd, r->in, BATCH, MSG_DONTWAIT, NULL);
    return n > 0 ? (unsigned)n : 0;
}

/* The congestion marks of a datagram, and what its message tells of the socket. */
static int read_control(ut_relay *r, struct msghdr *m)
{
    int marks = 0;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(m); c; c = CMSG_NXTHDR(m, c)) {
        if (c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_TOS)
            marks = *CMSG_DATA(c) & 3;
        else if (c->cmsg_level == IPPROTO_IPV6 && c->cmsg_type == IPV6_TCLASS) {
            memcpy(&marks, CMSG_DATA(c), sizeof(marks));
            marks &= 3;
        } else if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SO_RXQ_OVFL) {
            uint32_t drops;
            memcpy(&drops, CMSG_DATA(c), sizeof(drops));
            r->stats.drops += (uint32_t)(drops - r->socket.drops_seen);
            r->socket.drops_seen = drops;
        }
    }
    return marks;
}

static uint32_t read32(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static bool is_hello(const uint8_t *p, size_t len)
{
    return len == UT_HELLO_BYTES && p[0] == (UT_WIRE_VERSION << 4 | UT_HELLO_KIND);
}

/* Keeps a hello for whoever knows the end's key, if it comes from the end's host. */
static void take_hello(ut_relay *r, const uint8_t *p, const ut_addr *from)
{
    const uint32_t end = read32(p + ID_AT), port = p[1];
    if (end >= UT_RELAY_ENDS || !r->table.end[end].used || port > UT_PORT_FEEDBACK ||
        !ut_relay_same_host(&r->table.end[end].host, from) || r->hello_count == UT_RELAY_HELLOS) {
        r->stats.refused++;
        return;
    }
    ut_relay_hello *h = &r->hellos[(r->hello_first + r->hello_count++) % UT_RELAY_HELLOS];
    *h = (ut_relay_hello){.end = end, .port = port, .from = *from};
    h->number = (uint64_t)read32(p + 8) << 32 | read32(p + 12);
    memcpy(h->bytes, p, sizeof(h->bytes));
    memcpy(h->mac, p + UT_HELLO_SIGNED, sizeof(h->mac));
    const uint64_t one = 1;
    if (r->hello_count == 1 && write(r->hello_fd, &one, sizeof(one)) < 0)
        assert(errno == EAGAIN); /* it is readable as it is */
}

static void mark(ut_relay *r, struct msghdr *m, unsigned n, int marks)
{
    if (!marks)
        return;
    m->msg_control = r->out_control[n];
    m->msg_controllen = sizeof(r->out_control[n]);
    struct cmsghdr *c = CMSG_FIRSTHDR(m);
    c->cmsg_level = r->family == AF_INET6 ? IPPROTO_IPV6 : IPPROTO_IP;
    c->cmsg_type = r->family == AF_INET6 ? IPV6_TCLASS : IP_TOS;
    c->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(c), &marks, sizeof(marks));
}

/* What becomes of datagram |i|: it is laid out to be sent, kept, or counted and forgotten. */
static void take(ut_relay *r, unsigned i)
{
    const uint8_t *p = r->memory[i];
    const size_t len = r->in[i].msg_len;
    struct msghdr *m = &r->in[i].msg_hdr;
    const ut_addr *to = NULL;
    const int marks = read_control(r, m);
    r->from[i].len = (uint8_t)UT_MIN2(m->msg_namelen, sizeof(r->from[i].bytes));
    if (is_hello(p, len)) {
        take_hello(r, p, &r->from[i]);
        return;
    }
    const bool whole = len >= ID_END && !(m->msg_flags & MSG_TRUNC);
    ut_relay_way *way = whole ? ut_relay_find(&r->table, read32(p + ID_AT), &r->from[i], &to) : NULL;
    if (!way) {
        r->stats.refused++;
        return;
    }
    const unsigned n = r->out_count++;
    r->to[n] = *to; /* the table may change as soon as the lock is free */
    r->out_iov[n] = (struct iovec){.iov_base = r->memory[i], .iov_len = len};
    r->out[n].msg_hdr = (struct msghdr){
        .msg_name = r->to[n].bytes, .msg_namelen = r->to[n].len, .msg_iov = &r->out_iov[n], .msg_iovlen = 1};
    mark(r, &r->out[n].msg_hdr, n, marks);
    way->packets++;
    way->bytes += len;
    r->out_bytes += len;
}

static void send_all(ut_relay *r)
{
    uint64_t errors = 0;
    for (unsigned at = 0; at < r->out_count;) {
        const int sent = sendmmsg(r->socket.fd, r->out + at, r->out_count - at, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent > 0) {
            at += (unsigned)sent;
            continue;
        }
        struct pollfd full = {.fd = r->socket.fd, .events = POLLOUT};
        if (errno == EINTR || ((errno == EAGAIN || errno == EWOULDBLOCK) && poll(&full, 1, FULL_MS) > 0))
            continue;
        errors++;
        at++;
    }
    pthread_mutex_lock(&r->lock);
    r->stats.send_errors += errors;
    r->stats.packets += r->out_count - errors;
    r->stats.bytes += r->out_bytes;
    pthread_mutex_unlock(&r->lock);
}

/* ---- the thread ---- */

static void sleep_ns(ut_relay *r, bool listen, ut_ns most)
{
    struct pollfd watched[2] = {{.fd = r->wake_fd, .events = POLLIN}, {.fd = r->socket.fd, .events = POLLIN}};
    const struct timespec time = {.tv_sec = (time_t)(most / UT_SECOND), .tv_nsec = (long)(most % UT_SECOND)};
    ppoll(watched, listen ? 2 : 1, most == UT_NEVER ? NULL : &time, NULL);
    uint64_t pokes;
    if (watched[0].revents && read(r->wake_fd, &pokes, sizeof(pokes)) < 0)
        pokes = 0;
}

static void *run(void *arg)
{
    ut_relay *r = arg;
    r->filled_at = ut_driver_now();
    while (!__atomic_load_n(&r->stopping, __ATOMIC_ACQUIRE)) {
        const ut_ns wait = time_to_wait(r, ut_driver_now());
        if (wait > 0) {
            pthread_mutex_lock(&r->lock);
            r->stats.held++;
            pthread_mutex_unlock(&r->lock);
            sleep_ns(r, false, wait);
            continue;
        }
        const unsigned n = receive(r);
        if (n == 0) {
            sleep_ns(r, true, UT_NEVER);
            continue;
        }
        r->out_count = 0;
        r->out_bytes = 0;
        pthread_mutex_lock(&r->lock);
        for (unsigned i = 0; i < n; i++)
            take(r, i);
        pthread_mutex_unlock(&r->lock);
        r->tokens -= (int64_t)r->out_bytes;
        ut_cap_sent(&r->cap, r->out_count, r->out_bytes, ut_driver_now());
        send_all(r);
    }
    return NULL;
}

/* ---- open and close ---- */

static bool open_parts(ut_relay *r, const char *bind, uint16_t port, char *error, size_t len)
{
    ut_addr address;
    const ut_socket_options options = {.receive_buffer = RECEIVE_BUFFER, .send_buffer = SEND_BUFFER};
    if (ut_address_parse(bind, port, &address) != UT_OK) {
        snprintf(error, len, "bind %s: not a numeric IPv4 or IPv6 address", bind);
        return false;
    }
    r->family = ut_address_family(&address);
    if (ut_socket_open(&r->socket, &address, &options, error, len) != UT_OK)
        return false;
    r->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    r->hello_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (r->wake_fd < 0 || r->hello_fd < 0) {
        snprintf(error, len, "make an eventfd: %s", strerror(errno));
        return false;
    }
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int why = pthread_create(&r->thread, NULL, run, r);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (why != 0)
        snprintf(error, len, "start the relay's thread: %s", strerror(why));
    else
        pthread_setname_np(r->thread, "ut-relay");
    r->started = why == 0;
    return r->started;
}

ut_relay *ut_relay_open(const char *bind, uint16_t port, uint64_t rate, struct ut_cap *cap, char *error, size_t len)
{
    ut_relay *r = mmap(NULL, sizeof(*r), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (r == MAP_FAILED) {
        snprintf(error, len, "map %zu bytes for the relay: %s", sizeof(*r), strerror(errno));
        return NULL;
    }
    r->wake_fd = r->hello_fd = r->socket.fd = -1;
    r->rate = rate;
    ut_cap_join(&r->cap, cap);
    pthread_mutex_init(&r->lock, NULL);
    if (open_parts(r, bind, port, error, len))
        return r;
    ut_relay_close(r);
    return NULL;
}

void ut_relay_close(ut_relay *r)
{
    if (!r)
        return;
    if (r->started) {
        __atomic_store_n(&r->stopping, true, __ATOMIC_RELEASE);
        const uint64_t one = 1;
        if (write(r->wake_fd, &one, sizeof(one)) < 0)
            assert(errno == EAGAIN);
        pthread_join(r->thread, NULL);
    }
    ut_cap_leave(&r->cap);
    pthread_mutex_destroy(&r->lock);
    ut_socket_close(&r->socket);
    if (r->wake_fd >= 0)
        close(r->wake_fd);
    if (r->hello_fd >= 0)
        close(r->hello_fd);
    munmap(r, sizeof(*r));
}

/* ---- calls ---- */

uint16_t ut_relay_port(ut_relay *r)
{
    return r->socket.port;
}

int ut_relay_fd(ut_relay *r)
{
    return r->hello_fd;
}

void ut_relay_set_rate(ut_relay *r, uint64_t rate)
{
    __atomic_store_n(&r->rate, rate, __ATOMIC_RELAXED);
}

void ut_relay_get_stats(ut_relay *r, ut_relay_stats *ret)
{
    pthread_mutex_lock(&r->lock);
    *ret = r->stats;
    for (uint32_t i = 0; i < UT_RELAY_ENDS; i++)
        ret->ends += r->table.end[i].used;
    for (uint32_t i = 0; i < UT_RELAY_WAYS; i++)
        ret->ways += r->table.way[i].used;
    pthread_mutex_unlock(&r->lock);
}

bool ut_relay_poll_hello(ut_relay *r, ut_relay_hello *ret)
{
    pthread_mutex_lock(&r->lock);
    const bool got = r->hello_count > 0;
    if (got) {
        *ret = r->hellos[r->hello_first];
        r->hello_first = (r->hello_first + 1) % UT_RELAY_HELLOS;
        r->hello_count--;
    }
    uint64_t told;
    if (r->hello_count == 0 && read(r->hello_fd, &told, sizeof(told)) < 0)
        told = 0;
    pthread_mutex_unlock(&r->lock);
    return got;
}

int ut_relay_add_end(ut_relay *r, const char *address)
{
    ut_addr host;
    if (ut_address_parse(address, 0, &host) != UT_OK || ut_address_family(&host) != r->family)
        return UT_ERR_ARGUMENT;
    pthread_mutex_lock(&r->lock);
    const int end = ut_relay_end_add(&r->table, &host);
    pthread_mutex_unlock(&r->lock);
    return end;
}

int ut_relay_remove_end(ut_relay *r, uint32_t end)
{
    pthread_mutex_lock(&r->lock);
    const int result = ut_relay_end_remove(&r->table, end);
    pthread_mutex_unlock(&r->lock);
    return result;
}

int ut_relay_place_end(ut_relay *r, const ut_relay_hello *hello)
{
    pthread_mutex_lock(&r->lock);
    const int result = ut_relay_end_is_at(&r->table, hello->end, hello->port, &hello->from);
    pthread_mutex_unlock(&r->lock);
    return result;
}

int ut_relay_add_way(ut_relay *r, uint32_t from, uint32_t to, uint32_t cid)
{
    pthread_mutex_lock(&r->lock);
    const int way = ut_relay_way_add(&r->table, from, to, cid);
    pthread_mutex_unlock(&r->lock);
    return way;
}

int ut_relay_remove_way(ut_relay *r, uint32_t way)
{
    pthread_mutex_lock(&r->lock);
    const int result = ut_relay_way_remove(&r->table, way);
    pthread_mutex_unlock(&r->lock);
    return result;
}

uint64_t ut_relay_way_bytes(ut_relay *r, uint32_t way)
{
    pthread_mutex_lock(&r->lock);
    const uint64_t bytes = way < UT_RELAY_WAYS && r->table.way[way].used ? r->table.way[way].bytes : 0;
    pthread_mutex_unlock(&r->lock);
    return bytes;
}

uint16_t ut_relay_end_port(ut_relay *r, uint32_t end, uint32_t port, char *ret)
{
    ut_addr at = {.len = 0};
    pthread_mutex_lock(&r->lock);
    if (end < UT_RELAY_ENDS && port <= UT_PORT_FEEDBACK && r->table.end[end].used)
        at = r->table.end[end].at[port];
    pthread_mutex_unlock(&r->lock);
    ret[0] = '\0';
    if (at.len == 0)
        return 0;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
    if (r->family == AF_INET) {
        memcpy(&v4, at.bytes, sizeof(v4));
        inet_ntop(AF_INET, &v4.sin_addr, ret, UT_ADDRESS_TEXT);
        return ntohs(v4.sin_port);
    }
    memcpy(&v6, at.bytes, sizeof(v6));
    inet_ntop(AF_INET6, &v6.sin6_addr, ret, UT_ADDRESS_TEXT);
    return ntohs(v6.sin6_port);
}
