# SPDX-License-Identifier: Apache-2.0
"""Two sites of two ranks each, under DDP over Gloo within a site: what each rank has after rounds between the sites."""

from __future__ import annotations

import json
import os
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ultima
from ultima.torch import DiLoCo

RANK, JOB = int(os.environ["RANK"]), os.environ["SITE_JOB"]
SITE, PLACE = divmod(RANK, 2)


def run() -> dict[str, Any]:
    """Each rank's gradient is its number and 1, so that a step moves a site by the mean of its two."""
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "LOCAL_RANK"):
        os.environ.pop(name)  # they are the process group's, and not of the job
    model = nn.Linear(40, 10, bias=False)
    nn.init.constant_(model.weight, float(RANK))
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    job = ultima.connect(JOB, rank=SITE, world_size=2, rendezvous=os.environ["SITE_MEETS"]) if PLACE == 0 else None
    trained = DistributedDataParallel(model, process_group=groups[SITE])
    inner = torch.optim.SGD(model.parameters(), lr=1.0)
    rule = ultima.Nesterov(lr=1.0, momentum=0.0)
    told: dict[str, Any] = {"seen": []}
    outer = DiLoCo(model, inner, 2, job=job, inner_group=groups[SITE], outer=rule, weight="tokens", deadline="20s")
    with outer:
        told["first"] = model.weight[0, 0].item()
        for _ in range(5):
            inner.zero_grad()
            (-(RANK + 1.0) * trained(torch.ones(1, 40)).sum()).backward()
            inner.step()
            outer.step(tokens=8 * (1 + SITE))
            told["seen"].append(model.weight[0, 0].item())
            assert (model.weight == model.weight[0, 0]).all()
        outer.meet()
        told["last"] = model.weight[0, 0].item()
        if PLACE == 0:
            told["weights"] = [outer.last.weight, outer.last.members_weight]
            told["tokens"] = outer.summary().tokens
        for name in ("theta", "state_dict"):
            try:
                getattr(outer, name) if name == "theta" else outer.state_dict()
                told[name] = "given"
            except ultima.Unsupported as error:
                told[name] = str(error)
        if PLACE == 0:
            with torch.no_grad():
                model.weight[0, 0] = float("nan")
            outer._nonfinite = "raise"
        told["failed"] = ""
        try:
            for _ in range(2):
                outer.step()
        except ultima.UltimaError as error:
            told["failed"] = f"{type(error).__name__}: {error}"
        outer.close()
    return told


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    try:
        print(json.dumps(run()), flush=True)
    finally:
        dist.destroy_process_group()
