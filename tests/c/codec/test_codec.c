/* SPDX-License-Identifier: Apache-2.0
 *
 * A codec of the test's own (core/codec/codec.h) between two whole engines: a linear one that negates every value and
 * counts what it is asked. The owners sum what it made, and what comes back is the average of the plain values.
 */
#include "pair.h"

#include "core/codec/codec.h"
#include "core/face/engine_impl.h"

enum { COUNT = 4001 };

static unsigned encoded, decoded;
static bool fits_now;

static bool fits(const ut_op_what *what, uint32_t hosts_, unsigned algorithm)
{
    CHECK_EQ(hosts_, HOSTS);
    CHECK_EQ(algorithm, UT_TAR);
    return what->dtype == UT_FLOAT32 && fits_now;
}

static uint64_t bound(uint64_t bytes)
{
    return bytes;
}

/* The codec's place is kept for it from call to call. */
static bool negate(const ut_codec_op *c, const uint8_t *from, uint8_t *to)
{
    for (; c->way->at < c->what->bytes; c->way->at += 4) {
        float x;
        memcpy(&x, from + c->way->at, 4);
        x = -x;
        memcpy(to + c->way->at, &x, 4);
    }
    return true;
}

static bool encode(const ut_codec_op *c)
{
    CHECK_EQ(c->ranks, 1);
    CHECK_EQ(c->payload, 1440);
    encoded++;
    return negate(c, c->memory->own, c->memory->encoded);
}

static bool decode(const ut_codec_op *c, uint8_t *dst, uint64_t *nonfinite)
{
    CHECK_EQ(*nonfinite, 0);
    decoded++;
    return negate(c, c->memory->encoded, dst);
}

static const ut_codec negation = {
    .id = UT_CODECS_END, .linear = true, .fits = fits, .bound = bound, .encode = encode, .decode = decode};

/* Two engines whose jobs have this codec and have agreed on it. */
static void begin(void)
{
    world(1, 0);
    for (uint32_t h = 0; h < HOSTS; h++) {
        ut_job *j = hosts[h].engine->job[3];
        j->codec = &negation;
        j->epochs.kept->id = 0xabcd;
        j->epochs.kept->option[UT_EPOCH_CODEC] = negation.id;
        j->config.options.hadamard = UT_HADAMARD_ON;
    }
    encoded = decoded = 0;
    fits_now = true;
}

static void all_reduce(uint64_t seq)
{
    for (uint32_t h = 0; h < HOSTS; h++) {
        for (uint32_t i = 0; i < COUNT; i++)
            ((float *)(void *)hosts[h].rank[0].arena)[i] = (float)(i + 10 * h);
        ut_submission s = call_of(seq, COUNT, UT_AVG, UT_BOUNDED, UT_SECOND);
        s.dtype = UT_FLOAT32;
        submit(h, 0, s);
    }
    run(now + UT_SECOND + 20 * UT_MS);
}

static void check_average(void)
{
    ut_receipt r[HOSTS];
    for (uint32_t h = 0; h < HOSTS; h++) {
        r[h] = receipt(h, 0);
        CHECK_EQ(r[h].status, UT_COMPLETE);
        CHECK_EQ(r[h].hadamard, 0); /* it is another codec */
        for (uint32_t i = 0; i < COUNT; i++)
            if (!CHECK_DOUBLE(((float *)(void *)hosts[h].rank[0].arena)[i], (float)(i + 5)))
                break;
    }
    CHECK_HEX(r[0].digest, r[1].digest);
}

static void codec__a_linear_one_is_summed_on_the_way_and_decoded_at_the_end(void)
{
    begin();
    all_reduce(0);
    check_average();
    CHECK_EQ(encoded, HOSTS);
    CHECK_EQ(decoded, HOSTS);
    end_world();
}

static void codec__an_op_that_does_not_fit_travels_plainly(void)
{
    begin();
    fits_now = false;
    all_reduce(0);
    check_average();
    CHECK_EQ(encoded + decoded, 0);
    end_world();
}

/* Each hears of the other epoch, and closes what is between them; what came before that is refused by its tag. */
static void codec__what_was_encoded_is_not_taken_where_plain_values_are_due(void)
{
    begin();
    hosts[1].engine->job[3]->epochs.kept[0] = hosts[1].engine->job[3]->epochs.whole; /* it was told of no such codec */
    all_reduce(0);
    for (uint32_t h = 0; h < HOSTS; h++) {
        ut_stats stats;
        ut_engine_stats(hosts[h].engine, &stats);
        CHECK_EQ(stats.data_used, 0);
        CHECK(receipt(h, 0).status != UT_COMPLETE);
        for (uint32_t i = 0; i < COUNT; i++) /* each keeps its own, to the bit */
            if (!CHECK_DOUBLE(((float *)(void *)hosts[h].rank[0].arena)[i], (float)(i + 10 * h)))
                break;
    }
    end_world();
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(codec__a_linear_one_is_summed_on_the_way_and_decoded_at_the_end);
    RUN(codec__an_op_that_does_not_fit_travels_plainly);
    RUN(codec__what_was_encoded_is_not_taken_where_plain_values_are_due);
    return check_end();
}
