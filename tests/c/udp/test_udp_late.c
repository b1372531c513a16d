/* SPDX-License-Identifier: Apache-2.0
 *
 * How late the thread says that it reads: the loop itself, with a clock that goes on by a microsecond with every look,
 * on a driver whose own thread is kept out by its lock.
 */
#define _GNU_SOURCE
#include "check.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include "udp/loop.h"

static ut_ns clock_now;
static ut_ns said[64], read_at[64]; /* of each reading of data: what the engine was told, and when it was */
static unsigned sayings, readings;

static ut_ns slow_clock(void)
{
    return clock_now += UT_US;
}

static void note_saying(ut_engine *e, ut_ns waited)
{
    said[sayings++ % 64] = waited;
    ut_engine_waited(e, waited);
}

static unsigned note_reading(ut_receiver *r, ut_socket *s, bool *more)
{
    read_at[readings++ % 64] = clock_now;
    return ut_receive(r, s, more);
}

/* What came takes a millisecond to be handled. */
static void handle(ut_coalesce *c, uint64_t packets, uint64_t messages, ut_ns now)
{
    ut_coalesce_came(c, packets, messages, now);
    clock_now += UT_MS;
}

#define ut_driver_now slow_clock
#define ut_engine_waited note_saying
#define ut_receive note_reading
#define ut_coalesce_came handle
#define ut_loop_main own_loop_main
#define ut_loop_ring own_loop_ring
#define ut_loop_events own_loop_events
#define ut_loop_poke own_loop_poke
#include "udp/loop.c"
#undef ut_driver_now

static ut_driver *driver;

static void open_locked(void)
{
    char why[200] = "";
    driver = ut_driver_open(&(ut_driver_config){.bind = "127.0.0.1", .seed = 1}, why, sizeof why);
    CHECK_MSG(driver != NULL, "%s", why);
    CHECK(ut_driver_enter(driver));
    clock_now = UT_SECOND;
    sayings = readings = 0;
}

static void close_locked(void)
{
    ut_driver_leave(driver);
    ut_driver_close(driver);
}

/* Waits, five seconds at most, until the driver's own thread stands before its lock, which this one has. What wakes it
 * has it write down how it slept, and a busy machine may wake it late. */
static void await_own_thread(void)
{
    for (unsigned i = 0; i < 5000; i++) {
        unsigned others = 0, standing = 0;
        DIR *tasks = opendir("/proc/self/task");
        CHECK(tasks != NULL);
        for (const struct dirent *task; tasks != NULL && (task = readdir(tasks)) != NULL;) {
            if (task->d_name[0] == '.' || atoi(task->d_name) == gettid())
                continue;
            char path[300], call[32] = "";
            snprintf(path, sizeof path, "/proc/self/task/%s/syscall", task->d_name);
            FILE *file = fopen(path, "r");
            others++;
            standing += file != NULL && fgets(call, sizeof call, file) != NULL && atoi(call) == SYS_futex;
            if (file != NULL)
                fclose(file);
        }
        closedir(tasks);
        if (others == 1 && standing == 1)
            return;
        usleep(1000);
    }
    CHECK_MSG(false, "the driver's own thread did not come to its lock");
}

/* |n| datagrams that no engine takes for its own. On loopback they lie in the socket when this returns. */
static void flood(unsigned n)
{
    const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    const struct sockaddr_in to = {.sin_family = AF_INET,
                                   .sin_port = htons(driver->sockets[UT_PORT_DATA].port),
                                   .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    for (unsigned i = 0; i < n; i++)
        CHECK_EQ(sendto(fd, "?", 1, 0, (const struct sockaddr *)&to, sizeof to), 1);
    close(fd);
    await_own_thread();
    driver->slept = false;
}

/* A turn has up to four readings. What the next turn finds has waited since the last of them, not since the first. */
static void turn__data_has_waited_since_the_last_reading(void)
{
    open_locked();
    flood(ROUNDS_PER_TURN * UT_RECV_MESSAGES + 1);
    bool readable[2] = {[UT_PORT_DATA] = true};
    CHECK(turn(driver, readable));
    CHECK_EQ(readings, ROUNDS_PER_TURN);
    (void)turn(driver, readable);
    CHECK_EQ(sayings, ROUNDS_PER_TURN + 1);
    CHECK_EQ(readings, sayings);
    for (unsigned i = 1; i < sayings; i++) {
        const ut_ns between = read_at[i] - read_at[i - 1];
        CHECK_MSG(said[i] <= between && said[i] + 10 * UT_US >= UT_MS, "reading %u, %lu ns after the last, said %lu", i,
                  (unsigned long)between, (unsigned long)said[i]);
    }
    close_locked();
}

/* What woke the thread came while it slept, which only the first reading after that can say. */
static void turn__after_a_sleep_data_is_as_late_as_a_timer(void)
{
    open_locked();
    flood(UT_RECV_MESSAGES + 1);
    driver->slept = true;
    driver->slept_late = 7 * UT_US;
    bool readable[2] = {[UT_PORT_DATA] = true};
    (void)turn(driver, readable);
    CHECK_EQ(sayings, 2);
    CHECK_EQ(said[0], 7 * UT_US);
    CHECK(said[1] >= UT_MS);
    close_locked();
}

/* A timer that was due before the thread lay down says nothing of how late timers are, however long ago that was. The
 * clock goes on by a microsecond with every look: before the sleep, and after it. */
static void sleep_watching__a_timer_of_the_past_is_no_sleep(void)
{
    static const struct {
        int64_t ahead; /* of the timer, when the thread lies down */
        bool slept;
        int64_t late;
    } rows[] = {{-(int64_t)UT_SECOND, false, 160}, {0, false, 160}, {500, true, 160 + (500 - 160) / 16}};
    open_locked();
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct pollfd w[WATCHES];
        for (unsigned k = 0; k < WATCHES; k++)
            w[k] = (struct pollfd){.fd = -1};
        driver->slept = !rows[i].slept;
        driver->slept_late = 160;
        CHECK_EQ(sleep_watching(driver, w, (ut_ns)((int64_t)clock_now + UT_US + rows[i].ahead)), 0);
        CHECK_EQ(driver->slept, rows[i].slept);
        CHECK_EQ(driver->slept_late, rows[i].late);
    }
    close_locked();
}

