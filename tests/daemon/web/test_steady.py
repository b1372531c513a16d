# SPDX-License-Identifier: Apache-2.0
"""What the page shows of sentences that come and go: measured ones hold, facts are shown at once."""

from ultima.daemon.web.steady import HOLD_S, Steady
from ultima.daemon.web.why import Why

WELL = Why("ok", "Nothing is slow.")
LATE = Why("warning", "Job a waits for n3.", "late a n3")
OTHER = Why("warning", "Job a waits for n2.", "late a n2")
GONE = Why("error", "Job a goes on without n3: not connected.")


def test_take__a_measured_sentence_is_shown_once_it_has_held() -> None:
    page = Steady()
    assert page.take(0.0, [WELL]) == WELL
    assert [page.take(1.0 + second, [LATE, WELL]) for second in range(int(HOLD_S))] == [WELL] * int(HOLD_S)
    assert page.take(1.0 + HOLD_S, [LATE, WELL]) == LATE


def test_take__noise_in_turns_is_never_shown() -> None:
    page = Steady()
    page.take(0.0, [WELL])
    shown = {page.take(1.0 + second, [(LATE, OTHER)[second % 2], WELL]) for second in range(60)}
    assert shown == {WELL}


def test_take__what_is_shown_stays_until_it_has_been_over_for_as_long_with_its_newest_words() -> None:
    page = Steady()
    assert page.take(0.0, [LATE, WELL]) == LATE, "who begins to look is told at once"
    worse = LATE._replace(text="Job a waits for n3, twice as long.")
    assert page.take(1.0, [worse, WELL]) == worse
    assert page.take(1.0 + HOLD_S - 0.1, [WELL]) == worse
    assert page.take(1.0 + HOLD_S, [WELL]) == WELL
    assert page.take(2.0 + HOLD_S, [LATE, WELL]) == WELL, "it begins anew"


def test_take__a_fact_is_shown_at_once_and_goes_at_once() -> None:
    page = Steady()
    assert page.take(0.0, [LATE, WELL]) == LATE
    assert page.take(1.0, [GONE, LATE, WELL]) == GONE
    assert page.take(2.0, [LATE, WELL]) == LATE


def test_take__what_is_grave_is_shown_at_once_and_stays_and_each_job_has_its_own() -> None:
    page, grave = Steady(), Why("error", "Job b: 3 of 4.", "not whole b", "b", at_once=True)
    late = LATE._replace(job="a")
    assert page.take(0.0, [WELL]) == WELL and page.of_job("b") is None
    assert page.take(1.0, [grave, late, WELL]) == grave
    assert page.of_job("b") == grave and page.of_job("a") is None, "who is late has to hold first"
    assert page.take(2.0, [late, WELL]) == grave, "one good second is no end"
    assert page.take(1.0 + HOLD_S, [late, WELL]) == late == page.of_job("a") and page.of_job("b") is None


def test_rest__who_looks_again_is_told_at_once() -> None:
    page = Steady()
    page.take(0.0, [WELL])
    assert page.take(1.0, [LATE, WELL]) == WELL
    page.rest()
    assert page.take(2.0, [LATE, WELL]) == LATE
