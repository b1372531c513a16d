/* SPDX-License-Identifier: Apache-2.0 */
#include "core/face/ring.h"

_Static_assert(sizeof(ut_submission) == 64, "one cache line");
_Static_assert(_Alignof(ut_submission) == sizeof(uint64_t), "copied by words");
_Static_assert(sizeof(ut_receipt_peer) == 80, "layout is shared between processes");
_Static_assert((UT_RING_ENTRIES & (UT_RING_ENTRIES - 1)) == 0, "positions are taken modulo the size");

static uint64_t load(const uint64_t *p)
{
    return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}

static void store(uint64_t *p, uint64_t v)
{
    __atomic_store_n(p, v, __ATOMIC_RELEASE);
}

int ut_ring_submit(ut_submission_ring *s, const ut_completion_ring *c, const ut_submission *entry)
{
    uint64_t head = s->head; /* ours alone */
    /* Every submission ends in one completion, so unread receipts count as outstanding too. */
    if (head - s->completions_taken >= UT_RING_ENTRIES || head - load(&c->submissions_taken) >= UT_RING_ENTRIES)
        return UT_ERR_FULL;
    s->entries[head % UT_RING_ENTRIES] = *entry;
    store(&s->head, head + 1);
    return UT_OK;
}

int ut_ring_take_completion(ut_submission_ring *s, const ut_completion_ring *c, ut_receipt *ret)
{
    const uint64_t taken = s->completions_taken, ahead = load(&c->head) - taken;
    /* A head that runs backwards is that of a ring whose memory the daemon has taken back. */
    if (ahead == 0 || ahead > UT_RING_ENTRIES)
        return 0;
    *ret = c->entries[taken % UT_RING_ENTRIES];
    store(&s->completions_taken, taken + 1);
    return 1;
}

int ut_ring_has_submission(const ut_submission_ring *s, uint64_t taken)
{
    uint64_t ahead = load(&s->head) - taken;
    /* A head that runs away or backwards is a wild trainer's: look at no more than the ring holds. */
    return ahead > 0 && ahead <= UT_RING_ENTRIES;
}

/* The trainer may write while we read. A plain assignment would leave the compiler free to read a field twice, once for
 * the check and once for the use: words that are loaded atomically are read once, and what we hold then is ours. Which
 * words belong together is the trainer's business; every field is within one. */
static void copy_out(ut_submission *ret, const ut_submission *shared)
{
    typedef uint64_t __attribute__((may_alias)) word;
    for (size_t i = 0; i < sizeof *ret / sizeof(word); i++)
        ((word *)ret)[i] = __atomic_load_n((const word *)shared + i, __ATOMIC_RELAXED);
}

int ut_ring_take_submission(const ut_submission_ring *s, ut_completion_ring *c, uint64_t *taken, ut_submission *ret)
{
    if (!ut_ring_has_submission(s, *taken))
        return 0;
    copy_out(ret, &s->entries[*taken % UT_RING_ENTRIES]);
    ++*taken;
    store(&c->submissions_taken, *taken);
    return 1;
}

int ut_ring_complete(const ut_submission_ring *s, ut_completion_ring *c, uint64_t *written, const ut_receipt *receipt)
{
    assert(receipt->hosts <= UT_HOSTS_MAX);
    if (*written - load(&s->completions_taken) >= UT_RING_ENTRIES)
        return UT_ERR_FULL;
    c->entries[*written % UT_RING_ENTRIES] = *receipt;
    ++*written;
    store(&c->head, *written);
    return UT_OK;
}
