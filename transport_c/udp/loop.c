/* SPDX-License-Identifier: Apache-2.0
 *
 * The engine thread: a turn of work, then ppoll. Work is cut into short rounds and a turn into few rounds, so that no
 * flood of datagrams keeps the timers, the senders, the trainers or a control call waiting; what is left over makes the
 * next ppoll return at once.
 */
#define _GNU_SOURCE
#include "loop.h"
#include "place.h"

#include <errno.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum {
    ROUNDS_PER_TURN = 4, /* each at most one recvmmsg a socket, and BATCHES_PER_ROUND of sending */
    BATCHES_PER_ROUND = 2,
    FIXED_FDS = 3,             /* wake, then the two sockets */
    TIMER_SLACK_NS = 1000,     /* the kernel's default of 50 us is a burst at 10 Gbit/s */
    BLOCKED_SLEEP_NS = 100000, /* see sleep_until */
};

/* The thread's own view of what to watch, since others may change the sessions while it sleeps. */
typedef struct watch {
    uint64_t as_of; /* sessions_changed when it was made */
    unsigned count;
    struct pollfd fds[FIXED_FDS + UT_SESSIONS_MAX];
    uint8_t session[FIXED_FDS + UT_SESSIONS_MAX];
} watch;

/* The descriptor is shared with a trainer, who may have made it blocking or emptied it: RWF_NOWAIT does not care. */
static void drain_submit_fd(ut_driver_session *s)
{
    uint64_t rings;
    struct iovec iov = {.iov_base = &rings, .iov_len = sizeof(rings)};
    ssize_t got = preadv2(s->submit_fd, &iov, 1, -1, RWF_NOWAIT);
    if (got < 0 && (errno == EOPNOTSUPP || errno == ENOSYS)) /* before Linux 5.8 */
        got = read(s->submit_fd, &rings, sizeof(rings));
    if (got < 0 && errno != EAGAIN && errno != EINTR)
        s->deaf = true;
}

static void watch_rebuild(watch *w, ut_driver *d)
{
    w->as_of = d->sessions_changed;
    w->count = FIXED_FDS;
    w->fds[0] = (struct pollfd){.fd = d->wake_fd, .events = POLLIN};
    for (unsigned i = 0; i < UT_SESSIONS_MAX; i++) {
        const ut_driver_session *s = &d->sessions[i];
        if (!s->used || s->deaf)
            continue;
        w->session[w->count] = (uint8_t)i;
        w->fds[w->count++] = (struct pollfd){.fd = s->submit_fd, .events = POLLIN};
    }
}

/* What ppoll said, turned into work: sockets to read or to write on again, sessions that rang. */
static void take_wakes(ut_driver *d, watch *w, bool readable[2])
{
    uint64_t pokes;
    if (w->fds[0].revents && read(d->wake_fd, &pokes, sizeof(pokes)) < 0)
        pokes = 0; /* somebody poked between two reads: it is a turn in any case */
    for (unsigned port = 0; port < 2; port++) {
        short events = w->fds[1 + port].revents;
        readable[port] |= (events & (POLLIN | POLLERR)) != 0; /* recvmmsg fetches an error, too */
        if (events & (POLLOUT | POLLERR))
            ut_sender_unblock(&d->sender, port);
    }
    if (w->as_of != d->sessions_changed) /* a descriptor may be another's by now; a ring that was not heard will be */
        return;
    for (unsigned i = FIXED_FDS; i < w->count; i++)
        if (w->fds[i].revents)
            d->rung |= UINT64_C(1) << w->session[i];
}

static void take_submissions(ut_driver *d)
{
    for (uint64_t rung = d->rung; rung; rung &= rung - 1) {
        unsigned i = (unsigned)__builtin_ctzll(rung);
        if (!d->sessions[i].used)
            continue;
        bool deaf = d->sessions[i].deaf;
        if (!deaf)
            drain_submit_fd(&d->sessions[i]);
        d->sessions_changed += d->sessions[i].deaf != deaf;
        ut_engine_submissions(d->engine, i, ut_driver_now());
    }
    d->rung = 0;
}

static void receive(ut_driver *d, unsigned port, bool *more)
{
    ut_socket *s = &d->sockets[port];
    const uint64_t drops = s->drops;
    unsigned n = ut_receive(&d->receiver, s, more);
    const ut_ns now = ut_driver_now();
    if (s->drops != drops)
        ut_engine_kernel_drops(d->engine, d->sockets[UT_PORT_DATA].drops + d->sockets[UT_PORT_FEEDBACK].drops);
    for (unsigned i = 0; i < n; i++) {
        const ut_datagrams *g = &d->receiver.got[i];
        ut_engine_input(d->engine, port, g->data, g->len, g->stride, g->ce, now);
    }
}

/* The next burst for a socket that wants one. While data is blocked, feedback goes on; while feedback is, nothing does,
 * for nobody can tell the engine to leave it out. */
static bool pull(ut_driver *d, ut_ns now)
{
    if (!ut_sender_wants(&d->sender, UT_PORT_FEEDBACK))
        return false;
    ut_burst *burst = ut_sender_slot(&d->sender);
    bool got = ut_sender_wants(&d->sender, UT_PORT_DATA) ? ut_engine_output(d->engine, now, burst)
                                                         : ut_engine_output_feedback(d->engine, now, burst);
    if (got)
        ut_sender_push(&d->sender);
    return got;
}

/* Sends a bounded number of bursts. Returns whether the engine may have more that could go now. */
static bool transmit(ut_driver *d)
{
    ut_sender_flush(&d->sender); /* what waited for room is older than anything else */
    for (unsigned batch = 0; batch < BATCHES_PER_ROUND; batch++) {
        const ut_ns now = ut_driver_now();
        unsigned pulled = 0;
        while (pulled < UT_SEND_QUEUE && pull(d, now))
            pulled++;
        ut_sender_flush(&d->sender);
        if (pulled < UT_SEND_QUEUE)
            return false;
    }
    return true;
}

