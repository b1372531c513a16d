/* SPDX-License-Identifier: Apache-2.0
 *
 * The driver as the daemon uses it: opening, what its calls refuse and say, ops over every kind of socket, events,
 * idleness. What is asserted is what happened, not when.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <sys/stat.h>

#include "cluster.h"

/* ---- opening and closing ---- */

static void open__names_what_is_wrong(void)
{
    ut_driver *first = open_driver();
    ut_driver_info info;
    char taken[100];
    ut_driver_get_info(first, &info);
    snprintf(taken, sizeof(taken), "bind 127.0.0.1 UDP port %u: Address already in use", (unsigned)info.data_port);
    const struct {
        ut_driver_config config;
        const char *sentence;
    } rows[] = {
        {{.bind = "localhost"}, "bind localhost: not a numeric IPv4 or IPv6 address"},
        {{.bind = ""}, "bind : not a numeric IPv4 or IPv6 address"},
        {{.bind = "127.0.0.1", .packet_bytes = 1473}, "packet_bytes 1473: must be a multiple of 8 from 96 to 9216"},
        {{.bind = "127.0.0.1", .packet_bytes = 88}, "packet_bytes 88: must be a multiple of 8 from 96 to 9216"},
        {{.bind = "127.0.0.1", .packet_bytes = 9224}, "packet_bytes 9224: must be a multiple of 8 from 96 to 9216"},
        {{.bind = "127.0.0.1", .data_port = info.data_port}, taken},
        {{.bind = "192.0.2.1"}, "bind 192.0.2.1 UDP port 0: Cannot assign requested address"},
        {{.bind = "127.0.0.1", .receive_buffer = 8192},
         "receive_buffer 8192: must be at least 36864, as granted by the kernel"},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char error[256];
        CHECK_MSG(ut_driver_open(&rows[i].config, error, sizeof(error)) == NULL, "row %zu opened", i);
        CHECK_STR(error, rows[i].sentence);
    }
    ut_driver_close(first);
    ut_driver_close(NULL);
}

/* Descriptors of this process that survive an exec, and all of them. */
static unsigned count_fds(unsigned *ret_inherited)
{
    unsigned all = 0;
    *ret_inherited = 0;
    DIR *dir = opendir("/proc/self/fd");
    for (struct dirent *e; dir && (e = readdir(dir)) != NULL;) {
        int flags = fcntl(atoi(e->d_name), F_GETFD);
        all += flags >= 0;
        *ret_inherited += flags >= 0 && !(flags & FD_CLOEXEC);
    }
    closedir(dir);
    return all;
}

/* By their names, for to look at a descriptor that the driver's thread may be opening is a race. */
static unsigned count_sockets(void)
{
    unsigned sockets = 0;
    for (int fd = 0; fd < 1024; fd++) {
        char path[32], to[16] = "";
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        sockets += readlink(path, to, sizeof to - 1) > 0 && strncmp(to, "socket:", 7) == 0;
    }
    return sockets;
}

static void open__without_sockets_for_jobs_of_one_host(void)
{
    char error[256];
    const unsigned before = count_sockets();
    ut_driver *d = ut_driver_open(&(ut_driver_config){.gso = 1, .gro = 1}, error, sizeof(error));
    CHECK_MSG(d != NULL, "%s", error);
    ut_driver_info info;
    ut_driver_get_info(d, &info);
    CHECK(info.data_port == 0 && info.feedback_port == 0 && !info.gso && !info.gro);
    CHECK(info.packet_bytes == 1472 && info.receive_buffer == 8 << 20 && info.send_buffer == 512 << 10);
    CHECK_EQ(count_sockets(), before);
    ut_job_config job = {.hosts = 2, .local_ranks = 1, .packet_bytes = 1472, .bucket_bytes_max = 1 << 20};
    CHECK(ut_driver_job_add(d, &job) == UT_ERR_ARGUMENT);
    CHECK_STR(ut_driver_error(d), "hosts 2: must be 1, as this engine has no sockets (bind)");
    job.hosts = 1;
    CHECK(ut_driver_job_add(d, &job) == 0);
    CHECK(ut_driver_job_remove(d, 0) == UT_OK);
    ut_driver_close(d);
}

