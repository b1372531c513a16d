/* SPDX-License-Identifier: Apache-2.0 */
#include "core/account/culprit.h"

#include "core/base/bits.h"

enum {
    LATE_PART = 4,  /* late: by a quarter of the op's time */
    LOSSY_PART = 20 /* lossy: more than a twentieth of the packets */
};

/* Hosts that |host| accuses; or itself, as often as it accuses others, if those are three quarters of all. */
static uint64_t accused_by(const ut_witness *seen, uint32_t hosts, uint32_t host, uint32_t *ret_weight)
{
    uint64_t accused = seen[host].accuses & ~(1ULL << host);
    uint32_t others = 0, among = 0;
    for (uint32_t h = 0; h < hosts; h++) {
        bool counts = h != host && !seen[h].gone;
        others += counts;
        among += counts && (accused >> h & 1);
    }
    bool itself = among >= 2 && 4 * among >= 3 * others;
    *ret_weight = itself ? among : 1;
    return itself ? 1ULL << host : accused;
}

uint8_t ut_culprit_trouble(const ut_witness *seen, uint32_t host, ut_ns elapsed)
{
    const ut_witness *w = &seen[host];
    if (w->gone)
        return UT_TROUBLE_GONE;
    if (!w->opened)
        return UT_TROUBLE_SENDER;
    if (w->drops && 2 * w->drops >= w->lost)
        return UT_TROUBLE_RECEIVER;
    bool lossy = w->again * LOSSY_PART > w->came; /* then its silence was the path's */
    ut_ns late = UT_MAX2(w->opened_after, lossy ? 0 : w->quiet);
    return late >= elapsed / LATE_PART && late > 0 ? UT_TROUBLE_SENDER : UT_TROUBLE_PATH;
}

ut_verdict ut_culprit_find(const ut_witness *seen, uint32_t hosts, uint32_t self, ut_ns elapsed)
{
    assert(hosts >= 1 && hosts <= UT_HOSTS_MAX && self < hosts);
    ut_verdict verdict = {0xffff, UT_TROUBLE_NONE};
    uint32_t votes[UT_HOSTS_MAX] = {0}, most = 0;
    for (uint32_t h = 0; h < hosts; h++) {
        uint32_t weight;
        uint64_t accused = accused_by(seen, hosts, h, &weight);
        UT_FOR_BITS (of, accused)
            votes[of] += weight;
    }
    for (uint32_t h = 0; h < hosts; h++) {
        if (votes[h] == 0)
            continue;
        bool worse = votes[h] > most ||
                     (votes[h] == most && (verdict.host == self || seen[h].missing > seen[verdict.host].missing));
        if (!worse)
            continue;
        most = votes[h];
        verdict = (ut_verdict){(uint16_t)h, ut_culprit_trouble(seen, h, elapsed)};
    }
    return verdict;
}

ut_verdict ut_culprit_blocked(ut_verdict verdict, const ut_witness *seen, uint32_t hosts, uint32_t self,
                              uint64_t blocked)
{
    uint64_t lacks = 0;
    for (uint32_t h = 0; h < hosts; h++)
        lacks |= seen[h].accuses | (seen[h].accuses || h == self ? ut_bit(h) : 0);
    if (verdict.host == 0xffff || (blocked & lacks) == 0)
        return verdict;
    bool single = (blocked & (blocked - 1)) == 0;
    if (single || (blocked & ut_bit(verdict.host)))
        verdict.trouble = UT_TROUBLE_UDP;
    for (uint32_t h = 0; h < hosts && single; h++)
        if (blocked == ut_bit(h))
            verdict.host = (uint16_t)h;
    return verdict;
}
