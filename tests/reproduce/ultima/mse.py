# SPDX-License-Identifier: Apache-2.0
"""U5, the paper's Table 2: the error that one lost packet makes under a ring, a parameter server and TAR.

A model of the schedules alone, after their definition: each packet of each transfer is lost for itself, and what is
lost counts as zero, as in the paper. Values are independent and normal. Theory, per element of the average of N values
of variance 1, to first order in the loss p: TAR and parameter server 2 (N - 1) p / N^2, ring N (N - 1) p / N^2.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tests.reproduce.study import Grid, Row, Study

Values = npt.NDArray[np.float64]
PAPER = {"ring": 14.55, "parameter server": 9.90, "TAR": 2.47}
LOSS = 0.001
PACKET = 4  # elements that share a packet's fate; more would only need more packets for the same certainty


def _survive(rng: np.random.Generator, shape: tuple[int, ...], loss: float) -> Values:
    """1 for each packet that arrives, 0 for each that does not, for every element."""
    came = (rng.random((*shape[:-1], shape[-1] // PACKET)) >= loss).astype(np.float64)
    return np.repeat(came, PACKET, axis=-1)


def ring(x: Values, loss: float, rng: np.random.Generator) -> Values:
    """What every node ends with: [node, element]. Shard j starts at node j + 1 and is complete at node j."""
    n, size = x.shape
    shards = x.reshape(n, n, size // n)
    out = np.empty_like(shards)
    for j in range(n):
        partial = shards[(j + 1) % n, j]
        for hop in range(2, n + 1):
            partial = partial * _survive(rng, partial.shape, loss) + shards[(j + hop) % n, j]
        passed = partial / n
        out[j, j] = passed
        for hop in range(1, n):
            passed = passed * _survive(rng, passed.shape, loss)
            out[(j + hop) % n, j] = passed
    return out.reshape(n, size)


def tar(x: Values, loss: float, rng: np.random.Generator) -> Values:
    """Each shard is sent to its owner by all others, and by its owner to all others."""
    n, size = x.shape
    shards = x.reshape(n, n, size // n)
    out = np.empty_like(shards)
    for j in range(n):
        came = _survive(rng, (n, size // n), loss)
        came[j] = 1
        mean = (shards[:, j] * came).sum(axis=0) / n
        back = _survive(rng, (n, size // n), loss)
        back[j] = 1
        out[:, j] = mean * back
    return out.reshape(n, size)


def server(x: Values, loss: float, rng: np.random.Generator) -> Values:
    """Node 0 serves: it keeps its own, everything else crosses the network twice."""
    n, size = x.shape
    came, back = (_survive(rng, (n, size), loss) for _ in range(2))
    came[0] = back[0] = 1
    return (x * came).sum(axis=0) / n * back


SCHEDULES = {"ring": ring, "parameter server": server, "TAR": tar}


def theory(name: str, n: int, loss: float) -> float:
    factor = n if name == "ring" else 2
    return factor * (n - 1) * loss / n**2


def error(name: str, n: int, loss: float, packets: int, seed: int) -> float:
    """Mean squared error of an element of the average, over all nodes."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, packets // n * n * PACKET))
    found = SCHEDULES[name](x, loss, rng)
    return float(np.mean((found - x.mean(axis=0)) ** 2))


def run(packets: int = 30_000, repeats: int = 4) -> Study:
    study = Study(
        "mse",
        "U5: error of an unreliable transport (Table 2)",
        f"A model in numpy of the three schedules, {100 * LOSS:g} % of packets lost for themselves, lost values "
        f"counted as zero; {repeats} repeats of {packets} packets a node. The executor of this repository is not "
        "used: it divides by what arrived, so its errors are smaller and of another kind. The paper's absolute "
        "figures depend on gradients that it does not publish; their ratio does not. Its parameter server loses "
        "more than the model's because all senders share one queue, which is not modelled.",
    )
    grid = Grid(
        "Mean squared error per element, values of variance 1", ("N", "schedule", "theory", "measured", "ratio to TAR")
    )
    ratios: dict[int, float] = {}
    for n in (4, 6, 8):
        found = {name: float(np.mean([error(name, n, LOSS, packets, 100 * n + k) for k in range(repeats)]))
                 for name in SCHEDULES}  # fmt: skip
        ratios[n] = found["ring"] / found["TAR"]
        for name, value in found.items():
            grid.rows.append(
                (str(n), name, f"{theory(name, n, LOSS):.3e}", f"{value:.3e}", f"{value / found['TAR']:.2f}")
            )
    study.grids.append(grid)
    text = ", ".join(f"N={n}: {ratio:.2f}" for n, ratio in ratios.items())
    holds = all(abs(ratio / (n / 2) - 1) <= 0.10 for n, ratio in ratios.items())
    study.rows.append(Row("U5: ring over TAR", "14.55 / 2.47 = 5.9 at N=6", text, "within 10 % of N/2 (theory)", holds))
    study.rows.append(
        Row("U5: TAR is an order of magnitude better", "5.9 times", f"{ratios[6]:.1f} times at N=6",
            "at least 10 times at N=6", ratios[6] >= 10)
    )  # fmt: skip
    return study