static void close__gives_all_back(void)
{
    unsigned inherited_before, inherited;
    const unsigned before = count_fds(&inherited_before);
    cluster_open(2);
    CHECK(count_fds(&inherited) > before);
    CHECK_EQ(inherited, inherited_before); /* all close-on-exec */
    all_reduce(2, 0, 1000);
    cluster_close(2);
    CHECK_EQ(count_fds(&inherited), before);
}

static bool read_line(const char *path, const char *prefix, char *ret, int len)
{
    FILE *f = fopen(path, "re");
    bool found = false;
    while (f && !found && fgets(ret, len, f))
        found = strncmp(ret, prefix, strlen(prefix)) == 0;
    if (f)
        fclose(f);
    return found;
}

/* Signals belong to Python's main thread: the engine's must block them all. */
static void thread__has_a_name_and_no_signals(void)
{
    ut_driver *d = open_driver();
    unsigned engines = 0;
    CHECK(wait_idle(d)); /* past its own beginnings */
    DIR *dir = opendir("/proc/self/task");
    for (struct dirent *e; dir && (e = readdir(dir)) != NULL;) {
        char path[300], line[200];
        snprintf(path, sizeof(path), "/proc/self/task/%s/comm", e->d_name);
        if (!read_line(path, "ut-engine", line, sizeof(line)))
            continue;
        engines++;
        snprintf(path, sizeof(path), "/proc/self/task/%s/status", e->d_name);
        if (!CHECK(read_line(path, "SigBlk:", line, sizeof(line))))
            continue;
        const uint64_t blocked = strtoull(line + 7, NULL, 16), usual = 0x7fffffff & ~(1ull << 8) & ~(1ull << 18);
        CHECK_HEX(blocked & usual, usual); /* all of 1 to 31 but KILL and STOP */
    }
    closedir(dir);
    CHECK_EQ(engines, 1);
    ut_driver_close(d);
}

/* ---- calls ---- */

#define REFUSED(call, code, sentence)                                                                                  \
    do {                                                                                                               \
        CHECK_EQ((call), (code));                                                                                      \
        CHECK_STR(ut_driver_error(d), (sentence));                                                                     \
    } while (0)
#define BAD_JOB(field, value, sentence)                                                                                \
    do {                                                                                                               \
        ut_job_config bad = good;                                                                                      \
        bad.field = (value);                                                                                           \
        REFUSED(ut_driver_job_add(d, &bad), UT_ERR_ARGUMENT, sentence);                                                \
    } while (0)

/* Codes that the core does not have, or that float32 does not bear. */
static void coded__check_and_say(void)
{
    ut_job_config good = {.hosts = 20,
                          .local_ranks = 1,
                          .packet_bytes = 1472,
                          .bucket_bytes_max = 1 << 10,
                          .options = {.policy = UT_POLICY_CODED, .stragglers = 1, .code = UT_CODE_LINEAR}};
    ut_driver *d = open_driver();
    BAD_JOB(options.code, 3, "code 3, exact 0: must be below 3, 3");
    good.options.children = 4;
    BAD_JOB(options.stragglers, 1, "children 4: 20 hosts, of a rank each, must fill such a tree");
    BAD_JOB(options.stragglers, 4, "stragglers 4: must be what a linear code of 4 hosts bears");
    good.options.children = 0;
    BAD_JOB(options.exact, UT_EXACT_NO, "exact 2: must be 0 or 1 with a linear code, and in a tree");
    BAD_JOB(options.stragglers, 6, "stragglers 6: must be what a linear code of 20 hosts bears");
    BAD_JOB(options.stragglers, 20, "stragglers 20: must be what a linear code of 20 hosts bears");
    good.options.code = 0;
    BAD_JOB(options.stragglers, 2, "stragglers 2: must be one less than a divisor of the 20 hosts");
    good.options.code = UT_CODE_LINEAR;
    BAD_JOB(world, 21, "world 21: must be 20 in a coded job, a rank on each host");
    CHECK_EQ(ut_driver_job_add(d, &good), 0);
    ut_driver_close(d);
}

