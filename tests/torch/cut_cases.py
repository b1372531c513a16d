# SPDX-License-Identifier: Apache-2.0
"""Two sites of two ranks each, whose model FSDP2 cuts over the ranks of a site: what each rank has after rounds."""

from __future__ import annotations

import json
import os
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

import ultima
from ultima.torch import DiLoCo

RANK, JOB = int(os.environ["RANK"]), os.environ["SITE_JOB"]
SITE, PLACE = divmod(RANK, 2)
ROWS = 5  # of ten, for each of the two ranks


def run() -> dict[str, Any]:
    """As in site_cases.py each rank's gradient is its number and 1. The first values are the numbers of the rows."""
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "LOCAL_RANK"):
        os.environ.pop(name)  # they are the process group's, and not of the job
    model = nn.Linear(40, 2 * ROWS, bias=False)
    rows = torch.arange(2.0 * ROWS)[:, None] + torch.zeros(40)
    with torch.no_grad():
        model.weight.copy_(rows + 100 * SITE)
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    fully_shard(model, mesh=DeviceMesh.from_group(groups[SITE], "cpu"))
    mine = rows[PLACE * ROWS : (PLACE + 1) * ROWS]
    inner = torch.optim.SGD(model.parameters(), lr=1.0)
    rule, told = ultima.Nesterov(lr=1.0, momentum=0.0), dict[str, Any](seen=[], refused=[])
    for lacks in ({}, {"inner_group": groups[SITE]}):
        try:
            DiLoCo(model, inner, 2, outer=rule, **lacks)
        except ultima.InvalidArgument as error:
            told["refused"].append(error.field)
    model.extra = nn.Parameter(torch.zeros(3))
    try:
        DiLoCo(model, inner, 2, outer=rule)
    except ultima.InvalidArgument as error:
        told["refused"].append(str(error))
    del model.extra
    job = ultima.connect(f"{JOB}-{PLACE}", rank=SITE, world_size=2, rendezvous=os.environ["SITE_MEETS"])
    options: dict[str, Any] = {"inner_group": groups[SITE], "weight": "tokens", "deadline": "20s"}

    def values() -> float:
        moved = model.weight.to_local().detach() - mine
        assert (moved - moved[0, 0]).abs().max() < 1e-4, moved
        return float(moved[0, 0])

    with DiLoCo(model, inner, 2, job=job, outer=rule, **options) as outer:
        told["first"] = values()
        for _ in range(5):
            inner.zero_grad()
            (-(RANK + 1.0) * model(torch.ones(1, 40)).sum()).backward()
            inner.step()
            outer.step(tokens=8 * (1 + SITE))
            told["seen"].append(values())
        outer.meet()
        told |= {"last": values(), "weights": [outer.last.weight, outer.last.members_weight]}
        told |= {"names": [each.name for each in outer.layout.entries], "theta": outer.theta.tolist()}
    return told


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    try:
        print(json.dumps(run()), flush=True)
    finally:
        dist.destroy_process_group()
