/* SPDX-License-Identifier: Apache-2.0
 *
 * What must not hurt a running driver: strangers' datagrams, wild or dying trainers, jobs that go away, callers in a
 * hurry, a fork.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "cluster.h"

/* ---- trouble ---- */

static void garbage__is_counted_never_answered(void)
{
    cluster_open(2);
    all_reduce(2, 0, 100);
    const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    ut_driver_stats before, s;
    ut_driver_get_stats(hosts[0].driver, &before);
    enum { SENT = 300 };
    for (unsigned i = 0; i < SENT; i++) {
        uint8_t bytes[2000];
        struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        to.sin_port = htons(i & 1 ? hosts[0].info.data_port : hosts[0].info.feedback_port);
        const size_t len = i % 3 == 0 ? 0 : check_below(sizeof(bytes));
        for (size_t k = 0; k < len; k++)
            bytes[k] = (uint8_t)check_random();
        CHECK_EQ(sendto(fd, bytes, len, 0, (struct sockaddr *)&to, sizeof(to)), len);
    }
    for (unsigned i = 0; i < 100; i++) {
        ut_driver_get_stats(hosts[0].driver, &s);
        if (s.engine.malformed + s.engine.bad_checksum + s.engine.unknown >= SENT)
            break;
        usleep(20000);
    }
    CHECK_EQ(s.engine.malformed + s.engine.bad_checksum + s.engine.unknown, SENT);
    uint8_t answer;
    CHECK(recv(fd, &answer, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN);
    close(fd);
    all_reduce(2, 1, 1000);
    ut_driver_get_stats(hosts[0].driver, &s);
    CHECK_EQ(s.engine.bad_submissions, 0);
    cluster_close(2);
}

static void set_blocking(int fd)
{
    CHECK_EQ(fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK), 0);
}

/* Looks for a receipt without listening to the bell. */
static bool take_unheard(trainer *t, ut_receipt *ret)
{
    for (unsigned i = 0; i < PATIENCE_MS; i++) {
        if (ut_ring_take_completion(t->submissions, t->completions, ret))
            return true;
        usleep(1000);
    }
    return false;
}

/* A trainer that never listens, sends what nobody reads, or shuts its end: it may hurt itself, never the engine. A
 * thread stuck in a call would hold the lock, and the next call from here would hang. */
static void complete_fd__cannot_stop_the_engine(void)
{
    enum { UNHEARD, TALKING, SHUT, CLOSED, DEEDS, OPS = 50 };
    ut_driver_stats s;
    ut_receipt r;
    for (unsigned deed = 0; deed < DEEDS; deed++) {
        cluster_open(1);
        trainer *t = &hosts[0].trainer;
        set_blocking(t->complete_fd);
        if (deed == TALKING)
            CHECK(send(t->complete_fd, &r, sizeof(r), MSG_NOSIGNAL) < 0 && errno == EPIPE);
        if (deed == SHUT)
            CHECK_EQ(shutdown(t->complete_fd, SHUT_RDWR), 0);
        if (deed == CLOSED)
            CHECK_EQ(dup2(t->submit_fd, t->complete_fd), t->complete_fd);
        for (uint64_t op = 0; op < OPS; op++) { /* more than a bell holds */
            submit(t, op, 100, PATIENCE_MS);
            if (!CHECK_MSG(take_unheard(t, &r), "deed %u: no receipt of op %" PRIu64, deed, op))
                break;
            ut_driver_get_stats(hosts[0].driver, &s);
            CHECK_EQ(s.engine.ops_complete, op + 1);
        }
        CHECK(wait_idle(hosts[0].driver));
        cluster_close(1);
    }
}

/* The eventfd is the trainer's as much as the driver's: filled, emptied and blocking it rings, or not, and no more. */
static void submit_fd__cannot_stop_the_engine(void)
{
    ut_driver_stats s;
    uint64_t rings, full = UINT64_MAX - 1;
    cluster_open(1);
    trainer *t = &hosts[0].trainer;
    set_blocking(t->submit_fd);
    for (unsigned i = 0; i < 20000; i++) { /* rings, and takes it back before the engine has heard it, if it can */
        ring(t);
        CHECK_EQ(read(t->submit_fd, &rings, sizeof(rings)), sizeof(rings));
    }
    ut_driver_get_stats(hosts[0].driver, &s);
    all_reduce(1, 0, 100);
    CHECK_EQ(read(t->submit_fd, &rings, sizeof(rings)), sizeof(rings));
    CHECK_EQ(write(t->submit_fd, &full, sizeof(full)), sizeof(full)); /* as readable as can be, for good */
    CHECK(wait_idle(hosts[0].driver));
    cluster_close(1);
}

/* Whoever goes takes his bell along, though he holds its file still: a ring of his is then nobody's, and least of all
 * that of the session which got his number. */
