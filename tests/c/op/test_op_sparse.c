/* SPDX-License-Identifier: Apache-2.0
 *
 * Sparse allreduces between whole engines, over wires that lose, delay and double packets, and with hosts that fall
 * silent. Host h gives 2^h wherever a hash says that it has an entry, so that each element of a sum says by itself
 * which hosts are in it: an entry that is added twice, divided by another number than that of the ranks that came, or
 * put an element further, shows. A range that is counted by its values and not as a whole shows as a wrong divisor.
 */
#include "engines.h"

#include "core/face/engine_impl.h"
#include "kernels/block.h"
#include "kernels/kernels.h"

enum { FLOATS = ELEMENTS * 2, DST = ARENA - FLOATS * 4 };

#if defined(__SANITIZE_ADDRESS__)
enum { ROUNDS = 60 };
#else
enum { ROUNDS = 10 };
#endif

static struct call {
    uint32_t count, group, per_mille;
    uint8_t form, redop, mode, flags;
} call;
static uint64_t salt;
static uint8_t returns;   /* UT_SUBMIT_RETURN or 0 */
static uint64_t patience; /* ms until the deadline; 0: long enough */

/* Whether |h| has an entry for |unit|. Where entries are skewed, the first units have most of them. */
static bool has(uint32_t h, uint32_t unit)
{
    uint64_t x = salt ^ (h * 0x9e3779b97f4a7c15u + unit);
    return ut_mix_next(&x) % 1000 < call.per_mille * (salt & 1 && unit < call.count / call.group / 8 ? 4u : 1u);
}

static uint64_t write_entries(uint32_t h)
{
    uint32_t *names = (uint32_t *)(void *)hosts[h].arena, n_entries = 0;
    for (uint32_t u = 0; u < call.count / call.group; u++)
        if (has(h, u))
            names[n_entries++] = u;
    float *values = (float *)(void *)(names + n_entries);
    for (uint32_t i = 0; i < n_entries * call.group; i++)
        values[i] = (float)(1u << h);
    CHECK(8 * n_entries <= DST && 4 * n_entries * (1 + call.group) <= DST);
    return n_entries;
}

static ut_submission submission(uint64_t op, uint64_t entries)
{
    return (ut_submission){.op_seq = op,
                           .dst = DST,
                           .count = call.count,
                           .deadline_ns = now + (patience ? patience : 900) * UT_MS,
                           .dtype = UT_FLOAT32,
                           .redop = call.redop,
                           .mode = call.mode,
                           .flags = call.flags | returns,
                           .collective = UT_ALLREDUCE_SPARSE,
                           .entries = entries,
                           .alike.sparse = {.hint = 77, .group = (uint16_t)call.group, .form = call.form}};
}

static void submit(uint32_t h, const ut_submission *s)
{
    CHECK_EQ(ut_ring_submit(&hosts[h].submissions, &hosts[h].completions, s), UT_OK);
    ut_engine_submissions(hosts[h].engine, hosts[h].session, now);
}

static uint64_t given[MOST], sent[MOST], came[MOST]; /* values, and bytes as receipts say, by host */

static void call_sparse(uint64_t op)
{
    for (uint32_t h = 0; h < n; h++) {
        memset(hosts[h].arena + DST, 0x7f, FLOATS * 4); /* what stood there before */
        ut_submission s = submission(op, write_entries(h));
        given[h] = s.entries * call.group;
        submit(h, &s);
    }
    run(now + UT_SECOND);
}

static const float *result(uint32_t h)
{
    return (const float *)(const void *)(hosts[h].arena + DST);
}

/* The hosts that can be in an element, a bit each. */
static uint32_t givers(uint32_t i)
{
    uint32_t mask = 0;
    for (uint32_t h = 0; h < n; h++)
        mask |= (uint32_t)has(h, i / call.group) << h;
    return mask;
}

/* Every element is a sum of some hosts' entries and of no other, over the number of some ranks; of all where all came.
 * Returns how many elements lack somebody. */
