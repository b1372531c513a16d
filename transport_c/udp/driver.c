/* SPDX-License-Identifier: Apache-2.0
 *
 * A driver from open to close, and what it says of itself. Its jobs, peers and sessions are in control.c.
 */
#define _GNU_SOURCE
#include "driver.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "kernels/kernels.h"
#include "loop.h"
#include "sealing.h"

enum {
    RECEIVE_BUFFER = 8 << 20,
    SEND_BUFFER = 512 << 10,
    PACKET_BYTES_IPV4 = 1472, /* MTU 1500 less 20 and 8 */
    PACKET_BYTES_IPV6 = 1448, /* MTU 1500 less 40 and 8, and down to 32 + a multiple of 8 */
    HEADERS_IPV4 = 20 + 8,    /* of IP and UDP */
    HEADERS_IPV6 = 40 + 8,
};

/* ---- memory, lock, error ---- */

void *ut_driver_map(ut_driver *d, size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        return NULL;
    if (d && d->started && pthread_equal(pthread_self(), d->thread))
        d->allocations++;
    return p;
}

static bool is_ours(const ut_driver *d)
{
    return d->pid == getpid();
}

bool ut_driver_enter(ut_driver *d)
{
    if (!is_ours(d))
        return false;
    __atomic_add_fetch(&d->waiting, 1, __ATOMIC_SEQ_CST);
    pthread_mutex_lock(&d->lock);
    __atomic_sub_fetch(&d->waiting, 1, __ATOMIC_SEQ_CST);
    return true;
}

void ut_driver_leave(ut_driver *d)
{
    pthread_cond_signal(&d->stood_back);
    pthread_mutex_unlock(&d->lock);
}

int ut_driver_leave_poking(ut_driver *d, int ret)
{
    if (d->asleep)
        ut_loop_poke(d);
    d->asleep = false;
    ut_driver_leave(d);
    return ret;
}

int ut_driver_leave_failing(ut_driver *d, int code, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(d->error, sizeof(d->error), format, args);
    va_end(args);
    ut_driver_leave(d);
    return code;
}

const char *ut_driver_error(ut_driver *d)
{
    static _Thread_local char sentence[sizeof(d->error)];
    if (!ut_driver_enter(d)) {
        snprintf(sentence, sizeof(sentence), "the driver belongs to process %d, of which this one (%d) is a fork",
                 (int)d->pid, (int)getpid());
        return sentence;
    }
    memcpy(sentence, d->error, sizeof(sentence));
    ut_driver_leave(d);
    return sentence;
}

uint64_t ut_driver_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * UT_SECOND + (uint64_t)t.tv_nsec;
}

/* ---- open and close ---- */

/* Jobs of one host send nothing: what the sockets would have been granted is only what their memory is laid out for. */
static void stay_without_sockets(ut_driver *d, const ut_driver_config *c)
{
    for (unsigned port = 0; port < 2; port++)
        d->sockets[port] = (ut_socket){.fd = -1,
                                       .receive_buffer = c->receive_buffer ? c->receive_buffer : RECEIVE_BUFFER,
                                       .send_buffer = c->send_buffer ? c->send_buffer : SEND_BUFFER};
}

static int open_sockets(ut_driver *d, const ut_driver_config *c, char *error, size_t len)
{
    const uint16_t ports[2] = {c->data_port, c->feedback_port};
    if (!c->bind) {
        stay_without_sockets(d, c);
        return UT_OK;
    }
    if (c->dscp > 63) {
        snprintf(error, len, "dscp %" PRIu32 ": allowed: 0 to 63", c->dscp);
        return UT_ERR_ARGUMENT;
    }
    for (unsigned port = 0; port < 2; port++) {
        ut_addr address;
        if (ut_address_parse(c->bind, ports[port], &address) != UT_OK) {
            snprintf(error, len, "bind %s: not a numeric IPv4 or IPv6 address", c->bind);
            return UT_ERR_ARGUMENT;
        }
        d->family = ut_address_family(&address);
        const ut_socket_options options = {
            .receive_buffer = c->receive_buffer ? c->receive_buffer : RECEIVE_BUFFER,
            .send_buffer = c->send_buffer ? c->send_buffer : SEND_BUFFER,
            .packet_bytes = d->engine_config.packet_bytes,
            .gso = c->gso && port == UT_PORT_DATA,
            .gro = c->gro && port == UT_PORT_DATA,
            .ect = port == UT_PORT_DATA,
            .dscp = c->dscp,
            .urgent = port == UT_PORT_FEEDBACK,
        };
        int result = ut_socket_open(&d->sockets[port], &address, &options, error, len);
        if (result != UT_OK)
            return result;
    }
    return UT_OK;
}

