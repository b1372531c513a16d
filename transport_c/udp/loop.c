/* SPDX-License-Identifier: Apache-2.0
 *
 * The engine thread: a turn of work, then ppoll. Work is cut into short rounds and a turn into few rounds, so that no
 * flood of datagrams keeps the timers, the senders, the trainers or a control call waiting; what is left over makes the
 * next ppoll return at once.
 */
#define _GNU_SOURCE
#include "loop.h"
#include "core/base/bits.h"
#include "cpu.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
    ROUNDS_PER_TURN = 4, /* each at most one recvmmsg a socket, and BATCHES_PER_ROUND of sending */
    BATCHES_PER_ROUND = 8,
    BATCH_BYTES = 96 << 10, /* of data, after which no more is asked for: the kernel then reads it while it is warm */
    TIMER_SLACK_NS = 1000,  /* the kernel's default of 50 us is a burst at 10 Gbit/s */
    BLOCKED_SLEEP_NS = 100000, /* see sleep_until */
    WORK_TURNS = 64,           /* 32 MiB of passes, which usual ops do not need; not measured */
    SLACK_NS = 5000000,        /* how often round trips are looked at, which change slowly */
};

/* What the thread sleeps on: its own wake-up, the two sockets, and all bells in one. */
enum { WATCH_WAKE, WATCH_SOCKETS, WATCH_BELLS = WATCH_SOCKETS + 2, WATCHES };

/* Which sockets are not to be heard this time: that of data while it gathers until |gathered| (0: it does not), and
 * that of feedback then too, if what it lets go would have to wait for the link; else a sender may wait for just that.
 */
static void choose_deaf(const ut_driver *d, ut_ns gathered, bool deaf[2])
{
    deaf[UT_PORT_DATA] = gathered > 0;
    deaf[UT_PORT_FEEDBACK] = gathered > 0 && ut_sender_wake(&d->sender) != UT_NEVER;
}

static void watch(const ut_driver *d, const bool deaf[2], struct pollfd w[WATCHES])
{
    w[WATCH_WAKE] = (struct pollfd){.fd = d->wake_fd, .events = POLLIN};
    for (unsigned port = 0; port < 2; port++) {
        const bool blocked = d->sender.queues[port].blocked;
        const short events = (deaf[port] ? 0 : POLLIN) | (blocked ? POLLOUT : 0);
        w[WATCH_SOCKETS + port] = (struct pollfd){.fd = d->sockets[port].fd, .events = events};
    }
    w[WATCH_BELLS] = (struct pollfd){.fd = d->bells_fd, .events = POLLIN};
}

/* Notes who has rung since the last call. Every ring is told once, for the bells are watched by their edges: so there
 * is nothing to read from them, and nothing that a trainer leaves in them keeps the thread awake. */
static void hear_bells(ut_driver *d)
{
    struct epoll_event rung[UT_SESSIONS_MAX];
    const int n = epoll_wait(d->bells_fd, rung, UT_SESSIONS_MAX, 0);
    for (int i = 0; i < n; i++)
        d->rung |= UINT64_C(1) << rung[i].data.u32;
}

/* What ppoll said, turned into work: sockets to read or to write on again, sessions that rang. */
static void take_wakes(ut_driver *d, const struct pollfd w[WATCHES], bool readable[2])
{
    uint64_t pokes;
    if (w[WATCH_WAKE].revents && read(d->wake_fd, &pokes, sizeof(pokes)) < 0)
        pokes = 0; /* somebody poked between two reads: it is a turn in any case */
    for (unsigned port = 0; port < 2; port++) {
        short events = w[WATCH_SOCKETS + port].revents;
        readable[port] |= (events & (POLLIN | POLLERR)) != 0; /* recvmmsg fetches an error, too */
        if (events & (POLLOUT | POLLERR))
            ut_sender_unblock(&d->sender, port);
    }
    if (w[WATCH_BELLS].revents)
        hear_bells(d);
}

/* The data socket was looked at, and there was nothing: what comes from now on has not waited yet. */
static void note_clear(ut_driver *d, const struct pollfd w[WATCHES], int woken)
{
    const struct pollfd *data = &w[WATCH_SOCKETS + UT_PORT_DATA];
    if (data->events & POLLIN && (woken == 0 || (woken > 0 && data->revents == 0)))
        d->clear_at = ut_driver_now();
}

static void take_submissions(ut_driver *d)
{
    UT_FOR_BITS (i, d->rung)
        if (d->sessions[i].used)
            ut_engine_submissions(d->engine, (uint32_t)i, ut_driver_now());
    d->rung = 0;
}

/* Tells how long data may have lain unread: since the socket was last read or seen empty. What woke the thread has
 * waited as long as a timer would have, as far as can be known. */