/* What depends on what comes first has no place in a deterministic job. */
static void deterministic__check_and_say(void)
{
    static const ut_job_config good = {
        .hosts = 3, .local_ranks = 1, .packet_bytes = 1472, .bucket_bytes_max = 1024, .options.deterministic = 2};
    ut_driver *d = open_driver();
    BAD_JOB(options.deterministic, 3, "deterministic 3: must be 0 to 2");
    BAD_JOB(options.algorithm, UT_BCUBE, "algorithm 3: must not be BCube in a deterministic job");
    BAD_JOB(options.hadamard, UT_HADAMARD_AUTO, "hadamard 3: must not be auto in a deterministic job");
    CHECK_EQ(ut_driver_job_add(d, &good), 0);
    ut_driver_close(d);
}

/* What goes with a policy, and what does not; the engine itself refuses all that is not named. */
static void partial__check_and_say(void)
{
    static const ut_job_config good = {.hosts = 2,
                                       .local_ranks = 1,
                                       .world = 3,
                                       .packet_bytes = 1472,
                                       .bucket_bytes_max = 1 << 20,
                                       .options.policy = UT_POLICY_PROBE};
    ut_driver *d = open_driver();
    BAD_JOB(options.policy, 9, "policy 9: must be 0 to 8");
    BAD_JOB(options.stragglers, 1, "stragglers, children, code, exact: must be 0 in a job that is not coded");
    BAD_JOB(options.quorum, 4, "quorum 4: must be 0 (half) or 1 to the job's ranks, which are 3");
    BAD_JOB(options.probes, 4, "probes 4: must be 0 (2) or 1 to the job's ranks, which are 3");
    BAD_JOB(options.algorithm, UT_RING, "algorithm 2: must be 0 or 1 (TAR) in a job with a policy");
    BAD_JOB(options.deterministic, UT_DETERMINISTIC_YES, "deterministic 2: must be 0 to 1");
    BAD_JOB(options.hadamard, UT_HADAMARD_ON, "hadamard 2: must be 0 or 1 (off) in a job with a policy");
    BAD_JOB(ranks_of[1], 2, "ranks_of 0, of host 0: must be 1 to 16");
    BAD_JOB(ranks_of[0], 3, "ranks_of 0, of host 1: must be 1 to 16");
    BAD_JOB(ranks_of[1], 17, "ranks_of 17, of host 1: must be 1 to 16");
    BAD_JOB(local_ranks, 3, "world 3: must leave each of 1 other hosts 1 to 16 of its ranks");
    BAD_JOB(world, 18, "world 18: must leave each of 1 other hosts 1 to 16 of its ranks");
    CHECK_EQ(ut_driver_job_add(d, &good), 0);
    ut_job_options o = good.options;
    o.policy = UT_POLICY_NONE;
    REFUSED(ut_driver_options_fit(d, 0, &o), UT_ERR_ARGUMENT, "policy 1: must be 2 to 7 in this job, which has one");
    o.policy = UT_POLICY_SOLO;
    CHECK_EQ(ut_driver_options_fit(d, 0, &o), UT_OK);
    REFUSED(ut_driver_activate(d, 1, 0), UT_ERR_UNKNOWN, "job 1: there is no such job");
    REFUSED(ut_driver_activate(d, 0, 1), UT_ERR_SEQUENCE, "op 1 of job 0: is not the next one here");
    REFUSED(ut_driver_activate(d, 0, 0), UT_ERR_ABSENT,
            "op 0 of job 0: no rank of this host has given anything for it");
    ut_job_config full = good;
    full.options.policy = 0;
    CHECK_EQ(ut_driver_job_add(d, &full), 1);
    REFUSED(ut_driver_activate(d, 1, 0), UT_ERR_ARGUMENT, "op 0 of job 1: the job has no policy");
    REFUSED(ut_driver_options_fit(d, 1, &o), UT_ERR_ARGUMENT, "policy 3: must be 0 or 1 (none) in this job");
    ut_driver_close(d);
}