static int choose_packet_bytes(ut_driver *d, const ut_driver_config *c, char *error, size_t len)
{
    uint32_t bytes = c->packet_bytes;
    if (bytes == 0)
        bytes = c->bind && strchr(c->bind, ':') ? PACKET_BYTES_IPV6 : PACKET_BYTES_IPV4;
    if (bytes < UT_PACKET_MIN || bytes > UT_PACKET_MAX || bytes % 8 != 0) {
        snprintf(error, len, "packet_bytes %" PRIu32 ": must be a multiple of 8 from %d to %d", bytes, UT_PACKET_MIN,
                 UT_PACKET_MAX);
        return UT_ERR_ARGUMENT;
    }
    d->engine_config.packet_bytes = bytes;
    d->engine_config.segments_max = UT_MIN2((uint32_t)UT_SEGMENTS_MAX, UT_BURST_BYTES / bytes);
    return UT_OK;
}

/* The link is the host's, whichever of its drivers was opened first. */
static int open_link(ut_driver *d, ut_driver *beside, char *error, size_t len)
{
    ut_shared_link *link = beside ? beside->link : ut_driver_map(d, sizeof(*link));
    if (!link) {
        snprintf(error, len, "map %zu bytes for the link: %s", sizeof(*link), strerror(errno));
        return UT_ERR_SYSTEM;
    }
    if (!beside)
        link->cap.headers = d->family == AF_INET6 ? HEADERS_IPV6 : HEADERS_IPV4;
    for (uint32_t lane = 0; lane < UT_LANES_MAX; lane++) {
        const uint32_t bit = 1u << lane;
        if (__atomic_fetch_or(&link->lanes, bit, __ATOMIC_SEQ_CST) & bit)
            continue;
        d->link = link;
        d->engine_config.link = &link->link;
        d->engine_config.cap = &link->cap;
        d->engine_config.lane = lane;
        return UT_OK;
    }
    snprintf(error, len, "beside: %d drivers share that link already", UT_LANES_MAX);
    return UT_ERR_FULL;
}

static void close_link(ut_driver *d)
{
    if (!d->link)
        return;
    if (d->engine)
        ut_cap_leave(&(ut_cap_taker){.cap = &d->link->cap});
    const uint32_t rest = __atomic_and_fetch(&d->link->lanes, ~(1u << d->engine_config.lane), __ATOMIC_SEQ_CST);
    if (rest == 0)
        munmap(d->link, sizeof(*d->link));
}

/* What no peer can predict; 0 if the kernel has none, and then no peer is followed. */
static uint64_t draw(void)
{
    uint64_t number;
    return getrandom(&number, sizeof(number), 0) == sizeof(number) ? number : 0;
}

static int open_engine(ut_driver *d, const ut_driver_config *c, char *error, size_t len)
{
    d->engine_config.receive_buffer = d->sockets[UT_PORT_DATA].receive_buffer;
    d->engine_config.seed = c->seed;
    d->engine_config.draw = draw;
    if (c->seed == 0 && getrandom(&d->engine_config.seed, sizeof(c->seed), 0) != sizeof(c->seed)) {
        snprintf(error, len, "get a random seed: %s", strerror(errno));
        return UT_ERR_SYSTEM;
    }
    if (d->engine_config.receive_buffer < UT_RECEIVE_BUFFER_MIN) {
        snprintf(error, len, "receive_buffer %" PRIu32 ": must be at least %d, as granted by the kernel",
                 d->engine_config.receive_buffer, UT_RECEIVE_BUFFER_MIN);
        return UT_ERR_ARGUMENT;
    }
    d->engine_bytes = ut_engine_bytes(&d->engine_config);
    assert(d->engine_bytes != 0); /* every field has been checked above */
    d->engine_memory = ut_driver_map(d, d->engine_bytes);
    if (!d->engine_memory) {
        snprintf(error, len, "map %zu bytes for the engine: %s", d->engine_bytes, strerror(errno));
        return UT_ERR_SYSTEM;
    }
    int result = ut_engine_init(d->engine_memory, &d->engine_config, &d->engine);
    if (result != UT_OK)
        snprintf(error, len, "start the engine: %s", ut_strerror(result));
    return result;
}

