/* SPDX-License-Identifier: Apache-2.0
 *
 * Who is claimed to be in a result, on made-up facts. Four hosts, of which we are host 2. Host 3 died and was never
 * heard; hosts 0, 1 and 2 own a shard each, and ours holds these three. Masks are of hosts: 7 is 0, 1 and 2.
 */
#include "check.h"

#include "core/account/account.h"

enum { HOSTS = 4, OWNERS = 2, SELF = 2, OURS = 7, OP = 70, SLOTS = 3 };
enum { NOTHING = 0, PART = 1, ALL = SLOTS };

static ut_job_account job = {.hosts = HOSTS, .self = SELF, .world = HOSTS};
static ut_op_plan plan;
static ut_op_fold fold;
static ut_op_account account = {.job = &job, .plan = &plan, .fold = &fold};

typedef struct claim {
    const char *what;
    uint32_t came[OWNERS];              /* slots of the shards of host 0 and host 1 */
    uint64_t lack;                      /* owners whose shards lack ranks by the count of those that we know of */
    uint64_t told;                      /* owners that have told their masks ... */
    uint64_t full[OWNERS], any[OWNERS]; /* ... which are these, ... */
    uint64_t later;                     /* ... and those of them whose record has made room for a later op's */
    uint64_t want_full, want_any;
} claim;

static ut_receipt masks_of(const claim *c)
{
    static ut_record record[HOSTS];
    ut_account_facts f = {
        .seq = OP, .full_mask = OURS, .any_mask = OURS, .peer_full = UINT64_MAX, .peer_masks = c->told};
    memset(&plan, 0, sizeof plan);
    memset(record, 0, sizeof record);
    plan.schedule.direct = true;
    plan.schedule.own_bytes = 1;
    fold.result.short_hosts = c->lack;
    for (uint32_t h = 0; h < HOSTS; h++) {
        f.record[h] = &record[h];
        plan.rx_of[1][h] = UINT32_MAX;
        if (h >= OWNERS)
            continue;
        plan.rx_of[1][h] = h;
        plan.transfer[h].slots = SLOTS;
        plan.transfer[h].done = c->came[h];
        record[h].op_seq = c->later & ut_bit(h) ? OP + UT_OPS_MAX : OP;
        if (c->told & ut_bit(h)) {
            f.peer_full &= c->full[h];
            record[h].flags = UT_RECORD_RESULT;
            record[h].full_mask = c->later & ut_bit(h) ? UINT64_MAX : c->full[h];
            record[h].any_mask = c->later & ut_bit(h) ? UINT64_MAX : c->any[h];
        }
    }
    ut_receipt r = {0};
    ut_receipt_masks(&account, &f, &r);
    return r;
}

static void masks__say_what_is_known_and_no_more(void)
{
    static const claim claims[] = {
        {"all came, and lacks nobody", {ALL, ALL}, 0, 0, {0}, {0}, 0, 7, 15},
        {"all came, and the owners have told the same", {ALL, ALL}, 0, 3, {7, 7}, {7, 7}, 0, 7, 7},
        {"ranks are missing, of whom we know", {ALL, ALL}, 1, 3, {3, 7}, {3, 7}, 0, 3, 7},
        {"ranks are missing, of whom we do not", {ALL, ALL}, 1, 2, {0, 7}, {0, 7}, 0, 0, 7},
        /* Host 0's shard holds hosts 0 and 3. If two ranks have announced themselves, it lacks none by the count. */
        {"one who was never heard is in place of us", {ALL, ALL}, 0, 3, {9, 7}, {9, 7}, 0, 1, 15},
        {"in place of us, and the other owner has told nothing", {ALL, ALL}, 0, 1, {9}, {9}, 0, 1, 15},
        {"some are in some of it alone", {ALL, ALL}, 0, 3, {1, 7}, {9, 7}, 0, 1, 15},
        {"a part of it came: perhaps without those", {PART, ALL}, 0, 3, {1, 7}, {9, 7}, 0, 0, 7},
        {"a part of it came, of which all hold host 3", {PART, ALL}, 0, 3, {9, 7}, {9, 7}, 0, 0, 15},
        {"a part of it came, and ours is in the rest", {PART, ALL}, 0, 3, {15, 7}, {15, 7}, 0, 4, 15},
        {"nothing came: our own stands for it, whoever is there", {NOTHING, ALL}, 0, 3, {9, 7}, {9, 7}, 0, 4, 7},
        {"nothing came of what lacks ranks", {NOTHING, ALL}, 1, 2, {0, 7}, {0, 7}, 0, 4, 7},
        {"the record went, its mask stays", {ALL, ALL}, 0, 3, {9, 7}, {9, 7}, 1, 1, 7},
        {"both records went", {ALL, ALL}, 3, 3, {3, 7}, {3, 7}, 3, 3, 7},
    };
    for (size_t i = 0; i < sizeof claims / sizeof *claims; i++) {
        const claim *c = &claims[i];
        ut_receipt r = masks_of(c);
        CHECK_MSG(r.full_mask == c->want_full, "%s: in every byte %#" PRIx64 ", want %#" PRIx64, c->what, r.full_mask,
                  c->want_full);
        CHECK_MSG(r.any_mask == c->want_any, "%s: in some byte %#" PRIx64 ", want %#" PRIx64, c->what, r.any_mask,
                  c->want_any);
    }
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(masks__say_what_is_known_and_no_more);
    return check_end();
}
