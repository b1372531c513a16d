# SPDX-License-Identifier: Apache-2.0
"""How patience follows what was measured: numbers in, numbers out."""

import random
from functools import reduce

import pytest

from tests.seeds import seeds
from ultima.daemon.hosts import distance
from ultima.daemon.hosts.distance import Distances, RoundTrip, connection, exchange

UNKNOWN = RoundTrip()


def after(*samples: float) -> RoundTrip:
    return reduce(lambda trip, sample: trip.then(sample), samples, UNKNOWN)


def test_round_trip__is_smoothed_as_rfc_6298_says() -> None:
    first = after(0.3)
    assert (first.mean, first.deviation, first.most) == (0.3, 0.15, pytest.approx(0.9))
    second = after(0.3, 0.5)  # SRTT 7/8 and 1/8, RTTVAR 3/4 and 1/4, of the mean as it was
    assert second.mean == pytest.approx(0.325) and second.deviation == pytest.approx(0.1625)
    assert after(*[0.3] * 50).timeout == pytest.approx(0.3, rel=0.01), "what never changes is trusted"


def test_round_trip__of_a_connection_that_lost_a_packet_says_nothing_of_the_way() -> None:
    """A network that was cut for five seconds. Where the way has become longer, the fourth sample in a row counts."""
    near = after(0.0002, 0.0002)
    cut = near.then(5 / 3)
    assert (cut.mean, cut.deviation, cut.timeout) == (near.mean, near.deviation, 0.2)
    assert cut.then(0.0002).slow == 0, "the next one fits"
    assert after(0.0002, 0.3, 0.3, 0.3).most < 0.001 < 0.2 < after(0.0002, 0.3, 0.3, 0.3, 0.3).most
    assert after(0.3, 0.5).slow == 0, "below the time-out"


@pytest.mark.parametrize(
    ("trip", "timeout"),
    [
        (UNKNOWN, 1.0),  # nothing was measured
        (after(0.0002), 0.2),  # a rack: no less than TCP's least
        (after(0.0002, 0.08), 0.2),
        (after(0.3), 0.9),
        (after(2.0), 6.0),
    ],
)
def test_timeout__is_the_initial_one_or_by_what_was_measured(trip: RoundTrip, timeout: float) -> None:
    assert trip.timeout == pytest.approx(timeout)
    assert exchange(trip) == pytest.approx(4 * timeout) and connection(trip) == pytest.approx(6 * timeout)


def test_timeout__doubles_while_nothing_comes_but_not_beyond_an_unknown_way() -> None:
    known = Distances()
    known.late("10.0.0.2", 29520)
    assert known.to("10.0.0.2", 29520) == UNKNOWN and len(known) == 0, "nothing is remembered of who never answered"
    known.stands("10.0.0.2", 29520, 0.0004, 2)
    seen = []
    for _ in range(5):
        known.late("10.0.0.2", 29520)
        seen.append(known.to("10.0.0.2", 29520).timeout)
    assert seen == pytest.approx([0.4, 0.8, 1.0, 1.0, 1.0])
    known.stands("10.0.0.2", 29520, 0.0004, 2)
    assert known.to("10.0.0.2", 29520).timeout == pytest.approx(0.2), "a sample ends it"
    known.stands("10.0.0.3", 29520, 9.0, 3)
    known.late("10.0.0.3", 29520)
    assert known.to("10.0.0.3", 29520).timeout == pytest.approx(9.0), "3 s, and a deviation of half of it"


def test_distances__a_connection_is_so_many_exchanges_and_places_are_bounded() -> None:
    known = Distances()
    known.stands("10.0.0.2", 1, 0.9, 3)
    assert known.to("10.0.0.2", 1).mean == pytest.approx(0.3) and known.to("10.0.0.2", 2) == UNKNOWN
    for port in range(2, distance.PLACES_MAX + 2):
        known.stands("10.0.0.2", port, 0.1, 2)
    assert len(known) == distance.PLACES_MAX and known.to("10.0.0.2", 1) == UNKNOWN, "the oldest one goes"


@pytest.mark.parametrize("seed", seeds(2))
def test_patience__is_never_less_than_a_few_round_trips_of_those_measured(seed: int) -> None:
    """Whatever the samples: the newest one fits into what an exchange and a connection are given, several times when
    it is like the ones before."""
    draw = random.Random(seed)
    for _ in range(200):
        base = 10 ** draw.uniform(-4, 0.7)
        trip = after(*(base * draw.uniform(0.9, 1.5) for _ in range(draw.randint(1, 30))))
        assert exchange(trip) >= 3 * base and connection(trip) >= 4.5 * base, (seed, base, trip)
        assert exchange(trip) <= max(0.8, 19 * base), (seed, base, trip)