/* Signals are for Python's main thread: ours must not be interrupted, and handlers must not run on it. */
static int start_thread(ut_driver *d, char *error, size_t len)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int why = pthread_create(&d->thread, NULL, ut_loop_main, d);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (why != 0) {
        snprintf(error, len, "start the engine thread: %s", strerror(why));
        return UT_ERR_SYSTEM;
    }
    d->started = true;
    pthread_setname_np(d->thread, "ut-engine");
    return UT_OK;
}

static int open_parts(ut_driver *d, const ut_driver_config *c, char *error, size_t len)
{
    int result = choose_packet_bytes(d, c, error, len);
    if (result == UT_OK)
        result = open_sockets(d, c, error, len);
    if (result != UT_OK)
        return result;
    d->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    d->bells_fd = epoll_create1(EPOLL_CLOEXEC);
    if (!ut_events_open(&d->events) || d->wake_fd < 0 || d->bells_fd < 0) {
        snprintf(error, len, "make an eventfd or an epoll: %s", strerror(errno));
        return UT_ERR_SYSTEM;
    }
    ut_kernels_init(UT_ISA_BEST);
    result = open_link(d, c->beside, error, len);
    if (result == UT_OK)
        result = open_engine(d, c, error, len);
    if (result != UT_OK)
        return result;
    ut_sender_init(&d->sender, d->sockets);
    return start_thread(d, error, len);
}

ut_driver *ut_driver_open(const ut_driver_config *config, char *error, size_t error_len)
{
    if (error_len > 0)
        error[0] = '\0';
    ut_driver *d = ut_driver_map(NULL, sizeof(*d));
    if (!d) {
        snprintf(error, error_len, "map %zu bytes for the driver: %s", sizeof(*d), strerror(errno));
        return NULL;
    }
    d->pid = getpid();
    d->wake_fd = d->bells_fd = d->events.fd = d->sockets[0].fd = d->sockets[1].fd = -1;
    pthread_mutex_init(&d->lock, NULL);
    pthread_cond_init(&d->stood_back, NULL);
    pthread_mutex_init(&d->events.lock, NULL);
    if (open_parts(d, config, error, error_len) == UT_OK)
        return d;
    ut_driver_close(d);
    return NULL;
}

static void close_fd(int fd)
{
    if (fd >= 0)
        close(fd);
}

void ut_driver_close_session(ut_driver *d, ut_driver_session *s)
{
    /* Closing it is not enough: the trainer holds the same file, and epoll forgets it only with the last descriptor. A
     * fork shares the epoll, too, and has no say in it. */
    if (s->used && is_ours(d))
        epoll_ctl(d->bells_fd, EPOLL_CTL_DEL, s->submit_fd, NULL);
    close_fd(s->submit_fd);
    close_fd(s->complete.fd);
    *s = (ut_driver_session){.used = false};
}

static void stop_thread(ut_driver *d)
{
    if (!d->started || !ut_driver_enter(d))
        return;
    d->stopping = true;
    ut_loop_poke(d);
    ut_driver_leave(d);
    pthread_join(d->thread, NULL);
    pthread_mutex_destroy(&d->lock);
    pthread_cond_destroy(&d->stood_back);
    pthread_mutex_destroy(&d->events.lock);
}

void ut_driver_close(ut_driver *d)
{
    if (!d)
        return;
    stop_thread(d);
    for (unsigned i = 0; i < UT_SESSIONS_MAX; i++)
        if (d->sessions[i].used)
            ut_driver_close_session(d, &d->sessions[i]);
    for (unsigned i = 0; i < UT_JOBS_MAX; i++) {
        if (d->job_memory[i])
            munmap(d->job_memory[i], d->job_bytes[i]);
        ut_job_keys_drop(d->job_keys[i]);
    }
    if (d->engine_memory)
        munmap(d->engine_memory, d->engine_bytes);
    close_link(d);
    ut_socket_close(&d->sockets[0]);
    ut_socket_close(&d->sockets[1]);
    close_fd(d->wake_fd);
    close_fd(d->bells_fd);
    ut_events_close(&d->events);
    munmap(d, sizeof(*d));
}