/* Nothing was there when the thread looked: what came after that has waited since then at most. */
static void note_clear__what_was_seen_empty_has_not_waited(void)
{
    static const struct {
        const char *what;
        bool deaf;
        short revents;
        int woken;
        bool clear;
    } rows[] = {
        {"nothing at all", false, 0, 0, true},
        {"a bell", false, 0, 1, true},
        {"data", false, POLLIN, 1, false},
        {"an error to fetch", false, POLLERR, 1, false},
        {"data was not to be heard", true, 0, 0, false},
        {"a signal, before anything was looked at", false, 0, -1, false},
    };
    open_locked();
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct pollfd w[WATCHES];
        watch(driver, (bool[2]){[UT_PORT_DATA] = rows[i].deaf}, w);
        w[WATCH_SOCKETS + UT_PORT_DATA].revents = rows[i].revents;
        driver->clear_at = 0;
        note_clear(driver, w, rows[i].woken);
        CHECK_MSG((driver->clear_at != 0) == rows[i].clear, "%s", rows[i].what);
    }
    close_locked();
}

/* While data gathers, feedback may wait as well, but only where what it lets go would wait for the link. */
static void choose_deaf__feedback_is_heard_where_it_may_be_what_is_waited_for(void)
{
    static const struct {
        const char *what;
        ut_ns gathered;
        bool full; /* enough stands in the host's own queue */
        bool data, feedback;
    } rows[] = {
        {"nothing gathers", 0, false, false, false},
        {"nor while the link has enough", 0, true, false, false},
        {"data gathers, and more could leave", 2 * UT_SECOND, false, true, false},
        {"data gathers, and nothing could leave", 2 * UT_SECOND, true, true, true},
    };
    open_locked();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        bool deaf[2];
        struct pollfd w[WATCHES];
        driver->sender.backlog =
            (ut_backlog){.rate = 100000000, .queued = 1 << 20, .at = UT_SECOND, .bounded = true, .full = rows[i].full};
        choose_deaf(driver, rows[i].gathered, deaf);
        watch(driver, deaf, w);
        CHECK_MSG(deaf[UT_PORT_DATA] == rows[i].data && deaf[UT_PORT_FEEDBACK] == rows[i].feedback, "%s", rows[i].what);
        for (unsigned port = 0; port < 2; port++)
            CHECK_MSG(!(w[WATCH_SOCKETS + port].events & POLLIN) == deaf[port], "%s, port %u", rows[i].what, port);
    }
    driver->sender.backlog = (ut_backlog){0};
    close_locked();
}

/* Timers wait for the data that gathers, but the link does not: it would run dry. */
static void sleep_until__timers_wait_while_data_gathers(void)
{
    open_locked();
    const ut_ns soon = UT_SECOND + 50 * UT_US, gathered = UT_SECOND + 250 * UT_US;
    driver->events.due = soon;
    CHECK_EQ(sleep_until(driver, false, 0), soon);
    CHECK_EQ(sleep_until(driver, false, gathered), gathered);
    CHECK_EQ(sleep_until(driver, true, gathered), 0);
    driver->sender.backlog =
        (ut_backlog){.rate = 1000000000, .queued = 100000, .at = UT_SECOND, .bounded = true, .full = true};
    const ut_ns room = ut_sender_wake(&driver->sender);
    CHECK(room < gathered);
    CHECK_EQ(sleep_until(driver, false, gathered), room);
    driver->sender.backlog = (ut_backlog){0};
    driver->events.due = UT_NEVER;
    close_locked();
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(turn__data_has_waited_since_the_last_reading);
    RUN(turn__after_a_sleep_data_is_as_late_as_a_timer);
    RUN(sleep_watching__a_timer_of_the_past_is_no_sleep);
    RUN(note_clear__what_was_seen_empty_has_not_waited);
    RUN(choose_deaf__feedback_is_heard_where_it_may_be_what_is_waited_for);
    RUN(sleep_until__timers_wait_while_data_gathers);
    return check_end();
}