static uint32_t check_elements(uint32_t h, bool complete)
{
    uint32_t lacking = 0;
    for (uint32_t i = 0; i < call.count; i++) {
        uint32_t all = givers(i);
        bool sound = false, whole = false;
        for (uint32_t ranks = call.redop == UT_AVG ? 1 : n; ranks <= n && !whole; ranks++) {
            float sum = result(h)[i] * (call.redop == UT_AVG ? (float)ranks : 1);
            uint32_t mask = (uint32_t)(sum + 0.5f);
            float wrong = sum - (float)mask, near = call.form == UT_VALUE_FLOAT32 ? 1e-4f : 0.02f * sum + 1e-4f;
            bool exact = wrong <= near && -wrong <= near;
            whole = exact && ranks == n && mask >= all - (uint32_t)near && mask <= all + (uint32_t)near;
            sound = sound || whole || (exact && (near > 0.1f || (mask & ~all) == 0));
        }
        lacking += !whole;
        if (!CHECK_MSG(sound && (whole || !complete), "host %u, element %u: %g of %x", h, i, result(h)[i], all))
            return lacking;
    }
    return lacking;
}

static uint64_t bytes_due(uint32_t h, uint64_t op)
{
    uint32_t each = ut_granule_units(call.group), units = call.count / call.group, granules = (units + each - 1) / each;
    uint32_t chunk = ut_shard_of(h, op, n);
    uint64_t first = UT_MIN2(ut_shard_bound(granules, n, chunk) * each, units);
    uint64_t last = UT_MIN2(ut_shard_bound(granules, n, chunk + 1) * each, units);
    return ((n - 1) * (last - first) + (units - (last - first))) * call.group * 4;
}

static void check_receipts(uint64_t op, bool must_complete, uint32_t *ret_partial)
{
    ut_receipt r[MOST];
    for (uint32_t h = 0; h < n; h++) {
        r[h] = receipt(h);
        sent[h] = r[h].wire_sent;
        came[h] = r[h].wire_received;
        if (r[h].status == UT_FAILED) {
            CHECK(call.mode == UT_RELIABLE || call.flags);
            CHECK(!must_complete);
            continue;
        }
        uint32_t lacking = check_elements(h, r[h].status == UT_COMPLETE);
        CHECK_EQ(r[h].bytes_expected, bytes_due(h, op));
        CHECK_EQ(r[h].values, given[h]);
        CHECK(!must_complete || r[h].status == UT_COMPLETE);
        CHECK_MSG(lacking == 0 || r[h].bytes_missing || r[h].weight_min < n, "host %u: %u lack somebody", h, lacking);
        *ret_partial += r[h].status != UT_COMPLETE;
        for (uint32_t p = 0; p < h; p++)
            if ((r[h].status == UT_COMPLETE && r[p].status == UT_COMPLETE) ||
                (call.flags && r[p].status != UT_FAILED)) {
                CHECK_HEX(r[h].digest, r[p].digest);
                CHECK_BYTES(result(h), result(p), call.count * 4);
            }
    }
}

static void draw(void)
{
    const uint32_t groups[] = {1, 1, 1, 3, 8, 40, 200}, rates[] = {0, 3, 10, 100, 250};
    salt = check_random();
    call.group = groups[check_below(7)];
    call.count = (uint32_t)check_below(FLOATS / call.group + 1) * call.group;
    call.per_mille = rates[check_below(5)];
    call.form = (uint8_t)check_below(UT_VALUE_FORMS_END);
    call.redop = UT_SUM + (uint8_t)check_below(2);
    call.mode = UT_BOUNDED;
    call.flags = 0;
    bool many = call.per_mille * (salt & 1 ? 4 : 1) > 300;      /* the arena has no more room */
    if ((many || call.group == 200) && call.count > FLOATS / 2) /* of the widest, a packet holds but one */
        call.count = FLOATS / 2 / call.group * call.group;
}

