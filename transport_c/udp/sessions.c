/* SPDX-License-Identifier: Apache-2.0
 *
 * Sessions and the memory of their trainers. Each call checks what it was given, takes the lock, calls the engine and
 * wakes its thread.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/bits.h"
#include "loop.h"

enum { LET_GO_US = 100 }; /* a turn of the engine, about */

#define FORKED UT_ERR_CLOSED /* ut_driver_error says whose driver it is */

void *ut_driver_region_map(int fd, uint64_t bytes)
{
    struct stat st;
    if (fstat(fd, &st) < 0)
        return NULL;
    if (bytes == 0 || st.st_size < 0 || bytes > (uint64_t)st.st_size) {
        errno = EINVAL;
        return NULL;
    }
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return p == MAP_FAILED ? NULL : p;
}

int ut_driver_region_unmap(void *region, uint64_t bytes, int discard)
{
    const int result = region && discard ? madvise(region, bytes, MADV_REMOVE) : 0;
    if (region)
        munmap(region, bytes); /* which leaves errno alone: it does not fail */
    return result;
}

static bool is_cache_aligned(const void *p)
{
    return p && (uintptr_t)p % 64 == 0;
}

/* Keeps duplicates: the caller may close his, and the numbers be used again. Returns -1 and errno on failure. */
static int keep_fds(ut_driver_session *s, uint32_t job, int submit_fd, int complete_fd)
{
    int type;
    socklen_t len = sizeof(type);
    *s = (ut_driver_session){
        .job = job,
        .submit_fd = fcntl(submit_fd, F_DUPFD_CLOEXEC, 0),
        .complete.fd = fcntl(complete_fd, F_DUPFD_CLOEXEC, 0),
    };
    if (s->submit_fd < 0 || s->complete.fd < 0)
        return -1;
    return getsockopt(s->complete.fd, SOL_SOCKET, SO_TYPE, &type, &len);
}

/* From here on its rings are heard, also one that came earlier. */
static int listen_to(const ut_driver *d, uint32_t session, int submit_fd)
{
    struct epoll_event bell = {.events = EPOLLIN | EPOLLET, .data.u32 = session};
    return epoll_ctl(d->bells_fd, EPOLL_CTL_ADD, submit_fd, &bell);
}

int ut_driver_session_add(ut_driver *d, uint32_t job, void *submissions, void *completions, void *arena,
                          uint64_t arena_bytes, int submit_fd, int complete_fd, uint64_t first_op_seq, uint32_t place)
{
    if (!ut_driver_enter(d))
        return FORKED;
    if (!ut_driver_has_job(d, job))
        return ut_driver_leave_no_job(d, job);
    if (!is_cache_aligned(submissions) || !is_cache_aligned(completions) || !is_cache_aligned(arena))
        return ut_driver_leave_failing(d, UT_ERR_ARGUMENT,
                                       "session regions %p, %p, %p: must be mapped, 64-byte aligned", submissions,
                                       completions, arena);
    ut_driver_session fds;
    if (keep_fds(&fds, job, submit_fd, complete_fd) < 0) {
        const int why = errno;
        ut_driver_close_session(d, &fds);
        return ut_driver_leave_failing(d, UT_ERR_SYSTEM, "keep session eventfd %d and socket %d: %s", submit_fd,
                                       complete_fd, strerror(why));
    }
    const ut_session_memory memory = {submissions, completions, arena, arena_bytes, place, 0};
    uint32_t session;
    const int result = ut_engine_session_add(d->engine, job, &memory, first_op_seq, &session);
    if (result != UT_OK) {
        ut_driver_close_session(d, &fds);
        return ut_driver_leave_failing(d, result, "session of job %" PRIu32 ", first_op_seq %" PRIu64 ": %s", job,
                                       first_op_seq, ut_strerror(result));
    }
    assert(session < UT_SESSIONS_MAX && !d->sessions[session].used);
    if (listen_to(d, session, fds.submit_fd) < 0) {
        const int why = errno;
        ut_engine_session_remove(d->engine, session, ut_driver_now());
        ut_driver_close_session(d, &fds);
        return ut_driver_leave_failing(d, UT_ERR_SYSTEM, "listen to session eventfd %d: %s", submit_fd, strerror(why));
    }
    fds.used = true;
    d->sessions[session] = fds;
    return ut_driver_leave_poking(d, (int)session);
}

void ut_driver_drop_session(ut_driver *d, uint32_t session)
{
    ut_engine_session_remove(d->engine, session, ut_driver_now());
    ut_driver_close_session(d, &d->sessions[session]);
}

int ut_driver_session_remove(ut_driver *d, uint32_t session)
{
    if (!ut_driver_enter(d))
        return FORKED;
    if (session >= UT_SESSIONS_MAX || !d->sessions[session].used)
        return ut_driver_leave_failing(d, UT_ERR_UNKNOWN, "session %" PRIu32 ": there is no such session", session);
    const uint32_t job = d->sessions[session].job;
    ut_driver_drop_session(d, session);
    while (!ut_engine_has_let_go(d->engine, job)) { /* the thread's next turns see to it */
        (void)ut_driver_leave_poking(d, UT_OK);
        usleep(LET_GO_US);
        (void)ut_driver_enter(d);
    }
    return ut_driver_leave_poking(d, UT_OK);
}
