/* SPDX-License-Identifier: Apache-2.0
 *
 *   O12 moved   who gets a result of reduce-scatter, all-gather, broadcast, all-to-all or barrier has all of it, each
 *   byte from whom it must be and where it lay there; every rank has called it; the receipt counts what crossed to here
 *
 * These are reliable: a result is COMPLETE or there is none.
 */
#include "sim/world/moves.h"

#include <stdlib.h>

#define FAIL(format, ...)                                                                                              \
    sim_fail(w, "O12 moved", rank->host, "job %u rank %u op_seq %" PRIu64 " collective %u root %u: " format,           \
             rank->job, rank->index, ask->entry.op_seq, ask->as.collective, ask->as.root, __VA_ARGS__)

sim_layout sim_layout_of(const sim_job *job, uint32_t self, const sim_op *op)
{
    uint64_t bytes = op->count * ut_dtype_bytes(op->dtype), shard = bytes / job->plan->hosts;
    sim_layout layout = {.src_bytes = bytes, .dst_bytes = bytes};
    if (op->collective == UT_ALL_GATHER) {
        layout.src_from = self * shard;
        layout.src_bytes = shard;
    } else if (op->collective == UT_REDUCE_SCATTER) {
        layout.dst_from = self * shard;
        layout.dst_bytes = shard;
    }
    layout.in_place = op->collective == UT_BROADCAST || op->collective == UT_BARRIER;
    layout.apart = op->collective == UT_ALL_TO_ALL;
    return layout;
}

bool sim_results_differ(const sim_op *op)
{
    return op->collective == UT_REDUCE_SCATTER || op->collective == UT_ALL_TO_ALL;
}

/* Writes what the result of |self| must be, |bytes| of it, to |ret|. */
static void expect(const sim_code *code, const sim_op *op, const sim_layout *layout, uint32_t hosts, uint32_t self,
                   uint8_t *ret)
{
    size_t element = ut_dtype_bytes(op->dtype);
    uint64_t bytes = op->count * element, shard = bytes / hosts;
    uint8_t *whole = sim_alloc(bytes);
    if (op->collective == UT_REDUCE_SCATTER) {
        uint64_t first = layout->dst_from / element;
        sim_code_make(code, first, first + layout->dst_bytes / element, sim_first(code->ranks), ret);
        free(whole);
        return;
    }
    for (uint32_t from = 0; from < hosts; from++) {
        sim_code_fill(code, from, whole, op->count);
        if (op->collective == UT_BROADCAST && from == op->root)
            memcpy(ret, whole, bytes);
        else if (op->collective == UT_ALL_GATHER)
            memcpy(ret + from * shard, whole + from * shard, shard);
        else if (op->collective == UT_ALL_TO_ALL)
            memcpy(ret + from * shard, whole + self * shard, shard);
    }
    free(whole);
}

/* Bytes that must come from |host| in each stage. */
static void wanted(const sim_job *job, const sim_op *op, uint32_t self, uint32_t host, uint64_t want[2])
{
    uint32_t hosts = job->plan->hosts;
    uint64_t own = sim_shard_begin(op->count, hosts, self + 1) - sim_shard_begin(op->count, hosts, self);
    uint64_t theirs = sim_shard_begin(op->count, hosts, host + 1) - sim_shard_begin(op->count, hosts, host);
    want[0] = want[1] = 0;
    if (host == self)
        return;
    if (sim_results_differ(op))
        want[0] = own;
    else if (op->collective != UT_BROADCAST)
        want[1] = theirs;
    else if (self != op->root) {
        want[0] = host == op->root ? own : 0;
        want[1] = theirs;
    }
}

void sim_check_moved(sim_world *w, const sim_rank *rank, const sim_ask *ask, const ut_receipt *r, const uint8_t *result)
{
    const sim_job *job = &w->job[rank->job];
    const sim_op *op = &ask->as;
    uint32_t self = job->index_of[rank->host], hosts = job->plan->hosts;
    sim_code code = sim_code_of(w, rank->job, ask->entry.op_seq, op);
    sim_layout layout = sim_layout_of(job, self, op);
    uint64_t missing = 0, differs = 0, all = sim_first(hosts);
    size_t element = ut_dtype_bytes(op->dtype);
    if (r->status != UT_COMPLETE || r->weight_min != job->ranks)
        FAIL("status %u, %u ranks in the thinnest byte", r->status, r->weight_min);
    if (job->submitted[ask->op] != sim_first(job->ranks))
        FAIL("complete, and only ranks %#" PRIx64 " have called it", job->submitted[ask->op]);
    if (r->full_mask != (op->collective == UT_BROADCAST ? UINT64_C(1) << op->root : all))
        FAIL("hosts %#" PRIx64 " are said to be in it", r->full_mask);
    for (uint32_t h = 0; h < hosts; h++) {
        uint64_t want[2];
        wanted(job, op, self, h, want);
        missing += r->peer[h].missing[0] + r->peer[h].missing[1];
        for (unsigned stage = 0; stage < 2; stage++)
            if (r->peer[h].expected[stage] != want[stage] * element)
                FAIL("host %u stage %u: %" PRIu64 " bytes expected, should be %" PRIu64, h, stage + 1,
                     r->peer[h].expected[stage], want[stage] * element);
    }
    if (missing || r->bytes_missing || r->bytes_used != r->bytes_expected)
        FAIL("%" PRIu64 " bytes missing, %" PRIu64 " in the rows", r->bytes_missing, missing);
    if (op->collective == UT_BARRIER)
        return;
    uint8_t *expected = sim_alloc(layout.dst_bytes);
    expect(&code, op, &layout, hosts, self, expected);
    for (uint64_t i = 0; i < layout.dst_bytes; i++)
        differs += expected[i] != result[i];
    free(expected);
    if (differs)
        FAIL("%" PRIu64 " of %" PRIu64 " bytes are wrong", differs, layout.dst_bytes);
}
