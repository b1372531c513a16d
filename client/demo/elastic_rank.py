# SPDX-License-Identifier: Apache-2.0
"""One rank of `ultima demo --elastic`: trains LeNet-5 in a job whose hosts come and go.

It loads what it needs, says so, and then does what its standard input says, a line each: `train JOB MEET` trains in a
job and tells the result, `leave` leaves the job. Standard output has one JSON object a line. The torch part is plain:
the model's parameters and their gradients are views of two flat vectors, and the momentum is a third.

Each op carries marks (`elastic_marks.py`), and each receipt is compared with what it speaks of.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import threading
import time
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

import ultima
from ultima import ElasticJob, Receipt, Status
from ultima.demo import data
from ultima.demo.elastic_marks import Floats, marked, unmarked, untruth, who_is_in
from ultima.demo.model import LeNet5
from ultima.demo.train import EVALUATION_BATCH, EVENT_PERIOD_S, to_batch
from ultima.demo.trainers import MOMENTUM

DEADLINE_S = 2.0
WAIT_S = 30.0  # for state, and for the job
BUCKET_BYTES = 1 << 20

_out = threading.Lock()


def say(event: str, **facts: Any) -> None:
    with _out:
        print(json.dumps({"event": event, **facts}), flush=True)


class Net:
    """LeNet-5 on flat vectors: `weights`, `gradient` and `momentum`, float32 of one length."""

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        self.model = LeNet5()
        parameters = list(self.model.parameters())
        self.weights: Floats = np.concatenate([each.detach().numpy().ravel() for each in parameters])
        self.gradient, self.momentum = np.zeros_like(self.weights), np.zeros_like(self.weights)
        at = 0
        for each in parameters:
            part = slice(at, at := at + each.numel())
            each.data = torch.from_numpy(self.weights[part]).view_as(each)
            each.grad = torch.from_numpy(self.gradient[part]).view_as(each)

    @property
    def state(self) -> dict[str, Floats]:
        """All that an op changes."""
        return {"weights": self.weights, "momentum": self.momentum}

    def compute(self, images: data.Images, mine: npt.NDArray[np.int64], batch: int) -> float:
        """The gradient of the sum over `mine`, divided by the images of the whole batch. Returns the mean loss."""
        self.gradient[:] = 0
        if not len(mine):
            return 0.0
        pixels, labels = to_batch(images, images.train_images[mine], images.train_labels[mine])
        loss = nn.functional.cross_entropy(self.model(pixels), labels, reduction="sum")
        torch.autograd.backward(loss / batch)
        return float(loss.detach()) / len(mine)

    def step(self, gradient: Floats, learning_rate: float) -> None:
        """SGD with momentum, as torch.optim.SGD does it."""
        self.momentum *= MOMENTUM
        self.momentum += gradient
        self.weights -= learning_rate * self.momentum

    def right(self, images: data.Images) -> int:
        """Test images that it names rightly."""
        found = 0
        with torch.no_grad():
            for first in range(0, len(images.test_labels), EVALUATION_BATCH):
                part = slice(first, first + EVALUATION_BATCH)
                pixels, labels = to_batch(images, images.test_images[part], images.test_labels[part])
                found += int((self.model(pixels).argmax(1) == labels).sum())
        return found

    def digest(self) -> str:
        return sha256(self.weights.tobytes() + self.momentum.tobytes()).hexdigest()


@dataclass
class Account:
    """What the receipts of one training say."""

    ops: int = 0
    complete: int = 0
    partial: int = 0
    insufficient: int = 0
    untrue: list[str] = field(default_factory=list)
    results: dict[str, str] = field(default_factory=dict)
    """Of complete ops by number and view: the digest of the sum."""

    def add(self, receipt: Receipt, bucket: Floats, rank: int) -> None:
        self.ops += 1
        self.complete += receipt.complete
        self.partial += receipt.status is Status.PARTIAL
        self.insufficient += receipt.status is Status.INSUFFICIENT
        if text := untruth(receipt, who_is_in(bucket), rank):
            self.untrue.append(text)
        if receipt.complete:
            self.results[f"{receipt.op_seq} {receipt.view}"] = sha256(bucket.tobytes()).hexdigest()[:16]


class Training:
    """One training in one job, from the first op of this rank to the last one."""

    def __init__(self, job: ElasticJob, images: data.Images, options: argparse.Namespace) -> None:
        self._job, self._images, self._options = job, images, options
        self._net = Net(options.seed)
        self._account = Account()
        self._batch = options.ranks * images.batch
        self._per_epoch = len(images.train_labels) // self._batch
        self._steps = self._per_epoch * (options.epochs or max(1, images.epochs // 2))

    def run(self) -> dict[str, Any]:
        """Trains to the end; the result for the program that started this one."""
        loss, last_said, step = 0.0, 0.0, self._take(0)
        began, first = time.perf_counter(), step
        while step < self._steps:
            self._job.share(self._net.state, revision=step)
            view = self._job.view
            points = self._points(step)
            parts = np.array_split(points, view.world_size)
            mine = points[:0] if view.position is None else parts[view.position]
            loss = self._net.compute(self._images, mine, self._batch) or loss
            bucket = marked(self._net.gradient, self._job.rank)
            receipt = self._job.allreduce(bucket, "sum", deadline=DEADLINE_S)
            self._account.add(receipt, bucket, self._job.rank)
            step += 1
            if receipt.status is not Status.INSUFFICIENT:
                self._net.step(unmarked(bucket, len(self._net.weights)), self._rate(step - 1))
            if not receipt.complete:  # others may hold another sum of it
                step = self._take(step)
            now = time.monotonic()
            if now - last_said >= EVENT_PERIOD_S or step == self._steps:
                last_said = now
                say("step", step=step, steps=self._steps, loss=loss)
        right, account = self._net.right(self._images), self._account
        return {
            "rank": self._job.rank,
            "first_step": first,
            "steps": self._steps,
            "seconds": time.perf_counter() - began,
            "accuracy": right / len(self._images.test_labels),
            "test_images": len(self._images.test_labels),
            "digest": self._net.digest(),
            **vars(account),
        }

    def _points(self, step: int) -> npt.NDArray[np.int64]:
        """The images of a step: the same on every rank, whenever it came."""
        epoch, place = divmod(step, self._per_epoch)
        order = np.random.default_rng((self._options.seed, epoch)).permutation(len(self._images.train_labels))
        return order[place * self._batch :][: self._batch]

    def _rate(self, step: int) -> float:
        """It falls to nothing along half a cosine: the accuracy at the end depends less on the last few batches."""
        rate: float = self._options.learning_rate
        return rate * (1 + math.cos(math.pi * step / self._steps)) / 2

    def _take(self, step: int) -> int:
        """Makes this rank's state that of the others; the step at which they are."""
        report = self._job.sync_state(self._net.state, revision=step, timeout=WAIT_S)
        if report is None:
            return step
        if report.nbytes and report.sources:
            say("state", step=report.revision, bytes=report.nbytes, seconds=report.elapsed_s,
                sources=sorted(report.sources))  # fmt: skip
        return report.revision


