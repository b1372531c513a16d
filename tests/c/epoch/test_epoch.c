/* SPDX-License-Identifier: Apache-2.0
 *
 * The epochs that a job keeps: which are taken, from which op on they hold, and what a hold keeps from opening.
 */
#include "check.h"
#include "core/base/bits.h"
#include "core/epoch/epoch.h"

enum { HOSTS = 4, MOST = 1 };
#define ALL ut_bits_below(HOSTS)

static const uint16_t most[UT_EPOCH_OPTIONS] = {[UT_EPOCH_CODEC] = MOST};

static ut_epochs begin(uint16_t codec)
{
    ut_epoch first = {.number = 9, .id = 9, .from = 9, .members = ALL, .owners = ALL, .world = 7};
    memcpy(first.ranks_of, (uint8_t[]){1, 2, 3, 1}, HOSTS);
    first.option[UT_EPOCH_CODEC] = codec;
    ut_epochs e;
    ut_epochs_init(&e, &first, most);
    return e;
}

static ut_epoch epoch(uint64_t number, uint64_t from)
{
    return (ut_epoch){
        .number = number, .id = 0xab0000 + number, .from = from, .members = ALL, .owners = ALL, .world = 7};
}

/* ---- what a job begins with ---- */

static void init__all_own_and_options_name_themselves(void)
{
    ut_epochs plain = begin(0), coded = begin(1);
    CHECK_EQ(plain.kept->number, 0);
    CHECK_EQ(plain.kept->id, 0);
    CHECK_HEX(plain.kept->owners, ALL);
    CHECK_EQ(ut_epoch_at(&plain, 0)->number, 0);
    CHECK_EQ(ut_epoch_at(&plain, UINT64_MAX)->number, 0);
    CHECK_NE((uint16_t)coded.kept->id, 0);         /* hosts that begin with other options refuse each other's data */
    CHECK_HEX(coded.kept->id, 0x106e11b2223f6961); /* the same in every build */
    CHECK_EQ(ut_epoch_at(&coded, 3)->option[UT_EPOCH_CODEC], 1);
    CHECK_EQ(coded.whole.id, 0); /* what needs every host is plain */
    CHECK_EQ(coded.whole.option[UT_EPOCH_CODEC], 0);
}

/* ---- options ---- */

static void keep_fixed__what_cannot_change_is_as_the_job_began(void)
{
    ut_epoch first = {.members = ALL, .owners = ALL, .world = 7};
    first.options = (ut_job_options){
        .algorithm = UT_BCUBE, .tau = 3, .policy_seed = 77, .split = UT_SPLIT_NEVER, .deterministic = 1, .t_b_ns = 9};
    ut_epochs e;
    ut_epochs_init(&e, &first, most);
    CHECK_EQ(ut_epoch_at(&e, 0)->options.t_b_ns, 9);
    ut_epoch x = epoch(1, 4);
    x.options = (ut_job_options){.algorithm = UT_RING, .tau = 5, .policy_seed = 1, .stragglers = 2, .children = 2};
    CHECK_EQ(ut_epochs_take(&e, &x, 0), UT_OK);
    CHECK_EQ(ut_epoch_at(&e, 3)->options.tau, 3);
    const ut_job_options *now = &ut_epoch_at(&e, 4)->options;
    CHECK_EQ(now->tau, 5);
    CHECK_EQ(now->t_b_ns, 0);
    CHECK_EQ(now->algorithm, UT_BCUBE);
    CHECK_EQ(now->policy_seed, 77);
    CHECK_EQ(now->split, UT_SPLIT_NEVER);
    CHECK_EQ(now->deterministic, 1);
    CHECK_EQ(now->stragglers + now->children, 0);
    x = epoch(2, 6); /* says nothing of options */
    CHECK_EQ(ut_epochs_take(&e, &x, 0), UT_OK);
    CHECK_EQ(ut_epoch_at(&e, 6)->options.tau, 3);
    CHECK_EQ(ut_epoch_at(&e, 6)->options.t_b_ns, 9);
}

/* ---- from which op ---- */

typedef struct given {
    uint64_t number, from, next_open;
} given;