static void tell_waited(ut_driver *d)
{
    ut_engine_waited(d->engine, d->slept ? (ut_ns)d->slept_late : ut_driver_now() - d->clear_at);
    d->slept = false;
}

static void receive(ut_driver *d, unsigned port, bool *more)
{
    ut_socket *s = &d->sockets[port];
    const uint64_t drops = s->drops;
    if (port == UT_PORT_DATA)
        tell_waited(d);
    unsigned n = ut_receive(&d->receiver, s, more);
    const ut_ns now = ut_driver_now();
    d->clear_at = port == UT_PORT_DATA ? now : d->clear_at;
    if (s->drops != drops)
        ut_engine_kernel_drops(d->engine, d->sockets[UT_PORT_DATA].drops + d->sockets[UT_PORT_FEEDBACK].drops);
    uint64_t packets = 0, messages = 0;
    for (unsigned i = 0; i < n; i++) {
        const ut_datagrams *g = &d->receiver.got[i];
        if (!ut_wire_is_feedback(ut_wire_kind(g->data, g->len))) { /* which says nothing of how data comes */
            packets += g->stride ? (g->len + g->stride - 1) / g->stride : 1;
            messages++;
        }
        ut_engine_from(d->engine, &g->from);
        ut_engine_input(d->engine, port, g->data, g->len, g->stride, g->ce, now);
    }
    if (port == UT_PORT_DATA)
        ut_coalesce_came(&d->coalesce, packets, messages, now);
}

/* The next burst for a socket that wants one. While data is blocked, feedback goes on; while feedback is, nothing does,
 * for nobody can tell the engine to leave it out. */
static bool pull(ut_driver *d, ut_ns now)
{
    if (!ut_sender_wants(&d->sender, UT_PORT_FEEDBACK))
        return false;
    ut_burst *burst = ut_sender_slot(&d->sender);
    ut_engine_limit_bursts(d->engine, ut_sender_burst(&d->sender) / d->engine_config.packet_bytes);
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
    ut_sender_look(&d->sender, ut_driver_now());
    for (unsigned batch = 0; batch < BATCHES_PER_ROUND; batch++) {
        const ut_ns now = ut_driver_now();
        unsigned pulled = 0;
        while (pulled < UT_SEND_QUEUE && d->sender.pushed < BATCH_BYTES && pull(d, now))
            pulled++;
        const bool full = pulled == UT_SEND_QUEUE || d->sender.pushed >= BATCH_BYTES;
        const bool enough = ut_sender_burst(&d->sender) == 0;
        ut_sender_flush(&d->sender);
        ut_sender_look(&d->sender, ut_driver_now());
        /* What was enough by count may have left at once. */
        if (!full && !(enough && ut_sender_wants(&d->sender, UT_PORT_DATA)))
            return false;
    }
    return true;
}

void ut_loop_ring(ut_driver *d)
{
    uint64_t due = d->unrung | ut_engine_take_wakeups(d->engine);
    if (due == 0)
        return;
    /* A bell that is full has been rung and not heard. Who hears it then must see the receipts that are there now, so
     * they go out before the kernel looks whether it is full. */
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    d->unrung = 0;
    UT_FOR_BITS (i, due) {
        ut_driver_session *s = &d->sessions[i];
        const ut_ns now = ut_driver_now();
        if (s->used && now < s->complete.at)
            d->unrung |= ut_bit((uint32_t)i);
        else if (s->used)
            ut_bell_ring(&s->complete, now);
    }
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
        ut_loop_ring(d); /* first: a trainer waits, and of an op that has ended hardly anything is left to send */
        sending = transmit(d);
    }
    ut_events_take(&d->events, d->engine, d->prompt_jobs, ut_driver_now());
    return sending || readable[UT_PORT_DATA] || readable[UT_PORT_FEEDBACK];
}

/* When to wake without a packet or a ring. Timers, those of deadlines among them, wait for data that gathers until
 * |gathered|, a millisecond at most, for a large op is far from its end then. While its socket is full, feedback
 * that is due stays due: POLLOUT is what we wait for, and the timers are looked at now and then. While enough data
 * stands in the host's own queue, data that is due stays due likewise. */
static ut_ns sleep_until(ut_driver *d, bool busy, ut_ns gathered)
{
    if (busy || ut_engine_has_work(d->engine))
        return 0;
    ut_ns wake = UT_MAX2(UT_MIN2(ut_engine_next_wake(d->engine), ut_events_due(&d->events)), gathered);
    UT_FOR_BITS (i, d->unrung)
        wake = UT_MIN2(wake, d->sessions[i].complete.at);
    const ut_ns now = ut_driver_now(), room = ut_sender_wake(&d->sender);
    if (!ut_sender_wants(&d->sender, UT_PORT_FEEDBACK) || (d->sender.queues[UT_PORT_DATA].blocked && wake <= now))
        return UT_MAX2(wake, now + BLOCKED_SLEEP_NS);
    return wake <= now && room != UT_NEVER ? room : UT_MIN2(wake, room);
}

