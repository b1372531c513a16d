# SPDX-License-Identifier: Apache-2.0
"""D9: federated averaging over containers (Algorithm 2): ten clients, both ways compressed, each with its memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.reproduce.study import Grid, Row, Study
from tests.reproduce.ultima.hadamard import Net, images
from ultima.sparse import Feedback, decode, encode
from ultima.sparse.kernels import Floats

CLIENTS, ROUNDS, LOCAL_STEPS, BATCH, RATE, RATIO = 10, 60, 4, 16, 0.1, 0.1
SEEDS = (1, 2, 3)
CODECS: dict[str, dict[str, Any] | None] = {
    "no compression": None,
    "Top-r": {"index": "raw", "value": "raw"},
    "BF-P0 and QSGD": {"index": "bloom-p0", "value": "qsgd"},
    "BF-P1": {"index": "bloom-p1", "value": "raw", "bloom_error": 0.004},
    "BF-P2": {"index": "bloom-p2", "value": "raw", "bloom_error": 0.004},
    "Fit-Poly": {"index": "raw", "value": "fit-poly"},
    "BF-P2 and Fit-Poly": {"index": "bloom-p2", "value": "fit-poly", "bloom_error": 0.004},
    "delta and QSGD": {"index": "delta", "value": "qsgd"},
}


class Leg:
    """One direction of one pair: what is given to it arrives late, but arrives."""

    def __init__(self, size: int, options: dict[str, Any] | None) -> None:
        self._memory, self._options = Feedback(size, RATIO), options
        self.bytes = 0

    def send(self, update: Floats, seed: int) -> Floats:
        """What the other end decodes."""
        if self._options is None:
            self.bytes += update.nbytes
            return update
        chosen = self._memory.select(update)
        packed = encode(chosen.indices, chosen.values, chosen.size, seed=seed, **self._options)
        self.bytes += len(packed)
        arrived = decode(packed, update.size)
        self._memory.settle(chosen, arrived)
        return arrived.dense()


def train(options: dict[str, Any] | None, seed: int, rounds: int = ROUNDS) -> tuple[float, int]:
    """Accuracy in percent on 600 images that no client has, and bytes of all messages."""
    x, labels = images()
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(x))
    held = np.array_split(order[:-600], CLIENTS)
    net = Net(rng)
    server = net.flat.astype(np.float32)
    clients = server.copy()  # what all clients hold: the server tells all the same
    down, up = Leg(server.size, options), [Leg(server.size, options) for _ in range(CLIENTS)]
    for number in range(rounds):
        total = np.zeros(server.size, np.float32)
        for client, mine in enumerate(held):
            net.flat = clients.astype(np.float64)
            for _ in range(LOCAL_STEPS):
                batch = rng.choice(mine, BATCH)
                net.flat -= RATE * net.gradient(x[batch], labels[batch])
            pushed = (clients - net.flat).astype(np.float32)  # the sum of the local gradients, times the rate
            total += up[client].send(pushed, number * CLIENTS + client)
        step = -total / np.float32(CLIENTS)
        server += step
        clients = clients + down.send(step, number)
    net.flat = clients.astype(np.float64)
    return 100 * net.accuracy(x[order[-600:]], labels[order[-600:]]), down.bytes + sum(leg.bytes for leg in up)


def judge(accuracy: dict[str, float]) -> list[Row]:
    rows, base = [], accuracy["Top-r"]
    for name, value in accuracy.items():
        if name not in ("no compression", "Top-r"):
            rows.append(Row(f"D9: accuracy of {name}", "that of Top-r", f"{value:.2f} of {base:.2f} %",
                            "at most 1 point below Top-r with memory", base - value <= 1))  # fmt: skip
    rows.append(
        Row("D9: accuracies of the paper's models, 380 times SKCompress's speed", "Table 2, section 6", "no such "
            "training here; SKCompress is not built", "-", None)
    )  # fmt: skip
    return rows


def run() -> Study:
    study = Study(
        "learning",
        "D9: federated averaging over containers (Algorithm 2)",
        f"A net of 64-64-10 in numpy on 1,797 images of digits; {CLIENTS} clients with a tenth of the images each, "
        f"{ROUNDS} rounds of {LOCAL_STEPS} local steps, seeds {', '.join(map(str, SEEDS))}. Clients push the sum of "
        "their local gradients, the server sends its step back; both are the largest 10 % with error feedback, and "
        "what a codec loses is kept, too. The paper trains an LSTM on Stack Overflow; the direction is compared.",
    )
    found = {name: [train(options, seed) for seed in SEEDS] for name, options in CODECS.items()}
    dense = sum(sent for _, sent in found["no compression"])
    header = ("codec", *(f"seed {seed}" for seed in SEEDS), "mean", "bytes")
    grid = Grid("Accuracy in percent, and bytes to dense", header)
    accuracy = {name: float(np.mean([value for value, _ in runs])) for name, runs in found.items()}
    for name, runs in found.items():
        told = (f"{value:.2f}" for value, _ in runs)
        share = sum(sent for _, sent in runs) / dense
        grid.rows.append((name, *told, f"{accuracy[name]:.2f}", f"{share:.4f}"))
    study.grids.append(grid)
    study.rows = judge(accuracy)
    return study
