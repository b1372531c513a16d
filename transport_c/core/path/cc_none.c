/* SPDX-License-Identifier: Apache-2.0
 *
 * No congestion control: credit alone. For a fabric of one's own that never queues, and to measure the others against.
 */
#include "core/path/cc.h"

static void none_init(ut_cc *cc)
{
    (void)cc;
}

static void none_feedback(ut_cc *cc, const ut_cc_sample *s)
{
    (void)cc, (void)s;
}

static void none_loss(ut_cc *cc, const ut_cc_sample *s, uint64_t delivered)
{
    (void)cc, (void)s, (void)delivered;
}

static uint64_t none_window(const ut_cc *cc)
{
    (void)cc;
    return UINT64_MAX;
}

const ut_cc_ops ut_cc_none = {"none", none_init, none_feedback, none_loss, none_window};