static void take__holds_from_its_op_and_those_before_keep_theirs(void)
{
    static const struct {
        const char *what;
        given given[3];
        uint64_t at[8]; /* by op: the number under which it opens */
    } rows[] = {
        {"one", {{1, 4, 0}}, {0, 0, 0, 0, 1, 1, 1, 1}},
        {"at once", {{1, 0, 0}}, {1, 1, 1, 1, 1, 1, 1, 1}},
        {"from an op that is open: from the next", {{1, 2, 5}}, {0, 0, 0, 0, 0, 1, 1, 1}},
        {"two: the first ends where the second begins", {{1, 2, 0}, {2, 4, 3}}, {0, 0, 1, 1, 2, 2, 2, 2}},
        {"numbers may be left out", {{1, 2, 0}, {9, 4, 3}}, {0, 0, 1, 1, 9, 9, 9, 9}},
        {"one that was never in force is as if it had not been", {{1, 4, 0}, {2, 4, 1}}, {0, 0, 0, 0, 2, 2, 2, 2}},
        {"nor is one in whose place an earlier op comes", {{1, 6, 0}, {2, 3, 1}}, {0, 0, 0, 2, 2, 2, 2, 2}},
        {"nor one that is put off behind what is open", {{1, 5, 0}, {2, 3, 5}}, {0, 0, 0, 0, 0, 2, 2, 2}},
        {"of three none takes the ops of another", {{1, 2, 0}, {2, 4, 2}, {3, 6, 4}}, {0, 0, 1, 1, 2, 2, 3, 3}},
        {"an op that is yet to open keeps its own, though two came since",
         {{1, 3, 1}, {2, 6, 1}},
         {0, 0, 0, 1, 1, 1, 2, 2}},
        {"nor does one of which nothing is left stand before it",
         {{1, 3, 1}, {2, 6, 1}, {3, 2, 1}},
         {0, 0, 3, 3, 3, 3, 3, 3}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ut_epochs e = begin(0);
        for (unsigned k = 0; k < 3 && rows[i].given[k].number; k++) {
            ut_epoch x = epoch(rows[i].given[k].number, rows[i].given[k].from);
            CHECK_EQ(ut_epochs_take(&e, &x, rows[i].given[k].next_open), UT_OK);
        }
        for (uint64_t op = 0; op < 8; op++)
            CHECK_MSG(ut_epoch_at(&e, op)->number == rows[i].at[op], "%s: op %" PRIu64 " opens under %" PRIu64,
                      rows[i].what, op, ut_epoch_at(&e, op)->number);
    }
}

static void take__the_newest_few_are_kept(void)
{
    ut_epochs e = begin(0);
    for (uint64_t number = 1; number <= UT_EPOCHS_KEPT + 1; number++) {
        ut_epoch x = epoch(number, 10 * number);
        CHECK_EQ(ut_epochs_take(&e, &x, 0), UT_OK);
    }
    for (uint64_t number = 2; number <= UT_EPOCHS_KEPT + 1; number++)
        CHECK_EQ(ut_epoch_at(&e, 10 * number)->number, number);
    CHECK_EQ(ut_epoch_at(&e, 0)->number, 2); /* the oldest that is kept */
}

static void take__ranks_are_the_jobs_if_it_says_none(void)
{
    ut_epochs e = begin(0);
    ut_epoch x = epoch(1, 0);
    CHECK_EQ(ut_epochs_take(&e, &x, 0), UT_OK);
    CHECK_BYTES(e.kept->ranks_of, e.whole.ranks_of, sizeof e.whole.ranks_of);
    CHECK_EQ(e.kept->ranks_of[2], 3);
}

static void take__a_whole_result_may_be_of_the_members_alone(void)
{
    ut_epochs e = begin(0);
    ut_epoch x = epoch(1, 0);
    x.members = x.owners = 1u << 2 | 1u << 3;
    x.world = e.whole.ranks_of[2] + e.whole.ranks_of[3];
    CHECK_EQ(ut_epochs_take(&e, &x, 0), UT_OK);
    CHECK_EQ(ut_epoch_at(&e, 0)->world, x.world);
    ut_epoch y = x;
    y.number++, y.world--;
    CHECK_EQ(ut_epochs_take(&e, &y, 0), UT_ERR_ARGUMENT);
    y.world = e.whole.world;
    CHECK_EQ(ut_epochs_take(&e, &y, 0), UT_OK);
}

/* ---- what is refused ---- */

static void take__order(void)
{
    ut_epochs e = begin(0);
    ut_epoch first = epoch(5, 0), again = first, lower = epoch(4, 0), other = first, next = epoch(6, 3);
    other.id++;
    CHECK_EQ(ut_epochs_take(&e, &first, 0), UT_OK);
    const ut_epochs was = e;
    again.from = 7;
    CHECK_EQ(ut_epochs_take(&e, &again, 0), UT_OK); /* it is here: nothing is moved */
    CHECK_EQ(ut_epochs_take(&e, &lower, 0), UT_ERR_SEQUENCE);
    CHECK_EQ(ut_epochs_take(&e, &other, 0), UT_ERR_SEQUENCE);
    CHECK_BYTES(&e, &was, sizeof e);
    CHECK_EQ(ut_epochs_take(&e, &next, 1), UT_OK);
    CHECK_EQ(ut_epochs_take(&e, &first, 1), UT_ERR_SEQUENCE); /* the older one that is kept */
}

static void take__range(void)
{
    static const struct {
        const char *what;
        ut_epoch x;
    } rows[] = {
        {"number 0", {.members = 15, .owners = 15, .world = 7}},
        {"no owner", {.number = 1, .members = 15, .world = 7}},
        {"an owner that is no member", {.number = 1, .members = 7, .owners = 15, .world = 7}},
        {"a member that is no host", {.number = 1, .members = 31, .owners = 15, .world = 7}},
        {"another world", {.number = 1, .members = 15, .owners = 15, .world = 8}},
        {"other ranks", {.number = 1, .members = 15, .owners = 15, .world = 7, .ranks_of = {2, 2, 2, 1}}},
        {"an option too large", {.number = 1, .members = 15, .owners = 15, .world = 7, .option = {MOST + 1}}},
        {"an option that is none", {.number = 1, .members = 15, .owners = 15, .world = 7, .option = {0, 0, 0, 1}}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ut_epochs e = begin(0);
        const ut_epochs was = e;
        CHECK_MSG(ut_epochs_take(&e, &rows[i].x, 0) == UT_ERR_ARGUMENT, "%s", rows[i].what);
        CHECK_BYTES(&e, &was, sizeof e);
    }
}

/* ---- holds ---- */

static void hold__until_its_time_or_the_next_epoch(void)
{
    ut_epochs e = begin(0);
    CHECK_EQ(ut_epochs_open_at(&e, 0), 0);
    CHECK_EQ(ut_epochs_hold_ends(&e), UT_NEVER);
    ut_epochs_hold(&e, 5, 1000);
    CHECK_EQ(ut_epochs_open_at(&e, 4), 0);
    CHECK_EQ(ut_epochs_open_at(&e, 5), 1000);
    CHECK_EQ(ut_epochs_open_at(&e, 50), 1000);
    CHECK_EQ(ut_epochs_hold_ends(&e), 1000);
    ut_epochs_hold(&e, 7, UT_NEVER); /* in the place of the first */
    CHECK_EQ(ut_epochs_open_at(&e, 6), 0);
    CHECK_EQ(ut_epochs_open_at(&e, 7), UT_NEVER);
    ut_epoch refused = epoch(1, 0), x = epoch(1, 9);
    refused.world = 1;
    CHECK_EQ(ut_epochs_take(&e, &refused, 0), UT_ERR_ARGUMENT);
    CHECK_EQ(ut_epochs_open_at(&e, 7), UT_NEVER);
    CHECK_EQ(ut_epochs_take(&e, &x, 0), UT_OK);
    CHECK_EQ(ut_epochs_open_at(&e, 7), UT_NEVER); /* one without an end is only replaced: too few hosts are here */
    ut_epochs_hold(&e, 7, 2000);
    x = epoch(2, 11);
    CHECK_EQ(ut_epochs_take(&e, &x, 0), UT_OK);
    CHECK_EQ(ut_epochs_open_at(&e, 7), 0);
    CHECK_EQ(ut_epochs_hold_ends(&e), 0); /* it is over, and what waits may be let go */
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(keep_fixed__what_cannot_change_is_as_the_job_began);
    RUN(init__all_own_and_options_name_themselves);
    RUN(take__holds_from_its_op_and_those_before_keep_theirs);
    RUN(take__the_newest_few_are_kept);
    RUN(take__ranks_are_the_jobs_if_it_says_none);
    RUN(take__a_whole_result_may_be_of_the_members_alone);
    RUN(take__order);
    RUN(take__range);
    RUN(hold__until_its_time_or_the_next_epoch);
    return check_end();
}