static void calls__check_and_say(void)
{
    static const ut_job_config good = {.hosts = 2, .local_ranks = 1, .packet_bytes = 1472, .bucket_bytes_max = 1 << 20};
    ut_driver *d = open_driver();
    uint32_t cid;
    ut_peer_stats stats;
    BAD_JOB(hosts, 65, "hosts 65: must be 1 to 64");
    BAD_JOB(self, 2, "self 2: must be below hosts, which is 2");
    BAD_JOB(local_ranks, 0, "local_ranks 0: must be 1 to 16");
    BAD_JOB(packet_bytes, 1480, "packet_bytes 1480: must be a multiple of 8 from 96 to this host's 1472");
    BAD_JOB(options.incast, 2, "incast 2: must be 0 (dynamic) to 1");
    BAD_JOB(world, 1, "world 1: must be 0, or from hosts, which is 2, to 1024");
    BAD_JOB(bucket_bytes_max, 1ull << 32, "bucket_bytes_max 4294967296: must be 1 to 4294967295");
    REFUSED(ut_driver_job_remove(d, 0), UT_ERR_UNKNOWN, "job 0: there is no such job");
    REFUSED(ut_driver_job_remove(d, UINT32_MAX), UT_ERR_UNKNOWN, "job 4294967295: there is no such job");
    REFUSED(ut_driver_next_op_seq(d, 3, &(uint64_t){0}), UT_ERR_UNKNOWN, "job 3: there is no such job");

    for (int i = 0; i < UT_JOBS_MAX; i++)
        CHECK_EQ(ut_driver_job_add(d, &good), i);
    REFUSED(ut_driver_job_add(d, &good), UT_ERR_FULL, "job: all 16 of this engine are taken");
    CHECK_EQ(ut_driver_job_remove(d, 7), UT_OK);
    CHECK_EQ(ut_driver_job_add(d, &good), 7);
    uint64_t next = 1;
    CHECK_EQ(ut_driver_next_op_seq(d, 7, &next), UT_OK);
    CHECK_EQ(next, 0);

    REFUSED(ut_driver_peer_listen(d, 7, 2, NULL, &cid), UT_ERR_UNKNOWN, "host 2 of job 7: there is no such peer");
    REFUSED(ut_driver_peer_stats(d, 7, UINT32_MAX, &stats), UT_ERR_UNKNOWN,
            "host 4294967295 of job 7: there is no such peer");
    REFUSED(ut_driver_peer_absent(d, 7, 2), UT_ERR_UNKNOWN, "host 2 of job 7: there is no such peer");
    REFUSED(ut_driver_peer_connect(d, 7, 1, "::1", 1, 2, 3, NULL), UT_ERR_ARGUMENT,
            "host 1 at ::1: must be a numeric IPv4 address, as ours");
    REFUSED(ut_driver_peer_connect(d, 7, 1, "nowhere", 1, 2, 3, NULL), UT_ERR_ARGUMENT,
            "host 1 at nowhere: must be a numeric IPv4 address, as ours");
    REFUSED(ut_driver_peer_connect(d, 7, 1, "127.0.0.1", 0, 2, 3, NULL), UT_ERR_ARGUMENT,
            "host 1 at 127.0.0.1: ports 0 and 2 must not be 0");
    REFUSED(ut_driver_peer_connect(d, 7, 1, "127.0.0.1", 1, 2, 3, NULL), UT_ERR_ARGUMENT,
            "host 1 of job 7: cannot be connected before ut_driver_peer_listen");
    CHECK_EQ(ut_driver_peer_listen(d, 7, 1, NULL, &cid), UT_OK);
    CHECK_EQ(ut_driver_peer_stats(d, 7, 1, &stats), UT_OK);
    CHECK_EQ(stats.up, 0);

    _Alignas(64) static uint8_t region[64];
    REFUSED(ut_driver_session_add(d, 9999, region, region, region, 64, 0, 0, 0, 0), UT_ERR_UNKNOWN,
            "job 9999: there is no such job");
    REFUSED(ut_driver_session_add(d, 7, region, region, region, 64, 999, 998, 0, 0), UT_ERR_SYSTEM,
            "keep session eventfd 999 and socket 998: Bad file descriptor");
    const int file = memfd_create("test", MFD_CLOEXEC);
    CHECK_EQ(ut_driver_session_add(d, 7, region, region, region, 64, file, file, 0, 0), UT_ERR_SYSTEM);
    CHECK(strstr(ut_driver_error(d), "Socket operation on non-socket") != NULL);
    close(file);
    CHECK_EQ(ut_driver_session_add(d, 7, region, region, NULL, 64, 0, 0, 0, 0), UT_ERR_ARGUMENT);
    CHECK_EQ(ut_driver_session_add(d, 7, region + 1, region, region, 64, 0, 0, 0, 0), UT_ERR_ARGUMENT);
    REFUSED(ut_driver_session_remove(d, 0), UT_ERR_UNKNOWN, "session 0: there is no such session");
    REFUSED(ut_driver_session_remove(d, 64), UT_ERR_UNKNOWN, "session 64: there is no such session");
    ut_driver_close(d);
#undef BAD_JOB
#undef REFUSED
}

