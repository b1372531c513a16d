/* SPDX-License-Identifier: Apache-2.0
 *
 * What a range of worlds must at least once have seen.
 */
#ifndef SIM_COVER_H
#define SIM_COVER_H

/* What can go wrong, and what must at least once have been seen: each has a counter of how often it really struck. */
/* clang-format off */
#define SIM_COVER(X) \
    X(loss) X(burst) X(reorder) X(duplicate) X(corrupt) X(truncate) X(extend) X(replay) X(replay_old_op) \
    X(misdeliver) X(garbage) X(forged) X(empty) X(evil) X(partition_both_ways) X(partition_one_way) \
    X(black_hole) X(pieces) X(jitter) X(slow_link) X(link_queue_full) X(host_queue_full) X(congestion_mark) X(pause) X(slow_wake) X(send_blocked) X(coalesced) \
    X(trainer_death) X(trainer_return) X(daemon_death) X(daemon_return) X(absent_told) X(old_life) X(desync) \
    X(desync_named) X(tight_deadline) X(past_deadline) X(bad_submission) X(silent_check) X(several_jobs) \
    X(several_local_ranks) X(submitted_ahead) X(in_place) X(empty_bucket) X(fewer_elements_than_hosts) \
    X(nonfinite) X(sequence_wrap_16) X(sequence_wrap_32) X(clock_wrap_32us) X(clock_wrap_63) X(status_complete) \
    X(status_partial) X(status_insufficient) X(status_failed) X(redop_sum) X(redop_avg) X(redop_min) \
    X(redop_max) X(redop_prod) X(dtype_float32) X(dtype_float64) X(dtype_float16) X(dtype_bfloat16) \
    X(algorithm_tar) X(algorithm_ring) X(algorithm_bcube) X(algorithm_ps) \
    X(dtype_int32) X(dtype_int64) X(mode_bounded) X(mode_best_effort) X(mode_reliable) X(t_b_measured) \
    X(t_b_by_hand) X(ended_by_t_b) X(waited_for_calls) X(ended_early) X(adaptive_deadline) X(incast_seen) X(agreed) X(agree_failed) \
    X(calm_complete) X(calm_without_absent) X(transformed) X(transformed_partial) X(replicas_same) \
    X(replicas_differ) X(replicas_told) X(reduce_scatter) X(all_gather) X(broadcast) X(all_to_all) X(barrier) \
    X(owner_gone) X(owner_back) X(hostile) X(lie) X(path_renewed) X(honest_whole) X(many_hosts) X(told_in_turn) \
    X(sealed) X(sealed_by_library) X(keys_changed) X(secrets_changed) X(lie_sealed) \
    X(epoch) X(epoch_held) X(epoch_late) X(epoch_apart) X(epoch_alike) X(epoch_untold) X(epoch_without_live) \
    X(epoch_options) X(epoch_quick) X(epoch_hold_in_vain) X(epoch_none)
/* clang-format on */
/* Of worlds with partial jobs. */
/* clang-format off */
#define SIM_COVER_PARTIAL(X) \
    X(full) X(solo) X(majority) X(quorum) X(probe) X(seeded) X(fresh) X(stale) X(null) X(kept) X(empty_answer) \
    X(overtaken) X(replaced) X(taken_back) X(sticky_again) X(answered_at_once) X(read) X(insufficient) X(complete) \
    X(partial) X(failed) X(world_divisor) X(contributors_divisor) X(dragged_in) X(two_initiators) X(tau_waited) \
    X(pick_dead) X(scribbled) X(sleeper) X(joined_late) X(bounded) X(best_effort) X(reliable) X(short_deadline) \
    X(policy_changed) X(probe_answered) X(probe_expired) X(probe_again) X(probe_lost) X(probe_twice) X(probe_lied) \
    X(activated_by_probe) X(controller_moved) X(two_controllers) X(several_local) X(whole_conserved) X(calm_good) \
    X(owner_gone) X(owner_back) X(hostile) X(lie) X(path_renewed) X(many_hosts) X(sealed)
/* clang-format on */
/* Of worlds with a coded job. */
/* clang-format off */
#define SIM_COVER_CODED(X) \
    X(exact) X(estimate) X(timeout) X(absent) X(behind) X(over) X(waits) X(given_again) X(tried_again) X(stall) \
    X(joined) X(joined_late) X(began_with_own) X(dragged_in) X(late) X(unused) X(redundant) X(jump) \
    X(short_deadline) X(scribbled) X(float32) X(float64) X(calm_good) X(calm_without_hosts) X(undecodable) \
    X(honest_again)