def tell_views(job: ElasticJob) -> None:
    """Each view as it comes, until the job is closed."""
    for change in job.changes():
        tell_view(change.view)


def tell_view(view: ultima.View) -> None:
    say("view", number=view.number, ranks=list(view.ranks), since=view.since, why=view.why)


def train(name: str, meet: str, images: data.Images, options: argparse.Namespace) -> None:
    """Joins, trains, tells, and leaves when it is told to."""
    job = ultima.connect(
        name, world="elastic", least=2, most=options.ranks, meet=meet, bucket_bytes_max=BUCKET_BYTES, timeout=WAIT_S
    )
    assert isinstance(job, ElasticJob)
    with job:
        say("in", rank=job.rank)
        tell_view(job.view)
        watcher = threading.Thread(target=tell_views, args=(job,), name="views", daemon=True)
        watcher.start()
        say("result", **Training(job, images, options).run())
        if sys.stdin.readline().split() == ["leave"]:
            job.leave()
    watcher.join()
    say("out")


def main(arguments: list[str] | None = None) -> int:
    """Does what standard input says, to its end. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m ultima.demo.elastic_rank", description=__doc__)
    parser.add_argument("--data", choices=("auto", "fashion-mnist", "digits"), default="auto")
    parser.add_argument("--ranks", type=int, default=4, help="seats of the job")
    parser.add_argument(
        "--epochs", type=int, help="passes over the training images; the default is half of what suits them"
    )
    parser.add_argument("--learning-rate", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    images = data.load(options.data)
    say("ready", data=images.source, train_images=len(images.train_labels))
    for line in sys.stdin:
        _, name, meet = line.split()
        train(name, meet, images, options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