static void region_map__never_beyond_the_file(void)
{
    const int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    CHECK_EQ(ftruncate(fd, 8192), 0);
    static const uint64_t bad[] = {0, 8193, UINT64_MAX, 1ull << 63};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        errno = 0;
        CHECK_MSG(ut_driver_region_map(fd, bad[i]) == NULL && errno == EINVAL, "row %zu: errno %d", i, errno);
    }
    CHECK(ut_driver_region_map(-1, 4096) == NULL && errno == EBADF);
    uint8_t *ours = ut_driver_region_map(fd, 8192);
    CHECK(ours != NULL);
    /* Mapped first and sealed then: we can write on, nobody else can. */
    CHECK_EQ(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL), 0);
    ours[8191] = 42;
    errno = 0;
    CHECK(ut_driver_region_map(fd, 8192) == NULL && errno == EPERM);
    const uint8_t *theirs = mmap(NULL, 8192, PROT_READ, MAP_SHARED, fd, 0);
    CHECK(theirs != MAP_FAILED && theirs[8191] == 42);
    munmap((void *)(uintptr_t)theirs, 8192);
    errno = 0;
    CHECK(ut_driver_region_unmap(ours, 8192, 1) == -1 && errno == EPERM); /* such a file keeps its pages */
    CHECK_EQ(ut_driver_region_unmap(NULL, 8192, 1), 0);
    close(fd);
}

