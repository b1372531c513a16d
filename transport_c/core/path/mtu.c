/* SPDX-License-Identifier: Apache-2.0 */
#include "core/path/mtu.h"

bool ut_mtu_fate(ut_mtu *m, uint32_t bytes, bool in_pieces, bool acked, uint32_t sent_us, uint32_t heard_us)
{
    if (bytes <= UT_PATH_MIN)
        return false;
    if (acked) {
        bool changes = m->pieces && !in_pieces;
        if (changes) {
            m->pieces = false;
            m->came = 0;
        }
        if (in_pieces == m->pieces) {
            m->lost = 0;
            m->came = UT_MIN2(m->came + 1, (uint32_t)UT_MTU_PROOF);
        }
        return changes;
    }
    if (in_pieces != m->pieces)
        return false; /* it says nothing of the way that packets go now */
    m->came = 0;
    if (m->lost++ == 0)
        m->since = sent_us;
    if (m->lost < UT_MTU_LOST_MIN || (int32_t)(sent_us - m->since) < UT_MTU_PATIENCE_US ||
        (int32_t)(heard_us - m->since) <= 0)
        return false;
    /* Pieces that die as well mean that it is not the size: the other way again, in turns, until something comes. */
    m->pieces = !m->pieces;
    m->looked = sent_us;
    m->lost = 0;
    return true;
}

bool ut_mtu_proved(ut_mtu *m)
{
    if (m->told == m->pieces || m->came < UT_MTU_PROOF)
        return false;
    m->told = m->pieces;
    return true;
}

bool ut_mtu_whole(ut_mtu *m, uint32_t bytes, uint32_t now_us)
{
    if (!m->pieces || bytes <= UT_PATH_MIN)
        return true;
    if (now_us - m->looked < UT_MTU_RAISE_US)
        return false;
    m->looked = now_us;
    assert(m->pieces);
    return true;
}