static void op__sums_what_all_give_and_says_so(void)
{
    uint8_t tar[MOST];
    memset(tar, UT_TAR, sizeof tar);
    for (unsigned round = 0; round < ROUNDS / 2; round++) {
        uint32_t partial = 0;
        n = 1 + (uint32_t)check_below(MOST);
        begin(tar);
        for (uint64_t op = 0; op < 4; op++) {
            draw();
            call.mode = check_below(2) ? UT_BOUNDED : UT_RELIABLE;
            call_sparse(op);
            check_receipts(op, true, &partial);
        }
        end();
        if (check_run.failures)
            return;
    }
}

static void op__survives_a_wire_that_loses_delays_and_doubles(void)
{
    uint8_t tar[MOST];
    uint32_t partial = 0;
    memset(tar, UT_TAR, sizeof tar);
    for (unsigned round = 0; round < ROUNDS; round++) {
        n = 2 + (uint32_t)check_below(MOST - 1);
        begin(tar);
        for (uint64_t op = 0; op < 5; op++) {
            draw();
            loss_ppm = (uint32_t)check_below(3) * 150000;
            late_ppm = (uint32_t)check_below(2) * 200000;
            silent = op == 2 && check_below(2) ? 1u << check_below(n) : 0;
            const uint8_t modes[] = {UT_BOUNDED, UT_BOUNDED, UT_BEST_EFFORT, UT_RELIABLE};
            call.mode = modes[check_below(4)];
            call.flags = call.mode == UT_BOUNDED && check_below(3) == 0 ? UT_SUBMIT_AGREE : 0;
            call_sparse(op);
            loss_ppm = late_ppm = silent = 0;
            run(now + UT_SECOND);
            check_receipts(op, false, &partial);
        }
        end();
        if (check_run.failures)
            return;
    }
    CHECK_MSG(partial > ROUNDS / 3, "%u results lacked something", partial);
}

/* Whether |h|'s entry |i| was given back. */
static bool is_returned(uint32_t h, const ut_receipt *r, uint64_t entries, uint64_t i)
{
    const float *values = (const float *)(const void *)hosts[h].arena + entries;
    bool whole = true, none = true;
    for (uint32_t k = 0; k < call.group; k++) {
        whole = whole && values[i * call.group + k] == (float)(1u << h);
        none = none && values[i * call.group + k] == 0;
    }
    CHECK_MSG(whole || (none && r->lacks), "host %u, entry %llu: neither whole nor nothing", h, (unsigned long long)i);
    return r->lacks && whole;
}

/* A sum's elements are who is in it. What a host gave is in the result that it got, or comes back, and never both; and
 * what comes back is in nobody's result. */
static uint32_t check_returned(void)
{
    ut_receipt r[MOST];
    uint32_t returned = 0;
    for (uint32_t h = 0; h < n; h++)
        r[h] = receipt(h);
    for (uint32_t h = 0; h < n; h++) {
        uint64_t entries = given[h] / call.group;
        if (r[h].status == UT_FAILED) /* then all of it is the trainer's, who has it */
            continue;
        for (uint64_t i = 0; i < entries; i++) {
            uint32_t unit = ((const uint32_t *)(const void *)hosts[h].arena)[i];
            bool back = is_returned(h, &r[h], entries, i);
            returned += back;
            for (uint32_t p = 0; p < n; p++) {
                if (r[p].status == UT_FAILED || (p != h && !back))
                    continue;
                for (uint32_t k = 0; k < call.group; k++) {
                    bool in = (uint32_t)result(p)[unit * call.group + k] >> h & 1;
                    if (!CHECK_MSG(in == (p == h && !back), "unit %u of host %u: %s, and %s the result of host %u",
                                   unit, h, back ? "returned" : "kept", in ? "in" : "not in", p))
                        return returned;
                }
            }
        }
    }
    return returned;
}