/* A trainer may keep its descriptor for ever: the pages must be gone all the same. */
static void region_unmap__gives_the_pages_back(void)
{
    const int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    CHECK_EQ(ftruncate(fd, 1 << 20), 0);
    uint8_t *ours = ut_driver_region_map(fd, 1 << 20);
    CHECK(ours != NULL);
    CHECK_EQ(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
    uint8_t *theirs = mmap(NULL, 1 << 20, PROT_READ, MAP_SHARED, fd, 0);
    CHECK(theirs != MAP_FAILED);
    memset(ours, 42, 1 << 20);
    struct stat st;
    CHECK_EQ(fstat(fd, &st), 0);
    CHECK_EQ(st.st_blocks, (1 << 20) / 512);
    CHECK_EQ(theirs[1 << 19], 42);
    CHECK_EQ(ut_driver_region_unmap(ours, 1 << 20, 1), 0);
    CHECK_EQ(fstat(fd, &st), 0);
    CHECK_EQ(st.st_blocks, 0);
    CHECK_EQ(theirs[1 << 19], 0); /* neither gone nor an error */
    munmap(theirs, 1 << 20);
    close(fd);
}

/* ---- work ---- */

static void all_reduce__is_exact(void)
{
    static const struct {
        const char *address;
        int32_t gso, gro;
    } rows[] = {{"127.0.0.1", 1, 1}, {"127.0.0.1", 0, 1}, {"127.0.0.1", 1, 0},
                {"127.0.0.1", 0, 0}, {"::1", 1, 1},       {"::1", 0, 0}};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        address = rows[i].address;
        gso = rows[i].gso;
        gro = rows[i].gro;
        cluster_open(3);
        CHECK_LE(hosts[0].info.gso, gso);
        CHECK_LE(hosts[0].info.gro, gro);
        CHECK_EQ(hosts[0].info.packet_bytes, i < 4 ? 1472 : 1448);
        const uint64_t counts[] = {300001, 1, 0, 2, 65536};
        for (uint64_t op = 0; op < 5; op++)
            all_reduce(3, op, counts[op]);
        ut_driver_stats s;
        ut_driver_get_stats(hosts[0].driver, &s);
        CHECK_EQ(s.allocations, 0);
        CHECK_EQ(s.send_errors, 0);
        CHECK_EQ(s.engine.ops_complete, 5);
        CHECK(s.cpu_ns > 0);
        CHECK_EQ(s.gro_batches > 0, hosts[1].info.gso && hosts[0].info.gro);
        cluster_close(3);
    }
    address = "127.0.0.1";
    gso = gro = 1;
}

static void snapshot__is_what_the_single_calls_say(void)
{
    static ut_driver_snapshot s;
    memset(&s, 0xff, sizeof(s));
    cluster_open(2);
    const uint32_t job = (uint32_t)hosts[0].job;
    all_reduce(2, 0, 5000);
    all_reduce(2, 1, 5000);
    CHECK(wait_idle(hosts[0].driver));
    ut_driver_snapshot_take(hosts[0].driver, &s);
    ut_driver_info info;
    ut_driver_stats stats;
    ut_peer_stats peer;
    ut_driver_get_info(hosts[0].driver, &info);
    ut_driver_get_stats(hosts[0].driver, &stats);
    CHECK_EQ(ut_driver_peer_stats(hosts[0].driver, job, 1, &peer), UT_OK);
    CHECK_EQ(memcmp(&s.info, &info, sizeof(info)), 0);
    CHECK_EQ(memcmp(&s.stats.engine, &stats.engine, sizeof(stats.engine)), 0);
    CHECK_EQ(s.stats.send_calls, stats.send_calls);
    CHECK_EQ(memcmp(&s.job[job].peer[1], &peer, sizeof(peer)), 0);
    CHECK(peer.up && peer.sent_bytes > 0);
    CHECK_EQ(s.job[job].hosts, 2);
    CHECK_EQ(s.job[job].next_op_seq, 2);
    CHECK_EQ(s.job[job].peer[0].up, 0);
    CHECK_EQ(s.job[job].peer[0].sent_bytes, 0);
    for (uint32_t other = 0; other < UT_JOBS_MAX; other++)
        CHECK_EQ(s.job[other].hosts, other == job ? 2 : 0);
    cluster_close(2);
}