static void submit_fd__of_a_session_that_is_gone(void)
{
    ut_driver_stats before, after;
    cluster_open(1);
    trainer gone = hosts[0].trainer;
    const int bell = dup(gone.submit_fd);
    CHECK_EQ(ut_driver_session_remove(hosts[0].driver, (uint32_t)gone.session), UT_OK);
    let_go(&hosts[0]);
    attach(&hosts[0], 0);
    CHECK_EQ(hosts[0].trainer.session, gone.session);
    CHECK(wait_idle(hosts[0].driver));
    ut_driver_get_stats(hosts[0].driver, &before);
    gone.submit_fd = bell;
    for (unsigned i = 0; i < 100; i++)
        ring(&gone);
    usleep(50000);
    ut_driver_get_stats(hosts[0].driver, &after);
    CHECK_MSG(after.polls - before.polls < 5, "%" PRIu64 " turns for rings of nobody", after.polls - before.polls);
    close(bell);
    all_reduce(1, 0, 100);
    cluster_close(1);
}

/* A trainer dies in the middle: its memory is gone the moment session_remove returns. Any touch of it is a crash. */
static void session_remove__lets_go_at_once(void)
{
    for (unsigned run = 0; run < 10; run++) {
        ut_receipt r;
        check_reseed(run);
        cluster_open(2);
        for (unsigned h = 0; h < 2; h++)
            submit(&hosts[h].trainer, 0, ARENA / sizeof(float), 300);
        usleep((unsigned)check_below(2000));
        CHECK_EQ(ut_driver_session_remove(hosts[0].driver, (uint32_t)hosts[0].trainer.session), UT_OK);
        let_go(&hosts[0]);
        if (wait_receipt(&hosts[1].trainer, &r)) /* the other host has a result by its deadline, come what may */
            CHECK_MSG(r.status != UT_FAILED, "run %u: error %d", run, r.error);
        cluster_close(2);
    }
}

static void job_remove__tells_its_trainers(void)
{
    ut_receipt r;
    cluster_open(2);
    submit(&hosts[0].trainer, 0, 1000, PATIENCE_MS); /* host 1 never calls */
    for (unsigned i = 0; i < 1000; i++) {
        ut_driver_stats s;
        ut_driver_get_stats(hosts[0].driver, &s);
        if (s.engine.oldest_open_ns != UT_NEVER)
            break;
        usleep(1000);
    }
    CHECK_EQ(ut_driver_job_remove(hosts[0].driver, (uint32_t)hosts[0].job), UT_OK);
    struct pollfd p = {.fd = hosts[0].trainer.complete_fd, .events = POLLIN};
    CHECK_EQ(poll(&p, 1, 0), 1);
    if (CHECK_EQ(ut_ring_take_completion(hosts[0].trainer.submissions, hosts[0].trainer.completions, &r), 1)) {
        CHECK_EQ(r.status, UT_FAILED);
        CHECK_EQ(r.error, UT_ERR_CLOSED);
    }
    CHECK_EQ(ut_driver_session_remove(hosts[0].driver, (uint32_t)hosts[0].trainer.session), UT_ERR_UNKNOWN);
    cluster_close(2);
}

/* Closing, and calls from outside, while the thread has its hands full. */
static void busy__lets_callers_in(void)
{
    for (unsigned run = 0; run < 5; run++) {
        cluster_open(3);
        for (unsigned h = 0; h < 3; h++)
            for (uint64_t op = 0; op < 4; op++)
                submit(&hosts[h].trainer, op, ARENA / sizeof(float), 2000);
        for (unsigned i = 0; i < 200; i++) {
            ut_driver_stats s;
            ut_driver_get_stats(hosts[i % 3].driver, &s);
        }
        cluster_close(3);
    }
}

/* A fork has the memory but not the thread: calls say so, close neither hangs nor takes anything from the parent. */
static void fork__leaves_the_driver_to_the_parent(void)
{
    cluster_open(2);
    all_reduce(2, 0, 100);
    const pid_t child = fork();
    if (child == 0) {
        const ut_job_config config = job_config(2, 0);
        const char *want = "the driver belongs to process ";
        const bool refused = ut_driver_job_add(hosts[0].driver, &config) == UT_ERR_CLOSED &&
                             strncmp(ut_driver_error(hosts[0].driver), want, strlen(want)) == 0;
        ut_driver_close(hosts[0].driver);
        _exit(refused ? 0 : 1);
    }
    int status = -1;
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    all_reduce(2, 1, 100);
    cluster_close(2);
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    alarm(240); /* a hang is a failure, not a night */
    RUN(garbage__is_counted_never_answered);
    RUN(complete_fd__cannot_stop_the_engine);
    RUN(submit_fd__cannot_stop_the_engine);
    RUN(submit_fd__of_a_session_that_is_gone);
    RUN(session_remove__lets_go_at_once);
    RUN(job_remove__tells_its_trainers);
    RUN(busy__lets_callers_in);
    RUN(fork__leaves_the_driver_to_the_parent);
    return check_end();
}
