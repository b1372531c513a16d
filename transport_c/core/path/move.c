/* SPDX-License-Identifier: Apache-2.0 */
#include "core/path/move.h"

static void give_up(ut_move *m)
{
    m->other.len = 0;
    m->due = 0;
    m->next = UT_NEVER;
}

void ut_move_begin(ut_move *m, const ut_addr *home)
{
    *m = (ut_move){.home = *home, .next = UT_NEVER};
}

static void ask(ut_move *m, ut_ns now)
{
    m->asked++;
    m->due = 1 << UT_MOVE_PRESENT | (m->came ? 0 : 1 << UT_MOVE_OTHER);
    m->next = now + m->wait;
}

void ut_move_try(ut_move *m, ut_ns silence, const uint64_t token[UT_MOVE_WAYS], ut_ns now)
{
    assert(m->other.len == 0 && m->later.len > 0 && m->later.len <= sizeof m->later.bytes);
    m->other = m->later;
    m->later.len = 0;
    m->token[UT_MOVE_PRESENT] = token[UT_MOVE_PRESENT];
    m->token[UT_MOVE_OTHER] = token[UT_MOVE_OTHER];
    m->wait = silence ? UT_MAX2(silence, (ut_ns)UT_MOVE_WAIT_MIN_NS) : (ut_ns)UT_MOVE_WAIT_FAR_NS;
    m->rest = now + UT_MOVE_REST_NS;
    m->asked = 0;
    m->came = false;
    ask(m, now);
}

void ut_move_asked(ut_move *m, uint64_t token)
{
    if (m->answers < UT_MOVE_WAYS)
        m->answer[m->answers++] = token;
}

void ut_move_show(ut_move *m)
{
    m->shows = true;
}

/* There is no rest after it: a path that was found again may be lost again at once. */
static void go(ut_move *m, ut_addr *present)
{
    *present = m->other;
    if (ut_addr_is(&m->later, present))
        m->later.len = 0;
    give_up(m);
    m->rest = 0;
    m->vain = 0;
}

void ut_move_call(ut_move *m, uint64_t token)
{
    if (m->other.len || m->due)
        return;
    m->token[UT_MOVE_PRESENT] = token;
    m->due = 1 << UT_MOVE_PRESENT;
}

/* The first answer of the other address: the present one would need about as long since the first challenge. What was
 * known of round trips before may be of a time when the peer slept, or nothing. */
static void measure(ut_move *m, ut_ns now)
{
    const ut_ns took = now - (m->rest - (ut_ns)UT_MOVE_REST_NS);
    const ut_ns wait = UT_MAX2(UT_MOVE_WAIT_TRIPS * took, (ut_ns)UT_MOVE_WAIT_MIN_NS);
    if (wait < m->wait) {
        m->wait = wait;
        m->next = UT_MIN2(m->next, now + wait);
    }
}

bool ut_move_answered(ut_move *m, ut_addr *present, uint64_t token, ut_ns now)
{
    if (m->other.len == 0)
        return false;
    if (token == m->token[UT_MOVE_OTHER]) {
        if (!m->came)
            measure(m, now);
        m->came = true;
        if (ut_addr_is(&m->other, &m->home)) {
            go(m, present);
            return true;
        }
    } else if (token == m->token[UT_MOVE_PRESENT] && !ut_addr_is(&m->other, &m->home)) {
        give_up(m);
    }
    return false;
}

bool ut_move_tick(ut_move *m, ut_addr *present, ut_ns now)
{
    if (m->other.len == 0 || now < m->next)
        return false;
    /* A newer packet came from a third address meanwhile: the peer may have moved once more. */
    const bool elsewhere = m->later.len && !m->came;
    if (m->asked < UT_MOVE_ASKS && !elsewhere) {
        ask(m, now);
        return false;
    }
    if (m->came) {
        go(m, present);
        return true;
    }
    if (m->later.len == 0)
        m->later = m->other;
    m->rest = UT_MIN2(m->rest, now + (m->asked * m->wait << m->vain));
    m->vain += m->vain < UT_MOVE_VAIN_MOST;
    give_up(m);
    return false;
}

void ut_move_fill(ut_move *m, const ut_addr *present, ut_addr *ret_to, ut_path *ret)
{
    assert(ut_move_says(m));
    *ret_to = *present;
    if (m->answers || m->shows) {
        m->shows = false;
        if (!m->answers) {
            *ret = (ut_path){.what = UT_PATH_ANSWER};
            return;
        }
        *ret = (ut_path){.what = UT_PATH_ANSWER, .token = m->answer[0]};
        m->answer[0] = m->answer[1];
        m->answers--;
        return;
    }
    const unsigned way = m->due >> UT_MOVE_PRESENT & 1 ? UT_MOVE_PRESENT : UT_MOVE_OTHER;
    if (way == UT_MOVE_OTHER)
        *ret_to = m->other;
    *ret = (ut_path){.what = UT_PATH_CHALLENGE, .token = m->token[way]};
    m->due &= (uint8_t)~(1u << way);
}