/* Under loss of every kind, and with hosts that send nothing for a while or die. */
static void op__returns_what_no_owner_took(void)
{
    uint8_t tar[MOST];
    uint32_t returned = 0, ops = 0;
    memset(tar, UT_TAR, sizeof tar);
    returns = UT_SUBMIT_RETURN;
    for (unsigned round = 0; round < 2 * ROUNDS; round++) {
        n = 2 + (uint32_t)check_below(MOST - 1);
        begin(tar);
        for (uint64_t op = 0; op < 4; op++) {
            draw();
            call.redop = UT_SUM;
            call.form = UT_VALUE_FLOAT32;
            call.per_mille = check_below(3) ? call.per_mille : 250; /* dense answers, each granule another's */
            const uint8_t modes[] = {UT_BOUNDED, UT_BEST_EFFORT, UT_BEST_EFFORT, UT_RELIABLE};
            call.mode = modes[check_below(4)];
            loss_ppm = (uint32_t)check_below(5) * 150000;
            patience = 10 << check_below(4); /* repairs do not bring all */
            late_ppm = (uint32_t)check_below(2) * 200000;
            silent = op >= 2 && check_below(2) ? 1u << check_below(n) : 0;
            call_sparse(op);
            loss_ppm = late_ppm = silent = 0;
            run(now + UT_SECOND);
            uint32_t some = check_returned();
            returned += some;
            ops += some != 0;
        }
        end();
        if (check_run.failures)
            break;
    }
    returns = 0;
    patience = 0;
    CHECK_MSG(ops > ROUNDS / 2, "%u entries were returned, in %u ops", returned, ops);
}

static void op__others_must_mean_the_same(void)
{
    uint8_t tar[MOST];
    memset(tar, UT_TAR, sizeof tar);
    const uint32_t rows[][3] = {{UT_FIELD_GROUP, 1, 2}, {UT_FIELD_FORM, 0, 3}, {UT_FIELD_HINT, 77, 5}};
    for (unsigned i = 0; i < 3; i++) {
        n = 2;
        begin(tar);
        draw();
        call.group = 1;
        call.form = 0;
        call.count = 64;
        call.per_mille = 100;
        for (uint32_t h = 0; h < n; h++) {
            ut_submission s = submission(0, write_entries(h));
            s.entries = 0;
            if (h && rows[i][0] == UT_FIELD_HINT)
                s.alike.sparse.hint = rows[i][2];
            else if (h && rows[i][0] == UT_FIELD_GROUP)
                s.alike.sparse.group = (uint16_t)rows[i][2];
            else if (h)
                s.alike.sparse.form = (uint8_t)rows[i][2];
            submit(h, &s);
        }
        run(now + UT_SECOND);
        ut_receipt r = receipt(0);
        CHECK_EQ(r.error, UT_ERR_DESYNC);
        CHECK_EQ(r.field, rows[i][0]);
        CHECK_EQ(r.value_here, rows[i][1]);
        CHECK_EQ(r.value_there, rows[i][2]);
        CHECK_EQ(receipt(1).error, UT_ERR_DESYNC);
        end();
    }
}