/* What round trips take beyond the least, in jobs to which something came since the last look; the least of all peers,
 * for each has a window of its own. */
static void look_at_slack(ut_driver *d, ut_ns now)
{
    ut_ns least = UT_NEVER;
    if (now < d->slack_at)
        return;
    d->slack_at = now + SLACK_NS;
    for (uint32_t job = 0; job < UT_JOBS_MAX; job++) {
        const uint32_t hosts = d->job_memory[job] ? ut_engine_hosts(d->engine, job) : 0;
        uint64_t came = 0;
        ut_ns slack = UT_NEVER;
        for (uint32_t h = 0; h < hosts; h++) {
            ut_peer_stats p;
            if (ut_engine_peer_stats(d->engine, job, h, &p) != UT_OK || !p.up)
                continue;
            came += p.received_bytes;
            if (p.srtt_ns && p.base_rtt_ns)
                slack = UT_MIN2(slack, p.srtt_ns - UT_MIN2(p.base_rtt_ns, p.srtt_ns));
        }
        if (came != d->slack_seen[job])
            least = UT_MIN2(least, slack);
        d->slack_seen[job] = came;
    }
    d->coalesce.slack = least == UT_NEVER ? 0 : least;
}

/* Until when the data socket may be left alone; 0: it is to be heard. */
static ut_ns let_gather(ut_driver *d, bool busy)
{
    if (busy || ut_engine_has_work(d->engine))
        return 0;
    const ut_ns now = ut_driver_now();
    look_at_slack(d, now);
    const ut_ns until = ut_coalesce_until(&d->coalesce, ut_engine_awaited(d->engine), now);
    return ut_coalesce_join(&d->coalesce, until, ut_sender_wake(&d->sender));
}

/* Only what was ahead when the thread lay down says how late a timer wakes it; what was due by then is no sleep. */
static int sleep_watching(ut_driver *d, struct pollfd w[WATCHES], ut_ns until)
{
    const ut_ns now = ut_driver_now();
    const ut_ns left = until > now ? until - now : 0;
    const struct timespec timeout = {.tv_sec = (time_t)(left / UT_SECOND), .tv_nsec = (long)(left % UT_SECOND)};
    const int woken = ppoll(w, WATCHES, until == UT_NEVER ? NULL : &timeout, NULL);
    d->slept = left > 0;
    if (woken == 0 && d->slept)
        d->slept_late += ((int64_t)ut_time_after(ut_driver_now(), until) - d->slept_late) / 16;
    return woken;
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
    bool readable[2] = {false, false}, deaf[2];
    unsigned working = 0; /* turns in a row that left passes over buckets unfinished */
    struct pollfd w[WATCHES];
    ut_cpu cpu;
    ut_cpu_init(&cpu, d->engine_config.seed);
    prctl(PR_SET_TIMERSLACK, TIMER_SLACK_NS, 0, 0, 0);
    lock_standing_back(d);
    while (!d->stopping) {
        const bool busy = turn(d, readable);
        d->thread_moves += ut_cpu_look(&cpu, ut_driver_now());
        const ut_ns gathered = let_gather(d, busy);
        choose_deaf(d, gathered, deaf);
        watch(d, deaf, w);
        const ut_ns until = UT_MIN2(sleep_until(d, busy, gathered), gathered ? gathered : UT_NEVER);
        working = ut_engine_has_work(d->engine) ? working + 1 : 0;
        d->polls++;
        d->asleep = true;
        pthread_mutex_unlock(&d->lock);
        if (working > WORK_TURNS)
            sched_yield(); /* it has gone on for long: let trainers have the CPU, and their small ops */
        int woken = sleep_watching(d, w, until);
        note_clear(d, w, woken);
        lock_standing_back(d);
        d->asleep = false;
        if (woken > 0)
            take_wakes(d, w, readable);
        /* Whoever wakes late in a span reads what has gathered as well, rather than to wake once more soon after. */
        if (gathered && ut_driver_now() >= gathered - (gathered - d->coalesce.read) / 2)
            readable[UT_PORT_DATA] = true;
        readable[UT_PORT_FEEDBACK] |= deaf[UT_PORT_FEEDBACK];
    }
    pthread_mutex_unlock(&d->lock);
    ut_cpu_free(&cpu);
    return NULL;
}