/* The event_fd says exactly whether there is an event, without being read. */
static void events__are_told(void)
{
    ut_event e;
    cluster_open(2);
    struct pollfd p = {.fd = hosts[0].info.event_fd, .events = POLLIN};
    CHECK_EQ(poll(&p, 1, 0), 0);
    CHECK_EQ(ut_driver_poll_event(hosts[0].driver, &e), 0);
    const uint64_t ops = 3;
    for (uint64_t op = 0; op < ops; op++)
        all_reduce(2, op, 100);
    for (uint64_t op = 0; op < ops; op++) {
        CHECK_EQ(poll(&p, 1, PATIENCE_MS), 1);
        if (!CHECK_EQ(ut_driver_poll_event(hosts[0].driver, &e), 1))
            break;
        CHECK_EQ(e.kind, UT_EVENT_OP_DONE);
        CHECK_EQ(e.op_seq, op);
        CHECK_EQ(e.a, UT_COMPLETE);
    }
    CHECK_EQ(ut_driver_poll_event(hosts[0].driver, &e), 0);
    CHECK_EQ(poll(&p, 1, 0), 0);
    cluster_close(2);
}

/* More events than either queue holds: the oldest are kept, the driver goes on, and later events come through again. */
static void events__never_stop_the_engine(void)
{
    enum { BAD = 3 * UT_EVENTS_MAX };
    ut_event e;
    cluster_open(1);
    trainer *t = &hosts[0].trainer;
    for (unsigned i = 0; i < BAD; i++) {
        const ut_submission bad = {.op_seq = 1000 + i};
        ut_receipt r;
        CHECK_EQ(ut_ring_submit(t->submissions, t->completions, &bad), UT_OK);
        ring(t);
        if (!wait_receipt(t, &r) || !CHECK_EQ(r.error, UT_ERR_SEQUENCE))
            break;
    }
    CHECK(wait_idle(hosts[0].driver));
    struct pollfd p = {.fd = hosts[0].info.event_fd, .events = POLLIN};
    unsigned n = 0;
    while (poll(&p, 1, 500) > 0) /* the engine's own queue follows on by itself */
        for (; n <= BAD && ut_driver_poll_event(hosts[0].driver, &e); n++) {
            CHECK_MSG(e.op_seq == 1000 + n, "event %u: op_seq %" PRIu64, n, e.op_seq);
            CHECK_EQ(e.kind, UT_EVENT_BAD_SUBMISSION);
        }
    CHECK_GE(n, UT_EVENTS_MAX);
    ut_driver_stats s;
    ut_driver_get_stats(hosts[0].driver, &s);
    CHECK_EQ(n + s.engine.events_dropped, BAD);
    all_reduce(1, 0, 10);
    cluster_close(1);
}

/* Nothing to do is no work: the thread sleeps until somebody comes. */
static void idle__sleeps(void)
{
    cluster_open(2);
    all_reduce(2, 0, 5000);
    CHECK(wait_idle(hosts[0].driver)); /* after the tail of the op: acknowledgements, lingering */
    all_reduce(2, 1, 5000);
    cluster_close(2);
}

/* A sleeper watches what it knew when it fell asleep: a new session must wake it, or its rings go unheard. */
static void session_add__wakes_a_sleeper(void)
{
    cluster_open(1);
    CHECK_EQ(ut_driver_session_remove(hosts[0].driver, (uint32_t)hosts[0].trainer.session), UT_OK);
    let_go(&hosts[0]);
    CHECK(wait_idle(hosts[0].driver));
    attach(&hosts[0], 0);
    all_reduce(1, 0, 100);
    cluster_close(1);
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    alarm(240); /* a hang is a failure, not a night */
    RUN(open__names_what_is_wrong);
    RUN(open__without_sockets_for_jobs_of_one_host);
    RUN(close__gives_all_back);
    RUN(thread__has_a_name_and_no_signals);
    RUN(calls__check_and_say);
    RUN(deterministic__check_and_say);
    RUN(partial__check_and_say);
    RUN(coded__check_and_say);
    RUN(region_map__never_beyond_the_file);
    RUN(region_unmap__gives_the_pages_back);
    RUN(all_reduce__is_exact);
    RUN(snapshot__is_what_the_single_calls_say);
    RUN(events__are_told);
    RUN(events__never_stop_the_engine);
    RUN(idle__sleeps);
    RUN(session_add__wakes_a_sleeper);
    return check_end();
}