/* Each is refused at the door; a bad index ends what its rank gives, and is reported. */
static void op__bad_input(void)
{
    uint8_t tar[MOST];
    memset(tar, UT_TAR, sizeof tar);
    n = 2;
    begin(tar);
    draw();
    call.group = 2;
    call.form = 0;
    call.count = 64;
    call.redop = UT_SUM;
    call.per_mille = 500;
    uint64_t op = 0;
#define ROW(why, change_)                                                                                              \
    for (uint32_t h = 0; h < n; h++) {                                                                                 \
        ut_submission s = submission(op, 3);                                                                           \
        change_;                                                                                                       \
        submit(h, &s);                                                                                                 \
    }                                                                                                                  \
    op++;                                                                                                              \
    for (uint32_t h = 0; h < n; h++)                                                                                   \
    CHECK_EQ(receipt(h).error, why)
    ROW(UT_ERR_ARGUMENT, s.alike.sparse.group = 0);
    ROW(UT_ERR_ARGUMENT, s.alike.sparse.group = 257);
    ROW(UT_ERR_ARGUMENT, s.alike.sparse.form = 4);
    ROW(UT_ERR_ARGUMENT, s.alike.sparse.down = 1);
    ROW(UT_ERR_ARGUMENT, s.alike.sparse.group = 3);
    ROW(UT_ERR_ARGUMENT, s.entries = 33);
    ROW(UT_ERR_ARGUMENT, s.entries = UINT64_MAX);
    ROW(UT_ERR_ARGUMENT, s.rounding = 1);
    ROW(UT_ERR_ARGUMENT, s.flags = UT_SUBMIT_GIVE);
    ROW(UT_ERR_DTYPE, s.dtype = UT_FLOAT16);
    ROW(UT_ERR_REDOP, s.redop = UT_MAX);
    ROW(UT_ERR_TOO_LARGE, s.count = 1 << 20);
    ROW(UT_ERR_TOO_LARGE,
        (s.count = FLOATS / 200 * 200, s.alike.sparse.group = 200)); /* blocks of half a packet each */
    ROW(UT_ERR_RANGE, s.dst = 2);
    ROW(UT_ERR_RANGE, s.dst = 4);
    ROW(UT_ERR_RANGE, s.src = ARENA - 32);
    ROW(UT_ERR_RANGE, s.src = 2);
#undef ROW
    for (uint32_t h = 0; h < n; h++) {
        uint32_t names[] = {0, 5, h ? 9 : 4};
        memcpy(hosts[h].arena, names, sizeof names);
        for (unsigned i = 0; i < 6; i++)
            ((float *)(void *)hosts[h].arena)[3 + i] = 1;
        ut_submission s = submission(op, 3);
        submit(h, &s);
    }
    run(now + UT_SECOND);
    ut_stats stats;
    ut_engine_stats(hosts[0].engine, &stats);
    CHECK_EQ(stats.bad_submissions, op + 1);
    for (uint32_t h = 0; h < n; h++) {
        CHECK_EQ(receipt(h).status, UT_COMPLETE);
        CHECK_DOUBLE(result(h)[1], 2);
        CHECK_DOUBLE(result(h)[10], 2);
        CHECK_DOUBLE(result(h)[8], 0); /* what came after it is not there */
        CHECK_DOUBLE(result(h)[18], 1);
    }
    end();
}

/* Far less than the dense bucket travels, and the blocks of a dense one are but a little more. */
static void op__sends_few_bytes(void)
{
    uint8_t tar[MOST];
    memset(tar, UT_TAR, sizeof tar);
    const uint32_t rows[][3] = {{0, 0, 500}, {10, 200, 1800}, {500, 7500, 10500}, {1000, 11500, 13000}};
    for (unsigned i = 0; i < 4; i++) {
        n = 4;
        begin(tar);
        draw();
        salt &= ~1ULL;
        call = (struct call){.count = 2000, .group = 1, .per_mille = rows[i][0], .redop = UT_AVG, .mode = UT_BOUNDED};
        uint32_t partial = 0;
        call_sparse(0);
        check_receipts(0, true, &partial);
        ut_stats stats;
        ut_engine_stats(hosts[1].engine, &stats);
        CHECK_MSG(stats.data_sent_bytes >= rows[i][1] && stats.data_sent_bytes <= rows[i][2] + 6 * 32,
                  "%u of 1000: %llu bytes", rows[i][0], (unsigned long long)stats.data_sent_bytes);
        CHECK_EQ(sent[1], stats.data_sent_bytes - stats.data_sent * ut_wire_packet(0, 0));
        CHECK_EQ(came[1], stats.bytes_used + stats.bytes_late + stats.bytes_duplicate);
        end();
    }
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    ut_kernels_init(UT_ISA_BEST);
    RUN(op__bad_input);
    RUN(op__others_must_mean_the_same);
    RUN(op__sends_few_bytes);
    RUN(op__sums_what_all_give_and_says_so);
    RUN(op__survives_a_wire_that_loses_delays_and_doubles);
    RUN(op__returns_what_no_owner_took);
    return check_end();
}