/* clang-format on */
/* Of worlds with sparse allreduces. */
/* clang-format off */
#define SIM_COVER_SPARSE(X) \
    X(float32) X(float16) X(bfloat16) X(float8) X(sum) X(avg) X(bounded) X(best_effort) X(reliable) X(agree) X(rows) \
    X(long_rows) X(even) X(head) X(patches) X(few_ranks) X(no_entry) X(all_entries) X(empty) X(alone) X(several_local) \
    X(nonfinite) X(desync) X(complete) X(partial) X(insufficient) X(failed) X(late) X(fewer_owners) X(cut_divisor) \
    X(returned) X(hole) X(repaired) X(agreed) X(agree_failed) X(owner_gone) X(owner_back) X(hostile) X(lie) X(path_renewed) \
    X(many_hosts) X(sealed) X(calm_complete) X(int8) X(int8_partial) X(int8_nonfinite)
/* clang-format on */
/* Of worlds with quantised allreduces. */
/* clang-format off */
#define SIM_COVER_QUANT(X) \
    X(int16) X(int8) X(int4) X(finer_answer) X(sum) X(avg) X(bounded) X(best_effort) X(reliable) X(agree) X(nearest) \
    X(at_random) X(residual) X(empty) X(alone) X(several_local) X(nonfinite) X(desync) X(complete) X(partial) \
    X(insufficient) X(late) X(fewer_owners) X(hole) X(own_in_hole) X(repaired) X(weighed) X(weighed_dense)
/* clang-format on */
/* Of worlds with a job whose hosts come and go. */
/* clang-format off */
#define SIM_COVER_SEATS(X) \
    X(left) X(died) X(joined) X(taken_again) X(empty_at_first) X(changed) X(complete_all) X(complete_fewer) \
    X(complete_alone) X(partial) X(insufficient) X(not_in) X(before_in)
/* clang-format on */
/* Of worlds in which addresses change. */
/* clang-format off */
#define SIM_COVER_MOVING(X) X(changed) X(nobody_there) X(followed) X(stolen) X(handed_on)
/* clang-format on */
/* Of worlds of any kind whose hosts are far apart: parity, what was made of it, and what came all the same. */
/* clang-format off */
#define SIM_COVER_FAR(X) X(parity_sent) X(parity_came) X(rebuilt) X(came_too) X(late_too) X(parity_lied)
/* clang-format on */
enum sim_cover {
#define SIM_COVER_ENUM(name) SIM_##name,
    SIM_COVER(SIM_COVER_ENUM)
#undef SIM_COVER_ENUM
#define SIM_COVER_ENUM(name) SIM_PART_##name,
        SIM_COVER_PARTIAL(SIM_COVER_ENUM)
#undef SIM_COVER_ENUM
#define SIM_COVER_ENUM(name) SIM_CODED_##name,
            SIM_COVER_CODED(SIM_COVER_ENUM)
#undef SIM_COVER_ENUM
#define SIM_COVER_ENUM(name) SIM_SPARSE_##name,
                SIM_COVER_SPARSE(SIM_COVER_ENUM)
#undef SIM_COVER_ENUM
#define SIM_COVER_ENUM(name) SIM_QUANT_##name,
                    SIM_COVER_QUANT(SIM_COVER_ENUM)
#undef SIM_COVER_ENUM
#define SIM_COVER_ENUM(name) SIM_SEATS_##name,
                        SIM_COVER_SEATS(SIM_COVER_ENUM)
#undef SIM_COVER_ENUM
#define SIM_COVER_ENUM(name) SIM_MOVING_##name,
                            SIM_COVER_MOVING(SIM_COVER_ENUM)
#undef SIM_COVER_ENUM
#define SIM_COVER_ENUM(name) SIM_FAR_##name,
                                SIM_COVER_FAR(SIM_COVER_ENUM)
#undef SIM_COVER_ENUM
                                    SIM_COVERS,
    SIM_COVERS_ORDINARY = SIM_PART_full,
    SIM_COVERS_PARTIAL = SIM_CODED_exact,
    SIM_COVERS_UNSPARSE = SIM_SPARSE_float32,
    SIM_COVERS_UNQUANT = SIM_QUANT_int16,
    SIM_COVERS_UNSEATED = SIM_SEATS_left,
    SIM_COVERS_UNMOVING = SIM_MOVING_changed,
    SIM_COVERS_NEAR = SIM_FAR_parity_sent
};
extern const char *const sim_cover_name[SIM_COVERS];

#endif