void ut_loop_ring(ut_driver *d)
{
    const uint64_t one = 1;
    for (uint64_t due = ut_engine_take_wakeups(d->engine); due; due &= due - 1) {
        const ut_driver_session *s = &d->sessions[__builtin_ctzll(due)];
        if (!s->used)
            continue;
        /* If the last ring has not been heard yet, it will do for this receipt too. It also keeps a trainer that filled
         * the counter of its own eventfd, and made it blocking, from stopping the engine in write. */
        struct pollfd p = {.fd = s->complete_fd, .events = POLLIN};
        if (poll(&p, 1, 0) == 0 && write(s->complete_fd, &one, sizeof(one)) < 0)
            continue; /* the trainer's own doing; it will look when its deadline comes */
    }
}

void ut_loop_events(ut_driver *d)
{
    ut_event_queue *q = &d->events;
    const uint64_t one = 1;
    pthread_mutex_lock(&q->lock);
    const uint32_t before = q->count;
    while (q->count < UT_EVENTS_MAX &&
           ut_engine_poll_event(d->engine, &q->entries[(q->first + q->count) % UT_EVENTS_MAX]))
        q->count++;
    q->starved = q->count == UT_EVENTS_MAX;
    if (before == 0 && q->count > 0 && write(q->fd, &one, sizeof(one)) < 0)
        assert(errno == EAGAIN); /* it is ours alone, and holds 0 or 1 */
    pthread_mutex_unlock(&q->lock);
}

void ut_loop_poke(ut_driver *d)
{
    const uint64_t one = 1;
    if (write(d->wake_fd, &one, sizeof(one)) < 0)
        assert(errno == EAGAIN); /* full of pokes is poked, too */
}

/* One turn. Returns whether there is more to do at once. */
static bool turn(ut_driver *d, bool readable[2])
{
    bool sending = false;
    take_submissions(d);
    for (unsigned round = 0; round < ROUNDS_PER_TURN; round++) {
        const bool input = readable[UT_PORT_DATA] || readable[UT_PORT_FEEDBACK];
        /* Feedback first: it opens windows that the sending below can use. */
        if (readable[UT_PORT_FEEDBACK])
            receive(d, UT_PORT_FEEDBACK, &readable[UT_PORT_FEEDBACK]);
        if (readable[UT_PORT_DATA])
            receive(d, UT_PORT_DATA, &readable[UT_PORT_DATA]);
        if (!input && round > 0 && !sending)
            break;
        ut_engine_tick(d->engine, ut_driver_now());
        sending = transmit(d);
        ut_loop_ring(d);
    }
    ut_loop_events(d);
    return sending || readable[UT_PORT_DATA] || readable[UT_PORT_FEEDBACK];
}

/* When to wake without a packet or a ring. While its socket is full, feedback that is due stays due: POLLOUT is what we
 * wait for, and the timers are looked at now and then. */
static ut_ns sleep_until(ut_driver *d, bool busy)
{
    if (busy || ut_engine_has_work(d->engine))
        return 0;
    ut_ns wake = ut_engine_next_wake(d->engine);
    if (!ut_sender_wants(&d->sender, UT_PORT_FEEDBACK))
        wake = UT_MAX2(wake, ut_driver_now() + BLOCKED_SLEEP_NS);
    return wake;
}

static int sleep_and_watch(watch *w, ut_ns until)
{
    if (until == UT_NEVER)
        return ppoll(w->fds, w->count, NULL, NULL);
    ut_ns now = ut_driver_now();
    ut_ns left = until > now ? until - now : 0;
    struct timespec timeout = {.tv_sec = (time_t)(left / UT_SECOND), .tv_nsec = (long)(left % UT_SECOND)};
    return ppoll(w->fds, w->count, &timeout, NULL);
}

/* Takes the lock, after those who asked for it. At most once a turn: callers cannot keep the thread out. */
static void lock_standing_back(ut_driver *d)
{
    pthread_mutex_lock(&d->lock);
    if (__atomic_load_n(&d->waiting, __ATOMIC_SEQ_CST) > 0)
        pthread_cond_wait(&d->stood_back, &d->lock);
}

void *ut_loop_main(void *arg)
{
    ut_driver *d = arg;
    bool readable[2] = {false, false};
    watch w = {.as_of = UINT64_MAX};
    ut_place place;
    ut_place_init(&place, d->engine_config.seed);
    prctl(PR_SET_TIMERSLACK, TIMER_SLACK_NS, 0, 0, 0);
    lock_standing_back(d);
    while (!d->stopping) {
        const bool busy = turn(d, readable);
        ut_place_look(&place, ut_driver_now());
        if (w.as_of != d->sessions_changed)
            watch_rebuild(&w, d);
        for (unsigned port = 0; port < 2; port++) {
            const bool blocked = d->sender.queues[port].blocked;
            w.fds[1 + port] = (struct pollfd){.fd = d->sockets[port].fd, .events = POLLIN | (blocked ? POLLOUT : 0)};
        }
        const ut_ns until = sleep_until(d, busy);
        d->polls++;
        d->asleep = true;
        pthread_mutex_unlock(&d->lock);
        int woken = sleep_and_watch(&w, until);
        lock_standing_back(d);
        d->asleep = false;
        if (woken > 0)
            take_wakes(d, &w, readable);
    }
    pthread_mutex_unlock(&d->lock);
    ut_place_free(&place);
    return NULL;
}