/* ---- what it is doing ---- */

static void fill_info(ut_driver *d, ut_driver_info *ret)
{
    const ut_socket *data = &d->sockets[UT_PORT_DATA];
    *ret = (ut_driver_info){
        .data_port = data->port,
        .feedback_port = d->sockets[UT_PORT_FEEDBACK].port,
        .packet_bytes = d->engine_config.packet_bytes,
        .receive_buffer = data->receive_buffer,
        .send_buffer = data->send_buffer,
        .gso = data->gso,
        .gro = data->gro,
        .isa = (int32_t)ut_kernels_isa(),
        .event_fd = d->events.fd,
    };
}

void ut_driver_get_info(ut_driver *d, ut_driver_info *ret)
{
    memset(ret, 0, sizeof(*ret));
    if (!ut_driver_enter(d))
        return;
    fill_info(d, ret);
    ut_driver_leave(d);
}

static uint64_t thread_cpu_ns(const ut_driver *d)
{
    clockid_t clock;
    struct timespec t;
    if (pthread_getcpuclockid(d->thread, &clock) != 0 || clock_gettime(clock, &t) != 0)
        return 0;
    return (uint64_t)t.tv_sec * UT_SECOND + (uint64_t)t.tv_nsec;
}

static void fill_stats(ut_driver *d, ut_driver_stats *ret)
{
    ut_engine_stats(d->engine, &ret->engine);
    ret->send_calls = d->sender.calls;
    ret->receive_calls = d->receiver.calls;
    ret->polls = d->polls;
    ret->send_blocked = d->sender.blocked;
    ret->send_looks = d->sender.looks;
    ret->send_drain_rate = d->sender.backlog.rate;
    ret->send_pace = d->sender.pace.rate;
    ret->send_queued_max = d->sender.backlog.most;
    ret->send_errors = d->sender.errors;
    ret->send_errno = (uint64_t)d->sender.last_error;
    ret->receive_errors = d->receiver.errors;
    ret->gro_batches = d->receiver.aggregates;
    ret->cpu_ns = thread_cpu_ns(d);
    ret->thread_moves = d->thread_moves;
    ret->allocations = d->allocations;
}

void ut_driver_get_stats(ut_driver *d, ut_driver_stats *ret)
{
    memset(ret, 0, sizeof(*ret));
    if (!ut_driver_enter(d))
        return;
    fill_stats(d, ret);
    ut_driver_leave(d);
}

static void fill_job(const ut_driver *d, uint32_t job, ut_job_snapshot *ret)
{
    ret->hosts = d->job_memory[job] ? ut_engine_hosts(d->engine, job) : 0;
    if (ret->hosts == 0)
        return;
    ret->next_op_seq = ut_engine_next_op_seq(d->engine, job);
    for (uint32_t h = 0; h < ret->hosts; h++)
        if (ut_engine_peer_stats(d->engine, job, h, &ret->peer[h]) != UT_OK)
            ret->peer[h] = (ut_peer_stats){.up = 0};
}

void ut_driver_snapshot_take(ut_driver *d, ut_driver_snapshot *ret)
{
    memset(&ret->info, 0, sizeof(ret->info));
    memset(&ret->stats, 0, sizeof(ret->stats));
    for (uint32_t job = 0; job < UT_JOBS_MAX; job++)
        ret->job[job].hosts = 0;
    if (!ut_driver_enter(d))
        return;
    fill_info(d, &ret->info);
    fill_stats(d, &ret->stats);
    for (uint32_t job = 0; job < UT_JOBS_MAX; job++)
        fill_job(d, job, &ret->job[job]);
    ut_driver_leave(d);
}

int ut_driver_poll_event(ut_driver *d, ut_event *ret)
{
    bool starved;
    if (!is_ours(d))
        return 0;
    const bool got = ut_events_poll(&d->events, ret, &starved);
    if (starved)
        ut_loop_poke(d);
    return got;
}
